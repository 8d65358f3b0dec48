//! The addresses of gateways, as a user writes them.

use std::env::var;
use std::net::IpAddr;

use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;

use crate::access::ShownKey;

/// The gateways of one store, in the order in which they are asked first. There is at least one.
#[derive(Clone)]
pub struct GatewayAddresses(Vec<Url>);

impl GatewayAddresses {
    /// Reads addresses with commas between them. The error says what to write, and never repeats an address: it may hold
    /// a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let mut addresses = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let which = match parts.len() {
                1 => "the address".to_owned(),
                count => format!("address {} of {count}", index + 1),
            };
            let address =
                parse_one(part, parts.len() == 1).map_err(|problem| format!("{which} {problem}"))?;
            if let Some(same) = addresses.iter().position(|other| *other == address) {
                return Err(format!("{which} is the same as address {}: write each gateway once", same + 1));
            }
            addresses.push(address);
        }
        Ok(Self(addresses))
    }

    /// Whether an address needs certificates.
    pub fn speak_tls(&self) -> bool {
        self.0.iter().any(|address| address.scheme() == "https")
    }

    /// Whether an address has a user or a password, which go into the header that an API key goes into too.
    pub fn have_credentials(&self) -> bool {
        self.0.iter().any(|address| !address.username().is_empty() || address.password().is_some())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Url> {
        self.0.iter()
    }
}

/// Reads the address of one gateway.
fn parse_one(text: &str, is_alone: bool) -> Result<Url, String> {
    if text.is_empty() {
        return Err("is empty: write http://HOST:PORT or https://HOST:PORT".into());
    }
    if !["http://", "https://"].iter().any(|scheme| text.starts_with(scheme)) {
        return Err("must begin with http:// or https:// (in a password, write a comma as %2C)".into());
    }
    if ShownKey::is_begun_in(text.as_bytes()) {
        return Err(
            "must not hold an API key, which others could read: name its file by --api-key-file".into()
        );
    }
    let mut url = Url::parse(text).map_err(|error| {
        let comma = if is_alone { "" } else { " (in a password, write a comma as %2C)" };
        format!("is not usable ({error}): write http://HOST:PORT{comma}")
    })?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must have neither ? nor # (in a password, write them as %3F and %23)".into());
    }
    // A gateway may be behind a path of a proxy.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty();
    }
    Ok(url)
}

/// What people call a gateway: its address without a user and a password, and the proxy through which it is asked.
pub(super) fn name_of(address: &Url) -> String {
    let name = format!("{}{}", address.origin().ascii_serialization(), address.path().trim_end_matches('/'));
    match proxy_of(address) {
        Some(proxy) => format!("{name} through the proxy {proxy}"),
        None => name,
    }
}

/// The proxy that the environment has for an address, found as the client finds it, without a user and a password.
fn proxy_of(address: &Url) -> Option<String> {
    if is_of_this_machine(address) {
        return None;
    }
    let proxy = Matcher::from_env().intercept(&address.as_str().parse::<Uri>().ok()?)?;
    // Where a password has one of these in it, what stands before that is taken for the host and the port.
    let is_cut = |text: String| {
        let rest = text.split_once("://").map_or(&*text, |(_, rest)| rest);
        rest.split_once(['/', '?', '#']).is_some_and(|(_, rest)| rest.contains('@'))
    };
    let names = ["http_proxy", "https_proxy", "all_proxy"].into_iter();
    let mut given =
        names.flat_map(|name| [name.to_owned(), name.to_uppercase()]).filter_map(|name| var(name).ok());
    Some(match given.any(is_cut) {
        true => "of the environment, whose address is not http://HOST:PORT (in a password, write / as %2F, ? as %3F, # as %23)"
            .to_owned(),
        false => proxy.uri().to_string().trim_end_matches('/').to_owned(),
    })
}

/// Whether an address leads to this machine whatever the network is. A proxy elsewhere would take it for its own machine.
pub(super) fn is_of_this_machine(address: &Url) -> bool {
    let host = address.host_str().unwrap_or_default().trim_matches(['[', ']']);
    matches!(host, "localhost" | "localhost.")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        GatewayAddresses::parse(text).map(|addresses| addresses.iter().map(name_of).collect())
    }

    #[test]
    fn gateways_are_named_without_their_secrets_and_with_their_paths() {
        let text = "http://a:8080, https://user:hunter2@b/behind/a/proxy/,http://[::1]:80";
        let expected = ["http://a:8080", "https://b/behind/a/proxy", "http://[::1]"].map(str::to_owned);
        assert_eq!(names(text), Ok(expected.to_vec()));
    }

    #[test]
    fn an_address_of_this_machine_is_known_in_each_form() {
        for (text, is_here) in [
            ("http://localhost:8080", true),
            ("https://LOCALHOST.", true),
            ("http://127.9.9.9", true),
            ("http://[::1]:8080", true),
            ("http://[::ffff:127.0.0.1]", true),
            ("http://127.1", true),
            ("http://localhost.example", false),
            ("http://10.0.0.1", false),
            ("http://[::2]", false),
        ] {
            let address =
                GatewayAddresses::parse(text).map(|addresses| addresses.iter().any(is_of_this_machine));
            assert_eq!(address, Ok(is_here), "{text}");
        }
    }

    #[test]
    fn a_wrong_address_is_told_by_its_place_and_with_what_to_write() {
        for (text, place, advice) in [
            ("", "the address is empty", "write http://HOST:PORT"),
            ("localhost:8080", "the address", "http:// or https://"),
            ("http://a,,http://b", "address 2 of 3 is empty", "write http://HOST:PORT"),
            ("http://a,", "address 2 of 2 is empty", "write http://HOST:PORT"),
            ("http://a,b:8080", "address 2 of 2", "http:// or https://"),
            ("http://a,http://b,http://A:80/", "address 3 of 3", "the same as address 1"),
            ("http://user:hunter2@a:99999", "the address", "write http://HOST:PORT"),
            ("http://user:hunter2@", "the address", "write http://HOST:PORT"),
            (
                "http://u:hunter,2@a",
                "address 1 of 2",
                "write http://HOST:PORT (in a password, write a comma as %2C)",
            ),
            ("http://a?x", "the address", "neither ? nor #"),
        ] {
            let problem = names(text).unwrap_or_else(|problem| vec![problem]).concat();
            assert!(problem.starts_with(place) && problem.contains(advice), "{text}: {problem}");
            assert!(!problem.contains("hunter"), "{problem}");
        }
    }
}

//! Why a gateway gave no answer that counts, in words for people.

use std::error::Error;
use std::io::{self, ErrorKind};

use jiff::Timestamp;
use rustls::{AlertDescription, CertificateError, Error as TlsError};

/// Why a request came to nothing.
#[derive(Clone)]
pub(crate) struct Trouble {
    pub(crate) reason: String,
    pub(crate) contact: Contact,
    /// What was asked for may have been done, and nothing says so.
    pub(crate) may_be_done: bool,
    /// The same request would fare the same again: something must be set right first.
    pub(crate) is_lasting: bool,
}

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Contact {
    /// No gateway can have read it.
    None,
    /// A gateway may have read it.
    Sent,
    Answered,
}

impl Trouble {
    /// A gateway may have read the request, and has said nothing that can be used.
    pub(crate) fn without_answer(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), contact: Contact::Sent, may_be_done: true, is_lasting: false }
    }

    /// No gateway can have read the request, and the same will not be read either.
    pub(super) fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), contact: Contact::None, may_be_done: false, is_lasting: true }
    }
}

impl From<reqwest::Error> for Trouble {
    fn from(error: reqwest::Error) -> Self {
        let speaks_tls = error.url().is_some_and(|url| url.scheme() == "https");
        let is_unsent = error.is_connect() || error.is_builder();
        let passing = |reason: &str| match is_unsent {
            true => Self { contact: Contact::None, may_be_done: false, ..Self::without_answer(reason) },
            false => Self::without_answer(reason),
        };
        if error.is_timeout() {
            return passing("no answer in time");
        }
        // The address may hold a password.
        let error = error.without_url();
        for cause in causes(&error) {
            if let Some(problem) = cause.downcast_ref::<TlsError>() {
                // With TLS 1.3, a server asks for the client's certificate when the request may be sent already. It has not read it.
                let is_of_handshake = is_unsent
                    || matches!(problem, TlsError::AlertReceived(AlertDescription::CertificateRequired));
                return match is_of_handshake {
                    true => Self::lasting(tls_problem(problem)),
                    false => passing(&broken_tls(problem)),
                };
            }
            if let Some(problem) = cause.downcast_ref::<hyper::Error>() {
                // What is no HTTP from its first byte on. Servers with TLS answer so, and have read nothing. But a gateway
                // may have read the request, if its answer was damaged on the way: the bytes are not known here.
                if problem.to_string().starts_with("invalid HTTP version") && !speaks_tls {
                    let what = "what answers at this port is not HTTP; it is probably TLS: write https://";
                    return Self { is_lasting: true, ..passing(what) };
                }
                if problem.is_parse() {
                    return passing(&format!("its answer cannot be read ({problem})"));
                }
                if problem.is_incomplete_message() {
                    return passing("the connection ended before an answer came");
                }
            }
            if let Some(problem) = cause.downcast_ref::<io::Error>() {
                let says = match problem.kind() {
                    ErrorKind::ConnectionRefused => "connection refused (does a gateway run there?)",
                    ErrorKind::ConnectionReset => "the connection was reset",
                    ErrorKind::HostUnreachable => "the host cannot be reached",
                    ErrorKind::NetworkUnreachable => "the network cannot be reached",
                    ErrorKind::UnexpectedEof if speaks_tls && is_unsent => {
                        "the connection ended during the TLS handshake; if this port speaks plain HTTP, write http://"
                    }
                    ErrorKind::UnexpectedEof => "the connection ended before an answer came",
                    _ => continue,
                };
                return passing(says);
            }
        }
        let innermost = causes(&error).last().map_or_else(|| error.to_string(), ToString::to_string);
        passing(&innermost)
    }
}

/// An error and what it came from, from the outermost to the innermost.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        // An error of the system says what the one in it came from, and not that one itself.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(within) => Some(within),
            None => error.source(),
        };
        Some(error)
    })
}

fn tls_problem(error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(problem) => certificate_problem(problem),
        TlsError::InvalidMessage(_) => {
            "what answers at this port is not TLS; it is probably plain HTTP: write http://".to_owned()
        }
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
            "it asks for a client certificate, which `fencepost` cannot show: use an API key".to_owned()
        }
        TlsError::AlertReceived(alert) => format!("it refused the TLS handshake: {}", in_words(alert)),
        TlsError::General(text) => format!("TLS does not work: {text}"),
        other => format!("the TLS handshake failed: {}", in_words(other)),
    }
}

/// The same where the handshake had succeeded.
fn broken_tls(error: &TlsError) -> String {
    match error {
        TlsError::AlertReceived(alert) => format!("it ended the TLS connection: {}", in_words(alert)),
        other => format!("its answer was damaged on the way: {}", in_words(other)),
    }
}

/// What is wrong with the certificate that was shown, and what to do.
fn certificate_problem(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => "its certificate is signed by an authority that this machine does not \
             trust: name the file of that authority's certificate by --ca-file"
            .to_owned(),
        CertificateError::Expired => "its certificate has expired: renew it at the gateway".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate expired at {}: renew it at the gateway, or set this machine's clock, which says {}",
            moment(not_after.as_secs()),
            moment(time.as_secs())
        ),
        CertificateError::NotValidYet => {
            "its certificate is not valid yet: look at the clock of this machine".to_owned()
        }
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate is not valid before {}: set this machine's clock, which says {}, or give the gateway \
             another certificate",
            moment(not_before.as_secs()),
            moment(time.as_secs())
        ),
        CertificateError::NotValidForName => {
            "its certificate is for another name: use that name in the address".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().map(|name| bare_name(name)).collect();
            let names = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
            format!(
                "its certificate is not for {}, but for {names}: use that name in the address, or give the gateway a \
                 certificate for both",
                expected.to_str()
            )
        }
        CertificateError::BadSignature => "its certificate is not signed by the authority of that name that this machine \
             trusts: name the file of the right authority's certificate by --ca-file"
            .to_owned(),
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its certificate is not signed by a key such as the authority of that name has that this machine trusts: \
             name the file of the right authority's certificate by --ca-file; if it is the right one, keys of its \
             kind, such as P-521, cannot be verified: give the gateway another one"
                .to_owned()
        }
        CertificateError::Revoked => "its certificate was revoked: give the gateway a new one".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not for servers: give the gateway one with the extended key usage serverAuth"
                .to_owned()
        }
        // The one of the verifier's own errors that users meet: it has no name of its own here.
        CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
            "its certificate is that of an authority (CA:TRUE), and not of a server: give the gateway one with \
             CA:FALSE; `openssl req -x509` makes that with -addext basicConstraints=critical,CA:FALSE"
                .to_owned()
        }
        CertificateError::Other(other) => cannot_be_verified(other),
        other => cannot_be_verified(other),
    }
}

fn cannot_be_verified(error: &dyn std::fmt::Debug) -> String {
    format!("its certificate cannot be verified ({}): give the gateway another one", in_words(error))
}

/// A time as people write it.
fn moment(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    moment.map_or_else(|| "an unknown time".to_owned(), |moment| moment.to_string())
}

/// A name as it stands in a certificate, of `DnsName("a.example")`.
fn bare_name(name: &str) -> &str {
    let within = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    within.map_or(name, |name| name.trim_matches('"'))
}

/// The names of an error's kinds as words: `PeerIncompatible(NoCipherSuitesInCommon)` is "peer incompatible: no cipher
/// suites in common". The library has no other text for many of them.
fn in_words(error: &dyn std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    let names = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|name| !name.is_empty());
    let names = names.take_while(|name| name.starts_with(|c: char| c.is_ascii_uppercase()));
    let words = |name: &str| {
        let mut words = String::new();
        let mut was_lower = false;
        for c in name.chars() {
            if c.is_ascii_uppercase() && was_lower {
                words.push(' ');
            }
            was_lower = !c.is_ascii_uppercase();
            words.push(c.to_ascii_lowercase());
        }
        words
    };
    // An error of another library in one of these is told by its own name alone.
    names.filter(|name| !name.starts_with("Other")).map(words).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{OtherError, PeerIncompatible};

    use super::*;

    #[test]
    fn each_problem_of_a_certificate_is_told_in_words_and_with_what_to_do() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let name = ServerName::try_from("gate.example").map(|name| name.to_owned());
        let wrong_name = name.map(|expected| CertificateError::NotValidForNameContext {
            expected,
            presented: vec!["DnsName(\"a.example\")".into(), "IpAddress(127.0.0.1)".into()],
        });
        let other =
            |text: &str| CertificateError::Other(OtherError(Arc::new(io::Error::other(text.to_owned()))));
        for (problem, said) in [
            (CertificateError::UnknownIssuer, "--ca-file"),
            (
                CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) },
                "expired at 1970-01-01T00:00:00Z",
            ),
            (CertificateError::Expired, "renew it"),
            (
                CertificateError::NotValidYetContext { time: at(0), not_before: at(86_400) },
                "not valid before 1970-01-02T00:00:00Z",
            ),
            (CertificateError::NotValidYet, "clock"),
            (
                wrong_name.unwrap_or(CertificateError::NotValidForName),
                "gate.example, but for a.example, 127.0.0.1:",
            ),
            (CertificateError::InvalidPurpose, "serverAuth"),
            (CertificateError::Revoked, "revoked"),
            (CertificateError::BadSignature, "--ca-file"),
            (
                CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                    signature_algorithm_id: Vec::new(),
                    public_key_algorithm_id: Vec::new(),
                },
                "by --ca-file; if it is the right one, keys of its kind, such as P-521,",
            ),
            (CertificateError::UnhandledCriticalExtension, "(unhandled critical extension)"),
            (CertificateError::BadEncoding, "(bad encoding)"),
            (other("CaUsedAsEndEntity"), "CA:FALSE"),
        ] {
            let told = tls_problem(&TlsError::InvalidCertificate(problem));
            assert!(told.starts_with("its certificate ") && told.contains(said), "{told}");
        }
    }

    #[test]
    fn the_rest_of_what_can_be_wrong_with_tls_is_told_in_words_too() {
        let incompatible = TlsError::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon);
        let alert = TlsError::AlertReceived(AlertDescription::HandshakeFailure);
        assert_eq!(
            tls_problem(&incompatible),
            "the TLS handshake failed: peer incompatible: no cipher suites in common"
        );
        assert_eq!(tls_problem(&alert), "it refused the TLS handshake: handshake failure");
        let ended = TlsError::AlertReceived(AlertDescription::InternalError);
        assert_eq!(broken_tls(&ended), "it ended the TLS connection: internal error");
        assert_eq!(broken_tls(&TlsError::DecryptError), "its answer was damaged on the way: decrypt error");
    }
}

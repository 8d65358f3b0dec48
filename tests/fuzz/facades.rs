//! Requests of other tools: they are answered in the form that the tool reads, and get at no lock that the key is not for. What
//! was granted is refused to the next, and given back by the same request.

use std::sync::LazyLock;

use fencepost::api::{Facades, Middleware, RebootGroup};
use serde_json::Value;

use crate::requests::{Answer, ask_any, read, with_key};

/// The headers that show the key, in front of the body of an input.
static APP: LazyLock<(Middleware, String)> = LazyLock::new(|| {
    let fleet_lock = ["ours=1", "theirs=1"].map(|group| RebootGroup::parse(group).unwrap()).to_vec();
    let facades = Facades { terraform: true, dapr: true, fleet_lock };
    with_key(&["ours/", "dapr:ours:", "fleet-lock:ours"], &["acquire", "admin"], facades)
});

/// Whether an answer has one of the forms that the tool at this path reads.
fn is_in_form(path: &str, Answer { status, body, .. }: &Answer) -> bool {
    let has = |names: &[&str]| names.iter().all(|name| !body[*name].is_null());
    // What stands in front of every handler refuses in one form.
    let is_problem = body["type"].as_str().is_some_and(|kind| kind.starts_with("/problems/"));
    is_problem && *status >= 400
        || match path.split('/').nth(1) {
            Some("terraform") if *status == 200 => body.is_null() || has(&["ID"]),
            Some("terraform") => matches!(status, 423 | 409) && has(&["ID", "Info", "Path"]),
            Some("v1.0" | "v1.0-alpha1") if *status == 200 => {
                has(&["success"]) || has(&["status"]) || has(&["runtimeVersion"])
            }
            Some("v1.0" | "v1.0-alpha1") => *status >= 400 && has(&["errorCode", "message"]),
            Some("fleet-lock") if *status == 200 => body.is_null(),
            Some("fleet-lock") => *status >= 400 && has(&["kind", "value"]),
            _ => true,
        }
}

/// The same request for another who wants the lock, and to give it back; for a request that takes one.
fn others(method: &str, path: &str, body: &[u8]) -> Option<[(String, String, Value); 2]> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let mut stranger = body.clone();
    let release = path.replacen("/lock/", "/unlock/", 1).replacen("/pre-reboot", "/steady-state", 1);
    let release_method = if method == "LOCK" { "UNLOCK" } else { method };
    let name = match path.split('/').nth(1)? {
        "terraform" if method == "LOCK" => stranger.get_mut("ID")?,
        "v1.0-alpha1" if release != path => stranger.get_mut("lockOwner")?,
        "fleet-lock" if release != path => stranger.get_mut("client_params")?.get_mut("id")?,
        _ => return None,
    };
    *name = Value::from("stranger");
    Some([(method.to_owned(), path.to_owned(), stranger), (release_method.to_owned(), release, body)])
}

/// Only who shows the key is given anything, and only below its prefixes.
pub fn with_keys(input: &[u8]) {
    let (app, key) = &*APP;
    let Ok(text) = std::str::from_utf8(input) else { return };
    let text = text.replace("KEY", key);
    let Some(request) = read(text.as_bytes()) else { return };
    let (method, uri) = (request.method().as_str().to_owned(), request.uri().clone());
    let shows_key = request.headers().values().any(|value| value.to_str().is_ok_and(|it| it.contains(key)));
    let answer = ask_any(app, request);
    let path = uri.path();
    // An answer to HEAD has no body.
    assert!(
        method == "HEAD" || is_in_form(path, &answer),
        "{method} {uri}: {} {}",
        answer.status,
        answer.body
    );
    let is_of_a_tool =
        ["/terraform", "/v1.0-alpha1/", "/fleet-lock/"].iter().any(|start| path.starts_with(start));
    if answer.status >= 300 || !is_of_a_tool {
        return;
    }
    assert!(shows_key, "{method} {uri} was answered to nobody");
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    assert!(text.contains("ours"), "{method} {uri} was answered: {body}");
    let Some([stranger, release]) = others(&method, path, body.as_bytes()) else { return };
    // A short lease may end before the stranger asks.
    let is_long = uri.query().is_none_or(|query| !query.contains("ttl") || query.contains("ttl=30s"));
    let asked: Value = serde_json::from_str(body).unwrap_or_default();
    if !is_long || asked["expiryInSeconds"].as_u64().is_some_and(|expiry_s| expiry_s < 10) {
        return;
    }
    let has_taken = answer.body["success"] != false;
    let again = |(method, path, body): (String, String, Value)| {
        let headers = head.split_once('\n').map_or("", |(_, headers)| headers);
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let repeated = format!("{method} {path}{query}\n{headers}\n\n{body}");
        ask_any(app, read(repeated.as_bytes()).unwrap())
    };
    if has_taken && !body.contains("\"stranger\"") {
        let refused = again(stranger);
        let is_refused = refused.status >= 400 || refused.body["success"] == false;
        assert!(is_refused, "{method} {uri} was granted twice: {body}");
    }
    let released = again(release);
    let is_free =
        released.status == 200 && [&Value::Null, &Value::from(0)].contains(&&released.body["status"]);
    assert!(
        is_free || !has_taken,
        "{method} {uri} was not given back: {} {}",
        released.status,
        released.body
    );
}

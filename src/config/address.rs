//! Addresses to listen on.

use super::error::SettingsError;

/// Checks that a text is HOST:PORT. Whether the host has an address of this machine shows when it is listened on.
pub(super) fn check_listen(flag: &'static str, text: &str) -> Result<(), SettingsError> {
    let wrong = |problem: String| Err(SettingsError::new(flag, format!("{text:?} {problem}")));
    // What stands in front of an @ may be a password.
    if text.contains('@') {
        let problem = "names a user, as a store's address does: write HOST:PORT".to_owned();
        return Err(SettingsError::new(flag, problem));
    }
    if let Some((_, rest)) = text.split_once("://") {
        return wrong(format!("has a scheme: write {:?}", rest.trim_end_matches('/')));
    }
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    match text.rsplit_once(':') {
        _ if is_port(text) => wrong(format!(
            "is a port alone: write 127.0.0.1:{text} for this machine, 0.0.0.0:{text} for others too"
        )),
        Some(("", port)) if is_port(port) => wrong(format!(
            "has no host: write 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for others too"
        )),
        Some((host, port)) if is_port(port) && !host.is_empty() => Ok(()),
        Some((host, _)) if !host.is_empty() && !host.starts_with('[') => {
            wrong(format!("has a port that is no number from 0 to 65535: write {host}:8080"))
        }
        None if !text.is_empty() => wrong(format!("has no port: write {text}:8080")),
        _ => wrong("is not HOST:PORT: write 127.0.0.1:8080, or [::1]:8080".into()),
    }
}

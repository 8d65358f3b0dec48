//! The flags of all commands that ask gateways.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::error::{SettingsError, duration, given, require};
use crate::access::read_text;
use crate::client::{GatewayAddresses, GatewaySettings};

/// Where a bearer key may stand: never among the arguments, which every user of the machine can read.
const API_KEY_VARIABLE: &str = "FENCEPOST_API_KEY";
/// The authorities that are trusted instead of those of this machine, as for other programs.
const AUTHORITIES_VARIABLE: &str = "SSL_CERT_FILE";
/// A longer file is another file, and what were sent of it would only break the connection.
const LONGEST_API_KEY: usize = 8192;

/// Which gateways are asked.
#[derive(Args, Clone)]
pub(super) struct GatewayArgs {
    /// The gateway
    ///
    /// You may name several gateways of one store, separated by commas. They are tried in turn.
    #[arg(
        long,
        help_heading = "Gateway",
        env = "FENCEPOST_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    url: String,

    /// How long to wait at the start for a gateway that is away, or cannot use its store
    #[arg(
        long,
        help_heading = "Gateway",
        default_value = "5s",
        value_parser = duration,
        value_name = "DURATION"
    )]
    gateway_wait: Duration,

    /// A file with the certificate authorities of the gateway, in PEM
    ///
    /// They are trusted instead of those of the machine. Unlike SSL_CERT_FILE, it changes nothing for the command of `run`.
    #[arg(long, help_heading = "Gateway", env = "FENCEPOST_CA_FILE", value_name = "FILE", value_parser = path())]
    ca_file: Option<PathBuf>,

    /// A file with the API key
    ///
    /// The key itself may also be in the variable FENCEPOST_API_KEY.
    #[arg(long, help_heading = "Gateway", env = "FENCEPOST_API_KEY_FILE", value_name = "FILE", value_parser = path())]
    api_key_file: Option<PathBuf>,
}

/// A path, or nothing: an empty variable counts as not set.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl GatewayArgs {
    /// Checks the settings.
    pub(super) fn check(&self) -> Result<GatewaySettings, SettingsError> {
        let wrong = |problem: String| SettingsError::new("--url", problem);
        // An address may hold a password, so what was given is not said again.
        let addresses = GatewayAddresses::parse(&self.url).map_err(wrong)?;
        let authorities = self.authorities(addresses.speak_tls())?;
        let api_key = self.api_key()?;
        if api_key.is_some() && addresses.have_credentials() {
            let problem = "an address has a user or a password, and an API key is given too: both are sent in the \
                           header Authorization, so give one of them";
            return Err(wrong(problem.to_owned()));
        }
        Ok(GatewaySettings { addresses, wait: self.gateway_wait, authorities, api_key })
    }

    /// The authorities that are trusted instead of those of this machine, in PEM.
    fn authorities(&self, are_needed: bool) -> Result<Option<Vec<u8>>, SettingsError> {
        if !are_needed {
            return Ok(None);
        }
        if let Some(file) = given(&self.ca_file) {
            return super::store::authorities("--ca-file", file, true).map(Some);
        }
        if let Some(file) = std::env::var_os(AUTHORITIES_VARIABLE).filter(|file| !file.is_empty()) {
            // The library that reads it takes a file that it cannot read for one without authorities.
            super::store::authorities(AUTHORITIES_VARIABLE, Path::new(&file), true)?;
        }
        Ok(None)
    }

    fn api_key(&self) -> Result<Option<String>, SettingsError> {
        let variable = std::env::var_os(API_KEY_VARIABLE).filter(|key| !key.is_empty());
        let file = given(&self.api_key_file);
        let (flag, key) = match (file, variable) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                let problem = format!("{API_KEY_VARIABLE} is set too; give one of them");
                return Err(SettingsError::new("--api-key-file", problem));
            }
            (Some(file), None) => ("--api-key-file", read_secret("--api-key-file", file)?),
            // What is not UTF-8 becomes what is not ASCII, and is refused below.
            (None, Some(key)) => (API_KEY_VARIABLE, key.to_string_lossy().into_owned()),
        };
        let is_plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        require(flag, is_plain, "one line of visible ASCII characters")?;
        require(flag, key.len() <= LONGEST_API_KEY, &format!("at most {LONGEST_API_KEY} characters long"))?;
        Ok(Some(key))
    }
}

/// Reads a secret that is alone in its file.
pub(super) fn read_secret(flag: &'static str, file: &Path) -> Result<String, SettingsError> {
    match read_text(file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if file.to_string_lossy().starts_with("fp_") => {
            let problem = format!("cannot read the file, whose name begins as an API key does: {error}");
            Err(SettingsError::new(flag, problem))
        }
        Err(error) => Err(SettingsError::new(flag, format!("cannot read {}: {error}", file.display()))),
    }
}

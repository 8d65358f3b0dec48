//! The settings of what is said of all this: the log, the metrics, the traces and the audit log.

use std::ffi::{OsStr, OsString};

use axum::http::Uri;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;

use super::address::check_listen;
use super::error::{SettingsError, given};
use super::server::METRICS_CONNECTIONS;
use crate::audit::AuditTarget;

/// The flags of what is said.
#[derive(Args, Clone, Debug)]
pub struct ObserveArgs {
    /// The form of the log, which goes to standard error
    #[arg(
        long,
        help_heading = "Logs, metrics and traces",
        env = "FENCEPOST_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT"
    )]
    log_format: LogFormat,

    /// The lowest level that is logged
    ///
    /// Each request is one line: info, or warn if its status is 500 or 503. Good answers to /healthz and /readyz are debug.
    #[arg(
        long,
        help_heading = "Logs, metrics and traces",
        env = "FENCEPOST_LOG_LEVEL",
        default_value = "info",
        value_parser = PossibleValuesParser::new(["error", "warn", "info", "debug"]).try_map(|level| level.parse::<LevelFilter>()),
        value_name = "LEVEL"
    )]
    log_level: LevelFilter,

    /// A second address and port, for /metrics only
    ///
    /// Every client that reaches it may read the metrics. They are not served at --listen then.
    #[arg(
        long,
        help_heading = "Logs, metrics and traces",
        env = "FENCEPOST_METRICS_LISTEN",
        value_name = "HOST:PORT"
    )]
    metrics_listen: Option<String>,

    /// Where to send traces by OTLP over HTTP, such as http://127.0.0.1:4318
    ///
    /// Without a path, they go to /v1/traces. The OTEL_ variables for headers, sampling and resources apply.
    #[arg(
        long,
        help_heading = "Logs, metrics and traces",
        env = "FENCEPOST_OTLP_ENDPOINT",
        hide_env_values = true,
        value_name = "URL"
    )]
    otlp_endpoint: Option<String>,

    /// The file for the audit log: who did what with which key
    ///
    /// It gets one JSON object a line. `-` is standard error. The gateway opens the file again on SIGHUP.
    #[arg(long, help_heading = "Logs, metrics and traces", env = "FENCEPOST_AUDIT_LOG", value_name = "FILE")]
    audit_log: Option<OsString>,
}

/// What is said, checked.
#[derive(Clone, Debug)]
pub struct ObserveSettings {
    /// Whether the log is made of JSON objects.
    pub logs_json: bool,
    /// From which level up it is logged.
    pub log_level: LevelFilter,
    /// An address and port for the metrics alone.
    pub metrics_listen: Option<String>,
    /// How many connections may be open there.
    pub metrics_connections: usize,
    /// Where traces go.
    pub otlp_endpoint: Option<String>,
    /// Where it is written down who did what, if anywhere.
    pub audit_log: Option<AuditTarget>,
}

impl ObserveArgs {
    pub(super) fn check(&self) -> Result<ObserveSettings, SettingsError> {
        let metrics_listen = given(&self.metrics_listen);
        if let Some(address) = metrics_listen {
            check_listen("--metrics-listen", address)?;
        }
        let target = |file: &OsStr| match file.to_str() {
            Some("-") => AuditTarget::StandardError,
            _ => AuditTarget::File(file.into()),
        };
        Ok(ObserveSettings {
            audit_log: given(&self.audit_log).map(target),
            logs_json: self.log_format == LogFormat::Json,
            log_level: self.log_level,
            metrics_connections: metrics_listen.map_or(0, |_| METRICS_CONNECTIONS),
            metrics_listen: metrics_listen.map(str::to_owned),
            otlp_endpoint: given(&self.otlp_endpoint).map(otlp_endpoint_of).transpose()?,
        })
    }
}

/// The address for traces, of what is given of it.
fn otlp_endpoint_of(text: &str) -> Result<String, SettingsError> {
    // It is not repeated: it may hold a secret.
    let error = |problem: &str| SettingsError::new("--otlp-endpoint", problem.to_owned());
    if !cfg!(feature = "traces") {
        return Err(error(
            "this program was built without traces: leave the setting out, or build with the feature `traces`",
        ));
    }
    let no_address = || error("must be the address of a collector");
    let uri: Uri = text.parse().map_err(|_| no_address())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(error("must begin with http:// or https://"));
    }
    let authority = uri.authority().ok_or_else(no_address)?;
    if authority.as_str().contains('@') {
        return Err(error("must hold no password: OTEL_EXPORTER_OTLP_HEADERS is for that"));
    }
    if authority.as_str() != authority.host() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(error("must be the address of a collector, with a port from 1 to 65535"));
    }
    let path = match uri.path() {
        "" | "/" => "/v1/traces",
        path => path,
    };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Ok(format!("{}://{authority}{path}{query}", uri.scheme_str().unwrap_or_default()))
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line for people.
    Text,
    /// An object per line.
    Json,
}

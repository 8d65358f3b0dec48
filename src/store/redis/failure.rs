//! What the errors of the driver mean: the one place where a reply becomes "not yet", "not done" or "unknown".
//!
//! | what Redis replied, or what became of the connection | the step is | the connection |
//! |---|---|---|
//! | `MOVED`, `ASK` | not yet: sent to the server that was named | stays |
//! | `TRYAGAIN`, `BUSY` | not yet: sent again after a pause | stays |
//! | `READONLY`, `MASTERDOWN`, `LOADING`, `CLUSTERDOWN`, `STALE` of our own | not yet: sent to the server that is the primary then | is left |
//! | `NOAUTH`, `WRONGPASS` | not done | is left |
//! | `OOM`, `MISCONF`, `NOREPLICAS`, `NOPERM`, `NOSCRIPT` twice, `UNREADABLE` of our own | not done | stays |
//! | any other error of a script, `WRONGTYPE` too | unknown, since it keeps what it wrote | stays |
//! | a reply in which a value, or what it says of a lock, cannot be read | unknown, where it may have written | stays |
//! | no answer in time | unknown | is left, if there was time enough for an answer |
//! | closed; reset; a reply of another form than the script has; anything else | unknown | is left |
//!
//! That no connection could be made is said by the supervisor (`supervisor.rs`), before anything is sent: not done.
//!
//! Redis 6.2 wraps what its state says to a command of a script: `ERR Error running script (call to f_…): @user_script:1:
//! @user_script: 1: -NOREPLICAS …`. It is read as what it wraps, and so is the `UNREADABLE` that a script throws, on any version:
//! `ERR UNREADABLE … script: …, on @user_script:1.`

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use rustls::CertificateError;
use tokio::time::Instant;

use super::node::Node;
use crate::store::StoreError;

/// How long a server that is well may take to answer when it has much to do.
const LONG_ENOUGH: Duration = Duration::from_millis(250);
/// Why a server grants nothing that has no room for it.
pub(crate) const MEMORY_IS_FULL: &str =
    "the memory of Redis is full, so no new lock is granted: raise maxmemory";

/// What an error of the driver means for the step, and for the connection.
pub(crate) struct Failure {
    pub(crate) outcome: StepOutcome,
    pub(crate) reason: String,
    /// Whether the connection must not be used again.
    pub(crate) breaks_link: bool,
    /// Where the server points, for this once or from now on.
    pub(crate) redirect: Option<Redirect>,
}

/// Where a server of a cluster points. The server's name may have no host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot is there.
    Moved(Node),
    /// The slot is on its way there: what was not found here may be there already.
    Ask(Node),
}

/// What is known of a step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    /// Certainly nothing happened, and in a moment it may.
    NotYet,
    /// Certainly nothing happened, and a person must act first.
    NotDone,
    /// It may have happened, or may yet happen.
    Unknown,
}

impl Failure {
    pub(crate) fn of(error: &RedisError) -> Self {
        let wrapped = wrapped(error);
        let code = wrapped.map_or_else(|| error.code().unwrap_or_default(), first_word);
        let (outcome, breaks_link) = match error.kind() {
            // The server's state speaks here, before the first write of a script.
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain) => {
                (StepOutcome::NotYet, false)
            }
            ErrorKind::Server(
                ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown,
            ) => (StepOutcome::NotYet, true),
            _ if matches!(code, "STALE" | "READONLY") => (StepOutcome::NotYet, true),
            _ if code == "BUSY" => (StepOutcome::NotYet, false),
            ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::NoScript) => {
                (StepOutcome::NotDone, false)
            }
            _ if matches!(code, "OOM" | "MISCONF" | "NOREPLICAS" | "UNREADABLE") => {
                (StepOutcome::NotDone, false)
            }
            _ if matches!(code, "NOAUTH" | "WRONGPASS") => (StepOutcome::NotDone, true),
            // A script that errs keeps what it wrote.
            ErrorKind::Server(_) | ErrorKind::Extension => (StepOutcome::Unknown, false),
            // One error stands for "never queued" and "sent, and the driver died": only the worse is safe.
            _ => (StepOutcome::Unknown, true),
        };
        let node = error.redirect_node().and_then(|(node, _)| Node::parse(node));
        let is_ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        let redirect = node.map(if is_ask { Redirect::Ask } else { Redirect::Moved });
        let said = wrapped.map_or_else(|| describe(error), str::to_owned);
        let reason = match code {
            "OOM" => format!("{MEMORY_IS_FULL} ({said})"),
            _ => format!("Redis: {said}"),
        };
        Self { outcome, reason, breaks_link, redirect }
    }

    /// What it means that there is no answer yet to what was asked then. The last step of a request may have but a moment left:
    /// that its answer did not come says nothing about the connection, which others use.
    pub(crate) fn no_answer(asked_at: Instant) -> Self {
        let reason = "Redis did not answer in time".to_owned();
        let breaks_link = asked_at.elapsed() >= LONG_ENOUGH;
        Self { outcome: StepOutcome::Unknown, reason, breaks_link, redirect: None }
    }

    /// The error of a step that is not tried again.
    pub(crate) fn into_error(self) -> StoreError {
        match self.outcome {
            StepOutcome::NotYet | StepOutcome::NotDone => StoreError::Unavailable(self.reason),
            StepOutcome::Unknown => StoreError::Unknown(self.reason),
        }
    }
}

/// What an error of Redis 6.2 wraps, if it is what the state of the server says, and what a script throws before it writes: any
/// other error may come after a write.
fn wrapped(error: &RedisError) -> Option<&str> {
    let detail = error.detail().filter(|_| error.code() == Some("ERR"))?;
    if let Some(said) = thrown(detail) {
        return Some(said);
    }
    let (_, behind_hash) = detail.strip_prefix("Error running script (call to f_")?.split_once("): ")?;
    let behind_line = |text, label| {
        let (line, rest) = str::strip_prefix(text, label)?.split_once(": ")?;
        line.bytes().all(|byte| byte.is_ascii_digit()).then_some(rest)
    };
    let behind_first = behind_line(behind_hash, "@user_script:")?;
    if let Some(said) = thrown(behind_first) {
        return Some(said);
    }
    let said = behind_line(behind_first, "@user_script: ")?.strip_prefix('-')?;
    matches!(first_word(said), "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS").then_some(said)
}

/// What a script throws where it cannot read a lock, without where that was.
fn thrown(text: &str) -> Option<&str> {
    let said = text.split(" script: ").next().filter(|said| first_word(said) == "UNREADABLE");
    said.map(str::trim_end)
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// An error of the driver in one line.
pub(crate) fn describe(error: &RedisError) -> String {
    // Of several commands, the first one that failed says why the others did.
    let of_server = error.clone().into_server_errors();
    let said =
        of_server.as_ref().and_then(|errors| errors.first()).map(|(_, said)| (said.code(), said.details()));
    match said.map_or((error.code(), error.detail()), |(code, detail)| (Some(code), detail)) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        // The driver puts the name of one of its types behind its text.
        _ => tls_problem(error)
            .unwrap_or_else(|| error.to_string().replacen(&format!(" - {:?}", error.kind()), "", 1)),
    }
}

/// Why no connection could be made, in one line.
pub(crate) fn trouble(error: &RedisError) -> String {
    password_problem(error).map_or_else(|| describe(error), str::to_owned)
}

/// What is wrong with the password, if that is what is wrong: the server was reached.
pub(crate) fn password_problem(error: &RedisError) -> Option<&'static str> {
    match first_word(&describe(error)) {
        "NOAUTH" => Some(
            "the server asks for a password (NOAUTH): write it into a file, and name that with --redis-password-file",
        ),
        "WRONGPASS" => Some(
            "the server refuses the password, or does not know the user (WRONGPASS): look at --redis-password-file, and at the \
             user in --store",
        ),
        _ => None,
    }
}

/// Why a sentinel says nothing of its primary, in one line. Its password is not that of the servers.
pub(crate) fn trouble_of_sentinel(error: &RedisError) -> String {
    match first_word(&describe(error)) {
        "NOAUTH" => "a sentinel asks for a password (NOAUTH): set FENCEPOST_SENTINEL_PASSWORD".to_owned(),
        "WRONGPASS" => "a sentinel refuses the password, or does not know the user (WRONGPASS): look at \
                        FENCEPOST_SENTINEL_PASSWORD (--sentinel-password) and --sentinel-user"
            .to_owned(),
        _ => format!("a sentinel says: {}", describe(error)),
    }
}

/// What is wrong with TLS, if that is what is wrong. The library has only names of its types for most of it.
fn tls_problem(error: &RedisError) -> Option<String> {
    let cause = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    let problem = cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match problem {
        rustls::Error::InvalidCertificate(problem) => {
            format!("the certificate of the server {}", certificate_problem(problem))
        }
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS at this port: write redis:// if that is meant".to_owned()
        }
        rustls::Error::AlertReceived(_) => "the server refused the TLS handshake".to_owned(),
        _ => "the TLS handshake failed".to_owned(),
    })
}

fn certificate_problem(problem: &CertificateError) -> &'static str {
    match problem {
        CertificateError::UnknownIssuer => {
            "is not signed by an authority that this machine trusts: name the authority's file with --redis-ca"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "is not valid yet",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "is for another name than that in the address"
        }
        CertificateError::Revoked => "was revoked",
        // The one of the verifier's own errors that operators meet: it has no name of its own here.
        CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
            "is that of an authority (CA:TRUE), and not of a server: give the server one with CA:FALSE"
        }
        _ => "cannot be verified",
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_had_but_a_moment_to_answer_keeps_its_connection() {
        let asked_at = Instant::now();
        tokio::time::advance(LONG_ENOUGH - Duration::from_millis(1)).await;
        let failure = Failure::no_answer(asked_at);
        assert!(failure.outcome == StepOutcome::Unknown && !failure.breaks_link);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(Failure::no_answer(asked_at).breaks_link);
    }

    /// What follows from an error, as a server sends it.
    fn of(error: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{error}\r\n").as_bytes()).unwrap();
        Failure::of(&reply.extract_error().unwrap_err())
    }

    #[test]
    fn errors_of_the_driver_are_told_without_the_names_of_its_types() {
        let other = rustls::OtherError(Arc::new(io::Error::other("CaUsedAsEndEntity")));
        for (problem, said) in [
            (CertificateError::Other(other), "is that of an authority (CA:TRUE)"),
            (CertificateError::UnknownIssuer, "is not signed by an authority that this machine trusts"),
            (CertificateError::BadEncoding, "cannot be verified"),
        ] {
            let tls = rustls::Error::InvalidCertificate(problem);
            let error = RedisError::from(io::Error::new(io::ErrorKind::InvalidData, tls));
            let told = describe(&error);
            assert!(told.starts_with("the certificate of the server") && told.contains(said), "{told}");
        }
        let error = RedisError::from((ErrorKind::InvalidClientConfig, "Invalid database number"));
        assert_eq!(describe(&error), "Invalid database number");
    }

    /// As 6.2.14 sends it for an error of line 533 of a script.
    fn in_script_of_6_2(error: &str) -> String {
        let at = "(call to f_204551290314000e5399072a8bb01ba7ec364e2f): @user_script:533: ";
        format!("ERR Error running script {at}{error}")
    }

    #[test]
    fn what_redis_6_2_wraps_is_read_as_what_it_is_without_a_script() {
        let disk = "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk. \
                    Commands that may modify the data set are disabled, because this instance is configured to report \
                    errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check \
                    the Redis logs for details about the RDB error.";
        let states = [
            ("READONLY You can't write against a read only replica.", StepOutcome::NotYet, true),
            ("OOM command not allowed when used memory > 'maxmemory'.", StepOutcome::NotDone, false),
            ("NOREPLICAS Not enough good replicas to write.", StepOutcome::NotDone, false),
            (disk, StepOutcome::NotDone, false),
        ];
        for (said, outcome, breaks_link) in states {
            let wrapped = in_script_of_6_2(&format!("@user_script: 533: -{said}"));
            // As 7.0.15 and later, and Valkey, send it.
            let plain =
                format!("{said} script: 204551290314000e5399072a8bb01ba7ec364e2f, on @user_script:533.");
            for sent in [wrapped, plain, said.to_owned()] {
                let failure = of(&sent);
                assert_eq!((failure.outcome, failure.breaks_link), (outcome, breaks_link), "{sent}");
                let is_full = said.starts_with("OOM");
                assert!(failure.reason.contains(&said[..said.len() - 1]), "{}", failure.reason);
                assert_eq!(failure.reason.contains("raise maxmemory"), is_full, "{}", failure.reason);
                assert_eq!(failure.reason.starts_with("Redis: "), !is_full, "{}", failure.reason);
            }
        }
    }

    #[test]
    fn a_lock_that_a_script_cannot_read_is_left_as_it_was_on_any_version_of_redis() {
        let said = "UNREADABLE the lock cannot be read: another program wrote it";
        let at = "script: 204551290314000e5399072a8bb01ba7ec364e2f, on @user_script:533.";
        let thrown = [in_script_of_6_2(&format!("{said} ")), format!("ERR {said} {at}")];
        for sent in thrown.into_iter().chain([said.to_owned()]) {
            let failure = of(&sent);
            assert_eq!((failure.outcome, failure.breaks_link), (StepOutcome::NotDone, false), "{sent}");
            assert_eq!(failure.reason, format!("Redis: {said}"), "{sent}");
        }
    }

    /// A script keeps what it wrote before it met them.
    #[test]
    fn any_other_error_of_a_script_of_redis_6_2_is_unknown() {
        for said in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "@user_script: 533: The user executing the script can't run this command or subcommand",
            "@user_script: 533: Unknown Redis command called from Lua script",
            "user_script:533: attempt to perform arithmetic on a nil value",
            // Nothing that a key or an owner could have put there.
            "user_script:533: what it met was @user_script: 533: -OOM something",
            "@user_script: 533: -FENCE something",
            "user_script:533: what it met was UNREADABLE",
        ] {
            let failure = of(&in_script_of_6_2(said));
            assert_eq!((failure.outcome, failure.breaks_link), (StepOutcome::Unknown, false), "{said}");
        }
    }
}

//! Variables of the environment that look like settings and are none.

use clap::{Arg, CommandFactory};
use strsim::jaro_winkler;

use super::{Action, Cli};

const PREFIX: &str = "FENCEPOST_";
/// Those that no flag stands for: the key of `fencepost run`, and the file of options that recipes give to curl.
const WITHOUT_FLAG: [&str; 2] = ["FENCEPOST_API_KEY", "FENCEPOST_CURL"];
/// How alike two names must be for one to be meant by the other.
const ALIKE: f64 = 0.8;

/// What is said of each variable that begins like a setting, and is none.
pub fn unknown_variables() -> Vec<String> {
    unknown_among(environment()).into_iter().map(|unknown| unknown.to_string()).collect()
}

/// What is wrong where a gateway or a check is to begin, and a variable is almost the name of a setting. A gateway that ignored
/// it could serve everybody without keys, or use another store.
pub fn wrong_variables(action: &Action) -> Option<String> {
    if !matches!(action, Action::Serve(_) | Action::Check(_)) {
        return None;
    }
    let wrong = unknown_among(environment()).into_iter().filter_map(|Unknown { name, meant }| {
        Some(format!("the variable {name} is no setting: did you mean {}? Rename or remove it", meant?))
    });
    let wrong: Vec<_> = wrong.collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// The same of those alone that are almost the name of a setting. A job has an environment of its own, in which other
/// names may mean something to it.
pub fn misspelt_variables() -> Vec<String> {
    let unknown = unknown_among(environment()).into_iter();
    unknown.filter(|unknown| unknown.meant.is_some()).map(|unknown| unknown.to_string()).collect()
}

fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

struct Unknown {
    name: String,
    meant: Option<String>,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the variable {} is ignored, as there is no such setting", self.name)?;
        match &self.meant {
            Some(meant) => write!(f, ": did you mean {meant}?"),
            None => Ok(()),
        }
    }
}

fn unknown_among(variables: impl Iterator<Item = (String, String)>) -> Vec<Unknown> {
    let mut ours = variables.filter(|(name, _)| name.starts_with(PREFIX)).peekable();
    if ours.peek().is_none() {
        return Vec::new();
    }
    let known = settings();
    let unknown = ours.filter(|(name, value)| !known.contains(name) && !is_of_kubernetes(name, value)).map(
        |(name, _)| {
            let likeness = |other: &String| jaro_winkler(&name[PREFIX.len()..], &other[PREFIX.len()..]);
            let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let meant = nearest.filter(|other| likeness(other) >= ALIKE).cloned();
            Unknown { name, meant }
        },
    );
    let mut unknown: Vec<_> = unknown.collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    unknown
}

/// The variables of all flags of all commands.
fn settings() -> Vec<String> {
    let all = all_flags();
    let of_flags =
        all.iter().filter_map(Arg::get_env).map(|variable| variable.to_string_lossy().into_owned());
    WITHOUT_FLAG.map(str::to_owned).into_iter().chain(of_flags).collect()
}

/// The flags of all commands. Some commands share a flag, and it is there once for each.
pub(super) fn all_flags() -> Vec<Arg> {
    let (mut flags, mut commands) = (Vec::new(), vec![Cli::command()]);
    while let Some(command) = commands.pop() {
        flags.extend(command.get_arguments().cloned());
        commands.extend(command.get_subcommands().cloned());
    }
    flags
}

/// Whether Kubernetes sets such a variable in every container beside a Service that is called `fencepost`, or `fencepost-…`.
/// `FENCEPOST_PORT` is `tcp://10.0.0.1:8080` there.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let is_port = |parts: &str| {
        let mut parts = parts.split('_');
        let is_number = parts.next().is_some_and(|port| port.parse::<u16>().is_ok());
        is_number && parts.next().is_some_and(|protocol| matches!(protocol, "TCP" | "UDP" | "SCTP"))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && value.contains("://")
        || name.match_indices("_PORT_").any(|(at, found)| is_port(&name[at + found.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(variables: &[(&str, &str)]) -> Vec<String> {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        unknown_among(owned).into_iter().map(|unknown| unknown.to_string()).collect()
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_is_not_told_of() {
        let of_service = [
            ("FENCEPOST_SERVICE_HOST", "10.0.0.1"),
            ("FENCEPOST_SERVICE_PORT", "8080"),
            ("FENCEPOST_SERVICE_PORT_HTTP", "8080"),
            ("FENCEPOST_PORT", "tcp://10.0.0.1:8080"),
            ("FENCEPOST_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("FENCEPOST_PORT_8080_TCP_PROTO", "tcp"),
            ("FENCEPOST_PORT_8080_TCP_PORT", "8080"),
            ("FENCEPOST_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("FENCEPOST_METRICS_PORT_9090_TCP_ADDR", "10.0.0.1"),
            ("FENCEPOST_METRICS_SERVICE_HOST", "10.0.0.1"),
        ];
        assert_eq!(said(&of_service), Vec::<String>::new());
    }

    #[test]
    fn no_service_of_kubernetes_can_set_a_setting() {
        for setting in settings() {
            assert!(!is_of_kubernetes(&setting, "tcp://10.0.0.1:8080"), "{setting}");
        }
    }

    #[test]
    fn other_variables_are_told_of_with_the_setting_that_they_resemble() {
        let variables = [
            ("FENCEPOST_STOER", "memory:"),
            ("FENCEPOST_TEAM", "billing"),
            ("FENCEPOST_PORT", "8080"),
            ("FENCEPOST_STORE", "memory:"),
            ("FENCEPOST_API_KEY", "secret"),
            ("FENCEPOST_CURL", "/dev/null"),
            ("PATH", "/bin"),
        ];
        let names = said(&variables);
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(names[1].ends_with(
            "FENCEPOST_STOER is ignored, as there is no such setting: did you mean FENCEPOST_STORE?"
        ));
        assert!(names[2].ends_with("FENCEPOST_TEAM is ignored, as there is no such setting"), "{names:?}");
        assert!(names.iter().all(|line| !line.contains("secret") && !line.contains("billing")), "{names:?}");
    }
}

//! A gateway, and the program that asks it from a terminal or in a pipe.

use kit::certificates::Certificates;
use kit::gateway::{bare, program};
use kit::{Client, Gateway, KeysFile};
use serde_json::Value;

use crate::run::kit::{Ended, Running, Scene};
use crate::run::pty::Person;

/// A way to a gateway: with or without keys, with or without TLS.
pub struct Door {
    pub gateway: Gateway,
    pub scene: Scene,
    /// What is set for each command, besides the address.
    variables: Vec<String>,
    _files: (KeysFile, Certificates),
}

impl Door {
    pub async fn open(is_keyed: bool, speaks_tls: bool) -> Self {
        let (mut keys, certificates) = (KeysFile::new(), Certificates::new());
        let key = keys.add_for_all("operator", "\"acquire\", \"inspect\", \"list\", \"admin\"");
        keys.write();
        let mut flags = vec!["--store".to_owned(), "memory:".to_owned()];
        let mut variables = Vec::new();
        if is_keyed {
            flags.extend(keys.flag());
            let file = certificates.path("operator.key");
            std::fs::write(&file, key).unwrap();
            variables.push(format!("FENCEPOST_API_KEY_FILE={file}"));
        }
        if speaks_tls {
            let files = [("--tls-cert", certificates.certificate()), ("--tls-key", certificates.key())];
            flags.extend(files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file]));
            variables.push(format!("FENCEPOST_CA_FILE={}", certificates.authority()));
        }
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let gateway = Gateway::start(&flags).await;
        let scheme = if speaks_tls { "https" } else { "http" };
        let scene = Scene::at(format!("{scheme}://{}", gateway.address));
        Self { gateway, scene, variables, _files: (keys, certificates) }
    }

    /// Without keys and TLS.
    pub async fn plain() -> Self {
        Self::open(false, false).await
    }

    pub fn client(&self) -> Client {
        Client::new(self.gateway.address)
    }

    /// Starts a script of bash, in which `$F` is the program.
    pub fn start(&self, script: &str) -> Running {
        let mut command = bare("bash");
        let variables = self.variables.iter().filter_map(|variable| variable.split_once('='));
        command.envs(variables).env("FENCEPOST_URL", &self.scene.url).env("F", program());
        command.current_dir(self.scene.directory.path()).args(["-o", "pipefail", "-c", script]);
        self.scene.launch_group(command)
    }

    /// Runs a script to its end.
    pub async fn script(&self, script: &str) -> Ended {
        self.start(script).end().await
    }

    /// Runs the program with its output in a pipe. The words are those of bash.
    pub async fn pipe(&self, words: &str) -> Ended {
        self.script(&format!("\"$F\" {words} | cat")).await
    }

    /// The same with the token of a lease in the environment.
    pub async fn pipe_with(&self, token: &str, words: &str) -> Ended {
        self.script(&format!("LEASE_TOKEN={token} \"$F\" {words} | cat")).await
    }

    /// The lines of JSON that it prints.
    pub async fn json(&self, words: &str) -> Vec<Value> {
        let printed = self.pipe(&format!("{words} --json")).await.stdout;
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The tokens of a lock that is taken: the secret, and the number.
    pub async fn acquire(&self, words: &str) -> (String, u64) {
        let ended = self.pipe(&format!("acquire {words}")).await.expect_silent(0);
        let (token, number) = ended.stdout.trim_end().split_once(' ').unwrap();
        (token.to_owned(), number.parse().unwrap())
    }

    /// Starts the program at a terminal.
    pub fn person(&self, words: &[&str]) -> Person {
        self.person_with("", words)
    }

    /// The same with the token of a lease in the environment.
    pub fn person_with(&self, token: &str, words: &[&str]) -> Person {
        let token = format!("LEASE_TOKEN={token}");
        let mut line = vec!["env", &token];
        line.extend(self.variables.iter().map(String::as_str));
        line.push(program());
        line.extend(words);
        Person::starts(&self.scene, &line)
    }
}

//! The recipes of the book, taken from its pages and run as those who copy them would: on a gateway without keys, and on
//! one with API keys and TLS. Only addresses, paths and keys are the test's.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::clients::{root, tool};
use crate::pages::{Said, Shell, file};
use kit::certificates::Certificates;
use kit::gateway::program;
use kit::{Client, Gateway, KeysFile, PATIENCE, RedisServer, eventually};

mod ci;
mod claiming;
mod cron;
mod curl;
mod environment;
mod faulty_proxy;
mod handlers;
mod idempotency;
mod powershell;
mod provider;
mod serverless;
mod shell;
mod slots;

/// Runs until it may end, notes how it was asked to, and has exit statuses of its own.
const JOB: &str = "#!/usr/bin/env bash
trap 'echo asked to end >>notes; exit 4' TERM
echo \"runs ${FENCING_TOKEN-without}${LEASE_TOKEN-}\" >>notes
for _ in {1..3000}; do [ ! -e go ] || exit 3; sleep 0.02; done
";
/// Notes what every user of the machine can read of it.
const SPIED_CURL: &str = "#!/usr/bin/env bash
printf '%s\\n' \"$*\" >>arguments
PATH=${PATH#*:} exec curl \"$@\"
";
/// How often the arguments of all processes are read.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Makes two tests of a function that is given a [`Scene`]: one on each kind of gateway.
macro_rules! on_each_gateway {
    ($($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn without_keys() {
                super::$name($crate::recipes::Scene::without_keys().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn with_keys_and_tls() {
                super::$name($crate::recipes::Scene::with_keys_and_tls().await).await;
            }
        })+
    };
}
pub(crate) use on_each_gateway;

/// A directory with the recipes in it, and a gateway that they find by the variables that the pages name.
pub struct Scene {
    pub shell: Shell,
    pub gateway: Gateway,
    /// Sees the same locks, and needs no key.
    pub client: Client,
    variables: Vec<(&'static str, String)>,
    /// Where it is given by a variable.
    api_key: Option<String>,
    arguments: Arc<Mutex<BTreeSet<String>>>,
    looking: JoinHandle<()>,
    _behind: Option<(Gateway, RedisServer, Certificates, KeysFile)>,
}

impl Scene {
    pub async fn without_keys() -> Self {
        let gateway = Gateway::start(&["--store", "memory:"]).await;
        let client = Client::new(gateway.address);
        let url = format!("http://{}", gateway.address);
        Self::at(gateway, client, vec![("FENCEPOST_URL", url)], None, None)
    }

    pub async fn with_keys_and_tls() -> Self {
        let redis = RedisServer::start().await;
        // Without a bound, a gateway keeps no records there.
        let () = redis.command(&["CONFIG", "SET", "maxmemory", "1gb"]).await;
        let (certificates, mut keys) = (Certificates::new(), KeysFile::new());
        let key = keys.add_for_all("recipes", "\"acquire\", \"once\"");
        keys.write();
        let (pem, private, keys_flag) = (certificates.certificate(), certificates.key(), keys.flag());
        // In one word: what is asked of a gateway on Redis as it starts, is asked without TLS.
        let store = format!("--store={}", redis.url());
        let tls = ["--tls-cert", &pem, "--tls-key", &private, &keys_flag[0], &keys_flag[1]];
        let gateway = Gateway::start(&[&[store.as_str()], tls.as_slice()].concat()).await;
        let other = Gateway::on_redis(&redis, &[]).await;
        let client = Client::new(other.address);
        let url = format!("https://{}", gateway.address);
        let mut variables = vec![("FENCEPOST_URL", url)];
        // The one is for `fencepost run`, and the other for clients.
        variables.extend(["FENCEPOST_CA_FILE", "SSL_CERT_FILE"].map(|name| (name, certificates.authority())));
        let mut scene = Self::at(gateway, client, variables, Some(key.clone()), None);
        scene.write("api-key", &format!("{key}\n"));
        // The file of the page, with another key and another place.
        let lines = file("fencepost.curl");
        let lines = lines.lines().map(|line| match line.split_once(" = ").unwrap() {
            ("header", _) => format!("header = \"Authorization: Bearer {key}\"\n"),
            ("cacert", _) => format!("cacert = \"{}\"\n", certificates.authority()),
            _ => panic!("who sets {line}?"),
        });
        scene.write("fencepost.curl", &lines.collect::<String>());
        for (name, file) in [("FENCEPOST_API_KEY_FILE", "api-key"), ("FENCEPOST_CURL", "fencepost.curl")] {
            scene.variables.push((name, scene.shell.path(file).display().to_string()));
        }
        scene._behind = Some((other, redis, certificates, keys));
        scene
    }

    fn at(
        gateway: Gateway,
        client: Client,
        variables: Vec<(&'static str, String)>,
        api_key: Option<String>,
        behind: Option<(Gateway, RedisServer, Certificates, KeysFile)>,
    ) -> Self {
        let shell = Shell::at(gateway.address.to_string());
        fs::create_dir(shell.path("bin")).unwrap();
        symlink(program(), shell.path("bin/fencepost")).unwrap();
        let arguments = Arc::new(Mutex::new(BTreeSet::new()));
        let place = fs::canonicalize(shell.path("")).unwrap();
        let looking = tokio::spawn({
            let arguments = arguments.clone();
            async move {
                loop {
                    arguments.lock().unwrap().extend(arguments_of_those_in(&place));
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        });
        let scene = Self { shell, gateway, client, variables, api_key, arguments, looking, _behind: behind };
        scene.program("job", JOB);
        scene.program("bin/curl", SPIED_CURL);
        scene
    }

    /// What stands there already stays: an interpreter may be about to read it, and would find it empty.
    pub fn write(&self, name: &str, text: &str) {
        if fs::read_to_string(self.shell.path(name)).ok().as_deref() != Some(text) {
            fs::write(self.shell.path(name), text).unwrap();
        }
    }

    pub fn program(&self, name: &str, code: &str) {
        self.write(name, code);
        fs::set_permissions(self.shell.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.shell.path(name)).unwrap_or_default()
    }

    /// What a recipe finds in its environment.
    pub fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }

    pub fn path_variable(&self) -> String {
        format!("{}:{}", self.shell.path("bin").display(), std::env::var("PATH").unwrap())
    }

    pub fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = self.shell.command(program, args);
        command.envs(self.variables.iter().cloned()).env("PATH", self.path_variable());
        command
    }

    /// A script of a page, by the name that it is saved under.
    pub fn script(&self, name: &str, args: &[&str]) -> Command {
        self.command("bash", &[&[format!("./{name}").as_str()], args].concat())
    }

    /// A program in Python of a page, with nothing but the client that the project brings.
    pub fn python(&self, name: &str, args: &[&str]) -> Command {
        self.write(name, &file(name));
        self.any_python(name, args)
    }

    pub fn any_python(&self, name: &str, args: &[&str]) -> Command {
        let mut command = self.command(tool("python"), &[&["-S", name], args].concat());
        command.env("PYTHONPATH", root().join("examples/clients")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// The same recipe, where no gateway is.
    pub fn alone(command: &mut Command) -> &mut Command {
        command.env("FENCEPOST_URL", format!("http://127.0.0.1:{}", kit::server_port()))
    }

    pub async fn say(mut command: Command) -> Said {
        // Some take seconds to start where much else is to be done.
        let output = tokio::time::timeout(3 * PATIENCE, command.output()).await;
        Said::of(output.expect("it does not end").unwrap())
    }

    /// How a recipe came to its end, once nothing of the job is left.
    pub async fn end(child: Child) -> Said {
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        Said::of(output.expect("it does not end").unwrap())
    }

    pub async fn starts_to_run(&self) {
        eventually("the job runs", async || self.read("notes").ends_with('\n')).await;
    }

    pub async fn becomes_free(&self, lock: &str) {
        let look = async || self.client.get(&format!("/lock?key={lock}")).send().await;
        eventually("the lock is free", async || look().await.status == 404).await;
    }

    /// The processes of this scene that run such a program.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let place = fs::canonicalize(self.shell.path("")).unwrap();
        let is_called =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
        processes_in(&place).into_iter().filter(is_called).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.looking.abort();
        let spied = self.read("arguments");
        let seen = self.arguments.lock().unwrap();
        if !std::thread::panicking() {
            for line in spied.lines().chain(seen.iter().map(String::as_str)) {
                assert!(!shows_a_secret(line), "everybody on the machine can read {line:?}");
            }
        }
    }
}

fn processes_in(place: &Path) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == place)).collect()
}

fn arguments_of_those_in(place: &Path) -> Vec<String> {
    let read = |pid| fs::read(format!("/proc/{pid}/cmdline")).ok();
    let all = processes_in(place).into_iter().filter_map(read);
    all.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ")).collect()
}

/// Whether a lease token or an API key is in it: tokens are made of UUIDs, or of 32 digits. The hash in a record's name has 64.
fn shows_a_secret(arguments: &str) -> bool {
    let is_token = |word: &str| (32..64).contains(&word.chars().filter(char::is_ascii_hexdigit).count());
    let mut words = arguments.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
    arguments.to_lowercase().contains("lease-token") || arguments.contains("fp_") || words.any(is_token)
}

/// What holds in each test of the recipes must be able to fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_among_the_arguments_is_noticed() {
    for secret in ["Lease-Token: x", "fp_4k2v9qd01xte_mJ3f", "9e107d9d-372b-46d5-b6f0-9a1ffed36c2b"] {
        let scene = Scene::without_keys().await;
        let mut child = scene
            .command("bash", &["-c", "read -r -t 20 <>/dev/null || sleep 20; :", secret])
            .spawn()
            .unwrap();
        eventually("it is seen", async || {
            scene.arguments.lock().unwrap().iter().any(|line| line.contains(secret) && shows_a_secret(line))
        })
        .await;
        child.kill().await.unwrap();
        scene.arguments.lock().unwrap().clear();
    }
    assert!(!shows_a_secret(
        "curl -X PUT -H @- --data-urlencode key=pay:4711 -d ttl=10s http://127.0.0.1:8080/lock"
    ));
}

/// What a YAML document says.
pub async fn yaml(text: &str) -> Value {
    let script =
        "import json, sys, ruamel.yaml as y; json.dump(y.YAML(typ='safe').load(sys.stdin), sys.stdout)";
    let mut command = Command::new(tool("python"));
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    serde_json::from_slice(&child.wait_with_output().await.unwrap().stdout).unwrap()
}

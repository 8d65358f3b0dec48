//! Tools that speak a protocol of their own, before real gateways: as docs/tools has them.

use std::process::Stdio;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::clients::installed;
use crate::pages::{file, snippet};
use kit::gateway::program;
use kit::{Client, Gateway, KeysFile, PATIENCE, eventually};

/// What each run changes.
const CHANGING: &str = "output \"at\" { value = timestamp() }\n";

/// A directory with the settings of the page, where a state lies at a server of its own.
struct Workspace {
    directory: TempDir,
    /// Whether runs may write the state. One that may not goes on holding the lock.
    may_write: watch::Sender<bool>,
    _server: tokio::task::JoinHandle<()>,
}

type Stored = State<(Arc<Mutex<Bytes>>, watch::Receiver<bool>)>;

async fn read_state(State((state, _)): Stored) -> (StatusCode, Bytes) {
    let state = state.lock().clone();
    (if state.is_empty() { StatusCode::NOT_FOUND } else { StatusCode::OK }, state)
}

async fn write_state(State((state, mut may_write)): Stored, body: Bytes) {
    may_write.wait_for(|may_write| *may_write).await.unwrap();
    *state.lock() = body;
}

impl Workspace {
    async fn new(gateway: &Gateway) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state_at = listener.local_addr().unwrap().to_string();
        let (may_write, allowed) = watch::channel(true);
        let app = Router::new().route("/app", get(read_state).post(write_state));
        let app = app.with_state((Arc::default(), allowed));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let backend = file("backend.tf")
            .replace("127.0.0.1:8080", &gateway.address.to_string())
            .replace("127.0.0.1:8081", &state_at);
        std::fs::write(directory.path().join("main.tf"), backend + CHANGING).unwrap();
        let workspace = Self { directory, may_write, _server: server };
        let (is_done, said) = workspace.run(&["init"]).await;
        assert!(is_done, "{said}");
        workspace
    }

    fn begin(&self, mut command: Command) -> Child {
        let path = format!("{}:{}", installed("venv/bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("CHECKPOINT_DISABLE", "1").current_dir(&self.directory);
        // A run that is killed leaves a log of its own there.
        command.env("TMPDIR", self.directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().unwrap()
    }

    fn terraform(&self, args: &[&str]) -> Child {
        let mut command = Command::new(installed("venv/bin").join("terraform"));
        command.args(&args[..1]).arg("-no-color").args(&args[1..]);
        self.begin(command)
    }

    /// Whether it succeeds, and what it says.
    async fn run(&self, args: &[&str]) -> (bool, String) {
        end_of(self.terraform(args)).await
    }
}

async fn end_of(child: Child) -> (bool, String) {
    let output =
        tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("it does not end").unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

const APPLY: [&str; 2] = ["apply", "-auto-approve"];

#[tokio::test(flavor = "multi_thread")]
async fn terraform_locks_a_state_while_it_changes_it() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform"]).await;
    let client = Client::new(gateway.address);
    let workspace = Workspace::new(&gateway).await;
    let is_locked = async || client.get("/locks/app").send().await.status == 200;
    workspace.may_write.send(false).unwrap();
    let first = workspace.terraform(&APPLY);
    eventually("a run holds the lock", is_locked).await;
    let owner =
        client.get("/locks/app").send().await.expect(200).json()["owner"].as_str().unwrap().to_owned();
    let [who, "OperationTypeApply", id] = owner.split(' ').collect::<Vec<_>>()[..] else { panic!("{owner}") };
    assert!(who.contains('@') && id.starts_with("ID=") && id.len() == 39, "{owner}");
    // Another is told who has it. This version of the tool does not ask again.
    let (is_done, said) = workspace.run(&APPLY).await;
    assert!(!is_done && said.contains("already locked") && said.contains(id), "{owner}: {said}");
    workspace.may_write.send(true).unwrap();
    let (is_done, said) = end_of(first).await;
    assert!(is_done, "{said}");
    let (is_done, said) = workspace.run(&APPLY).await;
    assert!(is_done, "{said}");
    assert!(!is_locked().await, "a run has left the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn terraform_forces_open_what_a_killed_run_has_left() {
    let mut keys = KeysFile::new();
    let [ci, admin] = [("ci", "\"acquire\""), ("admin", "\"acquire\", \"admin\", \"inspect\"")]
        .map(|(name, rights)| keys.add_for_all(name, rights));
    keys.write();
    let flag = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", "--terraform", &flag[0], &flag[1]]).await;
    let client = Client::new(gateway.address);
    let workspace = Workspace::new(&gateway).await;
    let with_key = |key: &str, args: &[&str]| {
        let mut command = Command::new("terraform");
        command.args(&args[..1]).arg("-no-color").args(&args[1..]);
        command.env("TF_HTTP_USERNAME", "ci").env("TF_HTTP_PASSWORD", key);
        workspace.begin(command)
    };
    let (is_done, said) = end_of(with_key("fp_wrong", &APPLY)).await;
    assert!(!is_done && said.contains("HTTP remote state endpoint requires auth"), "{said}");
    workspace.may_write.send(false).unwrap();
    let mut killed = with_key(&ci, &APPLY);
    let id = async || {
        let look = client.get("/locks/app").key(&admin).send().await;
        (look.status == 200)
            .then(|| look.json()["owner"].as_str().unwrap().rsplit('=').next().unwrap().to_owned())
    };
    eventually("a run holds the lock", async || id().await.is_some()).await;
    killed.kill().await.unwrap();
    workspace.may_write.send(true).unwrap();
    let left = id().await.expect("the lock stays when its run is killed");
    assert!(!end_of(with_key(&ci, &APPLY)).await.0);
    // This Terraform sends no ID.
    let (is_done, said) = end_of(with_key(&ci, &["force-unlock", "-force", &left])).await;
    assert!(!is_done && said.contains("403"), "{said}");
    let (is_done, said) = end_of(with_key(&admin, &["force-unlock", "-force", &left])).await;
    assert!(is_done, "{said}");
    let (is_done, said) = end_of(with_key(&ci, &APPLY)).await;
    assert!(is_done, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn terraform_runs_under_a_lock() {
    let gateway = Gateway::start(&["--store", "memory:", "--terraform"]).await;
    let workspace = Workspace::new(&gateway).await;
    let mut command = Command::new(program());
    let pasted =
        snippet("console", "terraform apply -lock=false").trim().strip_prefix("$ fencepost ").unwrap();
    command.args(pasted.split(' ')).arg("-auto-approve");
    command.env("FENCEPOST_URL", format!("http://{}", gateway.address));
    let (is_done, said) = end_of(workspace.begin(command)).await;
    assert!(is_done && said.contains("Apply complete"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dapr_locks_and_unlocks() {
    let mut keys = KeysFile::new();
    let key = keys.add_for_all("orders", "\"acquire\", \"list\"");
    keys.write();
    let flag = keys.flag();
    for keyed in [false, true] {
        let flags = if keyed { &flag[..] } else { &[] };
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let gateway = Gateway::start(&[&["--store", "memory:", "--dapr"], &flags[..]].concat()).await;
        let port = gateway.address.port().to_string();
        // As on the page, where it finds its packages.
        let token = if keyed { format!("daprApiToken: {key:?}, daprHost:") } else { "daprHost:".to_owned() };
        let program = file("dapr-orders.mjs").replace("8080", &port).replace("daprHost:", &token);
        let directory = tempfile::tempdir_in(installed("node_modules").parent().unwrap()).unwrap();
        let script = directory.path().join("orders.mjs");
        std::fs::write(&script, program).unwrap();
        let begin = || {
            let mut node = Command::new("node");
            node.arg(&script).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            node.kill_on_drop(true).spawn().unwrap()
        };
        let (is_done, said) = end_of(begin()).await;
        assert!(is_done && said.contains("at work"), "{said}");
        let client = Client::new(gateway.address);
        let put = client.put("/lock?key=dapr:orders:order+7&ttl=1m");
        let put = if keyed { put.key(&key) } else { put };
        put.send().await.expect(201);
        let (is_done, said) = end_of(begin()).await;
        assert!(!is_done && !said.contains("at work"), "{said}");
    }
}

#[test]
fn the_settings_of_zincati_are_toml() {
    let text = file("50-fleet-lock.toml");
    let settings = toml::de::DeTable::parse(&text).unwrap();
    let updates = settings.get_ref()["updates"].get_ref();
    assert_eq!(updates["strategy"].get_ref().as_str(), Some("fleet_lock"));
    // What it asks is this, and a path behind it.
    let base = updates["fleet_lock"].get_ref()["base_url"].get_ref().as_str();
    assert_eq!(base, Some("http://127.0.0.1:8080/fleet-lock/"));
}

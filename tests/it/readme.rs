//! The README's snippets, run as they stand there, with real `bash`, `curl` and `sqlite3`. Only the address of the
//! gateway is the test's.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Output, Stdio};

use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{RedisServer, Stage, eventually, free_port, fresh_token, on_each_store};

const README: &str = include_str!("../../README.md");
/// Those that are too many for the README.
const MORE: &str = include_str!("../../docs/recipes.md");
/// What others are told who stand before the gateway.
const DEPLOYING: [&str; 3] = [
    include_str!("../../docs/deploying/proxies.md"),
    include_str!("../../docs/deploying/systemd.md"),
    include_str!("../../docs/deploying/kubernetes.md"),
];
pub const DOCUMENTED_ADDRESS: &str = "127.0.0.1:8080";

on_each_store!(
    the_first_lines_work_as_pasted,
    take_renew_release_works_as_pasted,
    a_key_from_a_variable_works_as_pasted,
    a_cron_job_does_not_overlap,
    waiting_works_as_pasted,
    holding_works_as_pasted,
    listing_and_breaking_work_as_pasted,
    jobs_wait_for_their_turn,
    a_double_click_is_ignored,
    a_serverless_function_retries_safely,
    claiming_in_sql_loses_no_update,
    busy_and_down_are_told_apart,
);

/// The snippets that are pasted into a shell, in order, and those that are saved under a name.
struct Snippets {
    pasted: Vec<String>,
    files: BTreeMap<String, String>,
}

fn snippets() -> Snippets {
    let mut found = Snippets { pasted: Vec::new(), files: BTreeMap::new() };
    for part in README.split("```bash").skip(1).chain(MORE.split("```bash").skip(1)) {
        let (info, rest) = part.split_once('\n').unwrap();
        let code = rest.split("```").next().unwrap().to_owned();
        match info.trim().strip_prefix("file=") {
            Some(name) => drop(found.files.insert(name.to_owned(), code)),
            None => found.pasted.push(code),
        }
    }
    found
}

/// A snippet that is no script, by the name that it is saved under.
pub fn file(name: &str) -> String {
    let fence = format!(" file={name}\n");
    let texts = [README, MORE].into_iter().chain(DEPLOYING).map(|text| text.split(&fence).nth(1));
    let rest = texts.flatten().next().unwrap_or_else(|| panic!("no snippet is called {name}"));
    rest.split("```").next().unwrap().to_owned()
}

/// The names of all snippets that are no scripts.
pub fn files_for_others() -> Vec<&'static str> {
    let named = README.lines().chain(MORE.lines()).filter_map(named);
    named.filter(|(language, _)| *language != "bash").map(|(_, name)| name).collect()
}

/// The names of all files for deploying.
pub fn files_for_deploying() -> Vec<&'static str> {
    DEPLOYING.iter().flat_map(|text| text.lines()).filter_map(named).map(|(_, name)| name).collect()
}

/// The language and the name of a snippet that begins with this line.
fn named(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("```")?.split_once(" file=")
}

/// A directory with the recipes in it, and the gateway that they find.
pub struct Shell {
    directory: TempDir,
    address: String,
}

impl Shell {
    pub fn new(stage: &Stage) -> Self {
        Self::at(stage.gateway.address.to_string())
    }

    pub fn at(address: String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, code) in snippets().files {
            let path = directory.path().join(name);
            std::fs::write(&path, code).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, mode).unwrap();
        }
        Self { directory, address }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .args(args)
            .current_dir(self.directory.path())
            .env("FENCEPOST_URL", format!("http://{}", self.address))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a recipe by its name.
    pub async fn run(&self, name: &str, args: &[&str]) -> Said {
        let mut said = None;
        eventually("the program can be started", async || {
            // One that another test is about to start may still have the file open, as it was written.
            let output = self.command(self.path(name), args).output().await;
            let is_busy = output.as_ref().is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy);
            said = Some(output.map(Said::of));
            !is_busy
        })
        .await;
        said.unwrap().unwrap()
    }

    /// The snippet that contains this text.
    pub fn pasted(&self, containing: &str) -> String {
        let all = snippets().pasted;
        let mut matching = all.iter().filter(|code| code.contains(containing));
        let code = matching.next().unwrap_or_else(|| panic!("no snippet contains {containing:?}"));
        assert!(matching.next().is_none(), "{containing:?} is in two snippets");
        code.replace(DOCUMENTED_ADDRESS, &self.address)
    }

    /// Pastes the snippet that contains this text, and stops at the first line that fails.
    async fn paste(&self, containing: &str) -> Said {
        let code = self.pasted(containing);
        Said::of(self.command("bash", &["-e", "-u", "-c", &code]).output().await.unwrap())
    }
}

#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub text: String,
}

impl Said {
    pub fn of(output: Output) -> Self {
        // curl draws its progress on standard error when that is no terminal's only output.
        let stderr = String::from_utf8(output.stderr).unwrap();
        let stderr = stderr
            .lines()
            .filter(|line| !line.contains("% Total") && !line.contains("Dload") && !line.contains('\r'));
        let stderr: String = stderr.map(|line| format!("{line}\n")).collect();
        let text = String::from_utf8(output.stdout).unwrap() + &stderr;
        Self { code: output.status.code(), text }
    }

    #[track_caller]
    pub fn expect(self, code: i32, text: &str) -> Self {
        assert!(self.code == Some(code) && self.text.contains(text), "expected {code} {text:?}: {self:?}");
        self
    }
}

/// Everybody on the machine can read arguments.
#[test]
fn no_snippet_gives_curl_a_secret_as_an_argument() {
    for text in DEPLOYING.into_iter().chain([README, MORE, include_str!("../../src/api/ui/page.js")]) {
        for line in text.lines().filter(|line| line.contains("-H ") || line.contains("--header ")) {
            let words: Vec<_> = line.split("-H ").flat_map(|part| part.split("--header ")).skip(1).collect();
            for word in words {
                let header = word.trim_start_matches(['"', '\'']).to_ascii_lowercase();
                assert!(!header.starts_with("lease-token") && !header.starts_with("authorization"), "{line}");
            }
        }
    }
}

#[test]
fn every_snippet_is_run_by_a_test() {
    let snippets = snippets();
    assert_eq!(snippets.pasted.len(), 6);
    let names: Vec<_> = snippets.files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["deposit", "function", "hold", "in-turn", "pay", "run-alone", "try-lock", "with-lock"]
    );
    assert!(README.contains("make test"));
    let first_screen: Vec<_> = README.lines().take(20).collect();
    assert_eq!(first_screen.iter().filter(|line| line.starts_with("curl ")).count(), 3);
}

async fn the_first_lines_work_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("locks/backup?ttl=30s&owner=me").await.expect(0, "\"fencing_token\"");
    assert!(
        said.text.contains("/problems/lock-held") && said.text.contains("held by \\\"me\\\""),
        "{said:?}"
    );
    assert!(said.text.ends_with("}\n") && said.text.matches("\"owner\":\"me\"").count() == 3, "{said:?}");
}

async fn take_renew_release_works_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("curl -X PATCH").await.expect(0, "\"yours\":true");
    assert_eq!(said.text.matches("\"ttl_ms\"").count(), 2, "{said:?}");
    assert!(!said.text.contains("problem"), "{said:?}");
    stage.client().get("/locks/report").send().await.expect_problem(404, "not-held");
}

async fn a_key_from_a_variable_works_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("key=$K").await;
    let said = said.expect(0, "\"key\":\"reports/2026 & drafts\"");
    assert!(!said.text.contains("problem"), "{said:?}");
    stage.client().get("/lock?key=reports/2026%20%26%20drafts").send().await.expect_problem(404, "not-held");
}

async fn listing_and_breaking_work_as_pasted(stage: Stage) {
    let client = stage.client();
    client.put("/lock?key=ci/deploy&ttl=5m&owner=stuck").send().await.expect(201);
    let said = Shell::new(&stage).paste("force=true").await.expect(0, "\"owner\":\"stuck\"");
    assert!(!said.text.contains("problem"), "{said:?}");
    client.get("/lock?key=ci/deploy").send().await.expect_problem(404, "not-held");
}

async fn holding_works_as_pasted(stage: Stage) {
    let shell = Shell::new(&stage);
    shell.paste("/hold?key=import").await.expect(0, "the lock is mine while curl runs");
    for entry in std::fs::read_dir(shell.directory.path()).unwrap().map(Result::unwrap) {
        let is_private = entry.metadata().unwrap().mode() & 0o077 == 0;
        let holds_token = std::fs::read_to_string(entry.path()).unwrap().contains("event: granted");
        assert!(is_private || !holds_token, "{entry:?} is there for all to read");
    }
    let client = stage.client();
    eventually("the lock is free", async || client.get("/locks/import").send().await.status == 404).await;
}

async fn a_cron_job_does_not_overlap(stage: Stage) {
    let shell = Shell::new(&stage);
    let job = "echo ran >>runs; until [ -e go ]; do sleep 0.02; done; exit 3";
    let first =
        shell.command(shell.path("run-alone"), &["nightly/backup", "1m", "sh", "-c", job]).spawn().unwrap();
    eventually("the job runs", async || shell.path("runs").exists()).await;
    shell.run("run-alone", &["nightly/backup", "1m", "sh", "-c", job]).await.expect(0, "is running already");
    shell.run("run-alone", &["another", "1m", "echo", "beside it"]).await.expect(0, "beside it");
    std::fs::write(shell.path("go"), "").unwrap();
    let first = Said::of(first.wait_with_output().await.unwrap());
    first.expect(3, "");
    assert_eq!(std::fs::read_to_string(shell.path("runs")).unwrap(), "ran\n");
    // It was released: the next night comes at once.
    shell.run("run-alone", &["nightly/backup", "1m", "sh", "-c", job]).await.expect(3, "");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    dead.run("run-alone", &["nightly/backup", "1m", "touch", "wrong"]).await.expect(75, "cannot ask");
    assert!(!dead.path("wrong").exists());
}

async fn waiting_works_as_pasted(stage: Stage) {
    let shell = Shell::new(&stage);
    shell.paste("wait=20s").await.expect(0, "\"fencing_token\"");
    let holder = stage.client().put("/locks/deploy?ttl=1m").send().await.expect(201).token();
    let waiting = shell.paste("wait=20s");
    let release = async {
        let client = stage.client();
        eventually("it waits", async || client.get("/locks/deploy").send().await.json()["waiters"] == 1)
            .await;
        client.delete("/locks/deploy").token(&holder).send().await.expect(204);
    };
    let (said, ()) = tokio::join!(waiting, release);
    said.expect(0, "\"fencing_token\"");
    stage.client().get("/locks/deploy").send().await.expect_problem(404, "not-held");
}

async fn jobs_wait_for_their_turn(stage: Stage) {
    let shell = Shell::new(&stage);
    let client = stage.client();
    let waiters = async |expected: u64| {
        let look = async || client.get("/locks/deploy").send().await;
        eventually("so many wait", async || look().await.json()["waiters"] == expected).await;
    };
    let job = "echo $1 begins >>runs; until [ -e go ]; do sleep 0.02; done; echo $1 ends >>runs";
    let start = |name: &str| {
        let args = ["deploy", "1m", "sh", "-c", job, "sh", name];
        shell.command(shell.path("in-turn"), &args).spawn().unwrap()
    };
    let mut jobs = vec![start("a")];
    eventually("the first job runs", async || shell.path("runs").exists()).await;
    for (number, name) in ["b", "c"].into_iter().enumerate() {
        jobs.push(start(name));
        waiters(number as u64 + 1).await;
    }
    // Who is interrupted leaves the line.
    let interrupted = start("d");
    waiters(3).await;
    crate::support::signal(interrupted.id().unwrap(), "TERM");
    drop(interrupted.wait_with_output().await);
    waiters(2).await;
    std::fs::write(shell.path("go"), "").unwrap();
    for job in jobs {
        Said::of(job.wait_with_output().await.unwrap()).expect(0, "");
    }
    let runs = std::fs::read_to_string(shell.path("runs")).unwrap();
    let expected = ["a", "b", "c"].map(|name| format!("{name} begins\n{name} ends\n")).concat();
    assert_eq!(runs, expected);
    client.get("/locks/deploy").send().await.expect_problem(404, "not-held");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    let mut hopeless = dead.command(dead.path("in-turn"), &["deploy", "1m", "touch", "wrong"]);
    let said = Said::of(hopeless.env("GIVE_UP_S", "0").output().await.unwrap());
    said.expect(75, "not my turn yet");
    assert!(!dead.path("wrong").exists());
}

async fn a_double_click_is_ignored(stage: Stage) {
    let shell = Shell::new(&stage);
    let clicks = futures_util::future::join_all((0..4).map(|_| shell.run("pay", &["4711"]))).await;
    let charged = clicks.iter().filter(|said| said.text == "charged order 4711\n").count();
    let ignored = clicks.iter().filter(|said| said.text == "order 4711 is being paid already\n").count();
    assert_eq!((charged, ignored), (1, 3), "{clicks:?}");
    shell.run("pay", &["0815 & co"]).await.expect(0, "charged order 0815 & co");
}

async fn a_serverless_function_retries_safely(stage: Stage) {
    let shell = Shell::new(&stage);
    let client = stage.client();
    for _ in 0..2 {
        shell.run("function", &[]).await.expect(0, "doing the work");
        client.get("/locks/invoice-4711").send().await.expect_problem(404, "not-held");
    }
    client.put("/locks/invoice-4711?ttl=1m").token(&fresh_token()).send().await.expect(201);
    shell.run("function", &[]).await.expect(0, "somebody else does it");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    dead.run("function", &[]).await.expect(75, "no lock: HTTP 000");
}

async fn claiming_in_sql_loses_no_update(stage: Stage) {
    let shell = Shell::new(&stage);
    let sql = async |statement: &str| {
        let output = shell
            .command("sqlite3", &["-cmd", ".timeout 5000", "bank.db", statement])
            .output()
            .await
            .unwrap();
        Said::of(output).expect(0, "").text.trim().to_owned()
    };
    sql("CREATE TABLE account (id PRIMARY KEY, balance, fence NOT NULL DEFAULT 0);
         INSERT INTO account (id, balance) VALUES ('7', 100)")
    .await;
    let deposits = (0..6).map(async |_| {
        let mut done = 0;
        for _ in 0..4 {
            let said = shell.run("deposit", &["bank.db", "7", "1"]).await;
            assert!(matches!(said.code, Some(0 | 75)), "{said:?}");
            done += usize::from(said.code == Some(0));
        }
        done
    });
    let done: usize = futures_util::future::join_all(deposits).await.into_iter().sum();
    assert!(done > 0);
    assert_eq!(sql("SELECT balance FROM account").await, (100 + done).to_string());
    // Nothing that it is given, or reads, is run.
    let evil = "x[$(touch ran)]";
    let both = "7' OR 1=1; UPDATE account SET balance=0; --";
    for (account, amount) in [("7", evil), ("7", "1; UPDATE account SET balance=0"), (both, "1"), (evil, "1")]
    {
        shell
            .run("deposit", &["bank.db", account, amount])
            .await
            .expect(2, "deposit DATABASE ACCOUNT AMOUNT");
    }
    sql("INSERT INTO account (id, balance) VALUES ('8', 'x[$(touch ran)]')").await;
    shell.run("deposit", &["bank.db", "8", "1"]).await.expect(2, "the balance is no whole number");
    assert!(!shell.path("ran").exists());
    sql("DELETE FROM account WHERE id='8'").await;
    assert_eq!(sql("SELECT balance FROM account").await, (100 + done).to_string());
    // Somebody newer claims while this one thinks: its write is refused.
    let mut slow = shell.command(shell.path("deposit"), &["bank.db", "7", "50"]);
    let before = sql("SELECT fence FROM account").await;
    let slow = slow.env("THINK_S", "2").spawn().unwrap();
    eventually("it has claimed", async || sql("SELECT fence FROM account").await != before).await;
    sql("UPDATE account SET fence=fence+1").await;
    let said = Said::of(slow.wait_with_output().await.unwrap());
    said.expect(75, "somebody newer has the lock");
    assert_eq!(sql("SELECT balance FROM account").await, (100 + done).to_string());
    // An older number than the table has seen cannot even claim.
    sql("UPDATE account SET fence=9007199254740991").await;
    shell.run("deposit", &["bank.db", "7", "1"]).await.expect(75, "somebody newer has the lock");
}

async fn busy_and_down_are_told_apart(stage: Stage) {
    let shell = Shell::new(&stage);
    shell.run("try-lock", &["a"]).await.expect(0, "mine\n");
    shell.run("try-lock", &["a"]).await.expect(0, "busy\n");
    // A name says nothing but a name.
    shell.run("try-lock", &["zz?ttl=24h#"]).await.expect(0, "mine\n");
    let held = stage.client().get("/lock?key=zz%3Fttl%3D24h%23").send().await.expect(200).json();
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 5_000, "{held}");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    dead.run("try-lock", &[]).await.expect(0, "no gateway there\n");
    let mut redis = RedisServer::start().await;
    let gateway = crate::support::Gateway::on_redis(&redis, &[]).await;
    redis.kill();
    Shell::at(gateway.address.to_string()).run("try-lock", &[]).await.expect(0, "cannot use its store");
}

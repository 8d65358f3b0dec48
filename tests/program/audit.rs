//! The audit log: who did what with which key, whatever the disk is doing, and never a secret.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tempfile::TempDir;

use kit::gateway::{bare, command, scratch};
use kit::metrics::Scrape;
use kit::{Client, Gateway, KeysFile, eventually, fresh_token, secrets};

/// A gateway with these keys and this audit log.
async fn gateway(keys: &KeysFile, audit: &str) -> Gateway {
    keys.write();
    let flag = keys.flag();
    Gateway::start(&["--store", "memory:", &flag[0], &flag[1], "--audit-log", audit]).await
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("every line is an object")).collect()
}

/// What is in the file, which is searched for secrets each time.
fn read(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    secrets::search("the audit log", text.lines());
    // The last line may be about to be written.
    lines(text.rsplit_once('\n').map_or("", |(whole, _)| whole))
}

/// Those of one kind, once there are so many.
async fn events(path: &Path, event: &str, count: usize) -> Vec<Value> {
    let of_kind = || read(path).into_iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    eventually(&format!("{count} lines of {event}"), async || of_kind().len() >= count).await;
    of_kind()
}

fn place() -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    (directory, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_with_a_key_is_a_line_and_so_is_each_key_that_is_refused() {
    let mut file = KeysFile::new();
    let key = file.add("ci \\\"eins", "prefixes = [\"ci\"]\nallow = [\"acquire\"]");
    let (_directory, path) = place();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let client = Client::new(gateway.address);
    let token = fresh_token();
    let put = client.put("/locks/ci%2Fx").key(&key).token(&token).header("X-Request-Id", "mine");
    put.send().await.expect(201);
    client.get("/lock?key=ci/x").key(&key).send().await.expect(403);
    client.put("/lock?key=cix&ttl=nonsense").key(&key).send().await.expect(400);
    client.put("/nothing").key(&key).send().await.expect(404);
    // At these addresses no key is needed, and none is noted.
    for open in ["/healthz", "/readyz", "/ui", "/openapi.json"] {
        client.get(open).key(&key).send().await.expect(200);
    }
    client.put("/locks/ci").send().await.expect(401);
    client.put("/locks/ci").key(&key.replace(&key[20..], &"x".repeat(28))).send().await.expect(401);
    client.put("/locks/ci").key(&key).header("X-Request-Id", &key).send().await.expect(201);

    let uses = events(&path, "key-use", 5).await;
    assert_eq!(uses.len(), 5, "{uses:#?}");
    let first = &uses[0];
    assert_eq!(first["request_id"], "mine");
    assert_eq!((&first["key_id"], &first["key_name"]), (&key[3..15].into(), &"ci \"eins".into()));
    assert_eq!((&first["right"], &first["lock"]), (&"acquire".into(), &"ci/x".into()));
    assert_eq!(first["operation"], "acquire");
    assert_eq!((&first["status"], &first["address"]), (&201.into(), &"127.0.0.1".into()));
    assert!(first["time"].as_str().unwrap().ends_with('Z'), "{first}");
    let statuses: Vec<_> = uses.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 403, 400, 404, 201]);
    assert_eq!((&uses[1]["right"], &uses[1]["lock"]), (&"inspect".into(), &"ci/x".into()));
    assert!(uses[2].get("lock").is_none() && uses[3].get("right").is_none(), "{uses:#?}");
    let refused = events(&path, "key-refused", 1).await;
    assert_eq!(refused.len(), 1, "who shows none shows none that is refused: {refused:#?}");
    assert_eq!((&refused[0]["key_id"], &refused[0]["count"]), (&key[3..15].into(), &1.into()));
    assert_eq!(refused[0]["reason"], "the secret is wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_says_what_was_asked_for_and_tells_records_from_locks_and_names_no_answer_that_did_not_arrive()
{
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"acquire\", \"inspect\", \"once\", \"admin\"");
    let (_directory, path) = place();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let (client, token) = (Client::new(gateway.address), fresh_token());
    for call in [
        client.put("/locks/x?ttl=1h"),
        client.patch("/locks/x"),
        client.put("/once/x"),
        client.patch("/once/x"),
        client.post("/once/x").body("done"),
    ] {
        assert!(call.key(&key).token(&token).send().await.status < 300);
    }
    client.get("/once/x").key(&key).send().await.expect(200);
    client.get("/locks/x").key(&key).send().await.expect(200);
    client.delete("/once/x?force=true&clean=true").key(&key).send().await;
    let leaving = tokio::spawn(client.put("/locks/x?wait=1m").key(&key).send());
    eventually("it waits", async || client.get("/locks/x").key(&key).send().await.json()["waiters"] == 1)
        .await;
    leaving.abort();
    let is_left = |line: &&Value| line["operation"] == "acquire" && line.get("status").is_none();
    eventually("its client has left", async || read(&path).iter().filter(is_left).count() == 1).await;
    let uses = events(&path, "key-use", 8).await;
    let named = |what: &str| {
        let of_kind = uses.iter().take(8).filter(|line| line[what] == "x");
        of_kind.map(|line| line["operation"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(named("lock"), ["acquire", "renew", "inspect"]);
    assert_eq!(named("record"), ["begin", "once-renew", "store", "once-look", "once-break"]);
}

/// They all take the right to list; a request is named by no text that has a secret in it.
#[tokio::test(flavor = "multi_thread")]
async fn lists_metrics_and_events_have_their_right_and_no_request_is_named_after_a_secret() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("sees", "\"list\", \"inspect\"");
    let (_directory, path) = place();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let client = Client::new(gateway.address);
    let token = fresh_token();
    let ask = |address: &str, id: &str| client.get(address).key(&key).header("X-Request-Id", id);
    ask("/locks", &format!("x{key}")).send().await.expect(200);
    ask("/metrics", &format!("{key}-1")).send().await.expect(200);
    drop(ask("/events?prefix=a", &key[..30]).open().await);
    ask("/locks/k", &format!("job-{token}")).token(&token).send().await.expect(404);
    let uses = events(&path, "key-use", 4).await;
    for line in &uses {
        let is_look = line["lock"] == "k";
        assert_eq!(line["right"], if is_look { "inspect" } else { "list" }, "{line}");
        assert_eq!(line["request_id"].as_str().unwrap().len(), 16, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_that_matter_are_lines_here_and_in_the_normal_log() {
    let mut file = KeysFile::new();
    file.add_for_all("stays", "\"acquire\"");
    let goes = file.add_for_all("goes", "\"acquire\"");
    let (_directory, path) = place();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let start = events(&path, "configuration", 1).await.remove(0);
    assert_eq!((&start["what"], &start["is_in_force"]), (&"start".into(), &true.into()));
    assert_eq!(start["listen"], gateway.address.to_string());
    assert!(start["keys"].as_str().unwrap().starts_with("2 of /"), "{start}");
    file.remove("goes");
    let comes = file.add_for_all("comes", "\"list\"");
    file.change("stays", "\"acquire\"", "\"inspect\"");
    file.write();
    let change = events(&path, "configuration", 2).await.remove(1);
    let detail = change["detail"].as_str().unwrap();
    assert_eq!((&change["what"], &change["is_in_force"]), (&"keys".into(), &true.into()));
    for expected in [format!("revoked {} (goes)", &goes[3..15]), format!("new {} (comes)", &comes[3..15])] {
        assert!(detail.contains(&expected), "{expected}: {detail}");
    }
    assert!(detail.contains("changed") && detail.contains("(stays)"), "{detail}");
    file.write_text("nonsense");
    let failure = events(&path, "configuration", 3).await.remove(2);
    assert_eq!((&failure["what"], &failure["is_in_force"]), (&"keys".into(), &false.into()));
    assert!(failure["detail"].as_str().unwrap().contains("line 1"), "{failure}");
    for said in [detail, failure["detail"].as_str().unwrap()] {
        gateway.logs("the log says the same", |line| line.contains(said)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_broken_is_a_line_here_and_in_the_normal_log() {
    what_is_broken_is_a_line_here_and_in_the_normal_log("lock", "/locks/job").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_broken_is_a_line_here_and_in_the_normal_log() {
    what_is_broken_is_a_line_here_and_in_the_normal_log("record", "/once/job").await;
}

async fn what_is_broken_is_a_line_here_and_in_the_normal_log(what: &str, address: &str) {
    let mut file = KeysFile::new();
    let holder = file.add_for_all("holder", "\"acquire\", \"once\"");
    let operator = file.add_for_all("operator", "\"admin\"");
    let (_directory, path) = place();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let client = Client::new(gateway.address);
    let granted = client.put(&format!("{address}?ttl=1h&owner=me")).key(&holder).send().await.expect(201);
    // What is left of a record that is not broken cleanly could be broken again.
    let clean = if what == "record" { "&clean=true" } else { "" };
    let breaks = |key: &str| client.delete(&format!("{address}?force=true{clean}")).key(key).send();
    breaks(&operator).await.expect(204);
    breaks(&operator).await.expect(404);
    breaks(&holder).await.expect_problem(403, "right-missing");
    events(&path, "key-use", 4).await;
    let breaks = events(&path, "break", 1).await;
    assert_eq!(breaks.len(), 1, "{breaks:#?}");
    let line = &breaks[0];
    assert_eq!((&line[what], &line["owner"]), (&"job".into(), &"me".into()));
    assert_eq!((&line["outcome"], &line["key_name"]), (&"broken".into(), &"operator".into()));
    assert_eq!(line["fencing_token"], granted.fencing_token());
    let said = [&format!("a {what} was broken"), &operator[3..15], "operator"];
    gateway.logs("the log says it too", |line| said.iter().all(|part| line.contains(part))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_hangup_it_goes_on_in_a_new_file_and_by_a_dash_on_standard_error() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"acquire\"");
    let (directory, path) = place();
    let gateway_with_file = gateway(&file, path.to_str().unwrap()).await;
    let client = Client::new(gateway_with_file.address);
    client.put("/locks/before").key(&key).send().await.expect(201);
    events(&path, "key-use", 1).await;
    let old = directory.path().join("audit.log.1");
    std::fs::rename(&path, &old).unwrap();
    client.put("/locks/between").key(&key).send().await.expect(201);
    gateway_with_file.signal("HUP");
    eventually("there is a new file", async || path.exists()).await;
    client.put("/locks/after").key(&key).send().await.expect(201);
    let after = events(&path, "key-use", 1).await;
    assert_eq!(after[0]["lock"], "after");
    let locks: Vec<_> = events(&old, "key-use", 2).await.iter().map(|line| line["lock"].clone()).collect();
    assert_eq!(locks, ["before", "between"]);
    let dashed = gateway(&file, "-").await;
    Client::new(dashed.address).put("/locks/dash").key(&key).send().await.expect(201);
    let is_said =
        || dashed.log().iter().any(|line| line.contains("\"event\":\"key-use\"") && line.contains("dash"));
    eventually("it is on standard error", async || is_said()).await;
}

/// To open it would wait for a reader that never comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_no_process_reads_ends_no_log() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"acquire\"");
    let (directory, path) = place();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let client = Client::new(gateway.address);
    std::fs::rename(&path, directory.path().join("audit.log.1")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    gateway.signal("HUP");
    gateway.logs("it cannot be opened", |line| line.contains("cannot open the log again")).await;
    std::fs::remove_file(&path).unwrap();
    gateway.signal("HUP");
    eventually("there is a new file", async || path.exists()).await;
    client.put("/locks/after").key(&key).send().await.expect(201);
    assert_eq!(events(&path, "key-use", 1).await[0]["lock"], "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_opened_at_a_hangup_is_opened_once_it_can_be() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"inspect\"");
    let (directory, _) = place();
    let (logs, away) = (directory.path().join("logs"), directory.path().join("away"));
    let path = logs.join("audit.log");
    std::fs::create_dir(&logs).unwrap();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let client = Client::new(gateway.address);
    std::fs::rename(&logs, &away).unwrap();
    gateway.signal("HUP");
    gateway.logs("it cannot be opened", |line| line.contains("cannot open the log again")).await;
    client.get("/locks/old").key(&key).send().await.expect(404);
    events(&away.join("audit.log"), "key-use", 1).await;
    std::fs::create_dir(&logs).unwrap();
    eventually("there is a new file", async || {
        client.get("/locks/new").key(&key).send().await.expect(404);
        path.exists()
    })
    .await;
    assert_eq!(events(&path, "key-use", 1).await[0]["lock"], "new");
    let said = gateway.log().iter().filter(|line| line.contains("cannot open the log again")).count();
    assert_eq!(said, 1, "it is said once");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_hangup_it_goes_on_in_a_new_file_though_the_reader_of_the_pipe_before_has_stopped() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"inspect\"");
    let (directory, path) = place();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let mut options = tokio::net::unix::pipe::OpenOptions::new();
    let pipe = options.read_write(true).open_sender(&path).unwrap();
    // There is no room from the start.
    pipe.writable().await.unwrap();
    while pipe.try_write(&[b'\n'; 4096]).is_ok() {}
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    Client::new(gateway.address).get("/locks/k").key(&key).send().await.expect(404);
    std::fs::rename(&path, directory.path().join("pipe")).unwrap();
    gateway.signal("HUP");
    eventually("there is a new file", async || path.exists()).await;
    assert_eq!(events(&path, "key-use", 1).await[0]["lock"], "k");
    assert_eq!(events(&path, "configuration", 1).await[0]["what"], "start", "nothing that waited is lost");
}

/// The system would end a process that goes beyond it.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_the_size_of_files_ends_no_gateway() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"inspect\"");
    file.write();
    let (_directory, path) = place();
    let flag = file.flag();
    let args = ["--store", "memory:", &flag[0], &flag[1], "--audit-log", path.to_str().unwrap()];
    let program = command(&args);
    let mut shell = bare("sh");
    shell.args(["-c", "ulimit -f 4; exec \"$@\"", "sh"]).arg(program.get_program()).args(program.get_args());
    let gateway = Gateway::try_start_by(shell, &args).await.unwrap();
    let client = Client::new(gateway.address);
    for _ in 0..40 {
        client.get("/locks/k").key(&key).send().await.expect(404);
    }
    gateway.logs("it cannot be written", |line| line.contains("cannot write the audit log")).await;
    client.get("/locks/k").key(&key).send().await.expect(404);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * 512);
    // Its last line is none.
    std::fs::remove_file(&path).unwrap();
}

/// Nobody reads the pipe at first: its buffer fills up, and so does the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_cannot_follow_stops_nobody_and_what_is_missing_is_counted() {
    const REQUESTS: usize = 7_000;
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"inspect\"");
    let (_directory, path) = place();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    // For both ends, so that neither waits for the other.
    let pipe = tokio::net::unix::pipe::OpenOptions::new().read_write(true).open_receiver(&path).unwrap();
    let gateway = gateway(&file, path.to_str().unwrap()).await;
    let client = Client::new(gateway.address);
    join_all((0..16).map(async |n| {
        for _ in (n..REQUESTS).step_by(16) {
            client.get("/locks/k").key(&key).send().await.expect(404);
        }
    }))
    .await;
    let mut text = String::new();
    let mut buffer = [0; 64 * 1024];
    let counted = |text: &str| {
        let found = lines(text.rsplit_once('\n').map_or("", |(whole, _)| whole));
        let uses = found.iter().filter(|line| line["event"] == "key-use").count();
        let dropped: u64 = found.iter().filter_map(|line| line["lines"].as_u64()).sum();
        (uses, usize::try_from(dropped).unwrap())
    };
    eventually("all are told of, or counted", async || {
        while let Ok(Ok(read)) =
            tokio::time::timeout(Duration::from_millis(100), pipe.readable()).await.map(|ready| {
                ready.unwrap();
                pipe.try_read(&mut buffer)
            })
        {
            text += std::str::from_utf8(&buffer[..read]).unwrap();
        }
        let (uses, dropped) = counted(&text);
        uses + dropped == REQUESTS
    })
    .await;
    let (uses, dropped) = counted(&text);
    println!("{uses} lines, {dropped} dropped");
    assert!(dropped > 0 && uses > 4_000, "{uses} {dropped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_stops_no_request_and_no_end() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"acquire\"");
    let mut gateway = gateway(&file, "/dev/full").await;
    for n in 0..20 {
        Client::new(gateway.address).put(&format!("/locks/{n}")).key(&key).send().await.expect(201);
    }
    let is_said = |line: &str| line.contains("cannot write the audit log");
    gateway.logs("it is in the normal log", is_said).await;
    gateway.signal("TERM");
    assert!(gateway.exit_status().await.success());
}

/// The first line of each start is one that matters, and is kept until there is room.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_disk_takes_is_counted_though_a_line_that_matters_waits() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"acquire\", \"list\"");
    let gateway = gateway(&file, "/dev/full").await;
    let client = Client::new(gateway.address);
    for n in 0..20 {
        client.put(&format!("/locks/{n}")).key(&key).send().await.expect(201);
    }
    eventually("they are counted", async || {
        let page = client.get("/metrics").key(&key).send().await.expect(200);
        let numbers = Scrape::read(std::str::from_utf8(&page.body).unwrap());
        numbers.get("fencepost_log_lines_dropped_total{log=\"audit\"}") >= 20.0
    })
    .await;
}

/// The disk was full, or the power was cut, and then the gateway ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_ends_within_a_line_takes_nothing_of_the_next_line() {
    let (_directory, path) = place();
    for (before, lines_before) in
        [("{\"time\":\"2026-01-01T0", 1), ("{}\n", 1), ("", 0), ("\n{}\n", 2), ("\0\0\0", 1)]
    {
        std::fs::write(&path, before).unwrap();
        let args = ["--store", "memory:", "--audit-log", path.to_str().unwrap()];
        let mut gateway = Gateway::start(&args).await;
        // What stood there before is not in the words of this program.
        gateway.audited_in("/dev/null".into());
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
        let text = std::fs::read_to_string(&path).unwrap();
        let ours = text.lines().skip(lines_before).collect::<Vec<_>>().join("\n");
        assert!(text.starts_with(before) && !text.contains("\n\n"), "{text}");
        assert_eq!(lines(&ours)[0]["event"], "configuration", "{text}");
    }
}

/// Runs a gateway that ends since the file cannot be its audit log.
fn refused(store: &str, audit: &Path, why: &str) {
    let audit = audit.to_str().unwrap();
    let output = kit::gateway::run(&["--store", store, "--listen", "127.0.0.1:0", "--audit-log", audit]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("--audit-log: {why}")), "{said}");
}

#[test]
fn the_audit_log_is_not_begun_in_the_place_of_the_store() {
    let (_directory, path) = place();
    let why = "must be another file than that of --store";
    refused(&format!("file:{}", path.display()), &path, why);
    let same = scratch().join("both.redb");
    refused("file:./both.redb", &same, why);
    assert!(!path.exists() && !same.exists());
}

/// One line more, and a store is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_audit_log_ends_the_start_and_stays_as_it_is() {
    let (_directory, path) = place();
    let store = format!("file:{}", path.display());
    let gateway = Gateway::start(&["--store", &store]).await;
    Client::new(gateway.address).put("/locks/held?ttl=1h").send().await.expect(201);
    drop(gateway);
    for text in [None, Some("# keys"), Some("-----BEGIN CERTIFICATE-----")] {
        text.into_iter().for_each(|text| std::fs::write(&path, text).unwrap());
        let before = std::fs::read(&path).unwrap();
        refused("memory:", &path, "cannot open the audit log: it is no audit log");
        assert!(std::fs::read(&path).unwrap() == before);
    }
}

#[test]
fn a_file_that_cannot_be_opened_ends_the_start() {
    let output =
        kit::gateway::run(&["--store", "memory:", "--listen", "127.0.0.1:0", "--audit-log", "/nowhere/a"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--audit-log") && said.contains("(given: /nowhere/a)"), "{said}");
}

//! Resources that claim: a database, from a shell, from Python and from Node, and an object store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{Scene, on_each_gateway};
use crate::clients::{installed, root, tool};
use crate::pages::{file, snippets};
use kit::{PATIENCE, eventually, server_port};

on_each_gateway!(
    claiming_in_sql_loses_no_update,
    claiming_in_python_loses_no_update,
    claiming_in_object_storage_loses_no_update,
);

/// How many deposit at a time; fewer where each takes seconds to start.
const DEPOSITS: u64 = 6;
const SLOW_DEPOSITS: u64 = 2;

async fn sql(scene: &Scene, statement: &str) -> String {
    let command = scene.command("sqlite3", &["-cmd", ".timeout 5000", "bank.db", statement]);
    Scene::say(command).await.expect(0, "").text.trim().to_owned()
}

async fn bank(scene: &Scene) {
    sql(scene, &file("account.sql")).await;
    sql(scene, "INSERT INTO account (id, balance) VALUES ('7', 100)").await;
}

async fn balance(scene: &Scene) -> String {
    sql(scene, "SELECT balance FROM account WHERE id='7'").await
}

/// The words of the command on a page that begins so.
fn words(start: &str) -> Vec<&'static str> {
    let mut consoles = snippets().iter().filter(|snippet| snippet.language == "console");
    let found = consoles.find(|snippet| snippet.code.contains(start)).unwrap();
    found.first_line().trim_start_matches("$ ").split(' ').collect()
}

/// Has so many of them deposit 10 at a time, and counts those that say they did.
async fn deposits(count: u64, command: impl Fn(u64) -> Command) -> u64 {
    let all = (1..=count).map(|number| Scene::say(command(number)));
    let said = futures_util::future::join_all(all).await;
    let done = said.iter().filter(|said| said.code == Some(0)).count() as u64;
    assert!(done > 0, "{said:?}");
    done
}

async fn claiming_in_sql_loses_no_update(scene: Scene) {
    bank(&scene).await;
    let deposit = |amount: &str| scene.script("deposit", &["bank.db", "7", amount]);
    // Under the lock all of them are made.
    assert_eq!(deposits(DEPOSITS, |_| deposit("10")).await, DEPOSITS);
    assert_eq!(balance(&scene).await, "160");
    // However it was started.
    Scene::say(scene.command("bash", &["deposit", "bank.db", "7", "10"])).await.expect(0, "");
    Scene::say(scene.command("./deposit", &["bank.db", "7", "-10"])).await.expect(0, "");
    // It writes no balance that it could not read.
    Scene::say(deposit("999999999999999")).await.expect(2, "the new balance has more than 15 digits");
    assert_eq!(balance(&scene).await, "160");
    scene.becomes_free("account:7").await;
    // And what the lock is for is safe even where all of them believe that they hold it.
    let at_once = |number: u64| {
        let mut command = deposit("10");
        let fence = 9_000_000_000_000_000 + number;
        command.env("LOCK_KEY", "account:7").env("FENCING_TOKEN", fence.to_string()).env("THINK_S", "0.2");
        command
    };
    let done = deposits(DEPOSITS, at_once).await;
    assert_eq!(balance(&scene).await, (160 + 10 * done).to_string());
    // Nothing that it is given, or reads, is run.
    let evil = "x[$(touch ran)]";
    let both = "7' OR 1=1; UPDATE account SET balance=0; --";
    for (account, amount) in [("7", evil), ("7", "1; UPDATE account SET balance=0"), (both, "1"), (evil, "1")]
    {
        let command = scene.script("deposit", &["bank.db", account, amount]);
        Scene::say(command).await.expect(2, "deposit DATABASE ACCOUNT AMOUNT");
    }
    // What no repetition mends is not told as a newer holder.
    let missing = scene.script("deposit", &["bank.db", "9", "1"]);
    Scene::say(missing).await.expect(2, "there is no such account");
    sql(&scene, "INSERT INTO account (id, balance) VALUES ('8', 'x[$(touch ran)]')").await;
    let command = scene.script("deposit", &["bank.db", "8", "1"]);
    Scene::say(command).await.expect(2, "the balance is no whole number");
    assert!(!scene.shell.path("ran").exists());
    assert_eq!(balance(&scene).await, (160 + 10 * done).to_string());
    // A newer holder claims while this one thinks: its write is refused.
    sql(&scene, "UPDATE account SET fence=0 WHERE id='7'").await;
    let slow = deposit("50").env("THINK_S", "2").spawn().unwrap();
    let fence = async || sql(&scene, "SELECT fence FROM account WHERE id='7'").await;
    eventually("it has claimed", async || fence().await != "0").await;
    sql(&scene, "UPDATE account SET fence=fence+1 WHERE id='7'").await;
    Scene::end(slow).await.expect(75, "somebody newer has the lock");
    assert_eq!(balance(&scene).await, (160 + 10 * done).to_string());
    // And a smaller number than the table has seen cannot even claim.
    sql(&scene, "UPDATE account SET fence=9007199254740991 WHERE id='7'").await;
    Scene::say(deposit("1")).await.expect(75, "somebody newer has the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_fails_is_not_taken_for_a_newer_holder() {
    let scene = Scene::without_keys().await;
    bank(&scene).await;
    let deposit = |database: &str| {
        let mut command = scene.script("deposit", &[database, "7", "10"]);
        command.env("LOCK_KEY", "account:7").env("FENCING_TOKEN", "5");
        command
    };
    Scene::say(deposit("empty.db")).await.expect(1, "the database failed").expect(1, "no such table");
    // It fails after the claim.
    sql(
        &scene,
        "CREATE TRIGGER full BEFORE UPDATE OF balance ON account BEGIN SELECT RAISE(ABORT, 'full'); END",
    )
    .await;
    Scene::say(deposit("bank.db")).await.expect(1, "the database failed").expect(1, "full");
    sql(&scene, "DROP TRIGGER full; ALTER TABLE account RENAME COLUMN balance TO money").await;
    Scene::say(deposit("bank.db")).await.expect(1, "the database failed").expect(1, "no such column");
    let mut numberless = deposit("bank.db");
    numberless.env_remove("FENCING_TOKEN");
    Scene::say(numberless).await.expect(2, "FENCING_TOKEN is no number");
    scene.program("bin/sqlite3", "#!/bin/sh\nexit 127\n");
    Scene::say(deposit("bank.db")).await.expect(1, "the database failed");
}

/// Runs the statements of a file with these values bound, and prints how many rows each of them changed.
const BIND: &str = "import re, sqlite3, sys
db = sqlite3.connect('bank.db', isolation_level=None)
values = dict(pair.split('=') for pair in sys.argv[2:])
for statement in re.sub('--.*', '', open(sys.argv[1]).read()).split(';'):
    if statement.strip(): print(db.execute(statement, values).rowcount)
";

#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_page_claim() {
    let scene = Scene::without_keys().await;
    bank(&scene).await;
    sql(&scene, &file("fence.sql")).await;
    // MySQL makes no key of a TEXT, and no column of this name.
    for table in ["account.sql", "fence.sql"] {
        assert!(!file(table).split_whitespace().any(|word| ["TEXT", "lock"].contains(&word)), "{table}");
    }
    sql(&scene, "CREATE TABLE report (id, pages); INSERT INTO report VALUES ('r', 0)").await;
    scene.write("bind.py", BIND);
    let changed = async |name: &str, values: &[&str]| {
        scene.write(name, &file(name));
        let command = scene.command(tool("python"), &[&["bind.py", name], values].concat());
        Scene::say(command).await.expect(0, "").text.lines().collect::<Vec<_>>().join(" ")
    };
    let deposit = async |fence: &str| changed("deposit.sql", &["id=7", fence, "balance=110"]).await;
    assert_eq!(deposit("fence=5").await, "1 -1 1");
    assert_eq!(deposit("fence=5").await, "1 -1 1");
    assert_eq!(deposit("fence=4").await, "0 -1 0");
    assert_eq!(deposit("fence=6").await, "1 -1 1");
    let claim = async |fence: &str| changed("claim.sql", &["lock=l", fence]).await;
    for (fence, rows) in [("fence=5", "1"), ("fence=5", "1"), ("fence=4", "0"), ("fence=6", "1")] {
        assert_eq!(claim(fence).await, rows, "{fence}");
    }
    // Where there is no `ON CONFLICT`: the row is made, and then claimed.
    assert_eq!(changed("row.sql", &["lock=other"]).await, "1");
    for (fence, rows) in [("fence=5", "1"), ("fence=5", "1"), ("fence=4", "0"), ("fence=6", "1")] {
        assert_eq!(changed("claim-row.sql", &["lock=other", fence]).await, rows, "{fence}");
        assert_eq!(changed("write.sql", &["lock=other", "id=none", fence]).await, format!("-1 {rows} 0 -1"));
    }
    for (fence, rows) in [("fence=6", "-1 1 1 -1"), ("fence=5", "-1 0 1 -1"), ("fence=7", "-1 0 1 -1")] {
        assert_eq!(changed("write.sql", &["lock=l", "id=r", fence]).await, rows, "{fence}");
    }
}

/// Deposits with a number that no gateway gave.
const DEPOSIT_AS: &str = "import sqlite3, sys, deposit
deposit.deposit(sqlite3.connect('bank.db', timeout=5), '7', 10, int(sys.argv[1]))
";

/// Deposits while a newer holder claims between its read and its write.
const DEPOSIT_TOO_LATE: &str = "import sqlite3, deposit
plain, calls = deposit.change, []
def change(*words):
    calls.append(words)
    if len(calls) == 2:
        with sqlite3.connect('bank.db') as newer: newer.execute('UPDATE account SET fence = fence + 1')
    plain(*words)
deposit.change = change
deposit.deposit(sqlite3.connect('bank.db', timeout=5), '7', 10, 9_000_000_000_000_100)
";

async fn claiming_in_python_loses_no_update(scene: Scene) {
    bank(&scene).await;
    assert_eq!(deposits(DEPOSITS, |_| scene.python("deposit.py", &["bank.db", "7", "10"])).await, DEPOSITS);
    assert_eq!(balance(&scene).await, "160");
    scene.becomes_free("account:7").await;
    scene.write("as.py", DEPOSIT_AS);
    let numbered = |number: &str| scene.any_python("as.py", &[number]);
    let done = deposits(DEPOSITS, |number| numbered(&(9_000_000_000_000_000 + number).to_string())).await;
    assert_eq!(balance(&scene).await, (160 + 10 * done).to_string());
    Scene::say(numbered("5")).await.expect(1, "Superseded");
    scene.write("late.py", DEPOSIT_TOO_LATE);
    Scene::say(scene.any_python("late.py", &[])).await.expect(1, "Superseded");
    let evil = "7' OR 1=1 --";
    Scene::say(scene.python("deposit.py", &["bank.db", evil, "1"])).await.expect(1, "Superseded");
    assert_eq!(balance(&scene).await, (160 + 10 * done).to_string());
}

const POSTGRES: &str = "import { PGlite } from '@electric-sql/pglite';
import { PGLiteSocketServer } from '@electric-sql/pglite-socket';
const db = await PGlite.create();
const server = new PGLiteSocketServer({ db, host: '127.0.0.1', port: Number(process.argv[1]), maxConnections: 50 });
await server.start();
console.log('listening');
";

/// A PostgreSQL that needs no other user and no files. It ends when this is dropped.
pub struct Postgres {
    _child: Child,
    pub url: String,
}

impl Postgres {
    pub async fn start() -> Self {
        installed("node_modules");
        let port = server_port();
        let mut command = Command::new("node");
        // It finds its packages from where it runs.
        // Optimized, its code would take longer to compile than to run.
        command.args(["--liftoff-only", "--input-type=module", "-e", POSTGRES, &port.to_string()]);
        command.current_dir(root().join("target/clients")).stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // It unpacks itself, which takes a while on a machine that has much else to do.
        let line = tokio::time::timeout(9 * PATIENCE, lines.next_line()).await.expect("it does not start");
        assert_eq!(line.unwrap().as_deref(), Some("listening"));
        Self { _child: child, url: format!("postgres://postgres@127.0.0.1:{port}/postgres") }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claiming_in_node_loses_no_update() {
    let postgres = Postgres::start().await;
    deposits_in_node(&postgres, Scene::without_keys().await).await;
    deposits_in_node(&postgres, Scene::with_keys_and_tls().await).await;
}

async fn deposits_in_node(postgres: &Postgres, scene: Scene) {
    std::os::unix::fs::symlink(installed("node_modules"), scene.shell.path("node_modules")).unwrap();
    scene.write("deposit.mjs", &file("deposit.mjs"));
    let query = "import pg from 'pg';
        const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
        await db.connect();
        const { rows } = await db.query(process.argv[2]);
        if (rows?.length) console.log(rows[0].balance);
        await db.end();";
    scene.write("query.mjs", query);
    let node = |words: &[&str]| {
        let mut command = scene.command(words[0], &words[1..]);
        command.env("DATABASE_URL", &postgres.url);
        command
    };
    let balance = async || {
        let command = node(&["node", "query.mjs", "SELECT balance FROM account WHERE id = '7'"]);
        Scene::say(command).await.expect(0, "").text.trim().parse::<u64>().unwrap()
    };
    let table = format!("DROP TABLE IF EXISTS account; {}", file("account.sql"));
    Scene::say(node(&["node", "query.mjs", &table])).await.expect(0, "");
    let insert = "INSERT INTO account (id, balance) VALUES ('7', 100)";
    Scene::say(node(&["node", "query.mjs", insert])).await.expect(0, "");
    // The command of the page.
    let words = words("fencepost run --wait 20s account:7");
    assert_eq!(deposits(DEPOSITS, |_| node(&words)).await, DEPOSITS);
    assert_eq!(balance().await, 160);
    scene.becomes_free("account:7").await;
    let numbered = |number: u64| {
        let mut command = node(&["node", "deposit.mjs", "7", "10"]);
        command.env("FENCING_TOKEN", number.to_string());
        command
    };
    let done = deposits(DEPOSITS, |number| numbered(9_000_000_000_000_000 + number)).await;
    assert_eq!(balance().await, 160 + 10 * done);
    Scene::say(numbered(5)).await.expect(1, "somebody newer has the lock");
    Scene::say(node(&["node", "deposit.mjs", "7", "10"])).await.expect(1, "start this with fencepost run");
    assert_eq!(balance().await, 160 + 10 * done);
}

/// An object store with conditional writes, as S3 has them.
#[derive(Default)]
struct Bucket {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// How many writes come before one that a newer holder makes first.
    newer_after: Mutex<Option<usize>>,
}

fn etag(body: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    let hash: String = Sha256::digest(body)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hash}\"")
}

async fn get_object(State(bucket): State<Arc<Bucket>>, uri: Uri) -> Response {
    match bucket.objects.lock().unwrap().get(uri.path()) {
        Some(body) => ([("etag", etag(body))], body.clone()).into_response(),
        None => (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response(),
    }
}

async fn put_object(
    State(bucket): State<Arc<Bucket>>,
    uri: Uri,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> Response {
    let path = uri.path().to_owned();
    let mut objects = bucket.objects.lock().unwrap();
    let mut newer_after = bucket.newer_after.lock().unwrap();
    match newer_after.as_mut() {
        Some(0) => {
            objects.insert(path.clone(), br#"{"fence": 9007199254740991, "balance": 0}"#.to_vec());
            *newer_after = None;
        }
        Some(left) => *left -= 1,
        None => {}
    }
    let there = objects.get(&path).map(|body| etag(body));
    let value = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
    let is_met = value("if-match").is_none_or(|wanted| there.as_deref() == Some(wanted))
        && value("if-none-match").is_none_or(|wanted| wanted == "*" && there.is_none());
    if !is_met {
        return (StatusCode::PRECONDITION_FAILED, "<Error><Code>PreconditionFailed</Code></Error>")
            .into_response();
    }
    let tag = etag(&body);
    objects.insert(path, body.to_vec());
    [("etag", tag)].into_response()
}

async fn claiming_in_object_storage_loses_no_update(scene: Scene) {
    let bucket = Arc::new(Bucket::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/{*path}", axum::routing::get(get_object).put(put_object))
        .with_state(bucket.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    scene.write("ledger.py", &file("ledger.py"));
    scene.program("bin/python3", &format!("#!/bin/sh\nexec {} \"$@\"\n", tool("python").display()));
    let ledger = |words: &[&str]| {
        let mut command = scene.command(words[0], &words[1..]);
        command.env("AWS_ENDPOINT_URL", &url).env("AWS_DEFAULT_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", "somebody").env("AWS_SECRET_ACCESS_KEY", "something");
        command
    };
    let balance = || {
        let objects = bucket.objects.lock().unwrap();
        let object = objects.get("/my-bucket/ledger/7.json").unwrap();
        serde_json::from_slice::<serde_json::Value>(object).unwrap()["balance"].as_u64().unwrap()
    };
    let words = words("fencepost run --wait 20s ledger:7");
    let under_lock = deposits(SLOW_DEPOSITS, |_| ledger(&words)).await;
    assert_eq!(balance(), 10 * under_lock);
    scene.becomes_free("ledger:7").await;
    let numbered = |number: u64| {
        let mut command = ledger(&["python3", "ledger.py", "my-bucket", "ledger/7.json", "10"]);
        command.env("FENCING_TOKEN", number.to_string());
        command
    };
    let done = deposits(SLOW_DEPOSITS, |number| numbered(8_000_000_000_000_000 + number)).await;
    assert_eq!(balance(), 10 * (under_lock + done));
    // One that is too late cannot claim.
    Scene::say(numbered(5)).await.expect(1, "somebody newer has the lock");
    assert_eq!(balance(), 10 * (under_lock + done));
    // A newer holder comes between its claim and its last write.
    *bucket.newer_after.lock().unwrap() = Some(1);
    Scene::say(numbered(9_000_000_000_000_000)).await.expect(1, "somebody newer has the lock");
    assert_eq!(balance(), 0);
    // And between its read and its claim.
    *bucket.newer_after.lock().unwrap() = Some(0);
    bucket.objects.lock().unwrap().clear();
    Scene::say(numbered(5)).await.expect(1, "somebody newer has the lock");
}

//! What is true of the embedded store alone: one process per file, and what a restart keeps.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fencepost::clock::{Clock, SystemClock, boottime};
use fencepost::lock::{Acquired, Attempt, LeaseToken, LockKey, Terms, Ttl};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{LockRequest, LockStore, Try};
use redb::{ReadableDatabase, ReadableTable};
use tokio::time::Instant;

use kit::asking::LockStoreExt;
use kit::gateway::{bare_command, command};
use kit::{Client, Gateway, PATIENCE, fresh_token};

mod cursors;
mod memory;
mod privacy;

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_file_is_refused_with_one_clear_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let first = Gateway::on_file(&file, &[]).await;
    let store = format!("file:{}", file.display());
    let second = bare_command()
        .args(["--listen", "127.0.0.1:0", "--store", &store])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("in use by another process") && said.contains("locks.redb"), "{said}");
    // The first one is not disturbed.
    Client::new(first.address).put("/locks/k").send().await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn held_locks_and_numbers_survive_stop_and_start_and_kill() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let (token, released) = (fresh_token(), fresh_token());
    let mut last = 0;
    let mut held = 0;
    for round in 0..4 {
        let mut gateway = Gateway::on_file(&file, &[]).await;
        let client = Client::new(gateway.address);
        if round == 0 {
            held = client
                .put("/locks/held?ttl=10m&owner=me")
                .token(&token)
                .send()
                .await
                .expect(201)
                .fencing_token();
            client.put("/locks/freed").token(&released).send().await.expect(201);
            client.delete("/locks/freed").token(&released).send().await.expect(204);
        }
        let look = client.get("/locks/held").token(&token).send().await.expect(200);
        assert_eq!((look.fencing_token(), look.json()["yours"].as_bool()), (held, Some(true)));
        assert_eq!(look.json()["owner"], "me");
        assert!((500_000..=600_000).contains(&look.json()["expires_in_ms"].as_u64().unwrap()));
        client.put("/locks/held").send().await.expect_problem(423, "lock-held");
        // Retries work across restarts too.
        client.delete("/locks/freed").token(&released).send().await.expect(204);
        client.put("/locks/freed").token(&released).send().await.expect_problem(409, "token-released");
        for _ in 0..10 {
            let granted = client.put("/locks/k").send().await.expect(201);
            assert!(granted.fencing_token() > last);
            last = granted.fencing_token();
            client.delete("/locks/k").token(&granted.token()).send().await.expect(204);
        }
        if round % 2 == 0 {
            gateway.signal("TERM");
            assert!(gateway.exit_status().await.success());
        } else {
            gateway.kill();
        }
    }
}

/// What was answered is on disk: the process ends at once after each answer, as in a crash.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let (token, mut numbers) = (fresh_token(), Vec::new());
    for round in 0..5 {
        let mut gateway = Gateway::on_file(&file, &[]).await;
        let client = Client::new(gateway.address);
        for (earlier, number) in numbers.iter().enumerate() {
            let look = client.get(&format!("/locks/k{earlier}")).token(&token).send().await.expect(200);
            assert_eq!((look.fencing_token(), look.json()["yours"].as_bool()), (*number, Some(true)));
        }
        let granted = client.put(&format!("/locks/k{round}?ttl=10m")).token(&token).send().await;
        gateway.kill();
        numbers.push(granted.expect(201).fencing_token());
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

/// A result that was answered is there after a kill, and so is what is known of a worker that did not get so far.
#[tokio::test(flavor = "multi_thread")]
async fn records_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let (mut results, mut last): (Vec<String>, _) = (Vec::new(), 0);
    for round in 0..5 {
        let mut gateway = Gateway::on_file(&file, &[]).await;
        let client = Client::new(gateway.address);
        for (earlier, number) in results.iter().enumerate() {
            let told = client.put(&format!("/once/done{earlier}")).token(&fresh_token()).send().await;
            let told = told.expect(200);
            assert_eq!(
                (&told.body[..], told.header("Fencing-Token")),
                (&b"a result"[..], Some(number.as_str()))
            );
        }
        let token = fresh_token();
        let worker = client.put("/once/given-up").token(&token).send().await.expect(201);
        assert_eq!(worker.json()["earlier"], round, "{worker:?}");
        client.delete("/once/given-up").token(&token).send().await.expect(204);
        let path = format!("/once/done{round}");
        let worker = client.put(&path).token(&token).send().await.expect(201);
        assert!(worker.fencing_token() > last);
        last = worker.fencing_token();
        let stored = client.call("POST", &path).token(&token).body("a result").send().await;
        gateway.kill();
        stored.expect(200);
        results.push(last.to_string());
    }
}

/// Who was overtaken before a kill stores its result after it, if the next one has done nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_take_over_found_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let (late, next) = (fresh_token(), fresh_token());
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let client = Client::new(gateway.address);
    let number = client.put("/once/k?ttl=50ms").token(&late).send().await.expect(201).fencing_token();
    let state = async |client: &Client| client.get("/once/k").send().await.json()["state"].clone();
    kit::eventually("it lapses", async || state(&client).await == "lapsed").await;
    let taken = client.put("/once/k?ttl=5m").token(&next).send().await.expect(201);
    assert_eq!(taken.json()["earlier"], 1);
    gateway.kill();
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let client = Client::new(gateway.address);
    let store = client.call("POST", "/once/k").token(&late).body("a result");
    store.send().await.expect_problem(409, "superseded");
    client.delete("/once/k?clean=true").token(&next).send().await.expect(204);
    gateway.kill();
    let gateway = Gateway::on_file(&file, &[]).await;
    let client = Client::new(gateway.address);
    let stored = client.call("POST", "/once/k").token(&late).body("a result").send().await.expect(200);
    assert_eq!(stored.fencing_token(), number);
    assert_eq!(state(&client).await, "done");
}

/// A wall clock that somebody set.
struct SetClock(Duration);

impl Clock for SetClock {
    fn boot(&self) -> Duration {
        boottime()
    }

    fn wall(&self) -> Duration {
        self.0
    }

    fn boot_id(&self) -> String {
        SystemClock.boot_id()
    }
}

/// Somebody who asks for the lock of this key for 30 s.
fn request(key: &str) -> LockRequest {
    LockRequest {
        key: LockKey::parse(key.as_bytes()).unwrap(),
        token: LeaseToken::generate().hash(),
        attempt: Attempt::generate(),
        ttl: Ttl::from_ms(30_000).unwrap(),
        note: Default::default(),
        terms: Terms::default(),
    }
}

async fn grant_at(file: &Path, wall_s: u64) -> u64 {
    let clock = Arc::new(SetClock(Duration::from_secs(wall_s)));
    let store = EmbeddedStore::open(file, EmbeddedSettings::default(), clock).unwrap();
    let answer = store.call(Try(request(&fresh_token())), Instant::now() + PATIENCE).await.unwrap();
    let Acquired::Granted(lease) = answer else { panic!("{answer:?}") };
    store.close().await;
    lease.fencing_token.get()
}

/// The file knows the last number, so a clock that was set back lowers none; and the clock outdoes an old file.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_never_lowers_a_number() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let first = grant_at(&file, 2_000_000_000).await;
    let set_back = grant_at(&file, 1_000_000_000).await;
    assert!(set_back > first, "{set_back} after {first}");
    let later = grant_at(&file, 2_000_000_001).await;
    assert!(later >= 2_000_000_001_000_000, "{later}");
}

/// Numbers would begin there, and the file would have none left for any later start.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_a_clock_past_the_largest_number_is_refused_and_costs_no_number() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    grant_at(&file, 2_000_000_000).await;
    for wall_s in [9_007_199_255, 30_000_000_000, u64::MAX] {
        let clock = Arc::new(SetClock(Duration::from_secs(wall_s)));
        let refused = EmbeddedStore::open(&file, EmbeddedSettings::default(), clock).err().unwrap();
        assert!(refused.to_string().contains("the clock of this machine is wrong"), "{refused}");
    }
    let right = grant_at(&file, 2_000_000_001).await;
    assert!((2_000_000_001_000_000..2_000_000_002_000_000).contains(&right), "{right}");
    // As programs before this one left it after such a start.
    let database = redb::Database::open(&file).unwrap();
    let change = database.begin_write().unwrap();
    let numbers = redb::TableDefinition::<&str, u64>::new("numbers");
    change.open_table(numbers).unwrap().insert("fence", 30_000_000_000_000_000).unwrap();
    change.commit().unwrap();
    drop(database);
    let set_back = grant_at(&file, 1_000_000_000).await;
    assert_eq!(set_back, right + 1, "the lock that is held has the last number that is known");
    let later = grant_at(&file, 2_000_000_002).await;
    assert!(later >= 2_000_000_002_000_000, "{later}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_says_that_it_keeps_nothing() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    Client::new(gateway.address).put("/locks/k").send().await.expect(201);
    assert!(gateway.log().iter().any(|line| line.contains("all of them are lost")), "{:?}", gateway.log());
}

#[test]
fn files_that_cannot_be_used_end_the_start_with_one_clear_line() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = directory.path().join("notes.txt");
    std::fs::write(&foreign, "these are notes, and no store").unwrap();
    let empty = directory.path().join("empty.redb");
    std::fs::write(&empty, "").unwrap();
    for (path, said) in [
        (foreign, "is not a Fencepost store; if it was one, wait for the longest ttl"),
        (empty, "is not a Fencepost store; if it was one, wait for the longest ttl"),
        (directory.path().join("missing").join("locks.redb"), "no such file or directory"),
        (directory.path().to_owned(), "cannot be opened"),
    ] {
        let output = command(&["--store", &format!("file:{}", path.display())])
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{lines}");
        assert!(lines.lines().count() == 1 && lines.contains(said), "{lines}");
    }
    assert_eq!(std::fs::read_to_string(directory.path().join("notes.txt")).unwrap().len(), 29);
}

/// What a first start leaves that was killed while it made its file.
#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_file_of_an_earlier_start_is_no_hindrance() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    std::fs::write(directory.path().join("locks.redb.unfinished"), [0; 5000]).unwrap();
    let gateway = Gateway::on_file(&file, &[]).await;
    Client::new(gateway.address).put("/locks/k").send().await.expect(201);
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["locks.redb"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terms_of_a_lock_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let (token, kept) = (fresh_token(), fresh_token());
    let mut first = Gateway::on_file(&file, &[]).await;
    let client = Client::new(first.address);
    client.put("/locks/most?ttl=10s&max_hold=1m").token(&token).send().await.expect(201);
    client.put("/locks/least?ttl=1m&min_hold=1m").token(&kept).send().await.expect(201);
    client.put("/locks/kept?ttl=1m&min_hold=1m").token(&kept).send().await.expect(201);
    client.delete("/locks/kept").token(&kept).send().await.expect(204);
    first.kill();
    let second = Gateway::on_file(&file, &[]).await;
    let client = Client::new(second.address);
    let cut = client.patch("/locks/most?ttl=1h").token(&token).send().await.expect(200).json();
    assert!(cut["ttl_ms"].as_u64().unwrap() <= 60_000, "{cut}");
    client.delete("/locks/least").token(&kept).send().await.expect(204);
    for key in ["kept", "least"] {
        let seen = client.get(&format!("/locks/{key}")).send().await.expect(200).json();
        assert_eq!(seen["released"], true, "{key}");
    }
    // Taken anew, a lock has the terms that it is taken with.
    client.delete("/locks/most").token(&token).send().await.expect(204);
    let token = client.put("/locks/most").send().await.expect(201).token();
    client.patch("/locks/most?ttl=1h").token(&token).send().await.expect(200);
    let longer = client.patch("/locks/most?ttl=2h").token(&token).send().await.expect(200).json();
    assert!(longer["ttl_ms"].as_u64().unwrap() > 3_600_000, "{longer}");
}

/// Programs before this one wrote no terms, and said so by the number of their layout.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_from_before_there_were_terms_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let token = fresh_token();
    let mut first = Gateway::on_file(&file, &[]).await;
    let client = Client::new(first.address);
    client.put("/locks/k?ttl=10m").token(&token).send().await.expect(201);
    client.put("/locks/with-terms?max_hold=1h").send().await.expect(201);
    first.signal("TERM");
    assert!(first.exit_status().await.success());
    let numbers = redb::TableDefinition::<&str, u64>::new("numbers");
    let terms = redb::TableDefinition::<&str, ((u64, u64, u64), (u64, u64, u64))>::new("terms");
    let database = redb::Database::open(&file).unwrap();
    let change = database.begin_write().unwrap();
    assert!(change.delete_table(terms).unwrap(), "there is such a table");
    change.open_table(numbers).unwrap().insert("format", 1).unwrap();
    change.commit().unwrap();
    drop(database);
    let second = Gateway::on_file(&file, &[]).await;
    let client = Client::new(second.address);
    client.patch("/locks/k?ttl=20m").token(&token).send().await.expect(200);
}

#[tokio::test]
async fn the_file_keeps_terms_no_longer_than_the_lock_that_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let client = Client::new(gateway.address);
    for key in ["released", "taken-again", "held"] {
        let token = fresh_token();
        client.put(&format!("/locks/{key}?max_hold=1h")).token(&token).send().await.expect(201);
        if key != "held" {
            client.delete(&format!("/locks/{key}")).token(&token).send().await.expect(204);
        }
    }
    client.put("/locks/taken-again").send().await.expect(201);
    gateway.signal("TERM");
    assert!(gateway.exit_status().await.success());
    let terms = redb::TableDefinition::<&str, ((u64, u64, u64), (u64, u64, u64))>::new("terms");
    let database = redb::Database::open(&file).unwrap();
    let terms = database.begin_read().unwrap().open_table(terms).unwrap();
    let keys: Vec<_> = terms.iter().unwrap().map(|row| row.unwrap().0.value().to_owned()).collect();
    assert_eq!(keys, ["held"]);
}

#[tokio::test]
async fn a_store_whose_writer_has_ended_does_not_seem_ready() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let store = EmbeddedStore::open(&file, EmbeddedSettings::default(), Arc::new(SystemClock)).unwrap();
    assert!(store.seems_ready().await);
    store.close().await;
    assert!(!store.seems_ready().await);
}

/// The file is looked at before it is opened, and repaired.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_after_a_kill_takes_little_more_memory_than_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut gateway = Gateway::on_file(&file, &[]).await;
    let client = Client::new(gateway.address);
    for n in 0..500 {
        let token = fresh_token();
        client.put(&format!("/once/{n}?ttl=5m")).token(&token).send().await.expect(201);
        client.post(&format!("/once/{n}")).token(&token).body(vec![b'x'; 65_000]).send().await.expect(200);
    }
    gateway.kill();
    let mut dirty = Gateway::on_file(&file, &[]).await;
    let dirty_kib = dirty.memory_kib("VmHWM");
    dirty.signal("TERM");
    assert!(dirty.exit_status().await.success());
    let clean_kib = Gateway::on_file(&file, &[]).await.memory_kib("VmHWM");
    assert!(dirty_kib * 4 < clean_kib * 5, "{dirty_kib} KiB after a kill, and {clean_kib} KiB else");
}

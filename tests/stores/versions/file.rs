//! The file of the embedded store, as each version left it.
//!
//! It was written by a clock that a test set, so that it is the same each time, and can be opened at any time after that. A
//! fixture has the bytes of the file in hexadecimal, 64 on a line behind where they stand; lines of zeros are left out.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use fencepost::clock::Clock;
use fencepost::lock::{
    Acquired, Attempt, Inspected, LeaseToken, LockKey, Note, Owner, Released, Renewed, Slots, Terms,
    TokenHash, Ttl,
};
use fencepost::once::{Begun, GivenUp, Keep, NotWorker};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{
    Begin, GiveUp, Inspect, KnownTo, LockRequest, LockStore, Release, Renew, Renewer, RollBack, TicketAfter,
    Tombstone, Try,
};
use redb::{ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use tempfile::TempDir;
use tokio::time::Instant;

use super::redis::token_of;
use super::{hold_against, recorded, records, versions};
use kit::asking::LockStoreExt;
use kit::gateway::run;
use kit::{Client, Gateway, PATIENCE, fresh_token};

const FIXTURE: &str = "file.hex";
const BYTES_A_LINE: usize = 64;

const HOUR: Duration = Duration::from_secs(3600);
/// When the fixture was written, by the wall clock, and how long after boot.
const WRITTEN_AT: Duration = Duration::from_secs(1_795_428_000);
const WRITTEN_AFTER_BOOT: Duration = Duration::from_secs(1000);
const BOOT: &str = "the boot in which it was written";
/// The layouts of files with locks alone, and with records: the last that this build knows.
const FORMAT_OF_LOCKS: u64 = 2;
const FORMAT_OF_RECORDS: u64 = 3;
const LAST_FORMAT: u64 = 4;

type Life = (u64, u64, u64);
type LockRow = (&'static [u8; 32], Option<&'static [u8; 16]>, u64, &'static str, Life);
type MarkRow = (u8, &'static [u8], Life);
const LOCKS: TableDefinition<&str, LockRow> = TableDefinition::new("locks");
const TERMS: TableDefinition<&str, (Life, Life)> = TableDefinition::new("terms");
const MARKS: TableDefinition<(&str, &[u8; 32]), MarkRow> = TableDefinition::new("marks");
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
const TEXTS: TableDefinition<&str, &str> = TableDefinition::new("texts");

/// A clock that stands still.
struct Stopped {
    boot: Duration,
    wall: Duration,
    boot_id: &'static str,
}

impl Clock for Stopped {
    fn boot(&self) -> Duration {
        self.boot
    }

    fn wall(&self) -> Duration {
        self.wall
    }

    fn boot_id(&self) -> String {
        self.boot_id.to_owned()
    }
}

fn open(file: &Path, boot_id: &'static str, boot: Duration, wall: Duration) -> EmbeddedStore {
    let settings = EmbeddedSettings { mark_ttl: 24 * HOUR, ..EmbeddedSettings::default() };
    EmbeddedStore::open(file, settings, Arc::new(Stopped { boot, wall, boot_id })).unwrap()
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn key(name: &str) -> LockKey {
    LockKey::parse(name.as_bytes()).unwrap()
}

fn token(name: &str) -> TokenHash {
    let name = if name.starts_with("a/b") { "odd" } else { name };
    LeaseToken::parse(token_of(name).as_bytes()).unwrap().hash()
}

/// A request for the lock of this name by the token of this name, for 22 hours.
fn request(name: &str, attempt: &str) -> LockRequest {
    LockRequest {
        key: key(name),
        token: token(name),
        attempt: Attempt::parse(&attempt.repeat(16)).unwrap(),
        ttl: Ttl::from_ms(22 * 3_600_000).unwrap(),
        note: Note::default(),
        terms: Terms::default(),
    }
}

async fn take(store: &EmbeddedStore, request: LockRequest) -> u64 {
    let answer = store.call(Try(request), soon()).await.unwrap();
    let Acquired::Granted(lease) = answer else { panic!("{answer:?}") };
    lease.fencing_token.get()
}

async fn release(store: &EmbeddedStore, key: LockKey, token: TokenHash) -> Released {
    store.call(Release { key, token, tombstone: Tombstone::Final }, soon()).await.unwrap().answer
}

/// Everything that gateways write into a file.
async fn write(file: &Path) {
    let store = open(file, BOOT, WRITTEN_AFTER_BOOT, WRITTEN_AT);
    let note = |text: &str| Note::new(Owner::parse(text.as_bytes()).unwrap());
    take(&store, request("plain", "01")).await;
    take(&store, LockRequest { note: note("Ada \"ü\" \\"), ..request("a/b {1} ä", "02") }).await;
    take(&store, LockRequest { note: note("run"), ..request("connection", "83") }).await;
    take(&store, request("renewed", "04")).await;
    let (ttl, by) = (Ttl::from_ms(24 * 3_600_000).unwrap(), Renewer::Token);
    store.call(Renew { key: key("renewed"), token: token("renewed"), ttl, by }, soon()).await.unwrap();
    let terms = Terms { max_hold: Some(23 * HOUR), min_hold: Some(20 * HOUR), ..Terms::default() };
    take(&store, LockRequest { terms, note: note("batch"), ..request("terms", "05") }).await;
    let terms = Terms { max_hold: None, min_hold: Some(20 * HOUR), ..Terms::default() };
    take(&store, LockRequest { terms, note: note("cron"), ..request("kept", "06") }).await;
    assert_eq!(release(&store, key("kept"), token("kept")).await, Released::Released);
    take(&store, request("freed", "07")).await;
    assert_eq!(release(&store, key("freed"), token("freed")).await, Released::Released);
    assert_eq!(release(&store, key("never"), token("never")).await, Released::NotHeld);
    assert_eq!(release(&store, key("plain"), token("stranger")).await, Released::HeldByAnother);
    take(&store, request("undone", "08")).await;
    let (ticket, known) = (TicketAfter::Removed, KnownTo::Nobody);
    let LockRequest { key, token, attempt, .. } = request("undone", "08");
    store.call(RollBack { key, token, attempt, ticket, known }, soon()).await.unwrap();
    store.close().await;
}

/// What a file holds, a line for each row; and for each table what its rows are made of.
fn rows(file: &Path) -> BTreeSet<String> {
    let database = redb::Database::open(file).unwrap();
    let read = database.begin_read().unwrap();
    let mut rows: BTreeSet<_> =
        read.list_tables().unwrap().map(|table| format!("there is a table {}", table.name())).collect();
    macro_rules! each_row {
        ($table:ident, $key:ident, $value:ident => $text:expr) => {
            for row in read.open_table($table).unwrap().iter().unwrap() {
                let (key, value) = row.unwrap();
                let ($key, $value) = (key.value(), value.value());
                rows.insert(format!("{}: {}", $table.name(), $text));
            }
        };
    }
    let hex = |bytes: &[u8]| HEXLOWER.encode(bytes);
    each_row!(LOCKS, key, row => format!("{key:?} {} {:?} {:?}", hex(row.0), row.1.map(|by| hex(by)), (row.2, row.3, row.4)));
    each_row!(TERMS, key, row => format!("{key:?} {row:?}"));
    each_row!(MARKS, key, row => format!("{:?} {} {:?} {}", key.0, hex(key.1), (row.0, row.2), hex(row.1)));
    each_row!(NUMBERS, key, row => format!("{key} {row}"));
    each_row!(TEXTS, key, row => format!("{key} {row:?}"));
    rows
}

fn in_hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(BYTES_A_LINE).enumerate();
    let lines = lines.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
    let mut text: String =
        lines.map(|(at, bytes)| format!("{:x} {}\n", at * BYTES_A_LINE, HEXLOWER.encode(bytes))).collect();
    text += &format!("{:x}\n", bytes.len());
    text
}

/// The file of a fixture, in a directory of its own.
fn lay_down(fixture: &str) -> (TempDir, std::path::PathBuf) {
    let mut bytes = Vec::new();
    for line in fixture.lines() {
        let (at, hex) = line.split_once(' ').unwrap_or((line, ""));
        bytes.resize(usize::from_str_radix(at, 16).unwrap(), 0);
        bytes.extend(HEXLOWER.decode(hex.as_bytes()).unwrap());
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    std::fs::write(&file, bytes).unwrap();
    (directory, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_the_file_is_what_is_recorded_of_this_version() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    write(&file).await;
    let made = in_hex(&std::fs::read(&file).unwrap());
    if !records(FIXTURE, &made) {
        // 0.1.0 writes neither of these, and takes no notice of them.
        let is_new = |row: &String| row.starts_with("numbers: wall-at-boot");
        let rows = |fixture: &str| {
            rows(&lay_down(fixture).1).into_iter().filter(|row| !is_new(row)).collect::<BTreeSet<_>>()
        };
        hold_against(FIXTURE, &made, rows);
    }
}

/// Opened in the same boot, after a reboot, and where the wall clock was set back a day meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn each_lock_in_the_file_of_an_earlier_version_is_found_renewed_and_released() {
    for version in versions() {
        for (boot_id, boot, wall, left_ms) in [
            (BOOT, WRITTEN_AFTER_BOOT + HOUR, WRITTEN_AT + 10 * HOUR, 21 * 3_600_000),
            ("another boot", HOUR, WRITTEN_AT + 2 * HOUR, 20 * 3_600_000),
            ("another boot", HOUR, WRITTEN_AT - 24 * HOUR, 22 * 3_600_000),
        ] {
            let (_directory, file) = lay_down(&recorded(&version, FIXTURE));
            let store = open(&file, boot_id, boot, wall);
            let mut last = 0;
            for (name, owner) in [
                ("plain", None),
                ("a/b {1} ä", Some("Ada \"ü\" \\")),
                ("connection", Some("run")),
                ("renewed", None),
                ("terms", Some("batch")),
            ] {
                let look = Inspect { key: key(name), token: Some(token(name)) };
                let seen = store.call(look, soon()).await.unwrap();
                let Inspected::Held { lease, yours, .. } = seen else { panic!("{name}: {seen:?}") };
                assert!(yours == Some(true) && lease.fencing_token.get() > last, "{name}: {lease:?}");
                assert_eq!(lease.note.owner(), owner, "{name}");
                let more_ms = if name == "renewed" { 2 * 3_600_000 } else { 0 };
                assert_eq!(lease.left_ms, left_ms + more_ms, "{name}");
                last = lease.fencing_token.get();
                let Acquired::NotTaken(_) = store
                    .call(Try(LockRequest { token: token("new"), ..request(name, "09") }), soon())
                    .await
                    .unwrap()
                else {
                    panic!("{name} is granted to another")
                };
            }
            // No renewal goes past `max_hold`.
            let (ttl, by) = (Ttl::from_ms(24 * 3_600_000).unwrap(), Renewer::Token);
            let renew = |name: &str| Renew { key: key(name), token: token(name), ttl, by };
            let Renewed::Renewed(longer) = store.call(renew("terms"), soon()).await.unwrap() else {
                panic!()
            };
            assert_eq!(longer.left_ms, left_ms + 3_600_000);
            let Renewed::Renewed(longer) = store.call(renew("plain"), soon()).await.unwrap() else {
                panic!()
            };
            assert_eq!(longer.left_ms, 24 * 3_600_000);
            let Inspected::Held { lease, .. } =
                store.call(Inspect { key: key("kept"), token: None }, soon()).await.unwrap()
            else {
                panic!("it is not kept")
            };
            assert!(lease.is_released);
            assert_eq!(lease.note.owner(), Some("cron"));
            // What was answered to a release is answered again, and what is void stays void.
            assert_eq!(release(&store, key("kept"), token("kept")).await, Released::Released);
            assert_eq!(release(&store, key("freed"), token("freed")).await, Released::Released);
            assert_eq!(release(&store, key("never"), token("never")).await, Released::NotHeld);
            assert_eq!(release(&store, key("plain"), token("stranger")).await, Released::HeldByAnother);
            let late = store.call(Try(request("freed", "07")), soon()).await.unwrap();
            assert_eq!(late, Acquired::TokenReleased);
            let late = store.call(Try(request("undone", "08")), soon()).await.unwrap();
            assert_eq!(late, Acquired::AttemptVoided);
            for name in ["plain", "connection", "renewed"] {
                assert_eq!(release(&store, key(name), token(name)).await, Released::Released);
                let fresh = LockRequest { token: LeaseToken::generate().hash(), ..request(name, "10") };
                let number = take(&store, fresh).await;
                assert!(number > last, "{name}: {number} after {last}");
                last = number;
            }
            store.close().await;
        }
    }
}

/// When all leases are over, the numbers go on all the same.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_file_of_an_earlier_version_whose_leases_have_ended_the_last_number_is_left() {
    for version in versions() {
        let (_directory, file) = lay_down(&recorded(&version, FIXTURE));
        let database = redb::Database::open(&file).unwrap();
        let read = database.begin_read().unwrap();
        let last = read.open_table(NUMBERS).unwrap().get("fence").unwrap().unwrap().value();
        drop((read, database));
        // The clock that counts from boot says how long it was; the wall clock was set back.
        let store = open(&file, BOOT, WRITTEN_AFTER_BOOT + 25 * HOUR, WRITTEN_AT - HOUR);
        for name in ["plain", "renewed", "terms", "kept"] {
            let seen = store.call(Inspect { key: key(name), token: None }, soon()).await.unwrap();
            assert!(matches!(seen, Inspected::Free { .. }), "{name}: {seen:?}");
            assert!(take(&store, request(name, "11")).await > last, "{name}");
        }
        store.close().await;
    }
}

/// The program itself, by the clocks of this machine: it starts, gives larger numbers, and what it wrote is read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_starts_on_the_file_of_an_earlier_version() {
    for version in versions() {
        let (_directory, file) = lay_down(&recorded(&version, FIXTURE));
        let (check, token) = (format!("file:{}", file.display()), fresh_token());
        assert_eq!(run(&["check", "--store", &check]).status.code(), Some(0));
        let mut number = 0;
        for _ in 0..2 {
            let mut gateway = Gateway::on_file(&file, &[]).await;
            let client = Client::new(gateway.address);
            let answer = client.put("/locks/new?ttl=1h").token(&token).send().await;
            assert!(answer.fencing_token() > 1_795_428_000_000_000, "{answer:?}");
            assert!(number == 0 || number == answer.fencing_token(), "it is the same grant");
            number = answer.fencing_token();
            gateway.signal("TERM");
            assert!(gateway.exit_status().await.success());
        }
    }
}

fn format_of(file: &Path) -> u64 {
    let read = redb::Database::open(file).unwrap().begin_read().unwrap();
    read.open_table(NUMBERS).unwrap().get("format").unwrap().unwrap().value()
}

/// So the program before it can still use the file. With the first record or slot, that program
/// refuses the file: it would forget it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_the_layout_of_locks_until_there_is_a_record_or_a_slot() {
    enum First {
        Begun,
        GivenUp,
        Shared,
    }
    for (first, format) in
        [(First::Begun, FORMAT_OF_RECORDS), (First::GivenUp, FORMAT_OF_RECORDS), (First::Shared, LAST_FORMAT)]
    {
        let (_directory, file) = lay_down(&recorded("0.1.0", FIXTURE));
        let start = || open(&file, BOOT, WRITTEN_AFTER_BOOT, WRITTEN_AT);
        let store = start();
        take(&store, request("new", "12")).await;
        store.close().await;
        assert_eq!(format_of(&file), FORMAT_OF_LOCKS);
        let (store, key) = (start(), key("record"));
        let token = LeaseToken::generate().record_hash();
        match first {
            First::Begun => {
                let (attempt, ttl) = (Attempt::generate(), Ttl::from_ms(60_000).unwrap());
                let (keep, note, fingerprint) = (Keep::DEFAULT, Note::default(), None);
                let (may_take_over, only_confirms) = (true, false);
                let begin =
                    Begin { key, token, attempt, ttl, keep, note, fingerprint, may_take_over, only_confirms };
                assert!(matches!(store.call(begin, soon()).await, Ok(Begun::Granted(_))));
            }
            First::GivenUp => {
                let give_up = GiveUp { key, token, is_clean: false, tombstone: Tombstone::Final };
                let told = GivenUp::Refused(NotWorker::NotBegun);
                assert_eq!(store.call(give_up, soon()).await, Ok(told));
            }
            First::Shared => {
                let terms = Terms { slots: Slots::MOST, ..Terms::default() };
                take(&store, LockRequest { terms, ..request("shared", "14") }).await;
            }
        }
        store.close().await;
        assert_eq!(format_of(&file), format);
        // It stays so, whatever becomes of it.
        let store = start();
        take(&store, request("another", "13")).await;
        store.close().await;
        assert_eq!(format_of(&file), format);
    }
}

/// A file that a later version has written in a layout of its own is refused by one line, and not written to: whether that
/// version closed it, or was killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_later_layout_is_refused_and_stays_as_it_is() {
    for is_closed in [true, false] {
        let (_directory, file) = lay_down(&recorded("0.1.0", FIXTURE));
        let database = redb::Database::open(&file).unwrap();
        let change = database.begin_write().unwrap();
        let mut numbers = change.open_table(NUMBERS).unwrap();
        let later = LAST_FORMAT + 1;
        numbers.insert("format", later).unwrap();
        drop(numbers);
        let unheard_of = TableDefinition::<&str, &str>::new("unheard-of");
        change.open_table(unheard_of).unwrap().insert("a", "b").unwrap();
        change.commit().unwrap();
        let left_open = std::fs::read(&file).unwrap();
        drop(database);
        if !is_closed {
            std::fs::write(&file, left_open).unwrap();
        }
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let state = || {
            let about = std::fs::metadata(&file).unwrap();
            (about.mtime(), about.mtime_nsec(), about.mode(), std::fs::read(&file).unwrap())
        };
        let before = state();
        let store = format!("file:{}", file.display());
        for args in [&["--listen", "127.0.0.1:0", "--store", &store][..], &["check", "--store", &store]] {
            let output = run(args);
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert_eq!(output.status.code(), Some(1), "{said}");
            let told: Vec<_> = said.lines().filter(|line| line.contains("newer version")).collect();
            assert!(told.len() == 1 && told[0].contains(&format!("file format {later}")), "{said}");
            assert!(told[0].contains("locks.redb"), "{said}");
            assert!(state() == before, "{args:?} wrote to the file, closed: {is_closed}");
        }
    }
}

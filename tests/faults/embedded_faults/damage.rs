//! A file that is not as it was written: bits that have changed, parts that are missing.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use kit::gateway::{command, run};
use kit::{Client, Gateway, fresh_token};
use tokio::process::Command;
use tokio::time::timeout;

/// What is held when the file is left.
const HELD: [&str; 3] = ["held-1", "held-2", "held-3"];
const PAGE_BYTES: usize = 4096;
/// How both begin that say that the last batch may be missing.
const WITHOUT_NEWEST: &str = "the newest commit in the file cannot be read";

/// The file of a gateway that was told to stop, or killed, while locks were held.
async fn file_after(signal: &str, file: &Path) -> Vec<u8> {
    let mut gateway = Gateway::on_file(file, &[]).await;
    let client = Client::new(gateway.address);
    for key in HELD {
        client.put(&format!("/locks/{key}?ttl=1h")).token(&fresh_token()).send().await.expect(201);
    }
    client.put("/once/begun?ttl=1h").token(&fresh_token()).send().await.expect(201);
    gateway.signal(signal);
    gateway.exit_status().await;
    fs::read(file).unwrap()
}

/// Whether it is refused, by both alike; else all of it is there, or both say that the last batch may be missing.
async fn is_refused(file: &Path, damaged: &[u8], what: &str) -> bool {
    fs::write(file, damaged).unwrap();
    let store = format!("file:{}", file.display());
    let looked = run(&["check", "--store", &store]);
    let page = String::from_utf8(looked.stdout).unwrap();
    assert_eq!((fs::read(file).unwrap() == damaged, &*looked.stderr), (true, &b""[..]), "{what}: {page}");
    if looked.status.success() {
        assert!(page.contains("It can be used."), "{what}: {page}");
        let gateway = Gateway::on_file(file, &[]).await;
        for key in HELD {
            let refused = Client::new(gateway.address).put(&format!("/locks/{key}?ttl=1h")).send().await;
            assert_eq!(refused.status, 423, "{what}: {key}");
        }
        // The last batch of a file that was not closed may be taken for one that was cut short.
        let last = Client::new(gateway.address).put("/once/begun").send().await;
        let (log, is_told) = (gateway.log(), page.contains(&format!("warning: {WITHOUT_NEWEST}")));
        let is_logged = log.iter().any(|line| line.contains("WARN") && line.contains(WITHOUT_NEWEST));
        assert_eq!(is_logged, is_told, "{what}: {page}{log:?}");
        assert!(last.status == 423 || is_told && what.starts_with("KILL, "), "{what}: {}", last.status);
        assert!(!is_told || what.contains(','), "{what}: nothing of it is missing: {page}");
        return false;
    }
    assert!(looked.status.code() == Some(1) && page.ends_with("It cannot be used.\n"), "{what}: {page}");
    let mut start = Command::from(command(&["--store", &store]));
    let start = start.stderr(Stdio::piped()).kill_on_drop(true).output();
    let start = timeout(kit::PATIENCE, start).await.unwrap_or_else(|_| panic!("{what}: it starts")).unwrap();
    let said = String::from_utf8(start.stderr).unwrap();
    assert!(start.status.code() == Some(1) && said.lines().count() == 1, "{what}: {said}");
    let advice = ["Wait for the longest ttl", "wait for the longest ttl"];
    assert!(advice.iter().any(|advice| said.contains(advice)), "{what}: {said}");
    assert!(fs::read(file).unwrap() == damaged, "{what}: it was written to");
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused_alike_by_check_and_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    for signal in ["TERM", "KILL"] {
        let sound = file_after(signal, &file).await;
        assert!(!is_refused(&file, &sound, signal).await);
        // A bit of the name of a lock that is held.
        let at = sound.windows(6).position(|bytes| bytes == HELD[1].as_bytes()).unwrap();
        let mut damaged = sound.clone();
        damaged[at + 5] ^= 4;
        let is_seen = is_refused(&file, &damaged, &format!("{signal}, a name")).await;
        // Of a file that was not closed, it may be an older page.
        assert!(is_seen || signal == "KILL");
        for length in [1_000, sound.len() / 2] {
            assert!(is_refused(&file, &sound[..length], &format!("{signal}, {length} bytes")).await);
        }
        let mut refused = 0;
        for page in 0..sound.len().div_ceil(PAGE_BYTES) {
            let mut damaged = sound.clone();
            let end = ((page + 1) * PAGE_BYTES).min(sound.len());
            damaged[page * PAGE_BYTES..end]
                .iter_mut()
                .enumerate()
                .for_each(|(at, byte)| *byte ^= at as u8 | 1);
            refused += u32::from(is_refused(&file, &damaged, &format!("{signal}, page {page}")).await);
        }
        println!("after {signal}, {refused} pages of {} are refused", sound.len().div_ceil(PAGE_BYTES));
        assert!(refused > 1);
        fs::remove_file(&file).unwrap();
    }
}

/// What a disk does that loses the last of what it said was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_newest_commit_is_damaged_says_so_at_the_start_and_in_check() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut gateway = Gateway::on_file(&file, &[]).await;
    Client::new(gateway.address).put("/locks/pay?ttl=5m").send().await.expect(201);
    gateway.kill();
    let sound = fs::read(&file).unwrap();
    // Some page is of that commit alone.
    let is_told = (1..sound.len() / PAGE_BYTES).any(|page| {
        let mut bytes = sound.clone();
        bytes[page * PAGE_BYTES..(page + 1) * PAGE_BYTES].fill(0);
        fs::write(&file, &bytes).unwrap();
        let looked = run(&["check", "--store", &format!("file:{}", file.display())]);
        let said = String::from_utf8(looked.stdout).unwrap();
        looked.status.success() && said.contains(&format!("warning: {WITHOUT_NEWEST}"))
    });
    assert!(is_told, "check says nothing of it");

    let is_warning = |line: &&String| line.contains("WARN") && line.contains(WITHOUT_NEWEST);
    let mut gateway = Gateway::on_file(&file, &[]).await;
    assert_eq!(gateway.log().iter().filter(is_warning).count(), 1, "{:?}", gateway.log());
    Client::new(gateway.address).put("/locks/pay?ttl=5m").send().await.expect(201);
    // That start has written what it used, and from then on nothing is missing.
    gateway.kill();
    let gateway = Gateway::on_file(&file, &[]).await;
    assert_eq!(gateway.log().iter().filter(is_warning).count(), 0, "{:?}", gateway.log());
}

/// Of all bytes, only the one with the flags has no checksum. It says which of two commits is the newest.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_byte_in_the_place_of_the_flags_hides_no_commit() {
    const FLAGS_AT: usize = 9;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    for signal in ["TERM", "KILL"] {
        let sound = file_after(signal, &file).await;
        let with = |wrong: u8| {
            let mut damaged = sound.clone();
            damaged[FLAGS_AT] ^= wrong;
            damaged
        };
        for wrong in [8, 16, 32, 64, 128] {
            assert!(is_refused(&file, &with(wrong), &format!("{signal}, flags {wrong}")).await);
        }
        // Both commits are sound, so none is missing without a refusal, and nothing is to be warned of.
        for wrong in 1..8 {
            is_refused(&file, &with(wrong), &format!("{signal}: flags {wrong}")).await;
        }
        fs::remove_file(&file).unwrap();
    }
}

//! The file is for the gateway's user alone: it says who holds what, and whoever may open it may lock it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use kit::gateway::{bare_command, command};
use kit::{Client, Gateway};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

fn make(path: &Path, mode: u32, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// What a gateway says that does not start on this file.
fn refused(file: &Path) -> String {
    let store = format!("file:{}", file.display());
    let output = command(&["--store", &store]).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_and_one_that_is_there_are_for_their_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    let mut first = Gateway::on_file(&file, &[]).await;
    assert_eq!(mode(&file), 0o600, "new");
    Client::new(first.address).put("/locks/k?ttl=10m").send().await.expect(201);
    first.kill();
    for earlier in [0o644, 0o666, 0o640] {
        fs::set_permissions(&file, Permissions::from_mode(earlier)).unwrap();
        let mut gateway = Gateway::on_file(&file, &[]).await;
        assert_eq!(mode(&file), 0o600, "{earlier:o}");
        Client::new(gateway.address).get("/locks/k").send().await.expect(200);
        gateway.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_start_left_unfinished_is_made_private_too() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    make(&directory.path().join("locks.redb.unfinished"), 0o666, "half of it");
    let _gateway = Gateway::on_file(&file, &[]).await;
    assert_eq!(mode(&file), 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_followed_and_one_to_nothing_makes_no_store() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("locks.redb"), directory.path().join("link"));
    symlink(&file, &link).unwrap();
    // What it names may be on a disk that is not there yet.
    assert!(refused(&link).contains("no such file or directory"));
    assert!(link.is_symlink() && !file.exists());
    drop(Gateway::on_file(&file, &[]).await);
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let _gateway = Gateway::on_file(&link, &[]).await;
    assert!(link.is_symlink());
    assert_eq!(mode(&file), 0o600);
}

/// Somebody who may write in the directory must not have the gateway cut off another file.
#[test]
fn a_link_in_place_of_the_unfinished_file_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (file, victim) = (directory.path().join("locks.redb"), directory.path().join("victim"));
    make(&victim, 0o644, "mine");
    symlink(&victim, directory.path().join("locks.redb.unfinished")).unwrap();
    assert!(refused(&file).contains("locks.redb"));
    assert_eq!((fs::read_to_string(&victim).unwrap(), mode(&victim)), ("mine".to_owned(), 0o644));
    assert!(!file.exists());
}

#[test]
fn a_file_that_is_no_store_keeps_its_mode_and_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let (notes, empty) = (directory.path().join("notes"), directory.path().join("empty"));
    make(&notes, 0o644, "these are notes, and no store");
    make(&empty, 0o644, "");
    for path in [&notes, &empty] {
        let before = fs::metadata(path).unwrap();
        assert!(refused(path).contains("is not a Fencepost store"));
        let after = fs::metadata(path).unwrap();
        assert_eq!((after.mode(), after.len()), (before.mode(), before.len()));
        assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
    }
    let device = Path::new("/dev/null");
    let before = fs::metadata(device).unwrap().mode();
    assert!(refused(device).contains("is not a Fencepost store"));
    assert_eq!(fs::metadata(device).unwrap().mode(), before);
}

#[test]
fn check_warns_of_a_file_that_others_may_open() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.redb");
    drop(redb::Database::create(&file).unwrap());
    for (mode, warns) in [(0o644, true), (0o620, true), (0o600, false), (0o700, false)] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let store = format!("file:{}", file.display());
        let output =
            bare_command().args(["check", "--store", &store]).stdout(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.contains("other users"), warns, "{mode:o}: {said}");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, mode, "it only looks");
    }
}

/// One that is there may be meant for whoever collects logs: it keeps the mode that it was given.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_audit_log_is_for_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (new, given) = (directory.path().join("new.log"), directory.path().join("given.log"));
    make(&given, 0o640, "");
    for (file, expected) in [(new, 0o600), (given, 0o640)] {
        let _gateway = Gateway::start(&["--store", "memory:", "--audit-log", file.to_str().unwrap()]).await;
        assert_eq!(mode(&file), expected);
    }
}

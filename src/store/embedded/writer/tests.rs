//! How much shares one commit, and what needs none.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use futures_util::FutureExt;
use redb::StorageBackend;
use redb::backends::{FileBackend, InMemoryBackend};
use tokio::time::Instant;

use super::super::file::create_if_missing;
use super::*;
use crate::clock::SystemClock;
use crate::lock::{LeaseToken, LockKey};
use crate::once::WorkResult;
use crate::store::embedded::EmbeddedStore;
use crate::store::{Check, Inspect, LockStore, Release, Request, StoreResult, Tombstone};

mod clocks;
mod tidying;

const MEBIBYTE: usize = 1024 * 1024;

#[tokio::test]
async fn a_batch_has_at_most_eight_mebibytes_of_results() {
    let settings = EmbeddedSettings::default();
    let opened = EmbeddedStore::without_thread(InMemoryBackend::new(), settings, Arc::new(SystemClock));
    let Ok((store, mut writer)) = opened else { panic!("no store") };
    let deadline = Instant::now() + Duration::from_secs(60);
    let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
    let requests = (0..20).map(|_| {
        let result = WorkResult { status: None, content_type: None, body: vec![0; MEBIBYTE].into() };
        let token = LeaseToken::generate().record_hash();
        Request::from(StoreResult { key: key.clone(), token, fence: None, keep: None, result })
    });
    let requests: Vec<_> = requests.chain([Request::from(Check)]).collect();
    let mut answers: Vec<_> = requests.iter().map(|request| store.run(request, deadline)).collect();
    let waiting = |answers: &mut Vec<_>| {
        answers.retain_mut(|answer: &mut crate::store::Replying<'_>| answer.now_or_never().is_none());
        answers.len()
    };
    assert_eq!(waiting(&mut answers), 21);
    for left in [13, 5, 0] {
        let batch = writer.commit_queued();
        let Some(next) = writer.answer(batch) else { panic!("it has stopped") };
        writer = next;
        assert_eq!(waiting(&mut answers), left);
    }
}

/// A result that says by its owner whether it is still in memory.
struct Owned {
    bytes: Vec<u8>,
    _in_memory: Arc<()>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[tokio::test]
async fn results_whose_callers_have_gone_take_no_more_memory_than_others() {
    let settings = EmbeddedSettings::default();
    let opened = EmbeddedStore::without_thread(InMemoryBackend::new(), settings, Arc::new(SystemClock));
    let Ok((store, writer)) = opened else { panic!("no store") };
    let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
    let in_memory = Arc::new(());
    // The writer is busy all the while, as with a disk that does not answer.
    for _ in 0..100 {
        let owned = Owned { bytes: vec![0; MEBIBYTE], _in_memory: in_memory.clone() };
        let result = WorkResult { status: None, content_type: None, body: bytes::Bytes::from_owner(owned) };
        let token = LeaseToken::generate().record_hash();
        let request = Request::from(StoreResult { key: key.clone(), token, fence: None, keep: None, result });
        let answer = store.run(&request, Instant::now() + Duration::from_millis(2)).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "nothing was done");
    }
    assert_eq!(Arc::strong_count(&in_memory) - 1, 64, "the queue has room for 64 MiB");
    // Others are served beside them.
    let request = Request::from(Check);
    let mut check = store.run(&request, Instant::now() + Duration::from_secs(60));
    assert!((&mut check).now_or_never().is_none());
    drop(writer);
    assert_eq!(Arc::strong_count(&in_memory) - 1, 0);
    let answer = check.await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "certainly nothing was done");
}

/// A disk that waits with each read until a look was answered, once it is told to.
#[derive(Debug, Default)]
struct Waiting {
    waits: AtomicBool,
    was_read_first: AtomicBool,
}

#[derive(Debug)]
struct SlowDisk(InMemoryBackend, Arc<Waiting>);

impl StorageBackend for SlowDisk {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let waits_until = Instant::now() + Duration::from_secs(5);
        while self.1.waits.load(Ordering::SeqCst) {
            if Instant::now() > waits_until {
                self.1.was_read_first.store(true, Ordering::SeqCst);
                break;
            }
            std::thread::yield_now();
        }
        self.0.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// A store on such a disk, whose last write found no room. So the next change has the file read again.
fn full() -> (Arc<Waiting>, EmbeddedStore, Writer) {
    let waiting = Arc::new(Waiting::default());
    let disk = SlowDisk(InMemoryBackend::new(), waiting.clone());
    let opened = EmbeddedStore::without_thread(disk, EmbeddedSettings::default(), Arc::new(SystemClock));
    let Ok((store, mut writer)) = opened else { panic!("no store") };
    writer.state.kept.fail(&StoreError::Unavailable("the disk is full".to_owned()), false);
    (waiting, store, writer)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_looks_are_answered_before_the_file_is_read() {
    let (waiting, store, mut writer) = full();
    let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
    let token = LeaseToken::generate().hash();
    let change = Request::from(Release { key: key.clone(), token, tombstone: Tombstone::Final });
    let look = Request::from(Inspect { key, token: None });
    waiting.waits.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut changed, mut told) = (store.run(&change, deadline), store.run(&look, deadline));
    assert!((&mut changed).now_or_never().is_none() && (&mut told).now_or_never().is_none());
    let work = tokio::task::spawn_blocking(move || {
        let batch = writer.commit_queued();
        writer.answer(batch).is_some()
    });
    let told = async {
        let told = told.await;
        waiting.waits.store(false, Ordering::SeqCst);
        told
    };
    let (works, told) = tokio::join!(work, told);
    assert!(told.is_ok(), "a look needs no room");
    assert!(!waiting.was_read_first.load(Ordering::SeqCst), "the look waited for the file");
    assert!(works.is_ok_and(|works| works) && changed.await.is_ok(), "there is room again");
}

/// No number and no line of the log would speak of a disk that hangs, where each client leaves before it is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_disk_hangs_does_not_seem_ready() {
    let (waiting, store, mut writer) = full();
    assert!(store.seems_ready().await);
    let check = Request::from(Check);
    let mut checked = store.run(&check, Instant::now() + Duration::from_secs(60));
    assert!((&mut checked).now_or_never().is_none());
    waiting.waits.store(true, Ordering::SeqCst);
    let work = tokio::task::spawn_blocking(move || {
        let batch = writer.commit_queued();
        writer.answer(batch)
    });
    let hangs = async {
        while store.seems_ready().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(60), hangs).await.is_ok(),
        "it seems ready all the while"
    );
    waiting.waits.store(false, Ordering::SeqCst);
    // With the writer, all would end.
    let Ok(Some(_writer)) = work.await else { panic!("it has stopped") };
    assert!(checked.await.is_ok(), "it works again");
    // An alarm wants one that lasts, and the next batch may hang as well.
    assert!(!store.seems_ready().await, "it seems ready at once");
}

/// A file that is moved away while it is synced, once that is told.
#[derive(Debug)]
struct Moving {
    backend: FileBackend,
    from: PathBuf,
    to: PathBuf,
    moves: Arc<AtomicBool>,
}

impl StorageBackend for Moving {
    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.backend.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.backend.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.moves.swap(false, Ordering::SeqCst) {
            fs::rename(&self.from, &self.to)?;
        }
        self.backend.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend.write(offset, data)
    }
}

/// Another gateway may have made a new file in its place, and granted the same lock.
#[tokio::test]
async fn what_was_written_to_a_file_that_was_moved_meanwhile_is_not_told_to_be_done() {
    let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
    let (from, to) = (directory.path().join("locks.redb"), directory.path().join("aside"));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&from);
    let Ok((file, Ok(backend))) = file.and_then(|file| Ok((file.try_clone()?, FileBackend::new(file))))
    else {
        panic!("no file")
    };
    let (path, back, moves) = (from.clone(), to.clone(), Arc::new(AtomicBool::new(false)));
    let disk = Disk::at(&path, Moving { backend, from, to, moves: moves.clone() }, file);
    let (settings, clock) = (EmbeddedSettings::default(), Arc::new(SystemClock));
    let Ok(Ok(state)) = disk.map(|disk| State::read(Arc::new(disk), &settings, &*clock)) else {
        panic!("no store")
    };
    let (store, mut writer) = EmbeddedStore::with(state, settings, clock);
    let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
    let change = Release { key, token: LeaseToken::generate().hash(), tombstone: Tombstone::Final };
    let (change, check, mut told) = (Request::from(change), Request::from(Check), Vec::new());
    moves.store(true, Ordering::SeqCst);
    for request in [&change, &check, &check] {
        let mut answer = store.run(request, Instant::now() + Duration::from_secs(60));
        assert!((&mut answer).now_or_never().is_none());
        let batch = writer.commit_queued();
        let Some(next) = writer.answer(batch) else { panic!("it has stopped") };
        writer = next;
        told.push(answer.await);
        assert!(told.len() != 2 || fs::rename(&back, &path).is_ok(), "it was not moved");
    }
    assert!(
        matches!(told.as_slice(), [Err(StoreError::Unknown(_)), Err(StoreError::Unavailable(_)), Ok(_)]),
        "{told:?}"
    );
}

/// redb writes what it has in memory.
#[tokio::test]
async fn a_file_that_was_changed_by_another_program_is_left_as_it_is_however_it_is_closed() {
    let ways: [fn(EmbeddedStore, Writer); 4] = [
        |store, mut writer| {
            drop(store.stop());
            let batch = writer.commit_queued();
            assert!(writer.answer(batch).is_none(), "it goes on");
        },
        |_, writer| drop(writer),
        |_, mut writer| {
            writer.state.kept.fail(&StoreError::Unavailable("the disk is full".to_owned()), false)
        },
        |_, writer| {
            let fails = move || {
                let _writer = writer;
                panic!("a fault of the program");
            };
            assert!(std::thread::spawn(fails).join().is_err());
        },
    ];
    for close in ways {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let (path, backup) = (directory.path().join("locks.redb"), directory.path().join("backup"));
        let (settings, clock) = (EmbeddedSettings::default(), Arc::new(SystemClock));
        assert!(create_if_missing(&path).is_ok());
        let Ok(Ok(state)) = Disk::open(&path).map(|disk| EmbeddedStore::read(disk, &settings, &*clock))
        else {
            panic!("no store")
        };
        let (store, mut writer) = EmbeddedStore::with(state, settings, clock);
        assert!(fs::copy(&path, &backup).is_ok());
        let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
        let change = Release { key, token: LeaseToken::generate().hash(), tombstone: Tombstone::Final };
        let change = Request::from(change);
        let mut answer = store.run(&change, Instant::now() + Duration::from_secs(60));
        assert!((&mut answer).now_or_never().is_none());
        let batch = writer.commit_queued();
        let Some(writer) = writer.answer(batch) else { panic!("it has stopped") };
        assert!(answer.await.is_ok() && fs::copy(&backup, &path).is_ok());
        close(store, writer);
        assert!(fs::read(&path).ok() == fs::read(&backup).ok(), "it was written to");
    }
}

/// Another try of the same request may have done something.
#[tokio::test]
async fn what_comes_too_late_is_not_said_to_have_done_nothing() {
    let (settings, clock) = (EmbeddedSettings::default(), Arc::new(SystemClock));
    let opened = EmbeddedStore::without_thread(InMemoryBackend::new(), settings, clock);
    let Ok((store, _writer)) = opened else { panic!("no store") };
    let late = store.run(&Request::from(Check), Instant::now()).await;
    assert_eq!(late, Err(StoreError::Unavailable("the store was too busy to begin in time".to_owned())));
}

//! What the writer does about its file where no change is asked for.

use super::*;

/// As if nothing had been looked after for so long.
fn rests(writer: &mut Writer, for_so_long: Duration) {
    let then = std::time::Instant::now().checked_sub(for_so_long);
    let Some(then) = then else { panic!("this machine has just been started") };
    (writer.tidied, writer.state.kept.tried) = (then, then);
}

/// An alarm would go on for as long as no client asks.
#[tokio::test]
async fn a_store_that_is_asked_nothing_finds_out_that_its_disk_has_room_again() {
    let (_, store, mut writer) = full();
    for (pause, is_ready) in [(2, false), (10, true)] {
        rests(&mut writer, Duration::from_secs(pause));
        let batch = writer.commit_queued();
        let Some(next) = writer.answer(batch) else { panic!("it has stopped") };
        writer = next;
        assert_eq!(store.seems_ready().await, is_ready, "after {pause} s");
    }
}

/// Another gateway may have served from a file in its place.
#[tokio::test]
async fn a_writer_that_stood_still_tells_nothing_of_a_file_that_was_moved_meanwhile() {
    let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
    let (path, aside) = (directory.path().join("locks.redb"), directory.path().join("aside"));
    let (settings, clock) = (EmbeddedSettings::default(), Arc::new(SystemClock));
    assert!(create_if_missing(&path).is_ok());
    let read = Disk::open(&path).map(|disk| EmbeddedStore::read(disk, &settings, &*clock));
    let Ok(Ok(state)) = read else { panic!("no store") };
    let (store, mut writer) = EmbeddedStore::with(state, settings, clock);
    let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
    let look = Request::from(Inspect { key, token: None });
    assert!(fs::rename(&path, &aside).is_ok());
    rests(&mut writer, Duration::from_secs(3));
    let mut told = store.run(&look, Instant::now() + Duration::from_secs(60));
    assert!((&mut told).now_or_never().is_none());
    let batch = writer.commit_queued();
    assert!(writer.answer(batch).is_some(), "it has stopped");
    let told = told.await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
}

//! What the writer does about clocks that are set, and about time that it missed.

use super::*;
use crate::lock::FencingToken;

/// The clocks of a machine, of which somebody sets the one on the wall. The other one stands, but while the machine sleeps.
struct SetClock(parking_lot::Mutex<Duration>, parking_lot::Mutex<Duration>);

impl Clock for SetClock {
    fn boot(&self) -> Duration {
        *self.1.lock()
    }

    fn wall(&self) -> Duration {
        *self.0.lock()
    }

    fn boot_id(&self) -> String {
        "a boot".to_owned()
    }
}

const START: Duration = Duration::from_secs(1_900_000_000);
const HOUR: Duration = Duration::from_secs(3600);
const MICROSECOND: Duration = Duration::from_micros(1);

/// A writer by a clock that can be set, and its store.
fn by_set_clock() -> (Arc<SetClock>, EmbeddedStore, Writer) {
    let clock = Arc::new(SetClock(START.into(), Duration::from_secs(100).into()));
    let settings = EmbeddedSettings::default();
    let opened = EmbeddedStore::without_thread(InMemoryBackend::new(), settings, clock.clone());
    let Ok((store, writer)) = opened else { panic!("no store") };
    (clock, store, writer)
}

/// As if it had stood still for some seconds, and the clock says this now.
fn stands_still<'a>(writer: &'a mut Writer, clock: &SetClock, wall: Duration) -> &'a mut Writer {
    let then = std::time::Instant::now().checked_sub(Duration::from_secs(3));
    let Some(then) = then else { panic!("this machine has just been started") };
    (writer.tidied, *clock.0.lock()) = (then, wall);
    writer
}

fn last_number(writer: &Writer) -> Duration {
    Duration::from_micros(writer.state.table.last_fence())
}

/// Over a reboot, the file has to know it.
#[test]
fn a_wall_clock_that_is_set_is_written_also_where_nothing_is_asked_for() {
    let (clock, _store, mut writer) = by_set_clock();
    let first = writer.state.kept.batch;
    // The clocks are read one after the other, so they never differ by exactly the same.
    for (wall, batches) in [(START + Duration::from_micros(900), 0), (START + HOUR, 1), (START - HOUR, 2)] {
        *clock.0.lock() = wall;
        for _ in 0..2 {
            let batch = writer.commit_queued();
            let Some(next) = writer.answer(batch) else { panic!("it has stopped") };
            writer = next;
        }
        assert_eq!(writer.state.kept.batch - first, batches, "{wall:?}");
    }
}

/// The file may have been away meanwhile, and another gateway may have granted locks by the clock.
#[test]
fn a_writer_that_stood_still_begins_a_run_of_numbers_at_the_clock() {
    let (clock, _store, mut writer) = by_set_clock();
    let _ = stands_still(&mut writer, &clock, START + HOUR).commit_queued();
    assert_eq!(last_number(&writer), START + HOUR - MICROSECOND);
}

/// Its other clock stands still meanwhile.
#[test]
fn a_writer_whose_machine_slept_begins_a_run_of_numbers_at_the_clock() {
    let (clock, _store, mut writer) = by_set_clock();
    *clock.0.lock() += HOUR;
    *clock.1.lock() += HOUR;
    let _ = writer.commit_queued();
    assert_eq!(last_number(&writer), START + HOUR - MICROSECOND);
}

/// The batch that was under way keeps its numbers, but none may go on from them.
#[test]
fn a_writer_that_stood_still_within_a_commit_begins_a_run_of_numbers_at_the_clock() {
    let (clock, _store, mut writer) = by_set_clock();
    let batch = writer.commit_queued();
    stands_still(&mut writer, &clock, START + HOUR);
    let Some(writer) = writer.answer(batch) else { panic!("it has stopped") };
    assert_eq!(last_number(&writer), START + HOUR - MICROSECOND);
}

/// No number would be left.
#[test]
fn a_writer_that_stood_still_begins_no_run_of_numbers_at_a_clock_past_the_largest() {
    let (clock, _store, mut writer) = by_set_clock();
    let before = last_number(&writer);
    let past = Duration::from_micros(FencingToken::MAX) + HOUR;
    let _ = stands_still(&mut writer, &clock, past).commit_queued();
    assert_eq!(last_number(&writer), before);
}

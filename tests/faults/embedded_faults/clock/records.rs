//! The same for records, which have two times: a worker's lease, and how long the record lives.

use fencepost::lock::Note;
use fencepost::once::{Begun, Keep, Place, RecordView, Storing, WorkResult, WorkState};
use fencepost::store::{Begin, LookAtRecord, StoreResult};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const WEEK_MS: u64 = 7 * 24 * 3_600_000;

/// Somebody with a token for a record of their own.
struct Worker(Caller);

impl Worker {
    fn new() -> Self {
        Self(Caller::new())
    }

    async fn begin(&self, machine: &Machine, ttl_ms: u64) -> Begun {
        let begin = Begin {
            key: self.0.key.clone(),
            token: self.0.token,
            attempt: Attempt::generate(),
            ttl: ttl(ttl_ms),
            keep: Keep::DEFAULT,
            note: Note::default(),
            fingerprint: None,
            may_take_over: true,
            only_confirms: false,
        };
        machine.store().call(begin, soon()).await.unwrap()
    }

    async fn grant(&self, machine: &Machine, ttl_ms: u64) -> Place {
        match self.begin(machine, ttl_ms).await {
            Begun::Granted(place) => place,
            other => panic!("not granted: {other:?}"),
        }
    }

    async fn look(&self, machine: &Machine) -> Option<RecordView> {
        machine.store().call(LookAtRecord { key: self.0.key.clone(), token: None }, soon()).await.unwrap()
    }

    async fn state(&self, machine: &Machine) -> Option<(WorkState, u64, u64)> {
        let view = self.look(machine).await?;
        Some((view.state, view.place.lease.left_ms, view.forgotten_in_ms))
    }

    async fn store(&self, machine: &Machine) {
        let (key, token) = (self.0.key.clone(), self.0.token);
        let result = WorkResult { status: None, content_type: None, body: "done".into() };
        let keep = Keep::new(DAY);
        let storing =
            machine.store().call(StoreResult { key, token, fence: None, keep, result }, soon()).await;
        assert!(matches!(storing, Ok(Storing::Stored { .. })), "{storing:?}");
    }
}

/// A minute ago, one was granted its work for ten minutes, and another had stored its result.
async fn one_works_and_one_is_done(machine: &mut Machine) -> (Worker, Worker) {
    let (working, done) = (Worker::new(), Worker::new());
    working.grant(machine, 10 * MINUTE_MS).await;
    done.grant(machine, MINUTE_MS).await;
    done.store(machine).await;
    machine.pass(MINUTE);
    (working, done)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_is_set_neither_ends_nor_lengthens_a_record() {
    for set in EITHER_WAY {
        for meanwhile in [Meanwhile::Open, Meanwhile::ClosedAndOpened] {
            let mut machine = Machine::new();
            let (working, done) = one_works_and_one_is_done(&mut machine).await;
            machine.set_while(set, meanwhile).await;
            let (left_ms, day_ms) = (9 * MINUTE_MS, 24 * 60 * MINUTE_MS);
            let case = format!("{set:?} {meanwhile:?}");
            let expected = Some((WorkState::Working, left_ms, left_ms + WEEK_MS));
            assert_eq!(working.state(&machine).await, expected, "{case}");
            assert_eq!(done.state(&machine).await, Some((WorkState::Done, 0, day_ms - MINUTE_MS)), "{case}");
            machine.pass(9 * MINUTE);
            assert_eq!(working.state(&machine).await, Some((WorkState::Lapsed, 0, WEEK_MS)), "{case}");
            machine.pass(7 * DAY - Duration::from_millis(1));
            assert_eq!(working.state(&machine).await, Some((WorkState::Lapsed, 0, 1)), "{case}");
            assert_eq!(done.look(&machine).await, None, "{case}");
            machine.pass(Duration::from_millis(1));
            assert_eq!(working.look(&machine).await, None, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_reboot_a_record_goes_on_with_what_the_wall_clock_leaves_of_it() {
    let mut machine = Machine::new();
    let (working, lapsed, done) = (Worker::new(), Worker::new(), Worker::new());
    let place = working.grant(&machine, 10 * MINUTE_MS).await;
    lapsed.grant(&machine, 2 * MINUTE_MS).await;
    done.grant(&machine, MINUTE_MS).await;
    done.store(&machine).await;
    machine.pass(MINUTE);
    // The second reboot finds in the file what the first one has left there.
    for (off, passed_ms) in [(MINUTE, 2 * MINUTE_MS), (MINUTE, 3 * MINUTE_MS)] {
        machine.reboot(off, RIGHT).await;
        let left_ms = 10 * MINUTE_MS - passed_ms;
        let expected = (WorkState::Working, left_ms, left_ms + WEEK_MS);
        assert_eq!(working.state(&machine).await, Some(expected));
        let forgotten_in_ms = WEEK_MS + 2 * MINUTE_MS - passed_ms;
        assert_eq!(lapsed.state(&machine).await, Some((WorkState::Lapsed, 0, forgotten_in_ms)));
        let Begun::Done(stored) = done.begin(&machine, MINUTE_MS).await else { panic!("it is lost") };
        assert_eq!((stored.age_ms, stored.kept_ms), (passed_ms, 24 * 60 * MINUTE_MS - passed_ms));
        assert_eq!(stored.result.body, "done");
    }
    let Begun::Continued(again) = working.begin(&machine, MINUTE_MS).await else { panic!("it is lost") };
    assert_eq!(again.lease.fencing_token, place.lease.fencing_token);
    assert_eq!(lapsed.grant(&machine, MINUTE_MS).await.earlier, 1);
}

/// It was slow until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_was_set_right_before_a_reboot_ends_no_lease_of_a_worker_and_no_result_early() {
    for set in [HOUR, 2 * DAY].map(Set::Forward) {
        let mut machine = Machine::new();
        let (working, done) = one_works_and_one_is_done(&mut machine).await;
        machine.set(set);
        machine.reboot(MINUTE, RIGHT).await;
        let left_ms = 8 * MINUTE_MS;
        let expected = (WorkState::Working, left_ms, left_ms + WEEK_MS);
        assert_eq!(working.state(&machine).await, Some(expected), "{set:?}");
        let day_ms = 24 * 60 * MINUTE_MS;
        assert_eq!(done.state(&machine).await, Some((WorkState::Done, 0, day_ms - 2 * MINUTE_MS)), "{set:?}");
    }
}

/// It is right again after the reboot.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_asks_for_while_the_clock_is_set_back_ends_no_lease_early_after_a_reboot() {
    for slow in [HOUR, 10 * DAY] {
        let mut machine = Machine::new();
        let working = Worker::new();
        working.grant(&machine, 10 * MINUTE_MS).await;
        machine.pass(MINUTE);
        machine.set(Set::Back(slow));
        let again = working.begin(&machine, MINUTE_MS).await;
        assert!(matches!(again, Begun::Continued(_)), "{again:?}");
        machine.reboot(MINUTE, Set::Forward(slow)).await;
        let expected = (WorkState::Working, 8 * MINUTE_MS, 8 * MINUTE_MS + WEEK_MS);
        assert_eq!(working.state(&machine).await, Some(expected), "{slow:?}");
    }
}

/// The clock of one boot is slow.
#[tokio::test(flavor = "multi_thread")]
async fn a_boot_with_a_slow_clock_ends_no_result_early_and_changes_no_time_at_which_it_was_stored() {
    for slow in [HOUR, 2 * DAY] {
        let mut machine = Machine::new();
        let (working, done) = one_works_and_one_is_done(&mut machine).await;
        machine.reboot(Duration::ZERO, Set::Back(slow)).await;
        assert_eq!(done.state(&machine).await, Some((WorkState::Done, 0, 24 * 60 * MINUTE_MS)), "{slow:?}");
        machine.reboot(MINUTE, Set::Forward(slow)).await;
        let expected = Some((WorkState::Working, 8 * MINUTE_MS, 8 * MINUTE_MS + WEEK_MS));
        assert_eq!(working.state(&machine).await, expected, "{slow:?}");
        let Begun::Done(stored) = done.begin(&machine, MINUTE_MS).await else { panic!("it is lost") };
        assert_eq!((stored.age_ms, stored.kept_ms), (2 * MINUTE_MS, (24 * 60 - 2) * MINUTE_MS), "{slow:?}");
    }
}

/// Only the wall clock can tell how long the machine was off. It may end a lease early. It ends no memory of a worker, and of no
/// result: the next one would be told that nobody was there.
#[tokio::test(flavor = "multi_thread")]
async fn over_a_reboot_no_wall_clock_ends_the_memory_of_a_worker_or_of_its_result() {
    for set in EITHER_WAY {
        let mut machine = Machine::new();
        let (working, lapsed, done) = (Worker::new(), Worker::new(), Worker::new());
        working.grant(&machine, 10 * MINUTE_MS).await;
        lapsed.grant(&machine, MINUTE_MS).await;
        done.grant(&machine, MINUTE_MS).await;
        done.store(&machine).await;
        machine.pass(4 * MINUTE);
        machine.reboot(MINUTE, set).await;
        let day_ms = 24 * 60 * MINUTE_MS;
        let is_far = matches!(set, Set::Back(by) | Set::Forward(by) if by > DAY);
        let (working_now, done_now) = (working.state(&machine).await.unwrap(), done.state(&machine).await);
        match set {
            Set::Back(_) => {
                assert_eq!(working_now, (WorkState::Working, 10 * MINUTE_MS, 10 * MINUTE_MS + WEEK_MS));
                assert_eq!(done_now, Some((WorkState::Done, 0, day_ms)));
            }
            Set::Forward(_) => {
                assert_eq!((working_now.0, working_now.1), (WorkState::Lapsed, 0));
                // What the clock alone has ended is remembered for as long again.
                if is_far {
                    assert_eq!(working_now.2, WEEK_MS);
                }
                let left_ms = day_ms - if is_far { 0 } else { 65 * MINUTE_MS };
                assert_eq!(done_now, Some((WorkState::Done, 0, left_ms)), "{set:?}");
            }
        }
        // A clock that was set back has given it its ttl again.
        machine.pass(MINUTE);
        assert_eq!(lapsed.grant(&machine, MINUTE_MS).await.earlier, 1, "{set:?}");
        // It ends all the same.
        machine.pass(8 * DAY);
        assert_eq!(working.look(&machine).await, None);
        assert_eq!(lapsed.look(&machine).await, None);
        assert_eq!(done.look(&machine).await, None);
    }
}

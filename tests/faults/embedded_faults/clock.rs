//! Clocks that are set, that begin anew with a reboot, or that go on while the machine sleeps.
//!
//! No test here waits: the store is given a clock that only the test moves, so what is left of a lease is told to the
//! millisecond.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost::lock::{
    Acquired, Attempt, FencingToken, Inspected, Lease, LeaseToken, LockKey, Refusal, Released, Renewed,
    Terms, TokenHash, Ttl,
};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{Inspect, LockRequest, LockStore, Release, Renew, Renewer, Tombstone, Try};
use tempfile::TempDir;
use tokio::time::Instant;

use kit::asking::LockStoreExt;
use kit::{Client, Gateway, PATIENCE, fresh_token};

mod records;
mod steps;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const MINUTE_MS: u64 = 60_000;

/// The clocks of one machine, which stand still unless they are told to go on.
#[derive(Clone, Debug)]
pub(super) struct TestClock(Arc<Mutex<Times>>);

#[derive(Debug)]
struct Times {
    boot: Duration,
    wall: Duration,
    boots: u32,
}

impl Clock for TestClock {
    fn boot(&self) -> Duration {
        self.0.lock().unwrap().boot
    }

    fn wall(&self) -> Duration {
        self.0.lock().unwrap().wall
    }

    fn boot_id(&self) -> String {
        format!("boot {}", self.0.lock().unwrap().boots)
    }
}

impl TestClock {
    pub(super) fn new() -> Self {
        let times =
            Times { boot: Duration::from_secs(10_000), wall: Duration::from_secs(1_900_000_000), boots: 1 };
        Self(Arc::new(Mutex::new(times)))
    }

    pub(super) fn sleep(&self, time: Duration) {
        let mut times = self.0.lock().unwrap();
        times.boot += time;
        times.wall += time;
    }

    pub(super) fn reboot(&self) {
        let mut times = self.0.lock().unwrap();
        times.boot = Duration::from_secs(7);
        times.boots += 1;
    }
}

/// How somebody sets the wall clock.
#[derive(Clone, Copy, Debug)]
enum Set {
    Back(Duration),
    Forward(Duration),
}

/// What happens to the store while the clock is set.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Open,
    ClosedAndOpened,
}

/// A machine with a store on its disk.
struct Machine {
    clock: TestClock,
    store: Option<EmbeddedStore>,
    file: PathBuf,
    _directory: TempDir,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = TestClock::new();
        let file = directory.path().join("locks.redb");
        let mut machine = Self { clock, store: None, file, _directory: directory };
        machine.open();
        machine
    }

    fn open(&mut self) {
        let clock = Arc::new(self.clock.clone());
        self.store = Some(EmbeddedStore::open(&self.file, EmbeddedSettings::default(), clock).unwrap());
    }

    async fn close(&mut self) {
        self.store.take().unwrap().close().await;
    }

    fn store(&self) -> &EmbeddedStore {
        self.store.as_ref().unwrap()
    }

    fn times(&self, change: impl FnOnce(&mut Times)) {
        change(&mut self.clock.0.lock().unwrap());
    }

    /// Time passes, on both clocks.
    fn pass(&self, time: Duration) {
        self.clock.sleep(time);
    }

    fn set(&self, set: Set) {
        self.times(|times| match set {
            Set::Back(by) => times.wall -= by,
            Set::Forward(by) => times.wall += by,
        });
    }

    async fn set_while(&mut self, set: Set, meanwhile: Meanwhile) {
        match meanwhile {
            Meanwhile::Open => self.set(set),
            Meanwhile::ClosedAndOpened => {
                self.close().await;
                self.set(set);
                self.open();
            }
        }
    }

    /// Off for `off` and on again, with a wall clock that does not quite know how long it was.
    async fn reboot(&mut self, off: Duration, set: Set) {
        self.close().await;
        self.clock.reboot();
        self.times(|times| times.wall += off);
        self.set(set);
        self.open();
    }
}

/// Somebody with a token for a key of their own.
struct Caller {
    key: LockKey,
    token: TokenHash,
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn ttl(ttl_ms: u64) -> Ttl {
    Ttl::from_ms(ttl_ms).unwrap()
}

impl Caller {
    fn new() -> Self {
        let key = LockKey::parse(fresh_token().as_bytes()).unwrap();
        Self { key, token: LeaseToken::generate().hash() }
    }

    async fn acquire(&self, machine: &Machine, ttl_ms: u64) -> Acquired<Refusal> {
        self.acquire_on(machine, ttl_ms, Terms::default()).await
    }

    async fn acquire_on(&self, machine: &Machine, ttl_ms: u64, terms: Terms) -> Acquired<Refusal> {
        let request = LockRequest {
            key: self.key.clone(),
            token: self.token,
            attempt: Attempt::generate(),
            ttl: ttl(ttl_ms),
            note: Default::default(),
            terms,
        };
        machine.store().call(Try(request.clone()), soon()).await.unwrap()
    }

    async fn grant(&self, machine: &Machine, ttl_ms: u64) -> Lease {
        match self.acquire(machine, ttl_ms).await {
            Acquired::Granted(lease) => lease,
            other => panic!("not granted: {other:?}"),
        }
    }

    async fn renew(&self, machine: &Machine, ttl_ms: u64) -> Lease {
        match machine
            .store()
            .call(
                Renew { key: self.key.clone(), token: self.token, ttl: ttl(ttl_ms), by: Renewer::Token },
                soon(),
            )
            .await
            .unwrap()
        {
            Renewed::Renewed(lease) => lease,
            other => panic!("not renewed: {other:?}"),
        }
    }

    async fn release(&self, machine: &Machine) -> Released {
        machine
            .store()
            .call(Release { key: self.key.clone(), token: self.token, tombstone: Tombstone::Final }, soon())
            .await
            .unwrap()
            .answer
    }

    /// What is left of the lease; 0 where nobody holds the lock.
    async fn left_ms(&self, machine: &Machine) -> u64 {
        match machine
            .store()
            .call(Inspect { key: self.key.clone(), token: Some(self.token) }, soon())
            .await
            .unwrap()
        {
            Inspected::Held { lease, yours, .. } => {
                assert_eq!(yours, Some(true));
                lease.left_ms
            }
            Inspected::Free { .. } => 0,
        }
    }
}

/// The number of a fresh grant.
async fn next_number(machine: &Machine) -> FencingToken {
    Caller::new().grant(machine, MINUTE_MS).await.fencing_token
}

/// Nobody has set the clock.
const RIGHT: Set = Set::Back(Duration::ZERO);
const EITHER_WAY: [Set; 4] = [
    Set::Back(HOUR),
    Set::Forward(HOUR),
    // Far beyond what any lease lasts.
    Set::Back(Duration::from_secs(20 * 365 * 86_400)),
    Set::Forward(Duration::from_secs(20 * 365 * 86_400)),
];

/// Within one boot nothing depends on the wall clock but what numbers begin with.
#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_is_set_neither_ends_nor_lengthens_a_lease() {
    for set in EITHER_WAY {
        for meanwhile in [Meanwhile::Open, Meanwhile::ClosedAndOpened] {
            let mut machine = Machine::new();
            let (holder, renewer, released) = (Caller::new(), Caller::new(), Caller::new());
            holder.grant(&machine, 10 * MINUTE_MS).await;
            renewer.grant(&machine, 10 * MINUTE_MS).await;
            released.grant(&machine, 10 * MINUTE_MS).await;
            machine.pass(MINUTE);
            assert_eq!(released.release(&machine).await, Released::Released);
            let told = renewer.renew(&machine, 5 * MINUTE_MS).await.left_ms;
            assert_eq!(told, 9 * MINUTE_MS);
            machine.set_while(set, meanwhile).await;

            let case = format!("{set:?} {meanwhile:?}");
            assert_eq!(holder.left_ms(&machine).await, 9 * MINUTE_MS, "{case}");
            assert_eq!(released.acquire(&machine, MINUTE_MS).await, Acquired::TokenReleased, "{case}");
            assert_eq!(renewer.renew(&machine, 20 * MINUTE_MS).await.left_ms, 20 * MINUTE_MS, "{case}");
            machine.pass(9 * MINUTE - Duration::from_millis(1));
            assert_eq!(holder.left_ms(&machine).await, 1, "{case}");
            machine.pass(Duration::from_millis(1));
            assert_eq!(holder.left_ms(&machine).await, 0, "{case}");
            machine.pass(11 * MINUTE);
            assert_eq!(renewer.left_ms(&machine).await, 0, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_number_goes_back_whatever_is_done_to_the_clocks() {
    let mut machine = Machine::new();
    let mut last = next_number(&machine).await;
    for set in [EITHER_WAY, EITHER_WAY].concat() {
        for step in 0..3 {
            match step {
                0 => machine.set_while(set, Meanwhile::Open).await,
                1 => machine.set_while(set, Meanwhile::ClosedAndOpened).await,
                _ => machine.reboot(MINUTE, set).await,
            }
            let next = next_number(&machine).await;
            assert!(next > last, "{next:?} after {last:?}: {set:?} in step {step}");
            last = next;
        }
    }
}

/// That of the test is some years ahead.
#[tokio::test(flavor = "multi_thread")]
async fn fencing_tokens_that_are_ahead_of_the_clock_are_warned_of() {
    let mut machine = Machine::new();
    let last = next_number(&machine).await;
    machine.close().await;
    let gateway = Gateway::on_file(&machine.file, &[]).await;
    gateway.logs("it warns", |line| line.contains("fencing tokens are ahead of it")).await;
    let granted = Client::new(gateway.address).put("/locks/next").send().await;
    assert!(granted.json()["fencing_token"].as_u64().unwrap() > last.get(), "{}", granted.json());
    let empty = Gateway::embedded(&[]).await;
    Client::new(empty.address).put("/locks/next").send().await;
    assert!(!empty.log().iter().any(|line| line.contains("are ahead of")), "{:#?}", empty.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_reboot_a_lease_goes_on_with_what_the_wall_clock_leaves_of_it() {
    let mut machine = Machine::new();
    let (short, long, released) = (Caller::new(), Caller::new(), Caller::new());
    short.grant(&machine, 3 * MINUTE_MS).await;
    let number = long.grant(&machine, 10 * MINUTE_MS).await.fencing_token;
    machine.pass(MINUTE);
    assert_eq!(released.release(&machine).await, Released::NotHeld);
    machine.reboot(MINUTE, RIGHT).await;
    assert_eq!((short.left_ms(&machine).await, long.left_ms(&machine).await), (MINUTE_MS, 8 * MINUTE_MS));
    assert_eq!(released.acquire(&machine, MINUTE_MS).await, Acquired::TokenReleased);
    machine.pass(MINUTE);
    assert_eq!((short.left_ms(&machine).await, long.left_ms(&machine).await), (0, 7 * MINUTE_MS));
    let renewed = long.renew(&machine, 10 * MINUTE_MS).await;
    assert_eq!((renewed.fencing_token, renewed.left_ms), (number, 10 * MINUTE_MS));
}

/// Nothing but the wall clock can tell how long the machine was off, so it may end a lease early. It may not leave one
/// more than was ever left of it.
#[tokio::test(flavor = "multi_thread")]
async fn over_a_reboot_a_wall_clock_that_is_set_leaves_no_lease_more_than_its_ttl() {
    for set in EITHER_WAY {
        let mut machine = Machine::new();
        let holder = Caller::new();
        holder.grant(&machine, 10 * MINUTE_MS).await;
        machine.pass(4 * MINUTE);
        machine.reboot(MINUTE, set).await;
        let left_ms = holder.left_ms(&machine).await;
        match set {
            Set::Back(_) => assert_eq!(left_ms, 10 * MINUTE_MS),
            Set::Forward(_) => assert_eq!(left_ms, 0),
        }
        machine.pass(10 * MINUTE);
        assert_eq!(holder.left_ms(&machine).await, 0, "{set:?}");
    }
}

/// What an earlier reboot has left does not: either of both clocks may have been wrong.
#[tokio::test(flavor = "multi_thread")]
async fn the_ttl_of_the_last_renewal_bounds_what_a_later_reboot_leaves() {
    let mut machine = Machine::new();
    let (renewed, restored) = (Caller::new(), Caller::new());
    renewed.grant(&machine, 60 * MINUTE_MS).await;
    machine.pass(59 * MINUTE);
    assert_eq!(renewed.renew(&machine, 2 * MINUTE_MS).await.left_ms, 2 * MINUTE_MS);
    restored.grant(&machine, 10 * MINUTE_MS).await;
    machine.pass(MINUTE);
    machine.reboot(Duration::ZERO, Set::Back(HOUR)).await;
    assert_eq!(renewed.left_ms(&machine).await, 2 * MINUTE_MS);
    assert_eq!(restored.left_ms(&machine).await, 10 * MINUTE_MS);

    let mut machine = Machine::new();
    restored.grant(&machine, 10 * MINUTE_MS).await;
    machine.pass(MINUTE);
    machine.reboot(6 * MINUTE, RIGHT).await;
    assert_eq!(restored.left_ms(&machine).await, 3 * MINUTE_MS);
    machine.pass(MINUTE);
    machine.reboot(Duration::ZERO, Set::Back(HOUR)).await;
    assert_eq!(restored.left_ms(&machine).await, 10 * MINUTE_MS);
}

/// In suspend the clock that counts since boot goes on, and the wall clock is put right only later.
#[tokio::test(flavor = "multi_thread")]
async fn leases_are_over_after_a_suspend() {
    for meanwhile in [Meanwhile::Open, Meanwhile::ClosedAndOpened] {
        let mut machine = Machine::new();
        let (over, going_on) = (Caller::new(), Caller::new());
        let first = over.grant(&machine, 30 * MINUTE_MS).await.fencing_token;
        going_on.grant(&machine, 90 * MINUTE_MS).await;
        machine.times(|times| times.boot += HOUR);
        machine.set_while(RIGHT, meanwhile).await;
        assert_eq!(over.left_ms(&machine).await, 0, "{meanwhile:?}");
        let late = machine
            .store()
            .call(
                Renew { key: over.key.clone(), token: over.token, ttl: ttl(MINUTE_MS), by: Renewer::Token },
                soon(),
            )
            .await;
        assert_eq!(late, Ok(Renewed::NotHeld), "{meanwhile:?}");
        assert_eq!(going_on.left_ms(&machine).await, 30 * MINUTE_MS, "{meanwhile:?}");
        let successor = Caller { key: over.key.clone(), ..Caller::new() };
        assert!(successor.grant(&machine, MINUTE_MS).await.fencing_token > first, "{meanwhile:?}");
    }
}

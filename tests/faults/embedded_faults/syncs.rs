//! A disk that fails to sync and forgets what it did not: nothing that was told is lost, and no restart is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use fencepost::lock::{
    Acquired, Attempt, Inspected, LeaseToken, LockKey, Reach, Refusal, Renewed, Terms, TokenHash, Ttl,
};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{Inspect, List, LockRequest, Release, Renew, Renewer, StoreError, Tombstone, Try};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use kit::asking::LockStoreExt;
use kit::{PATIENCE, seed};
use machine::Machine;

mod machine;
mod records;

const KEYS: usize = 6;
const STEPS: usize = 24;
const TTLS_MS: [u64; 3] = [600_000, 1_800_000, 3_600_000];

/// Who holds a lock, and for how long at least; `None` where nobody does.
type Fate = Option<(TokenHash, u64)>;

/// A store on such a machine, and all that was told of it.
struct History {
    machine: Machine,
    store: Option<EmbeddedStore>,
    /// What may be the case for each key. Further ones than the first are changes that were not answered.
    possible: Vec<Vec<Fate>>,
    /// The numbers of grants that were told.
    numbers: BTreeMap<TokenHash, u64>,
    /// Tokens that were told to be released.
    released: BTreeSet<(usize, [u8; 32])>,
    choices: StdRng,
    seen_in_doubt: usize,
}

/// How a run goes on after the syncs that fail.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The power is cut in the end.
    Cut,
    /// The process is killed somewhere, and the next one begins with what the cache has. The power is cut in the end.
    KilledAt(usize),
    /// The power is cut somewhere, too.
    CutAt(usize),
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn key(number: usize) -> LockKey {
    LockKey::parse(format!("k{number}").as_bytes()).unwrap()
}

impl History {
    fn new(failing: Range<usize>, forgets: bool, seed: u64) -> Self {
        let machine = Machine::new(forgets, seed);
        let mut history = Self {
            machine,
            store: None,
            possible: vec![vec![None]; KEYS],
            numbers: BTreeMap::new(),
            released: BTreeSet::new(),
            choices: StdRng::seed_from_u64(seed),
            seen_in_doubt: 0,
        };
        // A file gets its name only once it is a store, so none is seen that was half made.
        history.start();
        history.machine.fail(failing);
        history.start();
        history
    }

    /// Starts a process, as often as it takes where syncs fail.
    fn start(&mut self) {
        let mark_ttl = Duration::from_secs(3_600);
        let settings = EmbeddedSettings { mark_ttl, ..EmbeddedSettings::default() };
        self.store = None;
        while self.store.is_none() {
            let is_sound = self.machine.is_sound();
            match self.machine.start(settings.clone()) {
                Ok(store) => self.store = Some(store),
                Err(error) => assert!(!is_sound, "{error}"),
            }
        }
    }

    fn store(&self) -> &EmbeddedStore {
        self.store.as_ref().unwrap()
    }

    async fn acquire(
        &self,
        number: usize,
        token: TokenHash,
        ttl_ms: u64,
    ) -> Result<Acquired<Refusal>, StoreError> {
        let request = LockRequest {
            key: key(number),
            token,
            attempt: Attempt::generate(),
            ttl: Ttl::from_ms(ttl_ms).unwrap(),
            note: Default::default(),
            terms: Terms::default(),
        };
        self.store().call(Try(request.clone()), soon()).await
    }

    /// Changes one lock at random, and notes what was told.
    async fn step(&mut self) {
        let number = self.choices.random_range(0..KEYS);
        let ttl_ms = TTLS_MS[self.choices.random_range(0..TTLS_MS.len())];
        let is_doubtful = self.possible[number].len() > 1;
        let holder = self.possible[number].iter().rev().find_map(|fate| *fate);
        let was_sound = self.machine.is_sound();
        let (told, then) = match holder {
            None => {
                let token = LeaseToken::generate().hash();
                let answer = self.acquire(number, token, ttl_ms).await;
                if let Ok(Acquired::Granted(lease)) = &answer {
                    let number = lease.fencing_token.get();
                    assert!(self.numbers.values().all(|told| *told < number), "{number} came before");
                    self.numbers.insert(token, number);
                }
                (answer.map(|answer| matches!(answer, Acquired::Granted(_))), Some((token, ttl_ms)))
            }
            Some((token, least_ms)) if !is_doubtful && self.choices.random_bool(0.5) => {
                let ttl = Ttl::from_ms(ttl_ms).unwrap();
                let answer = self
                    .store()
                    .call(Renew { key: key(number), token, ttl, by: Renewer::Token }, soon())
                    .await;
                let told = answer.map(|answer| matches!(answer, Renewed::Renewed(_)));
                (told, Some((token, least_ms.max(ttl_ms))))
            }
            Some((token, _)) => {
                let answer = self
                    .store()
                    .call(Release { key: key(number), token, tombstone: Tombstone::Final }, soon())
                    .await;
                if answer.is_ok() {
                    self.released.insert((number, *token.as_bytes()));
                }
                (answer.map(|_| true), None)
            }
        };
        match told {
            Ok(true) => self.possible[number] = vec![then],
            Ok(false) => panic!("another answer than expected for {number}: {:?}", self.possible[number]),
            Err(StoreError::Unknown(_)) => self.possible[number].push(then),
            Err(StoreError::Unavailable(_)) => {}
        }
        // Nothing but a sync that fails is a reason, and what comes after the last of them is served.
        assert!(told.is_ok() || !was_sound, "{told:?}");
    }

    /// Looks at each lock, which is answered unless it is not known what the disk has, and holds that against what was told.
    async fn look(&mut self) {
        for number in 0..KEYS {
            let was_sound = self.machine.is_sound();
            let seen = match self.store().call(Inspect { key: key(number), token: None }, soon()).await {
                Err(StoreError::Unavailable(_)) if !was_sound => continue,
                seen => seen.unwrap(),
            };
            let candidates = self.possible[number].clone();
            let mut found = None;
            for (at, fate) in candidates.iter().enumerate() {
                if self.is_so(number, &seen, *fate).await {
                    found = Some(at);
                }
            }
            let found = found.unwrap_or_else(|| panic!("{number} is {seen:?}, and was told {candidates:?}"));
            if candidates.len() > 1 {
                self.seen_in_doubt += 1;
            }
            // Once it was seen to be so, it was told.
            self.possible[number] = vec![candidates[found]];
        }
    }

    async fn is_so(&self, number: usize, seen: &Inspected, fate: Fate) -> bool {
        let (Inspected::Held { lease, .. }, Some((token, least_ms))) = (seen, fate) else {
            return matches!(seen, Inspected::Free { .. }) && fate.is_none();
        };
        if lease.left_ms + 60_000 < least_ms
            || self.numbers.get(&token).is_some_and(|told| *told != lease.fencing_token.get())
        {
            return false;
        }
        match self.store().call(Inspect { key: key(number), token: Some(token) }, soon()).await {
            Ok(Inspected::Held { yours, .. }) => yours == Some(true),
            Ok(Inspected::Free { .. }) => false,
            // To be told that it is theirs would have to be written.
            Err(_) => true,
        }
    }

    /// After a power cut all is as it was told.
    async fn ends_well(&mut self) {
        self.machine.cut_power();
        self.start();
        self.look().await;
        for (number, token) in self.released.clone() {
            let answer = self.acquire(number, TokenHash::from_bytes(token), 1_000).await;
            assert!(matches!(answer, Ok(Acquired::TokenReleased)), "{number}: {answer:?}");
        }
        for number in 0..KEYS {
            if self.possible[number] == [None] {
                let token = LeaseToken::generate().hash();
                let answer = self.acquire(number, token, 600_000).await;
                let Ok(Acquired::Granted(lease)) = answer else { panic!("{answer:?}") };
                assert!(self.numbers.values().all(|told| *told < lease.fencing_token.get()));
            }
        }
    }
}

/// Returns how many syncs there were, and how often something in doubt was looked at.
async fn run(failing: Range<usize>, forgets: bool, then: Then, seed: u64) -> (usize, usize) {
    let mut history = History::new(failing, forgets, seed);
    for step in 0..STEPS {
        match then {
            Then::KilledAt(at) if at == step => {
                history.machine.kill();
                history.start();
            }
            Then::CutAt(at) if at == step => {
                history.machine.cut_power();
                history.start();
            }
            _ => {}
        }
        history.step().await;
        history.look().await;
    }
    let syncs = history.machine.syncs();
    history.ends_well().await;
    (syncs, history.seen_in_doubt)
}

/// A disk that works again may turn out to have the renewal. So nothing is told of the lock before.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_may_have_been_renewed_is_not_told_to_be_over() {
    let history = History::new(0..0, false, seed());
    let (token, look) = (LeaseToken::generate().hash(), Inspect { key: key(0), token: None });
    let granted = history.acquire(0, token, 600_000).await.unwrap();
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    history.machine.fail(0..usize::MAX);
    let renew = Renew { key: key(0), token, ttl: Ttl::from_ms(3_600_000).unwrap(), by: Renewer::Token };
    let renewed = history.store().call(renew, soon()).await;
    assert!(matches!(renewed, Err(StoreError::Unknown(_))), "{renewed:?}");
    history.machine.sleep(Duration::from_secs(660));
    let seen = history.store().call(look.clone(), soon()).await;
    assert!(matches!(seen, Err(StoreError::Unavailable(_))), "{seen:?}");
    let list = List { reach: Reach::all(""), cursor: None, limit: 10 };
    let listed = history.store().call(list, soon()).await;
    assert!(matches!(listed, Err(StoreError::Unavailable(_))), "{listed:?}");
    history.machine.fail(0..0);
    let seen = history.store().call(look, soon()).await.unwrap();
    assert!(history.is_so(0, &seen, Some((token, 2_940_000))).await, "{seen:?}");
}

/// Numbers begin anew at the clock, and the file would have none left for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_not_opened_anew_while_the_clock_is_past_the_largest_number() {
    let history = History::new(0..0, false, seed());
    history.machine.sleep(Duration::from_secs(300 * 366 * 86_400));
    history.machine.fail(0..1);
    let token = LeaseToken::generate().hash();
    let failed = history.acquire(0, token, 600_000).await;
    assert!(matches!(failed, Err(StoreError::Unknown(_))), "{failed:?}");
    let refused = history.acquire(0, token, 600_000).await;
    let Err(StoreError::Unavailable(reason)) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("the clock of this machine is wrong"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_syncs_fail_nothing_that_was_told_is_lost() {
    let seed = seed();
    let (syncs, _) = run(0..0, false, Then::Cut, seed).await;
    assert!(syncs > STEPS, "{syncs}");
    let (mut choices, mut in_doubt) = (StdRng::seed_from_u64(seed), 0);
    for first in 0..syncs {
        for forgets in [false, true] {
            let failing = first..first + [1, 1, 2, 3, 7][choices.random_range(0..5)];
            let at = choices.random_range(0..STEPS);
            for then in [Then::Cut, Then::KilledAt(at), Then::CutAt(at)] {
                println!("{failing:?} forgets {forgets} {then:?}");
                in_doubt += run(failing.clone(), forgets, then, seed).await.1;
            }
        }
    }
    assert!(in_doubt > 0, "no answer was ever in doubt");
}

//! The same for records: begins, results and what is remembered of those who left.

use std::ops::Range;

use bytes::Bytes;
use fencepost::lock::{Attempt, FencingToken, LeaseToken, LockKey, Note, TokenHash, Ttl};
use fencepost::once::{Begun, BrokenRecord, GivenUp, Keep, Storing, WorkResult, WorkState};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::{Begin, BreakRecord, Call, GiveUp, LookAtRecord, StoreError, StoreResult, Tombstone};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::machine::Machine;
use super::{Then, key, soon};
use kit::asking::LockStoreExt;
use kit::seed;

const KEYS: usize = 4;
const STEPS: usize = 24;
/// A result takes several pages of the file.
const BODY_BYTES: usize = 10_000;

/// What is the case for a record.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    /// There is none.
    None,
    /// A worker is at it, after so many others. Its number is known if it was told.
    Working(TokenHash, Option<FencingToken>, u64),
    /// It was left, and so many may have done the work.
    Left(u64),
    /// This result is stored.
    Done(FencingToken, Bytes, u64),
}

/// A store on such a machine, and all that was told of it.
struct History {
    machine: Machine,
    store: Option<EmbeddedStore>,
    /// What may be the case for each key. A further one than the first is a change that was not answered.
    possible: Vec<Vec<Fate>>,
    choices: StdRng,
    /// How many results were told to be stored.
    stored: usize,
}

impl History {
    fn new(failing: Range<usize>, forgets: bool, seed: u64) -> Self {
        let (machine, choices) = (Machine::new(forgets, seed), StdRng::seed_from_u64(seed));
        let possible = vec![vec![Fate::None]; KEYS];
        let mut history = Self { machine, store: None, possible, choices, stored: 0 };
        history.start();
        history.machine.fail(failing);
        history.start();
        history
    }

    /// Starts a process, as often as it takes where syncs fail.
    fn start(&mut self) {
        self.store = None;
        while self.store.is_none() {
            let is_sound = self.machine.is_sound();
            match self.machine.start(EmbeddedSettings::default()) {
                Ok(store) => self.store = Some(store),
                Err(error) => assert!(!is_sound, "{error}"),
            }
        }
    }

    async fn ask<C: Call>(&self, call: C) -> Result<C::Answer, StoreError> {
        self.store.as_ref().unwrap().call(call, soon()).await
    }

    fn begin(key: LockKey, token: TokenHash, only_confirms: bool) -> Begin {
        Begin {
            key,
            token,
            attempt: Attempt::generate(),
            ttl: Ttl::from_ms(3_600_000).unwrap(),
            keep: Keep::DEFAULT,
            note: Note::default(),
            fingerprint: None,
            may_take_over: true,
            only_confirms,
        }
    }

    /// Changes one record at random, and notes what was told.
    async fn step(&mut self) {
        let number = self.choices.random_range(0..KEYS);
        let key = key(number);
        if self.possible[number].len() > 1 {
            return;
        }
        let was_sound = self.machine.is_sound();
        let (told, then) = match self.possible[number][0].clone() {
            Fate::None | Fate::Left(_) => {
                let earlier = if let Fate::Left(earlier) = self.possible[number][0] { earlier } else { 0 };
                let token = LeaseToken::generate().record_hash();
                let begun = self.ask(Self::begin(key, token, false)).await;
                let told = begun.as_ref().ok().map(|begun| match begun {
                    Begun::Granted(place) if place.earlier == earlier => place.lease.fencing_token,
                    other => panic!("after {earlier}: {other:?}"),
                });
                (begun.map(drop), Fate::Working(token, told, earlier))
            }
            Fate::Working(token, fence, earlier) if self.choices.random_bool(0.6) => {
                let body: Vec<u8> = (0..BODY_BYTES).map(|_| self.choices.random()).collect();
                let body = Bytes::from(body);
                let result = WorkResult { status: None, content_type: None, body: body.clone() };
                let stored = self.ask(StoreResult { key, token, fence, keep: None, result }).await;
                if let Ok(other) = &stored {
                    assert!(matches!(other, Storing::Stored { .. }), "{other:?}");
                    self.stored += 1;
                }
                (stored.map(drop), Fate::Done(fence.unwrap(), body, earlier))
            }
            Fate::Working(token, _, earlier) => {
                let tombstone = Tombstone::Final;
                let given_up = self.ask(GiveUp { key, token, is_clean: false, tombstone }).await;
                assert!(matches!(given_up, Ok(GivenUp::GivenUp) | Err(_)), "{given_up:?}");
                (given_up.map(drop), Fate::Left(earlier + 1))
            }
            Fate::Done(fence, _, earlier) => {
                let is_clean = self.choices.random_bool(0.5);
                let broken = self.ask(BreakRecord { key, fence, is_clean }).await;
                assert!(matches!(broken, Ok(BrokenRecord::Broken) | Err(_)), "{broken:?}");
                (broken.map(drop), if is_clean { Fate::None } else { Fate::Left(earlier + 1) })
            }
        };
        match &told {
            Ok(()) => self.possible[number] = vec![then],
            Err(StoreError::Unknown(_)) => self.possible[number].push(then),
            Err(StoreError::Unavailable(_)) => {}
        }
        assert!(told.is_ok() || !was_sound, "{told:?}");
    }

    /// Looks at each record, which is answered unless it is not known what the disk has, and holds that against what was told.
    async fn look(&mut self) {
        for number in 0..KEYS {
            let stranger = LeaseToken::generate().record_hash();
            // It changes nothing, but it is refused for as long as it is not known what the file holds.
            let told = self.ask(Self::begin(key(number), stranger, true)).await;
            let was_sound = self.machine.is_sound();
            let view = match self.ask(LookAtRecord { key: key(number), token: None }).await {
                Err(StoreError::Unavailable(_)) if !was_sound => continue,
                view => view.unwrap(),
            };
            let candidates = self.possible[number].clone();
            let is_so = |fate: &Fate| match (fate, &view) {
                (Fate::None, None) => true,
                (Fate::Working(_, fence, earlier), Some(view)) => {
                    let place = &view.place;
                    view.state == WorkState::Working
                        && place.earlier == *earlier
                        && fence.is_none_or(|fence| fence == place.lease.fencing_token)
                }
                (Fate::Left(earlier), Some(view)) => {
                    view.state == WorkState::Lapsed && view.place.earlier == *earlier
                }
                (Fate::Done(fence, body, _), Some(view)) => {
                    let is_body = match &told {
                        Ok(Begun::Done(stored)) => {
                            stored.result.body == *body && stored.fencing_token == *fence
                        }
                        Err(_) => true,
                        Ok(_) => false,
                    };
                    view.state == WorkState::Done && is_body
                }
                _ => false,
            };
            let found = candidates.iter().rposition(is_so);
            let found =
                found.unwrap_or_else(|| panic!("{number} is {view:?} and {told:?}, not {candidates:?}"));
            // Once it was seen to be so, it was told.
            self.possible[number] = vec![candidates[found].clone()];
            if let (Fate::Working(_, fence, _), Some(view)) = (&mut self.possible[number][0], &view) {
                *fence = Some(view.place.lease.fencing_token);
            }
        }
    }
}

/// Returns how many syncs there were, and how many results were told to be stored.
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
    history.machine.cut_power();
    history.start();
    history.look().await;
    (syncs, history.stored)
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_syncs_fail_no_result_and_no_crash_that_was_told_is_forgotten() {
    let (mut seed, mut syncs) = (seed(), 0);
    // In some histories hardly anything is stored.
    for others in 0.. {
        assert!(others < 20, "in none of these is much stored");
        let (synced, stored) = run(0..0, false, Then::Cut, seed).await;
        syncs = synced;
        if stored > 3 {
            break;
        }
        seed = seed.wrapping_add(1);
    }
    assert!(syncs > STEPS, "{syncs}");
    let mut choices = StdRng::seed_from_u64(seed);
    for first in 0..syncs {
        for forgets in [false, true] {
            let failing = first..first + [1, 1, 2, 3, 7][choices.random_range(0..5)];
            let at = choices.random_range(0..STEPS);
            for then in [Then::Cut, Then::KilledAt(at), Then::CutAt(at)] {
                println!("{failing:?} forgets {forgets} {then:?}");
                run(failing.clone(), forgets, then, seed).await;
            }
        }
    }
}

//! The embedded store and the scripts of Redis give the same answers to the same requests: random sequences go to both.
//! `TEST_SEED=…` plays them again.

use std::fmt::Debug;
use std::sync::LazyLock;

use kit::seed;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use regex::{Captures, Regex};

use super::*;

const SEQUENCES: u64 = 1_000;
const STEPS: usize = 25;
/// All lengths of time are multiples of this. What passes by itself is much less.
const UNIT_MS: u64 = 1_000_000;

/// One thing that somebody asks for; the number says whom.
#[derive(Clone, Debug)]
enum Step {
    Begin {
        token: usize,
        print: Option<&'static str>,
        may_take_over: bool,
        only_confirms: bool,
        copies: usize,
        is_late: bool,
    },
    Undo {
        token: usize,
    },
    Store {
        token: usize,
        grant: Option<usize>,
        body: &'static str,
    },
    Renew {
        token: usize,
        grant: Option<usize>,
        units: u64,
    },
    GiveUp {
        token: usize,
        is_clean: bool,
        tombstone: Tombstone,
    },
    Break {
        grant: usize,
        is_clean: bool,
    },
    Look {
        token: Option<usize>,
    },
    Pass {
        units: u64,
    },
}

impl Step {
    fn draw(random: &mut StdRng) -> Self {
        let token = random.random_range(0..3);
        // Most do not say it; of those that do, some are wrong.
        let grant = random.random_bool(0.3).then(|| random.random_range(0..3));
        let is_clean = random.random_bool(0.5);
        match random.random_range(0..20) {
            0..6 => Self::Begin {
                token,
                print: *[None, None, None, Some("a"), Some("b")].choose(random).unwrap(),
                may_take_over: random.random_bool(0.8),
                only_confirms: random.random_bool(0.1),
                copies: if random.random_bool(0.2) { 2 } else { 1 },
                is_late: random.random_bool(0.2),
            },
            6..8 => Self::Undo { token },
            8..11 => {
                Self::Store { token, grant, body: ["", "done", "done", "other"].choose(random).unwrap() }
            }
            11..13 => Self::Renew { token, grant, units: random.random_range(1..9) },
            13..15 => Self::GiveUp {
                token,
                is_clean,
                tombstone: if random.random_bool(0.3) { Tombstone::Final } else { Tombstone::None },
            },
            15 => Self::Break { grant: random.random_range(0..2), is_clean: random.random_bool(0.3) },
            16..18 => Self::Look { token: random.random_bool(0.5).then_some(token) },
            _ => Self::Pass { units: random.random_range(1..9) },
        }
    }
}

/// One of the stores, with what it has told.
struct Side<'a> {
    people: [Person<'a>; 3],
    /// The last attempts of each, and whether they were undone.
    attempts: [(Attempt, bool); 3],
    /// The numbers of its grants, as they came to be known.
    numbers: Vec<String>,
    said: Vec<String>,
}

impl<'a> Side<'a> {
    fn new(scene: &'a AnyStore) -> Self {
        let person = || Person::new(scene, "k").keeping(24 * HOUR);
        let attempts = std::array::from_fn(|_| (Attempt::generate(), false));
        Self { people: [person(), person(), person()], attempts, numbers: Vec::new(), said: Vec::new() }
    }

    /// A number that was told, counted from the last.
    fn number(&self, from_last: usize) -> FencingToken {
        let known = self.numbers.iter().rev().nth(from_last).and_then(|number| number.parse().ok());
        FencingToken::new(known.unwrap_or(1)).unwrap()
    }

    async fn take(&mut self, step: &Step) {
        let number = |side: &Self, grant: &Option<usize>| grant.map(|grant| side.number(grant));
        match step {
            Step::Begin { token, print, may_take_over, only_confirms, copies, is_late } => {
                // One late copy of what was undone may come. A gateway voids whatever it sends twice.
                let (last, was_undone) = self.attempts[*token];
                let attempt = if *is_late && was_undone { last } else { Attempt::generate() };
                self.attempts[*token] = (attempt, false);
                let person = Person {
                    fingerprint: print.and_then(super::print),
                    may_take_over: *may_take_over,
                    only_confirms: *only_confirms,
                    ..self.people[*token].clone()
                };
                for _ in 0..*copies {
                    let begun = person.begin_as(attempt, 3 * UNIT_MS).await;
                    self.tell(&begun);
                }
            }
            Step::Undo { token } => {
                self.attempts[*token].1 = true;
                let undone = self.people[*token].undo(self.attempts[*token].0).await;
                self.tell(&undone);
            }
            Step::Store { token, grant, body } => {
                let storing = self.people[*token].store_for(number(self, grant), None, text(body)).await;
                self.tell(&storing);
            }
            Step::Renew { token, grant, units } => {
                let renewed = self.people[*token].renew_for(number(self, grant), units * UNIT_MS).await;
                self.tell(&renewed);
            }
            Step::GiveUp { token, is_clean, tombstone } => {
                let given_up = self.people[*token].give_up_leaving(*is_clean, *tombstone).await;
                self.tell(&given_up);
            }
            Step::Break { grant, is_clean } => {
                let broken = self.people[0].break_record(self.number(*grant), *is_clean).await;
                self.tell(&broken);
            }
            Step::Look { token } => {
                let view = match token {
                    Some(token) => self.people[*token].look_as_worker().await,
                    None => self.people[0].look().await,
                };
                self.tell(&view);
            }
            Step::Pass { units } => {
                self.people[0].scene.pass(Duration::from_millis(units * UNIT_MS)).await;
                self.said.push(String::new());
            }
        }
    }

    /// Writes down what was said, but for what differs from store to store.
    fn tell(&mut self, answer: &impl Debug) {
        static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"FencingToken\((\d+)\)").unwrap());
        static LENGTH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(left|kept|age)_ms: (\d+)").unwrap());
        static OTHER: LazyLock<Regex> = LazyLock::new(|| {
            // A store may remember what is over for longer than it must.
            Regex::new(r"token: TokenHash\([^)]*\)|forgotten_in_ms: \d+").unwrap()
        });
        let text = format!("{answer:?}");
        let text = NUMBER.replace_all(&text, |found: &Captures<'_>| {
            let known = self.numbers.iter().position(|number| *number == found[1]);
            let at = known.unwrap_or_else(|| {
                self.numbers.push(found[1].to_owned());
                self.numbers.len() - 1
            });
            format!("number {at}")
        });
        let text = LENGTH.replace_all(&text, |found: &Captures<'_>| {
            let length_ms: u64 = found[2].parse().unwrap();
            format!("{}: {}", &found[1], (length_ms + UNIT_MS / 2) / UNIT_MS)
        });
        self.said.push(OTHER.replace_all(&text, "").into_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_sequences_have_the_same_answers_from_both() {
    let seed = seed();
    let mut kinds = std::collections::BTreeSet::new();
    for sequence in 0..SEQUENCES {
        let mut random = StdRng::seed_from_u64(seed ^ sequence);
        let steps: Vec<_> = (0..STEPS).map(|_| Step::draw(&mut random)).collect();
        let scenes = [AnyStore::memory(MARK_TTL).await, AnyStore::simulated(MARK_TTL).await];
        let [mut table, mut scripts] = [Side::new(&scenes[0]), Side::new(&scenes[1])];
        for step in &steps {
            table.take(step).await;
            scripts.take(step).await;
            assert_eq!(
                table.said.last(),
                scripts.said.last(),
                "TEST_SEED={seed} sequence {sequence}, at {step:?} of {steps:#?}"
            );
        }
        kinds.extend(scripts.said.iter().map(|said| said.split(['(', ' ', '{']).next().unwrap().to_owned()));
    }
    // What the sequences lead to.
    for kind in [
        "Granted",
        "Continued",
        "Busy",
        "Abandoned",
        "Done",
        "FingerprintMismatch",
        "TokenReleased",
        "AttemptVoided",
    ]
    .into_iter()
    .chain([
        "Stored",
        "Differs",
        "Refused",
        "Renewed",
        "LeaseOver",
        "AlreadyStored",
        "GivenUp",
        "Broken",
        "Superseded",
    ]) {
        assert!(kinds.contains(kind), "{kind} is never said: {kinds:?}");
    }
}

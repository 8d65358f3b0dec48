//! What is asked in a sequence.

use std::fmt;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// Between a step and the next one. All lengths of leases and waits are whole halves of a second. With this much more at each step,
/// nothing ends by itself at the moment of a step, but often just before.
const PAUSES_MS: [u64; 9] = [0, 0, 0, 0, 500, 1_000, 1_500, 2_500, 5_000];
const APART_MS: u64 = 31;
const TTLS: [&str; 6] = ["500ms", "1s", "1500ms", "2500ms", "5s", "20s"];
/// Of holds, and of several locks.
const LONG_TTLS: [&str; 4] = ["1s", "2500ms", "5s", "20s"];
const WAITS: [&str; 4] = ["500ms", "1s", "3s", "6s"];
const SLOTS: [&str; 6] = ["", "1", "2", "2", "3", "any"];
const STEPS: std::ops::RangeInclusive<usize> = 5..=14;
const TOKENS: usize = 5;
const KINDS: usize = 12;

/// One sequence.
#[derive(Clone)]
pub struct Plan {
    pub number: u64,
    pub steps: Vec<Step>,
    /// Whether locks are shared.
    pub has_slots: bool,
    /// Whether somebody may have a ticket.
    pub has_waits: bool,
}

#[derive(Clone)]
pub struct Step {
    pub id: usize,
    pub what: What,
    pub gateway: usize,
    /// Until the next one.
    pub pause_ms: u64,
}

#[derive(Clone)]
pub enum What {
    Ask(Asked),
    /// The client of this step hangs up.
    Leave(usize),
}

#[derive(Clone, Default)]
pub struct Asked {
    pub method: &'static str,
    pub address: String,
    pub token: Option<Token>,
    /// Shows the number that the client of this step was told: where it is in the query, or a header.
    pub number: Option<(usize, bool)>,
    pub fingerprint: Option<&'static str>,
    pub body: &'static str,
}

#[derive(Clone, Copy)]
pub enum Token {
    Own(usize),
    /// The one that the client of this step was told.
    Of(usize),
}

impl Asked {
    /// The lock or the record that it is about, or the first of them.
    pub fn key(&self) -> &str {
        let value = self.address.split(['?', '&']).find_map(|pair| pair.strip_prefix("key="));
        value.unwrap_or_default()
    }

    pub fn is_about_records(&self) -> bool {
        self.address.starts_with("/once") || self.address.starts_with("/records")
    }

    pub fn shares(&self) -> bool {
        self.address.contains("slots=") && !self.address.contains("slots=1")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Leave(step) => write!(f, "#{}: the client of #{step} hangs up", self.id)?,
            What::Ask(asked) => {
                write!(f, "#{}: {} {}", self.id, asked.method, asked.address)?;
                match asked.token {
                    Some(Token::Own(number)) => write!(f, ", token {number}")?,
                    Some(Token::Of(step)) => write!(f, ", token of #{step}")?,
                    None => {}
                }
                if let Some((step, is_in_query)) = asked.number {
                    write!(
                        f,
                        ", {} of #{step}",
                        if is_in_query { "fencing_token" } else { "Fencing-Token" }
                    )?;
                }
                if let Some(fingerprint) = asked.fingerprint {
                    write!(f, ", fingerprint {fingerprint}")?;
                }
                if !asked.body.is_empty() {
                    write!(f, ", body {:?}", asked.body)?;
                }
                write!(f, ", at gateway {}", self.gateway)?;
            }
        }
        write!(f, "; {} ms pass", self.pause_ms)
    }
}

/// The sequence of this number.
pub fn draw(seed: u64, number: u64) -> Plan {
    let random = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut draw = Draw {
        random,
        has_slots: number % 3 == 2,
        has_waits: number % 4 != 3,
        kinds: Vec::new(),
        asked: Vec::new(),
    };
    // All kinds of requests, or some of them, so that they meet each other more often.
    let share = if draw.likely(0.3) { 1.0 } else { 0.4 };
    draw.kinds = (0..KINDS).filter(|kind| *kind == 0 || draw.random.random_bool(share)).collect();
    let steps = (0..draw.random.random_range(STEPS)).map(|id| draw.step(id)).collect();
    Plan { number, steps, has_slots: draw.has_slots, has_waits: draw.has_waits }
}

struct Draw {
    random: StdRng,
    has_slots: bool,
    has_waits: bool,
    kinds: Vec<usize>,
    /// So far.
    asked: Vec<(usize, Asked)>,
}

impl Draw {
    fn likely(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.random).unwrap()
    }

    fn step(&mut self, id: usize) -> Step {
        let earlier = self.earlier(false);
        let key = self.one(&["a", "a", "a", "b"]);
        let kind = *self.kinds.choose(&mut self.random).unwrap();
        let ask = |method, address: String, token| Asked { method, address, token, ..Asked::default() };
        let token = self.token(earlier);
        let what = match kind {
            0 | 1 => {
                let maker = self.likely(0.2);
                let (terms, wait) = (self.terms(false), self.wait());
                ask("PUT", format!("/lock?key={key}{terms}{wait}"), token.filter(|_| !maker))
            }
            2 => ask("PUT", format!("/lock?key=b&key=a{}{}", self.terms(true), self.wait()), token),
            3 => ask("PATCH", format!("/lock?key={key}&ttl={}", self.one(&TTLS)), token),
            4 | 5 => ask("DELETE", format!("/lock?key={key}"), token),
            6 => {
                let (has_token, number) = (self.likely(0.6), self.likely(0.2));
                let holders = if !number && self.likely(0.5) { "&holders=true" } else { "" };
                let asked =
                    ask("GET", format!("/lock?key={key}{holders}"), token.filter(|_| has_token && !number));
                Asked { number: earlier.filter(|_| number).map(|step| (step, true)), ..asked }
            }
            7 => ask(
                "GET",
                self.one(&["/locks?prefix=", "/locks?prefix=a", "/records?prefix="]).to_owned(),
                None,
            ),
            8 => {
                let several = if self.likely(0.2) { "&key=c" } else { "" };
                let own = self.likely(0.7);
                ask(
                    "POST",
                    format!("/hold?key={key}{several}{}{}", self.terms(true), self.wait()),
                    token.filter(|_| own),
                )
            }
            9 => {
                let client = self.random.random_range(0..id.max(1));
                return self.step_of(id, What::Leave(client));
            }
            10 => {
                let number = earlier.filter(|_| self.likely(0.7)).map(|step| (step, true));
                Asked { number, ..ask("DELETE", format!("/lock?key={key}&force=true"), None) }
            }
            _ => self.about_a_record(),
        };
        self.asked.push((id, what.clone()));
        self.step_of(id, What::Ask(what))
    }

    fn step_of(&mut self, id: usize, what: What) -> Step {
        let pause_ms = self.one(&PAUSES_MS) + APART_MS;
        Step { id, what, gateway: self.random.random_range(0..2), pause_ms }
    }

    /// Some are used by one step after the other.
    fn token(&mut self, earlier: Option<usize>) -> Option<Token> {
        let number = self.random.random_range(0..TOKENS).min(self.random.random_range(0..TOKENS));
        let earlier = earlier.filter(|_| self.likely(0.15));
        Some(earlier.map_or(Token::Own(number), Token::Of))
    }

    /// An earlier step about a lock, or about a record.
    fn earlier(&mut self, is_about_records: bool) -> Option<usize> {
        let is_so = |(_, asked): &(usize, Asked)| asked.is_about_records() == is_about_records;
        let of_kind: Vec<_> = self.asked.iter().filter(|asked| is_so(asked)).map(|(id, _)| *id).collect();
        of_kind.choose(&mut self.random).copied()
    }

    fn wait(&mut self) -> String {
        let waits = self.has_waits && self.likely(0.6);
        if waits { format!("&wait={}", self.one(&WAITS)) } else { String::new() }
    }

    fn terms(&mut self, is_long: bool) -> String {
        let mut said = format!("&ttl={}", if is_long { self.one(&LONG_TTLS) } else { self.one(&TTLS) });
        if self.likely(0.2) {
            said += "&owner=somebody";
        }
        if self.likely(0.15) {
            said += "&max_hold=";
            said += self.one(&["20s", "22s"]);
        }
        if self.likely(0.15) {
            said += "&min_hold=";
            said += self.one(&["500ms", "1500ms", "4s"]);
        }
        let slots = self.one(&SLOTS);
        if self.has_slots && !slots.is_empty() {
            said += &format!("&slots={slots}");
        }
        said
    }

    fn about_a_record(&mut self) -> Asked {
        let earlier = self.earlier(true);
        let (token, ttl) = (self.token(earlier), self.one(&TTLS));
        let ask = |method, address: String| Asked { method, address, token, ..Asked::default() };
        let number = earlier.filter(|_| self.likely(0.2)).map(|step| (step, false));
        match self.random.random_range(0..12) {
            0..5 => {
                let (made, takeover) =
                    (self.likely(0.1), if self.likely(0.2) { "&takeover=false" } else { "" });
                let fingerprint = self.likely(0.15).then(|| self.one(&["one", "two"]));
                let asked = ask("PUT", format!("/once?key=w&ttl={ttl}{takeover}{}", self.wait()));
                Asked { fingerprint, token: token.filter(|_| !made), ..asked }
            }
            5..7 => {
                let (body, status) =
                    (self.one(&["done", "done", "done otherwise"]), self.one(&["", "&status=3"]));
                Asked { number, body, ..ask("POST", format!("/once?key=w{status}")) }
            }
            7 => Asked { number, ..ask("PATCH", format!("/once?key=w&ttl={ttl}")) },
            8 => ask("DELETE", format!("/once?key=w{}", self.one(&["", "&clean=true"]))),
            9 => {
                let clean = self.one(&["", "&clean=true"]);
                let number = earlier.filter(|_| self.likely(0.7)).map(|step| (step, true));
                Asked { number, token: None, ..ask("DELETE", format!("/once?key=w&force=true{clean}")) }
            }
            _ => Asked { token: token.filter(|_| self.likely(0.5)), ..ask("GET", "/once?key=w".to_owned()) },
        }
    }
}

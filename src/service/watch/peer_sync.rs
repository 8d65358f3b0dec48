//! What gateways of one store tell each other.
//!
//! A gateway with watchers summons the others every two seconds. A gateway that was summoned lately sends what it does
//! to locks. Its letters are numbered, and it answers each summons with the last number. So the reader notices a lost
//! letter, and that a gateway is gone. Letters may come twice, and in another order, if a store has several servers to
//! send them by.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Doing, Watch};
use crate::lock::{Ended, FencingToken, Lease, LockKey, Note};
use crate::store::{Heard, PeerBus, Topic};

/// How often others are summoned.
const SUMMON_EVERY: Duration = Duration::from_secs(2);
/// How long a summons is heeded. Who has not answered one for so long is gone.
const HEEDED_FOR: Duration = Duration::from_secs(6);
/// The shortest time between two answers, as several may summon.
const ANSWERED_FOR: Duration = Duration::from_millis(1_500);
/// How long a letter may be late.
const LATE_BY: Duration = Duration::from_secs(1);
/// How often it is seen to all this.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Letters of one gateway that may be late at once.
const MOST_LATE: u64 = 256;
/// The most gateways that are listened to.
const MOST_SENDERS: usize = 1_000;

/// A gateway asks what happens.
#[derive(Serialize, Deserialize)]
struct Summons {
    from: String,
    /// Whether it has just begun to: then it waits for answers.
    is_new: bool,
}

/// What a gateway tells of itself.
#[derive(Serialize, Deserialize)]
struct Letter {
    from: String,
    /// Drawn anew each time that the gateway begins to tell.
    run: u64,
    /// The number of the deed; without one, that of the last.
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    deed: Option<Deed>,
}

/// What it did to a lock.
#[derive(Serialize, Deserialize)]
struct Deed {
    did: Did,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// What is left of the lease, or for how long the lock is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    ms: Option<u64>,
    #[serde(rename = "owner", default, skip_serializing_if = "String::is_empty")]
    note: String,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Did {
    Grant,
    Renew,
    Release,
    Break,
    Line,
    Unclear,
}

impl Deed {
    fn of(key: &LockKey, doing: &Doing) -> Self {
        let about = |did, fence: Option<FencingToken>, ms| Self {
            did,
            key: key.as_str().to_owned(),
            fence: fence.map(FencingToken::get),
            ms,
            note: String::new(),
        };
        let lease = |did, lease: &Lease| Self {
            note: lease.note.stored().to_owned(),
            ..about(did, Some(lease.fencing_token), Some(lease.left_ms))
        };
        match doing {
            Doing::Granted(granted) => lease(Did::Grant, granted),
            Doing::Renewed(renewed) => lease(Did::Renew, renewed),
            Doing::Released(ended) => about(Did::Release, Some(ended.fencing_token), Some(ended.kept_ms)),
            Doing::Broken(number) => about(Did::Break, Some(*number), None),
            Doing::Line => about(Did::Line, None, None),
            Doing::Unclear => about(Did::Unclear, None, None),
        }
    }

    /// `None` where another version means something that this one does not know.
    fn read(&self) -> Option<(LockKey, Doing)> {
        let key = LockKey::parse(self.key.as_bytes()).ok()?;
        let number = || FencingToken::new(self.fence?);
        let lease = || {
            Some(Lease {
                fencing_token: number()?,
                left_ms: self.ms?,
                note: Note::from_stored(&self.note)?,
                is_released: false,
                slot: None,
            })
        };
        let doing = match self.did {
            Did::Grant => Doing::Granted(lease()?),
            Did::Renew => Doing::Renewed(lease()?),
            Did::Release => Doing::Released(Ended { fencing_token: number()?, kept_ms: self.ms? }),
            Did::Break => Doing::Broken(number()?),
            Did::Line => Doing::Line,
            Did::Unclear => Doing::Unclear,
        };
        Some((key, doing))
    }
}

/// What this gateway tells others.
pub(super) struct Telling {
    run: u64,
    number: u64,
    /// When the last summons is heeded no more.
    until: Instant,
    answered_at: Instant,
}

/// The other gateways, as far as they were heard of.
#[derive(Default)]
pub(super) struct Senders {
    all: HashMap<String, Sender>,
    /// Whether something may have been missed, so that watchers must be told.
    has_gap: bool,
}

struct Sender {
    run: u64,
    /// The largest number that was heard of.
    highest: u64,
    /// The smaller ones that did not come yet, and since when they are missed.
    late: BTreeMap<u64, Instant>,
    heard_at: Instant,
}

impl Senders {
    /// Notes a letter; returns whether what it tells was not told before.
    fn note(&mut self, from: &str, run: u64, number: u64, has_deed: bool, now: Instant) -> bool {
        let Some(sender) = self.all.get_mut(from).filter(|sender| sender.run == run) else {
            // What it did before is unknown.
            self.has_gap = true;
            if self.all.len() < MOST_SENDERS || self.all.contains_key(from) {
                let sender = Sender { run, highest: number, late: BTreeMap::new(), heard_at: now };
                self.all.insert(from.to_owned(), sender);
            }
            return has_deed;
        };
        sender.heard_at = now;
        if number <= sender.highest {
            return has_deed && sender.late.remove(&number).is_some();
        }
        let missed = sender.highest + 1..if has_deed { number } else { number.saturating_add(1) };
        sender.highest = number;
        if number - missed.start > MOST_LATE || sender.late.len() as u64 > MOST_LATE {
            sender.late.clear();
            self.has_gap = true;
        } else {
            sender.late.extend(missed.map(|number| (number, now)));
        }
        has_deed
    }

    /// From now on no watcher is told of what may have been missed so far.
    pub(super) fn forget_gap(&mut self) {
        self.has_gap = false;
    }

    /// Whether something may have been missed since this was asked last: a letter is so late that it counts as lost, a
    /// gateway was heard of for the first time, or has fallen silent.
    fn has_missed(&mut self, now: Instant) -> bool {
        let count = self.all.len();
        self.all.retain(|_, sender| now < sender.heard_at + HEEDED_FOR);
        let mut has_missed = std::mem::take(&mut self.has_gap) || self.all.len() < count;
        for sender in self.all.values_mut() {
            if sender.late.values().any(|since| now >= *since + LATE_BY) {
                sender.late.clear();
                has_missed = true;
            }
        }
        has_missed
    }
}

impl Watch {
    pub(super) fn peers(&self) -> Option<&dyn PeerBus> {
        self.store.peers()
    }

    /// Sends what this gateway did, if anybody has asked for it. Under the lock, so that letters are sent in their order.
    pub(super) fn send(&self, telling: &mut Telling, key: &LockKey, doing: &Doing) {
        telling.number += 1;
        self.write(telling, Some(Deed::of(key, doing)));
    }

    fn write(&self, telling: &Telling, deed: Option<Deed>) {
        let letter = Letter { from: self.name.clone(), run: telling.run, number: telling.number, deed };
        self.post(Topic::Events, &letter);
    }

    fn post(&self, topic: Topic, message: &impl Serialize) {
        if let (Some(peers), Ok(text)) = (self.peers(), serde_json::to_string(message)) {
            peers.tell(topic, text);
        }
    }

    /// Asks all others what happens.
    pub(super) fn summon(&self, is_new: bool) {
        self.post(Topic::Watchers, &Summons { from: self.name.clone(), is_new });
    }

    /// Hears what others say, for as long as there is a store.
    pub(super) async fn keep_hearing(watch: Weak<Self>, mut heard: broadcast::Receiver<Heard>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut summoned_at = Instant::now();
        loop {
            let heard = tokio::select! {
                heard = heard.recv() => Some(heard),
                _ = looks.tick() => None,
            };
            // Also while the gateway drains: others watch what it still does.
            let Some(watch) = watch.upgrade() else { return };
            match heard {
                Some(Ok(Heard::Told(Topic::Watchers, text))) => watch.heed(&text),
                Some(Ok(Heard::Told(Topic::Events, text))) => watch.read(&text),
                // What was told in between is lost, and those who came back must be summoned.
                Some(Ok(Heard::Connected)) if watch.state.lock().is_local => {
                    watch.summon(true);
                    watch.resync();
                }
                Some(Ok(Heard::Connected)) => {}
                // What was skipped may say that a server is heard no more.
                Some(Ok(Heard::Deaf) | Err(RecvError::Lagged(_))) => watch.hear_by_others().await,
                Some(Err(RecvError::Closed)) => return,
                None => watch.see_to_others(&mut summoned_at),
            }
        }
    }

    /// Tells another gateway what happens here, from now on and for a while.
    fn heed(&self, text: &str) {
        let Ok(summons) = serde_json::from_str::<Summons>(text) else { return };
        if summons.from == self.name {
            return;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        let was_telling = state.telling.is_some();
        let until = now + HEEDED_FOR;
        let telling = state.telling.get_or_insert_with(|| Telling {
            run: rand::random(),
            number: 0,
            until,
            answered_at: now,
        });
        telling.until = until;
        // Before the answer, which says that from here on nothing is left out.
        self.is_watched.store(true, Ordering::Release);
        if !was_telling || summons.is_new || now >= telling.answered_at + ANSWERED_FOR {
            telling.answered_at = now;
            self.write(telling, None);
        }
    }

    /// Takes in what another gateway did.
    fn read(&self, text: &str) {
        let Ok(letter) = serde_json::from_str::<Letter>(text) else { return };
        if letter.from == self.name {
            return;
        }
        let Letter { from, run, number, deed } = letter;
        let mut state = self.state.lock();
        if !state.is_local {
            return;
        }
        let is_news = state.senders.note(&from, run, number, deed.is_some(), Instant::now());
        if is_news && let Some((key, doing)) = deed.as_ref().and_then(Deed::read) {
            self.tell_here(&mut state, &key, &doing);
        }
    }

    fn see_to_others(&self, summoned_at: &mut Instant) {
        let now = Instant::now();
        let (is_local, has_missed) = {
            let mut state = self.state.lock();
            if state.telling.as_ref().is_some_and(|telling| now >= telling.until) {
                state.telling = None;
                self.is_watched.store(state.is_local, Ordering::Release);
            }
            (state.is_local, state.senders.has_missed(now))
        };
        if is_local && now >= *summoned_at + SUMMON_EVERY {
            *summoned_at = now;
            self.summon(false);
        }
        if has_missed {
            self.resync();
        }
    }
}

/// Has a gateway hear the others.
pub(super) fn start(watch: &Arc<Watch>) {
    if let Some(peers) = watch.peers() {
        tokio::spawn(Watch::keep_hearing(Arc::downgrade(watch), peers.heard()));
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use super::*;

    #[test]
    fn letters_may_come_twice_and_in_another_order_and_one_that_does_not_come_is_missed() {
        let (mut senders, now) = (Senders::default(), Instant::now());
        let note = |senders: &mut Senders, number, has_deed| senders.note("a", 7, number, has_deed, now);
        assert!(!note(&mut senders, 3, false));
        assert!(senders.has_missed(now), "nobody knows what it did before");
        assert!(note(&mut senders, 4, true));
        assert!(!note(&mut senders, 4, true), "it came by another server as well");
        assert!(!note(&mut senders, 4, false));
        assert!(note(&mut senders, 6, true) && note(&mut senders, 5, true) && !note(&mut senders, 5, true));
        assert!(!senders.has_missed(now + LATE_BY), "all have come");
        note(&mut senders, 7, false);
        assert!(!senders.has_missed(now));
        assert!(senders.has_missed(now + LATE_BY));
        assert!(!senders.has_missed(now + LATE_BY), "it is said once");
        assert!(!note(&mut senders, 7, true), "whoever watches was told to look");
        assert!(note(&mut senders, 8 + MOST_LATE + 1, true));
        assert!(senders.has_missed(now));
        senders.note("a", 8, 0, false, now);
        assert!(senders.has_missed(now), "it has begun anew");
        assert!(
            !senders.note("a", 8, u64::MAX, false, now) && senders.has_missed(now),
            "no number is too large"
        );
        assert!(senders.has_missed(now + HEEDED_FOR), "it is gone");
        assert!(!senders.has_missed(now + HEEDED_FOR));
    }

    #[test]
    fn a_deed_is_read_as_it_was_written() {
        let key = LockKey::parse("a }{\u{2028}".as_bytes()).unwrap();
        let number = FencingToken::new(FencingToken::MAX).unwrap();
        let note = Note::from_stored("\"me\"").unwrap();
        let lease = Lease { fencing_token: number, left_ms: 5, note, is_released: false, slot: None };
        for doing in [
            Doing::Granted(lease.clone()),
            Doing::Renewed(Lease { note: Note::default(), ..lease }),
            Doing::Released(Ended { fencing_token: number, kept_ms: 0 }),
            Doing::Broken(number),
            Doing::Line,
            Doing::Unclear,
        ] {
            let text = serde_json::to_string(&Deed::of(&key, &doing)).unwrap();
            let (same_key, same) = serde_json::from_str::<Deed>(&text).unwrap().read().unwrap();
            assert_eq!((same_key, format!("{same:?}")), (key.clone(), format!("{doing:?}")), "{text}");
        }
    }
}

//! What gateways tell each other of those who wait for records.

use std::sync::Weak;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::Instant;

use super::RecordWaits;
use crate::lock::LockKey;
use crate::store::{Heard, Topic};

/// How often a gateway with waiters says so to others, and for how long they heed it.
const SAY_EVERY: Duration = Duration::from_secs(2);
const HEEDED_FOR: Duration = Duration::from_secs(6);

/// What gateways tell each other.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Letter {
    /// Somebody waits for a record there.
    AwaitsRecords { from: u64 },
    /// A place of this record, or its result, has ended.
    RecordEnded { from: u64, key: String },
}

impl RecordWaits {
    pub(super) fn say(&self, letter: &Letter) {
        if let (Some(peers), Ok(text)) = (self.store.peers(), serde_json::to_string(letter)) {
            peers.tell(Topic::Watchers, text);
        }
    }

    /// Tells others that somebody waits here, unless they were told a moment ago.
    pub(super) fn say_that_somebody_waits(&self) {
        let now = Instant::now();
        {
            let mut registry = self.registry.lock();
            let is_due = registry.said_at.is_none_or(|at| now >= at + SAY_EVERY);
            if registry.count == 0 || !is_due {
                return;
            }
            registry.said_at = Some(now);
        }
        self.say(&Letter::AwaitsRecords { from: self.name });
    }

    /// Hears what others say, for as long as there is a store: a gateway that drains still tells those who wait elsewhere.
    pub(super) async fn keep_hearing(waits: Weak<Self>, mut heard: broadcast::Receiver<Heard>) {
        loop {
            let heard = heard.recv().await;
            let Some(waits) = waits.upgrade() else { return };
            match heard {
                Ok(Heard::Told(Topic::Watchers, text)) => waits.heed(&text),
                Err(RecvError::Closed) => return,
                // What was missed is found by looking.
                _ => {}
            }
        }
    }

    fn heed(&self, text: &str) {
        let mut registry = self.registry.lock();
        match serde_json::from_str(text) {
            Ok(Letter::AwaitsRecords { from }) if from != self.name => {
                registry.others_until = Some(Instant::now() + HEEDED_FOR);
            }
            Ok(Letter::RecordEnded { from, key }) if from != self.name => {
                let key = LockKey::parse(key.as_bytes()).ok();
                if let Some(crowd) = key.and_then(|key| registry.crowds.get_mut(&key)) {
                    crowd.look_now();
                }
            }
            // A letter of ours, or about something else.
            _ => {}
        }
    }
}

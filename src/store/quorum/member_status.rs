//! What a server of a quorum was seen to remember.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::clock::whole_ms;
use crate::store::redis::health::identity::part_of_id;
use crate::store::redis::health::quorum::{KnownList, RecordKind, UNLIKE_IDS, Whose};
use crate::store::redis::scripts::ScriptReply;

/// What a server's record says, as far as this gateway is concerned.
#[derive(Clone, Debug)]
pub(super) struct MemberStatus {
    pub(super) kind: RecordKind,
    /// Names the server's process, and what that last followed.
    pub(super) run: String,
    /// What its clock showed, in ms.
    now_ms: u64,
    /// Since when it is in quarantine, in ms by its clock; 0 where it is not.
    pub(super) since_ms: u64,
    /// How long a lease can last, the attempt included, as far as this server knows.
    pub(super) longest_ms: u64,
    /// When it came to be part of a quorum, in ms by its clock; 0 if it never did.
    pub(super) born_ms: u64,
    /// Whether most servers of the list before have learned the one of its epoch.
    pub(super) is_settled: bool,
    pub(super) epoch: u64,
    /// The epoch of the list from which it has come to this one; 0 if it has come from none, or a version did that which did not say.
    pub(super) epoch_before: u64,
    pub(super) members: String,
    /// The id of its quorum; empty if it has none yet.
    quorum: String,
    /// Whether that is this gateway's, as far as is known.
    is_ours: bool,
    at: Instant,
    /// How much of its quarantine gateways have seen go by, in ms.
    served_ms: u64,
    /// Since when it was seen so, without a break, and how much of its quarantine had gone by then.
    pub(super) first_at: Instant,
    first_served_ms: u64,
}

/// How long what was seen may be acted upon.
const FRESH: Duration = Duration::from_secs(3);

impl MemberStatus {
    /// Reads what `look.lua` replied; `before` is what was seen last.
    pub(super) fn read(reply: &ScriptReply, run: &str, before: Option<&Self>) -> Option<Self> {
        let kind = match reply.outcome {
            0 => RecordKind::Current,
            1 => RecordKind::Empty,
            2 => RecordKind::Forgot,
            3 => RecordKind::Later,
            4 => RecordKind::Differs,
            5 => RecordKind::Earlier,
            _ => return None,
        };
        let text = |index| reply.field::<String>(index);
        let number = |index| text(index)?.parse::<u64>().ok();
        let at = Instant::now();
        let (now_ms, since_ms) = (Self::clock_us(reply)?.unsigned_abs() / 1000, number(1)?);
        // Where it is not in quarantine, this says nothing.
        let served_ms = text(8)?.parse().unwrap_or_default();
        let (first_at, first_served_ms) = before
            .filter(|before| before.kind == kind && before.run == run && before.since_ms == since_ms)
            .map_or((at, served_ms), |before| (before.first_at, before.first_served_ms));
        let quorum = text(9)?;
        Some(Self {
            kind,
            run: run.to_owned(),
            now_ms,
            since_ms,
            longest_ms: number(2)?,
            born_ms: number(3)?,
            is_settled: number(4)? == 1,
            epoch: number(5)?,
            members: text(6)?,
            is_ours: quorum.is_empty(),
            quorum,
            epoch_before: number(7)?,
            served_ms,
            at,
            first_at,
            first_served_ms,
        })
    }

    /// What the server's clock showed, in µs.
    pub(super) fn clock_us(reply: &ScriptReply) -> Option<i64> {
        reply.field::<String>(0)?.parse().ok()
    }

    /// Compares its id with that of the gateway's quorum.
    pub(super) fn recognize(&mut self, whose: &Whose) {
        self.is_ours = whose.has(&self.quorum);
    }

    pub(super) fn is_ours(&self) -> bool {
        self.is_ours
    }

    fn part_of_id(&self) -> String {
        part_of_id(&self.run, self.since_ms, self.born_ms)
    }

    /// The id that is made of these servers.
    pub(super) fn id_of(servers: &[&Self]) -> String {
        let mut parts: Vec<_> = servers.iter().map(|status| status.part_of_id()).collect();
        parts.sort_unstable();
        parts.join(" ")
    }

    /// Whether it has no id of a quorum yet.
    pub(super) fn is_unnamed(&self) -> bool {
        self.quorum.is_empty()
    }

    /// Whether it counts.
    pub(super) fn counts(&self) -> bool {
        self.is_ours && self.kind == RecordKind::Current && !self.is_in_quarantine()
    }

    /// What it says of lists of servers.
    pub(super) fn known_list(&self) -> KnownList {
        KnownList {
            kind: self.kind,
            is_in_quarantine: self.is_in_quarantine(),
            epoch: self.epoch,
            epoch_before: self.epoch_before,
            is_settled: self.is_settled,
            members: self.members.clone(),
            quorum: self.quorum.clone(),
            part: self.part_of_id(),
        }
    }

    /// Whether it counts, and else why not.
    pub(super) fn eligibility(&self) -> Result<(), String> {
        if self.counts() {
            return Ok(());
        }
        if !self.is_ours {
            return Err(UNLIKE_IDS.to_owned());
        }
        let reason = match self.kind {
            RecordKind::Current => match self.quarantine_left(self.longest_ms) {
                left if left.is_zero() => {
                    "in quarantine, which ends as soon as it can be written to, and most servers have said which fencing tokens they \
                     accepted".to_owned()
                }
                left => {
                    let end = humantime::format_rfc3339_seconds(SystemTime::now() + left);
                    format!("in quarantine until {end}, since it may have forgotten locks")
                }
            },
            RecordKind::Empty => "it is new or has lost its data, and is not in quarantine yet".to_owned(),
            RecordKind::Forgot => {
                "it was restarted, was made a replica of another server, or has evicted keys, and is not in quarantine yet".to_owned()
            }
            RecordKind::Later => format!(
                "it knows a later list of servers, that of epoch {} ({}): this gateway needs that list, if it is this quorum's, and takes no \
                 server in until it is restarted",
                self.epoch, self.members
            ),
            RecordKind::Differs => format!(
                "it knows another list of servers with the same epoch ({}): if both are this quorum's, give each list an epoch of its own",
                self.members
            ),
            RecordKind::Earlier if self.is_in_quarantine() => format!(
                "it is in quarantine by the list of epoch {}: gateways with that list must go on until it counts",
                self.epoch
            ),
            RecordKind::Earlier => format!("it knows only the list of epoch {} so far ({})", self.epoch, self.members),
        };
        Err(reason)
    }

    /// Whether it is new, and perhaps part of a quorum that is just being founded.
    pub(super) fn is_starting(&self) -> bool {
        let joined_lately = self.now_ms < self.since_ms.saturating_add(whole_ms(FRESH));
        self.kind == RecordKind::Empty || self.born_ms == 0 && self.is_in_quarantine() && joined_lately
    }

    /// Whether it knows nothing of what it may have accepted.
    pub(super) fn has_forgotten(&self) -> bool {
        match self.kind {
            _ if !self.is_ours => false,
            RecordKind::Current | RecordKind::Earlier => self.is_in_quarantine(),
            RecordKind::Empty | RecordKind::Forgot => true,
            RecordKind::Later | RecordKind::Differs => false,
        }
    }

    /// Whether it is for a gateway to change what it is, before it counts.
    pub(super) fn is_kept_out(&self) -> bool {
        self.has_forgotten() || self.kind == RecordKind::Earlier
    }

    /// Whether it may still be acted upon. A gateway that stood still would act on what was long ago.
    pub(super) fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }

    /// Until when it may be acted upon, in ms by the server's clock: that one goes on while this machine sleeps.
    pub(super) fn fresh_until_ms(&self) -> u64 {
        self.now_ms.saturating_add(whole_ms(FRESH))
    }

    pub(super) fn is_in_quarantine(&self) -> bool {
        self.since_ms != 0
    }

    /// Whether its record has its quarantine end if a lease can last so long. A change goes by that, and not by what went by since.
    pub(super) fn has_served(&self, longest_ms: u64) -> bool {
        self.served_ms.min(self.now_ms.saturating_sub(self.since_ms)) >= longest_ms
    }

    /// How much longer its quarantine lasts if a lease can last so long: by its clock, by what gateways have seen go by, and by the
    /// clock of this machine since it was first seen. The server's clock may be set forward, or run fast.
    pub(super) fn quarantine_left(&self, longest_ms: u64) -> Duration {
        let by_clock_ms = self.since_ms.saturating_add(longest_ms).saturating_sub(self.now_ms);
        let unseen_ms = |served_ms: u64| longest_ms.saturating_sub(served_ms);
        let left = |ms, at: Instant| Duration::from_millis(ms).saturating_sub(at.elapsed());
        let by_record = left(by_clock_ms.max(unseen_ms(self.served_ms)), self.at);
        by_record.max(left(unseen_ms(self.first_served_ms), self.first_at))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use redis::{FromRedisValue, Value};

    use super::*;

    const LONGEST_MS: u64 = 60_000;

    /// What a server says that went into quarantine at `since_s`, and whose clock shows `now_s`.
    fn seen(now_s: u64, since_s: u64, served_s: u64, before: Option<&MemberStatus>) -> MemberStatus {
        let text = |text: String| Value::BulkString(text.into_bytes());
        let fields = [now_s * 1_000_000, since_s * 1_000, LONGEST_MS, 0, 0, 1].map(|n| text(n.to_string()));
        let last =
            ["a b c".to_owned(), "0".to_owned(), (served_s * 1_000).to_string(), String::new()].map(text);
        let fields = [Value::Int(0)].into_iter().chain(fields).chain(last).collect();
        let reply = ScriptReply::from_redis_value(Value::Array(fields)).unwrap();
        MemberStatus::read(&reply, "run", before).unwrap()
    }

    fn left_s(now_s: u64, since_s: u64, served_s: u64) -> u64 {
        seen(now_s, since_s, served_s, None).quarantine_left(LONGEST_MS).as_secs_f64().round() as u64
    }

    #[test]
    fn a_clock_that_is_set_forward_ends_no_quarantine() {
        assert_eq!(left_s(1_000, 1_000, 0), 60);
        assert_eq!(left_s(5_000, 1_000, 1), 59);
        assert_eq!(left_s(5_000, 1_000, 60), 0);
    }

    #[test]
    fn a_clock_that_runs_fast_ends_no_quarantine_that_was_seen_to_begin() {
        let first = seen(1_000, 1_000, 0, None);
        let fast = seen(1_080, 1_000, 78, Some(&first));
        assert!(fast.quarantine_left(LONGEST_MS) > Duration::from_secs(50));
    }
}

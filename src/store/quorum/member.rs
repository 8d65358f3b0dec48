//! One server of a quorum: the link to it, what it was last seen to remember, and its clock.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{RedisError, RedisResult};
use tokio::sync::Notify;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use self::fast_path::{Batchers, Shortcut};
use super::member_status::MemberStatus;
use super::scripts;
use crate::clock::part_of;
use crate::store::StoreError;
use crate::store::redis::connection::link::Link;
use crate::store::redis::connection::servers::BEGUN_WITHIN;
use crate::store::redis::connection::supervisor::LinkSupervisor;
use crate::store::redis::failure::{Failure, StepOutcome};
use crate::store::redis::health::quorum::Whose;
use crate::store::redis::scripts::{Script, ScriptReply};
use crate::telemetry::metrics::{MemberState, metrics};

pub(super) mod fast_path;

/// `FURTHEST_AHEAD_US` of ahead.lua.
const TOO_FAR_BEHIND: Duration = Duration::from_secs(10);
/// A clock that loses so much from one look to the next was set back.
const SET_BACK_US: i64 = 1_000_000;

/// Why a server has no say in something.
#[derive(Clone, Debug)]
pub(super) enum Silence {
    /// It certainly did nothing.
    Out(String),
    /// It may have done it, or may yet do it.
    Doubt(String),
}

/// What a server was asked for, and what it said.
pub(super) type MemberAnswer = Result<ScriptReply, Silence>;

/// What a server is asked to run.
#[derive(Clone)]
pub(super) struct MemberCall {
    pub(super) script: &'static Script,
    /// All but the server's record, which comes first.
    pub(super) keys: Vec<String>,
    /// All but those that `member.lua` reads, which come first.
    pub(super) args: Vec<String>,
    /// The field of the bucket in the record.
    pub(super) field: String,
    pub(super) until: Until,
    /// What is tried first.
    pub(super) shortcut: Option<Shortcut>,
}

/// Until when a server may run a call, by the time since boot of this machine.
#[derive(Clone, Copy)]
pub(super) enum Until {
    Always,
    /// Rather a moment longer than not at all.
    About(Duration),
    /// Never later, as far as the server's clock is known.
    AtMost(Duration),
}

impl Until {
    /// Whether it is too late, by the time since boot.
    pub(super) fn is_over(self, since_boot: Duration) -> bool {
        match self {
            Self::Always => false,
            Self::About(at) | Self::AtMost(at) => since_boot > at,
        }
    }
}

/// How a server's clock stands to this machine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock {
    /// What it shows at boot of this machine, in microseconds.
    pub(super) at_boot_us: i64,
    /// Half of the round trip in which that was found out.
    pub(super) error_us: i64,
}

impl ServerClock {
    /// From what the server's clock showed between two moments of this machine.
    pub(super) fn between(before: Duration, shown_us: i64, after: Duration) -> Self {
        let (before_us, after_us) = (micros(before), micros(after));
        let error_us = (after_us - before_us) / 2 + 1;
        Self { at_boot_us: shown_us - before_us - error_us, error_us }
    }

    pub(super) fn at(self, since_boot: Duration) -> i64 {
        self.at_boot_us + micros(since_boot)
    }

    /// How far it is behind a number, where that is so far that the server refuses it.
    pub(super) fn lag_behind(self, number: u64, since_boot: Duration) -> Option<Duration> {
        let shown_us = u64::try_from(self.at(since_boot)).unwrap_or_default();
        let lag = Duration::from_micros(number.saturating_sub(shown_us));
        (lag >= TOO_FAR_BEHIND).then_some(lag)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// One server of a quorum.
pub(super) struct Member {
    /// Its address, by which the list names it.
    pub(super) name: String,
    pub(super) supervisor: LinkSupervisor,
    epoch: String,
    record: String,
    seen: Mutex<Seen>,
    batchers: Batchers,
    /// Asks for a look at it at once.
    pub(super) nudge: Notify,
}

/// What is known of a server.
struct Seen {
    /// What it remembers, or why it could not be asked.
    status: Result<MemberStatus, String>,
    clock: Option<ServerClock>,
    /// The largest number that it had accepted when it was asked: once it counts, and whenever its clock was set back.
    high: Option<u64>,
    /// Whether the last lock was refused because of servers' clocks, since its own was last well.
    has_refused: bool,
}

impl Member {
    pub(super) fn new(name: String, supervisor: LinkSupervisor, epoch: u64, record: String) -> Self {
        let status = Err("the gateway has not looked at it yet".to_owned());
        let seen = Mutex::new(Seen { status, clock: None, high: None, has_refused: false });
        let (epoch, batchers) = (epoch.to_string(), Batchers::new());
        Self { name, supervisor, epoch, record, seen, batchers, nudge: Notify::new() }
    }

    /// What it was last seen to remember, or why it could not be asked.
    pub(super) fn status(&self) -> Result<MemberStatus, String> {
        self.seen.lock().status.clone()
    }

    /// Notes what it was seen to be, and what operators see of it in numbers: a server that counts may still refuse new numbers,
    /// or new locks.
    pub(super) fn see(
        &self,
        status: Result<MemberStatus, String>,
        clock: Option<ServerClock>,
        state: MemberState,
    ) {
        metrics().quorum_members.set(&self.name, state);
        let mut seen = self.seen.lock();
        seen.status = status;
        seen.clock = clock.or(seen.clock);
    }

    /// Compares the id that it was seen to have with that of the quorum.
    pub(super) fn recognize(&self, whose: &Whose) {
        if let Ok(status) = &mut self.seen.lock().status {
            status.recognize(whose);
        }
    }

    pub(super) fn clock(&self) -> Option<ServerClock> {
        self.seen.lock().clock
    }

    /// How far its clock is behind what it has accepted, where that is so far that it refuses all but the next number: as it was set
    /// back. It is asked only where it counts by `status`.
    pub(super) async fn learn_lag(
        &self,
        status: &MemberStatus,
        clock: Option<ServerClock>,
        since_boot: Duration,
        deadline: Instant,
    ) -> Option<Duration> {
        let clock = clock.filter(|_| status.counts())?;
        let known = {
            let Seen { status: before, clock: shown, high, .. } = &*self.seen.lock();
            let is_set_back = shown.is_some_and(|shown| clock.at_boot_us + SET_BACK_US < shown.at_boot_us);
            let is_same = |before: &MemberStatus| before.counts() && before.run == status.run;
            high.filter(|_| !is_set_back && before.as_ref().is_ok_and(is_same))
        };
        let high = match known {
            Some(high) => Some(high),
            None => self.high(deadline).await,
        };
        let lag = high.and_then(|high| clock.lag_behind(high, since_boot));
        let mut seen = self.seen.lock();
        seen.high = high;
        seen.has_refused &= lag.is_some();
        lag
    }

    /// The largest number that it has accepted.
    async fn high(&self, deadline: Instant) -> Option<u64> {
        let args = [self.epoch.clone(), "0".to_owned()];
        let (_, reply) = self.ask(&scripts::HIGH, &args, deadline).await.ok()?;
        if reply.outcome == 1 { reply.field::<String>(0)?.parse().ok() } else { None }
    }

    /// Notes whether a lock was just refused because of servers' clocks, or granted.
    pub(super) fn note_refusal(&self, is_refused: bool) {
        self.seen.lock().has_refused = is_refused;
    }

    /// Why it grants no lock now, though it counts. A clock that was set back is a reason once a lock was refused for that: where all
    /// were set back alike, they go on by the next number.
    pub(super) fn grants_nothing(&self, since_boot: Duration) -> Option<String> {
        let link = self.link_now()?;
        if let Err(error) = link.gate.is_ready().and_then(|()| link.door.seems_open()) {
            return Some(error.to_string());
        }
        let seen = self.seen.lock();
        let lag = seen.clock?.lag_behind(seen.high.filter(|_| seen.has_refused)?, since_boot)?;
        Some(format!("its clock is {} s behind the fencing tokens that it has accepted", lag.as_secs()))
    }

    /// Whether it counts.
    pub(super) fn counts(&self) -> bool {
        self.seen.lock().status.as_ref().is_ok_and(MemberStatus::counts)
    }

    /// Whether the process of this name counts, and else why not.
    fn eligibility_of(&self, run: &str) -> Result<(), String> {
        match &self.seen.lock().status {
            Ok(status) if status.run != run => {
                Err("it was restarted or made a replica of another server, and the gateway has not looked at it since".to_owned())
            }
            Ok(status) => status.eligibility(),
            Err(reason) => Err(reason.clone()),
        }
    }

    /// The link to the server, if it counts and can be asked at once.
    pub(super) fn link_now(&self) -> Option<Arc<Link>> {
        self.supervisor.link_now().filter(|link| self.eligibility_of(&link.incarnation).is_ok())
    }

    /// Runs a call on the server, if it counts.
    pub(super) async fn run(self: &Arc<Self>, call: &MemberCall, deadline: Instant) -> MemberAnswer {
        let out = |reason: String| Silence::Out(format!("{}: {reason}", self.name));
        let begin_by = part_of(deadline, BEGUN_WITHIN);
        let link = self.supervisor.link(begin_by).await.map_err(|error| out(error.to_string()))?;
        self.eligibility_of(&link.incarnation).map_err(out)?;
        let until = self.until(call.until).ok_or_else(|| out("its clock is not known yet".to_owned()))?;
        let place = link.permit(false, begin_by).await.map_err(|error| out(error.to_string()))?;
        // The caller does not wait for another link: other servers can answer.
        let _place = place.ok_or_else(|| out("its connection broke".to_owned()))?;
        if let Some(shortcut) = &call.shortcut {
            let asked_at = Instant::now();
            let answer = timeout_at(deadline, self.run_fast(shortcut, &until, &link)).await;
            match self.settled(&link, asked_at, answer)? {
                Some(reply) => return Ok(reply),
                None if Instant::now() > begin_by => {
                    return Err(out("its first answer came late".to_owned()));
                }
                None => {}
            }
        }
        let keys: Vec<&[u8]> =
            [&self.record].into_iter().chain(&call.keys).map(|key| key.as_bytes()).collect();
        let mut connection = link.connection.clone();
        let asked_at = Instant::now();
        let sent = call.script.run::<ScriptReply>(&mut connection, false, &keys, |command| {
            command.arg(&link.incarnation).arg(&self.epoch).arg(&until).arg(&call.field).arg(&call.args);
        });
        let reply = self.settled(&link, asked_at, timeout_at(deadline, sent).await)?;
        if reply.outcome >= 0 {
            return Ok(reply);
        }
        // In any case the server is not the one that it was taken for.
        self.nudge.notify_one();
        Err(out(why_out(reply.outcome).to_owned()))
    }

    /// What became of something that the server was asked over this link.
    fn settled<T>(
        &self,
        link: &Link,
        asked_at: Instant,
        answer: Result<RedisResult<T>, Elapsed>,
    ) -> Result<T, Silence> {
        link.settle(answer, asked_at).map_err(|failure| {
            let reason = format!("{}: {}", self.name, failure.reason);
            match failure.outcome {
                StepOutcome::NotYet | StepOutcome::NotDone => Silence::Out(reason),
                StepOutcome::Unknown => Silence::Doubt(reason),
            }
        })
    }

    /// Runs one of the scripts of the membership, even if the server does not count. Their first argument is the run of
    /// the server.
    pub(super) async fn ask(
        &self,
        script: &'static Script,
        args: &[String],
        deadline: Instant,
    ) -> Result<(Arc<Link>, ScriptReply), String> {
        let link = self.supervisor.link(deadline).await.map_err(|error: StoreError| error.to_string())?;
        let mut connection = link.connection.clone();
        let keys = [self.record.as_bytes()];
        let sent = script.run::<ScriptReply>(&mut connection, false, &keys, |command| {
            command.arg(&link.incarnation).arg(args);
        });
        match timeout_at(deadline, sent).await {
            Ok(Ok(reply)) => Ok((link, reply)),
            Ok(Err(error)) => Err(self.broken(&link, &error)),
            Err(_) => {
                link.report_broken();
                Err("it does not answer".to_owned())
            }
        }
    }

    fn broken(&self, link: &Link, error: &RedisError) -> String {
        let failure = Failure::of(error);
        if failure.breaks_link {
            link.report_broken();
        }
        failure.reason
    }

    fn until(&self, until: Until) -> Option<String> {
        Some(match until {
            Until::Always => String::new(),
            Until::About(at) => {
                let clock = self.clock()?;
                (clock.at(at) + clock.error_us).to_string()
            }
            Until::AtMost(at) => {
                let clock = self.clock()?;
                (clock.at(at) - clock.error_us).to_string()
            }
        })
    }
}

fn why_out(outcome: i64) -> &'static str {
    match outcome {
        -1 => "it has forgotten what it accepted",
        -2 => "it knows another list of servers",
        -3 => "it is in quarantine",
        -4 => "the request came too late by its clock",
        -5 => "leases last longer than it knows of",
        _ => "its answer is of another version of Fencepost",
    }
}

//! A look at the servers of a store before it is used, for operators.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::time::{Instant, timeout};

use self::contents::Contents;
use super::address::{AddressError, Layout, RedisAddress};
use super::client::{Client, without_deadlines};
use super::connection::sentinel::{Primary, Sentinels, epoch_known_to};
use super::connection::slots;
use super::failure::{describe, password_problem};
use super::health::loading::Loading;
use super::health::preflight::{Look, Preflight};
use super::health::profile::{Config, Profile};
use super::health::quorum;
use super::node::Node;
use super::scripts::keys::SLOTS;
use super::settings::RedisSettings;
use crate::clock::{Clock, SystemClock};
use crate::store::diagnostics::{Block, Diagnostics, promises};

mod contents;
mod promises;

/// How often a server is asked for its time at most: the shortest round trip says most about its clock.
const QUESTIONS: usize = 5;

/// Looks at the store at `address` as a gateway with these settings would use it, and leaves nothing behind.
pub async fn diagnose(address: &RedisAddress, settings: &RedisSettings) -> Result<Diagnostics, AddressError> {
    let mut diagnostics = Diagnostics::default();
    let mut rows = vec![("store", address.to_string())];
    if address.is_quorum() {
        rows.push(("records", format!("none: {}", quorum::KEEPS_NO_RECORDS)));
    }
    let (servers, primary) = match servers(address, settings, &mut rows, &mut diagnostics).await? {
        Ok(found) => found,
        Err(reason) => {
            diagnostics.unreachable.push(reason);
            (Vec::new(), None)
        }
    };
    diagnostics.blocks.push(Block(rows));
    let preflight = Preflight::new(address, settings);
    let is_alone = servers.len() == 1;
    let list = address.is_quorum().then(|| quorum::ServerList::new(address.nodes(), settings.list_epoch));
    let (mut looks, mut members) = (Vec::new(), Vec::new());
    for node in servers {
        let server = node.to_string();
        // Where there is one server only, it is known which is meant.
        let named = |text: String| if is_alone { text } else { format!("{server}: {text}") };
        let missing = |why: &str| list.as_ref().map(|_| quorum::missing(&server, why));
        match see(&address.client(&node)?, &preflight, settings, list.as_ref()).await {
            Ok(report) => {
                diagnostics.blocks.push(report.block(&server));
                let Look { refusals, warnings, too_few_replicas, .. } = &report.look;
                diagnostics.refusals.extend(refusals.iter().map(|refusal| named(refusal.to_string())));
                diagnostics.warnings.extend(warnings.iter().cloned().map(named));
                diagnostics.unready.extend(too_few_replicas.iter().cloned().map(named));
                diagnostics
                    .unready
                    .extend(primary.as_ref().and_then(|primary| primary.is_behind(report.epoch)));
                let ahead = report.timing.too_far_ahead().filter(|_| list.is_none());
                diagnostics.warnings.extend(ahead.map(named));
                let tokens_ahead = report.tokens_too_far_ahead(SystemClock.wall());
                diagnostics.warnings.extend(tokens_ahead.map(|ahead_s| named(tokens_are_ahead(ahead_s))));
                // Unless that is what it was refused for.
                let unfit = report.look.check().err().filter(|_| refusals.is_empty());
                diagnostics.unreachable.extend(unfit.map(named));
                diagnostics.unreadable.extend(report.contents.unreadable.iter().cloned().map(named));
                if list.is_none() {
                    let unready = report.look.unready();
                    diagnostics.unready.extend(unready.map(|reason| named(reason.to_string())));
                }
                members.extend(report.member(server, tokens_ahead));
                looks.push(report.look);
            }
            Err(Unseen::Refused(reason)) => diagnostics.refusals.push(named(reason)),
            Err(Unseen::Locked(reason)) => {
                diagnostics.blocks.extend(missing(reason));
                diagnostics.unready.push(named(reason.to_owned()));
            }
            Err(Unseen::Unreachable(reason)) => {
                diagnostics.blocks.extend(missing(&format!("it cannot be reached: {reason}")));
                diagnostics.unreachable.push(format!("{server}: {reason}"));
            }
        }
    }
    if let Some(list) = &list {
        let names: Vec<_> = address.nodes().iter().map(ToString::to_string).collect();
        quorum::conclude(&mut diagnostics, &members, &names, list);
        diagnostics.promises = promises(promises::of_quorum(&looks));
    } else if !looks.is_empty() {
        diagnostics.promises = promises(promises::statuses(&looks, address.layout(), settings.replicas_ack));
    }
    Ok(diagnostics)
}

/// The servers that hold locks, and by which word of Sentinel, or why they are not known. What told so is added to what is known of
/// the store, with what is wrong with it.
async fn servers(
    address: &RedisAddress,
    settings: &RedisSettings,
    rows: &mut Vec<(&'static str, String)>,
    diagnostics: &mut Diagnostics,
) -> Result<Result<(Vec<Node>, Option<Primary>), String>, AddressError> {
    match address.layout() {
        Layout::Server | Layout::Quorum => Ok(Ok((address.nodes().to_vec(), None))),
        Layout::Sentinel(name) => match Sentinels::new(address, name)?.find_primary_of_all().await {
            Ok(primary) => {
                let Primary { node, epoch, is_unanimous, twins } = &primary;
                diagnostics.warnings.extend(twins.clone());
                let how_many = if *is_unanimous { "all" } else { "most" };
                rows.push((
                    "primary",
                    format!("{node} by the word of {how_many} sentinels, config-epoch {epoch}"),
                ));
                Ok(Ok((vec![node.clone()], Some(primary))))
            }
            Err(reason) => Ok(Err(reason)),
        },
        Layout::Cluster => {
            let primaries = slots::primaries(address, settings.reply_timeout).await;
            if let Ok((primaries, served)) = &primaries {
                rows.push(("primaries", primaries.len().to_string()));
                rows.push(("slots", format!("{served} of {SLOTS} have a server")));
                diagnostics.unready.extend(slots::gap(*served));
            }
            Ok(primaries.map(|(primaries, _)| (primaries, None)))
        }
    }
}

/// How far a server's clock may be ahead of this machine's before that is worth a word, in seconds.
const MOST_AHEAD_S: f64 = 10.0;
/// What a server's clock is read to, in milliseconds.
const A_TICK_MS: f64 = 0.001;

/// What one server is like.
struct ServerReport {
    look: Look,
    timing: Timing,
    /// Its part in a quorum, if it is to be one of it.
    membership: Option<quorum::PartOfQuorum>,
    contents: Contents,
    /// The config-epoch of Sentinel that it knows, or 0.
    epoch: u64,
}

/// The quickest answer of a server to a question for its time.
#[derive(Clone, Copy)]
struct Timing {
    round_trip: Duration,
    /// How far its clock is ahead of this machine's, right to within half of the round trip.
    ahead_seconds: f64,
}

/// Why a server could not be looked at.
enum Unseen {
    Unreachable(String),
    /// It asks for a password, or for another one.
    Locked(&'static str),
    Refused(String),
}

async fn see(
    client: &Client,
    preflight: &Preflight,
    settings: &RedisSettings,
    list: Option<&quorum::ServerList>,
) -> Result<ServerReport, Unseen> {
    let patience = settings.reply_timeout;
    let waited = humantime::format_duration(patience);
    let connected = timeout(patience, client.connect(without_deadlines())).await.map_err(|_| {
        let hint = match client.address() {
            ConnectionAddr::TcpTls { .. } => {
                ": does the server speak TLS at this port? If not, write redis:// or redlock://"
            }
            _ => "",
        };
        Unseen::Unreachable(format!("no answer within {waited}{hint}"))
    })?;
    let mut connection = connected.map_err(|error| Unseen::of(&error))?;
    let looking = async {
        let stop_at = Instant::now() + patience / 2;
        let look = preflight.look(&connection, None).await?;
        let membership = match list {
            Some(list) => Some(quorum::membership(&mut connection, preflight, &look.profile, list).await?),
            None => None,
        };
        // What keeps it from being read, the contents say.
        let epoch = epoch_known_to(&mut connection, preflight.keys()).await.unwrap_or_default();
        let timing = Timing::take(&mut connection, stop_at).await?;
        Ok((look, membership, timing, epoch))
    };
    let looked = timeout(patience, looking).await.map_err(|_| {
        let reason = format!("it did not answer all that is asked within {waited}, half of --store-timeout");
        Unseen::Unreachable(reason)
    })?;
    let (look, membership, timing, epoch) = looked.map_err(|error| Unseen::of(&error))?;
    let mut contents = Contents::default();
    if look.may_list {
        let reads_records = look.room.may_be_read();
        let finding = contents.find(&mut connection, preflight.keys(), list.is_some(), reads_records);
        // What is found by then is told. A gateway does not ask for it.
        if let Ok(found) = timeout(patience, finding).await {
            found.map_err(|error| Unseen::of(&error))?;
        }
    }
    Ok(ServerReport { look, timing, membership, contents, epoch })
}

impl Unseen {
    fn of(error: &RedisError) -> Self {
        if let Some(problem) = password_problem(error) {
            return Self::Locked(problem);
        }
        match error.kind() {
            ErrorKind::RESP3NotSupported => Self::Refused("it is older than Redis 6.0".to_owned()),
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                Self::Refused(format!("the Redis user lacks permissions: {}", describe(error)))
            }
            _ => Self::Unreachable(describe(error)),
        }
    }
}

impl Timing {
    /// That fencing tokens are ahead of the time, as they follow the server's clock.
    fn too_far_ahead(&self) -> Option<String> {
        (self.ahead_seconds > MOST_AHEAD_S).then(|| {
            format!(
                "its clock is {:.0} s ahead of this machine's, and fencing tokens follow it: once it is set right, a server that has lost \
                 its data gives smaller ones",
                self.ahead_seconds
            )
        })
    }

    /// Asks until then, and at least once.
    async fn take(connection: &mut MultiplexedConnection, stop_at: Instant) -> RedisResult<Self> {
        let mut best = Self::take_once(connection).await?;
        for _ in 1..QUESTIONS {
            if Instant::now() >= stop_at {
                break;
            }
            let next = Self::take_once(connection).await?;
            if next.round_trip < best.round_trip {
                best = next;
            }
        }
        Ok(best)
    }

    async fn take_once(connection: &mut MultiplexedConnection) -> RedisResult<Self> {
        // In this order, so that the question falls into the round trip on both clocks.
        let (started, asked_at) = (Instant::now(), SystemClock.wall());
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
        let round_trip = started.elapsed();
        let its = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let ahead_seconds = its.as_secs_f64() - (asked_at + round_trip / 2).as_secs_f64();
        Ok(Self { round_trip, ahead_seconds })
    }

    fn clock(&self) -> String {
        let (off_ms, error_ms) =
            (self.ahead_seconds * 1e3, self.round_trip.as_secs_f64() * 1e3 / 2.0 + A_TICK_MS);
        if off_ms.abs() <= error_ms {
            return format!("that of this machine, to within {error_ms:.2} ms");
        }
        let side = if off_ms > 0.0 { "ahead of" } else { "behind" };
        format!("{:.2} ms {side} this machine's, to within {error_ms:.2} ms", off_ms.abs())
    }
}

impl ServerReport {
    fn block(&self, server: &str) -> Block {
        let Look { profile, config, loading, .. } = &self.look;
        let role = if profile.identity.is_primary { "primary" } else { "replica" };
        let mut rows = vec![
            ("server", server.to_owned()),
            ("version", profile.product.clone()),
            ("role", role.to_owned()),
            ("persistence", persistence(profile, config, loading)),
            ("eviction", eviction(profile)),
        ];
        // A quorum keeps none anywhere.
        rows.extend(self.membership.is_none().then(|| ("records", self.look.room.to_string())));
        rows.extend([
            ("replicas", replicas(profile, config)),
            ("round trip", format!("{:.2} ms", self.timing.round_trip.as_secs_f64() * 1e3)),
            ("clock", self.timing.clock()),
        ]);
        rows.extend(self.membership.as_ref().map(|membership| ("quorum", membership.text.clone())));
        Block(rows)
    }

    /// How many seconds tokens are ahead of the server's clock, as it is when this machine's says `wall`.
    fn tokens_too_far_ahead(&self, wall: Duration) -> Option<f64> {
        let last_s = Duration::from_micros(self.contents.last_number).as_secs_f64();
        let ahead_s = last_s - wall.as_secs_f64() - self.timing.ahead_seconds;
        (ahead_s > MOST_AHEAD_S).then_some(ahead_s)
    }

    fn member(&self, server: String, tokens_ahead: Option<f64>) -> Option<quorum::QuorumServer> {
        let Look { profile, .. } = &self.look;
        let behind = |ahead_s| {
            format!("its clock is {ahead_s:.0} s behind its fencing tokens: it refuses most others")
        };
        Some(quorum::QuorumServer {
            server,
            membership: self.membership.clone()?,
            run: profile.identity.incarnation(),
            unready: self.look.unready().or_else(|| tokens_ahead.map(|ahead_s| behind(ahead_s).into())),
            ahead_seconds: self.timing.ahead_seconds,
        })
    }
}

fn tokens_are_ahead(ahead_s: f64) -> String {
    format!(
        "its fencing tokens are {ahead_s:.0} s ahead of its clock: until that has passed them, do not delete or restore the data of the \
         store, since tokens would repeat"
    )
}

fn persistence(profile: &Profile, config: &Config, loading: &Loading) -> String {
    if !profile.has_append_only_file {
        let text = match config.takes_snapshots {
            Some(true) => "snapshots only",
            Some(false) => "none",
            None => "no append-only file; of snapshots the user may not ask",
        };
        return text.to_owned();
    }
    let synced = match config.append_fsync.as_deref() {
        Some("always") => ", synced with each write",
        Some("everysec") => ", synced every second",
        Some("no") => ", not always synced (appendfsync no, or no-appendfsync-on-rewrite yes)",
        _ => "; how often it is synced is not known, since the user may not use CONFIG",
    };
    let loaded = match loading {
        Loading::All => "",
        Loading::Part(_) => "; a restart may drop a part of it",
        Loading::Unknown => "; whether a restart loads all of it is not known",
    };
    format!("append-only file{synced}{loaded}")
}

fn eviction(profile: &Profile) -> String {
    match (profile.max_memory, &*profile.eviction_policy) {
        (0, _) => "none, since maxmemory is not set".to_owned(),
        (bytes, "noeviction") => {
            let used = profile.used_memory;
            format!("none; nothing more is granted at {bytes} bytes, and {used} are used")
        }
        (bytes, policy) => format!("{policy} at {bytes} bytes"),
    }
}

fn replicas(profile: &Profile, config: &Config) -> String {
    let guard = match (profile.lacks_guard(config), profile.good_replicas) {
        (None, Some(good)) => {
            let needed = config.min_replicas.map_or_else(|| "set".to_owned(), |needed| needed.to_string());
            format!("min-replicas-to-write is {needed}, and {good} keep up")
        }
        (reason, _) => reason.unwrap_or_default(),
    };
    format!("{} connected, {guard}", profile.replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_far_ahead_is_worth_a_word() {
        let told =
            |ahead_seconds| Timing { round_trip: Duration::from_millis(1), ahead_seconds }.too_far_ahead();
        assert_eq!([-3_600.0, 0.0, 9.9].map(told), [None, None, None]);
        assert!(
            told(3_600.4).is_some_and(|text| text.starts_with("its clock is 3600 s ahead of this machine's"))
        );
    }
}

//! Many runs at once under the same kind of faults, and what must be left of them when everybody has gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::clock::boottime;
use fencepost::lock::{Inspected, LeaseToken, LockKey, Terms, Ttl};
use fencepost::service::{AcquireRequest, Tenant};
use futures_util::StreamExt;
use futures_util::stream;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::PREFIX;
use super::faults::{Faults, Tape, Weather};
use super::fleet::{Answer, Base, Fleet};
use super::people::{Deed, Scene};
use super::plan::Run;
use super::verdict::judge;
use kit::{PATIENCE, RedisServer, fresh_token};

/// Runs of a round that go on at once, on a machine that keeps up with them and on one that does not.
const AT_ONCE: usize = 120;
const FEWEST_AT_ONCE: usize = 10;
/// Between the beginnings of two runs.
const PAUSE: Duration = Duration::from_millis(5);
/// A stall keeps others from beginning for so long.
const CALMS_IN: Duration = Duration::from_millis(500);
/// For so long a gateway says that its store does not answer, after a stall in which it did not.
const LINGERS: Duration = Duration::from_secs(3);
/// On a busy machine so many runs of a round must do, and none begins after this time.
const FEWEST: u64 = 200;
const ALL_BEGIN_IN: Duration = Duration::from_secs(90);
/// After so long a gateway that was killed is known to be gone, and a place without a client is lost.
const ALL_ARE_GONE: Duration = Duration::from_millis(1_700);

/// A run that went wrong: its number, what happened, and what is wrong.
pub type Wrong = (u64, Vec<String>, String);

pub struct Round {
    name: &'static str,
    seed: u64,
    faults: Faults,
    base: Base,
    weather: Arc<Weather>,
    fleet: Arc<Fleet>,
}

/// A run that is over.
struct Played {
    number: u64,
    key: LockKey,
    tape: Arc<Tape>,
    wrong: Vec<String>,
    pairs: usize,
    deeds: usize,
    longest_wait: Duration,
}

/// Lets the runs of a round begin one by one, and only a few be there while the machine is behind: what has hundreds of
/// requests on their way at once then answers none of them in time.
struct Door {
    began: Instant,
    /// How many have begun.
    turn: Mutex<u64>,
    inside: AtomicUsize,
}

impl Door {
    fn new(began: Instant) -> Self {
        Self { began, turn: Mutex::default(), inside: AtomicUsize::new(0) }
    }

    /// Waits for the turn of a run; returns whether there is still time for it.
    async fn opens(&self, weather: &Weather) -> bool {
        let mut turn = self.turn.lock().await;
        sleep(PAUSE).await;
        while weather.had_stall_since(boottime().saturating_sub(CALMS_IN))
            && self.inside.load(Ordering::SeqCst) >= FEWEST_AT_ONCE
        {
            sleep(10 * PAUSE).await;
        }
        if *turn >= FEWEST && self.began.elapsed() > ALL_BEGIN_IN {
            return false;
        }
        *turn += 1;
        self.inside.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn left(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Round {
    pub fn new(name: &'static str, seed: u64, faults: Faults, base: Base) -> Self {
        let weather = Arc::new(Weather::new(faults, seed));
        let fleet = Arc::new(Fleet::start(base.clone(), weather.clone()));
        Self { name, seed, faults, base, weather, fleet }
    }

    /// Plays the runs of these numbers; returns those that went wrong.
    pub async fn play(self, numbers: Vec<u64>) -> Vec<Wrong> {
        let began = Instant::now();
        let is_over = CancellationToken::new();
        let runs = async {
            let door = Door::new(began);
            let runs = stream::iter((0..).zip(numbers)).map(async |(copy, number)| {
                door.opens(&self.weather).await.then_some(())?;
                let played = self.start(copy, number).await;
                door.left();
                Some(played)
            });
            let played: Vec<Option<Played>> = runs.buffer_unordered(AT_ONCE).collect().await;
            is_over.cancel();
            played.into_iter().flatten().collect()
        };
        let (mut played, ()): (Vec<Played>, ()) = tokio::join!(runs, self.fail_until(&is_over));
        let runs_took = began.elapsed();
        self.weather.clear().await;
        self.end(&mut played).await;
        let count = |count: fn(&Played) -> usize| played.iter().map(count).sum::<usize>();
        println!(
            "{}: {} runs, {} deeds, {} pairs in order, longest wait for a grant {:?}, {} stalls, {runs_took:?} and {:?}",
            self.name,
            played.len(),
            count(|run| run.deeds),
            count(|run| run.pairs),
            played.iter().map(|run| run.longest_wait).max().unwrap_or_default(),
            self.weather.stalls(),
            began.elapsed() - runs_took,
        );
        let wrong = played.into_iter().filter(|run| !run.wrong.is_empty());
        wrong.map(|run| (run.number, run.tape.read(), run.wrong.join("; "))).collect()
    }

    /// Plays a run in a task of its own.
    async fn start(&self, copy: usize, number: u64) -> Played {
        let run = Arc::new(Run::draw(self.seed, number, self.faults.kills));
        let key = LockKey::parse(format!("{number}-{copy}").as_bytes()).unwrap();
        let tape = Arc::new(Tape::new(self.seed.wrapping_sub(number)));
        self.weather.watch(key.clone(), tape.clone());
        for (number, person) in run.people.iter().enumerate() {
            tape.note(boottime(), format!("{number}: {person:?}"));
        }
        let scene = Scene::new(run, key.clone(), tape.clone(), self.fleet.clone());
        let began = boottime();
        let deeds = tokio::spawn(async move { scene.play().await }).await.unwrap();
        let is_timely = !self.weather.had_stall_within(began.saturating_sub(LINGERS), boottime());
        let (wrong, pairs) = judge(&deeds, self.faults, is_timely);
        let longest_wait = deeds.iter().filter_map(Deed::waited_for_grant).max().unwrap_or_default();
        Played { number, key, tape, wrong, pairs, deeds: deeds.len(), longest_wait }
    }

    /// What befalls whole gateways, until the runs are over.
    async fn fail_until(&self, is_over: &CancellationToken) {
        let Faults { kills, cuts, forgets, .. } = self.faults;
        let possible: Vec<_> =
            [(kills, 0), (kills, 0), (cuts, 1), (forgets, 2)].into_iter().filter(|(is, _)| *is).collect();
        let mut random = StdRng::seed_from_u64(self.seed);
        while let Some((_, fault)) = possible.choose(&mut random) {
            let next = Duration::from_millis(random.random_range(300..1_500));
            tokio::select! {
                () = is_over.cancelled() => return,
                () = sleep(next) => {}
            }
            match fault {
                0 => self.replace_one(&mut random).await,
                1 => self.fleet.cut().await,
                _ => self.fleet.forget().await,
            }
        }
    }

    async fn replace_one(&self, random: &mut StdRng) {
        let number = random.random_range(0..self.fleet.size());
        let pause = Duration::from_millis(random.random_range(0..400));
        // Some are told to end, and are killed while they do.
        let is_warned = random.random_bool(0.25);
        let warned_before = is_warned.then(|| Duration::from_millis(random.random_range(0..100)));
        self.fleet.replace(number, warned_before, pause).await;
    }

    /// Everybody has gone: no lock is held longer than its lease, no place has a client, and whoever comes is served
    /// at once. When the places without clients are lost, nothing is left.
    async fn end(&self, played: &mut [Played]) {
        let give_up = Instant::now() + PATIENCE;
        let mut left = self.left_by_clients().await;
        while !left.is_empty() && Instant::now() < give_up {
            sleep(Duration::from_millis(50)).await;
            left = self.left_by_clients().await;
        }
        blame(played, left);
        for _ in 0..2 {
            sleep(ALL_ARE_GONE).await;
            let keys: Vec<LockKey> = played.iter().map(|run| run.key.clone()).collect();
            let visits = stream::iter(keys).map(|key| self.visit(key));
            let refused: Vec<_> = visits.buffer_unordered(32).collect().await;
            blame(played, refused.into_iter().flatten().collect());
        }
        for run in played.iter_mut() {
            let seen = self.fleet.look(run.key.clone()).await;
            if !matches!(seen, Ok(Inspected::Free { waiters: 0 })) {
                run.wrong.push(format!("left at last: {seen:?}"));
            }
        }
        blame(played, self.left_at_last().await);
    }

    /// Takes the lock without waiting, and releases it.
    async fn visit(&self, key: LockKey) -> Option<(String, String)> {
        let token = LeaseToken::parse(fresh_token().as_bytes()).unwrap();
        let ttl = Ttl::from_ms(60_000).unwrap();
        let mut answer = Answer::Never;
        // The machine may be slow. Nothing else stands in the way of an answer any more.
        for _ in 0..5 {
            let (wait, note) = (Duration::ZERO, Default::default());
            let wish = AcquireRequest {
                key: key.clone(),
                token: Some(token.clone()),
                ttl,
                note,
                wait,
                terms: Terms::default(),
                tenant: Tenant::default(),
            };
            (answer, _) = self.fleet.put(0, wish, None).await;
            if !matches!(answer, Answer::Failed(_)) {
                break;
            }
        }
        self.fleet.release(0, key.clone(), token).await;
        let is_granted = matches!(answer, Answer::Granted(..));
        (!is_granted).then(|| (key.as_str().to_owned(), format!("when all had gone, one got {answer:?}")))
    }

    async fn left_by_clients(&self) -> Vec<(String, String)> {
        let Base::Redis(server) = &self.base else { return Vec::new() };
        let channels: Vec<String> = server.command(&["PUBSUB", "SHARDCHANNELS"]).await;
        let gateways = channels.iter().filter_map(|channel| channel.split(':').next_back());
        look(server, LEFT_BY_CLIENTS, gateways).await
    }

    async fn left_at_last(&self) -> Vec<(String, String)> {
        let Base::Redis(server) = &self.base else { return Vec::new() };
        look(server, LEFT_AT_LAST, std::iter::empty()).await
    }
}

/// What no client, and no gateway that lives, has anything to do with any more: locks; seats of gateways that live;
/// who stands in line without a seat; places without a client that never end; and keys that never do.
const LEFT_BY_CLIENTS: &str = r"
local left, base = {}, ARGV[1] .. ':{0}:'
local function note(name, what) left[#left + 1] = { string.match(name, '[^:]+$'), what } end
for _, name in ipairs(redis.call('KEYS', base .. '*')) do
    local kind = string.match(name, '^[^:]+:{0}:([^:]+)')
    if redis.call('PTTL', name) == -1 and kind ~= 'fence' then note(name, 'a key without a ttl: ' .. name) end
    if kind == 'lock' then note(name, 'a lock is left: ' .. (redis.call('GET', name) or '')) end
    if kind == 'seats' then
        local key = string.match(name, '[^:]+$')
        local seats = redis.call('HGETALL', name)
        for i = 1, #seats, 2 do
            local gateway = string.match(seats[i + 1], '^%S+ (%S+)')
            for j = 2, #ARGV do
                if ARGV[j] == gateway then note(name, 'a seat is left: ' .. seats[i] .. ' ' .. seats[i + 1]) end
            end
            if gateway == '-' and not redis.call('ZSCORE', base .. 'away:' .. key, seats[i]) then
                note(name, 'a place without a client never ends: ' .. seats[i])
            end
        end
    end
    if kind == 'line' then
        for _, token in ipairs(redis.call('ZRANGE', name, 0, -1)) do
            local seat = redis.call('HGET', base .. 'seats:' .. string.match(name, '[^:]+$'), token)
            if not seat then note(name, 'one stands in line without a seat: ' .. token) end
        end
    end
end
return left";

/// Whatever belongs to a lock, but for the marks of tokens.
const LEFT_AT_LAST: &str = r"
local left = {}
for _, kind in ipairs({ 'lock', 'seats', 'line', 'away' }) do
    for _, name in ipairs(redis.call('KEYS', ARGV[1] .. ':{0}:' .. kind .. ':*')) do
        left[#left + 1] = { string.match(name, '[^:]+$'), 'left at last: ' .. kind }
    end
end
return left";

async fn look<'a>(
    server: &RedisServer,
    script: &'a str,
    gateways: impl Iterator<Item = &'a str>,
) -> Vec<(String, String)> {
    let words: Vec<&str> = ["EVAL", script, "0", PREFIX].into_iter().chain(gateways).collect();
    server.command(&words).await
}

/// Notes what is wrong with the run whose key it is.
fn blame(played: &mut [Played], left: Vec<(String, String)>) {
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, what) in left {
        by_key.entry(key).or_default().push(what);
    }
    for run in played {
        run.wrong.extend(by_key.remove(run.key.as_str()).into_iter().flatten());
    }
    assert!(by_key.is_empty(), "left of no run: {by_key:?}");
}

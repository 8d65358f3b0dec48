//! A table and a Redis that are asked the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost::lock::{Acquired, FencingToken, LockKey, Ticket, TokenHash};
use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use fencepost::store::redis::{RedisSettings, RedisStore};
use fencepost::store::{
    Break, Bucket, Confirm, Enqueue, Heartbeat, Inspect, LastPoll, LineSettings, LockRequest, LockStore,
    PassOn, Poll, Release, Renew, Reply, Request, RollBack, TicketAfter, Try,
};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::Place;
use super::agreement::{Known, agree, of_itself};
use super::plan::{Fate, MARK_TTL, MOST_WAITERS, Step, TICKET_TTL, What};
use kit::PATIENCE;
use kit::asking::lock_request;

/// Lets so many ms pass for all that is kept under a prefix, and returns how many they were. Two things that gateways see to are
/// seen to here:
///
/// - They look at a lock within a second where it is due, before the key of a lapsed offer is gone, and with it who let it lapse.
///   So while a lock is offered, as much time passes as lets the offer lapse.
/// - No wait is longer than a mark lives, and the keys of a queue outlive it. So they are not let end.
const PASS: &str = r"
local base, pass_ms, ticket_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local kinds = {}
for _, name in ipairs(redis.call('KEYS', base .. '*')) do
    kinds[name] = string.match(string.sub(name, #base + 1), '^%a+')
end
local offers = ''
for name, kind in pairs(kinds) do
    if kind == 'lock' then offers = offers .. (string.match(redis.call('GET', name) .. '\n', '^%?.*') or '') end
    if kind == 'held' then offers = offers .. redis.call('HGET', name, '*') end
end
local is_offered, is_open = false, false
for start_ms in string.gmatch(offers, ' (%d+)\n') do
    is_offered, is_open = true, is_open or now_ms - start_ms < 800
end
if is_offered then pass_ms = is_open and 1200 or 0 end
for name, kind in pairs(kinds) do
    local is_of_queue = kind == 'seats' or kind == 'line'
    if is_of_queue and redis.call('PTTL', name) < pass_ms + ticket_ms then return 0 end
end
if pass_ms == 0 then return 0 end
local function earlier(at_ms) return string.format('%.0f', at_ms == '0' and 0 or at_ms - pass_ms) end
for name, kind in pairs(kinds) do
    if kind == 'lock' then
        local lock = redis.call('GET', name)
        lock = string.gsub(lock, '^(%?.* )(%d+)$', function(rest, start_ms) return rest .. earlier(start_ms) end)
        lock = string.gsub(lock, '^(%S+ %S+ %d+:)(%d+):(%d+)', function(rest, max_ms, min_ms)
            return rest .. earlier(max_ms) .. ':' .. earlier(min_ms)
        end)
        redis.call('SET', name, lock, 'KEEPTTL')
    elseif kind == 'held' then
        local all = redis.call('HGETALL', name)
        for i = 1, #all, 2 do
            local text = string.gsub(all[i + 1], '^(%d+ %d+ %S+ %d+:)(%d+):(%d+)', function(rest, max_ms, min_ms)
                return rest .. earlier(max_ms) .. ':' .. earlier(min_ms)
            end)
            if all[i] == '*' then
                text = string.gsub(text, ' (%d+)\n', function(start_ms) return ' ' .. earlier(start_ms) .. '\n' end)
            end
            redis.call('HSET', name, all[i], text)
        end
    elseif kind == 'away' or kind == 'due' or kind == 'gates' or kind == 'ends' then
        for _, member in ipairs(redis.call('ZRANGE', name, 0, -1)) do
            if member ~= '*' then redis.call('ZINCRBY', name, -pass_ms, member) end
        end
    end
    local left_ms = redis.call('PTTL', name)
    if left_ms > 0 then redis.call('PEXPIRE', name, left_ms - pass_ms) end
end
return pass_ms";

/// Has everything under a prefix be gone but the numbers.
const CLEAR: &str = r"
for _, name in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
    if name ~= ARGV[1] .. 'fence' then redis.call('DEL', name) end
end";

/// A gateway that was not heard of for longer is absent before long.
const HEARD_OF_WITHIN: Duration = Duration::from_millis(300);

/// A clock that stands still until it is moved.
struct MovedClock(AtomicU64);

impl Clock for MovedClock {
    fn boot(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Duration {
        self.boot()
    }

    fn boot_id(&self) -> String {
        String::new()
    }
}

/// Both stores, of which Redis is asked by way of two gateways.
pub struct Pair {
    table: EmbeddedStore,
    clock: Arc<MovedClock>,
    gateways: [RedisStore; 2],
    connection: MultiplexedConnection,
    /// How all names begin in Redis.
    base: String,
    /// Sequences that were played.
    played: usize,
    is_in_real_time: bool,
    /// Until when the clock was moved by what really passed.
    followed: Instant,
    heard_of_at: Instant,
}

/// What was told in a sequence, first by the table and then by Redis.
#[derive(Default)]
struct Told {
    fences: Vec<(FencingToken, FencingToken)>,
    tickets: Vec<(TokenHash, Ticket, Ticket)>,
}

impl Pair {
    /// Redis has a prefix to itself.
    pub fn start(Place { address, connection, is_in_real_time }: Place, prefix: &str) -> Self {
        let clock = Arc::new(MovedClock(AtomicU64::new(1_000_000_000)));
        let line = LineSettings { ticket_ttl: TICKET_TTL, max_waiters_per_key: MOST_WAITERS };
        let table = EmbeddedStore::in_memory(
            EmbeddedSettings { mark_ttl: MARK_TTL, line, ..EmbeddedSettings::default() },
            clock.clone(),
        );
        let gateway = || {
            let settings = RedisSettings {
                prefix: prefix.to_owned(),
                reply_timeout: PATIENCE,
                mark_ttl: MARK_TTL,
                line,
                ..RedisSettings::default()
            };
            RedisStore::start(&address, &settings).unwrap()
        };
        Self {
            table: table.unwrap(),
            clock,
            gateways: [gateway(), gateway()],
            connection,
            base: format!("{prefix}:{{0}}:"),
            played: 0,
            is_in_real_time,
            followed: Instant::now(),
            heard_of_at: Instant::now(),
        }
    }

    /// Says what differs first, if anything does, and how long it took.
    pub async fn play(&mut self, steps: &[Step]) -> (Option<String>, Duration) {
        self.played += 1;
        // No store remembers anything of it.
        let key = LockKey::parse(format!("lock {}", self.played).as_bytes()).unwrap();
        let _: () = self.script(CLEAR, &[]).await;
        let began = Instant::now();
        self.beat().await;
        let difference = self.play_at(&key, steps).await.err();
        (difference, began.elapsed())
    }

    async fn play_at(&mut self, key: &LockKey, steps: &[Step]) -> Result<(), String> {
        let (mut told, mut known) = (Told::default(), Known::default());
        // What was sent first, by the number that its copies share.
        let mut sent: HashMap<usize, Option<(Request, Request)>> = HashMap::new();
        for step in steps {
            // No two commands come at the same time.
            self.clock.0.fetch_add(1, Ordering::SeqCst);
            self.follow().await;
            match &step.what {
                What::Pass(ms) => self.pass(*ms).await,
                What::Ask { request, gateway, fate } => {
                    let requests = sent.entry(step.id).or_insert_with(|| told.resolve(request, key));
                    let Some(requests) = requests.as_ref().filter(|_| *fate != Fate::Lost) else { continue };
                    let replies = self.ask(*gateway, requests).await?;
                    let numbers = agree(replies, &mut known).map_err(|what| format!("{step}\n{what}"))?;
                    if *fate == Fate::Answered {
                        told.learn(numbers.fences);
                        let token = lock_request(request).map(|lock| lock.token);
                        let tickets = numbers.tickets.into_iter();
                        told.tickets.extend(tickets.filter_map(|(a, b)| Some((token?, a, b))));
                    }
                }
                What::AskAtOnce { requests, gateway } => {
                    let requests: Vec<_> =
                        requests.iter().filter_map(|request| told.resolve(request, key)).collect();
                    for (table, redis) in self.ask_at_once(key, *gateway, &requests).await? {
                        let replies = (of_itself(table), of_itself(redis));
                        let numbers = agree(replies, &mut known).map_err(|what| format!("{step}\n{what}"))?;
                        told.learn(numbers.fences);
                    }
                }
            }
            self.follow().await;
            let look: Request = Inspect { key: key.clone(), token: None }.into();
            let seen = self.ask(0, &(look.clone(), look)).await?;
            agree(seen, &mut known).map_err(|what| format!("who holds the lock after {step}\n{what}"))?;
        }
        Ok(())
    }

    async fn ask(
        &self,
        gateway: usize,
        (to_table, to_redis): &(Request, Request),
    ) -> Result<(Reply, Reply), String> {
        let deadline = Instant::now() + PATIENCE;
        let (table, redis) =
            tokio::join!(self.table.run(to_table, deadline), self.gateways[gateway].run(to_redis, deadline));
        let failed = |error| format!("{to_redis:?}\n  {error:?}");
        Ok((table.map_err(failed)?, redis.map_err(failed)?))
    }

    /// Asks Redis at one moment, and then the table. Where nobody waits, those that the small script leaves come later, so those
    /// who are granted the lock come first. But a token that was refused before it was granted the lock asks in that order.
    async fn ask_at_once(
        &mut self,
        key: &LockKey,
        gateway: usize,
        requests: &[(Request, Request)],
    ) -> Result<Vec<(Reply, Reply)>, String> {
        let deadline = Instant::now() + PATIENCE;
        let asked = requests.iter().map(|(_, to_redis)| self.gateways[gateway].run(to_redis, deadline));
        let tickets = format!("{}seats:{}", self.base, key.as_str());
        let waits: bool = redis::cmd("EXISTS").arg(tickets).query_async(&mut self.connection).await.unwrap();
        let mut both: Vec<_> = requests.iter().zip(join_all(asked).await).collect();
        let token_of = |(to_table, _): &(Request, Request)| lock_request(to_table).map(|lock| lock.token);
        let granted = both.iter().filter_map(|(request, redis)| match redis {
            Ok(Reply::Try(Acquired::Granted(lease))) if !waits => {
                Some((token_of(request), lease.fencing_token.get()))
            }
            _ => None,
        });
        let granted: HashMap<_, _> = granted.collect();
        both.sort_by_key(|(request, redis)| match (redis, granted.get(&token_of(request))) {
            (Ok(Reply::Try(Acquired::NotTaken(_))), Some(number)) => (*number, 0),
            (Ok(Reply::Try(Acquired::Granted(_))), Some(number)) => (*number, 1),
            _ => (u64::MAX, 0),
        });
        let mut replies = Vec::new();
        for ((to_table, _), redis) in both {
            let failed = |error| format!("{to_table:?}\n  {error:?}");
            let table = self.table.run(to_table, deadline).await;
            replies.push((table.map_err(failed)?, redis.map_err(failed)?));
        }
        Ok(replies)
    }

    /// Moves the clock by what has really passed, where Redis lets it pass too.
    async fn follow(&mut self) {
        if !self.is_in_real_time {
            return;
        }
        if self.heard_of_at.elapsed() > HEARD_OF_WITHIN {
            self.beat().await;
        }
        let passed_ms = u64::try_from(self.followed.elapsed().as_millis()).unwrap();
        self.followed += Duration::from_millis(passed_ms);
        self.clock.0.fetch_add(passed_ms, Ordering::SeqCst);
    }

    /// Lets time pass.
    async fn pass(&mut self, ms: u64) {
        let ticket_ms = TICKET_TTL.as_millis().to_string();
        let passed_ms: u64 = self.script(PASS, &[&ms.to_string(), &ticket_ms]).await;
        self.clock.0.fetch_add(passed_ms, Ordering::SeqCst);
        self.beat().await;
    }

    /// The gateways say that they are there: the table knows of none that are not.
    async fn beat(&mut self) {
        let heartbeat = Request::from(Heartbeat { bucket: Bucket::default() });
        for gateway in &self.gateways {
            gateway.run(&heartbeat, Instant::now() + PATIENCE).await.unwrap();
        }
        self.heard_of_at = Instant::now();
    }

    async fn script<T: redis::FromRedisValue>(&mut self, script: &str, args: &[&str]) -> T {
        let script = redis::Script::new(script);
        let mut call = script.arg(&self.base);
        for arg in args {
            call.arg(arg);
        }
        call.invoke_async(&mut self.connection).await.unwrap()
    }
}

impl Told {
    fn learn(&mut self, fences: Vec<(FencingToken, FencingToken)>) {
        for pair in fences {
            if !self.fences.contains(&pair) {
                self.fences.push(pair);
            }
        }
    }

    /// The request as it is sent to each; nothing where it rests on what nobody was told.
    fn resolve(&self, request: &Request, key: &LockKey) -> Option<(Request, Request)> {
        let (mut to_table, mut to_redis) = (request.clone(), request.clone());
        *key_of(&mut to_table) = key.clone();
        *key_of(&mut to_redis) = key.clone();
        match (&mut to_table, &mut to_redis) {
            (Request::Break(to_table), Request::Break(to_redis)) => {
                let place = usize::try_from(to_table.fence.get()).unwrap();
                (to_table.fence, to_redis.fence) = *self.fences.get(place - 1)?;
            }
            (Request::Enqueue(to_table), Request::Enqueue(to_redis)) => {
                let tickets = to_table.ticket.and_then(|ticket| self.ticket(to_table.lock.token, ticket));
                (to_table.ticket, to_redis.ticket) = tickets.unzip();
            }
            (
                Request::LastPoll(LastPoll { lock: LockRequest { token, .. }, ticket: to_table }),
                Request::LastPoll(LastPoll { ticket: to_redis, .. }),
            )
            | (
                Request::RollBack(RollBack { token, ticket: to_table, .. }),
                Request::RollBack(RollBack { ticket: to_redis, .. }),
            ) => {
                if let TicketAfter::KeptAt(ticket) = *to_table {
                    let tickets = self.ticket(*token, ticket).unzip();
                    let kept = |ticket: Option<Ticket>| ticket.map_or(TicketAfter::Kept, TicketAfter::KeptAt);
                    (*to_table, *to_redis) = (kept(tickets.0), kept(tickets.1));
                }
            }
            _ => {}
        }
        Some((to_table, to_redis))
    }

    /// One of the tickets of a token.
    fn ticket(&self, token: TokenHash, place: Ticket) -> Option<(Ticket, Ticket)> {
        let mut own = self.tickets.iter().filter(|(of, ..)| *of == token);
        own.nth(usize::try_from(place.get()).unwrap() - 1).map(|(_, a, b)| (*a, *b))
    }
}

fn key_of(request: &mut Request) -> &mut LockKey {
    match request {
        Request::Try(Try(lock)) | Request::Poll(Poll(lock)) | Request::Confirm(Confirm(lock)) => {
            &mut lock.key
        }
        Request::Enqueue(Enqueue { lock, .. }) | Request::LastPoll(LastPoll { lock, .. }) => &mut lock.key,
        Request::Renew(Renew { key, .. })
        | Request::Release(Release { key, .. })
        | Request::RollBack(RollBack { key, .. })
        | Request::PassOn(PassOn { key, .. })
        | Request::Inspect(Inspect { key, .. })
        | Request::Break(Break { key, .. }) => key,
        _ => panic!("of no lock: {request:?}"),
    }
}

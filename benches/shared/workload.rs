//! What each connection of a load does, again and again, as soon as it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;

use super::client::Client;
use super::servers::{Kind, Server, TOKEN_BY_HEART};

/// The one lock that all want where they are to be refused.
pub const CONTENDED: &str = "contended";

/// How long a connection does nothing at most before a request, where the requests are spread.
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// Results are kept as short as they may be, so that few of them are left for the next turns.
pub const BEGIN: &str = "?ttl=30s&keep=2m";
/// What the keys of work begin with that is done.
pub const REPLAYED: &str = "replayed-";
/// The result of all work: 200 bytes.
pub const RESULT: &str = "{\"charged\": true, \"receipt\": \"c9a1f0b2d3e4c9a1f0b2d3e4c9a1f0b2d3e4c9a1f0b2d3e4c9a1\", \
     \"of\": \"4f6e2b7f1c3d8e9a4f6e2b7f1c3d8e9a4f6e2b7f1c3d8e9a4f6e2b7f1c3d8e9a4f6e2b7f1c3d8e9a4f6e2b7f1c3d0a1b2c3d4e5f67\"}";
const _: () = assert!(RESULT.len() == 200);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Takes a lock that nobody ever held, and gives it back: two requests.
    Pairs,
    /// The same while many others watch all locks.
    Watched,
    /// The same beside somebody else who takes an eighth of the machine.
    Crowded,
    /// The same with a moment of nothing before each request, so that few are ready at once.
    Spread,
    /// The same with tokens of the client's own, whose release the server remembers for a while.
    OwnTokens,
    /// Asks for one lock that somebody else holds all the time.
    FailFast,
    /// Renews a lock of its own.
    Renew,
    /// Begins a piece of work that nobody ever began, and stores its result: two requests.
    Once,
    /// Asks for the result of work that is done.
    Replay,
    /// Takes a slot of one lock that so many others hold all the time, and gives it back: two requests.
    Slots4,
    Slots100,
    Slots900,
    /// Asks for a slot where all are taken.
    SlotsRefused,
    /// Renews a slot of its own.
    SlotsRenew,
}

impl Workload {
    pub const ALL: [Self; 14] = [
        Self::Pairs,
        Self::Watched,
        Self::Crowded,
        Self::Spread,
        Self::OwnTokens,
        Self::Once,
        Self::Replay,
        Self::FailFast,
        Self::Renew,
        Self::Slots4,
        Self::Slots100,
        Self::Slots900,
        Self::SlotsRefused,
        Self::SlotsRenew,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Watched => "watched",
            Self::Crowded => "crowded",
            Self::Spread => "spread",
            Self::OwnTokens => "own-tokens",
            Self::FailFast => "fail-fast",
            Self::Renew => "renew",
            Self::Once => "once",
            Self::Replay => "replay",
            Self::Slots4 => "slots-4",
            Self::Slots100 => "slots-100",
            Self::Slots900 => "slots-900",
            Self::SlotsRefused => "slots-refused",
            Self::SlotsRenew => "slots-renew",
        }
    }

    /// How many others hold the lock of which slots are asked for.
    pub fn beside(self) -> Option<usize> {
        match self {
            Self::Slots4 | Self::SlotsRefused | Self::SlotsRenew => Some(4),
            Self::Slots100 => Some(100),
            // With all connections there are less than 1,000.
            Self::Slots900 => Some(900),
            _ => None,
        }
    }

    /// Whether it needs a server with room for records.
    pub fn is_of_records(self) -> bool {
        matches!(self, Self::Once | Self::Replay)
    }
}

/// What the connections are told. It is set together with the readings of CPU time, so that the requests that are
/// counted are those that the time was spent on.
#[derive(Default)]
pub struct Window {
    pub is_measured: AtomicBool,
    pub is_over: AtomicBool,
}

/// What one connection has seen.
#[derive(Default)]
pub struct Seen {
    /// How long each measured request took.
    pub latencies_ns: Vec<u64>,
    /// All replies, each of which fitted its request.
    pub replies: u64,
    /// Why it ended early, if it did.
    pub mismatch: Option<String>,
}

/// Whoever holds the contended lock while others are refused it.
pub struct Holder {
    /// Nobody does where the answers are known by heart.
    client: Option<Client>,
    pub number: u64,
}

impl Holder {
    pub async fn take(server: &Server) -> Result<Self, String> {
        let mut client = Client::open(server).await?;
        let before = server.numbers.largest(CONTENDED);
        let is_granted = client.acquire(CONTENDED, "").await?;
        let number = client.number();
        match server.kind {
            Kind::ByHeart => return Ok(Self { client: None, number }),
            Kind::Gateway if is_granted => server.numbers.granted(CONTENDED, before, number)?,
            Kind::Redis if is_granted => {}
            _ => return Err(format!("{CONTENDED}: held by somebody")),
        }
        Ok(Self { client: Some(client), number })
    }

    pub async fn give_back(self) -> Result<(), String> {
        match self.client {
            Some(mut client) => client.release(CONTENDED).await,
            None => Ok(()),
        }
    }
}

/// The lock of which slots are asked for in this turn.
pub fn shared(turn: usize) -> String {
    format!("shared-{turn}")
}

/// Those who hold a lock beside the connections.
pub struct Beside {
    /// Nobody does where the answers are known by heart.
    client: Option<Client>,
    key: String,
    tokens: Vec<String>,
    /// Of the one whose lease ends first.
    pub number: u64,
}

impl Beside {
    pub async fn take(server: &Server, key: String, count: usize, slots: &str) -> Result<Self, String> {
        let mut all = Self { client: None, key, tokens: Vec::new(), number: 0 };
        let mut client = Client::open(server).await?;
        if server.kind == Kind::ByHeart {
            client.acquire(&all.key, "").await?;
            all.number = client.number();
            return Ok(all);
        }
        for at in 0..count {
            // The first one's lease ends first.
            let query = format!("?slots={slots}&ttl={}m", if at == 0 { 9 } else { 10 });
            if !client.acquire(&all.key, &query).await? {
                return Err(format!("{}: there is no slot", all.key));
            }
            all.number = if all.tokens.is_empty() { client.number() } else { all.number };
            all.tokens.push(client.token().clone());
        }
        all.client = Some(client);
        Ok(all)
    }

    pub async fn give_back(mut self) -> Result<(), String> {
        let Some(client) = &mut self.client else { return Ok(()) };
        for token in self.tokens {
            *client.token() = token;
            client.release(&self.key).await?;
        }
        Ok(())
    }
}

/// One connection's part.
pub struct Part {
    pub client: Client,
    /// No two parts have the same name, in no turn at a server.
    pub name: usize,
    /// What the server answers by.
    pub kind: Kind,
    /// The number of whoever holds the contended lock.
    pub held: u64,
    pub window: Arc<Window>,
}

impl Part {
    pub async fn play(mut self, workload: Workload) -> Seen {
        let mut seen = Seen::default();
        let ended = match workload {
            Workload::Pairs
            | Workload::Watched
            | Workload::Crowded
            | Workload::Spread
            | Workload::OwnTokens => self.pairs(&mut seen, workload).await,
            Workload::FailFast => self.fail_fast(&mut seen, "").await,
            Workload::Renew => self.renew(&mut seen, &format!("renew-{}", self.name), "").await,
            Workload::Once => self.once(&mut seen).await,
            Workload::Replay => self.replay(&mut seen).await,
            Workload::Slots4 | Workload::Slots100 | Workload::Slots900 => self.slots(&mut seen).await,
            Workload::SlotsRefused => self.fail_fast(&mut seen, "?slots=4").await,
            Workload::SlotsRenew => self.renew(&mut seen, &shared(self.turn()), "?slots=any").await,
        };
        seen.mismatch = ended.err();
        seen
    }

    async fn pairs(&mut self, seen: &mut Seen, workload: Workload) -> Result<(), String> {
        let (mut pairs, by_own_tokens) = (0_u64, workload == Workload::OwnTokens);
        let pause = async || {
            if workload == Workload::Spread {
                sleep(LONGEST_PAUSE.mul_f64(rand::random())).await;
            }
        };
        // A pair is always completed, so that no turn leaves locks behind for the next one.
        while self.goes_on() {
            pairs += 1;
            let key = format!("bench-{}-{pairs}", self.name);
            let own_token = by_own_tokens.then(|| self.own_token());
            pause().await;
            let started = Instant::now();
            let is_granted = match own_token {
                Some(token) => self.client.acquire_by(&key, &token).await?,
                None => self.client.acquire(&key, "").await?,
            };
            if !is_granted {
                return Err(format!("{key}: a fresh key is held"));
            }
            self.note(seen, started);
            pause().await;
            let started = Instant::now();
            self.client.release(&key).await?;
            self.note(seen, started);
        }
        Ok(())
    }

    async fn fail_fast(&mut self, seen: &mut Seen, query: &str) -> Result<(), String> {
        while self.goes_on() {
            let started = Instant::now();
            if self.client.acquire(CONTENDED, query).await? {
                return Err(format!("{CONTENDED}: granted, although somebody holds it"));
            }
            if self.client.number() != self.held {
                let told = self.client.number();
                return Err(format!("{CONTENDED}: held by {}, and {told} is told", self.held));
            }
            self.note(seen, started);
        }
        Ok(())
    }

    async fn renew(&mut self, seen: &mut Seen, key: &str, query: &str) -> Result<(), String> {
        if !self.client.acquire(key, query).await? {
            return Err(format!("{key}: it is held, or has no slot"));
        }
        while self.goes_on() {
            let started = Instant::now();
            self.client.renew(key).await?;
            self.note(seen, started);
        }
        self.client.release(key).await
    }

    async fn slots(&mut self, seen: &mut Seen) -> Result<(), String> {
        let key = shared(self.turn());
        while self.goes_on() {
            let started = Instant::now();
            if !self.client.acquire(&key, "?slots=any").await? {
                return Err(format!("{key}: there is no slot"));
            }
            self.note(seen, started);
            let started = Instant::now();
            self.client.release(&key).await?;
            self.note(seen, started);
        }
        Ok(())
    }

    fn turn(&self) -> usize {
        self.name >> 16
    }

    async fn once(&mut self, seen: &mut Seen) -> Result<(), String> {
        let mut works = 0_u64;
        while self.goes_on() {
            works += 1;
            let key = format!("bench-{}-{works}", self.name);
            let token = self.own_token();
            let started = Instant::now();
            if !self.client.begin(&key, BEGIN, &token).await? {
                return Err(format!("{key}: a fresh record is there"));
            }
            self.note(seen, started);
            let started = Instant::now();
            self.client.store(&key, &token, RESULT).await?;
            self.note(seen, started);
        }
        Ok(())
    }

    async fn replay(&mut self, seen: &mut Seen) -> Result<(), String> {
        let (key, token) = (format!("{REPLAYED}{}", self.name), self.own_token());
        // The number that is known by heart is told to whoever begins anything else.
        let begun = if self.kind == Kind::ByHeart { "begun" } else { &key };
        if !self.client.begin(begun, BEGIN, &token).await? {
            return Err(format!("{key}: a fresh record is there"));
        }
        if self.kind != Kind::ByHeart {
            self.client.store(&key, &token, RESULT).await?;
        }
        while self.goes_on() {
            let token = self.own_token();
            let started = Instant::now();
            self.client.replay(&key, BEGIN, &token, RESULT).await?;
            self.note(seen, started);
        }
        Ok(())
    }

    /// A fresh one, unless the server knows but one by heart.
    fn own_token(&self) -> String {
        match self.kind {
            Kind::ByHeart => TOKEN_BY_HEART.to_owned(),
            Kind::Gateway | Kind::Redis => format!("{:032x}", rand::random::<u128>()),
        }
    }

    fn goes_on(&self) -> bool {
        !self.window.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, seen: &mut Seen, started: Instant) {
        seen.replies += 1;
        if self.window.is_measured.load(Ordering::Relaxed) {
            seen.latencies_ns.push(u64::try_from(started.elapsed().as_nanos()).unwrap());
        }
    }
}

//! What each connection of a load does, again and again, as soon as it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;

use super::client::Client;
use super::servers::{Kind, Server, TOKEN_BY_HEART};

/// The one lock that all want where they are to be refused.
pub const CONTENDED: &str = "contended";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Takes a lock that nobody ever held, and gives it back: two requests.
    Pairs,
    /// The same with tokens of the client's own, whose release the server remembers for a while.
    OwnTokens,
    /// Asks for one lock that somebody else holds all the time.
    FailFast,
    /// Renews a lock of its own.
    Renew,
}

impl Workload {
    pub const ALL: [Self; 4] = [Self::Pairs, Self::OwnTokens, Self::FailFast, Self::Renew];

    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::OwnTokens => "own-tokens",
            Self::FailFast => "fail-fast",
            Self::Renew => "renew",
        }
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
        let is_granted = client.acquire(CONTENDED).await?;
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
            Workload::Pairs => self.pairs(&mut seen, false).await,
            Workload::OwnTokens => self.pairs(&mut seen, true).await,
            Workload::FailFast => self.fail_fast(&mut seen).await,
            Workload::Renew => self.renew(&mut seen).await,
        };
        seen.mismatch = ended.err();
        seen
    }

    async fn pairs(&mut self, seen: &mut Seen, by_own_tokens: bool) -> Result<(), String> {
        let mut pairs = 0_u64;
        // A pair is always completed, so that no turn leaves locks behind for the next one.
        while self.goes_on() {
            pairs += 1;
            let key = format!("bench-{}-{pairs}", self.name);
            let own_token = by_own_tokens.then(|| self.own_token());
            let started = Instant::now();
            let is_granted = match own_token {
                Some(token) => self.client.acquire_by(&key, &token).await?,
                None => self.client.acquire(&key).await?,
            };
            if !is_granted {
                return Err(format!("{key}: a fresh key is held"));
            }
            self.note(seen, started);
            let started = Instant::now();
            self.client.release(&key).await?;
            self.note(seen, started);
        }
        Ok(())
    }

    async fn fail_fast(&mut self, seen: &mut Seen) -> Result<(), String> {
        while self.goes_on() {
            let started = Instant::now();
            if self.client.acquire(CONTENDED).await? {
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

    async fn renew(&mut self, seen: &mut Seen) -> Result<(), String> {
        let key = format!("renew-{}", self.name);
        if !self.client.acquire(&key).await? {
            return Err(format!("{key}: a fresh key is held"));
        }
        while self.goes_on() {
            let started = Instant::now();
            self.client.renew(&key).await?;
            self.note(seen, started);
        }
        self.client.release(&key).await
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

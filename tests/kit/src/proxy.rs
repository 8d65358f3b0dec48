//! A TCP proxy that makes a network misbehave, message by message, and knows what became of each. It sits in front of
//! a Redis server or in front of a gateway.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use framing::Framing;

use super::PATIENCE;

mod connection;
mod framing;

/// Passes connections on to a port of this machine. Its connections end with it.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// Opens once, for whatever waits for it.
pub type Gate = CancellationToken;

/// What happens to one message on its way to the server, and to its answer.
#[derive(Clone, Debug)]
pub enum Fate {
    /// It passes, and so does its answer.
    Pass,
    /// It passes when its gate opens, and so does all that is behind it on its connection; likewise its answer.
    Hold { message: Gate, answer: Gate },
    /// The server hears nothing of it: the connection is closed on both sides.
    CutBefore,
    /// The first half of it passes, and the connection is closed: the server cannot act on it.
    CutWithin,
    /// All of it passes, and the connection is closed before there is an answer: the server acts on it, or will.
    CutDuring,
    /// The server has acted on it, and the connection is closed in place of its answer.
    CutAfter,
    /// The server has acted on it. All but the end of its answer passes, and the connection is closed.
    CutAnswer,
    /// The server has acted on it. This passes in place of its answer, and the connection is closed.
    Instead(String),
    /// It passes, and nothing comes back on this connection any more, which stays open.
    LoseAnswers,
    /// Neither it nor anything else passes on this connection any more, which stays open.
    HalfOpen,
    /// The client's side is closed when the first gate opens; the server is given it when the second does, however
    /// late that is.
    Late { cut: Gate, message: Gate },
}

/// How far a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    Awaited,
    Seen,
    PassedOn,
    Answered,
}

/// A message that a test waits for.
pub struct Passage {
    progress: watch::Receiver<Progress>,
}

/// What is to happen to the first message in which a text stands.
struct Expected {
    text: String,
    fate: Fate,
    progress: Reports,
}

/// Says how far a message came.
type Reports = Arc<watch::Sender<Progress>>;
type Policy = Box<dyn FnMut(&[u8]) -> Fate + Send>;
/// Is told of each answer, and of the message that it answers; of what the server said unasked, alone.
type Tap = Box<dyn FnMut(Option<&[u8]>, &[u8]) + Send>;

/// What the connections of a proxy share.
struct Shared {
    framing: Framing,
    target_port: AtomicU16,
    /// What happens to single messages. Each holds once.
    expected: Mutex<Vec<Expected>>,
    /// What happens to all others.
    policy: Mutex<Policy>,
    tap: Mutex<Option<Tap>>,
    /// Connections that were there before the last change of it are treated as it says.
    outage: watch::Sender<Outage>,
    is_closed_to_new: watch::Sender<bool>,
    ended: CancellationToken,
}

/// What became of all connections at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Frozen,
    Severed,
    Vanished,
}

impl Proxy {
    pub async fn start(target_port: u16, framing: Framing) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            framing,
            target_port: AtomicU16::new(target_port),
            expected: Mutex::default(),
            policy: Mutex::new(Box::new(|_| Fate::Pass)),
            tap: Mutex::default(),
            outage: watch::Sender::new(Outage::Severed),
            is_closed_to_new: watch::Sender::new(false),
            ended: CancellationToken::new(),
        });
        let accepting = accept(listener, shared.clone());
        let ended = shared.ended.clone();
        tokio::spawn(async move { ended.run_until_cancelled(accepting).await });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// New connections are passed on to this port.
    pub fn set_target(&self, port: u16) {
        self.shared.target_port.store(port, Ordering::SeqCst);
    }

    /// Where a gateway finds the Redis behind this proxy.
    pub fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where a client finds the gateway behind this proxy.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Decides about the next message in which `text` stands.
    pub fn expect(&self, text: &str, fate: Fate) -> Passage {
        let (sender, progress) = watch::channel(Progress::Awaited);
        let expected = Expected { text: text.to_owned(), fate, progress: Arc::new(sender) };
        self.shared.expected.lock().unwrap().push(expected);
        Passage { progress }
    }

    /// Decides about every message that no test expects.
    pub fn set_policy(&self, policy: impl FnMut(&[u8]) -> Fate + Send + 'static) {
        *self.shared.policy.lock().unwrap() = Box::new(policy);
    }

    /// From now on tells of each answer that the server gives, and of the message that it answers, where there is one.
    pub fn set_tap(&self, tap: impl FnMut(Option<&[u8]>, &[u8]) + Send + 'static) {
        *self.shared.tap.lock().unwrap() = Some(Box::new(tap));
    }

    /// Lets the connections that exist fall silent without closing them; new ones work.
    pub fn freeze(&self) {
        self.shared.outage.send_replace(Outage::Frozen);
    }

    /// Has the machines at both ends of the connections that exist be gone without a word: what is sent to them is not even
    /// acknowledged any more. New ones work.
    pub fn vanish(&self) {
        self.shared.outage.send_replace(Outage::Vanished);
    }

    /// Closes the connections that exist; new ones work.
    pub fn sever(&self) {
        self.shared.outage.send_replace(Outage::Severed);
    }

    /// Whether new connections are closed at once.
    pub fn set_closed_to_new(&self, is_closed: bool) {
        self.shared.is_closed_to_new.send_replace(is_closed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.cancel();
    }
}

impl Passage {
    /// Waits until the message came as far as this.
    pub async fn reaches(&mut self, far: Progress) {
        let reached = self.progress.wait_for(|progress| *progress >= far);
        let in_time = tokio::time::timeout(PATIENCE, reached).await;
        assert!(matches!(in_time, Ok(Ok(_))), "the message did not come as far as {far:?}");
    }

    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }
}

impl Fate {
    /// Passes after this time.
    pub fn delay(time: Duration) -> Self {
        Self::Hold { message: gate_after(time), answer: open_gate() }
    }

    /// It passes, and its answer comes so late. Those behind it wait no longer for it.
    pub fn late_answer(time: Duration) -> Self {
        Self::Hold { message: open_gate(), answer: gate_after(time) }
    }

    /// Its client is cut off at once, and the server is given it when the gate opens.
    pub fn late(message: Gate) -> Self {
        Self::Late { cut: open_gate(), message }
    }
}

fn open_gate() -> Gate {
    let gate = Gate::new();
    gate.cancel();
    gate
}

pub fn gate_after(time: Duration) -> Gate {
    let gate = Gate::new();
    let opened = gate.clone();
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        opened.cancel();
    });
    gate
}

impl Shared {
    fn tell_tap(&self, message: Option<&[u8]>, answer: &[u8]) {
        if let Some(tap) = &mut *self.tap.lock().unwrap() {
            tap(message, answer);
        }
    }

    fn fate_of(&self, message: &[u8]) -> (Fate, Option<Reports>) {
        let mut expected = self.expected.lock().unwrap();
        let is_in = |text: &str| message.windows(text.len()).any(|window| window == text.as_bytes());
        match expected.iter().position(|expected| is_in(&expected.text)) {
            Some(at) => {
                let Expected { fate, progress, .. } = expected.remove(at);
                (fate, Some(progress))
            }
            None => (self.policy.lock().unwrap()(message), None),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if *shared.is_closed_to_new.borrow() {
            continue;
        }
        let shared = shared.clone();
        tokio::spawn(async move {
            let ended = shared.ended.clone();
            ended.run_until_cancelled(connection::pass_on(client, &shared)).await;
        });
    }
}

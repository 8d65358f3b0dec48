//! Where a client works in peace, and then beside an attack, and again: what it notices is the measure.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, BufStream};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::attackers::Attackers;
use kit::certificates::Certificates;
use kit::secure::{SecureClient, call};
use kit::{Gateway, PATIENCE, eventually, fresh_token, sockets};

/// One attack at a time: each of them is measured.
static ALONE: Mutex<()> = Mutex::new(());

const ROUNDS: usize = 5;
/// Where the machine is busy with other things, some rounds say nothing: what an attack costs shows in more of them.
const MOST_ROUNDS: usize = 20;
/// Long enough for some hundred pairs, so that the slowest hundredth is more than one.
const WINDOW: Duration = Duration::from_millis(250);
/// After so many pairs the client comes anew, since an attack may be on what new clients need.
const PAIRS_ON_A_CONNECTION: usize = 8;
/// What an attack may cost: the slowest hundredth of others' pairs takes at most so many times as long,
const MOST_TIMES: f64 = 2.0;
/// and what is shorter than this says more of the machine, which others use too, than of the gateway. On a slow one, 5 ms were not
/// enough.
const FLOOR: Duration = Duration::from_millis(8);
/// How much memory a few attackers may take.
const MOST_MIB: u64 = 96;

/// A gateway, a client that is measured, and room for attackers.
pub struct Ring {
    pub gateway: Gateway,
    pub attackers: Attackers,
    certificates: Option<Certificates>,
    calm: Runtime,
    pub first_mib: u64,
    _alone: MutexGuard<'static, ()>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Ring {
    pub fn new(args: &[&str]) -> Self {
        Self::with("memory:", None, args)
    }

    /// The same on another store.
    pub fn on(store: &str, args: &[&str]) -> Self {
        Self::with(store, None, args)
    }

    pub fn with_tls(args: &[&str]) -> Self {
        Self::with("memory:", Some(Certificates::new()), args)
    }

    /// With TLS, a certificate that takes long to sign with, and one thread.
    pub fn with_slow_tls(args: &[&str]) -> Self {
        let certificates = Certificates::new();
        certificates.renew_with_rsa();
        Self::with("memory:", Some(certificates), &[&["--threads", "1"], args].concat())
    }

    fn with(store: &str, certificates: Option<Certificates>, args: &[&str]) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let calm = Builder::new_current_thread().enable_all().build().unwrap();
        let mut all = vec!["--store".to_owned(), store.to_owned()];
        if let Some(certificates) = &certificates {
            all.extend(["--tls-cert".to_owned(), certificates.certificate()]);
            all.extend(["--tls-key".to_owned(), certificates.key()]);
        }
        let all: Vec<_> = all.iter().map(String::as_str).chain(args.iter().copied()).collect();
        let gateway = calm.block_on(Gateway::start(&all));
        let attackers = Attackers::new();
        let mut ring = Self { gateway, attackers, certificates, calm, first_mib: 0, _alone: alone };
        // The first pairs find everything cold.
        ring.pairs();
        ring.first_mib = ring.memory_mib("VmRSS");
        ring
    }

    /// A new connection of the client. It leaves nothing behind when it is closed: there will be thousands.
    async fn connect(&self) -> Box<dyn Stream> {
        let address = self.gateway.address;
        let stream = match &self.certificates {
            None => {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                stream.set_zero_linger().unwrap();
                return Box::new(BufStream::new(stream));
            }
            Some(certificates) => SecureClient::new(certificates).connect(address).await.unwrap(),
        };
        stream.get_ref().0.set_zero_linger().unwrap();
        Box::new(BufStream::new(stream))
    }

    /// Takes a lock that nobody gets while this is going on.
    pub fn hold(&self) {
        self.calm.block_on(async {
            let answer = call(&mut self.connect().await, "PUT", "/locks/held?ttl=10m", "").await;
            answer.unwrap().expect(201);
        });
    }

    /// Takes so many locks whose names and owners are as long as they may be.
    pub fn hold_many(&self, count: usize) {
        self.calm.block_on(async {
            let mut stream = self.connect().await;
            for number in 0..count {
                let (key, owner) = (format!("{number:0>500}"), "o".repeat(200));
                let target = format!("/locks/{key}?ttl=10m&owner={owner}");
                call(&mut stream, "PUT", &target, "").await.unwrap().expect(201);
            }
        });
    }

    /// Takes and releases a lock for the time of one window; returns what the slowest hundredth takes.
    pub fn pairs(&self) -> Duration {
        self.calm.block_on(async {
            let (mut times, begun) = (Vec::new(), Instant::now());
            while begun.elapsed() < WINDOW || times.len() < 100 {
                let mut started = Instant::now();
                let mut stream = self.connect().await;
                for _ in 0..PAIRS_ON_A_CONNECTION {
                    let token = format!("Lease-Token: {}\r\n", fresh_token());
                    for (method, status) in [("PUT", 201), ("DELETE", 204)] {
                        let answer = call(&mut stream, method, "/locks/measured", &token).await;
                        answer.unwrap().expect(status);
                    }
                    times.push(started.elapsed());
                    started = Instant::now();
                }
            }
            times.sort();
            times[times.len() * 99 / 100]
        })
    }

    /// Connects, begins an attack, and asks again and again for so long. Returns what the slowest request took, and how long a
    /// new connection took then.
    pub fn slowest_beside(&self, attack: impl FnOnce(), window: Duration) -> (Duration, Duration) {
        self.calm.block_on(async {
            let mut stream = self.connect().await;
            call(&mut stream, "GET", "/healthz", "").await.unwrap().expect(200);
            attack();
            let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
            while begun.elapsed() < window {
                let asked = Instant::now();
                call(&mut stream, "GET", "/healthz", "").await.unwrap().expect(200);
                slowest = slowest.max(asked.elapsed());
            }
            let came = Instant::now();
            self.connect().await;
            (slowest, came.elapsed())
        })
    }

    /// The first bytes of a TLS handshake with the gateway.
    pub fn greeting(&self) -> Vec<u8> {
        SecureClient::new(self.certificates.as_ref().unwrap()).greeting()
    }

    /// Lets `count` attackers do this again and again, in turns with peace, and judges what the client noticed.
    pub fn endures<A>(&mut self, name: &str, count: usize, attack: fn(SocketAddr) -> A)
    where
        A: Future<Output = ()> + Send + 'static,
    {
        let mut windows = Vec::new();
        while windows.len() < ROUNDS || (median_ratio(&windows) > MOST_TIMES && windows.len() < MOST_ROUNDS) {
            let quiet = self.pairs();
            self.attackers.begin(count, self.gateway.address, attack);
            self.until("the attack is on", |ring| ring.connections() > 0);
            windows.push((quiet, self.pairs()));
            self.attackers.end();
            self.until("the attackers have gone", |ring| ring.connections() == 0);
        }
        self.judge(name, &windows, MOST_MIB);
    }

    /// Expects the gateway to put an end to an attack before it takes much memory.
    pub fn ends<A>(&self, attack: fn(SocketAddr) -> A)
    where
        A: Future<Output = ()> + Send + 'static,
    {
        let attack = attack(self.gateway.address);
        let result = self.attackers.run(async { timeout(PATIENCE, attack).await });
        assert!(result.is_ok(), "the gateway puts up with it");
        let more_mib = self.memory_mib("VmHWM") - self.first_mib;
        assert!(more_mib <= MOST_MIB, "it takes {more_mib} MiB");
    }

    /// Holds what the client noticed against what it may: in peace, and beside an attack.
    pub fn judge(&self, name: &str, windows: &[(Duration, Duration)], most_mib: u64) {
        let (median, first_mib, peak_mib) = (median_ratio(windows), self.first_mib, self.memory_mib("VmHWM"));
        let ended = self.attackers.ended();
        let told = format!(
            "{name}: ×{median:.2} in p99 of pairs, in peace and beside it {windows:.1?}; \
             {first_mib} → at most {peak_mib} MiB; ended {ended} times by the gateway"
        );
        println!("{told}");
        assert!(median <= MOST_TIMES, "{told}");
        assert!(peak_mib - first_mib <= most_mib, "{told}");
    }

    /// How many there are to the gateway. The client has none between two windows.
    fn connections(&self) -> usize {
        sockets(self.gateway.address.port(), "01").len()
    }

    pub fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        self.calm.block_on(eventually(what, async || holds(self)));
    }

    /// What the kernel says of the gateway's memory.
    pub fn memory_mib(&self, line: &str) -> u64 {
        self.gateway.memory_kib(line) / 1024
    }
}

/// How many times as long the client's pairs took beside an attack.
fn median_ratio(windows: &[(Duration, Duration)]) -> f64 {
    let ratio = |(quiet, beside): &(Duration, Duration)| {
        beside.max(&FLOOR).as_secs_f64() / quiet.max(&FLOOR).as_secs_f64()
    };
    let mut ratios: Vec<_> = windows.iter().map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

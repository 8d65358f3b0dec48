//! What fails during a run: a Redis with two gateways, or a gateway with its own file, and proxies on every way.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use kit::history::{History, Witness, now_us};
use kit::proxy::{Fate, Framing, gate_after};
use kit::quorum::is_ready;
use kit::visitors::Ttls;
use kit::{Client, Gateway, Proxy, RedisServer, eventually};

use super::entrance::Entrance;

/// How late a message may be that was kept back.
const LATEST: Duration = Duration::from_secs(5);

/// A store, its gateways, and all that can go wrong between them.
pub trait Rig: Send {
    /// Ways to a gateway, good and bad.
    fn doors(&self) -> Vec<Client>;
    /// One that nothing stands in.
    fn safe_door(&self) -> Client;
    /// One fault; when it returns, that fault is over or under way.
    async fn fail(&mut self, random: &mut StdRng, witness: &Witness);
    /// Ends all faults.
    async fn heal(&mut self);
    /// What all gateways have logged.
    fn logs(&self) -> Vec<String>;
    /// The leases that clients ask for.
    fn ttls(&self) -> Ttls {
        Ttls::default()
    }
    /// Whether several may hold one of its locks at once.
    fn may_share(&self) -> bool {
        true
    }
    /// Tells the judge what else he must know of the run.
    fn explain(&self, _history: &mut History) {}
}

/// A proxy that treats messages badly for a while, now and then.
pub struct BadWay {
    pub proxy: Proxy,
    /// When the last message that it keeps back will have been delivered.
    late_until: Arc<Mutex<Instant>>,
}

impl BadWay {
    pub async fn to(port: u16, framing: Framing) -> Self {
        let proxy = Proxy::start(port, framing).await;
        Self { proxy, late_until: Arc::new(Mutex::new(Instant::now())) }
    }

    pub fn client(&self) -> Client {
        Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, self.proxy.port())))
    }

    /// Each message is treated badly with this probability.
    fn become_bad(&self, random: &mut StdRng, probability: f64) {
        let mut random = StdRng::seed_from_u64(random.random());
        let late_until = self.late_until.clone();
        self.proxy.set_policy(move |_| {
            if !random.random_bool(probability) {
                return Fate::Pass;
            }
            match random.random_range(0..9) {
                0 => Fate::CutBefore,
                1 => Fate::CutWithin,
                2 => Fate::CutDuring,
                3 => Fate::CutAfter,
                4 => Fate::LoseAnswers,
                5 => Fate::HalfOpen,
                6 | 7 => Fate::delay(Duration::from_millis(random.random_range(1..400))),
                _ => {
                    let late = LATEST.mul_f64(random.random());
                    let mut late_until = late_until.lock().unwrap();
                    *late_until = late_until.max(Instant::now() + late);
                    Fate::late(gate_after(late))
                }
            }
        });
    }

    pub fn become_good(&self) {
        self.proxy.set_policy(|_| Fate::Pass);
        self.proxy.set_closed_to_new(false);
    }

    pub async fn is_over(&self) {
        let until = *self.late_until.lock().unwrap();
        sleep_until(until).await;
    }

    /// Something that befalls the whole way at once.
    pub async fn fail(&self, random: &mut StdRng) {
        match random.random_range(0..4) {
            0 => self.proxy.freeze(),
            1 => self.proxy.sever(),
            2 => {
                self.proxy.sever();
                self.proxy.set_closed_to_new(true);
                some_time(random, 1_500).await;
                self.proxy.set_closed_to_new(false);
            }
            _ => {
                self.become_bad(random, 0.2);
                some_time(random, 1_500).await;
                self.become_good();
            }
        }
    }
}

pub async fn some_time(random: &mut StdRng, longest_ms: u64) {
    sleep(Duration::from_millis(random.random_range(0..longest_ms))).await;
}

/// Two gateways on a Redis that loses nothing when it is killed.
pub struct RedisRig {
    pub redis: RedisServer,
    gateways: Vec<Gateway>,
    to_redis: Vec<BadWay>,
    to_gateways: Vec<BadWay>,
}

impl RedisRig {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one on a server with further arguments.
    pub async fn start_with(args: &[&str]) -> Self {
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        let redis = RedisServer::start_with(&[&durable[..], args].concat()).await;
        let mut rig = Self { redis, gateways: Vec::new(), to_redis: Vec::new(), to_gateways: Vec::new() };
        for _ in 0..2 {
            let way = BadWay::to(rig.redis.port(), Framing::Resp).await;
            let gateway = Gateway::start(&["--store", &way.proxy.redis_url()]).await;
            rig.to_gateways.push(BadWay::to(gateway.address.port(), Framing::Chunks).await);
            rig.to_redis.push(way);
            rig.gateways.push(gateway);
        }
        rig
    }

    /// Something that befalls what is sent to the server.
    pub async fn fail_on_the_way(&self, random: &mut StdRng, witness: &Witness) {
        witness.befalls("a way to the server fails");
        self.to_redis.choose(random).unwrap().fail(random).await;
    }
}

impl Rig for RedisRig {
    fn doors(&self) -> Vec<Client> {
        let safe = self.gateways.iter().map(|gateway| Client::new(gateway.address));
        safe.chain(self.to_gateways.iter().map(BadWay::client)).collect()
    }

    fn safe_door(&self) -> Client {
        Client::new(self.gateways[0].address)
    }

    async fn fail(&mut self, random: &mut StdRng, witness: &Witness) {
        match random.random_range(0..40) {
            0..16 => self.fail_on_the_way(random, witness).await,
            16..26 => {
                witness.befalls("the way to a gateway fails");
                self.to_gateways.choose(random).unwrap().fail(random).await;
            }
            26..33 => {
                witness.befalls("the server stands still");
                self.redis.signal("STOP");
                some_time(random, 2_500).await;
                self.redis.signal("CONT");
            }
            33..37 => {
                witness.befalls("the server restarts");
                self.redis.restart().await;
            }
            37 => {
                witness.befalls("the server restarts empty");
                let start_us = now_us();
                self.redis.kill();
                self.redis.lose_data();
                self.redis.restart().await;
                witness.lost_since(start_us);
            }
            38 => {
                witness.befalls("the server restarts without its last writes");
                let start_us = now_us();
                self.redis.kill();
                self.redis.lose_tail();
                self.redis.restart().await;
                self.redis.rewrite().await;
                witness.lost_since(start_us);
            }
            _ => {
                witness.befalls("the server forgets all");
                let start_us = now_us();
                let _: () = self.redis.command(&["FLUSHALL"]).await;
                witness.lost_since(start_us);
            }
        }
    }

    async fn heal(&mut self) {
        for way in self.to_redis.iter().chain(&self.to_gateways) {
            way.become_good();
            way.is_over().await;
        }
        for gateway in &self.gateways {
            let client = Client::new(gateway.address);
            eventually("the gateway is ready", async || client.get("/readyz").send().await.status == 200)
                .await;
        }
    }

    fn logs(&self) -> Vec<String> {
        self.gateways.iter().flat_map(Gateway::log).collect()
    }
}

/// One gateway with its file.
pub struct EmbeddedRig {
    entrance: Entrance,
    _directory: TempDir,
}

impl EmbeddedRig {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = format!("file:{}", directory.path().join("locks.redb").display());
        Self { entrance: Entrance::open(&["--store", &file]).await, _directory: directory }
    }
}

impl Rig for EmbeddedRig {
    fn doors(&self) -> Vec<Client> {
        self.entrance.doors().into()
    }

    fn safe_door(&self) -> Client {
        self.entrance.safe_door()
    }

    async fn fail(&mut self, random: &mut StdRng, witness: &Witness) {
        match random.random_range(0..10) {
            0..5 => self.entrance.way_fails(random, witness).await,
            5..7 => self.entrance.stands_still(random, witness).await,
            7..9 => self.entrance.is_killed(witness).await,
            _ => self.entrance.ends(witness).await,
        }
    }

    async fn heal(&mut self) {
        self.entrance.heal().await;
        is_ready(&self.safe_door()).await;
    }

    fn logs(&self) -> Vec<String> {
        self.entrance.logs()
    }
}

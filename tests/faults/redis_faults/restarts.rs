//! A Redis that ends and comes back, with its data or without: requests work again by themselves, what was kept is
//! held, and numbers go on upward.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Grants;
use kit::{Answer, Client, Gateway, RedisServer, eventually, fresh_token};

const CLIENTS: usize = 8;

/// What becomes of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    Kill,
    ShutDown,
    Flush,
    FlushAndKill,
    KillAndLose,
    /// The end of the file is missing, as after a power cut.
    KillAndLoseTail,
}

/// These leave what was written, or nothing at all.
const BLOWS: [Blow; 5] = [Blow::Kill, Blow::Flush, Blow::ShutDown, Blow::KillAndLose, Blow::FlushAndKill];

impl Blow {
    fn keeps_data(self) -> bool {
        matches!(self, Self::Kill | Self::ShutDown)
    }

    async fn strike(self, redis: &mut RedisServer) {
        match self {
            Self::Kill => redis.restart().await,
            Self::ShutDown => {
                redis.shut_down().await;
                redis.start_again().await;
            }
            Self::Flush => redis.command(&["FLUSHALL"]).await,
            Self::FlushAndKill => {
                let _: () = redis.command(&["FLUSHALL"]).await;
                redis.restart().await;
            }
            Self::KillAndLose => {
                redis.kill();
                redis.lose_data();
                redis.start_again().await;
            }
            Self::KillAndLoseTail => {
                redis.kill();
                redis.lose_tail();
                redis.start_again().await;
            }
        }
    }
}

struct Scene {
    redis: RedisServer,
    gateways: [Gateway; 2],
    fsync: &'static str,
    grants: [Arc<Grants>; 2],
}

impl Scene {
    async fn new(fsync: &'static str) -> Self {
        let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", fsync]).await;
        let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
        Self { redis, gateways, fsync, grants: Default::default() }
    }

    fn clients(&self) -> [Client; 2] {
        self.gateways.each_ref().map(|gateway| Client::new(gateway.address))
    }

    /// Locks of both gateways, and of both kinds of tokens, that the server has written to its file.
    async fn hold(&self, round: usize) -> Vec<(String, Answer)> {
        let mut held = Vec::new();
        for (gateway, client) in self.clients().iter().enumerate() {
            for own in [None, Some(fresh_token())] {
                let key = format!("held-{round}-{gateway}-{}", own.is_some());
                let mut granted = None;
                eventually("a lock is granted", async || {
                    let answer = self.grants[gateway].take(client, &key, own.as_deref()).await;
                    granted = Some(answer);
                    [200, 201].contains(&granted.as_ref().unwrap().status)
                })
                .await;
                held.push((key, granted.unwrap()));
            }
        }
        // With `always` it was written before it was answered, and there is nothing to wait for.
        if self.fsync != "always" {
            eventually("it is written", async || self.redis.info("aof_buffer_length").await == "0").await;
        }
        held
    }

    /// Each is held as it was, whichever gateway is asked, and can be renewed and released.
    async fn check_held(&self, held: &[(String, Answer)]) {
        let [here, there] = self.clients();
        for (key, granted) in held {
            let address = format!("/locks/{key}");
            let token = granted.token();
            let mut look = None;
            eventually("the gateway is back", async || {
                look = Some(here.get(&address).token(&token).send().await);
                look.as_ref().unwrap().status != 503
            })
            .await;
            let look = look.unwrap().expect(200);
            assert_eq!(
                (look.fencing_token(), &look.json()["yours"]),
                (granted.fencing_token(), &true.into())
            );
            eventually("the other is back", async || there.get(&address).send().await.status != 503).await;
            there.put(&address).send().await.expect_problem(423, "lock-held");
            let renewed = there.patch(&format!("{address}?ttl=2h")).token(&token).send().await.expect(200);
            assert_eq!(renewed.fencing_token(), granted.fencing_token());
            here.delete(&address).token(&token).send().await.expect(204);
        }
    }
}

/// Clients of both gateways, on keys of their own and on shared ones, for as long as this lives.
struct Load {
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(scene: &Scene) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = scene.clients();
        let task = |number: usize| {
            let (client, grants) = (clients[number % 2].clone(), scene.grants[number % 2].clone());
            let is_over = is_over.clone();
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let key = if rand::random() {
                        "shared".to_owned()
                    } else {
                        format!("own-{number}-{}", rand::random::<u8>())
                    };
                    if grants.take_and_release(&client, &key).await.status != 201 {
                        // Politeness towards a busy machine: no assertion rests on it.
                        sleep(Duration::from_millis(5)).await;
                    }
                }
            })
        };
        Self { tasks: (0..CLIENTS).map(task).collect(), is_over }
    }

    async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        join_all(self.tasks).await.into_iter().for_each(Result::unwrap);
    }
}

async fn numbers_grow_through(blows: &[Blow], fsync: &'static str) {
    let mut scene = Scene::new(fsync).await;
    let load = Load::start(&scene);
    let mut order = blows.repeat(3);
    rand::seq::SliceRandom::shuffle(&mut order[..], &mut rand::rng());
    for (round, blow) in order.iter().enumerate() {
        let counts = scene.grants.each_ref().map(|grants| grants.count());
        let held = scene.hold(round).await;
        blow.strike(&mut scene.redis).await;
        if blow.keeps_data() {
            scene.check_held(&held).await;
        }
        for (grants, before) in scene.grants.iter().zip(counts) {
            eventually("requests work again", async || grants.count() > before + 100).await;
        }
    }
    load.end().await;
    println!("{fsync}: {:?} numbers, {order:?}", scene.grants.each_ref().map(|grants| grants.count()));
    Grants::of_both(&scene.grants).check_order();
    // A server that may forget what it answered may also forget that a grant was taken back.
    if fsync == "always" {
        eventually("what nobody was told of is gone", async || {
            scene.redis.locks().await.keys().all(|key| key.starts_with("held-"))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_grow_and_locks_stay_with_every_write_on_disk() {
    numbers_grow_through(&BLOWS, "always").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_grow_and_locks_stay_with_a_write_to_disk_each_second() {
    numbers_grow_through(&[&BLOWS[..], &[Blow::KillAndLoseTail]].concat(), "everysec").await;
}

/// Nothing tells the gateways of it: the very next request starts a new run of numbers, and is granted.
#[tokio::test(flavor = "multi_thread")]
async fn the_request_after_a_flush_is_granted() {
    let redis = RedisServer::start().await;
    let gateways = [Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await];
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let grants = Grants::default();
    for round in 0..100 {
        for client in &clients {
            grants.take(client, &format!("k{round}"), None).await.expect(201);
            let _: () = redis.command(&["FLUSHALL"]).await;
        }
    }
    grants.check_order();
}

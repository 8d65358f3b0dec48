//! Two servers that both believe that they are the primary: the replica is promoted, and the old primary, which does
//! not hear of it, goes on granting. Its numbers stay below its successor's.
//!
//! What is not promised, and not tried here: an old primary that, while cut off, loses its data, restarts, is met by
//! its first gateway ever, or gets another replication id (its `repl-backlog-ttl` passes, or its first replica ever
//! came less than a re-learning before the cut); and a way back to an old primary that was never made a replica.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use super::Grants;
use kit::proxy::Framing;
use kit::{Client, Gateway, Proxy, RedisServer, eventually};

/// Without the delay, a replica need not wait for others that might come.
const AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// Where the numbers of a server stand, and the incarnation that they belong to.
async fn fence(redis: &RedisServer) -> Option<(String, u64)> {
    let fields: Vec<(String, u64)> = redis.command(&["HGETALL", "fencepost:{0}:fence"]).await;
    assert!(fields.len() <= 1, "{fields:?}");
    fields.into_iter().next()
}

/// Waits until the gateway knows the server by the name that it has now: its first replica gave it a new one.
async fn is_learned(gateway: &Gateway, redis: &RedisServer) {
    eventually("the gateway has learned the server", async || {
        let id = redis.info("master_replid").await;
        let names_it = |line: &String| line.contains("connected to Redis") && line.contains(&id[..20]);
        gateway.log().iter().any(names_it)
    })
    .await;
}

async fn is_copied(from: &RedisServer, to: &RedisServer) {
    eventually("the replica has the fence", async || fence(from).await == fence(to).await).await;
}

/// Grants on keys of both sides and on ones that nobody used before, until this side has given so many more.
async fn grant_many(gateway: &Gateway, grants: &Grants, many: usize, side: &str) {
    let client = Client::new(gateway.address);
    let enough = grants.count() + many;
    let workers = (0..4).map(async |worker| {
        while grants.count() < enough {
            let fresh = format!("{side}-{:x}", rand::random::<u64>());
            for key in [format!("shared-{worker}"), fresh] {
                if grants.take_and_release(&client, &key).await.status != 201 {
                    // Politeness towards a busy machine: no assertion rests on it.
                    sleep(Duration::from_millis(5)).await;
                }
            }
        }
    });
    join_all(workers).await;
}

/// As [`grant_many`], for as long as this is polled.
async fn grant_on(gateway: &Gateway, grants: &Grants, side: &str) {
    loop {
        grant_many(gateway, grants, 1, side).await;
    }
}

/// The gateway of a server that is a replica now refuses everything and says why.
async fn has_left(gateway: &Gateway) {
    let client = Client::new(gateway.address);
    eventually("the gateway leaves the replica", async || {
        let answer = client.get("/readyz").send().await;
        answer.status == 503 && answer.json()["detail"].as_str().unwrap().contains("it is a replica")
    })
    .await;
    let answer = client.put("/locks/refused").send().await.expect_problem(503, "store-unavailable");
    assert!(answer.json()["detail"].as_str().unwrap().contains("it is a replica"), "{}", answer.json());
}

/// How the old primary does not hear of its successor.
#[derive(Clone, Copy)]
enum Cut {
    /// It never stops granting.
    WhileServing,
    /// It stands still, with commands before it, and goes on as if nothing had been.
    WhileStill,
}

struct Sides {
    servers: [RedisServer; 2],
    gateways: [Gateway; 2],
    /// The largest number that any rightful primary gave.
    largest: u64,
}

impl Sides {
    async fn new() -> Self {
        let servers = [RedisServer::start_with(&AT_ONCE).await, RedisServer::start_with(&AT_ONCE).await];
        let gateways = [Gateway::on_redis(&servers[0], &[]).await, Gateway::on_redis(&servers[1], &[]).await];
        // While the server changes its name, gateways that know it by either take turns.
        let (grants, another) = (Grants::default(), Gateway::on_redis(&servers[0], &[]).await);
        let first_replica = async {
            grant_many(&another, &grants, 20, "alone").await;
            servers[1].follow(servers[0].port()).await;
            tokio::join!(is_learned(&gateways[0], &servers[0]), is_learned(&another, &servers[0]));
        };
        tokio::select! {
            () = first_replica => {}
            () = grant_on(&gateways[0], &grants, "here") => {}
            () = grant_on(&another, &grants, "there") => {}
        }
        grants.check_order();
        Self { servers, gateways, largest: grants.largest() }
    }

    /// One side grants, is deposed without hearing of it, and is made a replica in the end.
    async fn depose(&mut self, old: usize, cut: Cut) {
        let (new, [old_server, new_server]) = (1 - old, [&self.servers[old], &self.servers[1 - old]]);
        let (old_gateway, new_gateway) = (&self.gateways[old], &self.gateways[new]);
        let before = Grants::default();
        grant_many(old_gateway, &before, 50, "before").await;
        before.check_order();
        assert!(before.smallest() > self.largest, "numbers went back");
        is_copied(old_server, new_server).await;

        let (deposed, successor) = (Grants::default(), Grants::default());
        let split = async {
            match cut {
                Cut::WhileServing => new_server.promote().await,
                Cut::WhileStill => {
                    old_server.stand_still().await;
                    let late = grant_many(old_gateway, &deposed, 8, "late");
                    let promoted = async {
                        eventually("commands wait", async || old_server.unread_bytes() > 0).await;
                        new_server.promote().await;
                        grant_many(new_gateway, &successor, 50, "early").await;
                        old_server.signal("CONT");
                    };
                    tokio::join!(late, promoted);
                }
            }
            // One that never met the old primary while it was the rightful one.
            let late_comer = Gateway::on_redis(old_server, &[]).await;
            let another = Gateway::on_redis(new_server, &[]).await;
            tokio::join!(
                grant_many(&late_comer, &deposed, 200, "deposed"),
                grant_many(&another, &successor, 200, "successor"),
            );
            // The old primary hears of it while it grants.
            old_server.follow(new_server.port()).await;
            tokio::join!(has_left(&late_comer), has_left(old_gateway));
        };
        // All this while, the gateways that were there before go on.
        tokio::select! {
            () = split => {}
            () = grant_on(old_gateway, &deposed, "deposed") => {}
            () = grant_on(new_gateway, &successor, "successor") => {}
        }
        grant_many(new_gateway, &successor, 50, "after").await;
        deposed.check_order();
        successor.check_order();
        assert!(before.largest() < deposed.smallest(), "the old primary went back");
        let (largest, smallest) = (deposed.largest(), successor.smallest());
        assert!(largest < smallest, "deposed: {largest}, and its successor: {smallest}");
        self.largest = successor.largest();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_primary_stays_below_its_successor_there_and_back_again() {
    let mut sides = Sides::new().await;
    for round in 0..4 {
        let cut = if round < 2 { Cut::WhileServing } else { Cut::WhileStill };
        sides.depose(round % 2, cut).await;
    }
}

/// What a replica has heard of its primary's numbers when it is promoted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// The beginning of the run.
    Beginning,
    /// Nothing: the link fell silent before any gateway met the primary.
    Nothing,
}

async fn the_replica_lags(heard: Heard) {
    let old = RedisServer::start_with(&AT_ONCE).await;
    let new = RedisServer::start_with(&AT_ONCE).await;
    let proxy = Proxy::start(old.port(), Framing::Chunks).await;
    new.follow(proxy.port()).await;
    let old_gateway = if heard == Heard::Beginning {
        let gateway = Gateway::on_redis(&old, &[]).await;
        is_copied(&old, &new).await;
        proxy.freeze();
        gateway
    } else {
        proxy.freeze();
        Gateway::on_redis(&old, &[]).await
    };
    let (before, deposed, successor) = (Grants::default(), Grants::default(), Grants::default());
    grant_many(&old_gateway, &before, 3_000, "before").await;
    let (_, last) = fence(&old).await.unwrap();
    let copy = fence(&new).await;
    assert_eq!(copy.is_some(), heard == Heard::Beginning);
    assert!(copy.is_none_or(|(_, copy)| copy + 2_000 < last), "the replica does not lag");

    new.promote().await;
    let new_gateway = Gateway::on_redis(&new, &[]).await;
    grant_many(&new_gateway, &successor, 100, "successor").await;
    tokio::join!(
        grant_many(&old_gateway, &deposed, 1_000, "deposed"),
        grant_many(&new_gateway, &successor, 1_000, "successor"),
    );
    for grants in [&before, &deposed, &successor] {
        grants.check_order();
    }
    assert!(before.largest() < deposed.smallest(), "the old primary went back");
    assert!(deposed.largest() < successor.smallest(), "the old primary outdid its successor");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_outdoes_what_it_never_heard_of() {
    the_replica_lags(Heard::Beginning).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_knows_no_number_outdoes_them_all() {
    the_replica_lags(Heard::Nothing).await;
}

/// Its run began when a gateway met it, not with its first lock, which is asked for when its successor is long there.
#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_primary_that_never_granted_stays_below_too() {
    let old = RedisServer::start_with(&AT_ONCE).await;
    let new = RedisServer::start_with(&AT_ONCE).await;
    new.follow(old.port()).await;
    let old_gateway = Gateway::on_redis(&old, &[]).await;
    new.promote().await;
    let new_gateway = Gateway::on_redis(&new, &[]).await;
    let (deposed, successor) = (Grants::default(), Grants::default());
    grant_many(&new_gateway, &successor, 50, "successor").await;
    let late_comer = Gateway::on_redis(&old, &[]).await;
    grant_many(&late_comer, &deposed, 50, "deposed").await;
    grant_many(&old_gateway, &deposed, 50, "deposed").await;
    grant_many(&new_gateway, &successor, 50, "successor").await;
    deposed.check_order();
    successor.check_order();
    assert!(deposed.largest() < successor.smallest(), "the old primary outdid its successor");
}

/// The old primary comes back, and all it knows of numbers is its own last one: nothing of its successor's has
/// reached it.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_back_outdoes_what_it_never_heard_of() {
    let first = RedisServer::start_with(&AT_ONCE).await;
    let second = RedisServer::start_with(&AT_ONCE).await;
    second.follow(first.port()).await;
    let gateway = Gateway::on_redis(&first, &[]).await;
    let (before, between, after, deposed) = <(Grants, Grants, Grants, Grants)>::default();
    grant_many(&gateway, &before, 50, "before").await;
    is_copied(&first, &second).await;
    second.promote().await;
    let proxy = Proxy::start(second.port(), Framing::Chunks).await;
    first.follow(proxy.port()).await;
    has_left(&gateway).await;
    proxy.freeze();
    // Only now does a gateway meet the second one.
    let second_gateway = Gateway::on_redis(&second, &[]).await;
    grant_many(&second_gateway, &between, 50, "between").await;
    let (_, known) = fence(&first).await.unwrap();
    assert!(known < between.smallest(), "the first one has heard of it");

    first.promote().await;
    grant_many(&gateway, &after, 50, "after").await;
    tokio::join!(
        grant_many(&gateway, &after, 200, "after"),
        grant_many(&second_gateway, &deposed, 200, "deposed"),
    );
    for grants in [&before, &between, &after, &deposed] {
        grants.check_order();
    }
    assert!(before.largest() < between.smallest() && between.largest() < deposed.smallest());
    assert!(deposed.largest() < after.smallest(), "the second one outdid its successor");
}

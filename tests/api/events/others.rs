//! What gateways tell each other, and what becomes of that when servers, gateways and connections fail.

use std::sync::Arc;
use std::time::Duration;

use fencepost::lock::{LeaseToken, LockKey, Terms, Ttl};
use fencepost::service::{AcquireRequest, LockService, Outcome, Tenant};
use tokio::time::Instant;

use super::{Pair, Record, SOON, Stream};
use kit::proxy::Framing;
use kit::stores::redis_store;
use kit::{
    Client, Gateway, PATIENCE, Proxy, RedisServer, SentinelSetup, eventually, fresh_token, server_port,
};

/// Takes a lock of this name and gives it back.
async fn take_and_release(client: &Client, key: &str) {
    // Of its own, so that its release is answered alike if it has to be sent again.
    let token = fresh_token();
    client.put(&format!("/locks/{key}?ttl=20s")).token(&token).send().await.expect(201);
    client.delete(&format!("/locks/{key}")).token(&token).send().await.expect(204);
}

/// After trouble, each release is told, or whoever watches is told to look since; and in the end each is told.
async fn goes_on(record: &Record, client: &Client) {
    eventually("all is told again", async || {
        let before = Instant::now();
        let grant = client.put("/locks/k?ttl=20s").send().await;
        if grant.status != 201 {
            return false;
        }
        let released = client.delete("/locks/k").token(&grant.token()).send().await.status == 204;
        let number = grant.fencing_token();
        let mut is_told = false;
        eventually("it is told, or looked for", async || {
            is_told = record.has_released(number);
            is_told || record.has_looked_since(before)
        })
        .await;
        released && is_told
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_gateway_does_is_told_within_a_second() {
    let pair = Pair::redis().await;
    let mut stream = Stream::open(&pair.here(), "prefix=").await;
    let mut took = Vec::new();
    for number in 0..10 {
        let before = Instant::now();
        pair.there().put(&format!("/locks/k{number}")).send().await.expect(201);
        stream.of(&format!("k{number}")).await.is("granted");
        took.push(before.elapsed());
    }
    took.sort_unstable();
    println!("told after {took:?}");
    assert!(took[5] < SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_while_nobody_watches() {
    let Pair { here, there, redis } = Pair::redis().await;
    let (redis, there) = (redis.unwrap(), there.unwrap());
    let client = Client::new(there.address);
    for _ in 0..20 {
        take_and_release(&client, "k").await;
    }
    assert_eq!(redis.calls("publish").await, 0);
    let mut stream = Stream::open(&Client::new(here.address), "key=k").await;
    take_and_release(&client, "k").await;
    stream.until("released").await;
    assert!(redis.calls("publish").await > 0);
    // Whoever watched is gone, and with it, after a while, its summons.
    drop((stream, here));
    eventually("nothing is sent any more", async || {
        let before = redis.calls("publish").await;
        take_and_release(&client, "k").await;
        // What a request leads to is sent after its answer.
        tokio::time::sleep(Duration::from_millis(200)).await;
        redis.calls("publish").await == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_watch_at_one_gateway_are_told_by_it_alone() {
    let redis = RedisServer::start().await;
    let gateway = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(gateway.address);
    let mut stream = Stream::open(&client, "key=k").await;
    let before = redis.calls("publish").await;
    for _ in 0..20 {
        take_and_release(&client, "k").await;
        stream.until("released").await;
    }
    // Some summons, which find nobody.
    assert!(redis.calls("publish").await - before < 20);
}

/// Whoever watches is told to look at all. Before that it may be told so of one lock, for which it was looked late.
async fn all_is_looked_at(stream: &mut Stream) {
    while stream.next().await.is("resync").key().is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_comes_and_one_that_goes_has_those_who_watch_look() {
    let redis = RedisServer::start().await;
    let here = Gateway::on_redis(&redis, &[]).await;
    let mut stream = Stream::open(&Client::new(here.address), "key=k").await;
    let mut there = Gateway::on_redis(&redis, &[]).await;
    all_is_looked_at(&mut stream).await;
    let grant = Client::new(there.address).put("/locks/k?ttl=20s").send().await.expect(201);
    assert_eq!(stream.next_news().await.is("granted").fencing_token(), grant.fencing_token());
    // What it did last, nobody knows.
    there.kill();
    all_is_looked_at(&mut stream).await;
}

/// As in each rolling restart: its readers go to another gateway at once, and it still answers what is under way.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_does_while_it_drains_is_told_to_those_who_begin_to_watch_meanwhile() {
    const MARK_TTL: Duration = Duration::from_secs(60);
    let redis = RedisServer::start().await;
    let here = Gateway::on_redis(&redis, &[]).await;
    let draining = LockService::new(Arc::new(redis_store(&redis, MARK_TTL)), PATIENCE, MARK_TTL);
    draining.stop_waiting();
    let record = Record::of(Stream::open(&Client::new(here.address), "key=k").await);
    let (key, ttl) = (LockKey::parse(b"k").unwrap(), Ttl::from_ms(20_000).unwrap());
    // The first deeds may come before the connection by which it hears that it is asked.
    eventually("what it does is told", async || {
        let (key, terms, tenant) = (key.clone(), Terms::default(), Tenant::default());
        let token = LeaseToken::parse(fresh_token().as_bytes()).unwrap();
        let (of_it, note, wait) = (Some(token.clone()), Default::default(), Duration::ZERO);
        let wish = AcquireRequest { key: key.clone(), token: of_it, ttl, note, wait, terms, tenant };
        let Outcome::Granted(lease, guard, ..) = draining.acquire(wish).await.unwrap().outcome else {
            panic!("it was not granted");
        };
        guard.disarm();
        let number = lease.fencing_token.get();
        draining.release(&key, &token).await.unwrap();
        // A letter takes some milliseconds.
        tokio::time::sleep(Duration::from_millis(100)).await;
        record.has_released(number)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_store_those_who_watch_look_and_are_told_on() {
    let Pair { here, there, redis } = Pair::redis().await;
    let (mut redis, there) = (redis.unwrap(), there.unwrap());
    let record = Record::of(Stream::open(&Client::new(here.address), "key=k").await);
    let client = Client::new(there.address);
    take_and_release(&client, "k").await;
    let before = Instant::now();
    redis.restart_empty().await;
    eventually("whoever watches looks", async || record.has_looked_since(before)).await;
    goes_on(&record, &client).await;
}

/// The connection of the gateway at which somebody watches breaks, and while it is gone another gateway goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_happens_while_a_gateway_is_cut_off_is_not_missed() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let here = Gateway::start(&["--store", &proxy.redis_url()]).await;
    let there = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(there.address);
    let mut stream = Stream::open(&Client::new(here.address), "key=k").await;
    take_and_release(&client, "k").await;
    stream.until("released").await;
    proxy.set_closed_to_new(true);
    proxy.sever();
    let grant = client.put("/locks/k?ttl=60s").send().await.expect(201);
    proxy.set_closed_to_new(false);
    all_is_looked_at(&mut stream).await;
    // From there on nothing is missed again.
    client.patch("/locks/k?ttl=80s").token(&grant.token()).send().await.expect(200);
    stream.until("renewed").await;
}

/// The same, and the reader was told to look: the end of the lease is no event any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_missed_is_not_told_as_the_end_of_the_lease() {
    const TTL: Duration = Duration::from_secs(4);
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let here = Gateway::start(&["--store", &proxy.redis_url()]).await;
    let there = Gateway::on_redis(&redis, &[]).await;
    let client = Client::new(there.address);
    // A list says nothing of a free lock.
    let mut stream = Stream::open(&Client::new(here.address), "prefix=").await;
    let grant = client.put(&format!("/locks/k?ttl={}s", TTL.as_secs())).send().await.expect(201);
    stream.until("granted").await;
    proxy.set_closed_to_new(true);
    proxy.sever();
    client.delete("/locks/k").token(&grant.token()).send().await.expect(204);
    proxy.set_closed_to_new(false);
    all_is_looked_at(&mut stream).await;
    tokio::time::sleep(TTL + SOON).await;
    client.put("/locks/k?ttl=20s").send().await.expect(201);
    stream.next_news().await.is("granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_goes_on_when_sentinel_promotes_another_server() {
    let setup = SentinelSetup::start().await;
    let start = async || Gateway::start(&["--store", &setup.url()]).await;
    let (watched, used) = (start().await, start().await);
    let (here, there) = (Client::new(watched.address), Client::new(used.address));
    let record = Record::of(Stream::open(&here, "key=k").await);
    take_and_release(&there, "k").await;
    let before = Instant::now();
    setup.failover().await;
    eventually("whoever watches looks", async || record.has_looked_since(before)).await;
    goes_on(&record, &there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_of_a_quorum_that_is_gone_takes_no_news_with_it() {
    let mut quorum = kit::Quorum::start(3).await;
    let (here, there) = (quorum.gateway(&[]).await, quorum.gateway(&[]).await);
    for gateway in [&here, &there] {
        kit::quorum::is_ready(&Client::new(gateway.address)).await;
    }
    let mut stream = Stream::open(&Client::new(here.address), "key=k").await;
    let client = Client::new(there.address);
    quorum.nodes[0].kill();
    for _ in 0..5 {
        let token = client.put("/locks/k?ttl=20s").send().await.expect(201).token();
        stream.until("granted").await;
        client.delete("/locks/k").token(&token).send().await.expect(204);
        stream.until("released").await;
    }
}

/// Redis keeps their keys apart, and not their channels.
#[tokio::test(flavor = "multi_thread")]
async fn another_database_of_the_server_is_another_store() {
    let redis = RedisServer::start().await;
    let at = async |database: u8| {
        Gateway::start(&["--store", &format!("redis://127.0.0.1:{}/{database}", redis.port())]).await
    };
    let [none, first, second] = [at(0).await, at(1).await, at(2).await];
    let clients = [&none, &first, &second].map(|gateway| Client::new(gateway.address));
    let mut streams = Vec::new();
    for client in &clients {
        streams.push(Stream::open(client, "prefix=").await);
    }
    for (number, client) in clients.iter().enumerate() {
        take_and_release(client, &format!("of-{number}")).await;
    }
    for client in &clients {
        client.put("/locks/last?ttl=20s").send().await.expect(201);
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut told = Vec::new();
        while told.last().is_none_or(|key| key != "last") {
            told.push(stream.next_news().await.key().unwrap().to_owned());
        }
        let own = format!("of-{number}");
        assert_eq!(told, [&own, &own, "last"], "database {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_use_the_channels_is_told_so() {
    let redis = RedisServer::start().await;
    let _: () =
        redis.command(&["ACL", "SETUSER", "deaf", "on", ">password", "~*", "+@all", "resetchannels"]).await;
    let url = format!("redis://deaf:password@127.0.0.1:{}", redis.port());
    let gateway = Gateway::start(&["--store", &url]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/k").send().await.expect(201);
    client.get("/events?key=k").send().await.expect_problem(503, "store-unavailable");
    let warnings = gateway.log().join("\n");
    assert!(warnings.contains("/events"), "{warnings}");
    // A store that nobody can reach is no different.
    let nowhere = Gateway::start(&["--store", &format!("redis://127.0.0.1:{}", server_port())]).await;
    Client::new(nowhere.address).get("/events?key=k").send().await.expect_problem(503, "store-unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_go_on_while_enough_servers_of_a_quorum_allow_the_channels() {
    let quorum = kit::Quorum::start(3).await;
    for node in &quorum.nodes {
        let _: () =
            node.command(&["ACL", "SETUSER", "fp", "on", ">password", "~*", "+@all", "allchannels"]).await;
    }
    let store = quorum.url().replace("redlock://", "redlock://fp:password@");
    let (here, there) = (Gateway::start(&["--store", &store]).await, quorum.gateway(&[]).await);
    for gateway in [&here, &there] {
        kit::quorum::is_ready(&Client::new(gateway.address)).await;
        kit::quorum::asks_all(gateway, &quorum).await;
    }
    let mut stream = Stream::open(&Client::new(here.address), "key=k").await;
    let forbid = async |node: usize| {
        let _: () = quorum.nodes[node].command(&["ACL", "SETUSER", "fp", "resetchannels"]).await;
    };
    forbid(0).await;
    eventually("the gateway finds that it may not use the channels", async || {
        here.log().join("\n").contains("cannot learn by one server")
    })
    .await;
    let client = Client::new(there.address);
    all_is_looked_at(&mut stream).await;
    for _ in 0..5 {
        take_and_release(&client, "k").await;
        stream.until("released").await;
    }
    forbid(1).await;
    stream.rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_the_channels_are_forbidden_and_may_begin_when_they_are_allowed_again() {
    let redis = RedisServer::start().await;
    let _: () =
        redis.command(&["ACL", "SETUSER", "fp", "on", ">password", "~*", "+@all", "allchannels"]).await;
    let url = format!("redis://fp:password@127.0.0.1:{}", redis.port());
    let gateway = Gateway::start(&["--store", &url]).await;
    let client = Client::new(gateway.address);
    let mut streams = [Stream::open(&client, "key=k").await, Stream::open(&client, "prefix=").await];
    let _: () = redis.command(&["ACL", "SETUSER", "fp", "resetchannels"]).await;
    for stream in &mut streams {
        stream.rest().await;
    }
    client.get("/events?key=k").send().await.expect_problem(503, "store-unavailable");
    let _: () = redis.command(&["ACL", "SETUSER", "fp", "allchannels"]).await;
    let mut stream = Stream::open(&client, "key=k").await;
    take_and_release(&client, "k").await;
    stream.until("released").await;
}

/// Those that are open hear of it when Redis is back.
#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_a_stream_begins_only_where_another_one_is_open() {
    let mut redis = RedisServer::start().await;
    let (here, there) = (Gateway::on_redis(&redis, &[]).await, Gateway::on_redis(&redis, &[]).await);
    let [here, there] = [&here, &there].map(|gateway| Client::new(gateway.address));
    let _first = Stream::open(&here, "key=k").await;
    redis.kill();
    eventually("it is noticed", async || here.get("/readyz").send().await.status == 503).await;
    there.get("/events?key=k").send().await.expect_problem(503, "store-unavailable");
    let mut second = Stream::open(&here, "key=k").await;
    redis.start_again().await;
    second.until("resync").await;
    let begins = async || there.call("GET", "/events?key=k").open().await.status() == 200;
    eventually("it begins there, too", begins).await;
}

//! FleetLock, as its description has it: <https://coreos.github.io/zincati/development/fleetlock/protocol/>.

use futures_util::future::join_all;
use kit::keys::KeysFile;
use kit::proxy::{Fate, Framing};
use kit::{Client, Gateway, Proxy, RedisServer, eventually};
use serde_json::json;

use super::listed;
use crate::on_each::{each_store_and, each_store_with_slots_and};

async fn ask(client: &Client, step: &str, id: &str, group: &str) -> (u16, String) {
    let body = json!({ "client_params": { "id": id, "group": group } }).to_string();
    let call =
        client.post(&format!("/fleet-lock/v1/{step}")).header("fleet-lock-protocol", "true").body(body);
    let answer = call.send().await;
    let kind =
        if answer.status == 200 { String::new() } else { answer.json()["kind"].as_str().unwrap().to_owned() };
    (answer.status, kind)
}

async fn reboots(client: &Client, id: &str) -> u16 {
    ask(client, "pre-reboot", id, "default").await.0
}

async fn runs(client: &Client, id: &str) -> u16 {
    ask(client, "steady-state", id, "default").await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_after_the_other_reboots() {
    each_store_and(&["--fleet-lock", "default=1", "--max-ttl", "24h"], async |client| {
        // At each boot, before anything was asked for.
        assert_eq!(runs(client, "m1").await, 200);
        assert!(listed(client).await.is_empty(), "that uses something up");
        assert_eq!(reboots(client, "m1").await, 200);
        assert_eq!(reboots(client, "m1").await, 200);
        assert_eq!(ask(client, "pre-reboot", "m2", "default").await, (423, "failed_lock".to_owned()));
        assert_eq!(runs(client, "m2").await, 200);
        let [(key, owner)] = &listed(client).await[..] else { panic!("it holds more than one") };
        assert!(key == "fleet-lock:default" && owner.starts_with("m1 "), "{key} {owner}");
        assert_eq!(runs(client, "m1").await, 200);
        assert_eq!(runs(client, "m1").await, 200);
        assert_eq!(reboots(client, "m2").await, 200);
        // Its name is used again, and meets no mark of its last release.
        assert_eq!(runs(client, "m2").await, 200);
        assert_eq!(reboots(client, "m2").await, 200);
        assert_eq!(reboots(client, "m1").await, 423);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_has_its_slots() {
    each_store_with_slots_and(&["--fleet-lock", "default=1,workers=2"], async |client| {
        let of_workers = async |id| ask(client, "pre-reboot", id, "workers").await.0;
        assert_eq!(reboots(client, "m1").await, 200);
        assert_eq!([of_workers("m1").await, of_workers("m2").await, of_workers("m3").await], [200, 200, 423]);
        assert_eq!(of_workers("m2").await, 200);
        assert_eq!(ask(client, "steady-state", "m1", "workers").await.0, 200);
        assert_eq!([of_workers("m3").await, of_workers("m1").await], [200, 423]);
        assert_eq!(reboots(client, "m2").await, 423, "the other group");
    })
    .await;
}

/// Copies of a request that arrive at once, at both gateways of a store, are one machine's.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_asks_twice_at_once_has_one_slot() {
    for slots in ["default=3", "default=1"] {
        let redis = RedisServer::start().await;
        let gateways = [
            Gateway::on_redis(&redis, &["--fleet-lock", slots]).await,
            Gateway::on_redis(&redis, &["--fleet-lock", slots]).await,
        ];
        let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
        for round in 0..50 {
            let mut asked = join_all((0..6).map(|at| reboots(&clients[at % 2], "m1"))).await;
            // One that finds nothing certain asks again, as the tool does.
            for at in 0..asked.len() {
                if asked[at] == 503 {
                    asked[at] = reboots(&clients[at % 2], "m1").await;
                }
            }
            assert_eq!(asked, [200; 6], "{slots}, round {round}");
            let held =
                clients[0].get("/lock?key=fleet-lock:default&holders=true").send().await.expect(200).json();
            assert_eq!(held["holders"].as_array().map_or(1, Vec::len), 1, "{slots}, round {round}: {held}");
            assert_eq!(runs(&clients[round % 2], "m1").await, 200);
            assert!(listed(&clients[0]).await.is_empty());
        }
    }
}

/// The machine is away for longer than the gateway, which may have other settings then.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_reboots_keeps_its_slot_while_the_gateway_restarts() {
    let redis = RedisServer::start().await;
    let mut gateway = Gateway::on_redis(&redis, &["--fleet-lock", "default=2"]).await;
    let client = Client::new(gateway.address);
    assert_eq!([reboots(&client, "m1").await, reboots(&client, "m2").await], [200, 200]);
    for slots in ["default=2", "default=1", "default=3"] {
        gateway.kill();
        gateway = Gateway::on_redis(&redis, &["--fleet-lock", slots]).await;
        let client = Client::new(gateway.address);
        assert_eq!([reboots(&client, "m1").await, reboots(&client, "m2").await], [200, 200], "{slots}");
        assert_eq!(reboots(&client, "m3").await, 423, "those who hold it have said 2");
    }
    let client = Client::new(gateway.address);
    assert_eq!([runs(&client, "m1").await, runs(&client, "m2").await], [200, 200]);
    assert!(listed(&client).await.is_empty());
}

/// The look after the grant finds no store, and the grant may stand.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_grant_may_stand_is_not_told_that_nothing_has_happened() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let store = proxy.redis_url();
    let flags = ["--store", &store, "--store-timeout", "1s", "--fleet-lock", "default=1"];
    let gateway = Gateway::start(&flags).await;
    let client = Client::new(gateway.address);
    // Each script's first call sends its text as well.
    assert_eq!([reboots(&client, "warm").await, runs(&client, "warm").await], [200, 200]);
    let granted = async || {
        let numbers: Vec<u64> = redis.command(&["HVALS", "fencepost:{0}:fence"]).await;
        numbers[0]
    };
    let before = granted().await;
    let (mut has_taken, mut is_away) = (false, false);
    proxy.set_policy(move |message| {
        let says = |text: &str| message.windows(text.len()).any(|part| part == text.as_bytes());
        // Only a request for the lock says whose it is.
        let takes = says("machine-2 ");
        is_away |= has_taken && !takes && says("lock:fleet-lock:default");
        has_taken |= takes;
        if is_away { Fate::CutBefore } else { Fate::Pass }
    });
    let told = ask(&client, "pre-reboot", "machine-2", "default").await;
    assert_eq!(told, (503, "failed_lock".to_owned()));
    assert_eq!(granted().await, before + 1);
    gateway
        .logs("it is not known", |line| line.contains("fleet-lock") && line.contains("outcome-unknown"))
        .await;
    proxy.set_policy(|_| Fate::Pass);
    let is_free = async || client.get("/lock?key=fleet-lock:default").send().await.status == 404;
    eventually("what no machine was told of is given back", is_free).await;
}

/// To say that it runs takes no lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_may_say_that_it_runs_with_a_key_that_allows_no_long_lease() {
    let mut keys = KeysFile::new();
    let [long, short] = [("long", ""), ("short", "max_ttl = \"5m\"")].map(|(name, limit)| {
        keys.add(name, &format!("every_key = true\nallow = [\"acquire\", \"inspect\"]\n{limit}"))
    });
    keys.write();
    let flag = keys.flag();
    let flags = ["--store", "memory:", "--fleet-lock", "default=1", &flag[0], &flag[1]];
    let gateway = Gateway::start(&flags).await;
    let client = Client::new(gateway.address);
    let body = json!({ "client_params": { "id": "m1", "group": "default" } }).to_string();
    for (step, key, expected) in
        [("pre-reboot", &short, 400), ("pre-reboot", &long, 200), ("steady-state", &short, 200)]
    {
        let call = client.post(&format!("/fleet-lock/v1/{step}")).key(key).body(body.clone());
        let answer = call.header("fleet-lock-protocol", "true").send().await;
        assert_eq!(answer.status, expected, "{step}");
    }
    client.get("/lock?key=fleet-lock:default").key(&long).send().await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_told_in_the_form_of_the_protocol() {
    let gateway = Gateway::start(&["--store", "memory:", "--fleet-lock", "default=1"]).await;
    let client = Client::new(gateway.address);
    let bad = (400, "bad_request".to_owned());
    let long = "m".repeat(240);
    for (id, group) in
        [("", "default"), ("m1", ""), ("m1", "others"), (&*long, "default"), ("a\nb", "default")]
    {
        for step in ["pre-reboot", "steady-state"] {
            assert_eq!(ask(&client, step, id, group).await, bad, "{step} {id} {group}");
        }
    }
    let address = "/fleet-lock/v1/pre-reboot";
    for body in
        ["", "x", "{}", r#"{"client_params":{"id":"m1"}}"#, r#"{"client_params":{"id":1,"group":"default"}}"#]
    {
        let answer = client.post(address).header("fleet-lock-protocol", "true").body(body).send().await;
        assert_eq!((answer.status, answer.json()["kind"].as_str().unwrap()), (400, "bad_request"), "{body}");
    }
    let body = r#"{"client_params":{"id":"m1","group":"default"}}"#;
    let answer = client.post(address).body(body).send().await;
    assert_eq!((answer.status, answer.json()["kind"].as_str().unwrap()), (400, "bad_request"), "no header");
    assert!(listed(&client).await.is_empty());
    assert_eq!(reboots(&client, &"m".repeat(239)).await, 200);
}

/// A look names a hundred of those who hold a lock by slots.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_may_be_one_of_too_many_is_not_told_that_it_holds_nothing() {
    let gateway = Gateway::start(&["--store", "memory:", "--fleet-lock", "default=100"]).await;
    let client = Client::new(gateway.address);
    let others = async |count: usize| {
        for _ in 0..count {
            client.put("/lock?key=fleet-lock:default&slots=any&ttl=1h").send().await.expect(201);
        }
    };
    others(100).await;
    assert_eq!(runs(&client, "m1").await, 200, "all are known");
    others(1).await;
    assert_eq!(ask(&client, "steady-state", "m1", "default").await, (503, "failed_unlock".to_owned()));
}

//! What servers say of themselves and of each other, where it is not the same but has to have the same form.

use std::time::Duration;

use kit::{RedisServer, server_port};
use redis::{FromRedisValue, Value};
use sim::{Clock, Layout, Server};

use super::{NOW_US, Pair};

fn simulated(name: &str) -> Server {
    Server::start(name, &Clock::standing(NOW_US))
}

/// The names and values in a reply.
fn pairs(reply: &Value) -> Vec<(String, Value)> {
    Vec::from_redis_value(reply.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_and_its_simulation_reply_alike() {
    let primary = RedisServer::start().await;
    let config = format!("sentinel monitor primary 127.0.0.1 {} 1", primary.port());
    let sentinel = RedisServer::start_sentinel_on(server_port(), &config, None).await.unwrap();
    for is_resp3 in [false, true] {
        let simulated = simulated("sentinel");
        let known = ("127.0.0.1".to_owned(), primary.port(), 0);
        simulated.state().layout = Layout::Sentinel([("primary".to_owned(), known)].into());
        let mut pair = Pair::new(&sentinel, simulated, is_resp3);
        for command in [
            "SENTINEL GET-MASTER-ADDR-BY-NAME primary",
            "SENTINEL GET-MASTER-ADDR-BY-NAME nobody",
            "SENTINEL MASTER nobody",
            "SENTINEL MASTER",
            "PING",
        ] {
            let (real, simulated) = pair.ask(command);
            assert!(super::agree_on(&real, &simulated), "{command}: {real:?} and {simulated:?}");
        }
        let (real, simulated) = pair.ask("SENTINEL MASTER primary");
        let real = pairs(&real);
        for field in pairs(&simulated) {
            assert!(real.contains(&field), "{field:?} is not in {real:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_replica_and_its_simulation_reply_alike() {
    let (primary, replica) = (RedisServer::start().await, RedisServer::start().await);
    replica.follow(primary.port()).await;
    let simulated_primary = simulated("primary");
    let simulated_replica = simulated("replica");
    simulated_replica.follow(&simulated_primary, ("127.0.0.1", 6379));
    let mut pair = Pair::new(&primary, simulated_primary.clone(), false);
    let mut of_replica = Pair::new(&replica, simulated_replica.clone(), false);
    let both = |pair: &mut Pair, command: &str| {
        let (real, simulated) = pair.ask(command);
        assert!(super::agree_on(&real, &simulated), "{command}: {real:?} and {simulated:?}");
        real
    };
    both(&mut pair, "SET key value");
    simulated_replica.catch_up(&simulated_primary, usize::MAX);
    assert_eq!(both(&mut pair, "WAIT 1 20000"), Value::Int(1));
    both(&mut pair, "WAIT x 0");
    both(&mut pair, "WAIT 1 -1");
    both(&mut pair, "INFO replication");
    for command in ["GET key", "WAIT 1 1", "DEL key", "INFO replication", "EVAL redis.call('DEL','key') 0"] {
        both(&mut of_replica, command);
    }
    let [of_server, of_simulation] = {
        let (real, simulated) = of_replica.ask("INFO replication");
        [real, simulated].map(|info| String::from_redis_value(info).unwrap())
    };
    for line in ["role:slave", "master_link_status:up"] {
        assert!(of_server.contains(line) && of_simulation.contains(line), "{of_simulation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_its_simulation_greet_and_tell_the_time_alike() {
    let server = RedisServer::start().await;
    for is_resp3 in [false, true] {
        let mut pair = Pair::new(&server, simulated("alone"), is_resp3);
        let names = |reply: &Value| pairs(reply).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        for command in ["HELLO", "HELLO 2", "HELLO 3"] {
            let (real, simulated) = pair.ask(command);
            assert_eq!(names(&real), names(&simulated), "{command}");
        }
        let (real, simulated) = pair.ask("HELLO 4");
        assert!(super::agree_on(&real, &simulated), "{real:?} and {simulated:?}");
        let times =
            <[Value; 2]>::from(pair.ask("TIME")).map(|time| <(u64, u64)>::from_redis_value(time).unwrap());
        assert!(times.iter().all(|(seconds, micros)| *seconds > 1_700_000_000 && *micros < 1_000_000));
    }
}

/// What the random sequences cannot wait for.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_server_and_of_its_simulation_end_alike() {
    let server = RedisServer::start().await;
    let clock = Clock::standing(NOW_US);
    let mut pair = Pair::new(&server, Server::start("alone", &clock), false);
    for command in
        ["SET key value PX 20", "HSET hash field value", "PEXPIRE hash 20", "SET kept value PX 60000"]
    {
        pair.ask(command);
    }
    kit::eventually("the keys have ended", async || server.keys().await.len() == 1).await;
    clock.step(Duration::from_millis(21));
    for command in [
        "GET key",
        "PTTL key",
        "EXISTS key hash kept",
        "HGETALL hash",
        "KEYS *",
        "SET key value NX",
        "PTTL key",
    ] {
        let (real, simulated) = pair.ask(command);
        assert!(super::agree_on(&real, &simulated), "{command}: {real:?} and {simulated:?}");
    }
}

//! A Redis that refuses, in each of the ways in which it can, besides all that the network does to it.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::time::{sleep, timeout};

use super::rig::{RedisRig, Rig, some_time};
use kit::history::Witness;
use kit::{Client, RedisServer};

/// As [`RedisRig`], on a server that is often unwilling.
pub struct RefusingRig(RedisRig);

/// A way to refuse.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    NoScript,
    ReadOnly,
    MasterDown,
    Loading,
    Busy,
    OutOfMemory,
    Misconfigured,
    NoReplicas,
    NoPermission,
    NoAuth,
}

const ALL: [Refusal; 10] = [
    Refusal::NoScript,
    Refusal::ReadOnly,
    Refusal::MasterDown,
    Refusal::Loading,
    Refusal::Busy,
    Refusal::OutOfMemory,
    Refusal::Misconfigured,
    Refusal::NoReplicas,
    Refusal::NoPermission,
    Refusal::NoAuth,
];

/// Two promotions by hand within the second in which gateways look again could repeat numbers, and README says so.
const BETWEEN_PROMOTIONS: Duration = Duration::from_millis(1_300);

impl RefusingRig {
    pub async fn start() -> Self {
        let args = ["--busy-reply-threshold", "5", "--enable-debug-command", "local"];
        Self(RedisRig::start_with(&args).await)
    }
}

impl Rig for RefusingRig {
    fn doors(&self) -> Vec<Client> {
        self.0.doors()
    }

    fn safe_door(&self) -> Client {
        self.0.safe_door()
    }

    async fn fail(&mut self, random: &mut StdRng, witness: &Witness) {
        if random.random_bool(0.3) {
            return self.0.fail_on_the_way(random, witness).await;
        }
        let refusal = *ALL.choose(random).unwrap();
        witness.befalls(&format!("the server refuses: {refusal:?}"));
        refuse(&self.0.redis, refusal, random).await;
    }

    async fn heal(&mut self) {
        self.0.heal().await;
    }

    fn logs(&self) -> Vec<String> {
        self.0.logs()
    }
}

/// Has the server refuse for a while.
async fn refuse(redis: &RedisServer, refusal: Refusal, random: &mut StdRng) {
    match refusal {
        Refusal::NoScript => {
            let _: () = redis.command(&["SCRIPT", "FLUSH"]).await;
        }
        Refusal::ReadOnly | Refusal::MasterDown => {
            let serves = if matches!(refusal, Refusal::ReadOnly) { "yes" } else { "no" };
            set(redis, "replica-serve-stale-data", serves).await;
            // Nobody is there, so what it holds stays.
            let _: () = redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
            sleep(BETWEEN_PROMOTIONS).await;
            redis.promote().await;
            sleep(BETWEEN_PROMOTIONS).await;
        }
        Refusal::Loading => {
            // Each write waits for the disk, so nothing is lost.
            set(redis, "key-load-delay", "100").await;
            let _: () = redis.command(&["DEBUG", "LOADAOF"]).await;
            set(redis, "key-load-delay", "0").await;
        }
        Refusal::Busy => {
            let mut connection = redis.connect().await;
            let spin = async move {
                let mut endless = redis::cmd("EVAL");
                let _: Result<(), _> =
                    endless.arg("while true do end").arg(0).query_async(&mut connection).await;
            };
            let mut admin = redis.connect().await;
            let spinning = tokio::spawn(spin);
            some_time(random, 800).await;
            loop {
                let killed: Result<(), _> = redis::cmd("SCRIPT").arg("KILL").query_async(&mut admin).await;
                if killed.is_ok() || spinning.is_finished() {
                    break;
                }
            }
            timeout(Duration::from_secs(20), spinning).await.unwrap().unwrap();
        }
        Refusal::OutOfMemory => for_a_while(redis, "maxmemory", ["1", "0"], random).await,
        Refusal::NoReplicas => for_a_while(redis, "min-replicas-to-write", ["1", "0"], random).await,
        Refusal::Misconfigured => {
            // A folder stands where the snapshot should be written.
            let in_the_way = redis.directory().join("dump.rdb");
            let _ = std::fs::remove_file(&in_the_way);
            std::fs::create_dir_all(in_the_way.join("full")).unwrap();
            set(redis, "save", "3600 100000000").await;
            let _: Result<(), _> = redis.try_command(&["SAVE"]).await;
            some_time(random, 1_000).await;
            set(redis, "save", "").await;
            std::fs::remove_dir_all(&in_the_way).unwrap();
            let _: () = redis.command(&["SAVE"]).await;
        }
        Refusal::NoPermission => {
            let _: () = redis.command(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]).await;
            some_time(random, 1_000).await;
            let _: () = redis.command(&["ACL", "SETUSER", "default", "+@all"]).await;
        }
        Refusal::NoAuth => {
            let mut admin = redis.connect().await;
            let mut send = async |words: &[&str]| {
                let sent: redis::RedisResult<()> =
                    redis::cmd(words[0]).arg(&words[1..]).query_async(&mut admin).await;
                sent.unwrap();
            };
            send(&["CONFIG", "SET", "requirepass", "secret"]).await;
            // A gateway's own connection is one that has subscribed to something.
            send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
            send(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]).await;
            some_time(random, 1_000).await;
            send(&["CONFIG", "SET", "requirepass", ""]).await;
        }
    }
}

async fn for_a_while(redis: &RedisServer, name: &str, [bad, good]: [&str; 2], random: &mut StdRng) {
    set(redis, name, bad).await;
    some_time(random, 1_000).await;
    set(redis, name, good).await;
}

async fn set(redis: &RedisServer, name: &str, value: &str) {
    let _: () = redis.command(&["CONFIG", "SET", name, value]).await;
}

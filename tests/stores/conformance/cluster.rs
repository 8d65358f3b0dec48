//! A node of a cluster, with slots that are its own, another's, and on their way in both directions.

use kit::{COMPUTES, RedisCluster, RedisServer, give_way, seed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sim::{Clock, Cluster, Server, slot_of};

use super::draw::{Condition, Step};
use super::{BATCH, NOW_US, Pair};

const SEQUENCES: u64 = 10_000;

/// Which slots the keys are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own,
    OwnToo,
    Foreign,
    Leaving,
    Arriving,
}

const KINDS: [Kind; 5] = [Kind::Own, Kind::OwnToo, Kind::Foreign, Kind::Leaving, Kind::Arriving];

/// `k` is a key, and `c` a channel.
const COMMANDS: &[&str] = &[
    "SET k v",
    "SET k v",
    "GET k",
    "MGET k k",
    "EXISTS k k",
    "EXISTS k k",
    "DEL k",
    "DEL k k",
    "HSET k f v",
    "ZADD k 1 m",
    "PEXPIRE k 1000000",
    "EVAL own 1 k",
    "EVAL own 2 k k",
    "EVAL undeclared 0 k",
    "EVAL undeclared 1 k k",
    "EVALSHA 00 1 k",
    "SPUBLISH c v",
    "SSUBSCRIBE c",
    "SSUBSCRIBE c c",
    "PUBLISH c v",
    "SUBSCRIBE c",
    "CLUSTER INFO",
    "WAIT 0 0",
    "SELECT 1",
    "PING",
];
const OWN: &str = "redis.call('SET', KEYS[1], 'v') return { redis.call('GET', KEYS[1]), redis.call('EXISTS', unpack(KEYS)) }";
const UNDECLARED: &str = "return redis.call('GET', ARGV[1])";

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_and_its_simulation_reply_alike() {
    let seed = seed();
    // A node that does not come to the processor for a while is not to have failed.
    let cluster = RedisCluster::start_with(&["--cluster-node-timeout", "30000"]).await;
    give_way(COMPUTES);
    let node = &cluster.nodes[0];
    let tags = KINDS.map(tag_of);
    let slot = |kind: Kind| slot_of(tags[kind as usize].as_bytes());
    let other: String = cluster.nodes[1].command(&["CLUSTER", "MYID"]).await;
    let arriving = slot(Kind::Arriving).to_string();
    let _: () = node.command(&["CLUSTER", "SETSLOT", &arriving, "IMPORTING", &other]).await;
    let simulated = Server::start("simulated", &Clock::standing(NOW_US));
    let primaries: Vec<_> = cluster.nodes.iter().take(3).map(RedisServer::port).collect();
    let nodes: Vec<_> = primaries.iter().map(|port| ("127.0.0.1", *port)).collect();
    let mut known = Cluster::new(0, &nodes);
    known.arriving.insert(slot(Kind::Arriving), 1);
    simulated.state().cluster = Some(known);
    let leaving = Condition::Leaving(slot(Kind::Leaving), other);
    let numbers: Vec<u64> = (0..SEQUENCES).collect();
    let compare = |node: &RedisServer| {
        let mut pair = Pair::new(node, simulated, true);
        numbers.chunks(BATCH as usize).find_map(|numbers| {
            let sequences = numbers.iter().map(|number| draw(seed, *number, &tags, &leaving)).collect();
            pair.first_difference_in(numbers, sequences)
        })
    };
    if let Some(difference) = tokio::task::block_in_place(|| compare(node)) {
        panic!("TEST_SEED={seed} {tags:?} {difference}");
    }
}

/// A hash tag of this kind: node 0 has the first third of all slots.
fn tag_of(kind: Kind) -> String {
    let is_of_kind = |tag: &String| {
        let is_own = slot_of(tag.as_bytes()) < 5_000;
        is_own != matches!(kind, Kind::Foreign | Kind::Arriving)
    };
    let tags = (0..).map(|number| format!("{{{number}}}")).filter(is_of_kind);
    tags.filter(|tag| (5_500..10_000).contains(&slot_of(tag.as_bytes())) || slot_of(tag.as_bytes()) < 5_000)
        .nth(kind as usize)
        .unwrap()
}

fn draw(seed: u64, number: u64, tags: &[String; 5], leaving: &Condition) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // A slot that leaves takes no new keys, but may have some.
    let stays = Step::Condition(leaving.clone(), false);
    let mut steps = vec![Step::words(&["FLUSHALL"]), stays];
    if random.random_bool(0.5) {
        let key = format!("{}k0", tags[Kind::Leaving as usize]);
        steps.push(Step::words(&["SET", &key, "v"]));
    }
    steps.push(Step::Condition(leaving.clone(), true));
    // Most keys of a sequence share their slot.
    let usual = tags.choose(&mut random).unwrap();
    for _ in 0..random.random_range(4..12) {
        if random.random_bool(0.4) {
            steps.push(Step::words(&["ASKING"]));
        }
        let template = COMMANDS.choose(&mut random).unwrap();
        let mut word = |kind: &str| match kind {
            "k" | "c" => {
                let tag = if random.random_bool(0.8) { usual } else { tags.choose(&mut random).unwrap() };
                format!("{tag}{kind}{}", random.random_range(0..2))
            }
            "own" => OWN.to_owned(),
            "undeclared" => UNDECLARED.to_owned(),
            literal => literal.to_owned(),
        };
        let words: Vec<_> = template.split(' ').map(|kind| word(kind).into_bytes()).collect();
        steps.push(Step::Words(words));
    }
    steps
}

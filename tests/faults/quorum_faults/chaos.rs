//! Five nodes and three gateways, and all that can go wrong with each of them and between them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep;

use super::ways::{Divisible, Ways};
use crate::faults::entrance::Entrance;
use crate::faults::rig::{Rig, some_time};
use kit::history::{Answer, History, Operation, Witness, summary};
use kit::quorum::{BRIEF, count_soon, counts_soon, hasten, is_ready};
use kit::visitors::Ttls;
use kit::{Client, RedisServer};

const NODES: usize = 5;
const GATEWAYS: usize = 3;

/// What may be done to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// At most two are touched at a time; one that may have forgotten is touched until its quarantine is over.
    Minority,
    /// At most two are touched at a time, and one that may have forgotten is left to itself.
    Careless,
    /// None restarts, and any number is touched.
    Running,
}

/// Something that befalls a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Touch {
    /// It ends, and after a while it starts again, empty or with what it kept.
    Restart,
    Flush,
    Stall,
    /// Nothing passes between it and the gateways, or one of them, or in one direction.
    Part,
    /// Single messages of one gateway are lost, late, or without answers.
    BadWay,
}

pub struct QuorumRig {
    rules: Rules,
    /// Each locked while it is touched.
    nodes: Vec<Mutex<RedisServer>>,
    ways: Vec<Ways>,
    gateways: Vec<Entrance>,
    touched: std::sync::Mutex<BTreeMap<Touch, usize>>,
}

impl QuorumRig {
    pub async fn start(rules: Rules) -> Self {
        let whole = Divisible::start(NODES, GATEWAYS, &["--appendonly", "yes"]).await;
        let limits = match rules {
            // As long as the longest lease that is asked for.
            Rules::Running => &["--max-ttl", "1h", "--store-timeout", "500ms"][..],
            Rules::Minority | Rules::Careless => &BRIEF,
        };
        let urls: Vec<_> = (0..GATEWAYS).map(|at| whole.url(at)).collect();
        let open =
            urls.iter().map(|url| async { Entrance::open(&[&["--store", url], limits].concat()).await });
        let gateways = join_all(open).await;
        let Divisible { quorum, ways } = whole;
        quorum.is_whole().await;
        for entrance in &gateways {
            is_ready(&entrance.safe_door()).await;
        }
        let nodes = quorum.nodes.into_iter().map(Mutex::new).collect();
        Self { rules, nodes, ways, gateways, touched: std::sync::Mutex::default() }
    }

    /// Touches some nodes one after the other, each of them one that nobody else touches.
    async fn touch_some(&self, random: &mut StdRng, witness: &Witness) {
        for _ in 0..random.random_range(1..3) {
            some_time(random, if self.rules == Rules::Careless { 3_000 } else { 600 }).await;
            let (at, mut node) = self.untouched(random);
            self.touch(at, &mut node, random, witness).await;
            match self.rules {
                Rules::Minority => counts_soon(&node).await,
                Rules::Running | Rules::Careless => {}
            }
        }
    }

    /// Shortens the quarantines that nobody waits for.
    async fn hasten_all(&self) {
        loop {
            for node in &self.nodes {
                if let Ok(node) = node.try_lock() {
                    hasten(&node).await;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn untouched(&self, random: &mut StdRng) -> (usize, MutexGuard<'_, RedisServer>) {
        loop {
            let at = random.random_range(0..NODES);
            if let Ok(node) = self.nodes[at].try_lock() {
                return (at, node);
            }
        }
    }

    async fn touch(&self, at: usize, node: &mut RedisServer, random: &mut StdRng, witness: &Witness) {
        use Touch::{BadWay, Flush, Part, Restart, Stall};
        let all = match self.rules {
            Rules::Running => &[Stall, Part, Part, BadWay][..],
            Rules::Minority | Rules::Careless => &[Restart, Restart, Flush, Flush, Stall, Part, Part, BadWay],
        };
        let touch = *all.choose(random).unwrap();
        *self.touched.lock().unwrap().entry(touch).or_default() += 1;
        witness.befalls(match touch {
            Restart => "a server restarts",
            Flush => "a server forgets all",
            Stall => "a server stands still",
            Part => "a server is cut off",
            BadWay => "a way to a server fails",
        });
        match touch {
            Restart => {
                node.kill();
                some_time(random, 1_500).await;
                if random.random_bool(0.5) {
                    node.lose_data();
                }
                node.start_again().await;
            }
            Flush => {
                let _: () = node.command(&["FLUSHALL"]).await;
            }
            Stall => {
                node.signal("STOP");
                some_time(random, 2_500).await;
                node.signal("CONT");
            }
            Part => self.ways[at].part(random).await,
            BadWay => self.ways[at].to_node.choose(random).unwrap().fail(random).await,
        }
    }

    /// Something that befalls a gateway, or the way to it.
    async fn trouble_a_gateway(&self, random: &mut StdRng, witness: &Witness) {
        let entrance = self.gateways.choose(random).unwrap();
        some_time(random, 2_000).await;
        match random.random_range(0..4) {
            0 | 1 => entrance.way_fails(random, witness).await,
            2 => entrance.stands_still(random, witness).await,
            _ => entrance.is_killed(witness).await,
        }
    }
}

impl Rig for QuorumRig {
    fn may_share(&self) -> bool {
        false
    }

    fn doors(&self) -> Vec<Client> {
        self.gateways.iter().flat_map(Entrance::doors).collect()
    }

    fn safe_door(&self) -> Client {
        self.gateways[0].safe_door()
    }

    async fn fail(&mut self, random: &mut StdRng, witness: &Witness) {
        let rig = &*self;
        let hands = if rig.rules == Rules::Running { 3 } else { 2 };
        let touching = (0..hands).map(|_| {
            let mut random = StdRng::seed_from_u64(random.random());
            async move { rig.touch_some(&mut random, witness).await }
        });
        let touching = join_all(touching.collect::<Vec<_>>());
        let troubles = async { tokio::join!(touching, rig.trouble_a_gateway(random, witness)) };
        tokio::select! {
            _ = troubles => {}
            () = rig.hasten_all() => {}
        }
    }

    async fn heal(&mut self) {
        for way in self.ways.iter().flat_map(|ways| &ways.to_node) {
            way.become_good();
            way.is_over().await;
        }
        for entrance in &self.gateways {
            entrance.heal().await;
        }
        let nodes = join_all(self.nodes.iter().map(|node| node.lock())).await;
        count_soon(nodes.iter().map(|node| &**node)).await;
        for entrance in &self.gateways {
            is_ready(&entrance.safe_door()).await;
        }
        let touched = self.touched.lock().unwrap();
        println!("{:?}: {touched:?}", self.rules);
        // A run in which hardly anything was touched would prove nothing.
        assert!(touched.values().sum::<usize>() >= 6, "{touched:?}");
    }

    fn logs(&self) -> Vec<String> {
        self.gateways.iter().flat_map(Entrance::logs).collect()
    }

    fn ttls(&self) -> Ttls {
        match self.rules {
            Rules::Running => Ttls::default(),
            Rules::Minority | Rules::Careless => {
                Ttls { shortest_ms: 200, longest_ms: 4_000, outlasting_ms: 4_000 }
            }
        }
    }

    fn explain(&self, history: &mut History) {
        history.is_of_quorum = true;
        history.is_without_holds = self.rules == Rules::Careless;
        if self.rules == Rules::Minority {
            // The others serve all the same.
            let is_failure = |one: &&Operation| matches!(one.answer, Answer::NotDone | Answer::Unknown);
            let failures = history.operations.iter().filter(is_failure).count();
            assert!(failures * 20 < history.operations.len(), "{}", summary(history));
        }
    }
}

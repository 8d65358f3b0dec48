//! A cluster whose slots move, whose primaries stand still, and whose replicas take over.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::time::sleep;

use super::rig::{BadWay, Rig, some_time};
use kit::cluster::slot_of_lock;
use kit::history::{Witness, now_us};
use kit::proxy::Framing;
use kit::visitors::KEYS;
use kit::{Client, Gateway, RedisCluster, eventually};

/// Longer than a server must be silent for its replica to be promoted, and for it to be told so.
const LONG_ENOUGH: Duration = Duration::from_millis(3_000);

/// Two gateways on a cluster.
pub struct ClusterRig {
    cluster: RedisCluster,
    gateways: Vec<Gateway>,
    to_gateways: Vec<BadWay>,
}

impl ClusterRig {
    pub async fn start() -> Self {
        let cluster = RedisCluster::start().await;
        let mut rig = Self { cluster, gateways: Vec::new(), to_gateways: Vec::new() };
        for _ in 0..2 {
            let gateway = Gateway::start(&["--store", &rig.cluster.url()]).await;
            rig.to_gateways.push(BadWay::to(gateway.address.port(), Framing::Chunks).await);
            rig.gateways.push(gateway);
        }
        rig
    }

    /// The slot of some lock, and who has it.
    async fn some_slot(&self, random: &mut StdRng) -> (u16, usize) {
        let slot = slot_of_lock(KEYS.choose(random).unwrap());
        (slot, self.cluster.owner_of(slot).await)
    }

    async fn migrate(&self, random: &mut StdRng) {
        let (slot, owner) = self.some_slot(random).await;
        let to = self.other_primary(owner, random).await;
        let migration = self.cluster.begin_migration(slot, to).await;
        some_time(random, 800).await;
        // Those that are made in the meantime too.
        while self.cluster.move_keys(migration, usize::MAX).await > 0 {}
        self.cluster.end_migration(migration).await;
        self.cluster.is_whole().await;
    }

    async fn other_primary(&self, than: usize, random: &mut StdRng) -> usize {
        loop {
            // Most slots never move, so each primary has some.
            let owner = self.cluster.owner_of(random.random_range(0..16_384)).await;
            if owner != than {
                return owner;
            }
        }
    }
}

impl Rig for ClusterRig {
    fn doors(&self) -> Vec<Client> {
        let safe = self.gateways.iter().map(|gateway| Client::new(gateway.address));
        safe.chain(self.to_gateways.iter().map(BadWay::client)).collect()
    }

    fn safe_door(&self) -> Client {
        Client::new(self.gateways[0].address)
    }

    async fn fail(&mut self, random: &mut StdRng, witness: &Witness) {
        match random.random_range(0..8) {
            0..3 => {
                witness.befalls("a slot moves");
                self.migrate(random).await;
            }
            3 => {
                witness.befalls("the way to a gateway fails");
                self.to_gateways.choose(random).unwrap().fail(random).await;
            }
            4 => {
                witness.befalls("a server stands still");
                // Not for so long that anybody would take over.
                let (_, owner) = self.some_slot(random).await;
                self.cluster.nodes[owner].signal("STOP");
                some_time(random, 600).await;
                self.cluster.nodes[owner].signal("CONT");
            }
            5 => {
                witness.befalls("a server stands still until its replica takes over");
                let (_, owner) = self.some_slot(random).await;
                let start_us = now_us();
                self.cluster.nodes[owner].signal("STOP");
                sleep(LONG_ENOUGH).await;
                self.cluster.nodes[owner].signal("CONT");
                self.cluster.is_whole().await;
                witness.lost_since(start_us);
                witness.split_since(start_us);
            }
            _ => {
                witness.befalls("a replica takes over");
                let (_, owner) = self.some_slot(random).await;
                let start_us = now_us();
                self.cluster.take_over(owner).await;
                self.cluster.is_whole().await;
                witness.lost_since(start_us);
                witness.split_since(start_us);
            }
        }
    }

    async fn heal(&mut self) {
        for way in &self.to_gateways {
            way.become_good();
            way.is_over().await;
        }
        self.cluster.is_whole().await;
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

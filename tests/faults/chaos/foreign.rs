//! Two gateways on servers of the reader. The gateways fail, and the ways to them. The reader may let the servers fail, too.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::faults::entrance::Entrance;
use crate::faults::rig::Rig;
use kit::Client;
use kit::history::{History, Span, Witness, now_us};
use kit::quorum::is_ready;
use kit::visitors::Ttls;

pub struct ForeignRig {
    entrances: Vec<Entrance>,
    /// Whether the servers may lose what they acknowledged, as at a failover.
    may_lose: bool,
    began_us: u64,
}

impl ForeignRig {
    /// Its keys begin with a word of its own, so they are apart from all others.
    pub async fn start(url: &str, may_lose: bool) -> Self {
        let prefix = format!("fencepost-chaos-{:08x}", rand::random::<u32>());
        println!("its keys at {url} begin with {prefix}: remove them when it is over");
        let args = ["--store", url, "--redis-prefix", &prefix];
        let entrances = vec![Entrance::open(&args).await, Entrance::open(&args).await];
        let mut rig = Self { entrances, may_lose, began_us: now_us() };
        rig.heal().await;
        rig
    }
}

impl Rig for ForeignRig {
    fn doors(&self) -> Vec<Client> {
        self.entrances.iter().flat_map(Entrance::doors).collect()
    }

    fn safe_door(&self) -> Client {
        self.entrances[0].safe_door()
    }

    async fn fail(&mut self, random: &mut StdRng, witness: &Witness) {
        let entrance = self.entrances.choose(random).unwrap();
        match random.random_range(0..10) {
            0..5 => entrance.way_fails(random, witness).await,
            5..7 => entrance.stands_still(random, witness).await,
            7..9 => entrance.is_killed(witness).await,
            _ => entrance.ends(witness).await,
        }
    }

    async fn heal(&mut self) {
        for entrance in &self.entrances {
            entrance.heal().await;
            is_ready(&entrance.safe_door()).await;
        }
    }

    fn logs(&self) -> Vec<String> {
        self.entrances.iter().flat_map(Entrance::logs).collect()
    }

    /// A server of others may take away what a gateway of a long lease left there only after that lease.
    fn ttls(&self) -> Ttls {
        Ttls { outlasting_ms: 60_000, ..Ttls::default() }
    }

    fn explain(&self, history: &mut History) {
        if self.may_lose {
            let all = Span { start_us: self.began_us, end_us: now_us() };
            history.losses.push(all);
            history.splits.push(all);
        }
    }
}

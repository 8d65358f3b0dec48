//! A gateway that may end and start again behind ways that stay.

use std::net::{Ipv4Addr, SocketAddr};

use kit::history::{Witness, now_us};
use kit::proxy::Framing;
use kit::{Client, Gateway, Proxy};
use rand::rngs::StdRng;
use tokio::sync::Mutex;

use super::rig::{BadWay, some_time};

pub struct Entrance {
    args: Vec<String>,
    gateway: Mutex<Gateway>,
    good_way: Proxy,
    pub bad_way: BadWay,
    earlier_logs: Mutex<Vec<String>>,
}

impl Entrance {
    pub async fn open(args: &[&str]) -> Self {
        let gateway = Gateway::start(args).await;
        let port = gateway.address.port();
        Self {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            gateway: Mutex::new(gateway),
            good_way: Proxy::start(port, Framing::Chunks).await,
            bad_way: BadWay::to(port, Framing::Chunks).await,
            earlier_logs: Mutex::default(),
        }
    }

    pub fn safe_door(&self) -> Client {
        Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, self.good_way.port())))
    }

    /// A way that all is well on, and one on which it may not be.
    pub fn doors(&self) -> [Client; 2] {
        [self.safe_door(), self.bad_way.client()]
    }

    /// What clients ask it, and what it answers, is lost, late or cut off for a while.
    pub async fn way_fails(&self, random: &mut StdRng, witness: &Witness) {
        witness.befalls("the way to a gateway fails");
        self.bad_way.fail(random).await;
    }

    pub async fn stands_still(&self, random: &mut StdRng, witness: &Witness) {
        witness.befalls("a gateway stands still");
        let gateway = self.gateway.lock().await;
        gateway.signal("STOP");
        some_time(random, 2_500).await;
        gateway.signal("CONT");
    }

    /// It ends at once, and starts again.
    pub async fn is_killed(&self, witness: &Witness) {
        witness.befalls("a gateway is killed");
        let start_us = now_us();
        let mut gateway = self.gateway.lock().await;
        gateway.kill();
        self.start_again(&mut gateway).await;
        witness.killed_since(start_us);
    }

    /// It is told to end, and starts again.
    pub async fn ends(&self, witness: &Witness) {
        witness.befalls("a gateway is told to end");
        let mut gateway = self.gateway.lock().await;
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
        self.start_again(&mut gateway).await;
    }

    async fn start_again(&self, gateway: &mut Gateway) {
        self.earlier_logs.lock().await.extend(gateway.log());
        *gateway = Gateway::start(&self.args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        self.good_way.set_target(gateway.address.port());
        self.bad_way.proxy.set_target(gateway.address.port());
    }

    pub async fn heal(&self) {
        self.bad_way.become_good();
        self.bad_way.is_over().await;
    }

    /// What it logged in all of its lives. Nobody does anything to it meanwhile.
    pub fn logs(&self) -> Vec<String> {
        let gateway = self.gateway.try_lock().unwrap();
        [self.earlier_logs.try_lock().unwrap().clone(), gateway.log()].concat()
    }
}

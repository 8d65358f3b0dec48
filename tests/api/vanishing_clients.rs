//! Clients that vanish at a random moment of their `PUT`: no lock remains whose answer was not handed to the socket.
//! Which ones were, the gateway's log says.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use kit::{Gateway, Stage, eventually, fresh_token, on_each_store, secrets, seed};

on_each_store!(a_client_that_vanishes_leaves_no_lock_that_was_not_answered);

const CLIENTS: usize = 1_000;
const AT_ONCE: usize = 8;
const ROUND: usize = 40;

async fn a_client_that_vanishes_leaves_no_lock_that_was_not_answered(stage: Stage) {
    let mut random = StdRng::seed_from_u64(seed());
    let client = stage.client();
    // The moment is chosen out of a window that is fitted to the machine, so that it falls on both sides of the answer.
    let mut window = Duration::from_millis(2);
    for round in 0..CLIENTS / ROUND {
        let visits: Vec<_> = (round * ROUND..(round + 1) * ROUND)
            .map(|number| Visit {
                number,
                has_own_token: number.is_multiple_of(2),
                stays: window.mul_f64(random.random::<f64>()),
                resets: random.random(),
            })
            .collect();
        let visit = async |visit: &Visit| visit.make(&stage.gateway).await;
        futures_util::stream::iter(&visits).for_each_concurrent(AT_ONCE, visit).await;
        let answered = answered(&stage.gateway.log());
        let of_round = visits.iter().filter(|visit| answered.contains(&visit.number)).count();
        window = window.mul_f64(if of_round < ROUND / 2 { 1.5 } else { 0.67 });
    }

    // Whose request was not even read has no line in the log.
    let is_free =
        async |number: usize| client.get(&format!("/locks/vanish{number}")).send().await.status == 404;
    let orphans = async || {
        let answered = answered(&stage.gateway.log());
        let nobody_was_told = (0..CLIENTS).filter(|number| !answered.contains(number));
        let mut held = Vec::new();
        for number in nobody_was_told {
            if !is_free(number).await {
                held.push(number);
            }
        }
        held
    };
    eventually("what nobody was told of is taken back", async || orphans().await.is_empty()).await;
    assert_eq!(orphans().await, Vec::<usize>::new(), "and nothing of it comes up later");
    let answered = answered(&stage.gateway.log()).len();
    let taken_back =
        stage.gateway.log().iter().filter(|line| line.contains("released a lock whose answer")).count();
    println!(
        "{answered} of {CLIENTS} answers were handed to the socket, {taken_back} grants were taken back"
    );
    assert!(answered >= 50 && CLIENTS - answered >= 50, "{answered} of {CLIENTS} prove little");
}

struct Visit {
    number: usize,
    has_own_token: bool,
    stays: Duration,
    /// Whether the connection ends by a reset.
    resets: bool,
}

impl Visit {
    async fn make(&self, gateway: &Gateway) {
        let number = self.number;
        let token =
            if self.has_own_token { format!("Lease-Token: {}\r\n", fresh_token()) } else { String::new() };
        let request = format!(
            "PUT /locks/vanish{number}?ttl=1h HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: vanish{number}\r\n{token}\r\n"
        );
        secrets::remember_head(request.as_bytes());
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        if self.resets {
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        stream.write_all(request.as_bytes()).await.unwrap();
        // Timers are too coarse for the moment of leaving: most answers take less than a millisecond.
        let started = Instant::now();
        while started.elapsed() < self.stays {
            tokio::task::yield_now().await;
        }
    }
}

/// The visitors whose answer was handed to the socket.
fn answered(log: &[String]) -> HashSet<usize> {
    let lines = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| line["message"] == "answered")
        .filter_map(|line| line["request_id"].as_str()?.strip_prefix("vanish")?.parse().ok())
        .collect()
}

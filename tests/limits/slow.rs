//! Clients that take their time.

use std::net::SocketAddr;
use std::time::Duration;

use crate::attackers::send;
use crate::ring::Ring;

const MANY: usize = 400;

#[test]
fn heads_that_come_a_line_at_a_time_cost_others_little() {
    async fn attack(address: SocketAddr) {
        let first = b"PUT /locks/k HTTP/1.1\r\nHost: localhost\r\n";
        send(address, first, Duration::from_millis(100), || b"X-Slow: yes\r\n".to_vec()).await;
    }
    Ring::new(&[]).endures("slow heads", MANY, attack);
}

#[test]
fn connections_that_say_nothing_cost_others_little() {
    async fn attack(address: SocketAddr) {
        send(address, b"", Duration::ZERO, Vec::new).await;
    }
    Ring::new(&[]).endures("silence", MANY, attack);
}

#[test]
fn handshakes_that_do_not_end_cost_others_little() {
    async fn attack(address: SocketAddr) {
        // The first bytes of a greeting that is to have 512 of them.
        send(address, &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc], Duration::ZERO, Vec::new).await;
    }
    Ring::with_tls(&[]).endures("silence in the handshake", MANY, attack);
}

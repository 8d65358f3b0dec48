//! A TCP proxy that can make a network misbehave.

use std::net::Ipv4Addr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Passes connections on to a port of this machine. Ends with its guard.
pub struct Proxy {
    port: u16,
    /// Connections of this generation and later ones work; earlier ones are silent.
    generation: watch::Sender<u64>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let generation = watch::Sender::new(0);
        let generations = generation.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, target_port, generations.subscribe()));
            }
        });
        Self { port, generation, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Lets the connections that exist fall silent without closing them; new ones work.
    pub fn freeze(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass_on(mut client: TcpStream, target_port: u16, mut generation: watch::Receiver<u64>) {
    generation.borrow_and_update();
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target_port)).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        Ok(()) = generation.changed() => {
            // Both ends stay open, and neither hears of the other, until the test is over.
            while generation.changed().await.is_ok() {}
        }
    }
}

//! A network that can be cut in two: every server has a door, and while the network is cut, nothing passes a door
//! from the other side. Who knocks is known by its process, which the kernel tells.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Its doors close for good when it is dropped.
pub struct Border {
    state: watch::Sender<Arc<State>>,
    ended: CancellationToken,
}

/// What is wrong with the network; nothing by default.
#[derive(Clone, Debug, Default)]
struct State {
    /// The processes of the smaller side.
    side: Vec<u32>,
    /// Processes that are not answered.
    unanswered: Vec<u32>,
}

impl Border {
    pub fn new() -> Self {
        Self { state: watch::Sender::default(), ended: CancellationToken::new() }
    }

    /// Opens a door at this port to a process that listens on another; the other servers and all clients know the door.
    pub async fn open_door(&self, door: u16, port: u16, pid: u32) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, door)).await.unwrap();
        let (state, ended) = (self.state.subscribe(), self.ended.clone());
        let accepting = async move {
            while let Ok((client, from)) = listener.accept().await {
                tokio::spawn(pass_on(client, from, port, pid, state.clone(), ended.clone()));
            }
        };
        let ended = self.ended.clone();
        tokio::spawn(async move { ended.run_until_cancelled(accepting).await });
    }

    /// From now on these processes and all others hear nothing of each other. The tests themselves hear everybody.
    pub fn cut_off(&self, pids: &[u32]) {
        self.state.send_replace(Arc::new(State { side: pids.to_vec(), ..State::default() }));
    }

    /// From now on what these processes ask for is done, and they are not answered.
    pub fn lose_answers_to(&self, pids: &[u32]) {
        self.state.send_replace(Arc::new(State { unanswered: pids.to_vec(), ..State::default() }));
    }

    /// Connections that were cut end now, and new ones pass.
    pub fn mend(&self) {
        self.state.send_replace(Arc::default());
    }
}

impl Drop for Border {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

async fn pass_on(
    mut client: TcpStream,
    from: SocketAddr,
    port: u16,
    server: u32,
    state: watch::Receiver<Arc<State>>,
    ended: CancellationToken,
) {
    let Some(socket) = socket_of(from.port()) else { return };
    let is_cut = |state: &Arc<State>| {
        let crosses = owns(&state.side, &socket) != state.side.contains(&server);
        crosses && !owns(&[std::process::id()], &socket)
    };
    let is_unanswered = |state: &Arc<State>| owns(&state.unanswered, &socket);
    let (mut cut, mut mended, mut unanswered) = (state.clone(), state.clone(), state);
    let is_cut_now = is_cut(&cut.borrow_and_update().clone());
    let passing = async {
        if !is_cut_now {
            let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (mut from_client, mut to_client) = client.split();
            let (mut from_server, mut to_server) = server.split();
            let answer = async {
                tokio::select! {
                    _ = copy(&mut from_server, &mut to_client) => return,
                    _ = unanswered.wait_for(is_unanswered) => {}
                }
                let _ = copy(&mut from_server, &mut sink()).await;
            };
            tokio::select! {
                _ = copy(&mut from_client, &mut to_server) => return,
                () = answer => return,
                _ = cut.wait_for(is_cut) => {}
            }
        }
        // Both ends stay open in silence, as the ends of a cable do.
        let _ = mended.wait_for(|state| !is_cut(state)).await;
    };
    ended.run_until_cancelled(passing).await;
}

/// The socket of this machine that has this local port and is connected, as the kernel calls it in `/proc/<pid>/fd`.
fn socket_of(port: u16) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!("0100007F:{port:04X}");
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The tenth field is the inode; it is 0 once its process has closed it.
    let inode = lines.find(|fields| fields[1] == local && fields[9] != "0")?[9].to_owned();
    Some(format!("socket:[{inode}]"))
}

fn owns(pids: &[u32], socket: &str) -> bool {
    let files = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all = pids.iter().flat_map(files);
    all.any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.to_str() == Some(socket)))
}

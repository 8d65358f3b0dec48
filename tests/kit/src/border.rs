//! A network that can be cut in two: every server has a door, and while the network is cut, nothing passes a door
//! from the other side. Who knocks is known by its process, which the kernel tells.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use tokio::io::{copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Its doors close for good when it is dropped. They have a thread of their own: a test whose clients keep it busy is no
/// slow network.
pub struct Border {
    runtime: Handle,
    state: watch::Sender<Arc<State>>,
    owners: Owners,
    ended: CancellationToken,
}

/// What is wrong with the network; nothing by default.
#[derive(Debug, Default)]
struct State {
    /// The processes of the smaller side.
    side: Vec<u32>,
    /// Processes that are not answered.
    unanswered: Vec<u32>,
}

/// A connection, by the port that it comes from and the one that it goes to.
type Way = (u16, u16);

/// The process at the near end of each connection. Asked for only while something is wrong: on a machine that has opened
/// and closed thousands of connections, it takes the kernel a tenth of a second to say so.
type Owners = Arc<Mutex<HashMap<Way, u32>>>;

impl Border {
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (handle, ended) = (runtime.handle().clone(), CancellationToken::new());
        let until = ended.clone();
        std::thread::spawn(move || runtime.block_on(until.cancelled()));
        Self { runtime: handle, state: watch::Sender::default(), owners: Owners::default(), ended }
    }

    /// Opens a door at this port to a process that listens on another; the other servers and all clients know the door.
    pub async fn open_door(&self, door: u16, port: u16, pid: u32) {
        let (state, owners) = (self.state.subscribe(), self.owners.clone());
        let listening = self.runtime.spawn(TcpListener::bind((Ipv4Addr::LOCALHOST, door)));
        let listener = listening.await.unwrap().unwrap();
        // All of it ends with the thread.
        self.runtime.spawn(async move {
            while let Ok((client, from)) = listener.accept().await {
                let visit = Visit { way: (from.port(), door), server: pid, owners: owners.clone() };
                tokio::spawn(visit.pass_on(client, port, state.clone()));
            }
        });
    }

    /// From now on these processes and all others hear nothing of each other. The tests themselves hear everybody.
    pub fn cut_off(&self, pids: &[u32]) {
        self.set(State { side: pids.to_vec(), ..State::default() });
    }

    /// From now on what these processes ask for is done, and they are not answered.
    pub fn lose_answers_to(&self, pids: &[u32]) {
        self.set(State { unanswered: pids.to_vec(), ..State::default() });
    }

    /// Connections that were cut end now, and new ones pass.
    pub fn mend(&self) {
        self.state.send_replace(Arc::default());
        self.owners.lock().unwrap().clear();
    }

    fn set(&self, state: State) {
        state.find_owners(&self.owners);
        self.state.send_replace(Arc::new(state));
    }
}

impl Drop for Border {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl State {
    fn is_whole(&self) -> bool {
        self.side.is_empty() && self.unanswered.is_empty()
    }

    fn find_owners(&self, owners: &Owners) {
        let pids = self.side.iter().chain(&self.unanswered).copied();
        let found = ways_of(&pids.chain([std::process::id()]).collect::<Vec<_>>());
        owners.lock().unwrap().extend(found);
    }
}

/// A connection that goes through a door.
struct Visit {
    way: Way,
    server: u32,
    owners: Owners,
}

impl Visit {
    async fn pass_on(self, mut client: TcpStream, port: u16, state: watch::Receiver<Arc<State>>) {
        let (mut cut, mut mended, mut unanswered) = (state.clone(), state.clone(), state);
        let now = cut.borrow_and_update().clone();
        if !now.is_whole() {
            let (now, owners) = (now.clone(), self.owners.clone());
            tokio::task::spawn_blocking(move || now.find_owners(&owners)).await.unwrap();
        }
        if !self.is_cut(&now) {
            let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (mut from_client, mut to_client) = client.split();
            let (mut from_server, mut to_server) = server.split();
            let answer = async {
                tokio::select! {
                    _ = copy(&mut from_server, &mut to_client) => return,
                    _ = unanswered.wait_for(|state| self.is_owned_by(&state.unanswered)) => {}
                }
                let _ = copy(&mut from_server, &mut sink()).await;
            };
            tokio::select! {
                _ = copy(&mut from_client, &mut to_server) => return,
                () = answer => return,
                _ = cut.wait_for(|state| self.is_cut(state)) => {}
            }
        }
        // Both ends stay open in silence, as the ends of a cable do.
        let _ = mended.wait_for(|state| !self.is_cut(state)).await;
    }

    fn is_cut(&self, state: &State) -> bool {
        let crosses = self.is_owned_by(&state.side) != state.side.contains(&self.server);
        crosses && !self.is_owned_by(&[std::process::id()])
    }

    fn is_owned_by(&self, pids: &[u32]) -> bool {
        self.owners.lock().unwrap().get(&self.way).is_some_and(|owner| pids.contains(owner))
    }
}

/// The connections that these processes have open, each with its owner.
fn ways_of(pids: &[u32]) -> HashMap<Way, u32> {
    let mut owners = HashMap::new();
    for pid in pids {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        let inode = |target: &str| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
        owners.extend(targets.filter_map(|target| Some((inode(target.to_str()?)?, *pid))));
    }
    let port = |address: &str| u16::from_str_radix(address.split(':').nth(1)?, 16).ok();
    let way = |line: &str| {
        // Fields of a line: number, local address, remote address, …; the tenth is the inode.
        let fields: Vec<_> = line.split_whitespace().collect();
        let owner = owners.get(*fields.get(9)?)?;
        Some(((port(fields[1])?, port(fields[2])?), *owner))
    };
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Those that wait for their end have no owner any more, and are most of all.
    table.lines().filter(|line| !line.contains(" 06 ")).filter_map(way).collect()
}

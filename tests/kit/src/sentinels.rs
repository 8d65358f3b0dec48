//! A primary, two replicas, and three sentinels that watch over them: all of them real.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use super::border::Border;
use super::redis_server::{RedisServer, SENTINEL_CONFIG};
use super::{PATIENCE, end_with_the_tests, eventually, server_port};

/// What the sentinels call their primary.
pub const MASTER: &str = "mymaster";

/// Ends all its servers when dropped. Of the three servers the first begins as the primary, the second takes its place
/// when it fails, and the other way round; the third never does, so that a test knows who comes next.
pub struct SentinelSetup {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
    /// By which ports servers, and sentinels, are known to each other and to clients.
    server_ports: Vec<u16>,
    sentinel_ports: Vec<u16>,
    border: Option<Border>,
    options: SentinelOptions<'static>,
}

/// How a setup differs from others.
#[derive(Clone, Copy, Debug)]
pub struct SentinelOptions<'a> {
    /// Further arguments of the servers.
    pub server_args: &'a [&'a str],
    pub password: Option<&'a str>,
    pub sentinel_password: Option<&'a str>,
    /// How long a server must be silent to be taken for dead.
    pub down_after_ms: u32,
    /// How often sentinels say what they think. A deposed primary is told so after four times this, and takes writes
    /// until then: eight seconds in a Sentinel that nobody has tuned.
    pub publish_period_ms: u32,
    /// Whether its network can be cut in two.
    pub is_divisible: bool,
}

impl Default for SentinelOptions<'_> {
    fn default() -> Self {
        // Less, and a busy machine brings about failovers of its own.
        Self {
            server_args: &[],
            password: None,
            sentinel_password: None,
            down_after_ms: 2_000,
            publish_period_ms: 500,
            is_divisible: false,
        }
    }
}

type Fields = HashMap<String, String>;

/// What a sentinel thinks of all whom it knows.
#[derive(Debug)]
#[expect(dead_code, reason = "for whoever reads why a test failed")]
struct View {
    is_well: bool,
    master: Fields,
    replicas: Vec<Fields>,
    others: Vec<Fields>,
}

/// Which server was promoted, and when it was first seen to be a primary.
#[derive(Clone, Copy, Debug)]
pub struct Promotion {
    pub server: usize,
    pub at: Instant,
}

/// The setup that tests share which let nothing fail; each has a prefix of its own.
pub async fn shared() -> &'static SentinelSetup {
    static SHARED: OnceCell<SentinelSetup> = OnceCell::const_new();
    let start = async || {
        // Nobody is to be taken for dead on a busy machine.
        let options = SentinelOptions { down_after_ms: 30_000, ..SentinelOptions::default() };
        let setup = SentinelSetup::start_with(options).await;
        end_with_the_tests(&setup.servers.iter().chain(&setup.sentinels).collect::<Vec<_>>());
        setup
    };
    SHARED.get_or_init(start).await
}

impl SentinelSetup {
    pub async fn start() -> Self {
        Self::start_with(SentinelOptions::default()).await
    }

    /// Starts one; all its servers know each other when this returns.
    pub async fn start_with(options: SentinelOptions<'static>) -> Self {
        // Another process may take a port between our look and the server's.
        for _ in 0..5 {
            if let Some(setup) = Self::try_start(options).await {
                setup.settles_on(0).await;
                return setup;
            }
        }
        panic!("Sentinel does not start");
    }

    async fn try_start(options: SentinelOptions<'static>) -> Option<Self> {
        let border = options.is_divisible.then(Border::new);
        let own_ports: [u16; 6] = [(); 6].map(|()| server_port());
        let known_ports = if border.is_some() { [(); 6].map(|()| server_port()) } else { own_ports };
        let (server_ports, sentinel_ports) = known_ports.split_at(3);

        let starting = (0..3).map(|at| start_server(at, own_ports[at], server_ports[at], options));
        let servers: Vec<_> = join_all(starting).await.into_iter().collect::<Option<_>>()?;
        if let Some(border) = &border {
            for at in 0..3 {
                border.open_door(server_ports[at], own_ports[at], servers[at].pid()).await;
            }
        }
        join_all(servers[1..].iter().map(|server| server.follow(server_ports[0]))).await;

        // They are told of each other, since to find each other would take them seconds.
        let ids = [(); 3].map(|()| format!("{:040x}", rand::random::<u128>()));
        let mut sentinels = Vec::new();
        for at in 0..3 {
            let mut config = watching(server_ports, 0, options);
            config += &format!("sentinel myid {}\nsentinel announce-ip 127.0.0.1\n", ids[at]);
            config += &format!("sentinel announce-port {}\n", sentinel_ports[at]);
            for port in &server_ports[1..] {
                config += &format!("sentinel known-replica {MASTER} 127.0.0.1 {port}\n");
            }
            for other in (0..3).filter(|other| *other != at) {
                let (port, id) = (sentinel_ports[other], &ids[other]);
                config += &format!("sentinel known-sentinel {MASTER} 127.0.0.1 {port} {id}\n");
            }
            let sentinel =
                RedisServer::start_sentinel_on(own_ports[3 + at], &config, options.sentinel_password).await?;
            if let Some(border) = &border {
                border.open_door(sentinel_ports[at], sentinel.port(), sentinel.pid()).await;
            }
            quicken(&sentinel, options).await;
            sentinels.push(sentinel);
        }
        let (server_ports, sentinel_ports) = (server_ports.to_vec(), sentinel_ports.to_vec());
        Some(Self { servers, sentinels, server_ports, sentinel_ports, border, options })
    }

    /// Where a gateway finds it.
    pub fn url(&self) -> String {
        let password = self.options.password.map(|password| format!(":{password}@")).unwrap_or_default();
        let sentinels: Vec<_> = self.sentinel_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{password}{}/{MASTER}", sentinels.join(","))
    }

    /// Where a gateway finds one of the servers without them.
    pub fn url_of_server(&self, server: usize) -> String {
        format!("redis://127.0.0.1:{}", self.server_ports[server])
    }

    /// The server that a majority of the sentinels takes for the primary.
    pub async fn current(&self) -> Option<usize> {
        let said = join_all(self.sentinels.iter().map(|sentinel| self.said_by(sentinel))).await;
        (0..3).find(|server| said.iter().filter(|said| **said == Some(*server)).count() >= 2)
    }

    /// The server that this sentinel takes for the primary.
    async fn said_by(&self, sentinel: &RedisServer) -> Option<usize> {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let (_, port): (String, u16) = sentinel.try_command(&ask).await.ok()?;
        self.server_ports.iter().position(|known| *known == port)
    }

    /// Waits until all sentinels take this server for the primary, and find all others well.
    pub async fn settles_on(&self, server: usize) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let views = join_all(self.sentinels.iter().map(|sentinel| self.view_of(sentinel, server))).await;
            if views.iter().all(|view| matches!(view, Ok(view) if view.is_well)) {
                return;
            }
            assert!(
                Instant::now() < give_up,
                "the sentinels do not settle on {server} of {:?}: {views:#?}",
                self.server_ports
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn view_of(&self, sentinel: &RedisServer, server: usize) -> Result<View, String> {
        let master: Fields = sentinel.try_command(&["SENTINEL", "MASTER", MASTER]).await?;
        let replicas: Vec<Fields> = sentinel.try_command(&["SENTINEL", "REPLICAS", MASTER]).await?;
        let others: Vec<Fields> = sentinel.try_command(&["SENTINEL", "SENTINELS", MASTER]).await?;
        let port = self.server_ports[server].to_string();
        let is_its =
            master["port"] == port && master["flags"] == "master" && master["role-reported"] == "master";
        let follows = |replica: &&Fields| {
            replica["flags"] == "slave"
                && replica["role-reported"] == "slave"
                && replica["master-link-status"] == "ok"
                && replica["master-port"] == port
        };
        let is_there = |other: &&Fields| other["flags"] == "sentinel";
        let is_whole =
            replicas.iter().filter(follows).count() == 2 && others.iter().filter(is_there).count() == 2;
        Ok(View { is_well: is_its && is_whole, master, replicas, others })
    }

    /// Who is promoted when this one fails.
    pub fn successor_of(server: usize) -> usize {
        1 - server
    }

    /// Has the sentinels make the other server the primary; returns as soon as it is one.
    pub async fn failover(&self) -> Promotion {
        let from = self.current().await.expect("the sentinels do not agree on a primary");
        let server = Self::successor_of(from);
        // It is refused until the last one is over, and while no replica is good enough.
        eventually("the failover begins", async || {
            self.sentinels[0].try_command::<()>(&["SENTINEL", "FAILOVER", MASTER]).await.is_ok()
        })
        .await;
        let at = self.servers[server].becomes_primary().await;
        Promotion { server, at }
    }

    /// Ends the primary at once; returns as soon as the other server is promoted.
    pub async fn kill_primary(&mut self) -> Promotion {
        let from = self.current().await.expect("the sentinels do not agree on a primary");
        self.servers[from].kill();
        let server = Self::successor_of(from);
        Promotion { server, at: self.servers[server].becomes_primary().await }
    }

    /// Starts a server that has ended again, as a replica of the present primary, and waits until all is well.
    pub async fn bring_back(&mut self, server: usize) {
        let primary = self.current().await.expect("the sentinels do not agree on a primary");
        self.servers[server].start_again().await;
        self.servers[server].follow(self.server_ports[primary]).await;
        self.settles_on(primary).await;
    }

    /// Starts a sentinel again that has ended.
    pub async fn start_sentinel_again(&mut self, sentinel: usize) {
        self.sentinels[sentinel].start_again().await;
        quicken(&self.sentinels[sentinel], self.options).await;
    }

    /// Replaces a sentinel by one that knows nothing but that this server is the primary, as when Sentinel is set up
    /// anew. It knows of no other sentinel, and of no server that does not follow this one, and it takes no server for dead:
    /// a failover of the new ones would have an epoch of its own.
    pub async fn set_up_anew(&mut self, sentinel: usize, server: usize) {
        self.sentinels[sentinel].kill();
        let file = self.sentinels[sentinel].directory().join(SENTINEL_CONFIG);
        let config = std::fs::read_to_string(&file).unwrap();
        let is_kept = |line: &&str| {
            ["port ", "bind ", "dir ", "requirepass "].iter().any(|word| line.starts_with(word))
        };
        let kept: Vec<_> = config.lines().filter(is_kept).collect();
        let options = SentinelOptions { down_after_ms: 60_000, ..self.options };
        let watched = watching(&self.server_ports, server, options);
        std::fs::write(&file, format!("{}\n{watched}", kept.join("\n"))).unwrap();
        self.start_sentinel_again(sentinel).await;
    }

    /// The network between all servers, sentinels and gateways, where the setup is divisible.
    pub fn network(&self) -> &Border {
        self.border.as_ref().expect("the setup is not divisible")
    }
}

async fn start_server(at: usize, port: u16, known: u16, options: SentinelOptions<'_>) -> Option<RedisServer> {
    let known = known.to_string();
    // Without the delay, a replica need not wait for others that might come; on disk, several share one copy.
    let mut args = vec!["--repl-diskless-sync-delay", "0", "--repl-diskless-sync", "no"];
    args.extend(["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", &known]);
    // With 0 it is never promoted.
    args.extend(["--replica-priority", if at == 2 { "0" } else { "100" }]);
    if let Some(password) = options.password {
        args.extend(["--requirepass", password, "--masterauth", password]);
    }
    args.extend(options.server_args);
    RedisServer::start_on(port, &args).await
}

/// What makes a sentinel watch over these servers, of which one is the primary.
fn watching(server_ports: &[u16], primary: usize, options: SentinelOptions) -> String {
    let mut config = format!(
        "sentinel monitor {MASTER} 127.0.0.1 {} 2\nsentinel down-after-milliseconds {MASTER} {}\n\
         sentinel failover-timeout {MASTER} 3000\n",
        server_ports[primary], options.down_after_ms
    );
    if let Some(password) = options.password {
        config += &format!("sentinel auth-pass {MASTER} {password}\n");
    }
    if let Some(password) = options.sentinel_password {
        config += &format!("sentinel sentinel-pass {password}\n");
    }
    config
}

/// Lets a sentinel look at its servers more often than each ten seconds, and trust its clock again soon after it was
/// stopped.
async fn quicken(sentinel: &RedisServer, options: SentinelOptions<'_>) {
    let publish = options.publish_period_ms.to_string();
    let periods = ["info-period", "500", "tilt-period", "1000", "publish-period", &publish];
    let _: () = sentinel.command(&[&["SENTINEL", "DEBUG"], &periods[..]].concat()).await;
}

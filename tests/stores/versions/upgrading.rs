//! Upgrading and rolling back as `docs/operations/upgrade.md` says it: two gateways, each replaced by another build and then
//! by the former one again, under clients that know the addresses of both.
//!
//! `FENCEPOST_BEFORE` names the program of the version before. Without it, this build stands for both: then the steps are
//! tried, and that no process keeps anything to itself that the next one needs.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt;
use regex::Regex;
use tokio::time::{Instant, sleep};

use kit::gateway::{self, bare_command, program};
use kit::resource::Resource;
use kit::{Answer, Client, Gateway, PATIENCE, RedisServer, eventually, fresh_token, quorum, server_port};

const COUNTERS: usize = 3;
const CLIENTS: usize = 9;
/// Grants that must be given between two steps, by each of the gateways.
const GOES_ON: u64 = 15;

fn before() -> String {
    std::env::var("FENCEPOST_BEFORE").unwrap_or_else(|_| program().to_owned())
}

/// A gateway of a program.
async fn start(program: &str, args: &[&str]) -> Gateway {
    let started = Gateway::try_start_by(gateway::command_of(program, args), args).await;
    let mut gateway = started.unwrap_or_else(|said| panic!("{program} ended: {said:#?}"));
    if program != gateway::program() {
        gateway.is_of_older_program();
    }
    gateway
}

async fn stop(mut gateway: Gateway) {
    gateway.signal("TERM");
    assert!(gateway.exit_status().await.success());
}

/// The two addresses as a client has them, and what its requests were told that it had to repeat.
struct Doors {
    clients: [Client; 2],
    /// Grants at each of them.
    grants: [AtomicU64; 2],
    repeated: Mutex<Vec<String>>,
}

impl Doors {
    /// Asks at one of them, and, where that one cannot, at the other: the same, with the same token.
    async fn ask(&self, first: usize, method: &str, query: &str, token: &str) -> Answer {
        let give_up = Instant::now() + PATIENCE;
        let mut at = first;
        loop {
            let call = self.clients[at].call(method, &format!("/lock?{query}")).token(token);
            let trouble = match call.try_send().await {
                Ok(answer) if answer.status == 503 => answer.json()["type"].as_str().unwrap().to_owned(),
                Ok(answer) => {
                    if method == "PUT" && matches!(answer.status, 200 | 201) {
                        self.grants[at].fetch_add(1, Ordering::Relaxed);
                    }
                    return answer;
                }
                Err(_) => "no answer".to_owned(),
            };
            assert!(Instant::now() < give_up, "{method} {query}: {trouble}");
            self.repeated.lock().unwrap().push(trouble);
            at = 1 - at;
            // Neither may be there for a moment, for a client that has a connection to the one that stops.
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until each gateway has granted some more locks.
    async fn goes_on(&self) {
        let count = || [0, 1].map(|at| self.grants[at].load(Ordering::Relaxed));
        let before = count();
        eventually("both gateways grant locks", async || {
            count().iter().zip(before).all(|(now, before)| *now >= before + GOES_ON)
        })
        .await;
    }
}

/// Something to count in, which its lock and its number protect.
#[derive(Default)]
struct Counter {
    resource: Mutex<Resource>,
    last: AtomicU64,
    is_in_use: AtomicBool,
}

/// Counts on under the lock, until it is over. Returns how often.
async fn count(doors: Arc<Doors>, counters: Arc<Vec<Counter>>, me: usize, is_over: Arc<AtomicBool>) -> u64 {
    let (mut counted, mut turn) = (0, me);
    while !is_over.load(Ordering::Relaxed) {
        turn += 1;
        let (counter, token) = (&counters[turn % COUNTERS], fresh_token());
        let key = format!("key=counter-{}", turn % COUNTERS);
        let granted = doors.ask(turn / 2 % 2, "PUT", &format!("{key}&ttl=20s&wait=15s"), &token).await;
        assert!(matches!(granted.status, 200 | 201), "{granted:?}");
        let number = granted.fencing_token();
        assert!(!counter.is_in_use.swap(true, Ordering::SeqCst), "two clients hold one lock");
        assert!(counter.last.swap(number, Ordering::SeqCst) < number, "numbers do not grow");
        let version = counter.resource.lock().unwrap().read(number).expect("the number is refused");
        if turn % 3 == 0 {
            let renewed = doors.ask(turn % 2, "PATCH", &format!("{key}&ttl=20s"), &token).await.expect(200);
            assert_eq!(renewed.fencing_token(), number);
        }
        sleep(Duration::from_millis(3)).await;
        assert!(counter.resource.lock().unwrap().write(number, version), "an update is lost");
        counter.is_in_use.store(false, Ordering::SeqCst);
        doors.ask(turn % 2, "DELETE", &key, &token).await.expect(204);
        counted += 1;
    }
    counted
}

/// Renews one lock at both doors in turn, which must be the same grant all the time.
async fn renew(doors: Arc<Doors>, token: String, number: u64, is_over: Arc<AtomicBool>) {
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) {
        at = 1 - at;
        let renewed = doors.ask(at, "PATCH", "key=long&ttl=20s", &token).await.expect(200);
        assert_eq!(renewed.fencing_token(), number, "the lock was lost meanwhile");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Holds a lock by a connection. When its gateway stops, it goes on at the other, and counts that.
async fn hold(doors: Arc<Doors>, number: Arc<AtomicU64>, moves: Arc<AtomicUsize>) {
    let token = fresh_token();
    let fencing_token = Regex::new(r#""fencing_token":(\d+)"#).unwrap();
    loop {
        let at = moves.load(Ordering::SeqCst) % 2;
        let call = doors.clients[at].call("POST", "/hold?key=held&ttl=20s").token(&token);
        let mut response = call.open().await;
        assert_eq!(response.status(), 200);
        let mut told = String::new();
        while let Some(Ok(frame)) = response.body_mut().frame().await {
            told += &String::from_utf8_lossy(&frame.into_data().unwrap_or_default());
            for found in fencing_token.captures_iter(&told) {
                let now: u64 = found[1].parse().unwrap();
                let before = number.swap(now, Ordering::SeqCst);
                assert!(before == 0 || before == now, "the lock was lost meanwhile: {told}");
            }
        }
        assert!(told.contains("shutting-down"), "{told}");
        moves.fetch_add(1, Ordering::SeqCst);
    }
}

/// A `fencepost run` that knows both addresses. What it says is kept under its name.
fn run(urls: &str, directory: &Path, name: &str, key: &str, script: &str) -> Child {
    let mut command = bare_command();
    command.args(["run", "--ttl", "20s", key, "--", "sh", "-c", script]);
    command.env("FENCEPOST_URL", urls).current_dir(directory);
    command.stderr(File::create(directory.join(format!("{name}.err"))).unwrap()).spawn().unwrap()
}

async fn ends_well(mut run: Child, directory: &Path, name: &str, status: i32) {
    eventually("the command ends", async || run.try_wait().unwrap().is_some()).await;
    let said = std::fs::read_to_string(directory.join(format!("{name}.err"))).unwrap();
    assert_eq!((run.wait().unwrap().code(), said.as_str()), (Some(status), ""));
}

/// Replaces each of two gateways by another build and back, one at a time, while clients are at work.
async fn upgrade_and_roll_back(store: &[&str], is_one_line: bool) {
    let ports = [server_port(), server_port()];
    let addresses = ports.map(|port| format!("127.0.0.1:{port}"));
    // A busy machine is late, which has nothing to do with the steps.
    let args = |at: usize| [&["--listen", &addresses[at], "--store-timeout", "10s"], store].concat();
    let mut gateways = [Some(start(&before(), &args(0)).await), Some(start(&before(), &args(1)).await)];
    let clients = addresses.each_ref().map(|address| Client::new(address.parse::<SocketAddr>().unwrap()));
    for client in &clients {
        quorum::is_ready(client).await;
    }
    let doors = Arc::new(Doors { clients, grants: Default::default(), repeated: Mutex::default() });
    let (is_over, counters) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Vec::from_iter((0..COUNTERS).map(|_| Counter::default()))),
    );
    let counting: Vec<_> = (0..CLIENTS)
        .map(|me| tokio::spawn(count(doors.clone(), counters.clone(), me, is_over.clone())))
        .collect();
    let (long, held) = (fresh_token(), Arc::new(AtomicU64::new(0)));
    let number = doors.ask(0, "PUT", "key=long&ttl=20s", &long).await.expect(201).fencing_token();
    let renewing = tokio::spawn(renew(doors.clone(), long.clone(), number, is_over.clone()));
    let moves = Arc::new(AtomicUsize::new(0));
    let holding = tokio::spawn(hold(doors.clone(), held.clone(), moves.clone()));
    let directory = tempfile::tempdir().unwrap();
    let urls = addresses.each_ref().map(|address| format!("http://{address}")).join(",");
    let ready = "echo >ready; while [ ! -e over ]; do sleep 0.02; done; exit 8";
    let running = run(&urls, directory.path(), "running", "run", ready);
    eventually("it runs", async || directory.path().join("ready").exists()).await;
    let waiting = run(&urls, directory.path(), "waiting", "long", "echo first >>order");
    let waiters = async || {
        let seen = doors.clients[0].get("/lock?key=long").send().await.expect(200);
        seen.json()["waiters"].as_u64().unwrap()
    };
    eventually("it waits", async || waiters().await == 1).await;
    doors.goes_on().await;

    for (at, build) in [(0, program().to_owned()), (1, program().to_owned()), (0, before()), (1, before())] {
        stop(gateways[at].take().unwrap()).await;
        gateways[at] = Some(start(&build, &args(at)).await);
        quorum::is_ready(&doors.clients[at]).await;
        doors.goes_on().await;
    }

    // Who waited all the time is before a newcomer.
    let second = run(&urls, directory.path(), "second", "long", "echo second >>order");
    if is_one_line {
        eventually("both wait", async || waiters().await == 2).await;
    }
    is_over.store(true, Ordering::Relaxed);
    renewing.await.unwrap();
    doors.ask(0, "DELETE", "key=long", &long).await.expect(204);
    ends_well(waiting, directory.path(), "waiting", 0).await;
    ends_well(second, directory.path(), "second", 0).await;
    if is_one_line {
        assert_eq!(std::fs::read_to_string(directory.path().join("order")).unwrap(), "first\nsecond\n");
    }
    std::fs::write(directory.path().join("over"), "").unwrap();
    ends_well(running, directory.path(), "running", 8).await;
    let mut counted = 0;
    for one in counting {
        counted += one.await.unwrap();
    }
    let versions: u64 = counters.iter().map(|counter| counter.resource.lock().unwrap().version()).sum();
    assert_eq!(versions, counted);
    eventually("it has moved with each step", async || {
        holding.is_finished() || moves.load(Ordering::SeqCst) == 4
    })
    .await;
    let still = doors.clients[0].get("/lock?key=held").send().await.expect(200);
    assert_eq!(still.fencing_token(), held.load(Ordering::SeqCst));
    assert!(!holding.is_finished(), "{:?}", holding.await);
    holding.abort();
    // What the page says that clients meet, and nothing else.
    let mut repeated = doors.repeated.lock().unwrap().clone();
    println!("{counted} grants, {} requests were repeated", repeated.len());
    repeated.sort();
    repeated.dedup();
    let known = ["/problems/shutting-down", "/problems/store-unavailable", "no answer"];
    assert!(repeated.iter().all(|trouble| known.contains(&trouble.as_str())), "{repeated:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_on_a_redis_are_replaced_by_another_build_and_back_and_no_lock_is_dropped() {
    let redis = RedisServer::start().await;
    upgrade_and_roll_back(&["--store", redis.url()], true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_on_a_quorum_are_replaced_by_another_build_and_back_and_no_lock_is_dropped() {
    let (quorum, prefix) = (quorum::shared().await, fresh_token());
    upgrade_and_roll_back(&["--store", &quorum.url(), "--redis-prefix", &prefix], false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_to_another_build_and_back_and_no_lock_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}", directory.path().join("locks.redb").display());
    let (token, released) = (fresh_token(), fresh_token());
    let (mut number, mut last, mut taken) = (0, 0, Vec::<(String, String)>::new());
    for (turn, build) in [before(), program().to_owned(), before()].into_iter().enumerate() {
        let gateway = start(&build, &["--store", &file]).await;
        let client = Client::new(gateway.address);
        if turn == 0 {
            let put = client.put("/locks/held?ttl=10m&owner=me&max_hold=1h&min_hold=5s").token(&token);
            number = put.send().await.expect(201).fencing_token();
            client.put("/locks/freed").token(&released).send().await.expect(201);
            client.delete("/locks/freed").token(&released).send().await.expect(204);
        }
        let seen = client.get("/locks/held").token(&token).send().await.expect(200);
        assert_eq!((seen.fencing_token(), seen.json()["yours"].as_bool()), (number, Some(true)));
        assert_eq!(seen.json()["owner"], "me");
        let longer = client.patch(&format!("/locks/held?ttl={}m", 11 + turn)).token(&token).send().await;
        let ttl_ms = longer.expect(200).json()["ttl_ms"].as_u64().unwrap();
        assert!(ttl_ms > (10 + turn as u64) * 60_000, "{ttl_ms}");
        client.delete("/locks/freed").token(&released).send().await.expect(204);
        client.put("/locks/freed").token(&released).send().await.expect_problem(409, "token-released");
        for (key, token) in &taken {
            client.patch(&format!("/locks/{key}?ttl=10m")).token(token).send().await.expect(200);
        }
        let granted = client.put(&format!("/locks/new-{turn}?ttl=10m")).send().await.expect(201);
        assert!(granted.fencing_token() > last.max(number));
        last = granted.fencing_token();
        taken.push((format!("new-{turn}"), granted.token().to_owned()));
        stop(gateway).await;
    }
}

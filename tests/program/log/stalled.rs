//! A reader of standard error that stands still: nobody at the gateway waits for it.

use std::io::{ErrorKind, PipeReader, Read, Write};
use std::net::SocketAddr;
use std::process::Child;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::BodyExt;
use rustix::fs::{OFlags, fcntl_setfl};
use serde_json::Value;

use kit::gateway::command;
use kit::metrics::Scrape;
use kit::{Client, KeysFile, PATIENCE, eventually, secrets, server_port, signal};

/// Ends its process when dropped.
struct Program {
    child: Child,
    address: SocketAddr,
    stderr: PipeReader,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// With a standard error in which there is no room from the start.
    fn start(args: &[&str]) -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], server_port())), args)
    }

    fn start_on(address: SocketAddr, args: &[&str]) -> Self {
        Self::start_with(OFlags::empty(), address, args)
    }

    /// Its end of standard error has these flags.
    fn start_with(flags: OFlags, address: SocketAddr, args: &[&str]) -> Self {
        let (stderr, mut writer) = std::io::pipe().unwrap();
        fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let filled = loop {
            if let Err(error) = writer.write(&[b'\n'; 4096]) {
                break error.kind();
            }
        };
        assert_eq!(filled, ErrorKind::WouldBlock);
        fcntl_setfl(&writer, flags).unwrap();
        let listen = address.to_string();
        let args = [&["--listen", &listen, "--store", "memory:"], args].concat();
        let child = command(&args).stderr(writer).spawn().unwrap();
        Self { child, address, stderr }
    }

    async fn serves(&self) -> Client {
        let client = Client::new(self.address);
        eventually("it serves", async || client.get("/healthz").try_send().await.is_ok()).await;
        client
    }

    async fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap().code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_it_at_the_start_while_serving_and_at_the_end() {
    const REQUESTS: usize = 1_000;
    let mut program = Program::start(&[]);
    let client = program.serves().await;
    let mut hold = client.call("POST", "/hold?key=held&ttl=2s").open().await;
    assert_eq!(hold.status(), 200);
    for n in 0..REQUESTS {
        client.get(&format!("/locks/{n}")).send().await.expect(404);
    }
    // It is renewed all the while.
    let since = Instant::now();
    while since.elapsed().as_secs() < 3 {
        let told = tokio::time::timeout(PATIENCE, hold.body_mut().frame()).await.expect("it is told of");
        let told = told.expect("the lock is held").unwrap().into_data().unwrap();
        assert!(!String::from_utf8_lossy(&told).contains("lost"), "{told:?}");
    }
    drop(hold);
    signal(program.child.id(), "TERM");
    assert_eq!(program.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_told_why_the_start_failed_learns_it_by_the_exit_code() {
    let program = Program::start(&[]);
    program.serves().await;
    assert_eq!(Program::start_on(program.address, &[]).exit_code().await, Some(1));
    assert_eq!(Program::start(&["--max-wait", "nonsense"]).exit_code().await, Some(2));
    assert_eq!(Program::start(&["--max-wait", "2h"]).exit_code().await, Some(2));
}

/// More than the queue has room for.
#[tokio::test(flavor = "multi_thread")]
async fn lines_for_which_there_is_no_room_are_counted_in_a_line_and_in_the_metrics() {
    const REQUESTS: usize = 6_000;
    let mut program = Program::start(&[]);
    let client = program.serves().await;
    join_all((0..16).map(async |n| {
        for _ in (n..REQUESTS).step_by(16) {
            client.get("/locks/k").send().await.expect(404);
        }
    }))
    .await;
    let dropped = || async {
        Scrape::of(program.address).await.get("fencepost_log_lines_dropped_total{log=\"normal\"}")
    };
    assert!(dropped().await > 500.0, "{}", dropped().await);
    // Somebody reads again.
    let mut bytes = [0; 64 * 1024];
    let mut text = Vec::new();
    let told = |text: &[u8]| String::from_utf8_lossy(text).contains("lines of the log are missing");
    while !told(&text) {
        let more = program.stderr.read(&mut bytes).unwrap();
        assert!(more > 0, "it ended");
        text.extend_from_slice(&bytes[..more]);
        // Whatever is written now shows whether something was left out before.
        client.get("/openapi.json").send().await;
    }
    signal(program.child.id(), "TERM");
    assert_eq!(program.exit_code().await, Some(0));
    program.stderr.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    secrets::search("the log", text.lines());
    let lines: Vec<Value> = text
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).expect("every line is whole"))
        .collect();
    let answered = lines.iter().filter(|line| line["key"] == "k").count();
    let left_out: u64 = lines.iter().filter_map(|line| line["lines"].as_u64()).sum();
    assert!(lines.iter().any(|line| line["message"] == "stopped"), "{:?}", lines.last());
    // Others than these were left out too, such as those that ask for the numbers.
    assert!(answered >= 4_000 && answered as u64 + left_out >= REQUESTS as u64, "{answered} {left_out}");
    assert!(answered + 500 < REQUESTS, "{answered}");
}

/// Its reader shares our end of the pipe, and has made it so. The pipe takes a part of what is written at once.
#[tokio::test(flavor = "multi_thread")]
async fn lines_of_the_log_and_of_the_audit_log_are_whole_where_standard_error_does_not_block() {
    const REQUESTS: usize = 1_000;
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"inspect\"");
    file.write();
    let flag = file.flag();
    let address = SocketAddr::from(([127, 0, 0, 1], server_port()));
    let args = [&flag[0], &flag[1], "--audit-log", "-"];
    let mut program = Program::start_with(OFlags::NONBLOCK, address, &args);
    let client = program.serves().await;
    for _ in 0..REQUESTS {
        client.get("/locks/k").key(&key).send().await.expect(404);
    }
    let (mut text, mut page) = (Vec::new(), [0; 4096]);
    let written = |text: &[u8]| String::from_utf8_lossy(text).matches("key-use").count();
    while written(&text) < REQUESTS {
        let more = program.stderr.read(&mut page).unwrap();
        text.extend_from_slice(&page[..more]);
        // Slower than the gateway writes.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    signal(program.child.id(), "TERM");
    assert_eq!(program.exit_code().await, Some(0));
    program.stderr.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    secrets::search("the log", text.lines());
    let is_torn = |line: &&str| !line.is_empty() && serde_json::from_str::<Value>(line).is_err();
    let torn: Vec<_> = text.lines().filter(is_torn).collect();
    assert!(torn.is_empty(), "{torn:#?}");
}

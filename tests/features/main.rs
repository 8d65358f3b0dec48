//! The program with and without what it can be built without. `FEATURES=none cargo test --workspace --no-default-features --test
//! features` tries the smallest one: with the variable, it fails if another package of the build has turned a feature on.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must fail")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fencepost");

/// A gateway that keeps its locks in memory.
struct Gateway {
    process: Child,
    address: String,
}

impl Gateway {
    fn start() -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["--listen", "127.0.0.1:0", "--store", "memory:"]).env_clear();
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = log.find(|line| line.contains("listening on")).expect("the gateway does not start");
        let address = line.split("http://").nth(1).unwrap().split(',').next().unwrap().to_owned();
        // Its log is read to the end, so that it never waits for a reader.
        std::thread::spawn(move || log.for_each(drop));
        Self { process, address }
    }

    /// The status of the answer, and all that was sent.
    fn ask(&self, method: &str, path: &str, headers: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).env_clear().output().unwrap()
}

#[test]
fn a_lock_is_taken_renewed_and_released_whatever_was_left_out() {
    let gateway = Gateway::start();
    let token = "Lease-Token: 0123456789abcdef0123456789abcdef\r\n";
    for (method, status) in [("PUT", 201), ("PATCH", 200), ("GET", 200), ("DELETE", 204), ("GET", 404)] {
        let (answered, text) = gateway.ask(method, "/locks/a", token);
        assert_eq!(answered, status, "{method}: {text}");
    }
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/problems"] {
        assert_eq!(gateway.ask("GET", path, "").0, 200, "{path}");
    }
}

#[test]
fn a_page_that_was_left_out_says_so() {
    let gateway = Gateway::start();
    for (path, is_in, feature) in [
        ("/ui", cfg!(feature = "ui"), "ui"),
        ("/ui/page.js", cfg!(feature = "ui"), "ui"),
        ("/docs/", cfg!(feature = "swagger"), "swagger"),
        ("/docs/swagger-ui.css", cfg!(feature = "swagger"), "swagger"),
    ] {
        let (status, text) = gateway.ask("GET", path, "");
        if is_in {
            assert_eq!(status, 200, "{path}: {text}");
        } else {
            let why = format!("(the feature `{feature}`)");
            assert!(status == 404 && text.contains("not-found") && text.contains(&why), "{path}: {text}");
        }
    }
}

#[test]
fn traces_that_were_left_out_end_the_start() {
    if cfg!(feature = "traces") {
        return;
    }
    let output = run(&["--store", "memory:", "--otlp-endpoint", "http://127.0.0.1:4318"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with("fencepost: --otlp-endpoint: this program was built without traces"), "{said}");
}

#[test]
fn the_version_tells_which_features_are_in() {
    let said = String::from_utf8(run(&["--version"]).stdout).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix("features: ")).unwrap();
    if let Ok(expected) = std::env::var("FEATURES") {
        assert_eq!(line, expected);
    }
    for (feature, is_in) in [
        ("swagger", cfg!(feature = "swagger")),
        ("traces", cfg!(feature = "traces")),
        ("ui", cfg!(feature = "ui")),
    ] {
        assert_eq!(line.split(", ").any(|name| name == feature), is_in, "{said}");
    }
    assert!(said.starts_with(concat!("fencepost ", env!("CARGO_PKG_VERSION"), "\n")), "{said}");
}

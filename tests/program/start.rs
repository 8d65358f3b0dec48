//! The first moments of a gateway: what it outlives before it listens, and whom it tells that it does.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use kit::gateway::{command, program};
use kit::{Client, Gateway, PATIENCE, eventually, server_port, signal};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// As after `systemctl restart` and `reload` in one line, where systemd does not wait: it is still reading its settings.
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_while_a_gateway_starts_does_not_end_it() {
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    assert!(Command::new("mkfifo").arg(&password).status().unwrap().success());
    let password = password.to_str().unwrap();
    // A pipe opens once the other side opens it too.
    let script = r#"(exec 3>"$1"; kill -HUP $$; echo secret >&3) & shift; exec "$@""#;
    for threads in ["1", "2"] {
        // Nobody answers there, which the gateway waits for.
        let args =
            ["--store", "redis://127.0.0.1:1", "--redis-password-file", password, "--threads", threads];
        let mut becomes = Command::new("sh");
        becomes.args(["-c", script, "sh", password, program(), "--listen", "127.0.0.1:0"]).args(args);
        becomes.args(["--log-format", "json"]);
        let gateway =
            Gateway::try_start_by(becomes, &args).await.unwrap_or_else(|said| panic!("it ended: {said:?}"));
        gateway.signal("HUP");
        Client::new(gateway.address).get("/healthz").send().await.expect(200);
    }
}

/// A gateway that waits for a store that does not answer: it does not listen yet.
async fn waits_for_its_store(args: &[&str]) -> (tokio::process::Child, tokio::net::TcpStream) {
    let store = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", store.local_addr().unwrap());
    let command = command(&[&["--store", &url, "--store-timeout", "1m"], args].concat());
    let mut command = tokio::process::Command::from(command);
    let gateway = command.kill_on_drop(true).stderr(Stdio::piped()).spawn().unwrap();
    (gateway, timeout(PATIENCE, store.accept()).await.unwrap().unwrap().0)
}

/// Without that, the system would drop the signal where the gateway is the first process, as in a container.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_stop_is_heeded_while_the_store_is_waited_for() {
    for name in ["TERM", "INT"] {
        let (gateway, _store) = waits_for_its_store(&[]).await;
        signal(gateway.id().unwrap(), name);
        let output = timeout(PATIENCE, gateway.wait_with_output()).await.unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains("stopped before it listened"), "{name}: {said}");
    }
}

/// logrotate has moved it away, and asks once.
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_while_the_store_is_waited_for_opens_the_audit_log_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let (gateway, _store) = waits_for_its_store(&["--audit-log", path.to_str().unwrap()]).await;
    std::fs::rename(&path, directory.path().join("audit.log.1")).unwrap();
    signal(gateway.id().unwrap(), "HUP");
    eventually("there is a new file", async || path.exists()).await;
}

/// Where systemd would be told that a service is ready, and the variable that says so.
fn systemd() -> (TempDir, UnixDatagram, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    (directory, socket, path.to_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_told_once_the_gateway_listens() {
    let (_directory, socket, path) = systemd();
    let port = server_port();
    let listening = thread::spawn(move || {
        let mut told = [0; 64];
        let length = socket.recv(&mut told).unwrap();
        (
            String::from_utf8_lossy(&told[..length]).into_owned(),
            TcpStream::connect(("127.0.0.1", port)).is_ok(),
        )
    });
    let listen = format!("127.0.0.1:{port}");
    let args = ["--store", "memory:", "--listen", &listen];
    let mut command = command(&args);
    command.env("NOTIFY_SOCKET", path);
    let gateway =
        Gateway::try_start_by(command, &args).await.unwrap_or_else(|said| panic!("it ended: {said:?}"));
    assert_eq!(listening.join().unwrap(), ("READY=1\n".to_owned(), true));
    drop(gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_told_nothing_by_a_gateway_that_cannot_listen() {
    let (_directory, socket, path) = systemd();
    let first = Gateway::start(&["--store", "memory:"]).await;
    let listen = first.address.to_string();
    let args = ["--store", "memory:", "--listen", &listen];
    let mut command = command(&args);
    command.env("NOTIFY_SOCKET", path);
    assert!(Gateway::try_start_by(command, &args).await.is_err());
    socket.set_nonblocking(true).unwrap();
    assert_eq!(socket.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// What is not written must still happen.
#[tokio::test(flavor = "multi_thread")]
async fn at_each_level_of_the_log_a_gateway_serves_until_it_is_told_to_stop() {
    for level in ["error", "warn", "info", "debug"] {
        let address = SocketAddr::from(([127, 0, 0, 1], server_port()));
        let command =
            command(&["--store", "memory:", "--log-level", level, "--listen", &address.to_string()]);
        let mut gateway = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        eventually("it listens", async || TcpStream::connect(address).is_ok()).await;
        let client = Client::new(address);
        // One that drains accepts no connection any more after half a second.
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.get("/readyz").send().await.expect(200);
        }
        let pid = gateway.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(timeout(PATIENCE, gateway.wait()).await.unwrap().unwrap().success(), "{level}");
    }
}

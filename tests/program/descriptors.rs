//! Each connection is an open file, and the system allows only so many of these.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use kit::gateway::{bare_command, command};
use kit::metrics::metrics_address;
use kit::{Client, Gateway, KeysFile, PATIENCE};

/// The same program, started by a shell that sets these limits before.
fn within(limits: &str, program: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limits} && exec \"$@\""), "sh"]);
    shell.arg(program.get_program()).args(program.get_args()).stdin(Stdio::null()).stdout(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// A gateway that is allowed 200 open files, and may ask for 600.
async fn gateway(max_connections: &str) -> Gateway {
    let args = ["--store", "memory:", "--max-connections", max_connections];
    let shell = within("ulimit -Sn 200 && ulimit -Hn 600", &command(&args));
    Gateway::try_start_by(shell, &args).await.unwrap()
}

fn open_files_allowed(gateway: &Gateway) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap()
}

/// From an address of this machine that nobody else uses.
async fn connect(gateway: &Gateway) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, 9), 0).into()).unwrap();
    socket.connect(gateway.address).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_open_files_is_raised_to_what_connections_need() {
    let gateway = gateway("300").await;
    assert!(open_files_allowed(&gateway) > 300 + 50, "{}", open_files_allowed(&gateway));
    assert!(!gateway.log().iter().any(|line| line.contains("open files")));
}

/// Otherwise connections of clients would leave no files for those to the store.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_system_allows_too_few_there_are_fewer_connections() {
    let gateway = gateway("1000").await;
    assert_eq!(open_files_allowed(&gateway), 600);
    let told: serde_json::Value = gateway
        .log()
        .iter()
        .find(|line| line.contains("open files"))
        .map(|line| serde_json::from_str(line).unwrap())
        .expect("nothing is said of it");
    let room = told["room_for"].as_u64().unwrap();
    assert!((300..600).contains(&room), "{told}");
    // One address still has no more than its half.
    let mut mine = Vec::new();
    for _ in 0..room / 2 {
        mine.push(connect(&gateway).await.unwrap());
    }
    let beyond = async { connect(&gateway).await?.read_u8().await };
    let ended = tokio::time::timeout(PATIENCE, beyond).await.expect("it stays open");
    assert!(ended.is_err(), "something was said on it");
    assert!(mine[0].try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    Client::new(gateway.address).get("/healthz").send().await.expect(200);
}

/// Without room for them, the metrics' connections would take the files of those to the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_the_metrics_leave_files_for_those_of_clients() {
    let args = ["--store", "memory:", "--max-connections", "100", "--metrics-listen", "127.0.0.1:0"];
    let shell = within("ulimit -Sn 200 && ulimit -Hn 300", &command(&args));
    let gateway = Gateway::try_start_by(shell, &args).await.unwrap();
    let metrics = metrics_address(&gateway);
    let mut open = Vec::new();
    for number in 0..280_u16 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, 20 + u8::try_from(number % 5).unwrap()), 0).into()).unwrap();
        open.push(socket.connect(metrics).await.unwrap());
    }
    for _ in 0..40 {
        open.push(connect(&gateway).await.unwrap());
    }
    Client::new(gateway.address).get("/healthz").send().await.expect(200);
    assert!(!gateway.log().iter().any(|line| line.contains("cannot accept") || line.contains("open files")));
}

/// Else connections that need no key would keep a revoked key in force.
#[tokio::test(flavor = "multi_thread")]
async fn however_few_files_can_be_opened_the_keys_are_read_again() {
    let mut file = KeysFile::new();
    for name in ["stays", "goes"] {
        file.add_for_all(name, "\"acquire\"");
    }
    file.write();
    let flag = file.flag();
    let args = ["--store", "memory:", &flag[0], &flag[1]];
    let mut open = Vec::new();
    let mut gateways = Vec::new();
    for (most, room) in [(24, 1), (64, 32)] {
        let shell = within(&format!("ulimit -n {most}"), &command(&args));
        let gateway = Gateway::try_start_by(shell, &args).await.unwrap();
        let said = format!("\"room_for\":{room}}}");
        assert!(gateway.log().iter().any(|line| line.contains(&said)), "{:?}", gateway.log());
        for number in 0..45_u8 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::new(127, 0, 0, 20 + number % 5), 0).into()).unwrap();
            open.push(socket.connect(gateway.address).await.unwrap());
        }
        gateways.push(gateway);
    }
    file.remove("goes");
    file.write();
    let is_read = |line: &str| line.contains("\"what\":\"keys\"") && line.contains("settings are in force");
    for gateway in gateways {
        gateway.logs("the keys are read", is_read).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_number_of_connections_means_as_many_as_there_is_room_for() {
    let most = usize::MAX.to_string();
    let args = ["--store", "memory:", "--max-connections", &most, "--metrics-listen", "127.0.0.1:0"];
    let shell = within("ulimit -Sn 200 && ulimit -Hn 3000", &command(&args));
    let gateway = Gateway::try_start_by(shell, &args).await.unwrap();
    assert_eq!(open_files_allowed(&gateway), 3000);
    // One address has its half of them: more than one.
    let _first = connect(&gateway).await.unwrap();
    let mut second = connect(&gateway).await.unwrap();
    let _ = second.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let answered = tokio::time::timeout(PATIENCE, second.read_u8()).await.expect("no answer");
    assert_eq!(answered.expect("the address may have no second one"), b'H');
}

/// The runtime panics without those that it needs, and a lock could be taken that cannot be released.
#[tokio::test(flavor = "multi_thread")]
async fn where_too_few_files_can_be_opened_no_command_takes_a_lock_and_each_says_why() {
    let gateway = Gateway::embedded(&[]).await;
    let begun = |most: u32, args: &[&str]| {
        let mut program = bare_command();
        program.args(args).env("FENCEPOST_URL", format!("http://{}", gateway.address));
        within(&format!("ulimit -n {most}"), &program).output().unwrap()
    };
    for most in [5, 6, 7, 8, 10, 12] {
        for (args, status) in [
            (&["run", "k", "--", "true"][..], 71),
            (&["once", "k", "--", "true"], 71),
            (&["list"], 71),
            (&["acquire", "k"], 71),
            (&["check", "--store", "memory:"], 1),
            (&["serve", "--store", "memory:", "--listen", "127.0.0.1:0"], 1),
        ] {
            let output = begun(most, args);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(status), "{most} {args:?}: {said}");
            // The gateway also says for how many connections there is room.
            let why: Vec<_> = said.lines().filter(|line| !line.contains("WARN")).collect();
            assert!(why.len() == 1 && why[0].contains("ulimit -n"), "{most} {args:?}: {said}");
        }
    }
    Client::new(gateway.address).get("/locks/k").send().await.expect(404);
    assert_eq!(begun(24, &["run", "k", "--", "true"]).status.code(), Some(0));
}

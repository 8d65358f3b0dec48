//! TLS: real curl, certificates that are replaced, clients that say who they are, and those that never finish.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use kit::certificates::Certificates;
use kit::gateway::run;
use kit::secure::{SecureClient, call};
use kit::{Gateway, PATIENCE, eventually, fresh_token};

mod clients;
mod reload;

/// A gateway with TLS, and its certificates.
async fn gateway(more: &[&str]) -> (Certificates, Gateway) {
    let certificates = Certificates::new();
    let gateway = gateway_with(&certificates, more).await;
    (certificates, gateway)
}

async fn gateway_with(certificates: &Certificates, more: &[&str]) -> Gateway {
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let tls = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key];
    Gateway::start(&[&tls, more].concat()).await
}

fn curl(gateway: &Gateway, target: &str, args: &[&str]) -> Output {
    let url = format!("https://localhost:{}{target}", gateway.address.port());
    let timeout = PATIENCE.as_secs().to_string();
    Command::new("curl").args(["-sS", "-m", &timeout, "-4"]).args(args).arg(url).output().unwrap()
}

/// What comes until the gateway closes, by whatever way.
async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("it stays open").ok();
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_speaks_http_2_by_itself_and_what_else_it_is_told_to() {
    let (certificates, gateway) = gateway(&[]).await;
    let authority = certificates.authority();
    let wishes: [(&[&str], &str); 5] = [
        (&[], "2 201"),
        (&["--http1.1"], "1.1 201"),
        (&["--http2-prior-knowledge"], "2 201"),
        (&["--no-alpn"], "1.1 201"),
        (&["--tls-max", "1.2"], "2 201"),
    ];
    for (number, (wish, expected)) in wishes.into_iter().enumerate() {
        let told =
            ["--cacert", &authority, "-X", "PUT", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"];
        let output = curl(&gateway, &format!("/locks/k{number}?ttl=1m"), &[&told, wish].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{wish:?}: {output:?}");
    }
    // Who does not know the authority does not talk to us, and TLS 1.1 is no TLS any more.
    assert_eq!(curl(&gateway, "/healthz", &[]).status.code(), Some(60));
    assert_eq!(
        curl(&gateway, "/healthz", &["--cacert", &authority, "--tls-max", "1.1"]).status.code(),
        Some(35)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_does_not_end_is_closed_in_time() {
    let limits = ["--tls-handshake-timeout", "300ms", "--first-request-timeout", "600ms"];
    let (certificates, gateway) = gateway(&limits).await;
    // The first bytes of a greeting that is to have 512 of them.
    for greeting in [b"".as_slice(), &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]] {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(greeting).await.unwrap();
        until_closed(&mut stream).await;
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    }
    // And who shakes hands and then says nothing has the other limit.
    let begun = Instant::now();
    let mut stream = SecureClient::new(&certificates).connect(gateway.address).await.unwrap();
    until_closed(&mut stream).await;
    assert!(begun.elapsed() >= Duration::from_millis(600), "{:?}", begun.elapsed());
}

/// Whatever way it takes: taking back rests on this with TLS as it does without.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_no_longer_waited_for() {
    let (certificates, gateway) = gateway(&[]).await;
    let client = SecureClient::new(&certificates);
    let mut watcher = client.connect(gateway.address).await.unwrap();
    call(&mut watcher, "PUT", "/locks/k?ttl=1m", "").await.unwrap().expect(201);
    for way in ["said goodbye", "closed", "was reset"] {
        let mut waiter = client.connect(gateway.address).await.unwrap();
        waiter.write_all(b"PUT /locks/k?wait=50s HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        waits(&mut watcher, 1).await;
        match way {
            "said goodbye" => waiter.shutdown().await.unwrap(),
            "closed" => drop(waiter.into_inner().0),
            _ => {
                let (stream, _) = waiter.into_inner();
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        waits(&mut watcher, 0).await;
    }
}

async fn waits(watcher: &mut tokio_rustls::client::TlsStream<TcpStream>, waiters: u64) {
    eventually("so many wait", async || {
        call(watcher, "GET", "/locks/k", "").await.unwrap().json()["waiters"] == waiters
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_requests_and_not_for_handshakes() {
    let (certificates, mut gateway) = gateway(&["--tls-handshake-timeout", "1h"]).await;
    let mut silent = TcpStream::connect(gateway.address).await.unwrap();
    let client = SecureClient::new(&certificates);
    let mut holder = client.connect(gateway.address).await.unwrap();
    call(&mut holder, "PUT", "/locks/k?ttl=1s", "").await.unwrap().expect(201);
    let mut waiter = client.connect(gateway.address).await.unwrap();
    let waiting = tokio::spawn(async move { call(&mut waiter, "PUT", "/locks/k?wait=20s", "").await });
    eventually("it waits", async || {
        call(&mut holder, "GET", "/locks/k", "").await.unwrap().json()["waiters"] == 1
    })
    .await;
    gateway.signal("TERM");
    // Whoever waits is told so, on a connection that is closed in good order.
    let answer = waiting.await.unwrap().unwrap();
    assert!(matches!(answer.status, 201 | 503), "{answer:?}");
    assert_eq!(gateway.exit_status().await.code(), Some(0));
    until_closed(&mut silent).await;
    assert!(
        gateway.log().iter().any(|line| line.contains("\"connections_cut\":0")),
        "{:?}",
        gateway.log().last()
    );
}

#[test]
fn certificates_that_cannot_be_used_end_the_start_and_are_not_quoted() {
    let certificates = Certificates::new();
    let (good, key) = (certificates.certificate(), certificates.key());
    let secret = std::fs::read_to_string(&key).unwrap();
    let other = certificates.path("other.pem");
    std::fs::write(&other, certificates.server().1).unwrap();
    let broken = certificates.path("broken.pem");
    std::fs::write(&broken, secret.replace("-----END", "----- END")).unwrap();
    let cases: [(&[&str], &str, &str); 9] = [
        (
            &["--tls-cert", &good, "--tls-key", &key, "--tls-client-ca", &good],
            "--tls-client-ca",
            "needs --keys",
        ),
        (&["--tls-cert", &good], "--tls-cert", "needs --tls-key"),
        (&["--tls-key", &key], "--tls-key", "needs --tls-cert"),
        (&["--tls-client-ca", &good], "--tls-client-ca", "needs --tls-cert"),
        (&["--tls-cert", "/no/such/file", "--tls-key", &key], "--tls-cert", "/no/such/file"),
        (&["--tls-cert", &good, "--tls-key", &other], "--tls-key", "not the private key of the certificate"),
        (&["--tls-cert", &good, "--tls-key", &good], "--tls-key", "no private key"),
        (&["--tls-cert", "/dev/null", "--tls-key", &key], "--tls-cert", "no certificate"),
        (&["--tls-cert", &good, "--tls-key", &broken], "--tls-key", "no private key"),
    ];
    for (args, flag, said) in cases {
        let output = run(&[args, &["--store", "memory:", "--listen", "127.0.0.1:0"]].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(
            stderr.contains(flag) && stderr.contains(said) && stderr.lines().count() == 1,
            "{args:?}: {stderr}"
        );
        let is_quoted = |line: &&str| line.len() > 10 && stderr.contains(*line);
        assert!(!secret.lines().any(|line| is_quoted(&line)), "{stderr}");
    }
}

/// A token that a client chooses goes through unharmed; what is logged of a request is what it always was.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_taken_renewed_and_released() {
    let (certificates, gateway) = gateway(&[]).await;
    let mut stream = SecureClient::new(&certificates).connect(gateway.address).await.unwrap();
    let token = format!("Lease-Token: {}\r\n", fresh_token());
    for (method, status) in [("PUT", 201), ("PATCH", 200), ("GET", 200), ("DELETE", 204)] {
        call(&mut stream, method, "/lock?key=a/b", &token).await.unwrap().expect(status);
    }
}

/// Whoever forgot the `s` of `https` reads what is the matter, and not the bytes of an alert.
#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_told_in_words_that_tls_is_spoken_here() {
    let (_certificates, gateway) = gateway(&[]).await;
    let long = format!("PUT /locks/k?owner={} HTTP/1.1\r\nHost: localhost\r\n\r\n", "o".repeat(30_000));
    for request in ["PUT /locks/k HTTP/1.1\r\nHost: localhost\r\n\r\n", "\r\nGET / HTTP/1.0\r\n\r\n", &long] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = kit::http::parse(&until_closed(&mut stream).await).expect(400);
        assert!(String::from_utf8_lossy(&answer.body).contains("https://"), "{answer:?}");
    }
    assert!(!gateway.log().iter().any(|line| line.contains("/locks/{key}")));
    let url = format!("http://localhost:{}/locks/k", gateway.address.port());
    let output = Command::new("curl").args(["-sS", "-m", "20", "-4", "-w", "%{http_code}", &url]).output();
    let output = output.unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("400"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_may_ask_for_http_1_0_by_its_name() {
    let (certificates, gateway) = gateway(&[]).await;
    let told = ["--cacert", &certificates.authority(), "--http1.0", "-o", "/dev/null", "-w", "%{http_code}"];
    let output = curl(&gateway, "/healthz", &told);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "200", "{output:?}");
}

//! Certificates that are replaced while the gateway serves.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rcgen::{CertificateParams, DistinguishedName};

use super::{gateway, gateway_with};
use kit::certificates::Certificates;
use kit::gateway::command;
use kit::metrics::{Scrape, metrics_address};
use kit::secure::{SecureClient, call};
use kit::{Gateway, eventually, fresh_token};

/// The certificate that a new connection is shown.
async fn shown(client: &SecureClient, gateway: &Gateway) -> Vec<u8> {
    let stream = client.connect(gateway.address).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// Waits until new connections are shown something else than this, and returns it.
async fn shown_instead_of(before: &[u8], client: &SecureClient, gateway: &Gateway) -> Vec<u8> {
    let mut now = Vec::new();
    eventually("another certificate is shown", async || {
        now = shown(client, gateway).await;
        now != before
    })
    .await;
    now
}

fn lines_with(gateway: &Gateway, text: &str) -> usize {
    gateway.log().iter().filter(|line| line.contains(text)).count()
}

/// Takes and releases a lock until told to stop, on a connection that is kept, or on a new one for each request.
async fn pairs(
    client: SecureClient,
    gateway: std::net::SocketAddr,
    is_kept: bool,
    pairs: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
) {
    let key = fresh_token();
    let mut stream = client.connect(gateway).await.unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let token = format!("Lease-Token: {}\r\n", fresh_token());
        for (method, status) in [("PUT", 201), ("DELETE", 204)] {
            if !is_kept {
                stream = client.connect(gateway).await.unwrap();
            }
            call(&mut stream, method, &format!("/locks/{key}"), &token).await.unwrap().expect(status);
        }
        pairs.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_replaced_under_load_drop_no_request() {
    let (certificates, gateway) = gateway(&[]).await;
    let client = SecureClient::new(&certificates);
    let (done, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let is_kept = number % 2 == 0;
            tokio::spawn(pairs(client.clone(), gateway.address, is_kept, done.clone(), is_over.clone()))
        })
        .collect();
    let mut now = shown(&client, &gateway).await;
    for _ in 0..2 {
        let before = done.load(Ordering::Relaxed);
        certificates.renew();
        now = shown_instead_of(&now, &client, &gateway).await;
        eventually("the clients go on", async || done.load(Ordering::Relaxed) > before + 50).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a request was dropped");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_pair_keeps_the_old_one_and_says_why() {
    let (certificates, gateway) = gateway(&[]).await;
    let client = SecureClient::new(&certificates);
    let before = shown(&client, &gateway).await;
    let mut kept = client.connect(gateway.address).await.unwrap();
    let (certificate, key) = certificates.server();
    let damaged = key.replace("-----END", "----- END");
    for (text, reason) in
        [(damaged, "no private key in PEM"), (key.clone(), "not the private key of the certificate")]
    {
        fs::write(certificates.key(), &text).unwrap();
        eventually("it says why", async || lines_with(&gateway, reason) > 0).await;
        assert_eq!(shown(&client, &gateway).await, before);
    }
    fs::remove_file(certificates.key()).unwrap();
    eventually("it says why", async || lines_with(&gateway, "cannot read") > 0).await;
    assert_eq!(shown(&client, &gateway).await, before);
    // And as soon as the two belong together they are served.
    fs::write(certificates.key(), &key).unwrap();
    fs::write(certificates.certificate(), certificate).unwrap();
    shown_instead_of(&before, &client, &gateway).await;
    call(&mut kept, "GET", "/healthz", "").await.unwrap().expect(200);
    for line in key.lines().filter(|line| line.len() > 10) {
        assert_eq!(lines_with(&gateway, line), 0, "the log has a line of the key");
    }
}

/// Nobody should learn of it from a client that is refused.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_certificate_that_is_served_is_among_the_numbers() {
    const SERIES: &str = "fencepost_tls_certificate_expiry_timestamp_seconds";
    let (certificates, gateway) = gateway(&["--metrics-listen", "127.0.0.1:0"]).await;
    let address = metrics_address(&gateway);
    let end = async || Scrape::of(address).await.get(SERIES);
    let in_force = async || {
        Scrape::of(address).await.get("fencepost_settings_file_in_force{file=\"certificate\"}") == 1.0
    };
    assert!(in_force().await);
    let first = end().await;
    let next = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2031, 5, 6);
    let (certificate, key) = certificates.client_with("next", DistinguishedName::new(), next);
    fs::rename(certificate, certificates.certificate()).unwrap();
    fs::rename(key, certificates.key()).unwrap();
    eventually("the new end is shown", async || end().await == 1_935_792_000.0).await;
    assert!(first > 1_935_792_000.0, "{first}");
    // Nor is one served whose time is over, or is still to come, in the place of a good one.
    for (from, until) in [(2019, 2020), (2090, 2091)] {
        let out_of_time = |params: &mut CertificateParams| {
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
        };
        let (certificate, key) = certificates.client_with("over", DistinguishedName::new(), out_of_time);
        fs::rename(certificate, certificates.certificate()).unwrap();
        fs::rename(key, certificates.key()).unwrap();
        let says_why = format!("it is valid from {from}-01-01");
        eventually("it says why", async || lines_with(&gateway, &says_why) > 0).await;
        assert_eq!(end().await, 1_935_792_000.0);
        eventually("it shows that the file is not in force", async || !in_force().await).await;
    }
    // One that cannot be used is not served, and changes nothing.
    fs::write(certificates.certificate(), "nonsense").unwrap();
    eventually("it says why", async || lines_with(&gateway, "no certificate in PEM") > 0).await;
    assert_eq!(end().await, 1_935_792_000.0);
    eventually("it shows that the file is not in force", async || !in_force().await).await;
    // Zero would be taken for an end that is long over.
    let plain = Gateway::start(&["--store", "memory:"]).await;
    assert!(!Scrape::of(plain.address).await.series().contains(SERIES));
}

/// As Kubernetes gives secrets to a pod: the files are links into a directory that is a link, and that one is swapped.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_links_that_is_swapped_is_seen() {
    let certificates = Certificates::new();
    let put = |name: &str, (certificate, key): (String, String)| {
        fs::create_dir(certificates.path(name)).unwrap();
        fs::write(certificates.path(&format!("{name}/cert.pem")), certificate).unwrap();
        fs::write(certificates.path(&format!("{name}/key.pem")), key).unwrap();
        symlink(name, certificates.path("data.new")).unwrap();
        fs::rename(certificates.path("data.new"), certificates.path("data")).unwrap();
    };
    put("first", certificates.server());
    for file in [certificates.certificate(), certificates.key()] {
        fs::remove_file(&file).unwrap();
        symlink(format!("data/{}", file.rsplit('/').next().unwrap()), file).unwrap();
    }
    let gateway = gateway_with(&certificates, &[]).await;
    let client = SecureClient::new(&certificates);
    let before = shown(&client, &gateway).await;
    put("second", certificates.server());
    shown_instead_of(&before, &client, &gateway).await;
    // Both are one swap away from each other: nothing was ever half there.
    assert_eq!(lines_with(&gateway, "stay as they were"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reads_them_again_and_ends_nothing() {
    let (certificates, mut gateway) = gateway(&[]).await;
    let client = SecureClient::new(&certificates);
    let mut kept = client.connect(gateway.address).await.unwrap();
    let reads = || lines_with(&gateway, "new connections are served with this certificate");
    assert_eq!(reads(), 1);
    gateway.signal("HUP");
    eventually("it reads them again", async || reads() == 2).await;
    call(&mut kept, "GET", "/healthz", "").await.unwrap().expect(200);
    gateway.signal("TERM");
    assert_eq!(gateway.exit_status().await.code(), Some(0));
    // Without anything to read it ends nothing either.
    let mut bare = Gateway::start(&["--store", "memory:"]).await;
    bare.signal("HUP");
    kit::Client::new(bare.address).get("/healthz").send().await.expect(200);
    bare.signal("TERM");
    assert_eq!(bare.exit_status().await.code(), Some(0));
}

/// What makes each look into a directory wait for as long as a file is there, unless it is made by a thread for files.
const HANGING: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int statx(int at, const char *path, int flags, unsigned mask, void *about) {
    char thread[16] = "";
    prctl(PR_GET_NAME, thread);
    const char *hangs = getenv("LOOKS_HANG");
    size_t directory = strrchr(hangs, '/') - hangs;
    while (strcmp(thread, "files") && !strncmp(path, hangs, directory) && access(hangs, F_OK) == 0) usleep(10000);
    return syscall(SYS_statx, at, path, flags, mask, about);
}
"#;

/// As on a mount that hangs: it would stop the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn no_thread_that_serves_looks_at_the_files_of_certificates() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name);
    fs::write(path("hanging.c"), HANGING).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([path("hanging.so"), path("hanging.c")]);
    assert!(compiler.status().unwrap().success());
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let args = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key, "--threads", "1"];
    let mut command = command(&args);
    command.env("LD_PRELOAD", path("hanging.so")).env("LOOKS_HANG", path("hangs"));
    let gateway = Gateway::try_start_by(command, &args).await.unwrap();
    fs::write(path("hangs"), "").unwrap();
    gateway.signal("HUP");
    let reads = || lines_with(&gateway, "new connections are served with this certificate");
    eventually("it reads them again", async || reads() == 2).await;
    let mut stream = SecureClient::new(&certificates).connect(gateway.address).await.unwrap();
    call(&mut stream, "GET", "/healthz", "").await.unwrap().expect(200);
}

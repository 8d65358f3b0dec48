//! Refusals: told at once, in words, and without requests that could only be refused too.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::kit::{Ended, Scene};
use super::shape::Recorder;
use kit::certificates::Certificates;
use kit::keys::KeysFile;
use kit::{Client, Gateway, eventually, fresh_token};

/// How long an answer of a gateway nearby may take to be told.
const AT_ONCE: Duration = Duration::from_secs(2);
const HELD: &str = r#"{"type":"/problems/lock-held","detail":"another client"}"#;
const TOO_MANY_WAIT: &str = r#"{"type":"/problems/too-many-waiters","detail":"too many wait already"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_told_at_once_after_one_request() {
    let mut keys = KeysFile::new();
    let of_another = keys.add("reader", "every_key = true\nallow = [\"inspect\"]");
    let of_others = keys.add("elsewhere", "prefixes = [\"elsewhere\"]\nallow = [\"acquire\"]");
    let unknown = KeysFile::new().add_for_all("unknown", "\"acquire\"");
    keys.write();
    let flags = [vec!["--store".into(), "memory:".into()], keys.flag().to_vec()].concat();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    for (key, said) in [
        (None, "--api-key-file"),
        (Some(unknown), "does not know the API key"),
        (Some(of_another), "acquire"),
        (Some(of_others), "acquire"),
    ] {
        let gateway = Gateway::start(&flags).await;
        let scene = Scene::on(&gateway);
        let mut command = scene.command(&["k", "--", "true"]);
        if let Some(key) = key {
            command.env("FENCEPOST_API_KEY", key);
        }
        let ended = scene.launch(command).end().await.expect_line(2, &["refused by http://127.0.0.1", said]);
        assert!(ended.took < AT_ONCE, "{ended:?}");
        let refusals = || gateway.log().iter().filter(|line| line.contains("\"status\":40")).count();
        eventually("it is in the log", async || refusals() > 0).await;
        assert_eq!(refusals(), 1, "{:#?}", gateway.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_refuses_for_good_is_asked_once_and_never_for_a_release() {
    for (status, body) in [
        (401, r#"{"type":"/problems/key-refused","detail":"no key of ours"}"#),
        (403, r#"{"type":"/problems/right-missing","detail":"it may not"}"#),
        (403, r#"{"type":"/problems/unknown-host","detail":"not by that name"}"#),
        (403, r#"{"type":"/problems/cross-origin","detail":"another site"}"#),
        (404, r#"{"type":"/problems/not-found","detail":"nothing here"}"#),
        (405, r#"{"type":"/problems/method-not-allowed","detail":"not so"}"#),
        (400, r#"{"type":"/problems/bad-parameter","detail":"the ttl is too long","parameter":"ttl"}"#),
    ] {
        let recorder = Recorder::telling(&[(Duration::ZERO, status, body)]).await;
        let ended = Scene::at(recorder.url()).run(&["k", "--", "true"]).await;
        let ended = ended.expect_line(2, &["refused by http://127.0.0.1"]);
        assert!(ended.took < AT_ONCE, "{ended:?}");
        let methods: Vec<_> = recorder.requests().iter().map(|request| request.method.clone()).collect();
        assert_eq!(methods, ["PUT"], "{status} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_in_the_queue_is_given_up_once_by_one_whose_request_is_then_refused() {
    let busy = r#"{"type":"/problems/lock-held","detail":"held","waiters":1,"position":1}"#;
    let wrong = r#"{"type":"/problems/bad-parameter","detail":"the ttl is too long","parameter":"ttl"}"#;
    let revoked = r#"{"type":"/problems/key-refused","detail":"no key of ours"}"#;
    let now = Duration::ZERO;
    for (last, releases) in [((now, 400, wrong), 1), ((now, 401, revoked), 0)] {
        let recorder = Recorder::telling(&[(now, 423, busy), last]).await;
        Scene::at(recorder.url()).run(&["k", "--", "true"]).await.expect_line(2, &["refused"]);
        let sent = recorder.requests().iter().filter(|request| request.method == "DELETE").count();
        assert_eq!(sent, releases);
    }
}

/// More than ten wrong keys in a row would shut out others at this address.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_revoked_while_the_command_runs_is_shown_a_few_times_only() {
    let mut keys = KeysFile::new();
    let cases = [
        ("renews", "6s", "echo >ready; exec sleep 60", 76, "could not be renewed"),
        (
            "releases",
            "5m",
            "echo >ready; while [ ! -e over ]; do sleep 0.02; done; exit 8",
            8,
            "could not be released",
        ),
    ];
    let shown = cases.map(|case| keys.add_for_all(case.0, "\"acquire\""));
    keys.add_for_all("another", "\"acquire\"");
    keys.write();
    let flag = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let count = |text: &str| gateway.log().iter().filter(|line| line.contains(text)).count();
    for ((name, ttl, script, status, said), key) in cases.into_iter().zip(shown) {
        let scene = Scene::on(&gateway);
        // Another lock each time, as nobody can release the first one any more.
        let args = ["--ttl", ttl, "--kill-after", "500ms", name, "--", "sh", "-c", script];
        let mut command = scene.command(&args);
        command.env("FENCEPOST_API_KEY", &key);
        let running = scene.launch(command);
        eventually("the command runs", async || scene.path("ready").exists()).await;
        let (refused, reloaded) = (count("\"status\":401"), count("\"what\":\"keys\""));
        keys.remove(name);
        keys.write();
        gateway.signal("HUP");
        eventually("the key is gone", async || count("\"what\":\"keys\"") > reloaded).await;
        std::fs::write(scene.path("over"), "").unwrap();
        running.end().await.expect_line(status, &[name, said, "does not know the API key"]);
        // A gateway writes its log after its answer.
        eventually("it is in the log", async || count("\"status\":401") > refused).await;
        assert!(count("\"status\":401") - refused < 8, "{name}: {refused}");
    }
}

/// What `run` says of a gateway with this certificate, where it trusts this authority.
async fn told_of(certificates: &Certificates, trusted: &str, (certificate, key): (String, String)) -> Ended {
    let files = [("own.pem", certificate), ("own-key.pem", key)].map(|(name, text)| {
        let path = certificates.path(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let tls = ["--store", "memory:", "--tls-cert", &files[0], "--tls-key", &files[1]];
    let gateway = Gateway::start(&tls).await;
    let scene = Scene::at(format!("https://127.0.0.1:{}", gateway.address.port()));
    let mut command = scene.command(&["k", "--", "true"]);
    command.env("SSL_CERT_FILE", trusted);
    scene.launch(command).end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_certificate_is_told_at_once_in_words_and_with_what_to_do() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let authority = certificates.authority();
    let names = || CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let (mut over, mut early, mut own) = (names(), names(), names());
    over.not_after = date_time_ymd(2020, 1, 1);
    early.not_before = date_time_ymd(2100, 1, 1);
    early.not_after = date_time_ymd(2101, 1, 1);
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    own.distinguished_name.push(DnType::CommonName, "made by openssl req -x509");
    let key = KeyPair::generate().unwrap();
    let own = (own.self_signed(&key).unwrap().pem(), key.serialize_pem());
    let own_file = certificates.path("self-signed.pem");
    std::fs::write(&own_file, &own.0).unwrap();
    for (trusted, files, said) in [
        (&own_file, certificates.server(), "does not trust: name the file"),
        // An authority that was made anew has the same name and another key.
        (&others.authority(), certificates.server(), "the authority of that name"),
        (&authority, certificates.server_called(&["a.example", "b.example"]), "but for a.example, b.example"),
        (&authority, certificates.server_with(over), "expired at 2020-01-01T00:00:00Z"),
        (&authority, certificates.server_with(early), "not valid before 2100-01-01T00:00:00Z"),
        (&own_file, own, "CA:FALSE"),
    ] {
        let ended = told_of(&certificates, trusted, files).await;
        let ended = ended.expect_line(2, &["https://127.0.0.1", "its certificate ", said]);
        assert!(ended.took < AT_ONCE, "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_one_of_http_and_https_is_told_with_the_right_one() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let secure = Gateway::start(&["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key]).await;
    let plain = Gateway::embedded(&[]).await;
    // Other servers with TLS answer in TLS.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 512]).await;
            let _ = stream.write_all(&[0x15, 3, 1, 0, 2, 2, 70]).await;
        }
    });
    for (url, status, said) in [
        (format!("http://{}", secure.address), 2, "this port speaks TLS: write https://"),
        (format!("http://{other}"), 2, "probably TLS: write https://"),
        (format!("https://{}", plain.address), 2, "probably plain HTTP: write http://"),
    ] {
        let scene = Scene::at(url);
        let mut command = scene.command(&["k", "--", "true"]);
        command.env("SSL_CERT_FILE", certificates.authority());
        let ended = scene.launch(command).end().await.expect_line(status, &[said]);
        assert!(ended.took < AT_ONCE, "{ended:?}");
    }
}

/// A status of its own for "busy" is what a crontab takes for "another machine does the work".
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_word_on_the_lock_is_never_called_busy() {
    for (status, body, said) in [
        (429, r#"{"type":"/problems/rate-limited","detail":"too many wrong keys"}"#, "too many wrong keys"),
        (429, r#"{"type":"/problems/too-many-locks","detail":"as many as it may"}"#, "as many as it may"),
        (429, r#"{"type":"/problems/too-many-waiters","detail":"too many wait"}"#, "too many wait"),
        (429, "<h1>Too Many Requests</h1>", "HTTP 429"),
        (423, "<h1>Locked</h1>", "HTTP 423"),
    ] {
        let always = vec![(Duration::ZERO, status, body); 100];
        let recorder = Recorder::telling(&always).await;
        let scene = Scene::at(recorder.url());
        let args = ["--wait", "0s", "--busy-exit", "0", "k", "--", "touch", "wrong"];
        scene.run(&args).await.expect_line(69, &["cannot take the lock", said]);
        assert!(!scene.path("wrong").exists());
    }
    let held = (Duration::ZERO, 423, HELD);
    let recorder = Recorder::telling(&[held]).await;
    let args = ["--wait", "0s", "--busy-exit", "17", "k", "--", "true"];
    Scene::at(recorder.url()).run(&args).await.expect_line(17, &["is busy", "another client"]);
    // So is a lock whose queue is full, by what is said without a wait.
    let all_along = [(Duration::ZERO, 429, TOO_MANY_WAIT), held].repeat(20);
    let recorder = Recorder::telling(&all_along).await;
    let args = ["--wait", "1s", "--busy-exit", "17", "k", "--", "true"];
    Scene::at(recorder.url()).run(&args).await.expect_line(17, &["is busy", "another client"]);
}

/// Too many may wait at the gateway, or with the API key: that says nothing of the lock.
#[tokio::test(flavor = "multi_thread")]
async fn where_too_many_wait_a_free_lock_is_taken_without_waiting_and_others_wait_elsewhere() {
    let full = (Duration::ZERO, 429, TOO_MANY_WAIT);
    let puts = |recorder: &Recorder| {
        let requests = recorder.requests().into_iter().filter(|request| request.method == "PUT");
        requests.map(|request| request.target.contains("wait=")).collect::<Vec<_>>()
    };
    let alone = Recorder::telling(&[full]).await;
    let ended = Scene::at(alone.url()).run(&["k", "--", "true"]).await.expect_silent(0);
    assert!(ended.took < AT_ONCE, "{ended:?}");
    assert_eq!(puts(&alone), [true, false]);
    // Where the lock is held, the next gateway may have room.
    let first = Recorder::telling(&[full, (Duration::ZERO, 423, HELD)]).await;
    let second = Recorder::start().await;
    let scene = Scene::at(format!("{},{}", first.url(), second.url()));
    let ended = scene.run(&["k", "--", "true"]).await.expect_silent(0);
    assert!(ended.took < AT_ONCE, "{ended:?}");
    assert_eq!((puts(&first), puts(&second)), (vec![true, false], vec![true]));
    // What no lock can be taken for is no busy lock.
    let away = r#"{"type":"/problems/store-unavailable","detail":"read only"}"#;
    let recorder = Recorder::telling(&[full, (Duration::ZERO, 503, away)].repeat(50)).await;
    let args = ["--wait", "1s", "--gateway-wait", "1s", "--busy-exit", "0", "k", "--", "touch", "wrong"];
    let scene = Scene::at(recorder.url());
    scene.run(&args).await.expect_line(69, &["cannot take the lock"]);
    assert!(!scene.path("wrong").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_waiters_are_used_up_takes_a_free_lock_and_is_told_a_result() {
    let mut keys = KeysFile::new();
    let small = keys.add("small", "every_key = true\nallow = [\"acquire\", \"once\"]\nmax_waiters = 1");
    let large = keys.add_for_all("large", "\"acquire\", \"inspect\", \"once\"");
    keys.write();
    let [flag, path] = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag, &path]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/held?ttl=1h").key(&large).send().await.expect(201);
    let worker = fresh_token();
    client.put("/once/done").key(&large).token(&worker).send().await.expect(201);
    client.post("/once/done").key(&large).token(&worker).body("result").send().await.expect(200);
    let waiting = tokio::spawn(client.put("/locks/held?wait=50s").key(&small).send());
    eventually("it waits", async || {
        client.get("/locks/held").key(&large).send().await.json()["waiters"] == 1
    })
    .await;
    let scene = Scene::on(&gateway);
    let run = async |name: &str, args: &[&str]| {
        let mut command = scene.command_of(name, args);
        command.env("FENCEPOST_API_KEY", &small);
        scene.launch(command).end().await
    };
    let ended = run("run", &["free", "--", "true"]).await.expect_silent(0);
    assert!(ended.took < AT_ONCE, "{ended:?}");
    let ended = run("once", &["done", "--", "false"]).await.expect_silent(0);
    assert_eq!(ended.stdout, "result");
    run("run", &["--wait", "1s", "held", "--", "true"]).await.expect_line(75, &["is busy"]);
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_authorities_that_cannot_be_used_is_named() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let tls = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key];
    let gateway = Gateway::start(&tls).await;
    for (file, said) in
        [("/nowhere/ca.pem", "cannot read"), ("/", "cannot read"), (key.as_str(), "no certificate")]
    {
        let scene = Scene::at(format!("https://{}", gateway.address));
        let mut command = scene.command(&["k", "--", "true"]);
        command.env("SSL_CERT_FILE", file);
        scene.launch(command).end().await.expect_line(2, &["SSL_CERT_FILE", file, said]);
        let ended = scene.run(&["--ca-file", file, "k", "--", "true"]).await;
        ended.expect_line(2, &["--ca-file", file, said]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authorities_of_the_gateway_are_trusted_by_run_and_not_by_the_command() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let tls = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key];
    let gateway = Gateway::start(&tls).await;
    let scene = Scene::at(format!("https://{}", gateway.address));
    let authority = certificates.authority();
    let args = ["k", "--", "sh", "-c", "echo ${SSL_CERT_FILE-none}"];
    let mut command = scene.command(&[&["--ca-file", authority.as_str()], &args[..]].concat());
    command.env_remove("SSL_CERT_FILE");
    let ended = scene.launch(command).end().await.expect_silent(0);
    assert_eq!(ended.stdout, "none\n");
    // It counts, and not what the command is to trust.
    let mut command = scene.command(&args);
    command.env("FENCEPOST_CA_FILE", &authority).env("SSL_CERT_FILE", "/elsewhere");
    let ended = scene.launch(command).end().await.expect_silent(0);
    assert_eq!(ended.stdout, "/elsewhere\n");
    scene.run(&args).await.expect_line(2, &["does not trust", "--ca-file"]);
    let another = Certificates::new();
    let ended = scene.run(&[&["--ca-file", another.authority().as_str()], &args[..]].concat()).await;
    ended.expect_line(2, &["its certificate", "--ca-file"]);
}

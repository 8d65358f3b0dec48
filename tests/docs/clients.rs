//! Clients in Python, JavaScript and Go, those that back ends copy and those that are generated from the document, at
//! work against real gateways. `make clients` installs what they are made, checked and run with.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::pages::snippet;
use kit::certificates::Certificates;
use kit::proxy::{Fate, Framing, Progress};
use kit::{Client, Gateway, KeysFile, PATIENCE, Proxy, RedisServer, eventually, server_port};

use workshop::Kind;
pub use workshop::{installed, root, tool};

mod page;
mod workshop;

/// Makes a test out of a function that is given the kind of a client, for all of these kinds at once: most of the time
/// they wait.
macro_rules! with_each {
    ($kinds:expr; $($name:ident),+ $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn with_each_client() {
                futures_util::future::join_all($kinds.map(super::$name)).await;
            }
        })+
    };
}

// After the macro, which they use.
mod answers;
mod ends;
mod given;
mod losses;
mod once;
mod settings;

with_each!(
    super::Kind::ALL;
    a_lock_is_taken_renewed_and_released,
    a_type_of_problem_that_a_later_gateway_adds_is_understood,
);
with_each!(super::Kind::CANCELABLE; what_is_canceled_leaves_the_wait_queue);
with_each!(
    [super::Kind::Python, super::Kind::AsyncPython, super::Kind::JavaScript];
    a_renewal_is_for_as_long_as_the_lease_was_taken_for,
);
with_each!(
    super::Kind::EXAMPLES;
    a_slot_is_taken_renewed_and_released_beside_others,
    several_locks_are_taken_at_once_or_none,
    a_lost_answer_is_asked_for_again_by_the_same_token,
    what_stays_unknown_is_called_so_and_left_to_nobody,
    it_waits_in_line_or_comes_away_empty,
    several_locks_are_waited_for_in_longer_requests_than_one,
    a_wait_that_is_longer_than_a_gateway_allows_is_made_shorter,
    a_lease_begins_when_its_wait_is_over,
    a_held_lock_is_renewed_and_its_loss_is_told,
    what_the_work_throws_is_not_hidden_by_the_release,
    what_a_proxy_says_is_asked_again,
    a_second_click_pays_nothing,
    a_gateway_that_refuses_connections_is_told_within_100_ms,
    what_is_raised_has_the_answer_in_it,
    of_two_gateways_one_may_be_dead,
    a_wait_goes_on_at_the_other_gateway_when_one_dies,
    it_speaks_tls_and_shows_its_key,
    a_key_that_is_refused_is_shown_once,
    wrong_settings_are_refused_at_once,
    of_two_gateways_one_may_have_a_wrong_address,
    a_try_ends_in_time_however_slowly_the_pieces_come,
    a_grant_whose_end_stays_unknown_is_released,
);

async fn gateway() -> Gateway {
    Gateway::start(&["--store", "memory:"]).await
}

fn url(gateway: &Gateway) -> String {
    format!("http://{}", gateway.address)
}

/// The statuses of all requests with this method so far, in their order.
fn answered(gateway: &Gateway, method: &str) -> Vec<u64> {
    let lines = gateway.log();
    let values = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    values.filter(|line| line["method"] == method).filter_map(|line| line["status"].as_u64()).collect()
}

async fn a_lock_is_taken_renewed_and_released(kind: Kind) {
    let gateway = gateway().await;
    let look = async || {
        Client::new(gateway.address).get("/lock?key=reports%2F2026%26%C3%A9%3F%25%2B%23").send().await
    };
    let mut client = kind.start(&url(&gateway)).await;
    let number = client.is_granted("acquire reports/2026&é?%+# 30 0").await;
    let held = look().await.expect(200);
    assert_eq!(held.fencing_token(), number);
    assert!((20_000..=30_000).contains(&held.json()["expires_in_ms"].as_u64().unwrap()), "{}", held.json());
    let mut other = kind.start(&url(&gateway)).await;
    assert_eq!(other.does("acquire reports/2026&é?%+# 30 0").await, "busy");
    assert_eq!(client.does("renew 300").await, "renewed");
    assert!(look().await.json()["expires_in_ms"].as_u64().unwrap() > 200_000);
    assert_eq!(client.does("release").await, "released");
    look().await.expect_problem(404, "not-held");
    client.ends().await;
    other.ends().await;
}

/// A shorter one would do nothing while more is left, and the lease would end between two of them.
async fn a_renewal_is_for_as_long_as_the_lease_was_taken_for(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    client.is_granted("acquire k 93 0").await;
    let mut renewal = scene.proxy.expect("ttl=93000ms", Fate::Pass);
    assert_eq!(client.does("renew").await, "renewed");
    renewal.reaches(Progress::Answered).await;
}

async fn a_slot_is_taken_renewed_and_released_beside_others(kind: Kind) {
    let gateway = gateway().await;
    let look = Client::new(gateway.address);
    let [mut first, mut second, mut third] = [
        kind.start(&url(&gateway)).await,
        kind.start(&url(&gateway)).await,
        kind.start(&url(&gateway)).await,
    ];
    let slot = async |client: &mut workshop::Driver, wish: &str| {
        let said = client.does(wish).await;
        said.split(' ').nth(2).map(str::to_owned).unwrap_or(said)
    };
    assert_eq!(slot(&mut first, "share k 30 2").await, "1");
    assert_eq!(slot(&mut second, "share k 30 any").await, "2");
    assert_eq!(third.does("share k 30 9").await, "busy");
    assert_eq!(first.does("renew 300").await, "renewed");
    assert_eq!(first.does("release").await, "released");
    let left = look.get("/locks/k?holders=true").send().await.expect(200).json();
    assert_eq!((&left["held"], &left["holders"][0]["slots"]), (&1.into(), &1000.into()));
    assert_eq!(slot(&mut third, "share k 30 2").await, "1");
}

async fn several_locks_are_taken_at_once_or_none(kind: Kind) {
    let gateway = gateway().await;
    let look = Client::new(gateway.address);
    let held = async |key: &str| look.get(&format!("/locks/{key}")).send().await;
    let mut first = kind.start(&url(&gateway)).await;
    let mut second = kind.start(&url(&gateway)).await;
    let said = first.does("both a&=b c 30 0").await;
    let of_each = [held("a%26%3Db").await, held("c").await].map(|answer| answer.expect(200).fencing_token());
    assert_eq!(said, format!("granted {} {}", of_each[0], of_each[1]));
    assert_eq!(second.does("both d c 30 0").await, "busy");
    held("d").await.expect_problem(404, "not-held");
    assert_eq!(first.does("renew 300").await, "renewed");
    for key in ["a%26%3Db", "c"] {
        assert!(held(key).await.json()["expires_in_ms"].as_u64().unwrap() > 200_000);
    }
    // One that was broken is told, and leaves none of the others behind.
    look.delete("/locks/c?force=true").send().await.expect(204);
    assert_eq!(first.does("renew 300").await, "lost");
    assert_eq!(first.does("release").await, "lost");
    held("a%26%3Db").await.expect_problem(404, "not-held");
    // It waits for both, and learns how long its lease is when the wait is over.
    let token = look.put("/locks/c?ttl=1m").send().await.expect(201).token();
    second.begins("both d c 3 20").await;
    eventually("it waits", async || held("c").await.json()["waiters"] == 1).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    look.delete("/locks/c").token(&token).send().await.expect(204);
    assert!(second.says().await.starts_with("granted "));
    assert_eq!(second.does("renew 30").await, "renewed");
    assert_eq!(second.does("release").await, "released");
    held("d").await.expect_problem(404, "not-held");
}

/// A gateway, and a way to it on which answers get lost.
struct Scene {
    gateway: Gateway,
    proxy: Proxy,
    look: Client,
}

impl Scene {
    async fn start() -> Self {
        let gateway = gateway().await;
        let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
        let look = Client::new(gateway.address);
        Self { gateway, proxy, look }
    }

    async fn client(&self, kind: Kind) -> workshop::Driver {
        kind.start(&self.proxy.url()).await
    }

    fn answered(&self, method: &str) -> Vec<u64> {
        answered(&self.gateway, method)
    }

    async fn is_free(&self) {
        self.look.get("/locks/k").send().await.expect_problem(404, "not-held");
    }
}

async fn a_lost_answer_is_asked_for_again_by_the_same_token(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    for lose in [Fate::CutAfter, Fate::LoseAnswers, Fate::HalfOpen] {
        for method in ["PUT", "PATCH", "DELETE"] {
            scene.proxy.expect(method, lose.clone());
        }
        let before = scene.answered("PUT").len();
        let number = client.is_granted("acquire k 30 0").await;
        assert_eq!(scene.look.get("/locks/k").send().await.expect(200).fencing_token(), number, "{lose:?}");
        assert_eq!(client.does("renew 300").await, "renewed", "{lose:?}");
        assert_eq!(client.does("release").await, "released", "{lose:?}");
        scene.is_free().await;
        // One grant; the client was told of it by a repetition, where the first request came through.
        let puts = || scene.answered("PUT").split_off(before);
        let at_least = if matches!(lose, Fate::HalfOpen) { 1 } else { 2 };
        eventually("the log is written", async || puts().len() >= at_least).await;
        let puts = puts();
        assert!(puts[0] == 201 && puts[1..].iter().all(|&status| status == 200), "{lose:?}: {puts:?}");
    }
}

async fn what_stays_unknown_is_called_so_and_left_to_nobody(kind: Kind) {
    let scene = Scene::start().await;
    let is_put = |message: &[u8]| message.starts_with(b"PUT");
    scene.proxy.set_policy(move |message| if is_put(message) { Fate::CutAfter } else { Fate::Pass });
    let url = scene.proxy.url();
    let mut client = kind.start_in(&[("FENCEPOST_URL", &url), ("RETRY_FOR_S", "3")]).await;
    assert_eq!(client.does("acquire k 300 0").await, "unknown");
    eventually("it has asked again", async || scene.answered("PUT").len() > 1).await;
    scene.is_free().await;
}

async fn it_waits_in_line_or_comes_away_empty(kind: Kind) {
    let scene = Scene::start().await;
    let waiters = async || scene.look.get("/locks/k").send().await.json()["waiters"].as_u64().unwrap();
    let holder = scene.look.put("/locks/k?ttl=5m").send().await.expect(201).token();
    let mut client = scene.client(kind).await;
    assert_eq!(client.does("acquire k 30 0.3").await, "busy");
    // Its place would be kept for those who are behind it to wait for.
    assert_eq!(waiters().await, 0);
    client.begins("acquire k 30 20").await;
    eventually("it waits", async || waiters().await == 1).await;
    scene.look.delete("/locks/k").token(&holder).send().await.expect(204);
    assert!(client.says().await.starts_with("granted "));
    assert_eq!(client.does("release").await, "released");
}

/// At the end of each request others go first.
async fn several_locks_are_waited_for_in_longer_requests_than_one(kind: Kind) {
    let scene = Scene::start().await;
    scene.look.put("/locks/k?ttl=5m").send().await.expect(201);
    for (wish, wait) in [("acquire k 30 60", "wait=5000ms"), ("both j k 30 60", "wait=20000ms")] {
        let mut asked = scene.proxy.expect(wait, Fate::Pass);
        let mut client = scene.client(kind).await;
        client.begins(wish).await;
        asked.reaches(Progress::Seen).await;
    }
}

async fn a_wait_that_is_longer_than_a_gateway_allows_is_made_shorter(kind: Kind) {
    let gateway = Gateway::start(&["--store", "memory:", "--max-wait", "2s"]).await;
    let look = Client::new(gateway.address);
    for wish in ["acquire k 30 20", "both j k 30 20"] {
        let holder = look.put("/locks/k?ttl=5m").send().await.expect(201).token();
        let mut client = kind.start(&url(&gateway)).await;
        client.begins(wish).await;
        let waits = async || look.get("/locks/k").send().await.json()["waiters"] == 1;
        eventually("it waits", waits).await;
        look.delete("/locks/k").token(&holder).send().await.expect(204);
        assert!(client.says().await.starts_with("granted "));
        assert_eq!(client.does("release").await, "released");
    }
}

async fn a_lease_begins_when_its_wait_is_over(kind: Kind) {
    let scene = Scene::start().await;
    let holder = scene.look.put("/locks/k?ttl=5m").send().await.expect(201).token();
    let mut client = kind.start(&url(&scene.gateway)).await;
    client.begins("hold k 3 20").await;
    let look = async || scene.look.get("/locks/k").send().await.json();
    eventually("it waits", async || look().await["waiters"] == 1).await;
    // For longer than the lease that it asks for.
    let waited = Instant::now() + Duration::from_millis(3500);
    eventually("it has waited", async || Instant::now() > waited).await;
    scene.look.delete("/locks/k").token(&holder).send().await.expect(204);
    assert!(client.says().await.starts_with("granted "));
    assert_eq!(client.does("check").await, "held");
    assert_eq!(client.does("leave").await, "released");
}

async fn a_held_lock_is_renewed_and_its_loss_is_told(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    let number = client.is_granted("hold k 4 0").await;
    let held_until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < held_until {
        assert_eq!(client.does("check").await, "held");
        assert_eq!(scene.look.get("/locks/k").send().await.expect(200).fencing_token(), number);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(client.does("leave").await, "released");
    scene.is_free().await;
    // From one moment to the next a gateway answers that knows nothing of the lock.
    client.is_granted("hold k 30 0").await;
    let forgetful = gateway().await;
    scene.proxy.set_target(forgetful.address.port());
    scene.proxy.sever();
    assert_eq!(client.does("lost").await, "lost");
}

async fn what_the_work_throws_is_not_hidden_by_the_release(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    let forgetful = gateway().await;
    // Neither gateway knows of the lock that the other has granted. Work that ends well is told of the loss.
    let ends = [("fail", "failed", &forgetful), ("leave", "lost", &scene.gateway)];
    for (end, said, other) in ends {
        client.is_granted("hold k 300 0").await;
        scene.proxy.set_target(other.address.port());
        scene.proxy.sever();
        scene.look.delete("/locks/k").send().await;
        assert_eq!(client.does(end).await, said);
    }
}

async fn what_a_proxy_says_is_asked_again(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    client.is_granted("hold k 6 0").await;
    // For a while the proxy does not find the gateway, and says so by itself.
    let (lost, mut renewals) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), 0);
    let mut answered = Vec::new();
    scene.proxy.set_target(lost.local_addr().unwrap().port());
    scene.proxy.sever();
    while renewals < 2 {
        let (mut connection, _) = tokio::time::timeout(PATIENCE, lost.accept()).await.unwrap().unwrap();
        let mut request = [0; 4096];
        let length = connection.read(&mut request).await.unwrap();
        renewals += usize::from(request[..length].starts_with(b"PATCH"));
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\nconnection: close\r\n\r\nnot here\n";
        connection.write_all(answer).await.unwrap();
        // The client closes it, once it has read the answer.
        answered.push(connection);
    }
    scene.proxy.set_target(scene.gateway.address.port());
    drop(lost);
    eventually("it is renewed", async || scene.answered("PATCH").contains(&200)).await;
    assert_eq!(client.does("check").await, "held");
    assert_eq!(client.does("leave").await, "released");
}

async fn a_second_click_pays_nothing(kind: Kind) {
    let gateway = gateway().await;
    let clicks = (0..4).map(async |_| kind.start(&url(&gateway)).await.does("acquire pay:4711 60 0").await);
    let mut said = futures_util::future::join_all(clicks).await;
    said.sort();
    assert!(said[3].starts_with("granted ") && said[..3] == ["busy", "busy", "busy"], "{said:?}");
    // Who did not wait has nothing to give up: one request is all.
    assert!(answered(&gateway, "DELETE").is_empty());
}

async fn a_gateway_that_refuses_connections_is_told_within_100_ms(kind: Kind) {
    let [one, other] = [server_port(), server_port()].map(|port| format!("http://127.0.0.1:{port}"));
    let (mut client, mut quickest) = (kind.start(&format!("{one},{other}")).await, PATIENCE);
    // On a busy machine one try may be late, but not each of them.
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!(client.does("acquire k 300 20").await, "unavailable");
        quickest = quickest.min(begun.elapsed());
    }
    assert!(quickest < Duration::from_millis(100), "{quickest:?}");
}

async fn what_is_raised_has_the_answer_in_it(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    scene.look.put("/locks/k?ttl=5m&owner=the+other").send().await.expect(201);
    let why = async |client: &mut workshop::Driver| -> Value {
        serde_json::from_str(&client.does("why").await).unwrap()
    };
    assert_eq!(client.does("acquire k 300 0").await, "busy");
    let busy = why(&mut client).await;
    let (detail, holder) = (busy[2].as_str().unwrap(), &busy[3]);
    assert_eq!((&busy[0], &busy[1]), (&423.into(), &"/problems/lock-held".into()), "{busy}");
    assert!(detail.contains("the other") && busy[5].as_str().unwrap().contains(detail), "{busy}");
    assert!((200_000..=300_000).contains(&holder["expires_in_ms"].as_u64().unwrap()), "{busy}");
    assert!(holder["owner"] == "the other" && holder["expires_at"].is_string(), "{busy}");
    assert!((1.0..=5.0).contains(&busy[4].as_f64().unwrap()), "{busy}");
    assert_eq!(client.does("acquire k 0.001 0").await, "refused");
    let refused = why(&mut client).await;
    assert_eq!((&refused[0], &refused[1]), (&400.into(), &"/problems/bad-parameter".into()), "{refused}");
    assert!(refused[5].as_str().unwrap().contains(refused[2].as_str().unwrap()), "{refused}");
}

/// Two gateways on one Redis, which lives as long as they do.
async fn two_gateways() -> (RedisServer, Gateway, Gateway) {
    let redis = RedisServer::start().await;
    let (one, other) = tokio::join!(Gateway::on_redis(&redis, &[]), Gateway::on_redis(&redis, &[]));
    (redis, one, other)
}

async fn of_two_gateways_one_may_be_dead(kind: Kind) {
    let (_redis, mut dead, alive) = two_gateways().await;
    let mut client = kind.start(&format!("{}, {}/", url(&dead), url(&alive))).await;
    let number = client.is_granted("acquire k 300 0").await;
    let look = Client::new(alive.address);
    dead.kill();
    assert_eq!(look.get("/locks/k").send().await.expect(200).fencing_token(), number);
    assert_eq!(client.does("renew 600").await, "renewed");
    assert_eq!(client.does("release").await, "released");
    client.is_granted("acquire k 300 20").await;
    assert_eq!(client.does("release").await, "released");
    look.get("/locks/k").send().await.expect_problem(404, "not-held");
}

async fn a_wait_goes_on_at_the_other_gateway_when_one_dies(kind: Kind) {
    let (_redis, mut dies, stays) = two_gateways().await;
    let look = Client::new(stays.address);
    let waiters = async || look.get("/locks/k").send().await.json()["waiters"].as_u64().unwrap();
    let holder = look.put("/locks/k?ttl=5m").send().await.expect(201).token();
    let mut client = kind.start(&format!("{},{}", url(&dies), url(&stays))).await;
    client.begins("acquire k 30 19").await;
    eventually("it waits", async || waiters().await == 1).await;
    let behind = Client::new(stays.address);
    let behind = tokio::spawn(async move { behind.put("/locks/k?ttl=1m&wait=30s").send().await });
    eventually("another waits behind it", async || waiters().await == 2).await;
    dies.kill();
    look.delete("/locks/k").token(&holder).send().await.expect(204);
    let said = client.says().await;
    let number: u64 = said.strip_prefix("granted ").expect(&said).parse().unwrap();
    let lock = look.get("/locks/k").send().await;
    assert_eq!((lock.fencing_token(), lock.json()["waiters"].as_u64()), (number, Some(1)));
    assert_eq!(client.does("release").await, "released");
    assert!(behind.await.unwrap().expect(201).fencing_token() > number);
}

async fn what_is_canceled_leaves_the_wait_queue(kind: Kind) {
    let scene = Scene::start().await;
    let waiters = async || scene.look.get("/locks/k").send().await.json()["waiters"].as_u64().unwrap();
    let holder = scene.look.put("/locks/k?ttl=5m").send().await.expect(201).token();
    let mut client = kind.start(&url(&scene.gateway)).await;
    client.begins("cancel k 300 90").await;
    eventually("it waits", async || waiters().await == 1).await;
    assert_eq!(client.does("now").await, "canceled");
    eventually("it has left", async || waiters().await == 0).await;
    scene.look.delete("/locks/k").token(&holder).send().await.expect(204);
    scene.is_free().await;
}

/// A gateway with TLS and keys, and a key that may take locks.
async fn guarded_gateway() -> (Gateway, Certificates, KeysFile, String) {
    let (certificates, mut keys) = (Certificates::new(), KeysFile::new());
    let key = keys.add_for_all("back end", "\"acquire\"");
    keys.write();
    let (certificate, private, [keys_flag, file]) =
        (certificates.certificate(), certificates.key(), keys.flag());
    let tls = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &private, &keys_flag, &file];
    (Gateway::start(&tls).await, certificates, keys, key)
}

async fn it_speaks_tls_and_shows_its_key(kind: Kind) {
    let (gateway, certificates, _keys, key) = guarded_gateway().await;
    let (file, url) = (certificates.path("key"), format!("https://{}", gateway.address));
    std::fs::write(&file, format!("{key}\n")).unwrap();
    let authority = certificates.authority();
    let key_file = ("FENCEPOST_API_KEY_FILE", file.as_str());
    let trusting = [("FENCEPOST_URL", url.as_str()), key_file, ("SSL_CERT_FILE", &authority)];
    let mut client = kind.start_in(&trusting).await;
    client.is_granted("acquire k 300 0").await;
    assert_eq!(client.does("renew 600").await, "renewed");
    assert_eq!(client.does("release").await, "released");
    // Without the authority, the certificate is not trusted, and the key is not shown.
    let mut doubting = kind.start_in(&trusting[..2]).await;
    is_refused_at_once(&mut doubting, "certificate").await;
}

async fn is_refused_at_once(client: &mut workshop::Driver, why: &str) {
    let begun = Instant::now();
    assert_eq!(client.does("acquire k 300 20").await, "refused");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let told: Value = serde_json::from_str(&client.does("why").await).unwrap();
    assert!(told[5].as_str().unwrap().contains(why), "{told}");
}

async fn wrong_settings_are_refused_at_once(kind: Kind) {
    let (guarded, certificates, _keys, _) = guarded_gateway().await;
    let mut plain = kind.start(&url(&guarded)).await;
    is_refused_at_once(&mut plain, "This server speaks TLS only").await;
    let open = gateway().await;
    let (secure, authority) = (format!("https://{}", open.address), certificates.authority());
    let settings = [("FENCEPOST_URL", secure.as_str()), ("SSL_CERT_FILE", &authority)];
    is_refused_at_once(&mut kind.start_in(&settings).await, &secure).await;
    for no_address in ["", "localhost:8080", "localhost", "http://", "http://a:b", "http://a,b", "ftp://a"] {
        assert_eq!(kind.start(no_address).await.says().await, "refused", "{no_address}");
    }
}

async fn of_two_gateways_one_may_have_a_wrong_address(kind: Kind) {
    let ((guarded, ..), open) = tokio::join!(guarded_gateway(), gateway());
    for wrong in [url(&guarded), format!("https://{}", guarded.address)] {
        let mut client = kind.start(&format!("{wrong},{}", url(&open))).await;
        client.is_granted("acquire k 300 0").await;
        assert_eq!(client.does("release").await, "released");
    }
}

async fn a_try_ends_in_time_however_slowly_the_pieces_come(kind: Kind) {
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = slow.local_addr().unwrap();
    let dripping = tokio::spawn(async move {
        loop {
            let (mut connection, _) = slow.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request).await;
                let head = b"HTTP/1.1 200 OK\r\nx: ".iter().chain(std::iter::repeat(&b'x'));
                for byte in head {
                    if connection.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            });
        }
    });
    // A try is given 1 s. After what stays unknown, one more try leaves nothing behind.
    let url = format!("http://{address}");
    let mut client = kind.start_in(&[("FENCEPOST_URL", &url), ("RETRY_FOR_S", "1")]).await;
    let begun = Instant::now();
    assert_eq!(client.does("acquire k 300 0").await, "unknown");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    dripping.abort();
    // A handshake that goes nowhere: certainly nothing happened.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = kind.start(&format!("https://{}", silent.local_addr().unwrap())).await;
    let begun = Instant::now();
    assert_eq!(client.does("acquire k 300 0").await, "unavailable");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

async fn a_key_that_is_refused_is_shown_once(kind: Kind) {
    let (gateway, certificates, _keys, _) = guarded_gateway().await;
    let (url, authority) = (format!("https://{}", gateway.address), certificates.authority());
    let wrong = format!("fp_{}_{}", "a".repeat(12), "b".repeat(32));
    let settings =
        [("FENCEPOST_URL", url.as_str()), ("FENCEPOST_API_KEY", &wrong), ("SSL_CERT_FILE", &authority)];
    let mut client = kind.start_in(&settings).await;
    assert_eq!(client.does("acquire k 300 20").await, "refused");
    eventually("it is logged", async || answered(&gateway, "PUT") == [401]).await;
    assert!(answered(&gateway, "DELETE").is_empty());
}

async fn a_grant_whose_end_stays_unknown_is_released(kind: Kind) {
    let gateway = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", gateway.local_addr().unwrap());
    let mut client = kind.start_in(&[("FENCEPOST_URL", &url), ("RETRY_FOR_S", "1")]).await;
    client.begins("acquire k 3 5").await;
    // The first answer comes so late that it does not say when the lease ends.
    let grant = answers::GRANT.replace("300000", "3000");
    let problem = r#"{"type":"/problems/store-unavailable","title":"t","status":503,"detail":"no store"}"#;
    let (mut status, mut body, mut late) = ("201 Created", &*grant, Duration::from_millis(1500));
    loop {
        let (mut connection, _) = tokio::time::timeout(PATIENCE, gateway.accept()).await.unwrap().unwrap();
        let mut request = [0; 4096];
        let length = connection.read(&mut request).await.unwrap();
        if request[..length].starts_with(b"DELETE") {
            let released = answers::answer(answers::RELEASED, "");
            connection.write_all(released.as_bytes()).await.unwrap();
            break;
        }
        tokio::time::sleep(late).await;
        let said =
            answers::said_to(&String::from_utf8_lossy(&request[..length]), &answers::answer(status, body));
        connection.write_all(said.as_bytes()).await.unwrap();
        (status, body, late) = ("503 Service Unavailable", problem, Duration::ZERO);
    }
    assert_eq!(client.says().await, "unknown");
}

async fn a_type_of_problem_that_a_later_gateway_adds_is_understood(kind: Kind) {
    let gateway = gateway().await;
    Client::new(gateway.address).put("/locks/k?ttl=5m").send().await.expect(201);
    let later = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = kind.start(&format!("http://{}", later.local_addr().unwrap())).await;
    let changing = tokio::spawn(async move {
        loop {
            let (client, _) = later.accept().await.unwrap();
            let server = TcpStream::connect(gateway.address).await.unwrap();
            tokio::spawn(change_problems(client, server));
        }
    });
    assert_eq!(client.does("acquire k 30 0").await, "busy");
    changing.abort();
}

/// Passes everything on, and makes each refusal one of a type that no client knows.
async fn change_problems(client: TcpStream, server: TcpStream) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let answers = async {
        let mut answer = vec![0; 65_536];
        while let Ok(length @ 1..) = from_server.read(&mut answer).await {
            let known = String::from_utf8_lossy(&answer[..length]);
            let changed = known.replace("/problems/lock-held", "/problems/new-thing");
            to_client.write_all(changed.as_bytes()).await.unwrap();
        }
    };
    let _ = tokio::join!(requests, answers);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_of_the_readme_works_as_pasted() {
    let code = snippet("js", "await new Fencepost(url).hold(");
    let place = tempfile::tempdir().unwrap();
    std::fs::copy(root().join("examples/clients/fencepost.mjs"), place.path().join("fencepost.mjs")).unwrap();
    let before = "import { Fencepost } from './fencepost.mjs';\n\
        const url = process.env.FENCEPOST_URL, pages = 'ab', write = async (...words) => console.log(...words);\n";
    std::fs::write(place.path().join("report.mjs"), format!("{before}{code}")).unwrap();
    let gateway = gateway().await;
    let mut command = tokio::process::Command::new("node");
    let said =
        workshop::run(command.arg(place.path().join("report.mjs")).env("FENCEPOST_URL", url(&gateway))).await;
    let words: Vec<_> = said.split_whitespace().collect();
    assert!(matches!(words[..], ["a", one, "b", two] if one == two && one.parse::<u64>().is_ok()), "{said}");
    Client::new(gateway.address).get("/locks/report").send().await.expect_problem(404, "not-held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snippet_in_the_pages_works_as_pasted() {
    let snippet = snippet("python", "with Fencepost(url).hold(");
    let before = "import os\nfrom fencepost import Fencepost, Lost\n\
        url, pages, write = os.environ['FENCEPOST_URL'], 'ab', print\n";
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), format!("{before}{snippet}")).unwrap();
    let gateway = gateway().await;
    let mut command = workshop::bare_python(script.path().to_str().unwrap());
    let said = workshop::run(command.env("FENCEPOST_URL", url(&gateway))).await;
    let words: Vec<_> = said.split_whitespace().collect();
    assert!(matches!(words[..], ["a", one, "b", two] if one == two && one.parse::<u64>().is_ok()), "{said}");
    Client::new(gateway.address).get("/locks/report").send().await.expect_problem(404, "not-held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_are_short_typed_and_need_nothing() {
    let clients = [
        include_str!("../../examples/clients/fencepost.py"),
        include_str!("../../examples/clients/fencepost_async.py"),
        include_str!("../../examples/clients/fencepost.mjs"),
        include_str!("../../examples/clients/fencepost.go"),
        include_str!("../../examples/clients/fencepost_once.go"),
    ];
    for (client, most) in clients.into_iter().zip([367, 138, 370, 609, 144]) {
        let is_narrow = client.lines().all(|line| line.chars().count() <= 120);
        assert!(client.lines().count() <= most && is_narrow, "{} lines", client.lines().count());
    }
    let mut imports = clients[2].lines().filter(|line| line.starts_with("import "));
    assert!(imports.all(|line| line.contains(" from \"node:")));
    // TypeScript and Go are checked when the drivers are made of them.
    workshop::check_python().await;
}

#[test]
fn the_lists_of_versions_name_no_host() {
    for list in [
        include_str!("../clients/package-lock.json"),
        include_str!("../clients/requirements.txt"),
        include_str!("../clients/package.json"),
    ] {
        assert!(!list.contains("://") && !list.contains("\"resolved\""));
    }
}

//! What clients make of answers that no gateway gives, and of gateways that answer differently.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::workshop::Kind;
use super::{Scene, answered, gateway, url};
use kit::proxy::Fate;
use kit::{Client, eventually};

with_each!(
    super::Kind::EXAMPLES;
    what_is_no_whole_grant_is_no_lock,
    a_renewal_needs_a_whole_grant_and_a_release_a_204,
    an_empty_204_without_a_request_id_is_no_answer,
    of_several_locks_an_answer_must_name_each,
    what_is_granted_when_its_lease_is_over_is_given_back,
    a_wait_goes_on_when_another_has_the_lock_after_a_grant_that_came_too_late,
    a_pause_that_is_no_number_is_none,
    a_refusal_leaves_no_lock_at_a_gateway_in_doubt,
    a_password_and_a_wrong_key_are_refused_and_told_to_nobody,
    a_short_lease_outlives_a_gateway_that_hangs,
);

/// A [`Pretender`] says the token of the request in the place of this one.
pub const GRANT: &str =
    r#"{"key":"k","token":"t","fencing_token":1,"ttl_ms":300000,"expires_at":"2030-01-01T00:00:00Z"}"#;
/// What a gateway answers to a release. Each of its answers has an id.
pub const RELEASED: &str = "204 No Content\r\nx-request-id: r";
const NOT_GRANTS: [&str; 11] = [
    "",
    "<html>hi</html>",
    "[]",
    "null",
    r#"{"ok":true}"#,
    r#"{"fencing_token":0,"ttl_ms":300000}"#,
    r#"{"fencing_token":"1","ttl_ms":300000}"#,
    r#"{"fencing_token":1}"#,
    // A proxy that is behind by one answer says what was said to another request.
    r#"{"key":"k","token":"of another client","fencing_token":1,"ttl_ms":300000}"#,
    r#"{"key":"another","token":"t","fencing_token":1,"ttl_ms":300000}"#,
    r#"{"key":"k","fencing_token":1,"ttl_ms":300000}"#,
];

/// It ends with its connection.
pub fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n{body}")
}

/// What is said, with the token of this request in the place of `t`, in the body or in a header.
pub fn said_to(request: &str, said: &str) -> String {
    let mut lines = request.lines().map(str::to_lowercase);
    let token = lines.find_map(|line| line.strip_prefix("lease-token: ").map(str::to_owned));
    let token = token.unwrap_or_default();
    said.replace(r#""token":"t""#, &format!(r#""token":"{token}""#))
        .replace("lease-token: t\r", &format!("lease-token: {token}\r"))
}

/// What answers as it likes, until this is dropped.
pub struct Pretender {
    pub url: String,
    heard: Arc<Mutex<Vec<String>>>,
    _answering: JoinSet<()>,
}

impl Pretender {
    /// It says what `answer` makes of the method.
    pub async fn start(answer: impl Fn(&str) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (heard, mut answering) = (Arc::<Mutex<Vec<String>>>::default(), JoinSet::new());
        let hears = heard.clone();
        answering.spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let length = connection.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..length]);
                let method = text.split(' ').next().unwrap().to_owned();
                let said = said_to(&text, &answer(&method));
                let _ = connection.write_all(said.as_bytes()).await;
                hears.lock().unwrap().push(method);
            }
        });
        Self { url, heard, _answering: answering }
    }

    pub fn has_heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// Each of what is no grant, and the URLs.
async fn pretenders() -> (Vec<Pretender>, String) {
    let mut all = vec![
        Pretender::start(|method| match method {
            "DELETE" => answer("200 OK", GRANT),
            _ => answer("204 No Content", ""),
        })
        .await,
    ];
    for body in NOT_GRANTS {
        all.push(Pretender::start(|_| answer("200 OK", body)).await);
    }
    let urls: Vec<_> = all.iter().map(|pretender| pretender.url.as_str()).collect();
    let urls = urls.join(",");
    (all, urls)
}

async fn what_is_no_whole_grant_is_no_lock(kind: Kind) {
    let (gateway, (pretenders, urls)) = tokio::join!(gateway(), pretenders());
    let mut client = kind.start(&format!("{urls},{}", url(&gateway))).await;
    let number = client.is_granted("acquire k 300 0").await;
    let lock = Client::new(gateway.address).get("/locks/k").send().await;
    assert_eq!(lock.expect(200).fencing_token(), number);
    // On a busy machine one may be asked twice, as its answer came too late.
    let is_asked = |pretender: &Pretender| pretender.has_heard().first().is_some_and(|heard| heard == "PUT");
    assert!(pretenders.iter().all(is_asked));
    // With no other to ask, nobody knows.
    let mut client = kind.start_in(&[("FENCEPOST_URL", &urls), ("RETRY_FOR_S", "1")]).await;
    assert_eq!(client.does("acquire k 300 0").await, "unknown");
}

async fn a_renewal_needs_a_whole_grant_and_a_release_a_204(kind: Kind) {
    let (gateway, (pretenders, urls)) = tokio::join!(gateway(), pretenders());
    for (method, call) in [("PATCH", "renew 300"), ("DELETE", "release")] {
        let granting = |method: &str| answer("200 OK", if method == "PUT" { GRANT } else { "" });
        let first = Pretender::start(granting).await;
        let mut client = kind.start(&format!("{},{urls},{}", first.url, url(&gateway))).await;
        assert_eq!(client.is_granted("acquire k 300 0").await, 1);
        // Only the gateway's word counts, which knows nothing of the lock.
        assert_eq!(client.does(call).await, "lost");
        assert_eq!(first.has_heard()[..2], ["PUT", method]);
    }
    let asked =
        |method| pretenders.iter().all(|pretender| pretender.has_heard().iter().any(|heard| heard == method));
    assert!(asked("PATCH") && asked("DELETE"));
}

/// It is that of a network that wants people to sign in, or of a web server without settings.
async fn an_empty_204_without_a_request_id_is_no_answer(kind: Kind) {
    let scene = Scene::start().await;
    let stranger = Pretender::start(|_| answer("204 No Content", "")).await;
    let mut client = kind.start(&format!("{},{}", scene.proxy.url(), stranger.url)).await;
    client.is_granted("acquire k 300 0").await;
    scene.proxy.expect("DELETE", Fate::CutBefore);
    assert_eq!(client.does("release").await, "released");
    scene.is_free().await;
    assert!(client.does("once k 300 0 f").await.starts_with("works 0 "));
    scene.proxy.expect("DELETE", Fate::CutBefore);
    assert_eq!(client.does("nothing").await, "nothingdone");
    scene.look.get("/once/k").send().await.expect_problem(404, "not-begun");
    // Also on a busy machine, where one may be asked once more.
    let asked = || stranger.has_heard().iter().filter(|heard| *heard == "DELETE").count();
    eventually("it was asked", async || asked() >= 2).await;
    // With no other to ask, nobody knows.
    let alone = Pretender::start(|method| match method {
        "PUT" => answer("201 Created", GRANT),
        _ => answer("204 No Content", ""),
    });
    let alone = alone.await;
    let mut client = kind.start_in(&[("FENCEPOST_URL", &alone.url), ("RETRY_FOR_S", "1")]).await;
    client.is_granted("acquire k 300 0").await;
    assert_eq!(client.does("release").await, "unknown");
}

async fn of_several_locks_an_answer_must_name_each(kind: Kind) {
    let two = r#"{"token":"t","locks":[{"key":"j","fencing_token":1},{"key":"k","fencing_token":2}],"ttl_ms":300000}"#;
    for (wrong, right) in [(r#""j""#, r#""i""#), (r#""t""#, r#""of another client""#), ("", "")] {
        let said = if wrong.is_empty() { two.to_owned() } else { two.replace(wrong, right) };
        let gateway = Pretender::start(move |method| match method {
            "DELETE" => answer(RELEASED, ""),
            _ => answer("201 Created", &said),
        });
        let gateway = gateway.await;
        let mut client = kind.start_in(&[("FENCEPOST_URL", &gateway.url), ("RETRY_FOR_S", "1")]).await;
        let expected = if wrong.is_empty() { "granted 1 2" } else { "unknown" };
        assert_eq!(client.does("both j k 300 0").await, expected, "{wrong}");
    }
}

/// The first answer is late, so the client asks again how long its lease is. The second one is later than that.
async fn what_is_granted_when_its_lease_is_over_is_given_back(kind: Kind) {
    let grant = GRANT.replace("300000", "1000").replace('}', r#","earlier":0}"#);
    for wish in ["acquire k 1 0", "hold k 1 0", "once k 1 0 f"] {
        let (grant, puts) = (grant.clone(), AtomicUsize::new(0));
        let slow = Pretender::start(move |method| {
            if method == "DELETE" {
                return answer(RELEASED, "");
            }
            let late_ms = if puts.fetch_add(1, Ordering::SeqCst) == 0 { 500 } else { 1_100 };
            std::thread::sleep(Duration::from_millis(late_ms));
            answer("201 Created", &grant)
        });
        let slow = slow.await;
        let mut client = kind.start_in(&[("FENCEPOST_URL", &slow.url), ("TRY_FOR_S", "9")]).await;
        assert_eq!(client.does(wish).await, "unavailable", "{wish}");
        // It is noted after it is answered.
        eventually("it is given back", async || slow.has_heard() == ["PUT", "PUT", "DELETE"]).await;
    }
}

/// Python takes this character for a digit, and can make no number of it.
async fn a_pause_that_is_no_number_is_none(kind: Kind) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut answering = JoinSet::new();
    answering.spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let _ = connection.read(&mut [0; 4096]).await;
            let busy = b"HTTP/1.1 503 Busy\r\nretry-after: \xb2\r\nconnection: close\r\n\r\n";
            let _ = connection.write_all(busy).await;
        }
    });
    let mut client = kind.start_in(&[("FENCEPOST_URL", &url), ("RETRY_FOR_S", "1")]).await;
    assert_eq!(client.does("acquire k 300 0").await, "unknown");
}

/// As after the client stood still.
async fn a_wait_goes_on_when_another_has_the_lock_after_a_grant_that_came_too_late(kind: Kind) {
    let held = r#"{"type":"/problems/lock-held","title":"t","status":423,"detail":"another has it"}"#;
    let puts = Arc::new(AtomicUsize::new(0));
    let counts = puts.clone();
    let gateway = Pretender::start(move |method| match method {
        "PUT" => match counts.fetch_add(1, Ordering::SeqCst) {
            0 => {
                tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(1_500)));
                answer("201 Created", &GRANT.replace("300000", "1000"))
            }
            1 => answer("423 Locked", held),
            _ => answer("201 Created", GRANT),
        },
        _ => answer(RELEASED, ""),
    });
    let gateway = gateway.await;
    let mut client = kind.start(&gateway.url).await;
    assert_eq!(client.is_granted("acquire k 1 60").await, 1);
    assert_eq!((puts.load(Ordering::SeqCst), client.does("check").await.as_str()), (3, "held"));
}

async fn a_refusal_leaves_no_lock_at_a_gateway_in_doubt(kind: Kind) {
    let scene = Scene::start().await;
    scene.proxy.expect("PUT", Fate::CutAfter);
    let refusal = r#"{"type":"/problems/unauthorized","title":"t","status":401,"detail":"no key"}"#;
    let refusing = Pretender::start(|_| answer("401 Unauthorized", refusal)).await;
    let urls = format!("{},{}", scene.proxy.url(), refusing.url);
    let mut client = kind.start(&urls).await;
    assert_eq!(client.does("acquire k 300 0").await, "refused");
    // Its line may be read after the client has said so: nothing waits for it.
    eventually("it is logged", async || scene.answered("PUT") == [201]).await;
    scene.is_free().await;
    assert_eq!(refusing.has_heard(), ["PUT"]);
}

async fn a_password_and_a_wrong_key_are_refused_and_told_to_nobody(kind: Kind) {
    let url = "http://127.0.0.1:1";
    for (url, key) in [
        ("http://u:SEKRET@127.0.0.1:1", ""),
        ("http://SEKRET@127.0.0.1:1", ""),
        ("http://u:SEK,SEKRET@127.0.0.1:1", ""),
        ("http://u:SEKRET/@127.0.0.1:1", ""),
        (url, "fp_SEKRET\nX-More: SEKRET"),
        (url, "fp_SEKRET\u{e9}"),
    ] {
        let mut client = kind.start_in(&[("FENCEPOST_URL", url), ("FENCEPOST_API_KEY", key)]).await;
        assert_eq!(client.says().await, "refused", "{url} {key}");
        let why = client.says().await;
        assert!(!why.contains("SEK") && why.len() > 20, "{why}");
    }
}

async fn a_short_lease_outlives_a_gateway_that_hangs(kind: Kind) {
    let scene = Scene::start().await;
    let urls = format!("{},{}", scene.proxy.url(), url(&scene.gateway));
    let mut client = kind.start_in(&[("FENCEPOST_URL", &urls), ("TRY_FOR_S", "6")]).await;
    client.is_granted("hold k 6 0").await;
    let is_past = Instant::now() + Duration::from_secs(7);
    scene.proxy.set_policy(|_| Fate::HalfOpen);
    eventually("the other gateway renews it", async || answered(&scene.gateway, "PATCH").contains(&200))
        .await;
    eventually("the first lease is past", async || Instant::now() > is_past).await;
    assert_eq!(client.does("check").await, "held");
    assert_eq!(client.does("leave").await, "released");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_work_in_go_leaves_no_lock() {
    let scene = Scene::start().await;
    let mut client = Kind::Go.start(&url(&scene.gateway)).await;
    for end in ["panic", "exit"] {
        client.is_granted("hold k 300 0").await;
        assert_eq!(client.does(end).await, "failed");
        scene.is_free().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_in_go_that_ends_by_its_context_is_told_of_the_loss() {
    let scene = Scene::start().await;
    let mut client = scene.client(Kind::Go).await;
    client.is_granted("hold k 3 0").await;
    scene.proxy.set_policy(|_| Fate::LoseAnswers);
    assert_eq!(client.does("ended").await, "lost");
    assert!(client.does("why").await.contains("what work may return"));
}

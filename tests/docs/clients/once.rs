//! Pieces of work that clients do once: two at the same time, workers that are killed, and answers that get lost.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::answers::{Pretender, RELEASED, answer};
use super::workshop::{Driver, Kind};
use super::{Scene, url};
use kit::eventually;
use kit::proxy::{Fate, Gate, Progress};

with_each!(
    super::Kind::EXAMPLES;
    of_two_at_once_one_works_and_both_get_its_result,
    the_next_after_a_killed_worker_is_told_of_it,
    a_lost_answer_does_no_work_twice,
    work_that_fails_is_given_up_and_counted_unless_nothing_was_done,
    what_did_nothing_inside_of_work_does_not_speak_for_the_work_around_it,
    long_work_is_renewed_and_late_work_is_stored,
    a_superseded_worker_is_told_by_whom,
    the_result_of_a_broken_record_is_stored_all_the_same,
    what_someone_may_have_done_is_left_alone_if_you_say_so,
    a_place_whose_lease_ends_before_its_work_begins_is_left_to_others,
    a_place_whose_lease_ends_before_its_second_answer_is_left_to_others,
    a_client_does_not_wait_for_a_place_of_its_own,
    another_request_of_the_same_key_is_refused,
    a_result_that_is_too_large_gives_the_place_up,
    a_type_and_a_status_that_no_request_can_carry_keep_no_result_from_being_stored,
    a_result_that_was_broken_off_or_is_of_another_request_is_none,
    a_result_whose_head_was_broken_off_is_none,
);
with_each!(
    [super::Kind::Python, super::Kind::AsyncPython, super::Kind::JavaScript];
    what_is_no_result_gives_the_place_up,
);

/// A gateway, or a proxy of it, always answers this. The client asks for work.
async fn is_said_after(kind: Kind, answer: String) -> String {
    let gateway = Pretender::start(move |_| answer.clone()).await;
    let mut client = kind.start_in(&[("FENCEPOST_URL", &gateway.url), ("RETRY_FOR_S", "1")]).await;
    client.does("once k 30 0 f").await
}

/// A proxy has taken the length away, and the answer ends with the connection. Or the proxy is behind by one answer.
async fn a_result_that_was_broken_off_or_is_of_another_request_is_none(kind: Kind) {
    let (ours, whole) = ("lease-token: t\r\n", "once-bytes: 4\r\n");
    for (headers, said) in [
        (format!("{ours}{whole}"), "replayed paid None None 7"),
        (format!("{ours}once-bytes: 9\r\n"), "unknown"),
        (ours.to_owned(), "unknown"),
        (whole.to_owned(), "unknown"),
        (format!("lease-token: of-another-client\r\n{whole}"), "unknown"),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\nonce: replayed\r\nfencing-token: 7\r\n{headers}");
        let answer = format!("{head}connection: close\r\n\r\npaid");
        assert_eq!(is_said_after(kind, answer).await, said, "{headers}");
    }
}

/// The connection ends in the head of an empty result: whatever was to follow, there is no body that would be too short.
async fn a_result_whose_head_was_broken_off_is_none(kind: Kind) {
    let head = "HTTP/1.1 200 OK\r\nonce: replayed\r\nfencing-token: 7\r\nlease-token: t\r\nonce-bytes: 0\r\n\
        content-length: 0\r\nonce-status: 204\r\n";
    assert_eq!(is_said_after(kind, format!("{head}\r\n")).await, "replayed  204 None 7");
    for cut in [head, head.strip_suffix("4\r\n").unwrap(), head.strip_suffix("once-status: 204\r\n").unwrap()]
    {
        assert_eq!(is_said_after(kind, cut.to_owned()).await, "unknown", "{cut}");
    }
}

/// The number in `works 0 17`, and the worker's `earlier`.
async fn works(client: &mut Driver, what: &str) -> (u64, u64) {
    client.begins(what).await;
    let said = client.says().await;
    let words: Vec<_> = said.split(' ').collect();
    let ["works", earlier, number] = words[..] else { panic!("{what}: {said}") };
    (earlier.parse().unwrap(), number.parse().unwrap())
}

/// The work ends in this, of which the client says that, and the next one finds that somebody may have done it.
async fn gives_the_place_up(client: &mut Driver, end: &str, said: &str) {
    works(client, "once k 300 0 f").await;
    assert_eq!(client.does(end).await, said);
    assert_eq!(works(client, "once k 300 0 f").await.0, 1);
}

impl Scene {
    async fn record(&self) -> Value {
        self.look.get("/once/k").send().await.json()
    }

    async fn breaks(&self) {
        self.look.delete("/once/k?force=true").send().await.expect(204);
    }
}

async fn of_two_at_once_one_works_and_both_get_its_result(kind: Kind) {
    let scene = Scene::start().await;
    let mut clients = [kind.start(&url(&scene.gateway)).await, kind.start(&url(&scene.gateway)).await];
    let [first, second] = &mut clients;
    let (earlier, number) = works(first, "once k 30 20 f").await;
    assert_eq!(earlier, 0);
    // It waits for at most 5 s at once, and here for longer.
    second.begins("once k 30 20 f").await;
    let mut third = kind.start(&url(&scene.gateway)).await;
    assert_eq!(third.does("once k 30 0 f").await, "busy");
    let result = format!("paid 201 application/json {number}");
    assert_eq!(first.does("paid").await, format!("made {result}"));
    assert_eq!(second.says().await, format!("replayed {result}"));
    assert_eq!(third.does("once k 30 0 f").await, format!("replayed {result}"));
    assert_eq!(scene.record().await["owner"], "drive");
    assert_eq!(works(first, "once empty 30 0 f").await.0, 0);
    assert!(first.does("empty").await.starts_with("made  204 None "));
    assert!(second.does("once empty 30 0 f").await.starts_with("replayed  204 None "));
}

async fn the_next_after_a_killed_worker_is_told_of_it(kind: Kind) {
    let scene = Scene::start().await;
    let mut first = kind.start(&url(&scene.gateway)).await;
    let (_, number) = works(&mut first, "once k 3 0 f").await;
    drop(first);
    let mut second = kind.start(&url(&scene.gateway)).await;
    let (earlier, greater) = works(&mut second, "once k 30 20 f").await;
    assert!(earlier == 1 && greater > number, "{earlier}, {greater} after {number}");
    assert!(second.does("paid").await.starts_with("made paid "));
}

async fn a_lost_answer_does_no_work_twice(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    for (round, lose) in
        [Fate::CutAfter, Fate::LoseAnswers, Fate::HalfOpen, Fate::CutBefore].iter().enumerate()
    {
        for method in ["PUT", "PATCH", "POST"] {
            scene.proxy.expect(method, lose.clone());
        }
        let what = format!("once k{round} 6 0 f");
        let (earlier, number) = works(&mut client, &what).await;
        assert_eq!(earlier, 0, "{lose:?}");
        let renewed = scene.answered("PATCH").len();
        eventually("it is renewed", async || scene.answered("PATCH").len() > renewed).await;
        let result = format!("paid 201 application/json {number}");
        assert_eq!(client.does("paid").await, format!("made {result}"), "{lose:?}");
        scene.proxy.expect("PUT", lose.clone());
        assert_eq!(client.does(&what).await, format!("replayed {result}"), "{lose:?}");
    }
    // Who was never told that it may begin leaves the key to others, as if nobody had been there.
    let is_put = |message: &[u8]| message.starts_with(b"PUT");
    scene.proxy.set_policy(move |message| if is_put(message) { Fate::CutAfter } else { Fate::Pass });
    let proxy = scene.proxy.url();
    let mut deaf = kind.start_in(&[("FENCEPOST_URL", &proxy), ("RETRY_FOR_S", "2")]).await;
    assert_eq!(deaf.does("once k 300 0 f").await, "unknown");
    scene.look.get("/once/k").send().await.expect_problem(404, "not-begun");
}

async fn work_that_fails_is_given_up_and_counted_unless_nothing_was_done(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    assert_eq!(works(&mut client, "once k 300 0 f").await.0, 0);
    assert_eq!(client.does("nothing").await, "nothingdone");
    scene.look.get("/once/k").send().await.expect_problem(404, "not-begun");
    for earlier in 0..2 {
        assert_eq!(works(&mut client, "once k 300 0 f").await.0, earlier);
        scene.proxy.expect("DELETE", Fate::CutAfter);
        assert_eq!(client.does("fail").await, "failed");
    }
    assert_eq!(works(&mut client, "once k 300 0 f").await.0, 2);
    assert_eq!(client.does("nothing").await, "nothingdone");
    assert_eq!(works(&mut client, "once k 300 0 f").await.0, 2);
}

async fn what_did_nothing_inside_of_work_does_not_speak_for_the_work_around_it(kind: Kind) {
    let scene = Scene::start().await;
    gives_the_place_up(&mut scene.client(kind).await, "inside", "nothingdone").await;
    scene.look.get("/once/k%2Finside").send().await.expect_problem(404, "not-begun");
}

async fn long_work_is_renewed_and_late_work_is_stored(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    works(&mut client, "once k 3 0 f").await;
    let renewed = async || scene.answered("PATCH").len() > 3;
    eventually("it is renewed for longer than its ttl", renewed).await;
    assert_eq!(scene.record().await["state"], "working");
    let is_renewal = |message: &[u8]| message.starts_with(b"PATCH");
    scene.proxy.set_policy(move |message| if is_renewal(message) { Fate::CutBefore } else { Fate::Pass });
    assert_eq!(client.does("lost").await, "lost");
    eventually("its lease is over", async || scene.record().await["state"] == "lapsed").await;
    assert!(client.does("paid").await.starts_with("made paid "));
    assert_eq!(scene.record().await["state"], "done");
}

async fn a_superseded_worker_is_told_by_whom(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    works(&mut client, "once k 300 0 f").await;
    scene.breaks().await;
    let begin = scene.look.put("/once/k?ttl=5m").header("Once-Fingerprint", "f").send().await.expect(201);
    assert_eq!(client.does("paid").await, "superseded");
    assert_eq!(client.does("number").await, begin.fencing_token().to_string());
    assert_eq!(scene.record().await["state"], "working");
}

async fn the_result_of_a_broken_record_is_stored_all_the_same(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    // Though it would not have taken over before it worked.
    let (_, number) = works(&mut client, "once k 300 0 f keep-off").await;
    scene.breaks().await;
    let said = client.does("paid").await;
    let greater: u64 = said.strip_prefix("made paid 201 application/json ").expect(&said).parse().unwrap();
    assert!(greater > number);
    // The fingerprint is still the record's.
    assert_eq!(client.does("once k 300 0 other").await, "mismatch");
    assert!(client.does("once k 300 0 f").await.starts_with("replayed paid "));
}

async fn what_someone_may_have_done_is_left_alone_if_you_say_so(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    works(&mut client, "once k 300 0 f").await;
    assert_eq!(client.does("fail").await, "failed");
    assert_eq!(client.does("once k 300 0 f keep-off").await, "abandoned");
    // It waits, since the other may come back and store its result.
    assert_eq!(client.does("once k 300 0.5 f keep-off").await, "abandoned");
    assert_eq!(works(&mut client, "once k 300 0 f").await.0, 1);
}

/// Certainly nothing was done. Were the place left behind, a person would have to find that out.
async fn a_place_whose_lease_ends_before_its_work_begins_is_left_to_others(kind: Kind) {
    let scene = Scene::start().await;
    let proxy = scene.proxy.url();
    let mut client = kind.start_in(&[("FENCEPOST_URL", &proxy), ("TRY_FOR_S", "3")]).await;
    let (message, late) = (Gate::new(), Gate::new());
    message.cancel();
    let held = Fate::Hold { message, answer: late.clone() };
    // The gateway leaves those that keep no connection, and what the proxy holds back is lost then.
    let is_held = !matches!(kind, Kind::Python | Kind::AsyncPython);
    for fate in [Some(held).filter(|_| is_held), Some(Fate::LoseAnswers)].into_iter().flatten() {
        scene.proxy.expect("PUT", fate);
        client.begins("once k 1 0 f keep-off").await;
        eventually("its lease is over", async || scene.record().await["state"] == "lapsed").await;
        late.cancel();
        assert_eq!(client.says().await, "unavailable");
        scene.look.get("/once/k").send().await.expect_problem(404, "not-begun");
    }
    assert_eq!(works(&mut client, "once k 300 0 f keep-off").await.0, 0);
}

/// After a late answer, the same request asks how long the lease is: the work has not begun yet.
async fn a_place_whose_lease_ends_before_its_second_answer_is_left_to_others(kind: Kind) {
    let scene = Scene::start().await;
    let proxy = scene.proxy.url();
    let mut client = kind.start_in(&[("FENCEPOST_URL", &proxy), ("TRY_FOR_S", "9")]).await;
    let (message, late, lost) = (Gate::new(), Gate::new(), Gate::new());
    message.cancel();
    let mut first = scene.proxy.expect("PUT", Fate::Hold { message, answer: late.clone() });
    let mut second = scene.proxy.expect("PUT", Fate::Late { cut: lost.clone(), message: lost.clone() });
    client.begins("once k 1 0 f keep-off").await;
    first.reaches(Progress::PassedOn).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    late.cancel();
    second.reaches(Progress::Seen).await;
    eventually("its lease is over", async || scene.record().await["state"] == "lapsed").await;
    lost.cancel();
    assert_eq!(client.says().await, "unavailable");
    scene.look.get("/once/k").send().await.expect_problem(404, "not-begun");
}

async fn a_client_does_not_wait_for_a_place_of_its_own(kind: Kind) {
    let own = r#"{"type":"/problems/once-abandoned","title":"t","status":409,"detail":"d","yours":true}"#;
    let gateway = Pretender::start(move |method| match method {
        "DELETE" => answer(RELEASED, ""),
        _ => answer("409 Conflict", own),
    });
    let gateway = gateway.await;
    let mut client = kind.start(&gateway.url).await;
    let asked = Instant::now();
    assert_eq!(client.does("once k 30 15 f keep-off").await, "unavailable");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

async fn another_request_of_the_same_key_is_refused(kind: Kind) {
    let scene = Scene::start().await;
    let (mut client, mut other) = (scene.client(kind).await, scene.client(kind).await);
    works(&mut client, "once k 300 0 f").await;
    assert_eq!(other.does("once k 300 20 other").await, "mismatch");
    client.does("paid").await;
    assert_eq!(other.does("once k 300 20 other").await, "mismatch");
}

async fn a_result_that_is_too_large_gives_the_place_up(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    works(&mut client, "once k 300 0 f").await;
    assert_eq!(client.does("much").await, "refused");
    // The client was told how long a result may be.
    assert!(scene.answered("POST").is_empty());
    assert_eq!(works(&mut client, "once k 300 0 f").await.0, 1);
}

/// The work is done: were its result refused now, the next call would do the work again.
async fn a_type_and_a_status_that_no_request_can_carry_keep_no_result_from_being_stored(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    for (end, kept) in [("unsent", "None None"), ("trimmed", "201 application/json")] {
        let what = format!("once {end} 300 0 f");
        let (_, number) = works(&mut client, &what).await;
        assert_eq!(client.does(end).await, format!("made {end} {kept} {number}"));
        assert_eq!(client.does(&what).await, format!("replayed {end} {kept} {number}"));
    }
}

/// Such as a number, of which Python would make so many zero bytes.
async fn what_is_no_result_gives_the_place_up(kind: Kind) {
    let scene = Scene::start().await;
    gives_the_place_up(&mut scene.client(kind).await, "five", "typeerror").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_work_in_go_gives_the_place_up() {
    let scene = Scene::start().await;
    gives_the_place_up(&mut Kind::Go.start(&url(&scene.gateway)).await, "panic", "failed").await;
}

//! Workers that give up, and records that are broken: who comes next is told that the work may have been done.

use super::{Pair, begin, begin_and_lapse, comes_to, earlier, on_each_pair, state, store, way};
use kit::fresh_token;

on_each_pair!(
    who_gives_up_is_counted_and_who_has_done_nothing_is_not,
    what_was_told_to_a_token_that_gave_up_is_told_again,
    it_is_never_forgotten_that_somebody_crashed,
    a_break_counts_unless_it_says_that_nothing_was_done,
    a_break_by_number_ends_no_other_place,
    nobodys_record_takes_no_result_and_its_worker_begins_once_more,
);

async fn who_gives_up_is_counted_and_who_has_done_nothing_is_not(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let begin = async |token: &str, fingerprint: &str| {
        begin(&here, "ttl=1m", token).header("Once-Fingerprint", fingerprint).send().await
    };
    let (first, second, third) = (fresh_token(), fresh_token(), fresh_token());
    begin(&first, "one-request").await.expect(201);
    there.delete("/once/k?clean=true").token(&first).send().await.expect(204);
    assert_eq!(state(&here).await, "");
    // As if it had never begun: the key is free for another request.
    let next = begin(&second, "another-request").await.expect(201);
    assert_eq!((way(&next), earlier(&next)), ("begun", 0));
    there.delete("/once/k").token(&second).send().await.expect(204);
    assert_eq!(state(&here).await, "lapsed");
    begin(&third, "one-request").await.expect_problem(422, "fingerprint-mismatch");
    let last = begin(&third, "another-request").await.expect(201);
    assert_eq!((way(&last), earlier(&last)), ("taken-over", 1));
    assert_eq!(last.json()["earlier_fencing_token"], next.fencing_token());
    assert!(last.fencing_token() > next.fencing_token());
}

async fn what_was_told_to_a_token_that_gave_up_is_told_again(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    // Who gives up before its begin arrives begins nothing any more.
    for _ in 0..2 {
        here.delete("/once/k").token(&token).send().await.expect_problem(404, "not-begun");
    }
    begin(&there, "", &token).send().await.expect_problem(409, "token-released");
    let worker = fresh_token();
    begin(&here, "ttl=1m", &worker).send().await.expect(201);
    there.delete("/once/k").token(&worker).send().await.expect(204);
    here.delete("/once/k").token(&worker).send().await.expect(204);
    begin(&here, "", &worker).send().await.expect_problem(409, "token-released");
    store(&here, &worker, "too late").send().await.expect_problem(404, "not-begun");
    here.patch("/once/k?ttl=1m").token(&worker).send().await.expect_problem(404, "not-begun");
    // Also while another is at work, who is left alone.
    let next = fresh_token();
    begin(&there, "ttl=1m", &next).send().await.expect(201);
    here.delete("/once/k").token(&worker).send().await.expect(204);
    store(&there, &next, "done").send().await.expect(200);
}

async fn it_is_never_forgotten_that_somebody_crashed(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    begin_and_lapse(&here, "keep=168h", &fresh_token()).await;
    // However short the successor would keep its result, and however clean it gives up.
    let second = fresh_token();
    let taken = begin(&there, "ttl=1m&keep=2m", &second).send().await.expect(201);
    assert_eq!(earlier(&taken), 1);
    there.delete("/once/k?clean=true").token(&second).send().await.expect(204);
    let seen = here.get("/once/k").send().await.expect(200).json();
    assert_eq!((&seen["state"], &seen["earlier"]), (&"lapsed".into(), &1.into()));
    let forgotten_at = humantime::parse_rfc3339(seen["forgotten_at"].as_str().unwrap()).unwrap();
    let left = forgotten_at.duration_since(std::time::SystemTime::now()).unwrap();
    assert!(left.as_secs() > 6 * 24 * 60 * 60, "{left:?}");
    let third = begin(&here, "ttl=1m", &fresh_token()).send().await.expect(201);
    assert_eq!((way(&third), earlier(&third)), ("taken-over", 1));
}

async fn a_break_counts_unless_it_says_that_nothing_was_done(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    for is_done in [false, true] {
        let first = fresh_token();
        begin(&here, "ttl=1m", &first).send().await.expect(201);
        if is_done {
            store(&here, &first, "done").send().await.expect(200);
        }
        there.delete("/once/k?force=true").send().await.expect(204);
        store(&here, &first, "late").send().await.expect_problem(404, "not-begun");
        here.patch("/once/k").token(&first).send().await.expect_problem(404, "not-begun");
        let next = begin(&here, "ttl=1m", &fresh_token()).send().await.expect(201);
        assert_eq!((way(&next), earlier(&next)), ("taken-over", 1), "done: {is_done}");
        there.delete("/once/k?force=true&clean=true").send().await.expect(204);
        assert_eq!(state(&there).await, "", "done: {is_done}");
    }
    let fresh = begin(&here, "ttl=1m", &fresh_token()).send().await.expect(201);
    assert_eq!((way(&fresh), earlier(&fresh)), ("begun", 0));
    here.delete("/once/other?force=true").send().await.expect_problem(404, "not-begun");
}

async fn a_break_by_number_ends_no_other_place(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let first = begin_and_lapse(&here, "", &fresh_token()).await;
    let worker = fresh_token();
    let second = begin(&there, "ttl=1m", &worker).send().await.expect(201);
    let break_first = format!("/once/k?force=true&fencing_token={}", first.fencing_token());
    let told = here.delete(&break_first).send().await.expect_problem(409, "superseded").json();
    assert_eq!(told["fencing_token"], second.fencing_token());
    here.patch("/once/k?ttl=1m").token(&worker).send().await.expect(200);
    let both = here.delete("/once/k?force=true").token(&worker).send().await;
    assert_eq!(both.expect_problem(400, "bad-parameter").json()["parameter"], "force");
    here.delete("/once/k?force=true&fencing_token=%2B7")
        .token(&worker)
        .send()
        .await
        .expect_problem(400, "bad-parameter");
    here.delete("/once/k?fencing_token=7").token(&worker).send().await.expect_problem(400, "bad-parameter");
    here.delete("/once/k").send().await.expect_problem(400, "token-required");
    store(&there, &worker, "done").send().await.expect(200);
}

async fn nobodys_record_takes_no_result_and_its_worker_begins_once_more(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    begin(&here, "ttl=1m", &token).send().await.expect(201);
    there.delete("/once/k?force=true").send().await.expect(204);
    comes_to(&there, "lapsed").await;
    store(&here, &token, "the work").send().await.expect_problem(404, "not-begun");
    here.delete("/once/other").token(&token).send().await.expect_problem(404, "not-begun");
    // It has the result in hand.
    begin(&here, "ttl=1m", &token).send().await.expect(201);
    store(&here, &token, "the work").send().await.expect(200);
    assert_eq!(begin(&there, "", &fresh_token()).send().await.expect(200).body, "the work");
}

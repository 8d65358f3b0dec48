//! `takeover=false`: better nobody than two.

use std::time::{Duration, Instant};

use super::{Pair, begin, begin_and_lapse, comes_to, earlier, on_each_pair, store, wait_there, way};
use kit::fresh_token;

on_each_pair!(
    who_takes_over_from_nobody_begins_a_new_record_only,
    its_own_worker_is_told_that_it_is_its_own,
    who_waits_is_told_at_the_end_and_gets_a_late_result,
    all_who_wait_are_told_what_one_of_them_has_learnt,
    another_who_may_take_over_is_not_held_up,
    a_break_lets_the_next_begin,
);

async fn who_takes_over_from_nobody_begins_a_new_record_only(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let first = fresh_token();
    let begun = begin(&here, "ttl=1m&takeover=false", &first).send().await.expect(201);
    assert_eq!((way(&begun), earlier(&begun)), ("begun", 0));
    begin(&there, "takeover=false", &fresh_token()).send().await.expect_problem(423, "once-in-progress");
    // Nothing was done, so nobody takes over.
    here.delete("/once/k?clean=true").token(&first).send().await.expect(204);
    let crashed = begin_and_lapse(&there, "takeover=false", &fresh_token()).await;
    let refused = begin(&here, "takeover=false", &fresh_token()).send().await;
    let refused = refused.expect_problem(409, "once-abandoned").json();
    assert_eq!(
        (&refused["yours"], &refused["worker"]["fencing_token"]),
        (&false.into(), &crashed.fencing_token().into())
    );
    for bad in ["0", "no", "", "FALSE"] {
        let answer = begin(&here, &format!("takeover={bad}"), &fresh_token()).send().await;
        assert_eq!(answer.expect_problem(400, "bad-parameter").json()["parameter"], "takeover");
    }
    // It is the newcomer's word alone.
    assert_eq!(earlier(&begin(&there, "ttl=1m", &fresh_token()).send().await.expect(201)), 1);
}

async fn its_own_worker_is_told_that_it_is_its_own(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    begin_and_lapse(&here, "takeover=false", &token).await;
    let told = begin(&there, "takeover=false", &token).send().await.expect_problem(409, "once-abandoned");
    assert_eq!(told.json()["yours"], true);
    store(&there, &token, "done").send().await.expect(200);
    begin(&here, "takeover=false", &fresh_token()).send().await.expect(200);
}

async fn who_waits_is_told_at_the_end_and_gets_a_late_result(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    begin_and_lapse(&here, "", &token).await;
    let started = Instant::now();
    let told = begin(&there, "takeover=false&wait=1s", &fresh_token()).send().await;
    told.expect_problem(409, "once-abandoned");
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    let waits: Vec<_> = (0..4)
        .map(|number| {
            tokio::spawn(begin(&pair.client(number), "takeover=false&wait=50s", &fresh_token()).send())
        })
        .collect();
    wait_there(&pair, 4.0).await;
    let looks = "fencepost_store_seconds_count{step=\"begin\"}";
    let (before, started) = (super::sum(&pair, looks).await, Instant::now());
    // Nothing is waited for: this is how long is counted.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (looks, gateways) =
        (super::sum(&pair, looks).await - before, if pair.there.is_some() { 2.0 } else { 1.0 });
    let most = gateways * (started.elapsed().as_secs_f64() + 5.0);
    assert!(looks <= most, "they asked {looks} times in {:?}", started.elapsed());
    store(&here, &token, "late").send().await.expect(200);
    for wait in waits {
        assert_eq!(wait.await.unwrap().expect(200).body, "late");
    }
}

/// Only one of them looks, and all have seen the worker at work before.
async fn all_who_wait_are_told_what_one_of_them_has_learnt(pair: Pair) {
    let (here, token) = (pair.here(), fresh_token());
    let begun = begin(&here, "ttl=2s", &token).send().await.expect(201);
    let waits: Vec<_> = (0..6)
        .map(|number| {
            tokio::spawn(begin(&pair.client(number), "takeover=false&wait=4s", &fresh_token()).send())
        })
        .collect();
    for wait in waits {
        let told = wait.await.unwrap().expect_problem(409, "once-abandoned").json();
        assert_eq!(told["worker"]["fencing_token"], begun.fencing_token());
    }
}

async fn another_who_may_take_over_is_not_held_up(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    begin_and_lapse(&here, "", &fresh_token()).await;
    let cautious = tokio::spawn(begin(&here, "takeover=false&wait=50s", &fresh_token()).send());
    wait_there(&pair, 1.0).await;
    let bold = fresh_token();
    let taken = begin(&there, "ttl=1m&wait=20s", &bold).send().await.expect(201);
    assert_eq!((way(&taken), earlier(&taken)), ("taken-over", 1));
    store(&here, &bold, "done").send().await.expect(200);
    assert_eq!(cautious.await.unwrap().expect(200).body, "done");
}

async fn a_break_lets_the_next_begin(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let lost = begin_and_lapse(&here, "takeover=false", &fresh_token()).await;
    let waiting = tokio::spawn(begin(&there, "ttl=1m&takeover=false&wait=50s", &fresh_token()).send());
    wait_there(&pair, 1.0).await;
    // Without `clean` it stays known that somebody may have done the work.
    let number = lost.fencing_token();
    here.delete(&format!("/once/k?force=true&fencing_token={number}")).send().await.expect(204);
    comes_to(&here, "lapsed").await;
    here.delete("/once/k?force=true&clean=true").send().await.expect(204);
    let begun = waiting.await.unwrap().expect(201);
    assert_eq!((way(&begun), earlier(&begun)), ("begun", 0));
}

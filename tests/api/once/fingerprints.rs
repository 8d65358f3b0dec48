//! Fingerprints: a key belongs to one request, in each state of its record.

use super::{Pair, begin, begin_and_lapse, comes_to, earlier, on_each_pair, state, store, wait_there};
use kit::http::Call;
use kit::{Client, fresh_token};

on_each_pair!(
    another_request_is_refused_in_each_state,
    one_that_waits_is_told_when_the_result_of_another_comes,
    a_record_without_one_is_for_everybody,
    what_is_no_fingerprint_is_refused,
);

/// A begin that says which request it is; with nothing, it does not say it.
fn begin_as(client: &Client, request: &str, query: &str, token: &str) -> Call {
    let call = begin(client, query, token);
    if request.is_empty() { call } else { call.header("Once-Fingerprint", request) }
}

async fn another_request_is_refused_in_each_state(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let (ours, other) = (fresh_token(), fresh_token());
    let refused = async |when: &str| {
        for request in [other.as_str(), "", &ours[1..]] {
            for query in ["", "takeover=false", "wait=1s"] {
                let answer = begin_as(&there, request, query, &fresh_token()).send().await;
                assert_eq!(answer.status, 422, "{when}, {query}");
                answer.expect_problem(422, "fingerprint-mismatch");
            }
        }
    };
    let (first, second, third) = (fresh_token(), fresh_token(), fresh_token());
    begin_as(&here, &ours, "ttl=500ms", &first).send().await.expect(201);
    // Before all else: also to its own token.
    begin_as(&there, &other, "", &first).send().await.expect_problem(422, "fingerprint-mismatch");
    refused("in progress").await;
    comes_to(&here, "lapsed").await;
    refused("lapsed").await;
    begin_as(&here, &ours, "ttl=1m", &second).send().await.expect(201);
    refused("taken over").await;
    here.delete("/once/k").token(&second).send().await.expect(204);
    refused("given up").await;
    let third_begun = begin_as(&here, &ours, "ttl=1m", &third).send().await.expect(201);
    assert_eq!(earlier(&third_begun), 2);
    store(&here, &third, "done").send().await.expect(200);
    refused("done").await;
    begin_as(&there, &ours, "", &fresh_token()).send().await.expect(200);
    // A break does not make it the record of another.
    here.delete("/once/k?force=true").send().await.expect(204);
    refused("broken").await;
    here.delete("/once/k?force=true&clean=true").send().await.expect(204);
    begin_as(&there, &other, "ttl=1m", &fresh_token()).send().await.expect(201);
}

async fn one_that_waits_is_told_when_the_result_of_another_comes(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let (first, ours, of_worker) = (fresh_token(), fresh_token(), fresh_token());
    // At first the record is for everybody.
    begin(&here, "ttl=1m", &first).send().await.expect(201);
    let mut waits = Vec::new();
    for (number, (request, token)) in
        [(&*ours, &*of_worker), (&*ours, ""), ("", ""), (&*first, "")].into_iter().enumerate()
    {
        let token = if token.is_empty() { fresh_token() } else { token.to_owned() };
        waits.push(tokio::spawn(begin_as(&there, request, "ttl=1m&wait=50s", &token).send()));
        wait_there(&pair, (number + 1) as f64).await;
    }
    let [worker, same, without, other] = waits.try_into().unwrap();
    // The first of them is the next worker, and its record is for one request only. The second asks for all that wait.
    here.delete("/once/k?clean=true").token(&first).send().await.expect(204);
    assert_eq!(earlier(&worker.await.unwrap().expect(201)), 0);
    wait_there(&pair, 3.0).await;
    store(&here, &of_worker, "done").send().await.expect(200);
    assert_eq!(same.await.unwrap().expect(200).body, "done");
    for refused in [without, other] {
        refused.await.unwrap().expect_problem(422, "fingerprint-mismatch");
    }
}

async fn a_record_without_one_is_for_everybody(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    begin_and_lapse(&here, "", &token).await;
    let taken = begin_as(&there, &fresh_token(), "ttl=1m", &fresh_token()).send().await.expect(201);
    assert_eq!(earlier(&taken), 1);
    there.post("/once/k").token(&taken.token()).body("done").send().await.expect(200);
    // A take-over never changes which requests a record is for.
    for request in [fresh_token(), String::new()] {
        assert_eq!(begin_as(&here, &request, "", &fresh_token()).send().await.expect(200).body, "done");
    }
}

async fn what_is_no_fingerprint_is_refused(pair: Pair) {
    let client = pair.here();
    let long = "x".repeat(129);
    for bad in ["", "two words", "ü", "tab\there", &long] {
        let answer = begin(&client, "", &fresh_token()).header("Once-Fingerprint", bad).send().await;
        let parameter = answer.expect_problem(400, "bad-parameter").json()["parameter"].clone();
        assert_eq!(parameter, "Once-Fingerprint", "{bad}");
    }
    let twice = begin(&client, "", &fresh_token()).header("Once-Fingerprint", "a");
    twice.header("Once-Fingerprint", "a").send().await.expect_problem(400, "bad-parameter");
    // What stands in an address is in the logs of proxies.
    begin(&client, "fingerprint=a", &fresh_token()).send().await.expect_problem(400, "bad-parameter");
    assert_eq!(state(&client).await, "");
    begin_as(&client, &"x".repeat(128), "ttl=1m", &fresh_token()).send().await.expect(201);
}

//! Tokens: one that the gateway made begins once, and one token waits once.

use super::{Pair, begin, comes_to, earlier, on_each_pair, store, wait_there, way};
use kit::fresh_token;

on_each_pair!(
    a_token_that_the_gateway_made_begins_once,
    its_worker_stores_late_too,
    a_token_that_waits_again_takes_the_place_of_its_first_request,
    a_token_of_a_record_is_none_of_a_lock,
);

async fn a_token_that_the_gateway_made_begins_once(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let begun = here.put("/once/k?ttl=1m").send().await.expect(201);
    let token = begun.token();
    assert!(token.starts_with('~'), "{token}");
    let again = begin(&there, "ttl=1m", &token).send().await.expect(201);
    assert_eq!((way(&again), again.fencing_token()), ("continued", begun.fencing_token()));
    here.delete("/once/k").token(&token).send().await.expect(204);
    begin(&there, "wait=1s", &token).send().await.expect_problem(409, "token-released");
    // It has left no tombstone, so what its release was told is not told again.
    here.delete("/once/k").token(&token).send().await.expect_problem(404, "not-begun");
    assert_eq!(earlier(&begin(&there, "ttl=1m", &fresh_token()).send().await.expect(201)), 1);
    begin(&there, "", &token).send().await.expect_problem(409, "token-released");
}

async fn its_worker_stores_late_too(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let token = here.put("/once/k?ttl=500ms").send().await.expect(201).token();
    comes_to(&here, "lapsed").await;
    begin(&there, "ttl=1m", &token).send().await.expect_problem(409, "token-released");
    assert_eq!(way(&store(&there, &token, "late").send().await.expect(200)), "stored-late");
    assert_eq!(begin(&here, "", &token).send().await.expect(200).body, "late");
}

async fn a_token_that_waits_again_takes_the_place_of_its_first_request(pair: Pair) {
    let (client, worker, token) = (pair.here(), fresh_token(), fresh_token());
    begin(&client, "ttl=1m", &worker).send().await.expect(201);
    let first = tokio::spawn(begin(&client, "ttl=1m&wait=50s", &token).send());
    wait_there(&pair, 1.0).await;
    let second = tokio::spawn(begin(&client, "ttl=1m&wait=50s", &token).send());
    // What it knows is all that it is told.
    first.await.unwrap().expect_problem(423, "once-in-progress");
    wait_there(&pair, 1.0).await;
    // At another gateway it waits for itself, and is told that its own token has the place.
    let elsewhere = tokio::spawn(begin(&pair.there(), "ttl=1m&wait=50s", &token).send());
    let displaced = if pair.there.is_some() {
        wait_there(&pair, 2.0).await;
        elsewhere
    } else {
        second.await.unwrap().expect_problem(423, "once-in-progress");
        client.delete("/once/k?clean=true").token(&worker).send().await.expect(204);
        assert_eq!(way(&elsewhere.await.unwrap().expect(201)), "begun");
        return;
    };
    client.delete("/once/k?clean=true").token(&worker).send().await.expect(204);
    let (one, other) = (second.await.unwrap().expect(201), displaced.await.unwrap().expect(201));
    let mut ways = [way(&one), way(&other)];
    ways.sort_unstable();
    assert_eq!(ways, ["begun", "continued"]);
    assert_eq!(one.fencing_token(), other.fencing_token());
}

async fn a_token_of_a_record_is_none_of_a_lock(pair: Pair) {
    let (client, token) = (pair.here(), fresh_token());
    begin(&client, "ttl=1m", &token).send().await.expect(201);
    client.patch("/locks/k").token(&token).send().await.expect_problem(404, "not-held");
    client.delete("/locks/k").token(&token).send().await.expect_problem(404, "not-held");
    // The lock's tombstone is none of the record's.
    begin(&client, "ttl=1m", &token).send().await.expect(201);
    client.delete("/once/k?clean=true").token(&token).send().await.expect(204);
    client.put("/locks/other").token(&token).send().await.expect(201);
}

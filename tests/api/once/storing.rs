//! Who does the work, whose result is kept, and what all others are told.

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::{Pair, begin, begin_and_lapse, earlier, on_each_pair, state, store, sum, wait_there, way};
use kit::{Answer, Client, Gateway, fresh_token};

on_each_pair!(
    of_many_who_begin_at_once_one_does_the_work,
    all_who_wait_get_the_same_result_byte_for_byte,
    a_worker_that_was_overtaken_stores_nothing,
    one_token_with_two_leases_is_told_apart_by_its_numbers,
    a_late_result_is_stored_if_nobody_took_over,
    the_first_result_counts_and_a_repetition_of_it_is_answered_alike,
    each_outcome_is_counted_by_its_name,
    both_forms_of_the_address_mean_one_record_and_a_lock_of_that_name_another,
);

const MANY: usize = 64;

async fn of_many_who_begin_at_once_one_does_the_work(pair: Pair) {
    let begins = (0..MANY).map(|number| begin(&pair.client(number), "ttl=1m", &fresh_token()).send());
    let answers = join_all(begins).await;
    let (workers, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 201);
    let [worker] = &workers[..] else { panic!("{} were told to do the work", workers.len()) };
    assert_eq!((way(worker), earlier(worker)), ("begun", 0));
    for other in others {
        let told = other.expect_problem(423, "once-in-progress");
        assert!(told.header("retry-after").is_some());
        let seen = &told.json()["worker"];
        assert_eq!(seen["fencing_token"], worker.fencing_token(), "{seen}");
        assert!(seen["expires_in_ms"].as_u64().unwrap() <= 60_000, "{seen}");
    }
}

async fn all_who_wait_get_the_same_result_byte_for_byte(pair: Pair) {
    let mut waiting: FuturesUnordered<_> = (0..MANY)
        .map(|number| tokio::spawn(begin(&pair.client(number), "ttl=1m&wait=50s", &fresh_token()).send()))
        .collect();
    let worker = waiting.next().await.unwrap().unwrap().expect(201);
    wait_there(&pair, (MANY - 1) as f64).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let post = pair.there().post("/once/k?status=201").token(&worker.token());
    let post = post.header("Content-Type", "application/json; charset=utf-8").body(every_byte.clone());
    let stored = post.send().await.expect(200);
    assert_eq!(stored.fencing_token(), worker.fencing_token());
    let answers = waiting.collect::<Vec<_>>().await;
    assert_eq!(answers.len(), MANY - 1);
    for answer in answers.into_iter().map(|answer| answer.unwrap().expect(200)) {
        assert_eq!(answer.body, every_byte);
        let headers = ["Once", "Once-Status", "Once-Content-Type"].map(|name| answer.header(name).unwrap());
        assert_eq!(headers, ["replayed", "201", "application/json; charset=utf-8"]);
        assert_eq!(answer.header("Fencing-Token"), Some(worker.fencing_token().to_string().as_str()));
    }
}

#[track_caller]
fn assert_superseded(answer: Answer, by: &Answer, is_done: bool) {
    let told = answer.expect_problem(409, "superseded").json();
    assert_eq!((&told["fencing_token"], &told["done"]), (&by.fencing_token().into(), &is_done.into()));
}

async fn a_worker_that_was_overtaken_stores_nothing(pair: Pair) {
    let (here, there) = (pair.here(), pair.there());
    let (first, second) = (fresh_token(), fresh_token());
    let late = begin_and_lapse(&here, "", &first).await;
    let worker = begin(&there, "ttl=1m", &second).send().await.expect(201);
    assert_eq!((way(&worker), earlier(&worker)), ("taken-over", 1));
    assert_eq!(worker.json()["earlier_fencing_token"], late.fencing_token());
    assert!(worker.fencing_token() > late.fencing_token());
    assert_superseded(store(&here, &first, "late").send().await, &worker, false);
    assert_superseded(here.patch("/once/k?ttl=1m").token(&first).send().await, &worker, false);
    // Its own repetition learns that, and does not disturb the worker.
    begin(&here, "", &first).send().await.expect_problem(423, "once-in-progress");
    assert_eq!(way(&begin(&there, "ttl=1m", &second).send().await.expect(201)), "continued");
    assert_superseded(here.delete("/once/k").token(&first).send().await, &worker, false);
    store(&there, &second, "right").send().await.expect(200);
    assert_superseded(store(&here, &first, "late").send().await, &worker, true);
    // A result is for everybody, also for a token that gave up.
    for token in [first, second, fresh_token()] {
        let read = begin(&here, "", &token).send().await.expect(200);
        assert_eq!((&read.body[..], way(&read)), (&b"right"[..], "replayed"));
        assert_eq!(read.header("Fencing-Token"), Some(worker.fencing_token().to_string().as_str()));
    }
}

async fn one_token_with_two_leases_is_told_apart_by_its_numbers(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    let first = begin_and_lapse(&here, "", &token).await;
    let second = begin(&there, "ttl=1m", &token).send().await.expect(201);
    assert_eq!((way(&second), earlier(&second)), ("taken-over", 1));
    assert!(second.fencing_token() > first.fencing_token());
    let (old, new) = (first.fencing_token().to_string(), second.fencing_token().to_string());
    let late = store(&here, &token, "first").header("Fencing-Token", &old).send().await;
    assert_superseded(late, &second, false);
    let late = here.patch("/once/k?ttl=1m").token(&token).header("Fencing-Token", &old).send().await;
    assert_superseded(late, &second, false);
    for bad in ["", "0", "x", "-1", "9007199254740992", "1.0"] {
        let call = store(&here, &token, "first").header("Fencing-Token", bad).send().await;
        let parameter = call.expect_problem(400, "bad-parameter").json()["parameter"].clone();
        assert_eq!(parameter, "Fencing-Token", "{bad}");
    }
    let twice = store(&here, &token, "first").header("Fencing-Token", &new).header("Fencing-Token", &old);
    twice.send().await.expect_problem(400, "bad-parameter");
    here.patch("/once/k?ttl=1m").token(&token).header("Fencing-Token", &new).send().await.expect(200);
    store(&here, &token, "second").header("Fencing-Token", &new).send().await.expect(200);
    assert_eq!(begin(&there, "", &fresh_token()).send().await.expect(200).body, "second");
}

async fn a_late_result_is_stored_if_nobody_took_over(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    let worker = begin_and_lapse(&here, "", &token).await;
    here.patch("/once/k?ttl=1m").token(&token).send().await.expect_problem(409, "lease-over");
    let stored = store(&there, &token, "late").send().await.expect(200);
    assert_eq!((way(&stored), &stored.json()["late"]), ("stored-late", &true.into()));
    assert_eq!(stored.fencing_token(), worker.fencing_token());
    let again = store(&here, &token, "late").send().await.expect(200);
    assert_eq!((way(&again), &again.json()["late"]), ("stored-late", &true.into()));
    assert_eq!(begin(&here, "", &fresh_token()).send().await.expect(200).body, "late");
    here.patch("/once/k?ttl=1m").token(&token).send().await.expect_problem(409, "already-stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_keeps_that_a_result_was_late_and_that_another_was_not() {
    let (directory, late, in_time) = (tempfile::tempdir().unwrap(), fresh_token(), fresh_token());
    let file = directory.path().join("locks.redb");
    for turn in 0..2 {
        let mut gateway = Gateway::on_file(&file, &[]).await;
        let client = Client::new(gateway.address);
        if turn == 0 {
            begin_and_lapse(&client, "", &late).await;
            client.put("/once/other?ttl=1m").token(&in_time).send().await.expect(201);
        }
        assert_eq!(way(&store(&client, &late, "x").send().await.expect(200)), "stored-late");
        let other = client.post("/once/other").token(&in_time).body("x").send().await.expect(200);
        assert_eq!(way(&other), "stored");
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
    }
}

async fn the_first_result_counts_and_a_repetition_of_it_is_answered_alike(pair: Pair) {
    let (here, there, token) = (pair.here(), pair.there(), fresh_token());
    begin(&here, "ttl=1m", &token).send().await.expect(201);
    let post = |query: &str, body: &str| {
        there.post(&format!("/once/k?{query}")).token(&token).body(body.to_owned()).send()
    };
    let first = post("status=0&keep=1h", "one").await.expect(200);
    let kept_ms = |answer: &Answer| answer.json()["kept_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&kept_ms(&first)), "{}", first.json());
    // Another length of time is no other result, and reading or repeating keeps it no longer.
    for query in ["status=0&keep=1h", "status=0", "status=0&keep=168h"] {
        let again = post(query, "one").await.expect(200);
        assert_eq!((way(&again), again.fencing_token()), ("stored", first.fencing_token()));
        assert!(kept_ms(&again) <= kept_ms(&first), "{query}: {}", again.json());
    }
    for (query, body) in [("status=0", "two"), ("status=1", "one"), ("", "one"), ("status=0", "")] {
        post(query, body).await.expect_problem(409, "result-differs");
    }
    here.delete("/once/k").token(&token).send().await.expect_problem(409, "already-stored");
    let read = begin(&here, "", &fresh_token()).send().await.expect(200);
    assert_eq!((&read.body[..], read.header("Once-Status")), (&b"one"[..], Some("0")));
}

async fn each_outcome_is_counted_by_its_name(pair: Pair) {
    let (client, first, second) = (pair.here(), fresh_token(), fresh_token());
    begin_and_lapse(&client, "", &first).await;
    begin(&client, "ttl=500ms", &second).send().await.expect(201);
    super::comes_to(&client, "lapsed").await;
    store(&client, &second, "late").send().await.expect(200);
    begin(&client, "", &first).send().await.expect(200);
    let other = fresh_token();
    client.put("/once/other?ttl=1m").token(&other).send().await.expect(201);
    client.put("/once/other").token(&other).send().await.expect(201);
    client.post("/once/other").token(&other).body("in time").send().await.expect(200);
    for (operation, outcome, count) in [
        ("begin", "begun", 2.0),
        ("begin", "taken-over", 1.0),
        ("begin", "continued", 1.0),
        ("begin", "replayed", 1.0),
        ("store", "stored", 1.0),
        ("store", "stored-late", 1.0),
    ] {
        let series = format!("fencepost_requests_total{{operation=\"{operation}\",outcome=\"{outcome}\"}}");
        kit::eventually(&series, async || sum(&pair, &series).await == count).await;
    }
    assert_eq!(sum(&pair, "fencepost_once_result_bytes_count").await, 2.0);
    assert_eq!(sum(&pair, "fencepost_once_result_bytes_sum").await, 11.0);
}

async fn both_forms_of_the_address_mean_one_record_and_a_lock_of_that_name_another(pair: Pair) {
    let (client, token) = (pair.here(), fresh_token());
    client.put("/once/k%2F1?ttl=1m").token(&token).send().await.expect(201);
    let again = client.put("/once?key=k/1&ttl=1m").token(&token).send().await.expect(201);
    assert_eq!(way(&again), "continued");
    client.put("/lock?key=k/1").send().await.expect(201);
    client.patch("/once?key=k/1&ttl=1m").token(&token).send().await.expect(200);
    assert_eq!(client.get("/once?key=k/1").token(&token).send().await.expect(200).json()["yours"], true);
    client.post("/once?key=k/1").token(&token).body("done").send().await.expect(200);
    assert_eq!(client.put("/once/k%2F1").send().await.expect(200).body, "done");
    client.put("/locks/k%2F1").send().await.expect_problem(423, "lock-held");
    let list = client.get("/records?prefix=k").send().await.expect(200).json();
    assert_eq!(list["records"][0]["key"], "k/1", "{list}");
    let record = client.get("/once/k%2F1").send().await.expect(200);
    let head = client.call("HEAD", "/once/k%2F1").send().await.expect(200);
    assert_eq!(head.header("Fencing-Token"), record.header("Fencing-Token"));
    client.delete("/once?key=k/1&force=true").send().await.expect(204);
    // Its worker may have done the work, so the record is not forgotten.
    let broken = client.get("/once/k%2F1").send().await.expect(200).json();
    assert_eq!((&broken["state"], &broken["earlier"]), (&"lapsed".into(), &1.into()));
    assert_eq!(state(&client).await, "", "a record of another name");
}

//! What a token is told of a lock that it held, in each state of the lock.

use super::{Held, Pair, hold_with, on_each_pair};
use kit::http::Answer;
use kit::{Client, Gateway, eventually, fresh_token};

on_each_pair!(
    each_request_is_told_what_is_true_in_each_state_of_a_lock,
    a_hold_whose_token_releases_the_lock_within_its_min_hold_is_told_so,
    a_lock_that_is_kept_is_listed_and_broken_whoever_released_it,
);

/// How the lock of a token of ours stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Free,
    FreeAfterMyRelease,
    HeldByMe,
    KeptAfterMyRelease,
    KeptAfterMyConnection,
    HeldByAnother,
    HeldByAnotherAfterMyRelease,
    KeptAfterAnothersRelease,
}
use State::{
    Free, FreeAfterMyRelease, HeldByAnother, HeldByAnotherAfterMyRelease, HeldByMe, KeptAfterAnothersRelease,
    KeptAfterMyConnection, KeptAfterMyRelease,
};

/// A state, whether the token is the server's, and what its requests are answered: `PUT`, `POST /hold`, `PATCH` and `DELETE`; and
/// what `GET` says of `yours` and `released`, where it is not 404.
type Row = (State, bool, [&'static str; 4], Option<(bool, bool)>);
const TABLE: [Row; 12] = [
    (Free, false, ["201", "200", "404 not-held", "404 not-held"], None),
    (FreeAfterMyRelease, false, [USED_UP, USED_UP, "404 not-held", "204"], None),
    (HeldByMe, false, ["200", "200", "200", "204"], Some((true, false))),
    (HeldByMe, true, ["200", "200", "200", "204"], Some((true, false))),
    (KeptAfterMyRelease, false, [USED_UP, USED_UP, USED_UP, "204"], Some((false, true))),
    (KeptAfterMyRelease, true, [USED_UP, USED_UP, USED_UP, "204"], Some((false, true))),
    // Its token may be used again, once the lock is free.
    (KeptAfterMyConnection, false, ["423 lock-held", "423 lock-held", USED_UP, "204"], Some((false, true))),
    (KeptAfterMyConnection, true, [USED_UP, USED_UP, USED_UP, "204"], Some((false, true))),
    (HeldByAnother, false, ["423 lock-held", "423 lock-held", OTHERS, OTHERS], Some((false, false))),
    (HeldByAnotherAfterMyRelease, false, [USED_UP, USED_UP, OTHERS, "204"], Some((false, false))),
    (
        KeptAfterAnothersRelease,
        false,
        ["423 lock-held", "423 lock-held", OTHERS, OTHERS],
        Some((false, true)),
    ),
    (KeptAfterAnothersRelease, true, ["423 lock-held", "423 lock-held", OTHERS, OTHERS], Some((false, true))),
];
const USED_UP: &str = "409 token-released";
const OTHERS: &str = "409 held-by-another";

/// Brings a lock into a state, and returns our token.
async fn bring_about(state: State, is_servers: bool, key: &str, client: &Client) -> String {
    let path = format!("/locks/{key}");
    let own = fresh_token();
    let take = async |query: &str, token: Option<&str>| {
        let call = client.put(&format!("{path}?ttl=1m{query}"));
        let call = match token {
            Some(token) => call.token(token),
            None => call,
        };
        call.send().await.expect(201).token()
    };
    let own_or_none = (!is_servers).then_some(own.as_str());
    let release = async |token: &str| drop(client.delete(&path).token(token).send().await.expect(204));
    match state {
        Free => own,
        HeldByMe => take("", own_or_none).await,
        FreeAfterMyRelease | KeptAfterMyRelease => {
            let terms = if state == KeptAfterMyRelease { "&min_hold=50s" } else { "" };
            let token = take(terms, own_or_none).await;
            release(&token).await;
            token
        }
        KeptAfterMyConnection => {
            let call = client.call("POST", &format!("/hold?key={key}&ttl=1m&min_hold=50s"));
            let held = Held::taken_by(if is_servers { call } else { call.token(&own) }).await;
            let token = held.token();
            drop(held);
            eventually("it is released, and kept", async || {
                client.get(&path).send().await.json()["released"] == true
            })
            .await;
            token
        }
        HeldByAnother => {
            take("", None).await;
            own
        }
        HeldByAnotherAfterMyRelease => {
            release(&take("", Some(&own)).await).await;
            take("", None).await;
            own
        }
        KeptAfterAnothersRelease => {
            release(&take("&min_hold=50s", None).await).await;
            // One that the server made for another lock.
            if is_servers {
                client.put(&format!("{path}-other")).send().await.expect(201).token()
            } else {
                own
            }
        }
    }
}

fn told(answer: &Answer) -> String {
    match answer.status {
        400.. => {
            let problem = answer.json()["type"].as_str().unwrap().to_owned();
            format!("{} {}", answer.status, problem.trim_start_matches("/problems/"))
        }
        status => status.to_string(),
    }
}

async fn each_request_is_told_what_is_true_in_each_state_of_a_lock(pair: Pair) {
    for (state, is_servers, expected, seen) in TABLE {
        for (index, request) in ["PUT", "HOLD", "PATCH", "DELETE", "GET"].into_iter().enumerate() {
            let key = format!("{state:?}-{is_servers}-{request}");
            let token = bring_about(state, is_servers, &key, &pair.here()).await;
            let path = format!("/locks/{key}");
            let what = format!("{request} where it is {state:?}, token of the server's: {is_servers}");
            match request {
                "HOLD" => {
                    let call = pair.there().call("POST", &format!("/hold?key={key}")).token(&token);
                    let status = call.open().await.status().as_u16();
                    assert_eq!(status.to_string(), expected[index][..3], "{what}");
                }
                "GET" => {
                    let answer = pair.there().get(&path).token(&token).send().await;
                    let json = answer.json();
                    let says = (answer.status == 200)
                        .then(|| (json["yours"] == true, json.get("released") == Some(&true.into())));
                    assert_eq!(says, seen, "{what}: {json}");
                }
                _ => {
                    let answer = pair.there().call(request, &path).token(&token).send().await;
                    assert_eq!(told(&answer), expected[index], "{what}");
                }
            }
        }
    }
}

async fn a_hold_whose_token_releases_the_lock_within_its_min_hold_is_told_so(pair: Pair) {
    for token in [Some(fresh_token()), None] {
        let mut held = match &token {
            Some(token) => hold_with(&pair.here(), "ttl=1500ms&min_hold=1m", token).await,
            None => super::hold(&pair.here(), "ttl=1500ms&min_hold=1m").await,
        };
        pair.there().delete("/locks/k").token(&held.token()).send().await.expect(204);
        assert_eq!(held.lost().await.reason(), "released");
        drop(held);
        let kept = pair.there().get("/locks/k").send().await.expect(200).json();
        assert_eq!(kept["released"], true, "{kept}");
        pair.there().delete("/locks/k?force=true").send().await.expect(204);
    }
}

async fn a_lock_that_is_kept_is_listed_and_broken_whoever_released_it(pair: Pair) {
    for state in [KeptAfterMyRelease, KeptAfterMyConnection] {
        let key = format!("{state:?}");
        let token = bring_about(state, false, &key, &pair.here()).await;
        let list = pair.there().get(&format!("/locks?prefix={key}")).send().await.expect(200).json();
        assert_eq!(list["locks"][0]["released"], true, "{list}");
        let number = &list["locks"][0]["fencing_token"];
        let path = format!("/locks/{key}");
        pair.there().delete(&format!("{path}?force=true&fencing_token={number}")).send().await.expect(204);
        pair.there().patch(&path).token(&token).send().await.expect_problem(404, "not-held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hold_that_was_broken_the_log_does_not_say_that_an_answer_was_lost() {
    let gateway = Gateway::start(&["--store", "memory:", "--log-level", "debug"]).await;
    let client = Client::new(gateway.address);
    let mut held = super::hold(&client, "ttl=1s").await;
    client.delete("/locks/k?force=true").send().await.expect(204);
    assert_eq!(held.lost().await.reason(), "released");
    let is_over = |line: &str| line.contains("nothing was left to release of a lock that a connection held");
    gateway.logs("the hold is over", is_over).await;
    let log = gateway.log();
    assert!(!log.iter().any(|line| line.contains("could not be delivered")), "{log:#?}");
}

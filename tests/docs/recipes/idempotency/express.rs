//! What handlers of Express may do around the middleware of docs/recipes/idempotency.md.

use tokio::process::Command;

use super::{Framework, Server};
use crate::recipes::handlers::{
    BROKEN_HANDLERS, BUSY_HANDLER, HEADERS, LATE_HANDLERS, MORE_HANDLERS, STATUSES, UNSET, USERS,
};
use crate::recipes::provider::Provider;
use crate::recipes::{Scene, on_each_gateway};
use kit::eventually;

on_each_gateway!(
    handlers_of_express_may_answer_in_parts_and_parse_bodies_in_other_ways,
    what_runs_after_the_answer_of_express_does_not_change_it,
    an_answer_of_express_that_breaks_off_is_not_known_and_not_stored,
    the_first_answer_of_express_and_its_repetition_have_the_headers_that_the_handler_said,
    a_409_of_express_is_not_stored_and_a_refusal_keeps_what_was_set_before,
    an_answer_of_express_that_is_too_long_is_repeated_without_its_body_and_says_so,
    a_user_who_is_no_text_and_no_number_is_not_served,
    a_status_of_express_that_node_takes_is_stored_and_repeated,
    work_of_express_with_endless_time_is_stored_when_its_client_has_left,
    a_setting_of_express_that_is_not_there_takes_nothing_over_and_one_that_is_no_number_is_refused,
);

const SAID: &str = "\n%header{content-encoding}%header{idempotency-body}%header{location} %{http_code}";

/// Express with more code in its program.
async fn express(scene: &Scene, more: &str) -> Server {
    Server::start_with(Framework::Express, scene, &Provider::start().await, None, more).await
}

/// Its answer: the body, and then what is said of the body, its `Location` and its status. The path is the key, too.
async fn post(server: &Server, path: &str, form: &str) -> String {
    post_for("30", server, path, form).await
}

/// The same of a client that leaves after so many seconds.
async fn post_for(seconds: &str, server: &Server, path: &str, form: &str) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", seconds, "-d", form, "-H", "X-User: ann", "-H"]);
    command.args([&format!("Idempotency-Key: {path}"), "-w", SAID]);
    let said = command.arg(format!("http://127.0.0.1:{}/{path}", server.port)).output().await.unwrap();
    String::from_utf8(said.stdout).unwrap()
}

async fn handlers_of_express_may_answer_in_parts_and_parse_bodies_in_other_ways(scene: Scene) {
    let server = express(&scene, MORE_HANDLERS).await;
    // A body that nobody kept cannot be told from another, so it is never taken for the same.
    for form in ["amount=1", "amount=2"] {
        let said = post(&server, "forgets", form).await;
        assert!(said.ends_with(" 500"), "{said}");
    }
    assert_eq!(post(&server, "form", "amount=1").await, "{\"amount\":\"1\"}\n 200");
    let another = post(&server, "form", "amount=2").await;
    assert!(another.ends_with(" 422"), "{another}");
    for _ in 0..2 {
        assert_eq!(post(&server, "parts", "a=b").await, "one two\n/x 201");
        assert_eq!(post(&server, "parts?of=a-list", "list=1").await, "one two\n/x 201");
    }
}

/// The work is done: a client that is told something else, or nothing, may pay again.
async fn what_runs_after_the_answer_of_express_does_not_change_it(scene: Scene) {
    let server = express(&scene, LATE_HANDLERS).await;
    for how in ["next", "error", "own-error", "answer"] {
        for round in ["first", "repeated"] {
            let said = post(&server, &format!("late/{how}"), "").await;
            assert_eq!(said, "{\"receipt\":\"ch_1\"}\n/x 201", "{how}, {round}");
        }
    }
}

/// The page of the error would follow the half, with a length of its own, and a 4xx would be told for a day.
async fn an_answer_of_express_that_breaks_off_is_not_known_and_not_stored(scene: Scene) {
    let server = express(&scene, BROKEN_HANDLERS).await;
    for how in ["thrown", "own", "next", "answered", "piped", "twice", "other", "left"] {
        for status in [503, 500] {
            let said = post(&server, &format!("broken/{how}"), "").await;
            let whole = format!("{{\"detail\":\"it is not known whether this was done\"}}\n {status}");
            assert_eq!(said, whole, "{how}");
        }
    }
}

/// Express itself would add a charset, which the bytes need not have, and make `false` of a type that it does not know.
async fn the_first_answer_of_express_and_its_repetition_have_the_headers_that_the_handler_said(scene: Scene) {
    let server = express(&scene, HEADERS).await;
    for (how, headers) in [
        ("custom", "content-type: custom"),
        ("empty", "content-type: "),
        ("list", "content-type: text/plain"),
        ("written", "content-type: text/html"),
        ("links", "content-type: text\nlink: </a>\nlink: </b>"),
    ] {
        for round in ["first", "repeated"] {
            let said = server.said_at(&format!("/said/{how}")).await;
            assert_eq!(said, format!("{headers}\n\u{fffd}"), "{how}, {round}");
        }
    }
}

/// A page of another origin reads no refusal without the headers that a middleware sets for it.
async fn a_409_of_express_is_not_stored_and_a_refusal_keeps_what_was_set_before(scene: Scene) {
    let server = express(&scene, BUSY_HANDLER).await;
    let said = post(&server, "busy", "").await;
    assert!(said.ends_with("/handler 409"), "{said}");
    let said = post(&server, "busy", "").await;
    assert!(said.contains("not known") && said.ends_with("/before 500"), "{said}");
    let said = post(&server, "busy", "a=b").await;
    assert!(said.contains("another request") && said.ends_with("/before 422"), "{said}");
}

async fn an_answer_of_express_that_is_too_long_is_repeated_without_its_body_and_says_so(scene: Scene) {
    let server = express(&scene, MORE_HANDLERS).await;
    let said = post(&server, "long", "").await;
    assert!(said.len() > 50_000 && said.ends_with("\nidentity/x 201"), "{}", said.len());
    assert_eq!(post(&server, "long", "").await, "\ntoo-long/x 201");
}

/// All of them would be one: `[object Object]`, or `[object Promise]`.
async fn a_user_who_is_no_text_and_no_number_is_not_served(scene: Scene) {
    let server = express(&scene, USERS).await;
    for (user, status) in [("object", 500), ("promise", 500), ("array", 500), ("nan", 500), ("number", 200)] {
        let said = post(&server, &format!("as/{user}"), "").await;
        assert!(said.ends_with(&format!(" {status}")), "{user}: {said}");
    }
}

async fn a_status_of_express_that_node_takes_is_stored_and_repeated(scene: Scene) {
    let server = express(&scene, STATUSES).await;
    for (how, said) in [("text", "x\n 202"), ("written", "x\n/x 202"), ("fraction", "x\n 202")] {
        for round in ["first", "repeated"] {
            assert_eq!(post(&server, &format!("status/{how}"), "").await, said, "{how}, {round}");
        }
    }
}

/// Node makes a timer of 1 ms of what is longer than 24 days.
async fn work_of_express_with_endless_time_is_stored_when_its_client_has_left(scene: Scene) {
    let server = express(&scene, STATUSES).await;
    assert_eq!(post_for("1", &server, "slow", "").await, "\n 000");
    eventually("it is stored", async || post(&server, "slow", "").await == "done\n 201").await;
}

async fn a_setting_of_express_that_is_not_there_takes_nothing_over_and_one_that_is_no_number_is_refused(
    scene: Scene,
) {
    let server = express(&scene, UNSET).await;
    assert_eq!(post(&server, "left-ms", "").await, "Refused\n 200");
    for said in ["tried", "not known"] {
        let answer = post(&server, "unset", "").await;
        assert!(answer.contains(said) && answer.ends_with(" 500"), "{answer}");
    }
}

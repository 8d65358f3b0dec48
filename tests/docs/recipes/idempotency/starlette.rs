//! What handlers of Starlette and FastAPI may do around the middleware of docs/recipes/idempotency.md.

use super::{Framework, Server, ask};
use crate::recipes::handlers::{BEHIND_A_PROXY, FIRST_FORM, MORE_TASKS, MOUNTED, NO_RAW_PATH};
use crate::recipes::provider::Provider;
use crate::recipes::{Scene, on_each_gateway};

on_each_gateway!(
    a_task_of_starlette_that_fails_after_the_answer_changes_nothing,
    an_answer_of_starlette_whose_dependency_does_not_commit_is_not_stored,
    a_repetition_of_starlette_has_each_header_as_often_as_the_first_answer,
    what_the_first_copies_for_starlette_have_stored_is_repeated,
    a_409_of_starlette_is_not_stored,
    an_answer_of_starlette_that_is_too_long_is_repeated_without_its_body_and_says_so,
    a_path_that_starlette_redirects_does_nothing_and_names_the_right_one,
    another_path_is_another_request_where_starlette_is_told_no_raw_path,
    an_app_of_starlette_below_a_path_of_its_own_charges_once,
    a_path_of_starlette_is_protected_however_its_slashes_are_written,
);

/// FastAPI with more code in its program, and nothing that is charged.
async fn fast_api(scene: &Scene) -> Server {
    let provider = Provider::start().await;
    Server::start_with(Framework::FastApi, scene, &provider, None, MORE_TASKS).await
}

async fn a_task_of_starlette_that_fails_after_the_answer_changes_nothing(scene: Scene) {
    let server = fast_api(&scene).await;
    for how in ["later", "later-refused"] {
        for is_replayed in [false, true] {
            let answer = server.asks_at(&format!("/charges/{how}"), how).await;
            assert_eq!((answer.status, answer.is_replayed), (201, is_replayed), "{how}: {answer:?}");
            assert_eq!(answer.body["is"], "done");
        }
    }
}

/// Its client would be told for a day of what the database does not have.
async fn an_answer_of_starlette_whose_dependency_does_not_commit_is_not_stored(scene: Scene) {
    let server = fast_api(&scene).await;
    assert_eq!(server.asks_at("/charges/uncommitted", "k").await.status, 500);
    server.asks_at("/charges/uncommitted", "k").await.is_refused(500, "not known");
}

async fn a_repetition_of_starlette_has_each_header_as_often_as_the_first_answer(scene: Scene) {
    let server = fast_api(&scene).await;
    for (how, expected) in [
        ("csv", "content-type: text/csv\n\u{fffd}"),
        (
            "twice",
            "content-type: application/json\ncontent-type: text/x\nlink: </a>\nlink: </b>\n{\"is\":\"done\"}",
        ),
    ] {
        for round in ["first", "repeated"] {
            assert_eq!(server.said_at(&format!("/charges/{how}")).await, expected, "{how}, {round}");
        }
    }
}

async fn what_the_first_copies_for_starlette_have_stored_is_repeated(scene: Scene) {
    let provider = Provider::start().await;
    let first = Server::start_with(Framework::FastApi, &scene, &provider, None, FIRST_FORM).await;
    let later = Server::start(Framework::FastApi, &scene, &provider, None).await;
    first.asks("k", "1999").await.is_receipt("ch_1", false);
    later.asks("k", "1999").await.is_receipt("ch_1", true);
}

async fn a_409_of_starlette_is_not_stored(scene: Scene) {
    let server = fast_api(&scene).await;
    server.asks_at("/charges/busy", "k").await.is_refused(409, "another has the lock");
    server.asks_at("/charges/busy", "k").await.is_refused(500, "not known");
}

async fn an_answer_of_starlette_that_is_too_long_is_repeated_without_its_body_and_says_so(scene: Scene) {
    let server = fast_api(&scene).await;
    for (is_replayed, left_out) in [(false, ""), (true, "too-long")] {
        let answer = server.asks_at("/charges/long", "k").await;
        assert_eq!((answer.status, &*answer.location, answer.is_replayed), (201, "/x", is_replayed));
        assert_eq!(answer.left_out, left_out);
    }
}

/// Were the redirect followed, the next request at the first path would be another one, and its client might pay again.
async fn a_path_that_starlette_redirects_does_nothing_and_names_the_right_one(scene: Scene) {
    let provider = Provider::start().await;
    let server = Server::start_with(Framework::FastApi, &scene, &provider, None, MORE_TASKS).await;
    for path in ["/charges", "/charges/of/a%20%22b%22%C3%A9"] {
        for _ in 0..2 {
            let answer = server.asks_at(&format!("{path}/"), path).await;
            answer.is_refused(404, &format!("ask at http://127.0.0.1:{}{path}", server.port));
            assert!(answer.location.is_empty() && !answer.body["detail"].as_str().unwrap().ends_with('/'));
        }
        // There, it has the same key.
        let answer = server.asks_at(path, path).await;
        assert!(answer.status == 201 && !answer.is_replayed, "{answer:?}");
    }
    assert_eq!(provider.charges(), 1);
}

async fn another_path_is_another_request_where_starlette_is_told_no_raw_path(scene: Scene) {
    let provider = Provider::start().await;
    let more = [MORE_TASKS, NO_RAW_PATH].concat();
    let server = Server::start_with(Framework::FastApi, &scene, &provider, None, &more).await;
    let asks = async |path: &str| {
        let url = format!("http://127.0.0.1:{}/charges/of/{path}", server.port);
        ask(url, "ann".to_owned(), "path".to_owned(), "1999".to_owned()).await
    };
    for is_replayed in [false, true] {
        let answer = asks("%C3%A9").await;
        assert_eq!((answer.status, answer.is_replayed), (201, is_replayed), "{answer:?}");
        assert_eq!(answer.body["is"], "\u{e9}");
    }
    asks("e").await.is_refused(422, "another request");
}

async fn an_app_of_starlette_below_a_path_of_its_own_charges_once(scene: Scene) {
    for (more, path) in
        [(MOUNTED, "/api/charges"), (BEHIND_A_PROXY, "/api/charges"), (BEHIND_A_PROXY, "/charges")]
    {
        let provider = Provider::start().await;
        let server = Server::start_with(Framework::FastApi, &scene, &provider, None, more).await;
        let key = format!("{path} {}", more.len());
        for is_replayed in [false, true] {
            let url = format!("http://127.0.0.1:{}{path}", server.port);
            let answer = ask(url, "ann".to_owned(), key.clone(), "1999".to_owned()).await;
            answer.is_receipt("ch_1", is_replayed);
        }
        assert_eq!(provider.charges(), 1, "{key}");
    }
}

async fn a_path_of_starlette_is_protected_however_its_slashes_are_written(scene: Scene) {
    for path in ["charges", "/charges/"] {
        let provider = Provider::start().await;
        let more = format!("for one in app.user_middleware: one.kwargs['path'] = '{path}'\n");
        let server = Server::start_with(Framework::FastApi, &scene, &provider, None, &more).await;
        for is_replayed in [false, true] {
            server.asks(path, "1999").await.is_receipt("ch_1", is_replayed);
        }
        assert_eq!(provider.charges(), 1, "{path}");
    }
}

//! The two requests of docs/recipes/powershell.md: PowerShell is not there where the tests run.

use super::{Scene, on_each_gateway};
use kit::fresh_token;

on_each_gateway!(the_second_request_leaves_the_queue_that_the_first_one_has_waited_in);

async fn the_second_request_leaves_the_queue_that_the_first_one_has_waited_in(scene: Scene) {
    let (lock, token) = ("/lock?key=nightly%20report", fresh_token());
    scene.client.put(lock).send().await.expect(201);
    let put = scene.client.put(&format!("{lock}&ttl=10m&wait=1s")).token(&token);
    put.send().await.expect_problem(423, "lock-held");
    let waiters = async || scene.client.get(lock).send().await.json()["waiters"].clone();
    assert_eq!(waiters().await, 1);
    scene.client.delete(lock).token(&token).send().await.expect(204);
    assert_eq!(waiters().await, 0);
}

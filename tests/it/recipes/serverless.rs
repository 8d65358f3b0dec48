//! A function that is killed, and where its lease token comes from.

use std::time::Instant;

use tokio::process::Command;

use super::{Scene, on_each_gateway};
use crate::pages::file;
use crate::support::{PATIENCE, signal};

on_each_gateway!(
    a_function_works_once_at_a_time_and_survives_being_killed,
    two_runs_that_derive_one_token_both_hold_the_lock,
);

/// What the provider starts, and the work of the page's reader.
const RUNTIME: &str = "import handler; print(handler.handler({'invoice': 4711}, None))";
const BILLING: &str = "import os, time
def write_invoice(invoice, fence):
    with open('notes', 'a') as notes: print('runs', fence, file=notes)
    while not os.path.exists('go'): time.sleep(0.02)
    return f'wrote {invoice}'
";

fn invoke(scene: &Scene) -> Command {
    // A limit that a test can wait for.
    let code = file("handler.py");
    assert!(code.contains("LIMIT_S = 30  #"));
    scene.write("handler.py", &code.replace("LIMIT_S = 30", "LIMIT_S = 4"));
    scene.write("runtime.py", RUNTIME);
    scene.write("billing.py", BILLING);
    scene.any_python("runtime.py", &[])
}

async fn a_function_works_once_at_a_time_and_survives_being_killed(scene: Scene) {
    let first = invoke(&scene).spawn().unwrap();
    scene.starts_to_run().await;
    // Another delivery of the same event, meanwhile.
    Scene::say(invoke(&scene)).await.expect(1, "Busy");
    signal(first.id().unwrap(), "KILL");
    let killed = Instant::now();
    Scene::end(first).await;
    // Its lock is free when its lease ends, and then the event can be worked on.
    scene.becomes_free("invoice:4711").await;
    assert!(killed.elapsed() < PATIENCE / 2, "{:?}", killed.elapsed());
    scene.write("go", "");
    Scene::say(invoke(&scene)).await.expect(0, "wrote 4711");
    let notes = scene.read("notes");
    let fences: Vec<u64> = notes.lines().map(|line| line["runs ".len()..].parse().unwrap()).collect();
    assert!(fences.len() == 2 && fences[0] < fences[1], "{notes}");
    scene.client.get("/lock?key=invoice:4711").send().await.expect_problem(404, "not-held");
    // No gateway: it raises within the time that it has, and has written nothing.
    let mut alone = invoke(&scene);
    Scene::alone(&mut alone);
    let began = Instant::now();
    assert_eq!(Scene::say(alone).await.code, Some(1));
    assert!(began.elapsed() < PATIENCE / 2 && scene.read("notes") == notes);
}

/// The danger that the page speaks of.
async fn two_runs_that_derive_one_token_both_hold_the_lock(scene: Scene) {
    let token = "event-4711-4711-4711";
    let put = async || scene.client.put("/locks/derived?ttl=30s").token(token).send().await;
    let (first, second) = (put().await.expect(201), put().await.expect(200));
    assert_eq!(first.fencing_token(), second.fencing_token());
    scene.client.delete("/locks/derived").token(token).send().await.expect(204);
    put().await.expect_problem(409, "token-released");
    // The form of a token.
    for wrong in
        ["x".repeat(15), "x".repeat(129), "with a space in it".to_owned(), "slash/slash/slash".to_owned()]
    {
        scene.client.put("/locks/formed").token(&wrong).send().await.expect(400);
    }
    for right in ["x".repeat(16), "Az09._~-".repeat(16)] {
        let put = scene.client.put("/locks/formed").token(&right).send().await;
        scene.client.delete("/locks/formed").token(&put.expect(201).token()).send().await.expect(204);
    }
}

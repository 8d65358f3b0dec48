//! A function that gets an event more than once, that is killed, and where its lease token comes from.

use std::time::{Duration, Instant};

use tokio::process::Command;

use super::{Scene, on_each_gateway};
use crate::pages::file;
use kit::{Gateway, PATIENCE, eventually, signal};

on_each_gateway!(
    an_event_whose_run_was_killed_is_told_so_to_the_next,
    an_event_whose_result_cannot_be_stored_ends_before_the_limit,
    a_function_works_once_at_a_time_and_survives_being_killed,
    an_event_that_is_delivered_twice_works_once,
    an_event_works_once_if_the_gateway_dies_before_the_release,
    two_runs_that_derive_one_token_both_hold_the_lock,
);

/// What the provider starts, and the work of the page's reader.
const RUNTIME: &str = "import handler; print(handler.handler({'invoice': 4711}, None))";
const INVOICES: &str = "import os, time
def make_invoice(invoice):
    with open('notes', 'a') as notes: print('runs', file=notes)
    while not os.path.exists('go'): time.sleep(0.02)
    return f'wrote {invoice}'
";
const TABLE: &str = "import sqlite3, sys; sqlite3.connect('invoices.db').executescript(sys.argv[1])";

fn invoke(scene: &Scene) -> Command {
    // A limit that a test can wait for.
    let code = file("handler.py");
    assert!(code.contains("LIMIT_S = 30  #"));
    scene.write("handler.py", &code.replace("LIMIT_S = 30", "LIMIT_S = 4"));
    scene.write("runtime.py", RUNTIME);
    scene.write("billing.py", &file("billing.py"));
    scene.write("invoices.py", INVOICES);
    let mut command = scene.any_python("runtime.py", &[]);
    command.env("DATABASE", "invoices.db");
    command
}

async fn make_table(scene: &Scene) {
    scene.write("table.py", TABLE);
    Scene::say(scene.any_python("table.py", &[file("invoice.sql").as_str()])).await.expect(0, "");
}

fn fence_of(scene: &Scene) -> u64 {
    let query = "SELECT fence FROM invoice";
    let said = std::process::Command::new("sqlite3").arg(scene.shell.path("invoices.db")).arg(query).output();
    String::from_utf8(said.unwrap().stdout).unwrap().trim().parse().unwrap()
}

async fn a_function_works_once_at_a_time_and_survives_being_killed(scene: Scene) {
    make_table(&scene).await;
    let first = invoke(&scene).spawn().unwrap();
    scene.starts_to_run().await;
    let fence = fence_of(&scene);
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
    assert!(notes.lines().count() == 2 && fence < fence_of(&scene), "{notes}");
    scene.client.get("/lock?key=invoice:4711").send().await.expect_problem(404, "not-held");
    // No gateway: it raises within the time that it has, and has written nothing.
    let mut alone = invoke(&scene);
    Scene::alone(&mut alone);
    let began = Instant::now();
    assert_eq!(Scene::say(alone).await.code, Some(1));
    assert!(began.elapsed() < PATIENCE / 2 && scene.read("notes") == notes);
}

async fn an_event_that_is_delivered_twice_works_once(scene: Scene) {
    make_table(&scene).await;
    scene.write("go", "");
    for _ in 0..3 {
        Scene::say(invoke(&scene)).await.expect(0, "wrote 4711");
    }
    assert_eq!(scene.read("notes"), "runs\n");
}

async fn an_event_works_once_if_the_gateway_dies_before_the_release(mut scene: Scene) {
    make_table(&scene).await;
    for dies in [false, true] {
        for name in ["go", "notes", "invoices.db"] {
            let _ = std::fs::remove_file(scene.shell.path(name));
        }
        make_table(&scene).await;
        let first = invoke(&scene).stdout(std::process::Stdio::piped()).spawn().unwrap();
        scene.starts_to_run().await;
        if dies {
            scene.gateway.kill();
        } else {
            scene.gateway.signal("STOP");
        }
        let done = Instant::now();
        scene.write("go", "");
        // The provider has its result well before the limit, and knows nothing of the release.
        Scene::end(first).await.expect(0, "wrote 4711");
        assert!(done.elapsed() < Duration::from_secs(2), "{:?}", done.elapsed());
        let mut again = invoke(&scene);
        let next = if dies { Some(Gateway::start(&["--store", "memory:"]).await) } else { None };
        if let Some(next) = &next {
            again.env("FENCEPOST_URL", format!("http://{}", next.address));
        } else {
            scene.gateway.signal("CONT");
            scene.becomes_free("invoice:4711").await;
        }
        Scene::say(again).await.expect(0, "wrote 4711");
        assert_eq!(scene.read("notes"), "runs\n");
    }
}

async fn an_event_whose_run_was_killed_is_told_so_to_the_next(scene: Scene) {
    let code = file("event.py");
    assert!(code.contains("LIMIT_S = 30  #"));
    scene.write("event.py", &code.replace("LIMIT_S = 30", "LIMIT_S = 4"));
    scene.write("runtime.py", "import event; print(event.handler({'id': 'e-1', 'invoice': 4711}, None))");
    let invoices =
        INVOICES.replace("(invoice)", "(invoice, look_first)").replace("'runs'", "'runs', look_first");
    scene.write("invoices.py", &invoices);
    let invoke = || scene.any_python("runtime.py", &[]);
    let first = invoke().spawn().unwrap();
    scene.starts_to_run().await;
    Scene::say(invoke()).await.expect(1, "Busy");
    signal(first.id().unwrap(), "KILL");
    Scene::end(first).await;
    let look = async || scene.client.get("/once?key=event:e-1").send().await.json();
    eventually("its lease is over", async || look().await["state"] == "lapsed").await;
    scene.write("go", "");
    for _ in 0..2 {
        Scene::say(invoke()).await.expect(0, "wrote 4711");
    }
    assert_eq!(scene.read("notes"), "runs False\nruns True\n");
}

async fn an_event_whose_result_cannot_be_stored_ends_before_the_limit(scene: Scene) {
    let code = file("event.py");
    assert!(code.contains("LIMIT_S = 30  #"));
    scene.write("event.py", &code);
    scene.write("runtime.py", "import event; print(event.handler({'id': 'e-2', 'invoice': 4711}, None))");
    scene.write("invoices.py", &INVOICES.replace("(invoice)", "(invoice, look_first)"));
    let run = scene.any_python("runtime.py", &[]).spawn().unwrap();
    scene.starts_to_run().await;
    scene.gateway.signal("STOP");
    scene.write("go", "");
    let done = Instant::now();
    Scene::end(run).await.expect(1, "Unknown");
    assert!(done.elapsed() < Duration::from_secs(8), "{:?}", done.elapsed());
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

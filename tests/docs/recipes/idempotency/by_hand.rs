//! What a person does with the programs of docs/recipes/idempotency.md: tries them, waits for them, and looks after a crash.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use super::{FRAMEWORKS, Server};
use crate::clients::{installed, root, tool};
use crate::pages::{Said, Snippet, file, snippets};
use crate::recipes::Scene;
use crate::recipes::provider::Provider;
use kit::{eventually, server_port};

/// Storing is tried for as long as the ttl, 30 s, unless the program says less.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_within_seconds_of_a_charge_that_no_gateway_can_store() {
    futures_util::future::join_all(FRAMEWORKS.map(async |framework| {
        let mut scene = Scene::without_keys().await;
        let provider = Provider::start().await;
        let server = Server::start(framework, &scene, &provider, None).await;
        provider.is_silent();
        let click = server.begin("ann", "click", "1999");
        eventually("it is charged", async || provider.charges() == 1).await;
        scene.gateway.kill();
        let killed = Instant::now();
        provider.answers_again();
        click.await.unwrap().is_receipt("ch_1", false);
        assert!(killed.elapsed() < Duration::from_secs(20), "{framework:?}: {:?}", killed.elapsed());
    }))
    .await;
}

/// By whom the operator knows: the user, and the key that the client sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_finds_the_record_of_a_request_as_the_page_says() {
    let scene = Scene::without_keys().await;
    let find = scene.shell.pasted("K=pay:");
    let (before, key) = find.split_once(" KEY=").unwrap();
    let key = key.lines().next().unwrap();
    assert_eq!(before, "U=ann");
    for framework in FRAMEWORKS {
        let provider = Provider::start().await;
        let server = Server::start(framework, &scene, &provider, None).await;
        let sent = format!("click of {framework:?}");
        let find = find.replace("U=ann", "U=ann%2Fb").replace(key, &format!("'{sent}'"));
        let look = async || Scene::say(scene.command("bash", &["-e", "-u", "-c", &find])).await;
        look().await.expect(0, "/problems/not-begun");
        server.asks(&sent, "1999").await.is_receipt("ch_1", false);
        look().await.expect(0, "\"state\":\"done\"");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_told_that_there_is_no_record_to_break() {
    let scene = Scene::without_keys().await;
    let lines = scene.shell.pasted("there is no such record");
    let said = Scene::say(scene.command("bash", &["-u", "-c", &lines])).await;
    assert!(
        said.text.contains("N: there is no such record") && !said.text.contains("bad-parameter"),
        "{said:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_the_page_charge_once_in_each_framework() {
    let scene = Scene::without_keys().await;
    let of_page = |snippet: &&Snippet| snippet.page.name == "docs/recipes/idempotency-try.md";
    let commands = snippets().iter().filter(of_page).filter_map(|snippet| snippet.code.strip_prefix("$ "));
    let [express, fast_api, click] = commands.collect::<Vec<_>>().try_into().unwrap();
    for name in ["orders.py", "idempotent.py", "orders.mjs", "idempotent.mjs"] {
        scene.write(name, &file(name));
    }
    for name in ["fencepost.py", "fencepost_async.py", "fencepost.mjs"] {
        std::fs::copy(root().join("examples/clients").join(name), scene.shell.path(name)).unwrap();
    }
    symlink(installed("node_modules"), scene.shell.path("node_modules")).unwrap();
    let (at_provider, python) = (server_port(), tool("python").display().to_string());
    scene.write("provider.py", &file("provider.py").replace("9000", &at_provider.to_string()));
    let _provider = scene.command(&python, &["provider.py"]).spawn().unwrap();
    for (number, start) in (1..).zip([express, fast_api]) {
        let port = server_port().to_string();
        let here = |command: &str| {
            let command = command.replace("9000", &at_provider.to_string()).replace("3000", &port);
            let command = command.replace("click-1", &format!("click-{number}"));
            let mut command = scene.command("bash", &["-c", &command.replace("python3", &python)]);
            command.env("PORT", &port).env("PYTHONDONTWRITEBYTECODE", "1");
            command
        };
        let _server = here(start).spawn().unwrap();
        for port in [at_provider, port.parse().unwrap()] {
            eventually("it listens", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        }
        let receipt = format!("{{\"receipt\":\"ch_{number}\"}}");
        let first = Scene::say(here(click)).await.expect(0, &receipt);
        let again = Scene::say(here(click)).await.expect(0, &receipt);
        let is_replayed = |said: &Said| said.text.to_lowercase().contains("idempotency-replayed: true");
        assert!(!is_replayed(&first) && is_replayed(&again), "{first:?} {again:?}");
        assert!(first.text.contains(" 201 ") && again.text.contains(" 201 "), "{first:?} {again:?}");
        Scene::say(here(&click.replace("1999", "2000"))).await.expect(0, " 422 ");
    }
}

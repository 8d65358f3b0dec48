//! What the scripts with `curl` take from their environment, and what of it they leave to their commands.

use super::Scene;

/// As `fencepost run --pass-token` gives one to all that its command starts.
#[tokio::test(flavor = "multi_thread")]
async fn two_scripts_that_inherit_one_lease_token_do_not_both_hold_a_lock() {
    let scene = Scene::without_keys().await;
    let hold = |words: &[&str]| {
        let mut command = scene.script("hold", &[&["k"], words].concat());
        command.env("LEASE_TOKEN", "the-token-of-another-lock");
        command
    };
    let child = hold(&["./job"]).spawn().unwrap();
    scene.starts_to_run().await;
    // The command finds no lease token.
    assert!(!scene.read("notes").contains("the-token"));
    Scene::say(hold(&["touch", "wrong"])).await.expect(75, "lock-held");
    assert!(!scene.shell.path("wrong").exists());
    scene.write("go", "");
    Scene::end(child).await.expect(3, "");
}

/// A crontab sets them for the script in its line, and not for others that its job runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_within_the_command_of_another_has_settings_of_its_own() {
    let scene = Scene::without_keys().await;
    let outer = |script: &str, number: u8, job: &str| {
        let mut command = scene.script(script, &[&format!("{script}-{number}"), "bash", "-c", job]);
        command.envs([
            ("BUSY_EXIT", "0"),
            ("WAIT", "1s"),
            ("HOLD_PARAMS", "min_hold=5m"),
            ("GIVE_UP_S", "9"),
        ]);
        command
    };
    let other = kit::fresh_token();
    scene.client.put("/locks/busy?ttl=1m").token(&other).send().await.expect(201);
    for script in ["hold", "in-turn"] {
        Scene::say(outer(script, 1, "./hold busy touch wrong")).await.expect(75, "busy: no lock");
        Scene::say(outer(script, 2, "./hold inner true")).await.expect(0, "");
        scene.becomes_free("inner").await;
        let job = "echo \"$LOCK_KEY ${GIVE_UP_S-}${HOLD_TOKEN-}${LEASE_TOKEN-}.\"";
        Scene::say(outer(script, 3, job)).await.expect(0, &format!("{script}-3 .\n"));
    }
    assert!(!scene.shell.path("wrong").exists());
}

/// As `fencepost run` and the clients take it.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_may_end_with_a_slash() {
    let scene = Scene::without_keys().await;
    let url = format!("http://{}/", scene.gateway.address);
    for (script, words) in
        [("hold", &["a", "true"][..]), ("in-turn", &["b", "true"]), ("try-lock", &["c", "5s"])]
    {
        let mut command = scene.script(script, words);
        command.env("FENCEPOST_URL", &url);
        Scene::say(command).await.expect(0, "");
    }
}

/// A value that was forgotten makes it empty. On each machine, a gateway may listen at the default address.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_address_starts_no_script() {
    let scene = Scene::without_keys().await;
    for (script, words, said) in [
        ("hold", &["deploy", "touch", "wrong"][..], "deploy: no lock: no answer: look at FENCEPOST_URL"),
        ("in-turn", &["deploy", "touch", "wrong"], "deploy: no lock: HTTP 000: look at FENCEPOST_URL"),
        ("try-lock", &["deploy", "5s"], "deploy: cannot ask: look at FENCEPOST_URL"),
    ] {
        let mut command = scene.script(script, words);
        command.env("FENCEPOST_URL", "");
        Scene::say(command).await.expect(2, said);
        assert!(!scene.shell.path("wrong").exists());
    }
}

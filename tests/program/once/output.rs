//! What becomes of the output: it is passed on as it comes, and kept if it is not too long.

use std::io::Read;
use std::process::{Command, Stdio};

use kit::{Client, Gateway, eventually, fresh_token};

use crate::run::kit::Scene;

#[tokio::test(flavor = "multi_thread")]
async fn other_clients_read_the_output_as_it_is() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    for (key, script, media_type) in [
        ("text", "printf 'all g\\303\\266\\303\\266d\\n'", "text/plain; charset=utf-8"),
        ("bytes", "printf '\\000\\377\\n'", "application/octet-stream"),
        ("nothing", "true", "text/plain; charset=utf-8"),
    ] {
        let run = async || {
            let mut command = scene.command_of("once", &[key, "--", "sh", "-c", script]);
            let output = command.stdout(Stdio::piped()).output().unwrap();
            assert!(output.status.success());
            output.stdout
        };
        let first = run().await;
        assert_eq!(run().await, first);
        let answer = client.put(&format!("/once/{key}")).token(&fresh_token()).send().await.expect(200);
        assert_eq!(answer.body, first);
        assert_eq!(answer.header("once-status"), Some("0"));
        assert_eq!(answer.header("once-content-type"), Some(media_type));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_too_long_is_not_stored_and_a_replay_says_so() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let script = "echo run >>runs; head -c 1048576 /dev/zero | tr '\\000' x";
    let first = scene.do_work(&[], script).await.expect_silent(0);
    assert_eq!(first.stdout.len(), 1 << 20);
    let second = scene.do_work(&[], script).await;
    assert_eq!(second.stdout, "");
    second.expect_line(0, &["\"k\" is done", "output of 1048576 bytes", "too long"]);
    assert_eq!(scene.read("runs"), "run\n");
    let answer = client.put("/once/k").token(&fresh_token()).send().await.expect(200);
    assert_eq!(answer.json(), serde_json::json!({"output_bytes": 1_048_576}));
    let media_type = answer.header("once-content-type");
    assert_eq!(media_type, Some("application/vnd.fencepost.output-omitted+json"));
    assert_eq!(answer.header("once-status"), Some("0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_of_just_the_largest_size_is_stored() {
    let gateway = Gateway::embedded(&["--max-result-bytes", "1024"]).await;
    let scene = Scene::on(&gateway);
    for (key, bytes, kept) in [("fits", 1024, 1024), ("does-not", 1025, 0)] {
        let script = format!("head -c {bytes} /dev/zero | tr '\\000' x");
        for expected in [bytes, kept] {
            let command = scene.command_of("once", &[key, "--", "sh", "-c", &script]);
            let ended = scene.launch(command).end().await;
            assert_eq!((ended.status, ended.stdout.len()), (Some(0), expected), "{key}: {}", ended.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_passed_on_before_the_command_ends() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let running = scene.start_work(&[], "echo first; while [ ! -e over ]; do sleep 0.02; done; echo last");
    eventually("the first line is there", async || running.printed() == "first\n").await;
    std::fs::write(scene.path("over"), "").unwrap();
    assert_eq!(running.end().await.expect_silent(0).stdout, "first\nlast\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_stored_though_the_output_is_not_read() {
    let gateway = Gateway::embedded(&["--max-result-bytes", "1048576"]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let state = async |key: &str| {
        let answer = client.get(&format!("/once/{key}")).send().await;
        answer.json()["state"].as_str().map(str::to_owned)
    };
    // The first part fills the pipe to the reader. So the second stays in the pipe of the command.
    let write = |bytes: u32| format!("head -c {bytes} /dev/zero | tr '\\000' x");
    let script = format!("{}; while [ ! -e over ]; do sleep 0.02; done; {}", write(70_000), write(30_000));
    let mut command = scene.command_of("once", &["slow", "--", "sh", "-c", &script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = child.stdout.take().unwrap();
    let is_full = || rustix::io::ioctl_fionread(&reader).unwrap() > 61_440;
    eventually("the pipe is full", async || is_full()).await;
    std::fs::write(scene.path("over"), "").unwrap();
    eventually("it is stored", async || state("slow").await.as_deref() == Some("done")).await;
    let mut printed = Vec::new();
    reader.read_to_end(&mut printed).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(printed.len(), 100_000);
    let record = client.get("/once/slow").send().await.expect(200).json();
    assert_eq!(record["result_bytes"], 100_000);
    // The reader has gone, and the work goes on.
    let mut command = scene.command_of("once", &["gone", "--", "sh", "-c", &script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    let record = client.get("/once/gone").send().await.expect(200).json();
    assert_eq!((record["state"].as_str(), record["result_bytes"].as_u64()), (Some("done"), Some(100_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_cannot_be_printed_is_told_and_stored() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    for (key, printed) in [("full", "exec \"$@\" >/dev/full"), ("long", "ulimit -f 1; exec \"$@\" >out")] {
        let once = scene.command_of("once", &[key, "--", "sh", "-c", "head -c 5000 /dev/zero; sleep 0.1"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", printed, "sh"]).arg(once.get_program()).args(once.get_args());
        shell.current_dir(once.get_current_dir().unwrap());
        shell.envs(once.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ended = scene.launch(shell).end().await;
        ended.expect_line(71, &["cannot print"]);
        let stored = client.put(&format!("/once/{key}")).token(&fresh_token()).send().await.expect(200);
        assert_eq!(stored.body.len(), 5000, "{key}");
    }
}

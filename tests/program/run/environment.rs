//! What the command is given: its environment, its arguments and its streams, untouched but for the lock.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use super::kit::Scene;
use super::shape::Recorder;
use kit::gateway::program;
use kit::{Client, Gateway};

#[tokio::test(flavor = "multi_thread")]
async fn the_command_gets_the_key_and_the_number_of_its_grant() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let before = client.put("/locks/a%2Fb%20%C3%A9").send().await.expect(201);
    let path = "/lock?key=a/b%20%C3%A9";
    client.delete(path).token(&before.token()).send().await.expect(204);
    let ended = scene.run(&["a/b é", "--", "printenv", "LOCK_KEY", "FENCING_TOKEN"]).await.expect_silent(0);
    let (key, number) = ended.stdout.trim_end().split_once('\n').unwrap();
    assert_eq!(key, "a/b é");
    assert!(number.parse::<u64>().unwrap() > before.fencing_token(), "{number}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_gets_its_slot_and_not_that_of_another_lock() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?slots=any&ttl=1m").send().await.expect(201);
    let ended = scene.run(&["--slots", "2", "k", "--", "printenv", "LOCK_SLOT"]).await.expect_silent(0);
    assert_eq!(ended.stdout, "2\n");
    client.put("/locks/k?slots=2&ttl=1m").send().await.expect(201);
    scene.run(&["--slots", "2", "--wait", "0s", "k", "--", "true"]).await.expect_line(75, &["busy"]);
    let ended = scene.run(&["--slots", "1", "one", "--", "printenv", "LOCK_SLOT"]).await.expect_silent(0);
    assert_eq!(ended.stdout, "1\n");
    // A lock that is held alone has none, also within a run that has one.
    let mut command = scene.command(&["alone", "--", "printenv", "LOCK_SLOT"]);
    command.env("LOCK_SLOT", "7");
    assert_eq!(scene.launch(command).end().await.expect_silent(1).stdout, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_gets_the_token_only_when_it_is_passed() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    // Not even one that was there before: it would be that of another lock.
    let mut command = scene.command(&["k", "--", "printenv", "LEASE_TOKEN"]);
    command.env("LEASE_TOKEN", "that-of-another-lock");
    let ended = scene.launch(command).end().await.expect_silent(1);
    assert_eq!(ended.stdout, "");

    let script = "echo $LEASE_TOKEN >token.new; mv token.new token; while [ ! -e over ]; do sleep 0.02; done";
    let running = scene.start_script(&["--pass-token"], script);
    kit::eventually("the command has its token", async || scene.path("token").exists()).await;
    let token = scene.read("token").trim().to_owned();
    assert_eq!(client.get("/locks/k").token(&token).send().await.expect(200).json()["yours"], true);
    std::fs::write(scene.path("over"), "").unwrap();
    running.end().await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_does_not_get_the_key_of_the_gateway() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let mut command = scene.command(&["--pass-token", "k", "--", "printenv", "FENCEPOST_API_KEY"]);
    command.env("FENCEPOST_API_KEY", "secret");
    let ended = scene.launch(command).end().await.expect_silent(1);
    assert_eq!(ended.stdout, "");
}

/// Root can read everything, so this is done without what makes root more than a user.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_cannot_read_the_key_in_the_environment_of_run() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let look = "exec 2>/dev/null; cat /proc/$PPID/environ >environ; cat /proc/$$/environ >own; exit 3";
    std::fs::write(scene.path("command"), look).unwrap();
    for shell in ["exec \"$@\"", "sleep 1 & exec \"$@\""] {
        let run = [program(), "run", "k", "--", "sh", "command"];
        let mut words = vec!["sh", "-c", shell, "sh"];
        words.extend(run);
        if rustix::process::getuid().is_root() {
            words.splice(0..0, ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]);
        }
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("FENCEPOST_URL", &scene.url).current_dir(scene.directory.path());
        command.env("FENCEPOST_API_KEY", "the-key-itself");
        scene.launch(command).end().await.expect_silent(3);
        // It may read what is its own.
        assert!(scene.read("own").contains("LOCK_KEY=k"));
        assert!(scene.read("environ").is_empty(), "{shell}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_shell_reads_the_arguments() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let args = ["$HOME", "a b", "*", "`id`", "; exit 9", "--", "-v", "", "'\""];
    let all = [&["k", "--", "printf", "[%s]\\n"], &args[..]].concat();
    let ended = scene.run(&all).await.expect_silent(0);
    let lines: Vec<_> = args.iter().map(|arg| format!("[{arg}]\n")).collect();
    assert_eq!(ended.stdout, lines.concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_are_the_commands_own() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    std::fs::write(scene.path("input"), b"bytes \xff\n").unwrap();
    let mut command = scene.command(&["k", "--", "sh", "-c", "cat >copy; echo out; echo err >&2"]);
    command.stdin(Stdio::from(std::fs::File::open(scene.path("input")).unwrap()));
    let ended = scene.launch(command).end().await;
    assert_eq!((ended.status, &*ended.stdout, &*ended.stderr), (Some(0), "out\n", "err\n"));
    assert_eq!(std::fs::read(scene.path("copy")).unwrap(), b"bytes \xff\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_the_gateway_comes_from_the_environment_or_a_file() {
    let recorder = Recorder::start().await;
    let scene = Scene::at(recorder.url());
    std::fs::write(scene.path("key"), "from-the-file\n").unwrap();
    let file = scene.path("key").display().to_string();
    let with = |name: &str, value: &str| {
        let mut command = scene.command(&["k", "--", "true"]);
        command.env(name, value);
        command
    };
    scene.launch(with("FENCEPOST_API_KEY", "from-the-environment")).end().await.expect_silent(0);
    scene.launch(with("FENCEPOST_API_KEY_FILE", &file)).end().await.expect_silent(0);
    scene.run(&["--api-key-file", &file, "k", "--", "true"]).await.expect_silent(0);
    scene.run(&["k", "--", "true"]).await.expect_silent(0);
    let shown: Vec<_> = recorder.requests().iter().map(|request| request.header("authorization")).collect();
    let [a, b] = ["Bearer from-the-environment", "Bearer from-the-file"].map(|key| Some(key.to_owned()));
    // Each run takes and releases.
    assert_eq!(shown, [&a, &a, &b, &b, &b, &b, &None, &None].map(Clone::clone));
    // Both at once may be a mistake.
    let mut both = with("FENCEPOST_API_KEY", "x");
    both.env("FENCEPOST_API_KEY_FILE", &file);
    scene.launch(both).end().await.expect_line(2, &["FENCEPOST_API_KEY"]);
}

/// Without it, a gateway without keys would be asked all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_cannot_be_sent_is_refused_and_does_not_count_as_not_set() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let file = scene.path("key").display().to_string();
    std::fs::write(&file, "k".repeat(5_000_000)).unwrap();
    let unreadable = OsStr::from_bytes(b"a\xff");
    let rule = "must be one line of visible ASCII characters";
    let mut command = scene.command(&["k", "--", "true"]);
    command.env("FENCEPOST_API_KEY", unreadable);
    scene.launch(command).end().await.expect_line(2, &["FENCEPOST_API_KEY", rule]);
    let mut command = scene.command(&["--api-key-file", &file, "k", "--", "true"]);
    command.env("FENCEPOST_API_KEY", unreadable);
    scene.launch(command).end().await.expect_line(2, &["give one of them"]);
    // It is another file that was meant. What is sent of it breaks the connection.
    let too_long = scene.run(&["--api-key-file", &file, "k", "--", "true"]).await;
    too_long.expect_line(2, &["--api-key-file", "at most 8192 characters"]);
    // Nor does a lease token.
    let mut release = kit::gateway::bare_command();
    release.args(["release", "k"]).env("FENCEPOST_URL", &scene.url).env("LEASE_TOKEN", unreadable);
    let output = release.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("LEASE_TOKEN: "), "{said}");
    assert!(!said.contains("there is no lease token"), "{said}");
}

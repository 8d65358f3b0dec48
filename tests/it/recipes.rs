//! The recipes for what others start: a script in the background, systemd, CI and Kubernetes. They are taken out of the
//! pages, and run as those would; only addresses and paths are the test's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::clients::tool;
use crate::pages::{DOCUMENTED_ADDRESS, Said, Shell, file};
use crate::support::gateway::PROGRAM;
use crate::support::proxy::Framing;
use crate::support::{Client, Gateway, PATIENCE, Proxy, eventually, signal};

/// Runs until it may end, notes how it was asked to, and has exit statuses of its own.
const JOB: &str = "#!/usr/bin/env bash
trap 'echo asked to end >>notes; exit 4' TERM
echo runs >>notes
for _ in {1..3000}; do [ ! -e go ] || exit 3; sleep 0.02; done
";
/// Notes what everybody on the machine can read of it.
const SPIED_CURL: &str = "#!/usr/bin/env bash
printf '%s\\n' \"$*\" >>arguments
PATH=${PATH#*:} exec curl \"$@\"
";
/// The scripts that hold a lock while their job runs.
const HOLDING: [&str; 2] = ["with-lock", "hold"];

/// A directory with the recipes in it, whose way to a gateway leads through a proxy.
struct Scene {
    shell: Shell,
    client: Client,
    proxy: Proxy,
    gateway: Gateway,
}

impl Scene {
    async fn start() -> Self {
        let gateway = gateway().await;
        let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
        let shell = Shell::at(format!("127.0.0.1:{}", proxy.port()));
        fs::create_dir(shell.path("bin")).unwrap();
        let scene = Self { shell, client: Client::new(gateway.address), proxy, gateway };
        scene.program("job", JOB);
        scene.program("bin/curl", SPIED_CURL);
        symlink(PROGRAM, scene.shell.path("bin/fencepost")).unwrap();
        scene
    }

    fn program(&self, name: &str, code: &str) {
        let path = self.shell.path(name);
        fs::write(&path, code).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.shell.path(name)).unwrap_or_default()
    }

    fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = self.shell.command(program, args);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.shell.path("bin").display()));
        command
    }

    /// Has a recipe run the job under the lock `k`, and waits until it does.
    async fn begin(&self, recipe: &str, ttl_s: &str) -> Child {
        let mut command = self.command(self.shell.path(recipe), &["k", "./job"]);
        let child = command.env("TTL_S", ttl_s).spawn().unwrap();
        eventually("the job runs", async || self.read("notes") == "runs\n").await;
        child
    }

    /// How a recipe came to its end, once nothing of the job is left.
    async fn end(child: Child) -> Said {
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        Said::of(output.expect("it does not end").unwrap())
    }

    async fn becomes_free(&self) {
        let look = async || self.client.get("/locks/k").send().await;
        eventually("the lock is free", async || look().await.status == 404).await;
    }
}

async fn gateway() -> Gateway {
    Gateway::start(&["--store", "memory:"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_holds_its_lock_for_as_long_as_its_job_runs() {
    futures_util::future::join_all(HOLDING.map(async |recipe| {
        let scene = Scene::start().await;
        let child = scene.begin(recipe, "6").await;
        let number = scene.client.get("/locks/k").send().await.expect(200).fencing_token();
        // For longer than the lease that was asked for.
        let renewed = Instant::now() + Duration::from_secs(8);
        while Instant::now() < renewed {
            assert_eq!(
                scene.client.get("/locks/k").send().await.expect(200).fencing_token(),
                number,
                "{recipe}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let second =
            scene.command(scene.shell.path(recipe), &["k", "touch", "wrong"]).env("WAIT", "0s").output();
        Said::of(second.await.unwrap()).expect(75, "k: ");
        fs::write(scene.shell.path("go"), "").unwrap();
        let said = Scene::end(child).await;
        assert_eq!((said.code, said.text.as_str()), (Some(3), ""), "{recipe}");
        scene.becomes_free().await;
        assert!(!scene.shell.path("wrong").exists() && scene.read("notes") == "runs\n");
        let arguments = scene.read("arguments");
        assert!(arguments.contains("key=k") && !arguments.to_lowercase().contains("token"), "{arguments}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_is_ended_ends_its_job_and_frees_its_lock() {
    futures_util::future::join_all(HOLDING.map(async |recipe| {
        for name in ["TERM", "INT", "HUP"] {
            let scene = Scene::start().await;
            let child = scene.begin(recipe, "60").await;
            signal(child.id().unwrap(), name);
            let said = Scene::end(child).await;
            assert_eq!((said.code, said.text.as_str()), (Some(4), ""), "{recipe} {name}");
            assert_eq!(scene.read("notes"), "runs\nasked to end\n", "{recipe} {name}");
            scene.becomes_free().await;
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_loses_its_lock_ends_its_job() {
    futures_util::future::join_all(HOLDING.map(async |recipe| {
        let scene = Scene::start().await;
        let child = scene.begin(recipe, "3").await;
        // From one moment to the next a gateway answers that knows nothing of the lock.
        let forgetful = gateway().await;
        scene.proxy.set_target(forgetful.address.port());
        scene.proxy.sever();
        let said = Scene::end(child).await.expect(4, "k: the lock is lost");
        assert_eq!(scene.read("notes"), "runs\nasked to end\n", "{recipe}: {said:?}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_told_why_its_connection_lost_the_lock() {
    let scene = Scene::start().await;
    let child = scene.begin("hold", "").await;
    scene.gateway.signal("TERM");
    let said = Scene::end(child).await;
    assert_eq!((said.code, said.text.as_str()), (Some(4), "k: the lock is lost: shutting-down\n"));
}

/// The connection stands, and nothing comes by it: the lock is lost to whoever cannot be told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_whose_gateway_stands_still_ends_its_job() {
    let scene = Scene::start().await;
    let child = scene.begin("hold", "").await;
    scene.gateway.signal("STOP");
    let said = Scene::end(child).await;
    scene.gateway.signal("CONT");
    let expected = "k: the lock is lost: nothing was heard of it in time\n";
    assert_eq!((said.code, said.text.as_str()), (Some(4), expected));
    assert_eq!(scene.read("notes"), "runs\nasked to end\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_holds_a_lock_ends_when_its_gateway_stands_still() {
    let scene = Scene::start().await;
    let code = scene.shell.pasted("/hold?key=import");
    assert!(code.contains("kill $!\n"));
    let code = code.replace("kill $!\n", ">begun; wait $! || echo \"ended: $?\"\n");
    let child = scene.command("bash", &["-e", "-u", "-c", &code]).spawn().unwrap();
    eventually("the lock is held", async || scene.shell.path("begun").exists()).await;
    scene.gateway.signal("STOP");
    let said = Scene::end(child).await;
    scene.gateway.signal("CONT");
    said.expect(0, "ended: 28\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_recipe_shows_its_token_to_everybody_on_the_machine() {
    let scene = Scene::start().await;
    let recipes: [(&str, &[&str]); 6] = [
        ("run-alone", &["a", "1m", "true"]),
        ("in-turn", &["b", "1m", "true"]),
        ("pay", &["4711"]),
        ("function", &[]),
        ("deposit", &["bank.db", "7", "1"]),
        ("try-lock", &["c"]),
    ];
    for (name, args) in recipes {
        scene.command(scene.shell.path(name), args).output().await.unwrap();
        let arguments = scene.read("arguments");
        fs::remove_file(scene.shell.path("arguments")).unwrap();
        assert!(arguments.contains("-X PUT"), "{name}: {arguments}");
        assert!(!arguments.to_lowercase().contains("lease-token"), "{name}: {arguments}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_machines_with_the_timer_one_does_the_work() {
    let scene = Scene::start().await;
    scene.program("bin/report", "#!/bin/sh\necho reported >>notes\n");
    let ours = |text: String| {
        let bin = format!("{}/", scene.shell.path("bin").display());
        text.replace("/usr/local/bin/", &bin).replace(DOCUMENTED_ADDRESS, scene.shell.address())
    };
    let units = ["nightly-report.service", "nightly-report.timer"];
    for name in units {
        fs::write(scene.shell.path(name), ours(file(name))).unwrap();
    }
    let mut verify = scene.command("systemd-analyze", &["verify", "--man=no", units[0], units[1]]);
    let said = Said::of(verify.output().await.expect("systemd-analyze must be installed: `make tools`"));
    let complains = said.text.lines().any(|line| units.iter().any(|unit| line.contains(unit)));
    assert!(said.code == Some(0) && !complains, "{said:?}");

    let service = scene.read(units[0]);
    let value = |name: &str| {
        let line = service.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let words = value("ExecStart");
    let words: Vec<_> = words.split(' ').collect();
    let (variable, address) =
        value("Environment").split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    for _ in 0..3 {
        let machine = scene.command(words[0], &words[1..]).env(&variable, &address).output();
        Said::of(machine.await.unwrap()).expect(0, "");
    }
    assert_eq!(scene.read("notes"), "reported\n");
}

/// What a YAML document says.
pub async fn yaml(text: &str) -> Value {
    let script =
        "import json, sys, ruamel.yaml as y; json.dump(y.YAML(typ='safe').load(sys.stdin), sys.stdout)";
    let mut command = Command::new(tool("python"));
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    serde_json::from_slice(&child.wait_with_output().await.unwrap().stdout).unwrap()
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pipelines_deploy_one_after_the_other() {
    let scene = Scene::start().await;
    let job = "#!/usr/bin/env bash
echo begins >>notes
for _ in {1..3000}; do [ ! -e \"$PIPELINE\" ] || { echo $1 ends >>notes; exit 3; }; sleep 0.02; done
";
    scene.program("deploy.sh", job);
    let workflow = yaml(&file("deploy.yml")).await;
    assert!(workflow["on"].is_object());
    let pipeline = &workflow["jobs"]["deploy"];
    let steps = pipeline["steps"].as_array().unwrap();
    let mut commands = steps.iter().filter_map(|step| step["run"].as_str());
    fs::write(scene.shell.path("step"), commands.next().unwrap()).unwrap();
    assert!(commands.next().is_none() && pipeline["runs-on"].is_string());
    assert_eq!(pipeline["env"]["FENCEPOST_URL"], "${{ vars.FENCEPOST_URL }}");
    let start = |id: &str| {
        // As a runner does where the step names no shell.
        let mut command = scene.command("bash", &["-e", "step"]);
        command.env("GITHUB_REPOSITORY", "acme/shop").env("GITHUB_RUN_ID", id).env("PIPELINE", id);
        command.spawn().unwrap()
    };
    let look = async || scene.client.get("/locks/deploy%20to%20production").send().await;
    let first = start("1");
    eventually("the first deploys", async || scene.read("notes") == "begins\n").await;
    assert_eq!(look().await.expect(200).json()["owner"], "acme/shop, run 1");
    let second = start("2");
    eventually("the second waits", async || look().await.json()["waiters"] == 1).await;
    for (id, pipeline) in [("1", first), ("2", second)] {
        fs::write(scene.shell.path(id), "").unwrap();
        assert_eq!(Scene::end(pipeline).await.code, Some(3));
    }
    assert_eq!(scene.read("notes"), "begins\nproduction ends\n".repeat(2));
    look().await.expect_problem(404, "not-held");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_clusters_with_the_cronjob_one_does_the_work() {
    let scene = Scene::start().await;
    scene.program("report", "#!/bin/sh\necho reported >>notes\n");
    let job = yaml(&file("cronjob.yaml")).await;
    assert_eq!((job["apiVersion"].as_str(), job["kind"].as_str()), (Some("batch/v1"), Some("CronJob")));
    assert_eq!(job["spec"]["schedule"].as_str().unwrap().split(' ').count(), 5);
    assert_eq!(job["spec"]["concurrencyPolicy"], "Forbid");
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Never");
    assert!(pod["volumes"][0]["emptyDir"].is_object());
    let volume = &pod["volumes"][0]["name"];
    for _ in 0..3 {
        for containers in [&pod["initContainers"], &pod["containers"]] {
            let container = &containers[0];
            assert!(container["name"].is_string() && container["image"].is_string());
            assert_eq!(
                (&container["volumeMounts"][0]["name"], containers.as_array().unwrap().len()),
                (volume, 1)
            );
            // Each pod begins with a volume of its own, which is empty.
            let mount = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
            let place = scene.shell.path("volume");
            if containers == &pod["initContainers"] {
                let _ = fs::remove_dir_all(&place);
                fs::create_dir(&place).unwrap();
            }
            let map = |path: &str| match path {
                "/usr/local/bin/fencepost" => PROGRAM.to_owned(),
                "/app/report" => scene.shell.path("report").display().to_string(),
                _ if path.starts_with(mount) => path.replacen(mount, place.to_str().unwrap(), 1),
                _ => path.to_owned(),
            };
            let command: Vec<_> = words(&container["command"]).into_iter().map(map).collect();
            let arguments: Vec<_> = command[1..].iter().map(String::as_str).collect();
            let mut started = scene.command(&command[0], &arguments);
            for variable in container["env"].as_array().into_iter().flatten() {
                assert_eq!(
                    (variable["name"].as_str(), variable["value"].as_str().is_some()),
                    (Some("FENCEPOST_URL"), true)
                );
            }
            Said::of(started.output().await.unwrap()).expect(0, "");
        }
    }
    assert_eq!(scene.read("notes"), "reported\n");
}

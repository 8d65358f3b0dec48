//! Steps of pipelines, and a CronJob and a Deployment of Kubernetes.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::process::Child;

use super::cron::{ONE_GATEWAY, good_units, value_of};
use super::{Scene, on_each_gateway, yaml};
use crate::deploying::manifests;
use crate::pages::file;
use kit::gateway::program;
use kit::{eventually, signal};

on_each_gateway!(
    two_pipelines_of_github_deploy_one_after_the_other,
    two_pipelines_of_gitlab_deploy_one_after_the_other,
    a_run_of_github_whose_shell_alone_gets_the_signal_deploys_no_more,
    of_several_clusters_with_the_cronjob_one_does_the_work,
    of_the_pods_of_a_deployment_one_leads,
    of_machines_with_the_unit_one_leads,
);

/// What a pipeline finds in its environment.
type Variables = Vec<(&'static str, String)>;

const DEPLOY: &str = "#!/usr/bin/env bash
echo \"begins ${FENCING_TOKEN:+with its token}${FENCEPOST_API_KEY-}\" >>notes
for _ in {1..3000}; do [ ! -e \"$PIPELINE\" ] || { echo $1 ends >>notes; exit 3; }; sleep 0.02; done
";

/// What the runner of GitHub gives its shell.
async fn step_of_github() -> String {
    let workflow = yaml(&file("deploy.yml")).await;
    assert!(workflow["on"].is_object());
    let pipeline = &workflow["jobs"]["deploy"];
    let steps = pipeline["steps"].as_array().unwrap();
    let commands: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    assert!(commands.len() == 1 && pipeline["runs-on"].is_string());
    assert_eq!(pipeline["env"]["FENCEPOST_URL"], "${{ vars.FENCEPOST_URL }}");
    assert_eq!(pipeline["env"]["FENCEPOST_API_KEY"], "${{ secrets.FENCEPOST_API_KEY }}");
    commands[0].to_owned()
}

fn names_of_github(id: &str) -> Variables {
    vec![("GITHUB_REPOSITORY", "acme/shop".to_owned()), ("GITHUB_RUN_ID", id.to_owned())]
}

async fn two_pipelines_of_github_deploy_one_after_the_other(scene: Scene) {
    let step = step_of_github().await;
    deploy_one_after_the_other(&scene, &step, names_of_github, "acme/shop, run 1").await;
}

/// As the runner sends it when the run is canceled.
async fn a_run_of_github_whose_shell_alone_gets_the_signal_deploys_no_more(scene: Scene) {
    let shell = start_pipeline(&scene, &step_of_github().await, names_of_github("1"), "1");
    scene.starts_to_run().await;
    signal(shell.id().unwrap(), "TERM");
    assert_eq!(Scene::end(shell).await.code, Some(143));
    assert!(scene.processes("fencepost").is_empty() && scene.processes("bash").is_empty());
    assert!(!scene.read("notes").contains("ends"));
    let look = scene.client.get("/locks/deploy%20to%20production");
    look.send().await.expect_problem(404, "not-held");
}

async fn two_pipelines_of_gitlab_deploy_one_after_the_other(scene: Scene) {
    let pipeline = yaml(&file(".gitlab-ci.yml")).await;
    let script = pipeline["deploy"]["script"].as_array().unwrap();
    assert_eq!(script.len(), 1);
    let names = |id: &str| vec![("CI_PROJECT_PATH", "acme/shop".to_owned()), ("CI_JOB_ID", id.to_owned())];
    deploy_one_after_the_other(&scene, script[0].as_str().unwrap(), names, "acme/shop, job 1").await;
}

/// As a runner does where the step names no shell.
fn start_pipeline(scene: &Scene, step: &str, names: Variables, id: &str) -> Child {
    scene.program("deploy.sh", DEPLOY);
    scene.write("step", step);
    let mut command = scene.command("bash", &["-e", "step"]);
    command.envs(names).env("PIPELINE", id);
    // Both keep the key in a variable.
    if let Some(key) = &scene.api_key {
        command.env_remove("FENCEPOST_API_KEY_FILE").env("FENCEPOST_API_KEY", key);
    }
    command.spawn().unwrap()
}

async fn deploy_one_after_the_other(
    scene: &Scene,
    step: &str,
    names: impl Fn(&str) -> Variables,
    owner: &str,
) {
    let start = |id: &str| start_pipeline(scene, step, names(id), id);
    let look = async || scene.client.get("/locks/deploy%20to%20production").send().await;
    let first = start("1");
    scene.starts_to_run().await;
    assert_eq!(look().await.expect(200).json()["owner"], owner);
    let second = start("2");
    eventually("the second waits", async || look().await.json()["waiters"] == 1).await;
    for (id, pipeline) in [("1", first), ("2", second)] {
        scene.write(id, "");
        assert_eq!(Scene::end(pipeline).await.code, Some(3));
    }
    assert_eq!(scene.read("notes"), "begins with its token\nproduction ends\n".repeat(2));
    look().await.expect_problem(404, "not-held");
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

async fn of_several_clusters_with_the_cronjob_one_does_the_work(scene: Scene) {
    scene.program("report", "#!/bin/sh\necho \"reported ${FENCING_TOKEN:+with its token}\" >>notes\n");
    let job = yaml(&file("cronjob.yaml")).await;
    assert_eq!((job["apiVersion"].as_str(), job["kind"].as_str()), (Some("batch/v1"), Some("CronJob")));
    assert_eq!(job["spec"]["schedule"].as_str().unwrap().split(' ').count(), 5);
    assert_eq!(job["spec"]["concurrencyPolicy"], "Forbid");
    // Clusters start it together. A pod that is late by hours finds the lock taken.
    assert_eq!(job["spec"]["timeZone"], "Etc/UTC");
    assert_eq!(job["spec"]["startingDeadlineSeconds"], 60);
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Never");
    // What is mounted is a volume of the pod, and the two objects hold what the variables name.
    assert!(pod["volumes"][0]["emptyDir"].is_object());
    let sources = pod["volumes"][1]["projected"]["sources"].as_array().unwrap();
    let items: Vec<_> =
        ["secret", "configMap"].iter().zip(sources).map(|(kind, source)| &source[kind]["items"][0]).collect();
    let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    let container = &pod["containers"][0];
    for mount in
        [&pod["initContainers"][0], container].iter().flat_map(|c| c["volumeMounts"].as_array().unwrap())
    {
        assert!(volumes.contains(&&mount["name"]), "{mount}");
    }
    let variables = container["env"].as_array().unwrap();
    let value =
        |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap()["value"].as_str();
    assert!(value("FENCEPOST_URL").unwrap().starts_with("https://"));
    for (variable, item) in ["FENCEPOST_API_KEY_FILE", "FENCEPOST_CA_FILE"].into_iter().zip(items) {
        assert_eq!(value(variable).unwrap(), format!("/gateway/{}", item["path"].as_str().unwrap()));
        assert_eq!(item["key"], item["path"]);
    }
    for _ in 0..3 {
        // Each pod begins with a volume of its own, which is empty.
        let place = scene.shell.path("volume");
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).unwrap();
        for container in [&pod["initContainers"][0], container] {
            assert!(container["name"].is_string() && container["image"].is_string());
            let map = |path: &str| match path {
                "/usr/local/bin/fencepost" => program().to_owned(),
                "/app/report" => scene.shell.path("report").display().to_string(),
                _ if path.starts_with("/tools") => path.replacen("/tools", place.to_str().unwrap(), 1),
                _ => path.to_owned(),
            };
            let command: Vec<_> = words(&container["command"]).into_iter().map(map).collect();
            let arguments: Vec<_> = command[1..].iter().map(String::as_str).collect();
            Scene::say(scene.command(&command[0], &arguments)).await.expect(0, "");
        }
    }
    assert_eq!(scene.read("notes"), "reported with its token\n");
    let kept = scene.client.get("/locks/nightly-report").send().await.expect(200).json();
    assert!(kept["expires_in_ms"].as_u64().unwrap() > 5 * 3_600_000, "{kept}");
}

/// A pod is its container's command here, which ends with what it has started.
async fn of_the_pods_of_a_deployment_one_leads(scene: Scene) {
    let deployment = manifests(&file("leader.yaml")).await.remove(0);
    assert_eq!(deployment["spec"]["strategy"]["type"], "Recreate");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let map = |word: &str| match word {
        "/tools/fencepost" => program().to_owned(),
        "/app/serve" => scene.shell.path("bin/serve").display().to_string(),
        _ => word.to_owned(),
    };
    let command: Vec<_> = words(&container["command"]).into_iter().map(map).collect();
    one_leads(&scene, &command).await;
}

/// `systemctl stop` sends SIGTERM to `fencepost run` alone, as the end of a pod does.
async fn of_machines_with_the_unit_one_leads(scene: Scene) {
    scene.program("bin/serve", "");
    good_units(&scene, &["orders.service"]).await;
    let unit = scene.read("orders.service");
    assert_eq!(value_of(&unit, "Environment"), format!("FENCEPOST_URL={ONE_GATEWAY}"));
    // It ends when its wait is over, and systemd gives it up if it ends too often.
    for (name, value) in [("Restart", "always"), ("StartLimitIntervalSec", "0"), ("KillMode", "mixed")] {
        assert_eq!(value_of(&unit, name), value);
    }
    let command: Vec<_> = value_of(&unit, "ExecStart").split(' ').map(str::to_owned).collect();
    one_leads(&scene, &command).await;
}

/// Of two that run this, one leads until it is ended, and then the other one.
async fn one_leads(scene: &Scene, command: &[String]) {
    scene.program(
        "bin/serve",
        "#!/bin/sh\necho \"leads ${FENCING_TOKEN:+with its token}\" >>notes\nexec sleep 600\n",
    );
    let start = || {
        let arguments: Vec<_> = command[1..].iter().map(String::as_str).collect();
        scene.command(&command[0], &arguments).spawn().unwrap()
    };
    let look = async || scene.client.get("/locks/leader:orders").send().await;
    let first = start();
    eventually("the first leads", async || scene.read("notes").lines().count() == 1).await;
    let second = start();
    eventually("the second waits", async || look().await.json()["waiters"] == 1).await;
    for (leader, leaders) in [(first, 2), (second, 2)] {
        // As Kubernetes deletes a pod.
        kill(Pid::from_raw(leader.id().unwrap().cast_signed()), Signal::SIGTERM).unwrap();
        Scene::end(leader).await;
        eventually("the next leads", async || scene.read("notes").lines().count() == leaders).await;
    }
    assert_eq!(scene.read("notes"), "leads with its token\n".repeat(2));
    look().await.expect_problem(404, "not-held");
}

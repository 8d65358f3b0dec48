//! Jobs that one of several machines does: the crontab, and the timer of systemd.

use std::time::Duration;

use tokio::process::Command;

use super::{Scene, on_each_gateway};
use crate::pages::{DOCUMENTED_ADDRESS, Said, file, pages};
use kit::{eventually, signal};

on_each_gateway!(
    of_several_machines_with_the_crontab_one_does_the_work,
    a_job_of_cron_that_crashes_leaves_nothing_behind,
    a_job_of_cron_whose_run_is_killed_goes_on_and_its_lock_ends,
    of_several_machines_with_the_timer_one_does_the_work,
);

/// What cron is told: variables, and the command of the one job, with a job of the test's.
fn crontab(scene: &Scene, job: &str) -> (Vec<(String, String)>, String) {
    scene.program("bin/backup", job);
    let text = file("crontab");
    let bin = format!("{}/", scene.shell.path("bin").display());
    let (mut variables, mut jobs) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match line.split_once('=') {
            Some((name, value)) if !name.contains(' ') => variables.push((name.to_owned(), value.to_owned())),
            _ => {
                let (times, command) =
                    line.match_indices(' ').nth(4).map(|(at, _)| line.split_at(at)).unwrap();
                assert!(times.split(' ').all(|time| time == "*" || time.parse::<u8>().is_ok()), "{times}");
                assert!(!command.contains('%'), "cron takes it for the end of the line");
                jobs.push(command.trim().replace("/usr/local/bin/", &bin));
            }
        }
    }
    assert_eq!(variables, [("FENCEPOST_URL".to_owned(), format!("http://{DOCUMENTED_ADDRESS}"))]);
    // The page says what is added where keys and TLS are in use.
    let page = &pages().iter().find(|page| page.name == "docs/recipes/cron.md").unwrap().text;
    variables.clear();
    for (name, value) in scene.variables().iter().filter(|(name, _)| *name != "FENCEPOST_CURL") {
        assert!(page.contains(&format!("{name}=")), "{name}");
        variables.push(((*name).to_owned(), value.clone()));
    }
    let [job] = jobs.try_into().unwrap();
    (variables, job)
}

/// One machine's turn: as cron does it, with a shell that knows little.
fn cron(scene: &Scene, (variables, job): &(Vec<(String, String)>, String)) -> Command {
    let mut command = scene.command("/bin/sh", &["-c", job]);
    command.env_clear().env("PATH", "/usr/bin:/bin").envs(variables.iter().cloned());
    command
}

async fn of_several_machines_with_the_crontab_one_does_the_work(scene: Scene) {
    let tab = crontab(&scene, super::JOB);
    let first = cron(&scene, &tab).spawn().unwrap();
    scene.starts_to_run().await;
    let look = async || scene.client.get("/locks/nightly-backup").send().await;
    let held = look().await.expect(200);
    assert_eq!(scene.read("notes"), format!("runs {}\n", held.fencing_token()));
    let left = held.json()["expires_in_ms"].as_u64().unwrap();
    assert!((590_000..=600_000).contains(&left), "{left}");
    // Other machines, and the same one in the next night: nothing is started, and that is no failure.
    for _ in 0..2 {
        let said = Scene::say(cron(&scene, &tab)).await.expect(0, "\"nightly-backup\" is busy");
        assert_eq!(said.text.lines().count(), 1, "{said:?}");
    }
    scene.write("go", "");
    Scene::end(first).await.expect(3, "");
    // A machine whose clock is late finds it taken still.
    Scene::say(cron(&scene, &tab)).await.expect(0, "is busy");
    assert_eq!(scene.read("notes").lines().count(), 1);
    let kept = look().await.expect(200).json()["expires_in_ms"].as_u64().unwrap();
    assert!((270_000..=300_000).contains(&kept), "{kept}");
    // No gateway: nothing is started, and one line says why.
    let mut alone = cron(&scene, &tab);
    Scene::alone(&mut alone);
    let said = Scene::say(alone).await.expect(69, "cannot take the lock");
    assert_eq!(said.text.lines().count(), 1, "{said:?}");
    assert_eq!(scene.read("notes").lines().count(), 1);
}

async fn a_job_of_cron_that_crashes_leaves_nothing_behind(scene: Scene) {
    let tab = crontab(&scene, "#!/usr/bin/env bash\nsleep 300 &\ntouch begun\nkill -KILL $$\n");
    let said = Scene::say(cron(&scene, &tab)).await;
    assert_eq!(said.code, Some(137), "{said:?}");
    assert!(scene.shell.path("begun").exists());
    assert!(scene.processes("sleep").is_empty());
    // It was released: what is left of it is the time that --min-hold asks for.
    let held = scene.client.get("/locks/nightly-backup").send().await.expect(200).json();
    assert_eq!(held["released"], true, "{held}");
}

async fn a_job_of_cron_whose_run_is_killed_goes_on_and_its_lock_ends(scene: Scene) {
    let tab = crontab(&scene, super::JOB);
    let shell = cron(&scene, &tab).spawn().unwrap();
    scene.starts_to_run().await;
    let runs = scene.processes("fencepost");
    assert!(!runs.is_empty());
    for run in runs {
        signal(run, "KILL");
    }
    let held = scene.client.get("/locks/nightly-backup").send().await.expect(200).json();
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 600_000, "{held}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!scene.processes("bash").is_empty(), "the job goes on");
    assert_eq!(scene.read("notes").lines().count(), 1);
    scene.write("go", "");
    eventually("the job ends", async || scene.processes("bash").is_empty()).await;
    Scene::end(shell).await.expect(137, "");
}

async fn of_several_machines_with_the_timer_one_does_the_work(scene: Scene) {
    scene.program("bin/report", "#!/bin/sh\necho \"reported ${FENCING_TOKEN:+with its token}\" >>notes\n");
    let bin = format!("{}/", scene.shell.path("bin").display());
    let units = ["nightly-report.service", "nightly-report.timer"];
    for name in units {
        scene.write(name, &file(name).replace("/usr/local/bin/", &bin));
    }
    let verify = scene.command("systemd-analyze", &["verify", "--man=no", units[0], units[1]]);
    let said = Scene::say(verify).await;
    let complains = said.text.lines().any(|line| units.iter().any(|unit| line.contains(unit)));
    assert!(said.code == Some(0) && !complains, "{said:?}");

    let service = scene.read(units[0]);
    let value = |name: &str| {
        let line = service.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let words = value("ExecStart");
    let words: Vec<_> = words.split(' ').collect();
    assert_eq!(value("Environment"), format!("FENCEPOST_URL=http://{DOCUMENTED_ADDRESS}"));
    let machines = (0..3).map(async |_| {
        let said: Said = Scene::say(scene.command(words[0], &words[1..])).await;
        said.expect(0, "");
    });
    futures_util::future::join_all(machines).await;
    assert_eq!(scene.read("notes"), "reported with its token\n");
}

//! Jobs that one of several machines does: the crontab, and the timer of systemd.

use std::time::Duration;

use tokio::process::Command;

use super::{Scene, on_each_gateway};
use crate::pages::{Said, file, pages};
use kit::{eventually, signal};

on_each_gateway!(
    of_several_machines_with_the_crontab_one_does_the_work,
    a_job_of_cron_that_crashes_leaves_nothing_behind_and_is_mailed,
    a_job_of_cron_that_fails_is_mailed_with_its_status_and_a_busy_lock_is_not,
    a_job_of_cron_whose_run_is_killed_goes_on_and_its_lock_ends,
    of_several_machines_with_the_timer_one_does_the_work,
);

/// What the pages call the gateway that all machines reach.
pub const ONE_GATEWAY: &str = "https://locks.example:8443";

/// What cron is told: variables, and the command of the one job.
pub type Crontab = (Vec<(String, String)>, String);

/// The one of the page, with a job of the test's.
fn crontab(scene: &Scene, job: &str) -> Crontab {
    scene.program("bin/backup", job);
    let tab = read_crontab(scene, "crontab");
    let page = &pages().iter().find(|page| page.name == "docs/recipes/cron.md").unwrap().text;
    for (name, _) in scene.variables().iter().filter(|(name, _)| !is_of_others(name)) {
        assert!(page.contains(&format!("{name}=")), "{name}");
    }
    tab
}

/// What `fencepost run` needs not.
fn is_of_others(variable: &str) -> bool {
    matches!(variable, "FENCEPOST_CURL" | "SSL_CERT_FILE")
}

/// With the programs in the scene's directory.
pub fn read_crontab(scene: &Scene, name: &str) -> Crontab {
    let text = file(name);
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
    // Not that of the machine itself: as it stands on the page, the line starts nothing there.
    assert_eq!(variables[0], ("FENCEPOST_URL".to_owned(), ONE_GATEWAY.to_owned()));
    let in_use = scene.variables().iter().filter(|(name, _)| *name != "SSL_CERT_FILE");
    let variables = in_use.map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let [job] = jobs.try_into().unwrap();
    (variables, job)
}

/// One machine's turn: as cron does it, with a shell that knows little.
pub fn cron(scene: &Scene, (variables, job): &Crontab) -> Command {
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
    // Other machines, and the same one in the next night: nothing is started, and cron has nothing to mail.
    for _ in 0..2 {
        says_nothing(&scene, &tab).await;
    }
    scene.write("go", "");
    Scene::end(first).await.expect(3, "");
    // A machine whose clock is late finds it taken still.
    says_nothing(&scene, &tab).await;
    assert_eq!(scene.read("notes").lines().count(), 1);
    let kept = look().await.expect(200).json()["expires_in_ms"].as_u64().unwrap();
    assert!((270_000..=300_000).contains(&kept), "{kept}");
    // No gateway: nothing is started, and one line says why, as soon as one waits no more.
    let (variables, job) = tab;
    let tab = (variables, job.replace("--gateway-wait 4m", "--gateway-wait 1s"));
    let mut alone = cron(&scene, &tab);
    Scene::alone(&mut alone);
    let said = Scene::say(alone).await.expect(69, "cannot take the lock");
    assert_eq!(said.text.lines().count(), 1, "{said:?}");
    assert_eq!(scene.read("notes").lines().count(), 1);
}

/// Cron mails whatever is said.
pub async fn says_nothing(scene: &Scene, tab: &Crontab) {
    let said = Scene::say(cron(scene, tab)).await;
    assert_eq!((said.code, said.text.as_str()), (Some(0), ""));
}

async fn a_job_of_cron_that_fails_is_mailed_with_its_status_and_a_busy_lock_is_not(scene: Scene) {
    let tab = read_crontab(&scene, "crontab-of-failures");
    let job = |ending: &str| {
        scene.program("bin/mail-report", &format!("#!/bin/sh\ntouch begun\necho progress\n{ending}\n"));
    };
    let again = async || {
        scene.client.delete("/locks/nightly-mail?force=true").send().await;
    };
    // What another machine does is no failure, and what the job says is no mail unless it fails.
    job("until [ -e go ]; do sleep 0.02; done");
    let first = cron(&scene, &tab).spawn().unwrap();
    eventually("the job runs", async || scene.shell.path("begun").exists()).await;
    says_nothing(&scene, &tab).await;
    scene.write("go", "");
    let said = Scene::end(first).await;
    assert_eq!((said.code, said.text.as_str()), (Some(0), ""));
    // Also a status that `fencepost run` itself has for a busy lock.
    for (ending, mail) in [
        ("exit 75", "status 75: progress\n"),
        ("exec >/dev/null; exit 3", "status 3: progress\n"),
        ("echo a warning >&2", "a warning\n"),
        ("kill -KILL $$", "fencepost: the command was ended by signal 9 (SIGKILL)\nstatus 137: progress\n"),
    ] {
        again().await;
        job(ending);
        let said = Scene::say(cron(&scene, &tab)).await;
        assert_eq!(lines_of(&said.text), lines_of(mail), "{ending}");
    }
}

/// In any order: standard output and standard error are two pipes.
fn lines_of(text: &str) -> std::collections::BTreeSet<&str> {
    text.lines().collect()
}

async fn a_job_of_cron_that_crashes_leaves_nothing_behind_and_is_mailed(scene: Scene) {
    let tab = crontab(&scene, "#!/usr/bin/env bash\nsleep 300 &\ntouch begun\nkill -KILL $$\n");
    let said = Scene::say(cron(&scene, &tab)).await;
    said.expect(137, "the command was ended by signal 9 (SIGKILL)\n");
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

/// Units of a page, which systemd takes, with the programs in the scene's directory.
pub async fn good_units(scene: &Scene, units: &[&str]) {
    let bin = format!("{}/", scene.shell.path("bin").display());
    for name in units {
        scene.write(name, &file(name).replace("/usr/local/bin/", &bin));
    }
    let verify = scene.command("systemd-analyze", &[&["verify", "--man=no"], units].concat());
    let said = Scene::say(verify).await;
    let complains = said.text.lines().any(|line| units.iter().any(|unit| line.contains(unit)));
    assert!(said.code == Some(0) && !complains, "{said:?}");
}

/// The first value of this name in a unit.
pub fn value_of(unit: &str, name: &str) -> String {
    let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

async fn of_several_machines_with_the_timer_one_does_the_work(scene: Scene) {
    scene.program("bin/report", "#!/bin/sh\necho \"reported ${FENCING_TOKEN:+with its token}\" >>notes\n");
    let units = ["nightly-report.service", "nightly-report.timer"];
    good_units(&scene, &units).await;
    let service = scene.read(units[0]);
    let value = |name: &str| value_of(&service, name);
    // `fencepost run` passes a signal on. A timer that starts late takes of the time that --min-hold leaves.
    assert_eq!(value("KillMode"), "mixed");
    assert!(scene.read(units[1]).contains("\nAccuracySec=1s\n"));
    let words = value("ExecStart");
    let words: Vec<_> = words.split(' ').collect();
    assert_eq!(value("Environment"), format!("FENCEPOST_URL={ONE_GATEWAY}"));
    let machines = (0..3).map(async |_| {
        let said: Said = Scene::say(scene.command(words[0], &words[1..])).await;
        said.expect(0, "");
    });
    futures_util::future::join_all(machines).await;
    assert_eq!(scene.read("notes"), "reported with its token\n");
}

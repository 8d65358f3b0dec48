//! Jobs that share: a number of them at once, a device each, and one that wants it all for itself.

use std::fs;

use tokio::process::Child;

use super::{JOB, Scene, on_each_gateway};
use crate::pages::file;
use kit::eventually;

on_each_gateway!(
    five_of_six_jobs_run_at_once,
    each_job_has_a_gpu_to_itself,
    a_backup_waits_for_earlier_reports_only
);

impl Scene {
    fn starts(&self, recipe: &str) -> Child {
        self.write(recipe, &file(recipe));
        self.script(recipe, &[]).kill_on_drop(true).spawn().unwrap()
    }

    fn lines(&self, word: &str) -> Vec<String> {
        let notes = self.read("notes");
        notes.lines().filter(|line| line.starts_with(word)).map(str::to_owned).collect()
    }

    async fn are_there(&self, word: &str, count: usize) {
        eventually(&format!("{count} notes of {word}"), async || self.lines(word).len() == count).await;
    }

    async fn waits(&self, lock: &str, held: u64, waiters: u64) {
        eventually(&format!("{waiters} wait for {lock}"), async || {
            let look = self.client.get(&format!("/lock?key={lock}")).send().await.json();
            look["waiters"] == waiters && look["held"].as_u64().unwrap_or(1) == held
        })
        .await;
    }
}

async fn end_with_3(jobs: Vec<Child>) {
    for job in jobs {
        assert_eq!(Scene::end(job).await.code, Some(3));
    }
}

async fn five_of_six_jobs_run_at_once(scene: Scene) {
    scene.program("build", JOB);
    let jobs: Vec<_> = (0..6).map(|_| scene.starts("build-with-others")).collect();
    scene.are_there("runs", 5).await;
    scene.waits("build-server", 5, 1).await;
    assert_eq!(scene.lines("runs").len(), 5);
    scene.write("go", "");
    end_with_3(jobs).await;
    assert_eq!(scene.lines("runs").len(), 6);
    scene.becomes_free("build-server").await;
}

async fn each_job_has_a_gpu_to_itself(scene: Scene) {
    scene.program("train", &JOB.replace("\"runs ${FENCING_TOKEN-without}", "\"gpu $CUDA_VISIBLE_DEVICES"));
    let jobs: Vec<_> = (0..5).map(|_| scene.starts("train-on-a-gpu")).collect();
    scene.are_there("gpu", 4).await;
    let mut gpus = scene.lines("gpu");
    gpus.sort();
    assert_eq!(gpus, ["gpu 0", "gpu 1", "gpu 2", "gpu 3"]);
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    scene.waits(&format!("gpu-{}", name.trim()), 4, 1).await;
    scene.write("go", "");
    end_with_3(jobs).await;
}

async fn a_backup_waits_for_earlier_reports_only(scene: Scene) {
    scene.program("make-report", JOB);
    scene.program(
        "copy-archive",
        "#!/usr/bin/env bash\necho backup begins >>notes\nsleep 0.1\necho backup ends >>notes\nexit 3\n",
    );
    let mut jobs = vec![scene.starts("report"), scene.starts("report")];
    scene.are_there("runs", 2).await;
    jobs.push(scene.starts("backup"));
    scene.waits("archive", 2, 1).await;
    jobs.push(scene.starts("report"));
    scene.waits("archive", 2, 2).await;
    assert_eq!(scene.lines("").len(), 2, "the third report waits behind the backup");
    scene.write("go", "");
    end_with_3(jobs).await;
    let all = scene.lines("");
    let place = all.iter().position(|line| line == "backup begins").unwrap();
    assert_eq!((place, all[place + 1].as_str(), all.len()), (2, "backup ends", 5), "{all:?}");
}

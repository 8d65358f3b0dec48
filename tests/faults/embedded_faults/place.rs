//! A file that is moved away, removed or replaced while its gateway runs: what stands there is another gateway's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use kit::gateway::{command, run};
use kit::{Answer, Client, Gateway, eventually, fresh_token};
use tempfile::TempDir;

use super::Namespace;

struct Scene {
    directory: TempDir,
    gateway: Gateway,
    token: String,
}

impl Scene {
    /// A gateway that has granted a lock.
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let gateway = gateway_on(&directory.path().join("locks.redb")).await;
        let scene = Self { directory, gateway, token: fresh_token() };
        scene.put("held").await.expect(201);
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn put(&self, key: &str) -> Answer {
        let client = Client::new(self.gateway.address);
        client.put(&format!("/locks/{key}?ttl=1h")).token(&self.token).send().await
    }

    /// Nothing is granted any more, nothing is told, and it says why.
    async fn knows(&self) {
        self.knows_that("moved, removed or replaced").await;
    }

    async fn knows_that(&self, what: &str) {
        let client = Client::new(self.gateway.address);
        // The second finds the file closed.
        for _ in 0..2 {
            let refused = self.put("another").await.expect(503);
            let detail = refused.json()["detail"].to_string();
            assert!(detail.contains(what), "{detail}");
        }
        client.get("/locks/held").send().await.expect(503);
        client.get("/locks").send().await.expect(503);
        client.get("/readyz").send().await.expect(503);
        self.says(what).await;
    }

    async fn says_so(&self) {
        self.says("moved, removed or replaced").await;
    }

    async fn says(&self, what: &str) {
        let says_so = |line: &String| line.contains(what);
        eventually("the log says so", async || self.gateway.log().iter().any(says_so)).await;
    }
}

async fn gateway_on(file: &Path) -> Gateway {
    Gateway::start(&["--store", &format!("file:{}", file.display())]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_file_was_removed_grants_nothing_beside_its_successor() {
    let scene = Scene::start().await;
    fs::remove_file(scene.path("locks.redb")).unwrap();
    let successor = gateway_on(&scene.path("locks.redb")).await;
    Client::new(successor.address).put("/locks/another").send().await.expect(201);
    scene.knows().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_file_was_replaced_grants_nothing() {
    let scene = Scene::start().await;
    fs::copy(scene.path("locks.redb"), scene.path("copy")).unwrap();
    fs::rename(scene.path("copy"), scene.path("locks.redb")).unwrap();
    scene.knows().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_file_was_moved_away_works_again_when_it_is_back() {
    let scene = Scene::start().await;
    fs::rename(scene.path("locks.redb"), scene.path("aside")).unwrap();
    scene.knows().await;
    fs::rename(scene.path("aside"), scene.path("locks.redb")).unwrap();
    scene.put("held").await.expect(200);
    scene.put("another").await.expect(201);
}

/// A successor that is started at the old place makes a new file there.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_on_a_relative_path_grants_nothing_once_its_directory_was_renamed() {
    let (directory, args) = (tempfile::tempdir().unwrap(), ["--store", "file:locks.redb"]);
    let (here, aside) = (directory.path().join("here"), directory.path().join("aside"));
    fs::create_dir(&here).unwrap();
    let mut command = command(&args);
    command.current_dir(&here);
    let gateway = Gateway::try_start_by(command, &args).await.unwrap();
    let scene = Scene { directory, gateway, token: fresh_token() };
    scene.put("held").await.expect(201);
    fs::rename(&here, &aside).unwrap();
    fs::create_dir(&here).unwrap();
    scene.knows().await;
    fs::remove_dir(&here).unwrap();
    fs::rename(&aside, &here).unwrap();
    scene.put("held").await.expect(200);
    scene.put("another").await.expect(201);
}

/// What cannot be looked at may be another gateway's by now.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_cannot_look_at_the_path_of_its_file_grants_nothing_until_it_can() {
    let scene = Scene::start().await;
    let (file, aside) = (scene.path("locks.redb"), scene.path("aside"));
    fs::rename(&file, &aside).unwrap();
    // A link to itself leads nowhere, also for one who may enter every directory.
    symlink(&file, &file).unwrap();
    scene.knows_that("its path cannot be looked at").await;
    fs::remove_file(&file).unwrap();
    fs::rename(&aside, &file).unwrap();
    scene.put("held").await.expect(200);
    scene.put("another").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_file_was_cut_off_or_copied_over_grants_nothing() {
    let scene = Scene::start().await;
    let older = scene.path("older");
    fs::write(&older, "").unwrap();
    fs::copy(&older, scene.path("locks.redb")).unwrap();
    scene.knows_that("another program has changed it").await;
}

/// As an operator does who puts a backup back without stopping the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_file_was_overwritten_by_an_older_copy_of_its_length_grants_nothing() {
    let scene = Scene::start().await;
    let (file, older) = (scene.path("locks.redb"), scene.path("older"));
    fs::copy(&file, &older).unwrap();
    scene.put("more").await.expect(201);
    assert_eq!(fs::metadata(&older).unwrap().len(), fs::metadata(&file).unwrap().len());
    fs::copy(&older, &file).unwrap();
    scene.knows_that("another program has changed it").await;
}

/// As an operator does who puts a backup back and restarts the gateway at once. To close the file, the library writes to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_stopped_writes_nothing_into_a_file_that_was_restored_under_it() {
    for is_cut_off in [false, true] {
        let mut scene = Scene::start().await;
        let (file, backup) = (scene.path("locks.redb"), scene.path("backup"));
        fs::copy(&file, &backup).unwrap();
        scene.put("more").await.expect(201);
        if is_cut_off {
            fs::write(&backup, "").unwrap();
        }
        fs::copy(&backup, &file).unwrap();
        scene.gateway.signal("TERM");
        assert!(scene.gateway.exit_status().await.success());
        assert!(fs::read(&file).unwrap() == fs::read(&backup).unwrap(), "it was written to");
        scene.says("another program has changed the file of the store").await;
        if !is_cut_off {
            let restored = Scene { gateway: gateway_on(&file).await, ..scene };
            restored.put("held").await.expect(200);
        }
    }
}

/// The file that stood there meanwhile had numbers of its own.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_go_on_above_those_of_a_gateway_that_served_while_the_file_was_away() {
    let scene = Scene::start().await;
    let (file, aside) = (scene.path("locks.redb"), scene.path("aside"));
    fs::rename(&file, &aside).unwrap();
    scene.says_so().await;
    let mut meanwhile = gateway_on(&file).await;
    let granted = Client::new(meanwhile.address).put("/locks/another").send().await.expect(201);
    meanwhile.signal("TERM");
    assert!(meanwhile.exit_status().await.success());
    fs::rename(&aside, &file).unwrap();
    let later = scene.put("another").await.expect(201);
    assert!(later.fencing_token() > granted.fencing_token(), "{granted:?}, then {later:?}");
}

/// As a container has it. Its path leads to the old file for as long as that is mounted.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_file_is_mounted_by_itself_grants_nothing_once_it_was_removed_or_replaced_at_its_origin()
 {
    for is_replaced in [false, true] {
        let Scene { directory, gateway, token } = Scene::start().await;
        drop(gateway);
        let (origin, mounted) = (directory.path().join("locks.redb"), directory.path().join("mounted"));
        let namespace = Namespace::with(r#"touch "$0" && mount --bind "$1" "$0""#, &[&mounted, &origin]);
        let seen = namespace.path(&mounted);
        let scene = Scene { directory, gateway: gateway_on(&seen).await, token };
        scene.put("more").await.expect(201);
        if is_replaced {
            fs::copy(&origin, scene.path("copy")).unwrap();
            fs::rename(scene.path("copy"), &origin).unwrap();
        } else {
            fs::remove_file(&origin).unwrap();
        }
        scene.knows().await;
        drop(scene.gateway);
        let store = format!("file:{}", seen.display());
        let said = Gateway::try_start(&["--store", &store]).await.err().unwrap_or_default();
        assert!(said.iter().any(|line| line.contains("it has been removed where")), "{said:?}");
        let checked = run(&["check", "--store", &store]);
        let page = String::from_utf8(checked.stdout).unwrap();
        assert!(!checked.status.success() && page.contains("it has been removed where"), "{page}");
    }
}

/// Also one that is asked for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_gateway_notices_that_its_file_was_removed() {
    let scene = Scene::start().await;
    fs::remove_file(scene.path("locks.redb")).unwrap();
    scene.says_so().await;
}

/// One that is reached by a link is where it was for as long as the link leads to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_file_is_no_other_file() {
    let scene = Scene::start().await;
    drop(scene.gateway);
    let (file, link) = (scene.directory.path().join("locks.redb"), scene.directory.path().join("link"));
    symlink(&file, &link).unwrap();
    let gateway = gateway_on(&link).await;
    Client::new(gateway.address).put("/locks/another").send().await.expect(201);
}

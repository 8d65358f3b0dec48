//! The package and the tarball in bare roots: installed, started, upgraded, removed.

use std::fs;
use std::io::Write;

use super::root::Root;
use super::{before, current};
use kit::eventually;

const ENVIRONMENT: &str = "/etc/fencepost/environment";
const LOCK: &str = "/lock?key=nightly/report";
const TAKEN: &str = "/lock?key=nightly/report&ttl=1h";

/// What `stat` says of these paths.
fn owners(root: &Root, paths: &str) -> String {
    root.run(&format!("stat -c '%a %U:%G %n' {paths}")).expect(0, "").text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_is_installed_started_by_its_unit_upgraded_and_removed() {
    let root = Root::new().await;
    let [old, new] = [before(), current()].map(|packed| root.copy(&packed.file(".deb")));
    // A shell of an administrator may let nobody else read what it makes.
    root.run(&format!("umask 077; dpkg -i {old}")).expect(0, "");
    root.run("dpkg -s fencepost").expect(0, "Version: 0.0.9~rc1\n");
    root.run("getent passwd fencepost").expect(0, ":/var/lib/fencepost:/usr/sbin/nologin\n");
    let directories = "/var/lib/fencepost /var/log/fencepost";
    let files = "/etc/fencepost /etc/fencepost/keys.toml /etc/fencepost/environment";
    let expected = "700 fencepost:fencepost /var/lib/fencepost\n700 fencepost:fencepost /var/log/fencepost\n\
        750 root:fencepost /etc/fencepost\n640 root:fencepost /etc/fencepost/keys.toml\n\
        640 root:root /etc/fencepost/environment\n";
    assert_eq!(owners(&root, &format!("{directories} {files}")), expected);
    root.run("dpkg --verify fencepost").expect(0, "");
    // Whoever boots this root with systemd has the service.
    root.run("test -L /etc/systemd/system/multi-user.target.wants/fencepost.service").expect(0, "");

    // A lock, and a changed setting: they outlive the upgrade, which asks nothing.
    let service = root.start().await;
    let (status, held) = service.ask(&["-X", "PUT", TAKEN]);
    assert_eq!(status, 201, "{held}");
    let is_held = |(status, lock): (u16, serde_json::Value)| {
        status == 200 && lock["fencing_token"] == held["fencing_token"]
    };
    let mut environment = fs::OpenOptions::new().append(true).open(root.path(ENVIRONMENT)).unwrap();
    writeln!(environment, "FENCEPOST_MAX_TTL=2h").unwrap();
    root.run(&format!("dpkg -i {new}")).expect(0, "");
    root.run("dpkg -s fencepost").expect(0, &format!("Version: {}\n", super::VERSION.replace('-', "~")));
    assert!(
        is_held(service.ask(&[LOCK])),
        "without systemd, the old gateway serves on until it is restarted"
    );
    service.stop();
    let service = root.start().await;
    assert!(is_held(service.ask(&[LOCK])));
    assert_eq!(service.ask(&["-X", "PUT", "/lock?key=other&ttl=3h"]).0, 400, "the setting is lost");
    assert_eq!(owners(&root, &format!("{directories} {files}")), expected);

    // Keys, as the page says.
    let made = "umask 077; fencepost key new --name first --every-key --allow acquire,inspect --append-to /etc/fencepost/keys.toml";
    let key = root.run(made).expect(0, "fp_").text;
    root.run(&format!("sed -i 's/^#FENCEPOST_KEYS=/FENCEPOST_KEYS=/' {ENVIRONMENT}")).expect(0, "");
    service.stop();
    let service = root.start().await;
    let authorization = format!("Authorization: Bearer {}", key.lines().next().unwrap());
    assert_eq!(service.ask(&[LOCK]).0, 401);
    assert!(is_held(service.ask(&["-H", &authorization, LOCK])));
    root.run("chroot --userspec=nobody / cat /etc/fencepost/keys.toml").expect(1, "Permission denied");
    root.run("chroot --userspec=nobody / ls /var/lib/fencepost").expect(2, "Permission denied");
    assert_eq!(owners(&root, &format!("{directories} {files}")), expected);

    // Removed while it runs: what it works with is still there, and still there for the next one.
    root.run("dpkg -r fencepost").expect(0, "");
    assert!(!root.has("/usr/bin/fencepost") && root.has("/var/lib/fencepost/fencepost.redb"));
    assert!(is_held(service.ask(&["-H", &authorization, LOCK])));
    service.stop();
    root.run(&format!("dpkg -i {new}")).expect(0, "");
    let service = root.start().await;
    assert!(is_held(service.ask(&["-H", &authorization, LOCK])));
    service.stop();

    // Back to the version before, and gone: but for what is not of the package.
    root.run(&format!("dpkg -i {old}")).expect(0, "downgrading");
    let service = root.start().await;
    assert!(is_held(service.ask(&["-H", &authorization, LOCK])));
    service.stop();
    fs::write(root.path("/etc/fencepost/server-key.pem"), "mine").unwrap();
    root.run("dpkg -P fencepost").expect(0, "");
    assert_eq!(root.run("ls /etc/fencepost").expect(0, "").text, "server-key.pem\n");
    assert!(
        !root.has("/var/lib/fencepost")
            && !root.has("/var/log/fencepost")
            && !root.has("/usr/share/doc/fencepost")
    );
    root.run("getent passwd fencepost").expect(0, "fencepost");
}

/// It is told what to do, and nothing of it fails the package.
#[tokio::test(flavor = "multi_thread")]
async fn the_package_enables_starts_restarts_and_stops_the_service_where_systemd_runs() {
    let root = Root::new().await;
    let [old, new] = [before(), current()].map(|packed| root.copy(&packed.file(".deb")));
    fs::create_dir_all(root.path("/run/systemd/system")).unwrap();
    // As one that cannot start the service, which is nothing that dpkg could mend.
    let stub = r#"echo "$*" >>/told
link=/etc/systemd/system/multi-user.target.wants/fencepost.service
case "$*" in
*preset*) mkdir -p "${link%/*}"; ln -s /lib/systemd/system/fencepost.service $link ;;
*is-enabled*) [ -L $link ] && echo enabled ;;
*start*) exit 1 ;;
esac
"#;
    root.program("/usr/bin/systemctl", stub);
    let told = |code: &str| {
        fs::write(root.path("/told"), "").unwrap();
        root.run(code).expect(0, "");
        root.text("/told")
    };
    let does = |told: &str, what: &str| {
        told.lines()
            .any(|line| line.split(' ').any(|word| word == what) && line.ends_with("fencepost.service"))
    };
    // There is a user of this name already: it stays as it is.
    root.run("useradd --system --user-group --home-dir /srv --shell /bin/sh fencepost").expect(0, "");
    let installed = told(&format!("dpkg -i {old}"));
    assert!(installed.contains("daemon-reload") && does(&installed, "start"), "{installed}");
    root.run("getent passwd fencepost").expect(0, ":/srv:/bin/sh\n");
    let enabled = "/etc/systemd/system/multi-user.target.wants/fencepost.service";
    root.run(&format!("readlink {enabled}")).expect(0, "/lib/systemd/system/fencepost.service\n");
    // If an upgrade fails, the old gateway has run on.
    let fails = format!(
        r"dpkg-deb --raw-extract {new} /fails; printf '#!/bin/sh\nexit 1' >/fails/DEBIAN/preinst; chmod +x /fails/DEBIAN/preinst
        dpkg-deb -Znone --build /fails /fails.deb >/dev/null; dpkg -i /fails.deb && exit 1; true"
    );
    let failed = told(&fails);
    assert!(!failed.contains("start"), "{failed}");
    root.run("dpkg -s fencepost").expect(0, "Status: install ok installed\n");
    // As `systemctl disable` does.
    fs::remove_file(root.path(enabled)).unwrap();
    let upgraded = told(&format!("dpkg -i {new}"));
    assert!(does(&upgraded, "restart") && !does(&upgraded, "stop"), "{upgraded}");
    root.run(&format!("test ! -L {enabled}")).expect(0, "");
    let removed = told("dpkg -r fencepost");
    assert!(does(&removed, "stop") && removed.contains("daemon-reload"), "{removed}");
    assert!(!does(&told("dpkg -P fencepost"), "start"));
}

/// Unpacks the tarball by the line of the page.
fn unpack_as_the_page_says(root: &Root) {
    let page = fs::read_to_string(format!("{}/docs/install.md", super::ROOT)).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("$ tar ")).unwrap();
    let (options, _) = line.rsplit_once(' ').unwrap();
    let tarball = root.copy(&current().file(".tar.gz"));
    root.run(&format!("tar {options} {tarball}")).expect(0, "");
}

/// What the page on systemd says, and systemd by the unit, after the tarball is unpacked.
fn set_up_by_hand(root: &Root) {
    root.run(
        "useradd --system --user-group --home-dir /var/lib/fencepost --shell /usr/sbin/nologin fencepost
        install -d -o root -g fencepost -m 0750 /etc/fencepost
        install -m 0640 /usr/local/share/doc/fencepost/environment /etc/fencepost/environment
        install -d -o fencepost -g fencepost -m 0700 /var/lib/fencepost /var/log/fencepost",
    )
    .expect(0, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tarball_runs_on_a_bare_debian_12() {
    let root = Root::new().await;
    // As an administrator has arranged them.
    root.run("mv /usr/local/share /srv; ln -s /srv/share /usr/local/share; chmod 2775 /usr/local/lib")
        .expect(0, "");
    unpack_as_the_page_says(&root);
    root.run("fencepost --version").expect(0, super::VERSION);
    assert!(root.run("ls /srv/share/doc/fencepost").expect(0, "").text.contains("environment\n"));
    root.run("stat -c %a /usr/local/lib").expect(0, "2775");
    set_up_by_hand(&root);
    let service = root.start().await;
    assert_eq!(service.ask(&["-X", "PUT", TAKEN]).0, 201);
    service.stop();
    let service = root.start().await;
    assert_eq!(service.ask(&[LOCK]).0, 200);
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_after_the_tarball_warns_of_its_unit_and_goes_on_with_its_locks() {
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    unpack_as_the_page_says(&root);
    set_up_by_hand(&root);
    let service = root.start().await;
    assert_eq!(service.ask(&["-X", "PUT", TAKEN]).0, 201);
    service.stop();
    let warning = "/usr/local/lib/systemd/system/fencepost.service hides the unit of this package";
    root.run(&format!("dpkg -i {package} 2>&1")).expect(0, warning);
    // As the page says, here after the warning.
    let delete = "rm -f /usr/local/bin/fencepost /usr/local/lib/systemd/system/fencepost.service /etc/systemd/system/fencepost.service";
    let page = fs::read_to_string(format!("{}/docs/install.md", super::ROOT)).unwrap();
    assert!(page.contains(&format!("$ {delete}\n")));
    root.run(delete).expect(0, "");
    let again = root.run(&format!("dpkg -i {package} 2>&1")).expect(0, "").text;
    assert!(!again.contains("hides"), "{again}");
    root.run("command -v fencepost").expect(0, "/usr/bin/fencepost\n");
    let service = root.start().await;
    assert_eq!(service.ask(&[LOCK]).0, 200);
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_has_arranged_outlives_installation_and_upgrade() {
    let root = Root::new().await;
    let [old, new] = [before(), current()].map(|packed| root.copy(&packed.file(".deb")));
    // The keys are on a disk that is not there at the moment.
    root.run(
        "groupadd operators; mkdir /etc/fencepost
        dpkg-statoverride --update --add root operators 0710 /etc/fencepost
        ln -s /srv/keys.toml /etc/fencepost/keys.toml",
    )
    .expect(0, "");
    let arranged = "710 root:operators /etc/fencepost\n777 root:root /etc/fencepost/keys.toml\n";
    let files = "/etc/fencepost /etc/fencepost/keys.toml";
    root.run(&format!("dpkg -i {old}")).expect(0, "");
    assert_eq!(owners(&root, files), arranged);
    root.run("chgrp operators /var/log/fencepost; chmod 2750 /var/log/fencepost").expect(0, "");
    root.run(&format!("dpkg -i {new}")).expect(0, "");
    let logs = "2750 fencepost:operators /var/log/fencepost\n";
    assert_eq!(owners(&root, &format!("{files} /var/log/fencepost")), format!("{arranged}{logs}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_is_purged_where_its_data_is_on_a_mount_point_and_behind_a_link() {
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    root.run("mkdir -p /srv/logs; ln -s /srv/logs /var/log/fencepost").expect(0, "");
    root.run(&format!("dpkg -i {package}")).expect(0, "");
    root.run("test -L /var/log/fencepost; mkdir /srv/logs/old; touch /srv/logs/old/audit.log").expect(0, "");
    // All by one command: it alone sees the mount.
    let purge = "mount -t tmpfs none /var/lib/fencepost; touch /var/lib/fencepost/fencepost.redb
        dpkg -P fencepost
        ls -A /var/lib/fencepost";
    let said = root.run(purge).expect(0, "").text;
    assert!(!said.contains("fencepost.redb"), "{said}");
    root.run("dpkg -s fencepost").expect(1, "");
    root.run("ls -A /srv/logs /srv").expect(0, "/srv:\nlogs\n\n/srv/logs:\n");
    root.run("test ! -L /var/log/fencepost").expect(0, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rotation_the_service_writes_to_a_new_audit_log() {
    const LOG: &str = "/var/log/fencepost/audit.log";
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    root.run(&format!("dpkg -i {package}")).expect(0, "");
    let service = root.start().await;
    // systemd does this by the unit's `ExecReload=`.
    let stub = format!("case $* in 'reload fencepost') kill -HUP {} ;; esac", service.pid());
    root.program("/usr/bin/systemctl", &stub);
    let broken = |fencing: &str| root.text(LOG).contains(fencing);
    let mut last = String::new();
    for round in 1..=3 {
        let (_, held) = service.ask(&["-X", "PUT", TAKEN]);
        last = format!("\"fencing_token\":{}", held["fencing_token"]);
        let breaking = format!("{LOCK}&force=true&fencing_token={}", held["fencing_token"]);
        let (status, said) = service.ask(&["-X", "DELETE", &breaking]);
        assert!(status < 300, "{status} {said}");
        eventually("the break is in the log", async || broken(&last)).await;
        root.run("logrotate --force /etc/logrotate.conf 2>&1").expect(0, "");
        eventually("there is a new file", async || root.has(LOG)).await;
        assert!(!broken(&last), "round {round}");
    }
    assert_eq!(owners(&root, LOG), format!("600 fencepost:fencepost {LOG}\n"));
    // The last but one is compressed; into the last one the gateway may have written still.
    let all = root.run("ls /var/log/fencepost").expect(0, "").text;
    assert_eq!(all, "audit.log\naudit.log.1\naudit.log.2.gz\naudit.log.3.gz\n");
    assert!(root.text(&format!("{LOG}.1")).contains(&last));
    root.run(&format!("zcat {LOG}.3.gz")).expect(0, "\"event\":\"configuration\"");
    service.stop();
    // And with no gateway there is nobody to tell.
    root.program("/usr/bin/systemctl", "exit 3");
    fs::write(root.path(LOG), "left\n").unwrap();
    root.run("logrotate --force /etc/logrotate.conf 2>&1").expect(0, "");
    assert_eq!(root.text(&format!("{LOG}.1")), "left\n");
}

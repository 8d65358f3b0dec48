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
    root.run("dpkg -P fencepost 2>&1")
        .expect(0, "fencepost: /etc/fencepost stays: it has files that are not");
    assert!(!root.has("/etc/logrotate.d/fencepost"));
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
    let installed = told(&format!("dpkg -i {old} 2>/said"));
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
    let failure = "fencepost: the service did not start. To see why: systemctl status fencepost; journalctl -u fencepost\n";
    assert!(root.text("/said").contains(failure), "{}", root.text("/said"));
    let upgraded = told(&format!("dpkg -i {new} 2>/said"));
    assert!(root.text("/said").contains(failure), "{}", root.text("/said"));
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
    let warning = "a unit of your own hides the unit of this package";
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
async fn a_purge_deletes_what_the_package_made_and_nothing_beside_it_behind_a_link_or_on_a_mount() {
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    root.run("mkdir -p /srv/logs; ln -s /srv/logs /var/log/fencepost").expect(0, "");
    root.run(&format!("dpkg -i {package}")).expect(0, "");
    // As logrotate makes them, by number or by date.
    root.run(
        "test -L /var/log/fencepost; mkdir /srv/logs/old
        cd /srv/logs; touch audit.log audit.log.1 audit.log.2.gz audit.log-20261123 old/audit.log letter",
    )
    .expect(0, "");
    // All by one command: it alone sees the mounts.
    let purge =
        "cd /var/lib; mount -t tmpfs none fencepost; mkdir fencepost/disk; mount -t tmpfs none fencepost/disk
        touch fencepost/fencepost.redb fencepost/fencepost.redb.unfinished fencepost/disk/fencepost.redb
        dpkg -P fencepost 2>&1
        find fencepost -mindepth 1";
    let said = root.run(purge).expect(0, "").text;
    assert!(said.ends_with("\nfencepost/disk\nfencepost/disk/fencepost.redb\n"), "{said}");
    let stay = said.lines().filter(|line| line.contains(" stays: it has files that are not of this package"));
    let stay: Vec<_> = stay.map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(stay, ["/var/lib/fencepost", "/srv/logs"], "{said}");
    root.run("dpkg -s fencepost").expect(1, "");
    root.run("cd /srv; find | sort")
        .expect(0, ".\n./logs\n./logs/letter\n./logs/old\n./logs/old/audit.log\n");
    root.run("test ! -L /var/log/fencepost").expect(0, "");
}

/// A `systemctl` that tells of what it was asked in `/told`.
const TELLING: &str = r#"echo "$*" >>/told"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_by_hand_is_left_alone_when_the_package_beside_it_comes_and_goes() {
    const UNITS: [&str; 2] =
        ["/etc/systemd/system/fencepost.service", "/usr/local/lib/systemd/system/fencepost.service"];
    const KEPT: &str = "/etc/fencepost/environment /etc/fencepost/keys.toml /etc/logrotate.d/fencepost";
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    fs::create_dir_all(root.path("/run/systemd/system")).unwrap();
    root.program("/usr/bin/systemctl", TELLING);
    unpack_as_the_page_says(&root);
    set_up_by_hand(&root);
    let enabled = "/etc/systemd/system/multi-user.target.wants/fencepost.service";
    root.run(&format!(
        "echo 'FENCEPOST_MAX_TTL=2h' >>/etc/fencepost/environment
        echo '# mine' >/etc/logrotate.d/fencepost; echo '# mine' >/etc/fencepost/keys.toml
        mkdir -p {}; ln -s {} {enabled}",
        enabled.rsplit_once('/').unwrap().0,
        UNITS[1]
    ))
    .expect(0, "");
    let service = root.start().await;
    assert_eq!(service.ask(&["-X", "PUT", TAKEN]).0, 201);
    service.stop();
    let before = root.run(&format!("cat {KEPT}")).expect(0, "# mine").text;
    // A link may lead to a volume that is not mounted just now. In the last two rounds, only the program is there, and what starts it
    // is not known.
    let program = "mv /usr/local/bin/fencepost /program; ln -s /away/fencepost /usr/local/bin/fencepost";
    let put = ["", "ln -s /away/unit", "mv /unit", "mv /unit", "", program];
    for (round, unit) in ["", UNITS[0], UNITS[0], UNITS[1], "", ""].iter().enumerate() {
        if round > 0 {
            let aside = "for unit; do if [ -L $unit ]; then rm $unit; elif [ -f $unit ]; then mv $unit /unit; fi; done";
            root.run(&format!("set {}; {aside}; {} {unit}", UNITS.join(" "), put[round])).expect(0, "");
        }
        let by_unit = round < 4;
        fs::write(root.path("/told"), "").unwrap();
        root.run(&format!("dpkg -i {package}")).expect(0, "");
        // Removed and purged in one, or one after the other.
        if round == 1 {
            root.run("dpkg -r fencepost").expect(0, "");
        }
        let said = root.run("dpkg -P fencepost 2>&1").expect(0, " stay, with all keys and locks: ").text;
        assert_eq!(said.matches("fencepost: ").count(), 1, "{said}");
        let told = root.text("/told");
        let touched = ["stop", "start", "disable"].iter().any(|what| told.contains(what));
        assert_eq!(touched, !by_unit, "{unit}: {told}");
        assert_eq!(root.run(&format!("cat {KEPT}")).expect(0, "").text, before);
        root.run(&format!("test -L {enabled}; test -f /var/lib/fencepost/fencepost.redb")).expect(0, "");
    }
    root.run(&format!("mv /unit {}; mv /program /usr/local/bin/fencepost", UNITS[1])).expect(0, "");
    let service = root.start().await;
    assert_eq!(service.ask(&[LOCK]).0, 200);
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_were_changed_outlive_an_upgrade_to_other_defaults_and_back_without_a_question() {
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    root.run(&format!(
        "dpkg -i {package}; echo '#mine' >>{ENVIRONMENT}; echo '#mine' >>/etc/logrotate.d/fencepost"
    ))
    .expect(0, "");
    let other = format!(
        "dpkg-deb --raw-extract {package} /other; sed -i 's/^Version: .*/Version: 9/' /other/DEBIAN/control
        for file in environment logrotate; do echo '# new' >>/other/usr/share/fencepost/$file; done
        dpkg-deb -Znone --build /other /other.deb >/dev/null; dpkg -i /other.deb"
    );
    for install in [other, format!("dpkg -i {package}")] {
        root.run(&install).expect(0, "");
        for file in [ENVIRONMENT, "/etc/logrotate.d/fencepost"] {
            assert!(root.text(file).ends_with("#mine\n") && !root.text(file).contains("# new"));
        }
    }
    // What is deleted stays deleted.
    root.run(&format!(
        "rm /etc/logrotate.d/fencepost; dpkg -i {package}; test ! -e /etc/logrotate.d/fencepost"
    ))
    .expect(0, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_rotated_for_a_user_of_another_group() {
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    root.run("groupadd locks; useradd --system --gid locks fencepost").expect(0, "");
    root.run(&format!("dpkg -i {package}")).expect(0, "");
    root.program("/usr/bin/systemctl", "exit 3");
    root.run("echo line >/var/log/fencepost/audit.log; chown fencepost: /var/log/fencepost/audit.log")
        .expect(0, "");
    root.run("logrotate --force /etc/logrotate.conf 2>&1").expect(0, "");
    assert_eq!(root.text("/var/log/fencepost/audit.log.1"), "line\n");
    assert_eq!(owners(&root, "/var/log/fencepost"), "700 fencepost:locks /var/log/fencepost\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rotation_the_service_writes_to_a_new_audit_log() {
    const LOG: &str = "/var/log/fencepost/audit.log";
    let root = Root::new().await;
    let package = root.copy(&current().file(".deb"));
    root.run(&format!("dpkg -i {package}")).expect(0, "");
    let service = root.start().await;
    // systemd does this also while the service starts.
    let stub = format!("case $* in 'kill --signal=HUP fencepost') kill -HUP {} ;; esac", service.pid());
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

//! `fencepost key list` and `key revoke`: they keep the file that a gateway reads.

use std::fs::Permissions;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;

use kit::{Client, Gateway, KeysFile, eventually};
use rustix::fs::XattrFlags;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::door::Door;
use crate::run::kit::Scene;

/// The id of a key, of `fp_<id>_<secret>`.
fn id(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_refused_and_the_rest_of_the_file_stays() {
    let mut keys = KeysFile::new();
    let good = keys.add_for_all("a good one", "\"acquire\"");
    let lost = keys.add_for_all("lost", "\"acquire\"");
    keys.write_text(&format!("# Ours.\n\n{}# The end.\n", keys.text()));
    std::fs::set_permissions(keys.path(), Permissions::from_mode(0o640)).unwrap();
    let flag = keys.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/k").key(&lost).send().await.expect(201);

    let mut door = Door::plain().await;
    door.scene = Scene::on(&gateway);
    let revoke = format!("key revoke --keys {}", flag[1]);
    let revoked = door.pipe(&format!("{revoke} {}", id(&lost))).await.expect_silent(0).stdout;
    assert_eq!(revoked, format!("revoked {} (\"lost\")\n", id(&lost)));
    eventually("the key is refused", async || client.put("/locks/k").key(&lost).send().await.status == 401)
        .await;
    client.put("/locks/l").key(&good).send().await.expect(201);
    keys.remove("lost");
    let text = std::fs::read_to_string(keys.path()).unwrap();
    assert!(text.starts_with("# Ours.\n\n[[key]]") && text.contains(&keys.text()), "{text}");
    assert_eq!(keys.path().metadata().unwrap().permissions().mode() & 0o777, 0o640);

    // A gateway would go on with the old file.
    door.pipe(&format!("{revoke} {}", id(&good))).await.expect_line(1, &[id(&good), "the only key"]);
    door.pipe(&format!("{revoke} {}", id(&lost))).await.expect_line(1, &["no key there has this id"]);
    let whole = door.pipe(&format!("{revoke} {good}")).await.expect_line(2, &["twelve"]);
    assert!(!whole.stderr.contains(&good));
    client.put("/locks/m").key(&good).send().await.expect(201);
}

/// To sync a directory, it must be opened. Else a power cut could bring a revoked key back after the operator was told that it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn the_directory_of_a_keys_file_is_synced_after_its_name_was_given_to_another_file() {
    let (door, directory) = (Door::plain().await, tempfile::tempdir().unwrap());
    let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
    let watched = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::OPEN;
    inotify::add_watch(&watch, directory.path(), watched).unwrap();
    // Of what was done there: which step gave the file its name, and which opened the directory.
    let order = || {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let (mut events, mut named, mut opened) = (inotify::Reader::new(&watch, &mut buffer), 0, 0);
        for step in 1.. {
            let Ok(event) = events.next() else { break };
            let is_of_file = event.file_name() == Some(c"keys.toml");
            match event.events() {
                what if is_of_file && !what.contains(ReadFlags::OPEN) => named = step,
                what if what.contains(ReadFlags::OPEN | ReadFlags::ISDIR) => opened = step,
                _ => {}
            }
        }
        (named, opened)
    };
    let file = directory.path().join("keys.toml").display().to_string();
    let new = format!("key new --name a --every-key --allow list --append-to {file}");
    let key = door.pipe(&new).await.expect_silent(0).stdout;
    let (named, opened) = order();
    assert!(0 < named && named < opened, "{named} {opened}");
    door.pipe(&new).await.expect_silent(0);
    assert_eq!(order(), (0, 0), "no name was given");
    door.pipe(&format!("key revoke --keys {file} {}", id(&key))).await.expect_silent(0);
    let (named, opened) = order();
    assert!(0 < named && named < opened, "{named} {opened}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_listed_at_a_terminal_and_in_a_pipe_without_their_secrets() {
    let mut keys = KeysFile::new();
    let key = keys.add("a b", "prefixes = [\"ci/\", \"\u{202e}x\"]\nallow = [\"acquire\", \"list\"]");
    keys.add("old", "every_key = true\nallow = [\"list\"]\nexpires = 2020-01-01T00:00:00Z");
    keys.write();
    let door = Door::plain().await;
    let file = keys.path().display().to_string();
    let hash = keys.text().split('"').find(|text| text.len() == 64).unwrap().to_owned();
    let table = door.pipe(&format!("key list --keys {file}")).await.expect_silent(0).stdout;
    let json = door.json(&format!("key list --keys {file}")).await;
    let mut person = door.person(&["key", "list", "--keys", &file]);
    assert_eq!(person.status().await, Some(0));
    person.sees("old").await;
    for text in [&table, &person.screen()] {
        assert!(text.starts_with("ID ") && text.contains(id(&key)), "{text}");
        assert!(text.contains("\"a b\"") && text.contains("ci/,\"\\u{202e}x\""), "{text}");
        assert!(text.contains("(expired) 2020-01-01T00:00:00Z"), "{text}");
        assert!(!text.contains(&hash), "{text}");
    }
    let of = |name: &str| json.iter().find(|key| key["name"] == name).unwrap();
    assert_eq!((&of("a b")["prefixes"][0], &of("old")["every_key"]), (&"ci/".into(), &true.into()));
    assert!(!format!("{json:?}").contains(&hash));
    let mut revoking = door.person(&["key", "revoke", "--keys", &file, id(&key)]);
    revoking.sees("revoked").await;
    assert_eq!(revoking.status().await, Some(0));
    door.pipe("key list --keys nowhere").await.expect_line(2, &["--keys", "nowhere"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_that_cannot_be_printed_is_told_with_its_id() {
    let door = Door::plain().await;
    let new = "\"$F\" key new --name ci --every-key --allow list";
    for output in [">/dev/full", "| true"] {
        let ended = door.script(&format!("{{ sleep 0.2; {new} --append-to keys.toml; }} {output}")).await;
        ended.expect_line(71, &["cannot print the key", "revoke it", "keys.toml"]);
    }
    assert_eq!(door.json("key list --keys keys.toml").await.len(), 2);
    let ended = door.script(&format!("{new} 2>&-")).await;
    assert!(ended.stdout.contains("[[key]]") && ended.status != Some(101), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_not_revoked_where_a_reader_of_the_file_would_not_learn_of_it() {
    let mut keys = KeysFile::new();
    let (_, lost) = (keys.add_for_all("good", "\"list\""), keys.add_for_all("lost", "\"list\""));
    keys.write();
    let door = Door::plain().await;
    let file = keys.path().display().to_string();
    let other = door.scene.path("link.toml");
    std::fs::hard_link(&file, &other).unwrap();
    let revoke = format!("key revoke --keys {file} {}", id(&lost));
    door.pipe(&revoke).await.expect_line(1, &["another name", "by hand"]);
    assert!(door.scene.read("link.toml").contains(id(&lost)));
    std::fs::remove_file(other).unwrap();

    // A list of those who may read it: its owner, one user more, and neither the group nor all others.
    const ACCESS: &str = "system.posix_acl_access";
    let entry = |tag: u16, may: u16, who: u32| {
        [&tag.to_le_bytes()[..], &may.to_le_bytes(), &who.to_le_bytes()].concat()
    };
    let nobody = u32::MAX;
    let list = [
        entry(1, 6, nobody),
        entry(2, 4, 4711),
        entry(4, 0, nobody),
        entry(16, 4, nobody),
        entry(32, 0, nobody),
    ];
    let list = [&2_u32.to_le_bytes()[..], &list.concat()].concat();
    rustix::fs::setxattr(&file, ACCESS, &list, XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&file, "user.note", b"kept", XattrFlags::empty()).unwrap();
    // New files of the directory get more than that.
    rustix::fs::setxattr(
        keys.path().parent().unwrap(),
        "system.posix_acl_default",
        &list,
        XattrFlags::empty(),
    )
    .unwrap();
    let of_file = |name: &str| {
        let mut value = vec![0; 1_000];
        let length = rustix::fs::getxattr(&file, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    let before = of_file(ACCESS);
    door.pipe(&revoke).await.expect_silent(0);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(id(&lost)));
    assert_eq!((of_file(ACCESS), of_file("user.note")), (before, b"kept".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_could_not_be_told_is_not_made() {
    let door = Door::plain().await;
    for output in [">&-", "1</dev/null"] {
        let new = "\"$F\" key new --name ci --every-key --allow list --append-to keys.toml";
        door.script(&format!("{new} {output}"))
            .await
            .expect_line(71, &["standard output", "nothing was done"]);
        assert!(!door.scene.path("keys.toml").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_made_and_revoked_at_once_all_are() {
    let mut keys = KeysFile::new();
    keys.add_for_all("stays", "\"list\"");
    let lost: Vec<_> =
        (0..12).map(|number| keys.add_for_all(&format!("lost {number}"), "\"list\"")).collect();
    keys.write();
    let door = Door::plain().await;
    let file = keys.path().display().to_string();
    let ids: Vec<_> = lost.iter().map(|key| id(key)).collect();
    let script = format!(
        "for id in {}; do
            \"$F\" key revoke --keys {file} $id >>out & all=\"$all $!\"
            \"$F\" key new --name new --every-key --allow list --append-to {file} >>out & all=\"$all $!\"
        done
        for one in $all; do wait $one || exit; done",
        ids.join(" ")
    );
    door.script(&script).await.expect_silent(0);
    let left = door.json(&format!("key list --keys {file}")).await;
    let named = |name: &str| left.iter().filter(|key| key["name"] == name).count();
    assert_eq!((left.len(), named("stays"), named("new")), (13, 1, 12), "{left:?}");
}

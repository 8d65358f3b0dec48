//! Standard output that is closed, or full, or thrown away.

use kit::KeysFile;

use super::door::Door;
use crate::run::kit::is_held;

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_other_purpose_than_its_output_is_not_done_where_that_is_closed() {
    let (mut keys, door) = (KeysFile::new(), Door::plain().await);
    keys.add_for_all("one", "\"list\"");
    keys.write();
    let listed = format!("key list --keys {}", keys.path().display());
    let made = "key new --name ci --every-key --allow list --append-to keys.toml";
    for words in ["list", "list --json", "watch", "acquire k", "openapi", "completions bash", &listed, made] {
        for closed in [">&-", "1</dev/null"] {
            let ended = door.script(&format!("\"$F\" {words} {closed}")).await;
            ended.expect_line(71, &["standard output", "nothing was done"]);
        }
    }
    assert!(!is_held(&door.client(), "k").await && !door.scene.path("keys.toml").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_an_exit_status_is_done_where_another_program_throws_the_output_away() {
    let mut keys = KeysFile::new();
    let door = Door::plain().await;
    for thrown_away in [">/dev/null", "1<>/dev/null", ">&-"] {
        let key = keys.add_for_all("lost", "\"list\"");
        keys.add_for_all("stays", "\"list\"");
        keys.write();
        let (id, file) = (key.split('_').nth(1).unwrap(), keys.path().display().to_string());
        let token = door.acquire("k --ttl 5m").await.0;
        door.acquire("l --ttl 5m").await;
        let script = format!(
            "set -e; export LEASE_TOKEN={token}; exec 3>&1 {thrown_away}
            \"$F\" status k; \"$F\" renew k --json; \"$F\" release k; \"$F\" break l --yes 2>&-
            \"$F\" key revoke --keys {file} {id}; \"$F\" --version; \"$F\" check --store memory:; echo done >&3"
        );
        assert_eq!(door.script(&script).await.expect_silent(0).stdout, "done\n");
        assert!(!is_held(&door.client(), "k").await && !is_held(&door.client(), "l").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_where_the_output_is_open_for_reading_alone_or_it_is_full() {
    let mut keys = KeysFile::new();
    let key = keys.add_for_all("one", "\"list\"");
    keys.add_for_all("two", "\"list\"");
    keys.write();
    let door = Door::plain().await;
    door.acquire("k --ttl 5m").await;
    let revoke = format!("key revoke --keys {} {}", keys.path().display(), key.split('_').nth(1).unwrap());
    for words in ["status k", "break k --yes", "--version", "--help", "check --store memory:", &revoke] {
        let ended = door.script(&format!("\"$F\" {words} 1</dev/null")).await;
        ended.expect_line(71, &["standard output", "nothing was done"]);
    }
    assert!(is_held(&door.client(), "k").await);
    assert_eq!(door.json(&format!("key list --keys {}", keys.path().display())).await.len(), 2);
    for words in ["status k", "list", "--version", "--help", "check --store memory:", "openapi"] {
        door.script(&format!("\"$F\" {words} >/dev/full")).await.expect_line(71, &["cannot print"]);
        // A reader that has gone ends it as it ends other programs.
        door.script(&format!("{{ sleep 0.2; \"$F\" {words}; }} | true")).await.expect_silent(141);
    }
}

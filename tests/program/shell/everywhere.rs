//! Each command that asks a gateway, behind each kind of door, at a terminal and in a pipe.

use super::door::Door;

#[tokio::test(flavor = "multi_thread")]
async fn each_command_works_in_a_pipe_with_and_without_keys_and_tls() {
    for (is_keyed, speaks_tls) in [(false, false), (true, false), (false, true), (true, true)] {
        let door = Door::open(is_keyed, speaks_tls).await;
        let (token, number) = door.acquire("ci/a --owner 'a b' --ttl 5m").await;
        let busy = door.pipe("acquire ci/a --wait 0s").await;
        busy.expect_line(75, &["ci/a", "busy"]);

        let table = door.pipe("list ci/").await.expect_silent(0).stdout;
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("KEY ") && lines[1].starts_with("ci/a  \"a b\""), "{table}");
        assert_eq!(lines.len(), 2, "{table}");
        let listed = door.json("list").await;
        assert_eq!((listed.len(), &listed[0]["fencing_token"]), (1, &number.into()));
        let status = door.pipe("status ci/a").await.expect_silent(0).stdout;
        assert!(status.contains("\"a b\"") && status.contains(&number.to_string()), "{status}");
        let status = door.json("status ci/a").await;
        assert_eq!((&status[0]["held"], &status[0]["owner"]), (&true.into(), &"a b".into()));

        let watched = door.start("\"$F\" watch ci/ | tee seen >&2");
        door.scene.says("seen", "resync").await;
        let watched_by_machine = door.start("\"$F\" watch --json >events");
        door.scene.says("events", "resync").await;

        door.pipe_with(&token, "renew ci/a --ttl 6m").await.expect_silent(0);
        let renewed = door.pipe_with(&token, "renew ci/a --ttl 7m --json").await.expect_silent(0).stdout;
        let renewed: serde_json::Value = serde_json::from_str(&renewed).unwrap();
        assert!(renewed["ttl_ms"].as_u64().unwrap() > 400_000, "{renewed}");

        door.pipe("break ci/a").await.expect_line(2, &["--yes", "ci/a"]);
        door.pipe("status ci/a").await.expect_silent(0);
        let broken = door.pipe("break ci/a --yes").await;
        assert!(broken.stderr.contains("held by \"a b\""), "{broken:?}");
        assert_eq!((broken.status, broken.stdout.starts_with("broken: ")), (Some(0), true), "{broken:?}");
        door.pipe("break ci/a --yes").await.expect_line(1, &["is free"]);
        let free = door.pipe("status ci/a").await.expect_silent(1).stdout;
        assert!(free.contains("free"), "{free}");
        door.pipe_with(&token, "renew ci/a").await.expect_line(76, &["ci/a"]);
        door.pipe_with(&token, "release ci/a").await.expect_line(76, &["ci/a"]);

        let (token, number) = door.acquire("ci/a").await;
        door.pipe_with(&token, "release ci/a").await.expect_silent(0);
        door.scene.says("seen", &format!("fencing token {number}")).await;
        door.scene.says("events", "\"event\":\"released\"").await;
        drop((watched, watched_by_machine));
        door.pipe("list").await.expect_line(0, &["no lock is held"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_works_at_a_terminal_with_and_without_keys_and_tls() {
    for (is_keyed, speaks_tls) in [(false, false), (true, false), (false, true), (true, true)] {
        let door = Door::open(is_keyed, speaks_tls).await;
        let watch = door.person(&["watch"]);
        watch.sees("resync").await;
        let mut acquire = door.person(&["acquire", "ci/a", "--owner", "a b", "--ttl", "5m"]);
        acquire.sees("time left").await;
        assert_eq!(acquire.status().await, Some(0));
        let screen = acquire.screen();
        let token = screen.lines().find_map(|line| line.strip_prefix("lease token")).unwrap().trim();
        watch.sees("granted").await;
        let mut list = door.person(&["list"]);
        list.sees("ci/a  \"a b\"").await;
        assert_eq!(list.status().await, Some(0));
        let mut status = door.person(&["status", "ci/a"]);
        status.sees("holder").await;
        assert_eq!(status.status().await, Some(0));
        let mut renew = door.person_with(token, &["renew", "ci/a", "--ttl", "10m"]);
        renew.sees("10 min").await;
        assert_eq!(renew.status().await, Some(0));

        for (answer, said, status) in [("n\n", "nothing was broken", 1), ("y\n", "broken: ", 0)] {
            let mut breaking = door.person(&["break", "ci/a"]);
            breaking.sees("held by \"a b\"").await;
            breaking.sees("Break it? [y/N]").await;
            breaking.types(answer);
            breaking.sees(said).await;
            assert_eq!(breaking.status().await, Some(status));
        }
        let (token, _) = door.acquire("ci/a").await;
        let mut release = door.person_with(&token, &["release", "ci/a"]);
        assert_eq!((release.status().await, release.screen()), (Some(0), String::new()));
        assert_eq!(door.person(&["status", "ci/a"]).status().await, Some(1));
    }
}

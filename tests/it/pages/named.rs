//! Snippets of which more is to be said than that they run: each on every store, with real `bash`, `curl` and `sqlite3`.

use std::os::unix::fs::MetadataExt;

use super::{Said, Shell, pages};
use crate::support::{RedisServer, Stage, eventually, free_port, fresh_token, on_each_store};

on_each_store!(
    the_first_lines_work_as_pasted,
    take_renew_release_works_as_pasted,
    a_key_from_a_variable_works_as_pasted,
    a_cron_job_does_not_overlap,
    waiting_works_as_pasted,
    holding_works_as_pasted,
    listing_and_breaking_work_as_pasted,
    jobs_wait_for_their_turn,
    a_double_click_is_ignored,
    a_serverless_function_retries_safely,
    claiming_in_sql_loses_no_update,
    busy_and_down_are_told_apart,
);

#[test]
fn the_readme_begins_with_what_a_newcomer_pastes() {
    let readme = pages().iter().find(|page| page.name == "README.md").unwrap();
    assert!(readme.text.contains("make test"));
    let first_screen: Vec<_> = readme.text.lines().take(60).collect();
    assert!(first_screen.iter().filter(|line| line.starts_with("curl ")).count() >= 3);
}

async fn the_first_lines_work_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("locks/backup?ttl=30s&owner=me").await.expect(0, "\"fencing_token\"");
    assert!(
        said.text.contains("/problems/lock-held") && said.text.contains("held by \\\"me\\\""),
        "{said:?}"
    );
    assert!(said.text.ends_with("}\n") && said.text.matches("\"owner\":\"me\"").count() == 3, "{said:?}");
}

async fn take_renew_release_works_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("curl -X PATCH").await.expect(0, "\"yours\":true");
    assert_eq!(said.text.matches("\"ttl_ms\"").count(), 2, "{said:?}");
    assert!(!said.text.contains("problem"), "{said:?}");
    stage.client().get("/locks/report").send().await.expect_problem(404, "not-held");
}

async fn a_key_from_a_variable_works_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("key=$K").await;
    let said = said.expect(0, "\"key\":\"reports/2026 & drafts\"");
    assert!(!said.text.contains("problem"), "{said:?}");
    stage.client().get("/lock?key=reports/2026%20%26%20drafts").send().await.expect_problem(404, "not-held");
}

async fn listing_and_breaking_work_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("force=true").await.expect(0, "\"owner\":\"stuck\"");
    assert!(!said.text.contains("problem"), "{said:?}");
    stage.client().get("/lock?key=ci/deploy").send().await.expect_problem(404, "not-held");
}

async fn holding_works_as_pasted(stage: Stage) {
    let shell = Shell::new(&stage);
    shell.paste("/hold?key=import").await.expect(0, "the lock is mine while curl runs");
    for entry in std::fs::read_dir(shell.path("")).unwrap().map(Result::unwrap) {
        let is_private = entry.metadata().unwrap().mode() & 0o077 == 0;
        let holds_token = std::fs::read_to_string(entry.path()).unwrap().contains("event: granted");
        assert!(is_private || !holds_token, "{entry:?} is there for all to read");
    }
    let client = stage.client();
    eventually("the lock is free", async || client.get("/locks/import").send().await.status == 404).await;
}

async fn a_cron_job_does_not_overlap(stage: Stage) {
    let shell = Shell::new(&stage);
    let job = "echo ran >>runs; until [ -e go ]; do sleep 0.02; done; exit 3";
    let first =
        shell.command(shell.path("run-alone"), &["nightly/backup", "1m", "sh", "-c", job]).spawn().unwrap();
    eventually("the job runs", async || shell.path("runs").exists()).await;
    shell.run("run-alone", &["nightly/backup", "1m", "sh", "-c", job]).await.expect(0, "is running already");
    shell.run("run-alone", &["another", "1m", "echo", "beside it"]).await.expect(0, "beside it");
    std::fs::write(shell.path("go"), "").unwrap();
    let first = Said::of(first.wait_with_output().await.unwrap());
    first.expect(3, "");
    assert_eq!(std::fs::read_to_string(shell.path("runs")).unwrap(), "ran\n");
    // It was released: the next night comes at once.
    shell.run("run-alone", &["nightly/backup", "1m", "sh", "-c", job]).await.expect(3, "");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    dead.run("run-alone", &["nightly/backup", "1m", "touch", "wrong"]).await.expect(75, "cannot ask");
    assert!(!dead.path("wrong").exists());
}

async fn waiting_works_as_pasted(stage: Stage) {
    let shell = Shell::new(&stage);
    shell.paste("/locks/deploy?ttl=1m&wait=20s").await.expect(0, "\"fencing_token\"");
    let holder = stage.client().put("/locks/deploy?ttl=1m").send().await.expect(201).token();
    let waiting = shell.paste("/locks/deploy?ttl=1m&wait=20s");
    let release = async {
        let client = stage.client();
        eventually("it waits", async || client.get("/locks/deploy").send().await.json()["waiters"] == 1)
            .await;
        client.delete("/locks/deploy").token(&holder).send().await.expect(204);
    };
    let (said, ()) = tokio::join!(waiting, release);
    said.expect(0, "\"fencing_token\"");
    stage.client().get("/locks/deploy").send().await.expect_problem(404, "not-held");
}

async fn jobs_wait_for_their_turn(stage: Stage) {
    let shell = Shell::new(&stage);
    let client = stage.client();
    let waiters = async |expected: u64| {
        let look = async || client.get("/locks/deploy").send().await;
        eventually("so many wait", async || look().await.json()["waiters"] == expected).await;
    };
    let job = "echo $1 begins >>runs; until [ -e go ]; do sleep 0.02; done; echo $1 ends >>runs";
    let start = |name: &str| {
        let args = ["deploy", "1m", "sh", "-c", job, "sh", name];
        shell.command(shell.path("in-turn"), &args).spawn().unwrap()
    };
    let mut jobs = vec![start("a")];
    eventually("the first job runs", async || shell.path("runs").exists()).await;
    for (number, name) in ["b", "c"].into_iter().enumerate() {
        jobs.push(start(name));
        waiters(number as u64 + 1).await;
    }
    // Who is interrupted leaves the line.
    let interrupted = start("d");
    waiters(3).await;
    crate::support::signal(interrupted.id().unwrap(), "TERM");
    drop(interrupted.wait_with_output().await);
    waiters(2).await;
    std::fs::write(shell.path("go"), "").unwrap();
    for job in jobs {
        Said::of(job.wait_with_output().await.unwrap()).expect(0, "");
    }
    let runs = std::fs::read_to_string(shell.path("runs")).unwrap();
    let expected = ["a", "b", "c"].map(|name| format!("{name} begins\n{name} ends\n")).concat();
    assert_eq!(runs, expected);
    client.get("/locks/deploy").send().await.expect_problem(404, "not-held");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    let mut hopeless = dead.command(dead.path("in-turn"), &["deploy", "1m", "touch", "wrong"]);
    let said = Said::of(hopeless.env("GIVE_UP_S", "0").output().await.unwrap());
    said.expect(75, "not my turn yet");
    assert!(!dead.path("wrong").exists());
}

async fn a_double_click_is_ignored(stage: Stage) {
    let shell = Shell::new(&stage);
    let clicks = futures_util::future::join_all((0..4).map(|_| shell.run("pay", &["4711"]))).await;
    let charged = clicks.iter().filter(|said| said.text == "charged order 4711\n").count();
    let ignored = clicks.iter().filter(|said| said.text == "order 4711 is being paid already\n").count();
    assert_eq!((charged, ignored), (1, 3), "{clicks:?}");
    shell.run("pay", &["0815 & co"]).await.expect(0, "charged order 0815 & co");
}

async fn a_serverless_function_retries_safely(stage: Stage) {
    let shell = Shell::new(&stage);
    let client = stage.client();
    for _ in 0..2 {
        shell.run("function", &[]).await.expect(0, "doing the work");
        client.get("/locks/invoice-4711").send().await.expect_problem(404, "not-held");
    }
    client.put("/locks/invoice-4711?ttl=1m").token(&fresh_token()).send().await.expect(201);
    shell.run("function", &[]).await.expect(0, "somebody else does it");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    dead.run("function", &[]).await.expect(75, "no lock: HTTP 000");
}

async fn claiming_in_sql_loses_no_update(stage: Stage) {
    let shell = Shell::new(&stage);
    let sql = async |statement: &str| {
        let output = shell
            .command("sqlite3", &["-cmd", ".timeout 5000", "bank.db", statement])
            .output()
            .await
            .unwrap();
        Said::of(output).expect(0, "").text.trim().to_owned()
    };
    sql("CREATE TABLE account (id PRIMARY KEY, balance, fence NOT NULL DEFAULT 0);
         INSERT INTO account (id, balance) VALUES ('7', 100)")
    .await;
    let deposits = (0..6).map(async |_| {
        let mut done = 0;
        for _ in 0..4 {
            let said = shell.run("deposit", &["bank.db", "7", "1"]).await;
            assert!(matches!(said.code, Some(0 | 75)), "{said:?}");
            done += usize::from(said.code == Some(0));
        }
        done
    });
    let done: usize = futures_util::future::join_all(deposits).await.into_iter().sum();
    assert!(done > 0);
    assert_eq!(sql("SELECT balance FROM account").await, (100 + done).to_string());
    // Nothing that it is given, or reads, is run.
    let evil = "x[$(touch ran)]";
    let both = "7' OR 1=1; UPDATE account SET balance=0; --";
    for (account, amount) in [("7", evil), ("7", "1; UPDATE account SET balance=0"), (both, "1"), (evil, "1")]
    {
        shell
            .run("deposit", &["bank.db", account, amount])
            .await
            .expect(2, "deposit DATABASE ACCOUNT AMOUNT");
    }
    sql("INSERT INTO account (id, balance) VALUES ('8', 'x[$(touch ran)]')").await;
    shell.run("deposit", &["bank.db", "8", "1"]).await.expect(2, "the balance is no whole number");
    assert!(!shell.path("ran").exists());
    sql("DELETE FROM account WHERE id='8'").await;
    assert_eq!(sql("SELECT balance FROM account").await, (100 + done).to_string());
    // Somebody newer claims while this one thinks: its write is refused.
    let mut slow = shell.command(shell.path("deposit"), &["bank.db", "7", "50"]);
    let before = sql("SELECT fence FROM account").await;
    let slow = slow.env("THINK_S", "2").spawn().unwrap();
    eventually("it has claimed", async || sql("SELECT fence FROM account").await != before).await;
    sql("UPDATE account SET fence=fence+1").await;
    let said = Said::of(slow.wait_with_output().await.unwrap());
    said.expect(75, "somebody newer has the lock");
    assert_eq!(sql("SELECT balance FROM account").await, (100 + done).to_string());
    // An older number than the table has seen cannot even claim.
    sql("UPDATE account SET fence=9007199254740991").await;
    shell.run("deposit", &["bank.db", "7", "1"]).await.expect(75, "somebody newer has the lock");
}

async fn busy_and_down_are_told_apart(stage: Stage) {
    let shell = Shell::new(&stage);
    shell.run("try-lock", &["a"]).await.expect(0, "mine\n");
    shell.run("try-lock", &["a"]).await.expect(0, "busy\n");
    // A name says nothing but a name.
    shell.run("try-lock", &["zz?ttl=24h#"]).await.expect(0, "mine\n");
    let held = stage.client().get("/lock?key=zz%3Fttl%3D24h%23").send().await.expect(200).json();
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 5_000, "{held}");
    let dead = Shell::at(format!("127.0.0.1:{}", free_port()));
    dead.run("try-lock", &[]).await.expect(0, "no gateway there\n");
    let mut redis = RedisServer::start().await;
    let gateway = crate::support::Gateway::on_redis(&redis, &[]).await;
    redis.kill();
    Shell::at(gateway.address.to_string()).run("try-lock", &[]).await.expect(0, "cannot use its store");
}

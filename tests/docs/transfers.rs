//! Transfers in both directions under the locks of both accounts, by the SQL of the page.

use std::path::Path;
use std::process::Command;

use tokio::task::{JoinSet, spawn_blocking};

use crate::pages::file;
use kit::{Client, Gateway};

const CLIENTS: usize = 8;
const TRANSFERS: usize = 10;

/// What the statements are given, with the names that they have on the page.
type Parameters = Vec<(&'static str, String)>;

/// Runs SQL with these parameters, as one client does. Says how many rows each `UPDATE` has changed.
fn run(database: &Path, sql: &str, parameters: &Parameters) -> Vec<String> {
    let lines = sql.lines().filter(|line| !line.starts_with("--"));
    let mut sql = lines.collect::<String>().replace(';', ";\n");
    for (name, value) in parameters {
        sql = sql.replace(name, value);
    }
    let counted = |line: &str| match line.starts_with("UPDATE") {
        true => format!("{line} SELECT changes();"),
        false => line.to_owned(),
    };
    let sql = sql.lines().map(counted).collect::<String>();
    let output = Command::new("sqlite3")
        .args(["-batch", "-bail", "-cmd", ".timeout 20000"])
        .arg(database)
        .arg(sql)
        .output()
        .expect("sqlite3 must be installed: `make test` says how");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The fence of `from` first, so that no name is part of another that stands before it.
fn transfer(from: usize, to: usize, numbers: [u64; 2]) -> Parameters {
    vec![
        (":fence_from", numbers[0].to_string()),
        (":fence_to", numbers[1].to_string()),
        (":from", format!("'{from}'")),
        (":to", format!("'{to}'")),
        (":amount", "1".to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_in_both_directions_lose_nothing_and_refuse_an_older_holder() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("bank.db");
    run(&database, &file("account.sql"), &Vec::new());
    run(&database, "INSERT INTO account (id, balance) VALUES ('0', 1000), ('1', 1000);", &Vec::new());
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (client, database) = (Client::new(gateway.address), database.clone());
        // More of them go one way than the other.
        let (from, to) = if number % 4 == 0 { (1, 0) } else { (0, 1) };
        clients.spawn(async move {
            let mut first = None;
            for _ in 0..TRANSFERS {
                let path = format!("/lock?key=account:{from}&key=account:{to}&wait=60s&ttl=60s");
                let taken = client.put(&path).send().await.expect(201);
                let (body, token) = (taken.json(), taken.token());
                let numbers = [0, 1].map(|at| body["locks"][at]["fencing_token"].as_u64().unwrap());
                let (database, parameters) = (database.clone(), transfer(from, to, numbers));
                let changed = spawn_blocking(move || run(&database, &file("transfer.sql"), &parameters));
                assert_eq!(changed.await.unwrap(), ["1"; 4]);
                first = first.or(Some((from, to, numbers)));
                for account in [from, to] {
                    client
                        .delete(&format!("/locks/account:{account}"))
                        .token(&token)
                        .send()
                        .await
                        .expect(204);
                }
            }
            first.unwrap()
        });
    }
    let firsts = clients.join_all().await;
    let balances = run(&database, "SELECT balance FROM account ORDER BY id;", &Vec::new());
    let (forth, back) = (CLIENTS * 3 / 4 * TRANSFERS, CLIENTS / 4 * TRANSFERS);
    assert_eq!(balances, [(1000 + back - forth).to_string(), (1000 + forth - back).to_string()]);
    // One that wakes up now has neither row.
    for (from, to, numbers) in firsts {
        assert_eq!(run(&database, &file("transfer.sql"), &transfer(from, to, numbers)), ["0"; 4]);
    }
}

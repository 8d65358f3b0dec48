//! The snippets of docs/clients.md, as their readers save and start them.

use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

use super::workshop::{bare_python, go, made, root, run};
use super::{gateway, url};
use kit::{Client, Gateway};

/// Writes the snippet of this name to there, with these files of the clients next to it.
pub fn save(file: &str, directory: &Path, clients: &[&str]) {
    std::fs::write(directory.join(file), crate::pages::file(file)).unwrap();
    for client in clients {
        let from = root().join("examples/clients").join(client);
        std::fs::copy(from, directory.join(client)).unwrap();
    }
}

/// What is printed by a program that was told of this gateway.
async fn said(command: &mut Command, gateway: &Gateway) -> Vec<String> {
    let said = run(command.env("FENCEPOST_URL", url(gateway)).env("PYTHONDONTWRITEBYTECODE", "1")).await;
    said.split_whitespace().map(str::to_owned).collect()
}

/// Holds that the words are pages, each with the same fencing token, and that the lock is free again.
async fn is_report(words: &[String], pages: &[&str], gateway: &Gateway) {
    let numbers: Vec<u64> = words.iter().skip(1).step_by(2).map(|word| word.parse().unwrap()).collect();
    let written: Vec<&str> = words.iter().step_by(2).map(String::as_str).collect();
    assert_eq!(written, pages, "{words:?}");
    assert!(numbers.iter().all(|number| number == &numbers[0]), "{words:?}");
    Client::new(gateway.address).get("/locks/report").send().await.expect_problem(404, "not-held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_of_the_page_works_as_it_stands() {
    let (gateway, place) = (gateway().await, TempDir::new().unwrap());
    let python = |file: &str| {
        save(file, place.path(), &["fencepost.py", "fencepost_async.py"]);
        bare_python(place.path().join(file).to_str().unwrap())
    };
    is_report(&said(&mut python("report.py"), &gateway).await, &["a", "b"], &gateway).await;
    is_report(&said(&mut python("report_async.py"), &gateway).await, &["a"], &gateway).await;
    let once = said(&mut python("once.py"), &gateway).await.join(" ");
    assert_eq!(once, r#"{"receipt": "ch_1"} 201 False {"receipt": "ch_1"} 201 True"#);
    let share = said(&mut python("share.py"), &gateway).await;
    assert!(share[0] == "1" && share[1].parse::<u64>().is_ok(), "{share:?}");
    let busy = said(&mut python("busy.py"), &gateway).await;
    let numbers: Vec<f64> = busy[3..].iter().map(|word| word.parse().unwrap()).collect();
    assert_eq!(busy[..3], ["409", "first", "click"]);
    assert!((5.0..=10.0).contains(&numbers[0]) && (1.0..=5.0).contains(&numbers[1]), "{busy:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_of_the_page_works_as_it_stands() {
    let (gateway, place) = (gateway().await, TempDir::new().unwrap());
    save("report.mjs", place.path(), &["fencepost.mjs"]);
    let words = said(Command::new("node").arg(place.path().join("report.mjs")), &gateway).await;
    is_report(&words, &["a", "b"], &gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_of_the_page_works_as_it_stands() {
    let (gateway, place) = (gateway().await, TempDir::new().unwrap());
    save("report.go", place.path(), &[]);
    let words = said(go(place.path(), "example.com/report").args(["run", "."]), &gateway).await;
    is_report(&words, &["a"], &gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_generated_client_of_the_page_works_as_it_stands() {
    let gateway = gateway().await;
    let words = said(Command::new("node").arg(made().await.join("out/typed.js")), &gateway).await;
    is_report(&[&["a".to_owned()], words.as_slice()].concat(), &["a"], &gateway).await;
}

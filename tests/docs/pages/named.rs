//! Snippets of which more is to be said than that they run: each on every store, with real `bash`, `curl` and `sqlite3`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::Parser;
use fencepost::config::Cli;

use super::{ROOT, Shell, pages, snippets};
use kit::{Stage, eventually, on_each_store};

on_each_store!(
    the_first_lines_work_as_pasted,
    take_renew_release_works_as_pasted,
    a_key_from_a_variable_works_as_pasted,
    waiting_works_as_pasted,
    holding_works_as_pasted,
    a_proxy_is_asked_for_the_number_of_a_grant_as_pasted,
    listing_and_breaking_work_as_pasted,
);

#[test]
fn the_readme_begins_with_what_a_newcomer_pastes() {
    let readme = pages().iter().find(|page| page.name == "README.md").unwrap();
    assert!(readme.text.contains("make test"));
    let first_screen: Vec<_> = readme.text.lines().take(60).collect();
    assert!(first_screen.iter().filter(|line| line.starts_with("curl ")).count() >= 3);
}

#[test]
fn the_changelog_has_the_last_version_with_its_date_and_what_is_not_released_has_a_later_number() {
    let changelog = fs::read_to_string(Path::new(ROOT).join("CHANGELOG.md")).unwrap();
    let mut sections = changelog.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(sections.next(), Some("Unreleased"));
    let (version, date) = sections.next().unwrap().split_once(" - ").unwrap();
    let number = |version: &str| version.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>();
    match env!("CARGO_PKG_VERSION").strip_suffix("-dev") {
        None => assert_eq!(version, env!("CARGO_PKG_VERSION")),
        Some(next) => assert!(number(version) < number(next), "{version} is released, and {next} is not"),
    }
    let digits = |part: &str| part.bytes().filter(u8::is_ascii_digit).count();
    assert_eq!(date.split('-').map(digits).collect::<Vec<_>>(), [4, 2, 2], "{date}");
}

/// Whatever a gateway answers, the reader finds what to do.
#[test]
fn each_type_of_problem_is_on_the_page_of_failures() {
    let page = pages().iter().find(|page| page.name == "docs/failures.md").unwrap();
    let rows: Vec<_> = page.text.lines().filter(|line| line.starts_with("| ")).collect();
    let document = include_str!("../../../openapi/openapi.json");
    let names: BTreeSet<_> = document
        .split("/problems/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        .collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        // The first column says what was answered, and the others what that means.
        let is_named =
            |row: &&&str| row.split(" | ").next().is_some_and(|answer| answer.contains(&format!("`{name}`")));
        let row = rows.iter().find(is_named).unwrap_or_else(|| panic!("no row says what to do about {name}"));
        assert!(row.matches(" | ").count() >= 1 && row.len() > name.len() + 30, "{row}");
    }
}

/// The recipe is run by tests of its own. With fewer flags, a machine whose clock is late does the work again.
#[test]
fn each_crontab_is_the_one_of_the_recipe() {
    let recipe = super::file("crontab");
    let job = recipe.lines().find(|line| line.contains("fencepost run")).unwrap();
    for name in ["README.md", "docs/run.md"] {
        let page = pages().iter().find(|page| page.name == name).unwrap();
        assert!(page.text.lines().any(|line| line == job), "{name}: {job}");
    }
    let help = Cli::try_parse_from(["fencepost", "run", "--help"]).err().unwrap().to_string();
    let flags = job.split_once(" run ").unwrap().1.split_once(" -- ").unwrap().0;
    assert!(help.contains(flags), "{help}");
}

/// With a script that only we have, the first try would end with 127.
#[test]
fn the_first_run_of_a_page_starts_a_command_that_each_machine_has() {
    for name in ["README.md", "docs/run.md"] {
        let mut runs = snippets().iter().filter(|snippet| snippet.page.name == name);
        let first = runs.find(|snippet| snippet.code.starts_with("fencepost run ")).unwrap();
        let command = first.code.split_once(" -- ").unwrap().1;
        assert!(command.starts_with("echo "), "{}: {command}", first.place());
    }
}

async fn the_first_lines_work_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("locks/backup?ttl=30s&owner=me").await.expect(0, "\"fencing_token\"");
    assert!(
        said.text.contains("/problems/lock-held") && said.text.contains("\\\"me\\\" holds the lock"),
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
    let said =
        Shell::new(&stage).paste("key=ci/deploy' -d force=true").await.expect(0, "\"owner\":\"stuck\"");
    assert!(!said.text.contains("problem"), "{said:?}");
    stage.client().get("/lock?key=ci/deploy").send().await.expect_problem(404, "not-held");
}

async fn holding_works_as_pasted(stage: Stage) {
    let said = Shell::new(&stage).paste("/hold?key=import").await.expect(0, "event: granted");
    said.expect(0, "event: renewed").expect(0, "status 124");
    let client = stage.client();
    eventually("the lock is free", async || client.get("/locks/import").send().await.status == 404).await;
    client.put("/locks/import?ttl=1m").send().await.expect(201);
    Shell::new(&stage).paste("/hold?key=import").await.expect(0, "status 22");
}

/// The number of a refusal is the holder's.
async fn a_proxy_is_asked_for_the_number_of_a_grant_as_pasted(stage: Stage) {
    let shell = Shell::new(&stage);
    let said = shell.paste("fencing_token=$number").await;
    assert_eq!((said.code, said.text.as_str()), (Some(0), "204\n"));
    let said = shell.paste("fencing_token=$number").await.expect(0, "error: 423");
    assert!(said.text.starts_with("400\n"), "{said:?}");
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

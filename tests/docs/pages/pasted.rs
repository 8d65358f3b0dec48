//! Each page, as a reader works through it: all that is to be pasted, in order, in one directory, with a gateway of the
//! page's own.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use super::shell::{without_progress, write_program};
use super::{DOCUMENTED_ADDRESS, Page, Snippet, lists, pages, snippets};
use kit::gateway::program;
use kit::{Gateway, RedisServer};

/// How many pages are worked through at a time.
const AT_A_TIME: usize = 3;
/// The longest that one snippet may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// What reaches beyond the files of a machine, which nothing that is pasted here can change.
const FAR: [&str; 7] = ["apt-get ", "docker ", "kubectl ", "pkill ", "systemctl ", "reboot", "shutdown"];
/// Lets a program write to two directories, and nowhere else: not in memory either, where these may be.
const CONFINE: &str = "mount --bind \"$0\" \"$0\" && mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro / &&
    if mountpoint -q /dev/shm; then mount -o remount,bind,ro /dev/shm; fi && cd \"$0\" && shift && exec \"$@\"";
/// Stands between the outputs of two commands of one session.
const MARK: &str = "\u{1}next\u{1}";

#[tokio::test(flavor = "multi_thread")]
async fn every_page_runs_as_pasted() {
    all_pages(async || Gateway::start(&["--store", "memory:"]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_runs_as_pasted_on_redis() {
    // One that does not say how much memory it may use keeps no records.
    let redis = RedisServer::start_with(&["--maxmemory", "1gb"]).await;
    all_pages(async || {
        let prefix = format!("page-{:x}", rand::random::<u64>());
        Gateway::on_redis(&redis, &["--redis-prefix", &prefix]).await
    })
    .await;
}

async fn all_pages(start: impl AsyncFn() -> Gateway) {
    let start = &start;
    let run = async |page: &'static Page| {
        let to_run: Vec<_> =
            snippets().iter().filter(|snippet| std::ptr::eq(snippet.page, page) && is_run(snippet)).collect();
        if to_run.is_empty() {
            return Vec::new();
        }
        let desk = Desk::at(start().await);
        let mut complaints = Vec::new();
        for snippet in to_run {
            if let Err(complaint) = desk.try_out(snippet).await {
                complaints.push(format!("{}: {complaint}", snippet.place()));
            }
        }
        complaints
    };
    let complaints: Vec<_> = futures_util::stream::iter(pages().iter().map(run))
        .buffer_unordered(AT_A_TIME)
        .collect::<Vec<_>>()
        .await
        .concat();
    assert!(complaints.is_empty(), "{}", complaints.join("\n\n"));
}

/// Whether it is pasted here: the others are run by tests of their own, or not at all.
pub(super) fn is_run(snippet: &Snippet) -> bool {
    let is_pasted = snippet.language == "bash" || snippet.language == "console";
    is_pasted && snippet.file.is_none() && !lists::is_not_run(snippet) && lists::test_of(snippet).is_none()
}

/// Where a reader of one page sits.
struct Desk {
    directory: TempDir,
    /// What is printed goes here, so that what stays in the background keeps nobody waiting.
    printed: TempDir,
    gateway: Gateway,
}

impl Desk {
    fn at(gateway: Gateway) -> Self {
        let (directory, printed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bin = printed.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(program(), bin.join("fencepost")).unwrap();
        Self { directory, printed, gateway }
    }

    /// The scripts that a snippet starts are there: those that the page has saved, and else some that do nothing.
    fn provide(&self, snippet: &Snippet) {
        for saved in snippets().iter().filter(|saved| std::ptr::eq(saved.page, snippet.page)) {
            if let Some(name) = saved.file.as_ref().filter(|name| !name.contains('/')) {
                write_program(&self.directory.path().join(name), &self.here(&saved.code));
            }
        }
        for rest in snippet.code.split("./").skip(1) {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            let name = rest.split(|c| !is_part(c)).next().unwrap();
            let path = self.directory.path().join(name);
            if name.ends_with(".sh") && !path.exists() {
                write_program(&path, "#!/bin/sh\nexit 0\n");
            }
        }
    }

    fn here(&self, code: &str) -> String {
        code.replace(DOCUMENTED_ADDRESS, &self.gateway.address.to_string())
    }

    async fn try_out(&self, snippet: &Snippet) -> Result<(), String> {
        if let Some(far) = FAR.iter().find(|far| snippet.code.contains(**far)) {
            return Err(format!("{far:?} is nothing for a test: name it in not_run.txt"));
        }
        self.provide(snippet);
        let code = self.here(&snippet.code);
        let printed = if snippet.language == "bash" {
            let (is_good, printed) = self.bash(&["-e", "-u"], &code).await?;
            if !is_good {
                return Err(format!("it fails:\n{printed}"));
            }
            printed
        } else {
            self.session(&code).await?
        };
        surprise(&printed, snippet.vicinity).map_or(Ok(()), Err)
    }

    /// Runs the commands of a console in one shell, and holds what each prints against what stands there.
    async fn session(&self, code: &str) -> Result<String, String> {
        let steps = steps(code);
        if steps.is_empty() {
            return Err("no line begins with `$ `".to_owned());
        }
        let script: String =
            steps.iter().map(|step| format!("{}\necho '{MARK}'$?\n", step.command)).collect();
        let (_, printed) = self.bash(&["-u"], &script).await?;
        let mut rest = printed.as_str();
        for Step { command, expected } in &steps {
            let Some((said, behind)) = rest.split_once(MARK) else {
                return Err(format!("`{command}` does not come to its end:\n{rest}"));
            };
            let (status, behind) = behind.split_once('\n').unwrap_or((behind, ""));
            if expected.is_empty() && status != "0" {
                return Err(format!("`{command}` ends with {status}, and no output is promised:\n{said}"));
            }
            if let Some(line) = missing(expected, said) {
                return Err(format!("`{command}` does not print {line:?}, but:\n{said}"));
            }
            rest = behind;
        }
        Ok(printed)
    }

    /// Whether a script ended well, and what it printed.
    async fn bash(&self, flags: &[&str], code: &str) -> Result<(bool, String), String> {
        let output = self.printed.path().join("output");
        File::create(&output).unwrap();
        let append = || File::options().append(true).open(&output).unwrap();
        let path =
            format!("{}:{}", self.printed.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("unshare");
        let places = [self.directory.path(), self.printed.path()];
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FENCEPOST_")) {
            command.env_remove(name);
        }
        command
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", CONFINE])
            .args(places)
            .arg("bash")
            .args(flags)
            .args(["-c", code])
            .current_dir(self.directory.path())
            .env("PATH", path)
            .env("HOME", self.directory.path())
            .env("TMPDIR", self.printed.path())
            .env("FENCEPOST_URL", format!("http://{}", self.gateway.address))
            .stdin(Stdio::null())
            .stdout(append())
            .stderr(append())
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let group = child.id().unwrap();
        let status = timeout(PATIENCE, child.wait()).await;
        // What it left in the background ends too.
        let group = nix::unistd::Pid::from_raw(group.try_into().unwrap());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let printed = without_progress(&std::fs::read_to_string(&output).unwrap());
        let status = status.map_err(|_| format!("it takes longer than {PATIENCE:?}:\n{printed}"))?;
        Ok((status.unwrap().success(), printed))
    }
}

/// A command of a console, and what the page says that it prints.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    expected: Vec<String>,
}

fn steps(code: &str) -> Vec<Step> {
    let mut steps = Vec::<Step>::new();
    for line in code.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), expected: Vec::new() }),
            (None, Some(step)) if step.expected.is_empty() && step.command.ends_with('\\') => {
                step.command = format!("{}\n{}", step.command, line.strip_prefix("> ").unwrap_or(line));
            }
            (None, Some(step)) if !line.trim().is_empty() => step.expected.push(line.to_owned()),
            _ => {}
        }
    }
    steps
}

/// The first line that was not printed behind the one before it. `…` stands for anything.
fn missing<'a>(expected: &'a [String], printed: &str) -> Option<&'a str> {
    let printed = plain(printed);
    let mut rest = printed.as_str();
    for line in expected {
        for part in line.split('…').map(plain).filter(|part| !part.is_empty()) {
            match rest.split_once(&*part) {
                Some((_, behind)) => rest = behind,
                None => return Some(line),
            }
        }
    }
    None
}

/// A text without what is different each time: numbers, ids, and the spaces that stand for how long these are.
fn plain(text: &str) -> String {
    let is_id = |word: &str| word.len() >= 12 || word.contains(|c: char| c.is_ascii_digit());
    let mut plain = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let (word, separator) = match word.char_indices().next_back() {
            Some((at, c)) if !c.is_ascii_alphanumeric() => (&word[..at], Some(c)),
            _ => (word, None),
        };
        plain += if is_id(word) { "#" } else { word };
        plain.extend(separator.filter(|c| !c.is_whitespace()));
    }
    plain
}

/// What is printed that the page does not speak of: an error, where the text around names neither it nor its status.
fn surprise(printed: &str, vicinity: &str) -> Option<String> {
    for start in ["curl: (", "command not found", "No such file", "syntax error"] {
        if let Some(line) = printed.lines().find(|line| line.contains(start) && !vicinity.contains(line)) {
            return Some(format!("it says {line:?}"));
        }
    }
    for rest in printed.split("/problems/").skip(1) {
        let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap();
        let status =
            rest.split("\"status\":").nth(1).map(|rest| rest.trim_start().get(..3).unwrap_or_default());
        let is_meant = vicinity.contains(name) || status.is_some_and(|status| vicinity.contains(status));
        if !is_meant && !name.is_empty() {
            return Some(format!("nothing near it speaks of {name}:\n{printed}"));
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pasted_changes_nothing_but_its_own_directory() {
    let desk = Desk::at(Gateway::start(&["--store", "memory:"]).await);
    let elsewhere = tempfile::tempdir().unwrap();
    let paste = format!("touch here; mktemp; touch {}/there", elsewhere.path().display());
    let (is_good, printed) = desk.bash(&["-u"], &paste).await.unwrap();
    assert!(!is_good && printed.contains("Read-only file system"), "{printed}");
    assert!(desk.directory.path().join("here").exists() && !elsewhere.path().join("there").exists());
}

#[test]
fn what_a_console_prints_is_compared_loosely() {
    let code = "$ fencepost key new \\\n    --name ci\nfp_4k2v9qd01xte_…\n\n$ echo done\ndone in 29 s\n";
    let steps = steps(code);
    let commands: Vec<_> = steps.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(commands, ["fencepost key new \\\n    --name ci", "echo done"]);
    assert_eq!(missing(&steps[0].expected, "fp_0000000000aa_mJ3fL0aZk9TqUe7RbN5cWx2YsV8dHg1P\n"), None);
    assert_eq!(missing(&steps[1].expected, "done  in 3 s"), None);
    assert_eq!(missing(&steps[1].expected, "done at 3 s"), Some("done in 29 s"));
    let order = ["b".to_owned(), "a".to_owned()];
    assert_eq!(missing(&order, "a b"), Some("a"));
}

#[test]
fn an_error_that_a_page_does_not_speak_of_is_a_surprise() {
    let printed = r#"{"type":"/problems/lock-held","title":"Locked","status":423}"#;
    assert_eq!(surprise(printed, "the second is answered 423"), None);
    assert_eq!(surprise(printed, "see lock-held"), None);
    assert!(surprise(printed, "the second is answered 404").is_some());
    assert!(surprise("curl: (7) cannot connect", "").is_some());
    assert_eq!(surprise("all is well", ""), None);
}

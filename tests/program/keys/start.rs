//! What a gateway does not start with, and how a key is made.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fencepost::files::open_to_others;
use kit::gateway::{bare_command, program, run};
use kit::{Client, Gateway, KeysFile, eventually, fresh_token, server_port};

use super::gateway;

const EVERYWHERE: &str = "0.0.0.0:0";

fn refused(args: &[&str]) -> String {
    let output = run(&[&["--store", "memory:"], args].concat());
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn nothing_is_open_by_accident() {
    for address in [EVERYWHERE, "[::]:0", "192.0.2.1:0"] {
        let said = refused(&["--listen", address]);
        assert!(said.contains("--keys") && said.contains("--allow-anonymous"), "{said}");
        // As in a compose file or a unit file that sets variables to nothing.
        let mut command = bare_command();
        command.args(["--store", "memory:", "--listen", address]).env("FENCEPOST_KEYS", "");
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("--allow-anonymous"), "{said}");
    }
    assert!(refused(&["--keys", "/nowhere/keys.toml"]).contains("/nowhere/keys.toml"));
    let mut file = KeysFile::new();
    file.add_for_all("all", "\"acquire\"");
    file.write();
    let flag = file.flag();
    assert!(refused(&[&flag[0], &flag[1], "--allow-anonymous"]).contains("--allow-anonymous"));
    file.change("all", "every_key = true", "every_key = 1");
    file.write();
    assert!(refused(&[&flag[0], &flag[1]]).contains("line 5: every_key must be true or false"));
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_loopback_a_gateway_serves_who_shows_a_key_or_everybody_where_that_is_said() {
    let port = server_port();
    let listen = format!("0.0.0.0:{port}");
    let start = async |args: &[&str]| {
        Gateway::start(&[&["--store", "memory:", "--listen", &listen], args].concat()).await
    };
    let client = Client::new(([127, 0, 0, 1], port).into());
    let mut open = start(&["--allow-anonymous"]).await;
    client.put("/locks/k").send().await.expect(201);
    client.put("/locks/k").header("Host", "any.example").send().await.expect_problem(403, "unknown-host");
    assert!(open.log().join("\n").contains("everybody who reaches this address"));
    open.signal("TERM");
    open.exit_status().await;
    let mut file = KeysFile::new();
    let key = file.add_for_all("all", "\"acquire\"");
    file.write();
    let flag = file.flag();
    let closed = start(&[&flag[0], &flag[1]]).await;
    assert!(closed.log().join("\n").contains("this address has no TLS: API keys"));
    client.put("/locks/k").send().await.expect_problem(401, "key-required");
    client.put("/locks/k").key(&key).header("Host", "any.example").send().await.expect(201);
}

/// What is printed on both streams.
fn key_new(args: &[&str]) -> (String, String, Option<i32>) {
    let output = run(&[&["key", "new"], args].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_can_be_kept_with_a_pipe_and_used() {
    let file = KeysFile::new();
    let all = [
        "--name",
        "the \"ci\" \\ ümlaut",
        "--prefix",
        "ci/",
        "--prefix",
        "a,b",
        "--allow",
        "acquire,inspect",
        "--rate",
        "0.5",
        "--burst",
        "7",
        "--max-waiters",
        "2",
        "--max-holds",
        "0",
        "--max-locks",
        "7",
        "--max-ttl",
        "90s",
        "--expires",
        "90days",
        "--tls-subject",
        "CN=ci,O=Example",
    ];
    let (entry, said, code) = key_new(&all);
    assert_eq!(code, Some(0), "{said}");
    let key = said.lines().last().unwrap();
    assert!(key.starts_with("fp_") && !entry.contains(&key[16..]), "{entry}");
    for line in ["burst = 7", "rate = 0.5", "max_ttl = \"1m 30s\"", "tls_subjects = [\"CN=ci,O=Example\"]"] {
        assert!(entry.lines().any(|found| found == line), "{line}: {entry}");
    }
    file.write_text(&entry);
    // Another one behind it, of which only the key is said.
    let path = file.path();
    let more = ["--name", "b", "--every-key", "--allow", "acquire", "--append-to", path.to_str().unwrap()];
    let (other, said, code) = key_new(&more);
    assert_eq!((said.as_str(), code), ("", Some(0)));
    let text = std::fs::read_to_string(&path).unwrap();
    let flag = file.flag();
    let gateway = Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let client = Client::new(gateway.address);
    let granted = client.put("/locks/ci%2Fx").key(key).send().await.expect(201);
    assert_eq!(granted.header("ratelimit-policy"), Some("\"key\";q=7;w=14"));
    assert!(granted.json()["ttl_ms"].as_u64().unwrap() <= 30_000);
    client.put("/locks/anything").key(other.trim_end()).send().await.expect(201);
    // What would make a mess of the file is refused, and leaves it as it is.
    let doubled = ["--name", "c", "--every-key", "--allow", "list", "--tls-subject", "CN=ci,O=Example"];
    let (_, said, code) = key_new(&[&doubled[..], &["--append-to", path.to_str().unwrap()]].concat());
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

/// A gateway, `key new` and `key revoke` refuse a file with half an entry.
#[test]
fn a_key_for_which_there_is_no_room_leaves_the_file_as_it_is() {
    let file = KeysFile::new();
    let of = |name| ["--name", name, "--every-key", "--allow", "acquire,inspect,list"];
    let (entry, ..) = key_new(&of("a"));
    let text = format!("# {}\n{entry}", "x".repeat(3_997 - entry.len()));
    file.write_text(&text);
    // The last 96 bytes below the limit take the beginning of the entry only.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "sh", program(), "key", "new"]);
    let output = shell.args(of("b")).arg("--append-to").arg(file.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot append to") && output.stdout.is_empty(), "{said}");
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), text);
    // One that was not there is not there afterwards either.
    std::fs::remove_file(file.path()).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh", program(), "key", "new"]);
    let output = shell.args(of("b")).arg("--append-to").arg(file.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!file.path().exists());
}

/// An editor or a configuration tool puts a new file in the place of the old one, and waits for nothing.
#[test]
fn a_key_is_printed_only_if_it_is_in_the_file_also_where_another_program_replaces_that_meanwhile() {
    let file = KeysFile::new();
    let of = |name| ["--name", name, "--every-key", "--allow", "list"];
    let (entry, ..) = key_new(&of("a"));
    // To read it takes a while.
    let long = "# As it was.\n".repeat(1 << 20) + &entry;
    let is_replaced_meanwhile = || {
        file.write_text(&long);
        let old = File::open(file.path()).unwrap();
        let mut command = Command::new(program());
        command.args(["key", "new"]).args(of("b")).arg("--append-to").arg(file.path());
        let mut command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while old.try_lock().is_ok() && command.try_wait().unwrap().is_none() {
            old.unlock().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        file.write_text(&entry);
        // It has the old one still.
        let is_meanwhile = old.try_lock().is_err();
        let output = command.wait_with_output().unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        if is_meanwhile && text == entry {
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{said}");
            assert!(said.contains("another program has put a new file in its place"), "{said}");
        }
        is_meanwhile
    };
    assert!((0..50).any(|_| is_replaced_meanwhile()), "it was always too late");
}

/// It cannot be synced to a disk, and needs not.
#[test]
fn a_new_key_can_be_appended_to_what_is_no_file() {
    let (_, said, code) =
        key_new(&["--name", "a", "--every-key", "--allow", "list", "--append-to", "/dev/null"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_no_key_can_have_is_refused_by_its_flag() {
    for (args, flag) in [
        (&["--name", "", "--every-key", "--allow", "list"][..], "--name"),
        (&["--name", "a", "--allow", "list"], "--prefix"),
        (&["--name", "a", "--every-key", "--prefix", "a", "--allow", "list"], "--prefix"),
        (&["--name", "a", "--prefix", "", "--allow", "list"], "--prefix"),
        (&["--name", "a", "--every-key", "--allow", "lists"], "--allow"),
        (&["--name", "a", "--every-key"], "--allow"),
        (&["--name", "a", "--every-key", "--allow", "list", "--burst", "1"], "--burst"),
        (&["--name", "a", "--every-key", "--allow", "list", "--rate", "0"], "--rate"),
        (
            &["--name", "a", "--every-key", "--allow", "list", "--rate", "0.001", "--burst", "31623"],
            "--burst",
        ),
        (&["--name", "a", "--every-key", "--allow", "list", "--expires", "soon"], "--expires"),
        // No gateway would accept it.
        (&["--name", "a", "--every-key", "--allow", "list", "--expires", "0s"], "is not over"),
        (
            &["--name", "a", "--every-key", "--allow", "list", "--expires", "2020-01-01T00:00:00Z"],
            "is not over",
        ),
        // A keys file cannot say this year.
        (
            &["--name", "a", "--every-key", "--allow", "list", "--expires=-000001-01-01T00:00:00Z"],
            "is not over",
        ),
        (
            &["--name", "a", "--every-key", "--allow", "list", "--expires=-009999-01-01T00:00:00Z"],
            "--expires",
        ),
    ] {
        let (entry, said, code) = key_new(args);
        assert!(code == Some(2) && entry.is_empty() && said.contains(flag), "{args:?}: {said}");
    }
}

/// The key is in no argument, and `run` understands what the gateway says of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_under_a_lock_with_a_key_and_not_without() {
    let mut file = KeysFile::new();
    let key = file.add("ci", "prefixes = [\"ci\"]\nallow = [\"acquire\"]");
    let gateway = gateway(&file, &[]).await;
    let url = format!("http://{}", gateway.address);
    let run = |lock: &str, key: Option<&str>| {
        let mut command = Command::new(program());
        command.args(["run", "--url", &url, "--wait", "0s", lock, "--", "echo", "ran"]);
        command.env_remove("FENCEPOST_API_KEY").env_remove("FENCEPOST_API_KEY_FILE");
        let output = command.envs(key.map(|key| ("FENCEPOST_API_KEY", key))).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let (code, said) = run("ci/deploy", Some(&key));
    assert!(code == Some(0) && said == "ran\n", "{code:?}: {said}");
    for (lock, key, why) in [
        ("ci2", Some(key.as_str()), "only for other names: none of its prefixes fits this one"),
        ("ci", None, "it asks for an API key"),
        ("ci", Some("nonsense"), "this is not an API key"),
    ] {
        let (code, said) = run(lock, key);
        assert!(code == Some(2) && said.contains(why), "{code:?}: {said}");
    }
    // And it was released.
    Client::new(gateway.address)
        .put("/locks/ci%2Fdeploy")
        .key(&key)
        .token(&fresh_token())
        .send()
        .await
        .expect(201);
}

/// What is pasted into a keys file from the page on access is good.
#[test]
fn the_entry_of_the_page_is_a_key() {
    let page = include_str!("../../../docs/access.md");
    let (_, rest) = page.split_once("```toml file=keys.toml\n").unwrap();
    let entry = rest.split("```").next().unwrap();
    let keys = fencepost::access::parse_keys(entry).unwrap();
    assert_eq!(keys.len(), 1);
    assert!(keys[0].rate.is_some() && keys[0].expires.is_some() && keys[0].max_ttl.is_some());
}

/// Whoever writes to it has every right.
#[tokio::test(flavor = "multi_thread")]
async fn a_keys_file_that_others_can_write_is_warned_of_at_the_start_and_when_it_becomes_so() {
    let mut file = KeysFile::new();
    file.add_for_all("all", "\"acquire\"");
    file.write();
    let path = file.path();
    let flag = file.flag();
    let set = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let start = async || Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await;
    let warnings = |gateway: &Gateway| {
        let log = gateway.log();
        log.iter().filter(|line| line.contains("WARN") && line.contains("others can write")).count()
    };
    set(&path, 0o644);
    let gateway = start().await;
    let in_force = || gateway.log().iter().filter(|line| line.contains("settings are in force")).count();
    // From then on a change is seen as one.
    gateway.signal("HUP");
    eventually("it is watched", async || in_force() > 1).await;
    for (mode, expected) in [(0o664, 1), (0o600, 1), (0o606, 2), (0o640, 2)] {
        let before = in_force();
        set(&path, mode);
        eventually("it is read anew", async || in_force() > before).await;
        assert_eq!(warnings(&gateway), expected, "{mode:o}: {:#?}", gateway.log());
    }
    drop(gateway);
    set(&path, 0o666);
    let gateway = start().await;
    eventually("it is warned of", async || warnings(&gateway) == 1).await;
    drop(gateway);
    // And a directory in which others can put another one in its place, unless only its owner may take it away.
    set(&path, 0o600);
    for (mode, expected) in [(0o777, 1), (0o1777, 0)] {
        set(path.parent().unwrap(), mode);
        let gateway = start().await;
        gateway.signal("HUP");
        let is_read =
            || gateway.log().iter().filter(|line| line.contains("settings are in force")).count() > 1;
        eventually("it is read anew", async || is_read()).await;
        assert_eq!(warnings(&gateway), expected, "{mode:o}: {:#?}", gateway.log());
    }
}

#[test]
fn a_directory_where_others_can_put_another_file_is_found_behind_each_link() {
    let all = tempfile::tempdir().unwrap();
    let at = |place: &str| all.path().join(place);
    let set = |place: &str, mode| set_permissions(at(place), Permissions::from_mode(mode)).unwrap();
    for place in ["first", "second", "third"] {
        std::fs::create_dir(at(place)).unwrap();
        set(place, 0o755);
    }
    std::fs::write(at("third/keys"), "").unwrap();
    set("third/keys", 0o600);
    symlink("../third/keys", at("second/keys")).unwrap();
    symlink(at("second/keys"), at("first/keys")).unwrap();
    for place in ["first", "second", "third"] {
        assert_eq!(open_to_others(&at("first/keys")), None);
        set(place, 0o777);
        let found = open_to_others(&at("first/keys")).map(|found| found.canonicalize().unwrap());
        assert_eq!(found, Some(at(place).canonicalize().unwrap()));
        set(place, 0o755);
    }
    // A circle has no file, and no end.
    symlink("circle", at("first/circle")).unwrap();
    assert_eq!(open_to_others(&at("first/circle")), None);
}

//! What is left of the locks after a restart of a Redis whose users are restricted, and what is said of that before.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use super::{lines_with, says};
use kit::gateway::run;
use kit::http::Call;
use kit::proxy::{Fate, Framing, Gate, Proxy};
use kit::quorum::{AGE_QUARANTINE, BRIEF, DURABLE, RECORD, is_ready};
use kit::{Client, Gateway, Quorum, RedisServer, eventually, fresh_token};

const PAGE: &str = include_str!("../../../docs/stores.md");

/// Keeps all in its file.
const FILE: [&str; 2] = ["--appendonly", "yes"];

/// What the page says of a user, as arguments of a server.
fn of_the_page(user: &str) -> Vec<String> {
    let rule = format!("ACL SETUSER {user} ");
    let rules = PAGE.lines().find_map(|line| line.trim().strip_prefix(&rule)).unwrap();
    ["--user", user].into_iter().chain(rules.split(' ')).map(str::to_owned).collect()
}

/// A server with the gateway's user of the page, one for the test, and `default` as it is told.
async fn server(default: &[&str]) -> RedisServer {
    let gateway = of_the_page("fencepost");
    let tests = ["--user", "tests", "on", "nopass", "~*", "&*", "+@all"];
    let users = gateway.iter().map(String::as_str).chain(tests).chain(["--user", "default"]);
    RedisServer::start_with(&FILE.into_iter().chain(users).chain(default.iter().copied()).collect::<Vec<_>>())
        .await
}

fn url(redis: &RedisServer) -> String {
    format!("redis://fencepost:password@127.0.0.1:{}", redis.port())
}

/// Sends a command as the user of the test.
async fn command<T: redis::FromRedisValue>(redis: &RedisServer, words: &[&str]) -> T {
    let client = redis::Client::open(format!("redis://tests:x@127.0.0.1:{}", redis.port())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap()
}

fn check(store: &str) -> String {
    let output = run(&["check", "--store", store]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{page}");
    page
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_the_users_of_the_page_keeps_every_lock() {
    let default = of_the_page("default");
    let default: Vec<_> = default[2..].iter().map(String::as_str).collect();
    assert!(default.contains(&"off"), "{default:?}");
    let mut redis = server(&default).await;
    let gateway = Gateway::start(&["--store", &url(&redis)]).await;
    let client = Client::new(gateway.address);
    client.get("/readyz").send().await.expect(200);
    let [taken, renewed] = [fresh_token(), fresh_token()];
    client.put("/locks/taken?ttl=10m").token(&taken).send().await.expect(201);
    client.put("/locks/renewed?ttl=1m").token(&renewed).send().await.expect(201);
    client.patch("/locks/renewed?ttl=10m").token(&renewed).send().await.expect(200);
    redis.shut_down().await;
    redis.start_again().await;
    eventually("the gateway is back", async || client.get("/readyz").send().await.status == 200).await;
    for (key, token) in [("taken", taken), ("renewed", renewed)] {
        let path = format!("/locks/{key}");
        let held = client.get(&path).token(&token).send().await.expect(200);
        assert!(held.json()["expires_in_ms"].as_u64().unwrap() > 500_000, "{}", held.json());
        client.put(&path).send().await.expect_problem(423, "lock-held");
        client.delete(&path).token(&token).send().await.expect(204);
    }
    assert_eq!(lines_with(&gateway, "a restart of the server"), 0);
    let page = check(&url(&redis));
    assert!(!page.contains("restart") && !page.contains("warning"), "{page}");
    let denied: Vec<redis::Value> = command(&redis, &["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "{denied:?}");
}

/// While it loads its append-only file, a server says that it has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_loading_is_not_said_to_have_no_append_only_file() {
    let mut redis = RedisServer::start_with(&[&FILE[..], &["--rdbcompression", "no"]].concat()).await;
    let proxy = Proxy::start(redis.port(), Framing::Resp).await;
    let gateway = Gateway::start(&["--store", &proxy.redis_url()]).await;
    let client = Client::new(gateway.address);
    client.get("/readyz").send().await.expect(200);
    let fill = "for at = 1, 1000 do redis.call('SET', 'filler' .. at, string.rep('x', 2000)) end";
    let _: () = redis.command(&["EVAL", fill, "0"]).await;
    let _: String = redis.command(&["BGREWRITEAOF"]).await;
    eventually("the file is rewritten", async || {
        redis.info("aof_rewrite_in_progress").await == "0" && redis.info("aof_rewrites").await != "0"
    })
    .await;
    redis.shut_down().await;
    // The gateway asks who the server is while it loads, and what is behind that when it has loaded.
    let (has_loaded, asked) = (Gate::new(), Gate::new());
    let opens = has_loaded.clone();
    proxy.set_policy(move |message| match message.windows(4).any(|word| word == b"EVAL") {
        true => Fate::Hold { message: opens.clone(), answer: opens.clone() },
        false => Fate::Pass,
    });
    let is_asked = asked.clone();
    proxy.set_tap(move |_, answer| {
        if answer.windows(11).any(|line| line == b"\nloading:1\r") {
            is_asked.cancel();
        }
    });
    let url = redis.url().to_owned();
    let quickened = async {
        asked.cancelled().await;
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let words = ["SET", "key-load-delay", "0"];
        let _: () = redis::cmd("CONFIG").arg(&words).query_async(&mut connection).await.unwrap();
    };
    let slowly = ["--key-load-delay", "15000", "--loading-process-events-interval-bytes", "1024"];
    tokio::join!(redis.start_once_with(&slowly), quickened);
    has_loaded.cancel();
    eventually("the gateway is back", async || client.get("/readyz").send().await.status == 200).await;
    assert_eq!(lines_with(&gateway, "a restart of the server"), 0, "{:?}", gateway.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_user_that_may_not_do_what_the_file_has_is_warned_of() {
    let redis = server(&["off"]).await;
    let gateway = Gateway::start(&["--store", &url(&redis)]).await;
    says(&gateway, "a restart of the server may free locks that are held").await;
    let broken = ", or the server restarts (it may forget all locks)\n";
    for (rules, is_told) in [
        (&["off"][..], true),
        (&["off", "+@all"], true),
        (&["off", "+@all", "~other:*"], true),
        (&["off", "~fencepost:*", "+@all", "-pexpireat"], true),
        (&["off", "~fencepost:*", "+@all", "-select"], true),
        (&["off", "~fencepost:{0}:lock:*", "+@all"], true),
        (&["off", "~fencepost:*", "+@all", "-rename"], true),
        (&["off", "~fencepost:*", "+@all"], false),
        (&["off", "~*", "&*", "+@all"], false),
        (&["on", "nopass", "~*", "&*", "+@all"], false),
    ] {
        let user = [&["ACL", "SETUSER", "default", "reset"], rules].concat();
        let _: () = command(&redis, &user).await;
        let page = check(&url(&redis));
        assert_eq!(page.contains(broken), is_told, "{rules:?}: {page}");
        assert_eq!(page.contains("; a restart may drop a part of it"), is_told, "{rules:?}: {page}");
        assert_eq!(page.contains("`user default off ~* &* +@all`"), is_told, "{rules:?}: {page}");
    }
    says(&gateway, "no longer: a restart of the server may free locks that are held").await;
    let denied: Vec<redis::Value> = command(&redis, &["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "what is asked for is not tried: {denied:?}");
    // Without a file there is nothing that a restart could drop.
    let _: () = command(&redis, &["ACL", "SETUSER", "default", "reset"]).await;
    let _: () = command(&redis, &["CONFIG", "SET", "appendonly", "no"]).await;
    let page = check(&url(&redis));
    assert!(!page.contains("may drop") && page.contains("warning: no append-only file"), "{page}");
}

/// The names of all commands that the append-only file has.
async fn in_the_file(redis: &RedisServer) -> BTreeSet<String> {
    let told: HashMap<String, String> = command(redis, &["CONFIG", "GET", "dir"]).await;
    let files = std::fs::read_dir(Path::new(&told["dir"]).join("appendonlydir")).unwrap();
    let path =
        files.map(|file| file.unwrap().path()).find(|path| path.to_str().unwrap().ends_with(".incr.aof"));
    let file = std::fs::read(path.unwrap()).unwrap();
    let (mut rest, mut names) = (&file[..], BTreeSet::new());
    /// The number in the next line, which begins with this letter.
    fn number(rest: &mut &[u8], letter: &str) -> usize {
        let end = rest.iter().position(|byte| *byte == b'\r').unwrap();
        let line = std::str::from_utf8(&rest[..end]).unwrap();
        *rest = &rest[end + 2..];
        line.strip_prefix(letter).unwrap().parse().unwrap()
    }
    while !rest.is_empty() {
        for at in 0..number(&mut rest, "*") {
            let length = number(&mut rest, "$");
            if at == 0 {
                names.insert(String::from_utf8(rest[..length].to_vec()).unwrap().to_uppercase());
            }
            rest = &rest[length + 2..];
        }
    }
    names
}

/// What a file has is what scripts wrote, and what a server made of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_default_user_that_lacks_any_command_of_the_file_is_warned_of() {
    let redis = server(&["off", "~*", "&*", "+@all"]).await;
    let gateway = Gateway::start(&["--store", &url(&redis), "--once-memory", "100000000"]).await;
    let client = Client::new(gateway.address);
    let done = async |call: Call, token: &str| {
        let answer = call.token(token).send().await;
        assert!(answer.status < 300, "{}: {}", answer.status, String::from_utf8_lossy(&answer.body));
    };
    for (path, terms) in [("/locks/one", "ttl=1m"), ("/locks/slot", "ttl=1m&slots=1")] {
        let [first, second] = [fresh_token(), fresh_token()];
        done(client.put(&format!("{path}?{terms}")), &first).await;
        done(client.patch(path), &first).await;
        let waiting = tokio::spawn(client.put(&format!("{path}?{terms}&wait=15s")).token(&second).send());
        eventually("it waits", async || client.get(path).send().await.json()["waiters"] == 1).await;
        done(client.delete(path), &first).await;
        waiting.await.unwrap().expect(201);
        done(client.delete(path), &second).await;
    }
    let worker = fresh_token();
    done(client.put("/locks/broken?ttl=1m"), &worker).await;
    client.delete("/locks/broken?force=true").send().await.expect(204);
    done(client.put("/lock?key=a&key=b&ttl=1m"), &worker).await;
    for (path, result) in [("/once/short", 10), ("/once/long", 20_000)] {
        done(client.put(path), &worker).await;
        done(client.patch(path), &worker).await;
        done(client.post(path).body(vec![b'x'; result]), &worker).await;
    }
    done(client.put("/once/given-up"), &worker).await;
    done(client.delete("/once/given-up"), &worker).await;
    done(client.put("/once/broken"), &worker).await;
    client.delete("/once/broken?force=true&clean=true").send().await.expect(204);
    let mut names = in_the_file(&redis).await;
    // These say where something begins and ends. No user needs a permission for them at a restart.
    assert!(names.remove("MULTI") && names.remove("EXEC"), "{names:?}");
    for name in ["DEL", "HSET", "PEXPIREAT", "RENAME", "SELECT", "SET", "SETRANGE", "ZADD", "ZREM"] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    for name in names {
        let lacks = format!("-{}", name.to_lowercase());
        let _: () =
            command(&redis, &["ACL", "SETUSER", "default", "reset", "off", "~*", "&*", "+@all", &lacks])
                .await;
        let page = check(&url(&redis));
        assert!(page.contains("; a restart may drop a part of it"), "{lacks}: {page}");
    }
}

/// The log tells what is new. A text that was another one at each look would be news each second.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lacking_is_said_alike_at_each_look() {
    let redis = server(&["off"]).await;
    let all_but_aside = ["~fencepost:{0}:[^a]*", "~fencepost:{0}:away*"];
    let all_but_freed = ["~fencepost:{0}:[^f]*", "~fencepost:{0}:fence"];
    for (user, patterns, lacking) in [
        ("default", all_but_aside, "fencepost:{0}:aside:"),
        ("default", all_but_freed, "fencepost:{0}:freed:"),
        ("fencepost", all_but_freed, "fencepost:{0}:freed:"),
    ] {
        let rules = [&["ACL", "SETUSER", user, "+@all", "resetkeys"], &patterns[..]].concat();
        let _: () = command(&redis, &rules).await;
        let said = || {
            let page = String::from_utf8(run(&["check", "--store", &url(&redis)]).stdout).unwrap();
            let is_said = |line: &&str| line.starts_with("refused: ") || line.starts_with("warning: ");
            page.lines().filter(is_said).map(str::to_owned).collect::<Vec<_>>()
        };
        let first = said();
        assert!(first.iter().any(|line| line.contains(lacking)), "{user}: {first:?}");
        assert_eq!(first, said(), "{user}");
    }
}

/// What a check cannot find out it does not call safe.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_may_not_ask_is_said_to_be_unknown() {
    let redis = server(&["off", "~*", "&*", "+@all"]).await;
    let page = check(&url(&redis));
    assert!(page.contains("synced is not known, since the user may not use CONFIG\n"), "{page}");
    assert!(
        page.contains("holds, unless its machine crashes (how much it forgets is not known)\n"),
        "{page}"
    );
    for fsync in ["always", "no"] {
        let _: () = command(&redis, &["CONFIG", "SET", "appendfsync", fsync]).await;
        assert!(check(&url(&redis)).contains("(how much it forgets is not known)"), "{fsync}");
    }
    let _: () = command(&redis, &["ACL", "SETUSER", "fencepost", "-acl|dryrun"]).await;
    let page = check(&url(&redis));
    assert!(page.contains("; whether a restart loads all of it is not known\n"), "{page}");
    assert!(page.contains(", or the server restarts (whether it forgets locks is not known)\n"), "{page}");
    assert!(page.contains("warning: whether a restart of the server keeps the locks"), "{page}");
    let gateway = Gateway::start(&["--store", &url(&redis)]).await;
    says(&gateway, "since the Redis user may not use ACL DRYRUN").await;
    let denied: Vec<redis::Value> = command(&redis, &["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "what is forbidden is not tried: {denied:?}");
}

/// They drop what they accepted, and keep what they are. So they know that they may have forgotten, and count for nothing
/// until every lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_quorum_that_drop_a_part_of_their_files_help_nobody_to_a_held_lock() {
    let users = of_the_page("fencepost");
    let args = ["--user", "tests", "on", "nopass", "~*", "&*", "+@all", "--user", "default", "off"];
    let args = [&DURABLE[..], &args, &users.iter().map(String::as_str).collect::<Vec<_>>()].concat();
    let mut quorum = Quorum::start_with(3, &args).await;
    let store = quorum.url().replace("redlock://", "redlock://fencepost:password@");
    let start = async || Gateway::start(&[&["--store", &store], &BRIEF[..]].concat()).await;
    let gateway = start().await;
    let client = Client::new(gateway.address);
    is_ready(&client).await;
    let held = client.put("/locks/k").send().await.expect(201);
    let taken_at = tokio::time::Instant::now();
    drop(gateway);
    for node in &mut quorum.nodes {
        node.shut_down().await;
    }
    for node in &mut quorum.nodes {
        node.start_again().await;
    }
    // It knows of no lease, and takes servers that know of none for new ones.
    let gateway = start().await;
    let client = Client::new(gateway.address);
    eventually("they are in quarantine", async || {
        let answer = client.get("/readyz").send().await;
        answer.status == 503
            && answer.json()["detail"].as_str().unwrap().matches("in quarantine").count() == 3
    })
    .await;
    // A lease lasts 4 s.
    while taken_at.elapsed() < Duration::from_secs(4) {
        client.put("/locks/k").send().await.expect_problem(503, "store-unavailable");
    }
    for node in &quorum.nodes {
        let _: () = command(node, &["EVAL", AGE_QUARANTINE, "1", RECORD, "15500"]).await;
    }
    eventually("they count again", async || client.put("/locks/k").send().await.status == 201).await;
    let next = client.get("/locks/k").send().await.json()["fencing_token"].as_u64().unwrap();
    assert!(next > held.fencing_token(), "{next} after {}", held.fencing_token());
}

//! The command line: help, environment, and settings that cannot be.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use kit::gateway::{self, bare_command, run};
use kit::{Client, Gateway, fresh_token};

#[test]
fn wrong_settings_end_the_start_with_one_clear_line_and_exit_code_2() {
    let cases: &[(&[&str], &str)] = &[
        (&["--no-such-flag"], "--no-such-flag"),
        (&["no-such-command"], "no-such-command"),
        (&["serve", "extra"], "extra"),
        (&["--store", "nonsense"], "--store"),
        (&["--store", "file:"], "--store"),
        (&["--store", "memory:x"], "--store"),
        (&["--store", "redis://"], "--store"),
        (&["--store", "redis://host:99999"], "--store"),
        (&["--store", "redis://host/notanumber"], "must be a number, such as 0"),
        (&["--store", "redis://host/?protocol=resp2"], "--store"),
        (&["--store", "rediss://host/#insecure"], "--store"),
        (&["--store", "redis://host", "--redis-ca", "/dev/null"], "rediss://"),
        (&["--store", "redis://one,two"], "--store"),
        (&["--store", "redis+quorum://host"], "--store"),
        (&["--store", "redis+sentinel://host"], "name"),
        (&["--store", "redis+sentinel://host/"], "name"),
        (&["--store", "redis+sentinel://host/na me"], "name"),
        (&["--store", "redis+sentinel://host/name/x"], "--store"),
        (&["--store", "redis+sentinel:///name"], "--store"),
        (&["--store", "redis+sentinel://one,two:26379,one:26379/name"], "twice"),
        (&["--store", "redis+cluster://host/1"], "one database"),
        (&["--store", "redis+cluster://one,,two"], "--store"),
        (&["--store", "redis+sentinel://host/name", "--sentinel-user", "u"], "--sentinel-password"),
        (&["--store", "redis://host", "--sentinel-password", "p"], "--sentinel-password"),
        (&["--store", "memory:", "--sentinel-password", "p"], "--sentinel-password"),
        (&["--store", "redlock://one,two"], "3 to 15 servers"),
        (&["--store", "redlock://one,two,one:6379"], "twice"),
        (&["--store", "redlock://a,b,c/x"], "--store"),
        (&["--store", "redis+quorum://a,b,c"], "--store"),
        (&["--store", "redlock://a,b,c", "--redlock-epoch", "0"], "--redlock-epoch"),
        (&["--store", "redlock://a,b,c", "--replicas-ack", "1"], "--replicas-ack"),
        (&["--default-ttl", "30s", "--max-ttl", "20s"], "--default-ttl"),
        (&["--redlock-epoch", "2"], "needs a redlock:// store"),
        (&["--store", "rediss://host", "--redis-ca", "/no/such/file"], "--redis-ca"),
        (&["--store", "redis://host", "--redis-password-file", "/no/such/file"], "--redis-password-file"),
        (&["--store", "redis://host", "--redis-password-file", "/dev/null"], "one line"),
        (&["--store", "redis://host", "--redis-password-file", "/proc/self/status"], "one line"),
        (
            &["--store", "redis://:p@host", "--redis-password-file", "/proc/sys/kernel/ostype"],
            "a password too",
        ),
        (
            &["--store", "memory:", "--redis-password-file", "/proc/sys/kernel/ostype"],
            "--redis-password-file",
        ),
        (&["--redis-accept", "everything"], "--redis-accept"),
        (&["--redis-accept", "eviction"], "needs a redis:// store"),
        (&["check", "--store", "nonsense"], "--store"),
        (&["check", "--store-timeout", "5m"], "--store-timeout"),
        (&["check", "--listen", "127.0.0.1:0"], "--listen"),
        (&["--store", "redis://host", "--replicas-ack", "17"], "--replicas-ack"),
        (&["--store", "redis://host", "--replicas-ack=-1"], "--replicas-ack"),
        (&["--replicas-ack", "1"], "--replicas-ack"),
        (&["--redis-prefix", "a{b}"], "--redis-prefix"),
        (&["--redis-prefix", ""], "--redis-prefix"),
        (&["--default-ttl", "30"], "--default-ttl"),
        (&["--max-wait", "0"], "--max-wait"),
        (&["run", "--wait", "0", "k", "true"], "--wait"),
        (&["--default-ttl", "1ms"], "--default-ttl"),
        (&["--min-ttl", "0s"], "--min-ttl"),
        (&["--min-ttl", "10ms", "--max-ttl", "1ms"], "--max-ttl"),
        (&["--max-ttl", "400days"], "--max-ttl"),
        // The setting that is wrong is named, and not one that follows from it.
        (&["--max-ttl", "0s"], "--max-ttl: must be from 1ms to 366days"),
        (&["--min-ttl", "400days"], "--min-ttl: must be from 1ms to 366days"),
        (&["--threads", "-1"], "--threads: must not be below 0"),
        (&["run", "--wait", "-1s", "k", "--", "true"], "--wait: must not be below 0"),
        (&["watch", "--json", "-5"], "unexpected argument '-5'"),
        (&["--max-wait", "2h"], "--max-wait"),
        (&["--mark-ttl", "1s"], "--mark-ttl"),
        (&["--mark-ttl", "1m", "--max-wait", "1m"], "--mark-ttl"),
        (&["--store-timeout", "0s"], "--store-timeout"),
        (&["--ticket-ttl", "999ms"], "--ticket-ttl"),
        (&["--ticket-ttl", "61m"], "--ticket-ttl"),
        (&["--max-waiters-per-key", "0"], "--max-waiters-per-key"),
        (&["--max-waiters", "0"], "--max-waiters"),
        (&["--max-holds", "0"], "--max-holds"),
        (&["--max-watchers", "0"], "--max-watchers"),
        (&["--default-max-locks", "0"], "--default-max-locks"),
        (&["--default-max-hold", "500ms"], "--default-max-hold"),
        (&["--max-connections", "0"], "--max-connections"),
        (&["--max-connections-per-address", "0"], "--max-connections-per-address"),
        (&["--max-h2-streams", "0"], "--max-h2-streams"),
        (&["--threads", "0"], "--threads"),
        (&["--threads", "1025"], "--threads"),
        (&["--tls-handshake-timeout", "1ms"], "--tls-handshake-timeout"),
        (&["--idle-timeout", "99years"], "--idle-timeout"),
        (&["--log-format", "xml"], "--log-format"),
        (&["--allow-host", "http://x"], "--allow-host"),
        (&["--allow-host", "x:80"], "--allow-host"),
        (&["--cors-origin", "app.example"], "--cors-origin"),
        (&["--cors-origin", "https://app.example/"], "--cors-origin"),
        (&["--cors-origin", "*"], "--cors-origin"),
        (&["--cors-origin", "https://*.example"], "--cors-origin"),
        (&["--cors-origin", "HTTPS://app.example"], "--cors-origin"),
        (&["--cors-origin", "https://App.example"], "--cors-origin"),
        (&["--cors-origin", "https://app.example:443"], "--cors-origin"),
        (&["--cors-origin", "http://app.example:080"], "--cors-origin"),
        (&["--cors-origin", "https://u:p@app.example"], "--cors-origin"),
        (&["--cors-origin", "https://bücher.example"], "--cors-origin"),
    ];
    for (args, said) in cases {
        let output = run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.starts_with("fencepost: ") && stderr.contains(said), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_setting_of_another_store_is_refused_and_not_ignored() {
    let quorum = "redlock://a,b,c";
    for (args, said) in [
        (&["--redis-prefix", "shop"][..], "--redis-prefix: needs a redis:// store"),
        (
            &["check", "--store", "memory:", "--redis-prefix", "shop"],
            "--redis-prefix: needs a redis:// store",
        ),
        (&["--sentinel-user", "u"], "--sentinel-user: needs a redis+sentinel:// store"),
        (&["--sentinel-password", "p"], "--sentinel-password: needs a redis+sentinel:// store"),
        (&["--redis-ca", "/dev/null"], "--redis-ca: needs a rediss:// store"),
        (&["--redis-accept", "eviction"], "--redis-accept: needs a redis:// store"),
        (&["--store", quorum, "--once-memory", "50%"], "--once-memory: needs a store that keeps records"),
        (
            &["--store", quorum, "--max-result-bytes", "1024"],
            "--max-result-bytes: needs a store that keeps records",
        ),
    ] {
        let output = run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(said), "{args:?}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_that_may_be_empty_counts_as_not_set_whatever_the_store_is() {
    let page = include_str!("../../docs/settings.md");
    let (_, list) = page.split_once("or one of these:").unwrap();
    let list = list.split(".\n").next().unwrap();
    let variables = || list.split('`').skip(1).step_by(2).map(|name| (name, ""));
    assert!(variables().count() > 10, "{list}");
    let args = ["--store", "memory:"];
    let mut command = gateway::command(&args);
    command.envs(variables());
    Gateway::try_start_by(command, &args).await.unwrap();
    // Nothing is there, which another status says.
    let mut command = bare_command();
    command.args(["check", "--store", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"]).envs(variables());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_wrong_setting_is_told_with_what_was_given_and_with_what_to_write() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["--listen", "18441"], &["--listen", "\"18441\"", "write 127.0.0.1:18441"]),
        (&["--listen", ":8080"], &["--listen", "no host", "write 127.0.0.1:8080"]),
        (&["--listen", "localhost"], &["--listen", "no port", "write localhost:8080"]),
        (&["--listen", "127.0.0.1:99999"], &["--listen", "from 0 to 65535", "write 127.0.0.1:8080"]),
        (&["--listen", "[::1]"], &["--listen", "\"[::1]\"", "write 127.0.0.1:8080, or [::1]:8080"]),
        (&["--listen", "http://127.0.0.1:80/"], &["--listen", "a scheme", "write \"127.0.0.1:80\""]),
        (&["--metrics-listen", "9090"], &["--metrics-listen", "\"9090\"", "write 127.0.0.1:9090"]),
        (&["--store", "redis://host/x"], &["--store", "the database", "must be a number, such as 0"]),
        (&["--store", "redis://host/-1"], &["--store", "the database", "must be a number, such as 0"]),
        (&["--store", "redis://host:99999"], &["--store", "a host, a port", "write redis://"]),
        (
            &["--store", "rediss://host", "--redis-ca", "/dev/null"],
            &["--redis-ca", "/dev/null", "no certificate"],
        ),
        (&["--keys", "/no/such/file"], &["--keys", "cannot read /no/such/file"]),
        (
            &["--tls-cert", "/no/such/file", "--tls-key", "/dev/null"],
            &["--tls-cert", "cannot read /no/such/file"],
        ),
        // A file that has no end.
        (
            &["--tls-cert", "/dev/zero", "--tls-key", "/dev/null"],
            &["--tls-cert", "cannot read /dev/zero", "too long"],
        ),
        (
            &["--store", "rediss://host", "--redis-ca", "/dev/zero"],
            &["--redis-ca", "cannot read /dev/zero", "too long"],
        ),
        (
            &["--store", "redis://host", "--redis-password-file", "/dev/zero"],
            &["--redis-password-file", "cannot read /dev/zero", "too long"],
        ),
        (&["--audit-log", "/no/such/file"], &["--audit-log", "cannot open", "(given: /no/such/file)"]),
        (&["--max-unread-bytes", "64MB"], &["--max-unread-bytes", "'64MB'", "write a number without a unit"]),
        (&["--threads", "x"], &["--threads", "'x'", "write a number without a unit"]),
        (&["--max-wait", "2h"], &["--max-wait", "at most 1h", "(given: 2h)"]),
        (&["--max-wait", "60"], &["--max-wait", "'60'", "write a duration with its unit"]),
        // Months would be meant as minutes.
        (&["run", "--wait", "5M", "q", "--", "true"], &["--wait", "'5M'", "2m (minutes)"]),
        (&["run", "--max-hold", "1h 1M", "q", "--", "true"], &["--max-hold", "'1h 1M'", "2m (minutes)"]),
        (&["key", "new", "--name", "a", "--max-ttl", "5M"], &["--max-ttl", "'5M'", "2m (minutes)"]),
        (&["key", "new", "--name", "a", "--expires", "1M"], &["--expires", "'1M'", "5m (minutes)"]),
        (&["run", "--busy-exit", "256", "k", "--", "true"], &["--busy-exit", "'256'", "0 to 255"]),
        (&["--log-level", "inof"], &["--log-level", "'inof'", "did you mean info?"]),
        // What was forgotten or mistyped.
        (&["once", "q", "true"], &["'true'", "write -- in front of the command"]),
        // It could be another key.
        (&["run", "q", "true"], &["COMMAND", "write -- in front of the command"]),
        (&["run", "--ttl", "1m", "q", "ls", "-l"], &["'-l'", "write -- in front of the command"]),
        (&["run", "q"], &["COMMAND", "fencepost run KEY -- COMMAND"]),
        (&["--stor", "memory:"], &["'--stor'", "did you mean --store?"]),
        (&["run", "--wiat", "1s", "q", "--", "true"], &["'--wiat'", "did you mean --wait?"]),
        (
            &["lock"],
            &[
                "'lock'",
                "the commands are serve, run, once, acquire, renew, release, list, status, watch, break, check, key, openapi, completions",
            ],
        ),
        (&["chek"], &["'chek'", "did you mean check?"]),
    ];
    for (args, said) in cases {
        let output = run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(said.iter().all(|text| stderr.contains(text)), "{args:?}: {stderr}");
    }
    let mut command = bare_command();
    command.env("FENCEPOST_MAX_WAIT", "2h").env("FENCEPOST_STORE", "nonsense:hunter2");
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    // What may be a secret is not repeated.
    assert!(output.status.code() == Some(2) && !stderr.contains("hunter2"), "{stderr}");
    for (variable, value, args) in [
        ("FENCEPOST_LISTEN", "redis://me:hunter2@host", &["serve"][..]),
        ("FENCEPOST_LISTEN", "me:hunter2@host:6379", &["serve"]),
        ("FENCEPOST_MAX_TTL", "fp_hunter2", &["serve"]),
        ("FENCEPOST_API_KEY_FILE", "fp_hunter2", &["run", "k", "--", "true"]),
    ] {
        let mut command = bare_command();
        let output = command.args(args).env(variable, value).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && !stderr.contains("hunter2"), "{variable}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_that_are_no_settings_are_told_of_unless_kubernetes_sets_them() {
    let args = ["--store", "memory:"];
    let mut command = gateway::command(&args);
    command.env("FENCEPOST_TEAM", "billing");
    // As in every container beside a Service that is called as the program is.
    let of_service = [
        ("FENCEPOST_SERVICE_HOST", "10.0.0.1"),
        ("FENCEPOST_SERVICE_PORT", "8080"),
        ("FENCEPOST_SERVICE_PORT_HTTP", "8080"),
        ("FENCEPOST_PORT", "tcp://10.0.0.1:8080"),
        ("FENCEPOST_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("FENCEPOST_PORT_8080_TCP_PROTO", "tcp"),
        ("FENCEPOST_PORT_8080_TCP_PORT", "8080"),
        ("FENCEPOST_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ];
    command.envs(of_service);
    let gateway = Gateway::try_start_by(command, &args).await.unwrap();
    let told: Vec<_> = gateway.log().into_iter().filter(|line| line.contains("is ignored")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("FENCEPOST_TEAM") && told[0].contains("WARN"), "{told:?}");

    // A gateway that ignored FENCEPOST_KEY would serve everybody.
    let cases: [(&[&str], &str, &str); 3] = [
        (&["serve"], "FENCEPOST_KEY", "FENCEPOST_KEYS"),
        (&[], "FENCEPOST_STOER", "FENCEPOST_STORE"),
        (&["check"], "FENCEPOST_STORE_TIMOUT", "FENCEPOST_STORE_TIMEOUT"),
    ];
    for (command, variable, meant) in cases {
        let args = [command, &["--store", "memory:"]].concat();
        let mut command = bare_command();
        command.args(&args).envs(of_service).env(variable, "x").env("FENCEPOST_TEAM", "billing");
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{variable}: {stderr}");
        let said = format!("the variable {variable} is no setting: did you mean {meant}?");
        assert!(stderr.lines().count() == 1 && stderr.contains(&said), "{stderr}");
    }

    // A job has variables of its own: of them only those are told of that are almost a setting.
    let url = format!("http://{}", gateway.address);
    let mut command = bare_command();
    command.args(["run", "k", "--", "true"]).envs(of_service).env("FENCEPOST_URL", url);
    command.env("FENCEPOST_TEAM", "billing").env("FENCEPOST_API_KEY_FIEL", "/run/key");
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.lines().count() == 1 && stderr.contains("did you mean FENCEPOST_API_KEY_FILE?"),
        "{stderr}"
    );
}

#[test]
fn a_word_in_the_wrong_place_and_an_empty_variable_are_told_with_what_to_do() {
    let output = run(&["--max-ttl", "5", "m"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && stderr.contains("'m' is no command and no flag"), "{stderr}");
    assert!(stderr.contains("one word, such as 5m"), "{stderr}");
    let output = run(&["nonsense"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("the commands are serve, run, once, acquire, renew, release, list, status, watch, break, check, key, openapi, completions\n"), "{stderr}");
    for args in [&["serve"][..], &[], &["check"]] {
        let mut command = bare_command();
        command.args(args).env("FENCEPOST_MAX_TTL", "");
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let said = "fencepost: the variable FENCEPOST_MAX_TTL is empty: give it a value, or remove it\n";
        assert_eq!((output.status.code(), &*stderr), (Some(2), said));
    }
    // Of a file that a client reads it counts as not set: the gateway is asked, and is away.
    for variable in ["FENCEPOST_CA_FILE", "FENCEPOST_API_KEY_FILE"] {
        let mut command = bare_command();
        command
            .args(["status", "k", "--url", "http://127.0.0.1:1", "--gateway-wait", "0s"])
            .env(variable, "");
        assert_eq!(command.output().unwrap().status.code(), Some(69), "{variable}");
    }
    // A script's variable that is not set must not serve everybody.
    for (args, flag) in [
        (&["--keys", ""][..], "--keys"),
        (&["serve", "--keys="], "--keys"),
        (&["--audit-log", ""], "--audit-log"),
        (&["--allow-host", "a.example,"], "--allow-host"),
        (&["check", "--once-memory", ""], "--once-memory"),
        (&["status", "k", "--ca-file", ""], "--ca-file"),
    ] {
        let store: &[&str] = if args[0] == "status" { &[] } else { &["--store", "memory:"] };
        let output = run(&[args, store].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        let said = format!("fencepost: {flag} is empty: give it a value, or leave it out\n");
        assert_eq!((output.status.code(), stderr), (Some(2), said));
    }
}

#[test]
fn an_address_in_use_ends_the_start_with_one_clear_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["--store", "memory:", "--listen", &address]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.lines().count() == 1 && stderr.contains(&address), "{stderr}");
}

#[test]
fn a_password_shows_up_nowhere() {
    let url = "redis://user:hunter2@";
    for args in [
        &["--store", url][..],
        &["--store", "rediss://user:hunter2@host/#x"],
        &["--help"],
        &["--nonsense"],
        &["redis://user:hunter2@host"],
        &["serve", "redis://user:hunter2@host"],
        &["check", "--help"],
        &["check", "--store", "redis://user:hunter2@127.0.0.1:1"],
    ] {
        let output = bare_command()
            .args(args)
            .env("FENCEPOST_STORE", url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!said.contains("hunter2"), "{args:?}: {said}");
    }
}

#[test]
fn help_names_every_flag_and_its_variable() {
    let output = run(&["serve", "--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    let flags: Vec<_> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    assert!(flags.len() >= 18, "{flags:?}");
    for flag in flags.iter().filter(|flag| !flag.contains("--help") && **flag != "--version") {
        let name = flag.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let variable = format!("FENCEPOST_{}", name.to_uppercase().replace('-', "_"));
        assert!(help.contains(&variable), "{flag} has no {variable}");
    }
    let top = String::from_utf8(run(&["--help"]).stdout).unwrap();
    assert!(top.contains("serve") && top.contains("openapi") && top.contains("--listen"), "{top}");
    let version = String::from_utf8(run(&["--version"]).stdout).unwrap();
    assert!(version.starts_with("fencepost "), "{version}");
}

#[test]
fn the_help_of_run_and_once_tells_of_several_gateways_and_of_each_exit_status() {
    let help = String::from_utf8(run(&["run", "--help"]).stdout).unwrap();
    assert!(help.contains("FENCEPOST_URL=http://a:8080,http://b:8080"), "{help}");
    let all = ["75", "69", "76", "2 ", "126, 127", "128 + n", "71"];
    for (command, more) in [("run", &[][..]), ("once", &["0", "74", "77"])] {
        let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        let (_, statuses) = help.split_once("Exit status:").unwrap();
        for status in all.iter().chain(more) {
            assert!(statuses.lines().any(|line| line.trim_start().starts_with(status)), "{status}: {help}");
        }
    }
}

#[test]
fn the_help_of_each_command_for_a_shell_is_grouped_and_short_by_one_dash() {
    for command in ["acquire", "renew", "release", "list", "status", "watch", "break"] {
        let [short, long] = ["-h", "--help"].map(|flag| {
            let output = run(&[command, flag]);
            assert_eq!(output.status.code(), Some(0));
            String::from_utf8(output.stdout).unwrap()
        });
        assert!(short.contains("\nGateway:\n") && short.lines().count() < 35, "{short}");
        assert!(!short.contains("Exit status:") && long.contains("Exit status:"), "{long}");
        let statuses = long.split_once("Exit status:").unwrap().1;
        assert!(statuses.lines().any(|line| line.trim_start().starts_with("71 ")), "{long}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_is_the_default_and_the_limits_are_settings() {
    let gateway = Gateway::embedded(&["--default-ttl", "5s", "--min-ttl", "1s", "--max-ttl", "10s"]).await;
    let client = Client::new(gateway.address);
    let left_ms = client.put("/locks/k").send().await.expect(201).json()["ttl_ms"].as_u64().unwrap();
    assert!(left_ms <= 5_000);
    client.put("/locks/a?ttl=999ms").send().await.expect_problem(400, "bad-parameter");
    client.put("/locks/a?ttl=1s").send().await.expect(201);
    client.put("/locks/b?ttl=10001ms").send().await.expect_problem(400, "bad-parameter");
    client.put("/locks/b?ttl=10s").send().await.expect(201);
}

/// No sum overflows: the gateway refuses what is too long, and works with the longest that it says it takes. So do the commands.
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_duration_of_each_setting_is_refused_or_works() {
    const LONGEST: &str = "18446744073709551615s";
    let flags_of = |command: &[&str]| -> Vec<String> {
        let help = String::from_utf8(run(&[command, &["--help"]].concat()).stdout).unwrap();
        let flags = help.lines().filter_map(|line| line.trim().strip_suffix(" <DURATION>"));
        let flags: Vec<_> = flags.map(str::to_owned).collect();
        assert!(!flags.is_empty(), "{command:?}: {help}");
        flags
    };
    let works = async |flag: &str, value: &str| {
        let gateway = Gateway::try_start(&["--store", "memory:", flag, value]).await?;
        let (client, token) = (Client::new(gateway.address), fresh_token());
        client.put("/locks/k").token(&token).send().await.expect(201);
        client.delete("/locks/k").token(&token).send().await.expect(204);
        client.put("/locks/k").send().await.expect(201);
        Ok::<_, Vec<String>>(())
    };
    for flag in flags_of(&["serve"]) {
        let Err(log) = works(&flag, LONGEST).await else { continue };
        assert!(log.len() == 1 && log[0].contains(&flag) && log[0].contains("must be"), "{flag}: {log:?}");
        let most = log[0].split(" (given: ").next().unwrap().split(' ').next_back().unwrap();
        // That of --default-ttl is another setting.
        if !most.starts_with("--") {
            assert_eq!(works(&flag, most).await, Ok(()), "{flag} {most}");
        }
    }
    let gateway = Gateway::embedded(&[]).await;
    for (command, rest) in [
        (&["run"][..], &["k", "--", "true"][..]),
        (&["once"], &["k", "--", "true"]),
        (&["acquire"], &["k"]),
        (&["renew"], &["k"]),
        (&["key", "new"], &["--name", "a", "--every-key", "--allow", "list"]),
    ] {
        for flag in flags_of(command) {
            let mut program = bare_command();
            // What one of them took may be held for long.
            let own =
                |word: &&str| if *word == "k" { flag.trim_start_matches('-') } else { *word }.to_owned();
            program.args(command).args([&flag, LONGEST]).args(rest.iter().map(own)).stdout(Stdio::null());
            program.env("FENCEPOST_URL", format!("http://{}", gateway.address));
            let ended = program.env("LEASE_TOKEN", fresh_token()).output().unwrap();
            let said = String::from_utf8(ended.stderr).unwrap();
            // The lease that is renewed is none.
            let is_told = matches!(ended.status.code(), Some(2 | 76)) && said.lines().count() == 1;
            assert!(ended.status.success() || is_told, "{command:?} {flag}: {} {said}", ended.status);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_come_from_the_environment_too() {
    let mut child = bare_command()
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("FENCEPOST_STORE", "memory:")
        .env("FENCEPOST_LISTEN", "nonsense")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A flag stands above its variable, so this one starts.
    let mut log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut log, &mut line).unwrap();
    assert!(line.contains("locks live in memory"), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
    let output = bare_command().env("FENCEPOST_DEFAULT_TTL", "30").stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--default-ttl"), "{stderr}");
}

/// A file of variables is often one for the gateway and for the jobs.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_variable_of_the_gateway_ends_no_command_that_does_not_read_it() {
    let gateway = Gateway::embedded(&[]).await;
    let wrong: [(&str, &[u8]); 6] = [
        ("FENCEPOST_LOG_LEVEL", b"trace"),
        ("FENCEPOST_MAX_WAIT", b"60"),
        ("FENCEPOST_THREADS", b""),
        ("FENCEPOST_STORE_TIMEOUT", b"2"),
        ("FENCEPOST_ALLOW_ANONYMOUS", b"maybe"),
        ("FENCEPOST_STORE", b"redis://\xff"),
    ];
    let begun = |args: &[&str]| {
        let mut command = bare_command();
        command.args(args).env("FENCEPOST_URL", format!("http://{}", gateway.address));
        command.envs(wrong.map(|(name, value)| (name, OsStr::from_bytes(value))));
        command.output().unwrap()
    };
    for args in [
        &["run", "k", "--", "true"][..],
        &["once", "k", "--", "true"],
        &["list"],
        &["key", "new", "--name", "n", "--every-key", "--allow", "list"],
        &["completions", "bash"],
        &["openapi"],
    ] {
        let output = begun(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // A flag stands above its variable.
    let output = begun(&["check", "--store", "memory:", "--store-timeout", "5s"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && !stderr.contains("--store-timeout"), "{stderr}");
    for args in [&["serve"][..], &["check"], &[]] {
        assert_eq!(begun(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_variable_that_is_not_utf_8_is_told_by_its_name() {
    for (args, variable) in [
        (&["serve"][..], "FENCEPOST_STORE"),
        (&[], "FENCEPOST_STORE"),
        (&["list"], "FENCEPOST_URL"),
        (&["run", "k", "--", "true"], "FENCEPOST_URL"),
    ] {
        let mut command = bare_command();
        command.args(args).env(variable, OsStr::from_bytes(b"http://a\xff"));
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let said =
            format!("fencepost: the variable {variable} is not UTF-8: give it another value, or remove it\n");
        assert_eq!((output.status.code(), stderr), (Some(2), said));
    }
}

#[test]
fn a_wrong_setting_of_a_variable_is_told_with_the_name_of_the_variable() {
    for (variable, value, flag) in [
        ("FENCEPOST_MAX_TTL", "0s", "--max-ttl"),
        ("FENCEPOST_MAX_TTL", "30", "--max-ttl"),
        ("FENCEPOST_LOG_LEVEL", "inof", "--log-level"),
        ("FENCEPOST_STORE", "nonsense", "--store"),
        ("FENCEPOST_THREADS", "-1", "--threads"),
    ] {
        let told = format!("(in the variable {variable})");
        let mut command = bare_command();
        let output = command.env(variable, value).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.lines().count() == 1 && stderr.contains(flag) && stderr.contains(&told), "{stderr}");
        // The flag stands above its variable.
        let output = command.args([flag, value]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && !stderr.contains(&told), "{stderr}");
    }
}

#[test]
fn a_word_that_is_neither_yes_nor_no_opens_nothing() {
    for word in ["none", "disabled", "never", "flase", "2"] {
        let mut command = bare_command();
        command.args(["--store", "memory:", "--listen", "0.0.0.0:99999"]).stderr(Stdio::piped());
        let output = command.env("FENCEPOST_ALLOW_ANONYMOUS", word).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{word}: {stderr}");
        assert!(stderr.lines().count() == 1 && stderr.contains("write true or false"), "{word}: {stderr}");
    }
    for word in ["", "no", "False", "0", "off"] {
        let mut command = bare_command();
        command.args(["--store", "memory:", "--listen", "0.0.0.0:0"]).stderr(Stdio::piped());
        let output = command.env("FENCEPOST_ALLOW_ANONYMOUS", word).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains("--allow-anonymous"), "{word}: {stderr}");
    }
}

#[test]
fn limits_of_commands_are_told_as_they_are() {
    let token = "LEASE_TOKEN=a-token-of-16-chars";
    for (args, said) in [
        (&["acquire", "k", "--ttl", "0s"][..], "--min-ttl of the gateway, which is 10ms unless"),
        (&["renew", "k", "--ttl", "0s"], "--min-ttl of the gateway, which is 10ms unless"),
        (&["run", "--ttl", "999ms", "k", "--", "true"], "at least 1s"),
        (&["status", "-k"], "write -- in front of it"),
        (&["key", "new", "--name", "n", "--every-key", "--allow", "lists"], "acquire, inspect, list, admin"),
    ] {
        let output = bare_command().args(args).envs(token.split_once('=')).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && line.contains(said), "{args:?}: {line}");
    }
}

#[test]
fn completions_offer_the_rights_of_a_key() {
    let script = String::from_utf8(run(&["completions", "bash"]).stdout).unwrap();
    assert!(script.contains("\"acquire inspect list admin once\""));
}

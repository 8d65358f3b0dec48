//! On a terminal: what a person sees, and who gets what the person types.

use std::collections::HashSet;
use std::time::Duration;

use super::kit::{Scene, is_alive, is_stopped, left_of, parent_has_terminal, requests, waiters};
use super::pty::Person;
use kit::{Client, Gateway, eventually, fresh_token, signal};

/// Says again what it reads, so that it can be told from the terminal's echo.
const ECHO: &str = "echo $$ >pid; echo ready; exec sed -u s/^/read:/";

/// Somebody who sits at a shell, on a terminal.
async fn at_a_shell() -> (Gateway, Scene, Person) {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let person = Person::sits_at_a_shell(&scene).await;
    (gateway, scene, person)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_shows_the_place_in_line_and_the_elapsed_time() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let holder = fresh_token();
    client.put("/locks/k?ttl=5m").token(&holder).send().await.expect(201);
    let ahead = scene.start_script(&[], "while [ ! -e over ]; do sleep 0.02; done");
    eventually("the first stands in line", async || waiters(&client).await == 1).await;
    let mut person = Person::runs(&scene, &["k", "--", "echo", "mine"]);
    person.sees("waiting for \"k\": position 2 of 2, ").await;
    // On a busy machine a second may be left out.
    let seconds = || {
        let screen = person.screen();
        let shown = screen.split("position 2 of 2, ").skip(1).filter_map(|rest| rest.split('s').next());
        shown.map(str::to_owned).collect::<HashSet<_>>()
    };
    eventually("the time goes on", async || seconds().len() >= 3).await;
    client.delete("/locks/k").token(&holder).send().await.expect(204);
    person.sees("position 1 of 1").await;
    std::fs::write(scene.path("over"), "").unwrap();
    person.sees("mine").await;
    // The line is gone when the command begins.
    assert!(person.screen().contains("\r\u{1b}[Kmine"), "{:?}", person.screen());
    assert_eq!(person.status().await, Some(0));
    ahead.end().await.expect_silent(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_reads_the_terminal() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let mut person = Person::runs(&scene, &["k", "--", "sh", "-c", ECHO]);
    person.sees("ready").await;
    person.types("hello\n");
    person.sees("read:hello").await;
    person.types("\u{4}");
    assert_eq!(person.status().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_reads_the_terminal_when_the_command_has_ended() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let script = "$F run k -- sh -c 'read a; echo command:$a'; read b; echo script:$b";
    let mut person = Person::starts(&scene, &["sh", "-c", script]);
    person.types("one\ntwo\n");
    person.sees("command:one").await;
    person.sees("script:two").await;
    assert_eq!(person.status().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn control_c_reaches_the_command() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let script = "trap 'echo caught; exit 44' INT; echo ready; while :; do sleep 0.02; done";
    let mut person = Person::runs(&scene, &["k", "--", "sh", "-c", script]);
    person.sees("ready").await;
    person.types("\u{3}");
    person.sees("caught").await;
    assert_eq!(person.status().await, Some(44));
}

#[tokio::test(flavor = "multi_thread")]
async fn control_c_while_waiting_gives_up_the_place() {
    let gateway = Gateway::embedded(&["--ticket-ttl", "1m"]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?ttl=5m").token(&fresh_token()).send().await.expect(201);
    let mut person = Person::runs(&scene, &["k", "--", "true"]);
    person.sees("position 1 of 1").await;
    person.types("\u{3}");
    assert_eq!(person.status().await, Some(130));
    assert_eq!(waiters(&client).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_z_stops_the_job_and_fg_goes_on_with_it() {
    stops_and_goes_on("$F run --ttl 1m k --").await;
}

/// The one within has to stop its command first, and stops itself after that, by SIGSTOP.
#[tokio::test(flavor = "multi_thread")]
async fn control_z_stops_a_run_within_a_run_and_fg_goes_on_with_both() {
    stops_and_goes_on("$F run --ttl 1m a -- $F run --ttl 1m b --").await;
}

async fn stops_and_goes_on(job: &str) {
    let (_gateway, scene, mut person) = at_a_shell().await;
    person.types(&format!("{job} sh -c '{ECHO}'\n"));
    let pid = scene.number("pid").await;
    person.types("one\n");
    person.sees("read:one").await;
    person.types("\u{1a}");
    // It is the shell that says so: the whole job has stopped.
    person.sees("Stopped").await;
    eventually("the command is stopped", async || is_stopped(pid)).await;
    person.types("echo the shell reads\n");
    person.sees("\nthe shell reads").await;
    person.types("fg\n");
    eventually("the command goes on", async || is_alive(pid) && !is_stopped(pid)).await;
    person.types("two\n");
    person.sees("read:two").await;
    person.types("\u{4}");
    eventually("the command ends", async || !is_alive(pid)).await;
    // And the shell has its terminal back.
    person.types("echo status $?\n");
    person.sees("\nstatus 0").await;
}

/// As an interactive shell does for `suspend`.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_the_foreground_that_stops_itself_gives_the_shell_its_terminal_back() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    person.types("$F run --ttl 1m k -- sh -c 'kill -STOP $$; >on; read line; echo read:$line'\n");
    person.sees("Stopped").await;
    person.types("echo the shell reads\n");
    person.sees("\nthe shell reads").await;
    person.types("fg\n");
    eventually("the command goes on", async || scene.path("on").exists()).await;
    person.types("one\n");
    person.sees("read:one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_stays_stopped_ends_before_its_lease_does() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    // A shell that is stopped while it forks may stay so in part: this one does not.
    let script = "echo $$ >pid; while :; do echo >>beats; done";
    person.types(&format!("$F run --ttl 3s k -- sh -c '{script}'\n"));
    let pid = scene.number("pid").await;
    person.types("\u{1a}");
    person.sees("Stopped").await;
    eventually("the command is stopped", async || is_stopped(pid)).await;
    let beats = scene.read("beats");
    let next = scene.start(&["k", "--", "sh", "-c", &format!("! kill -0 {pid} 2>/dev/null")]);
    person.sees("the lease of \"k\" could not be renewed: run was stopped").await;
    next.end().await.expect_silent(0);
    assert_eq!(scene.read("beats"), beats, "it went on before it was killed");
    // The shell tells at its next prompt.
    person.types("\n");
    person.sees("Exit 76").await;
}

/// What is let go on without its run must not outlive the lease: nothing renews that.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_let_go_on_alone_ends_before_another_has_the_lock() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    person.types("$F run --ttl 3s k -- sh -c 'echo $$ >pid; while :; do sleep 0.01; done'\n");
    let pid = scene.number("pid").await;
    signal(pid, "STOP");
    person.sees("Stopped").await;
    signal(pid, "CONT");
    eventually("the command goes on", async || !is_stopped(pid)).await;
    let next = scene.start(&["k", "--", "sh", "-c", &format!("! kill -0 {pid} 2>/dev/null")]);
    next.end().await.expect_silent(0);
    person.sees("the lease of \"k\" could not be renewed: run was stopped").await;
}

/// As `docker run -it` starts it: nothing could let the job go on after a stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_stopped_on_a_terminal_without_a_shell_stays_so_and_is_renewed() {
    let gateway = Gateway::embedded(&[]).await;
    let scene = Scene::on(&gateway);
    let script = "echo $$ >pid; exec sleep 60";
    let _person = Person::runs(&scene, &["--ttl", "3s", "k", "--", "sh", "-c", script]);
    let pid = scene.number("pid").await;
    signal(pid, "STOP");
    let renewals = || requests(&gateway).iter().filter(|request| request.method == "PATCH").count();
    let before = renewals();
    eventually("the lease is renewed", async || renewals() > before + 1).await;
    assert!(is_stopped(pid));
}

/// As long as the lease can be renewed.
#[tokio::test(flavor = "multi_thread")]
async fn fg_goes_on_with_a_job_also_shortly_before_it_would_be_ended() {
    let (gateway, scene, mut person) = at_a_shell().await;
    let client = Client::new(gateway.address);
    person.types(&format!("$F run --ttl 9s k -- sh -c '{ECHO}'\n"));
    let pid = scene.number("pid").await;
    person.types("one\n");
    person.sees("read:one").await;
    person.types("\u{1a}");
    person.sees("Stopped").await;
    // If a renewal had failed, the command would have been asked to end by now.
    eventually("little is left", async || left_of(&client).await < Duration::from_millis(3500)).await;
    person.types("fg\n");
    eventually("it is renewed", async || left_of(&client).await > Duration::from_secs(5)).await;
    person.types("two\n");
    person.sees("read:two").await;
    person.types("\u{4}");
    eventually("the command ends", async || !is_alive(pid)).await;
}

/// The shell takes the job for one that runs, so `fg` sends no SIGCONT.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_the_background_whose_command_was_stopped_listens_to_keys_in_the_foreground() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    // Ctrl-Z stops the job, so that fg goes on with it; Ctrl-C ends it.
    for (key, seconds) in [("\u{1a}", 60), ("\u{3}", 61)] {
        person
            .types(&format!("$F run --ttl 1m k -- sh -c 'echo $$ >pid-{seconds}; exec sleep {seconds}' &\n"));
        let pid = scene.number(&format!("pid-{seconds}")).await;
        signal(pid, "STOP");
        eventually("the command is stopped", async || is_stopped(pid)).await;
        person.types("fg\n");
        eventually("the job has the terminal", async || parent_has_terminal(pid)).await;
        // The job may take a moment more to hear keys.
        eventually("the job hears the key", async || {
            person.types(key);
            person.screen().contains("Stopped") && (seconds == 60 || !is_alive(pid))
        })
        .await;
        if seconds == 60 {
            person.types("fg\n");
            eventually("the command goes on", async || !is_stopped(pid)).await;
            person.types("\u{3}");
            eventually("the command ends", async || !is_alive(pid)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_the_background_stops_when_it_reads_and_reads_in_the_foreground() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    person.types(&format!("$F run --ttl 1m k -- sh -c '{ECHO}' &\n"));
    let pid = scene.number("pid").await;
    eventually("it is stopped", async || is_stopped(pid)).await;
    // The shell has its terminal all the while, and tells at one of its next prompts.
    person.types("echo the shell reads\n");
    person.sees("\nthe shell reads").await;
    eventually("the shell tells that the job stopped", async || {
        person.types("\n");
        person.screen().contains("Stopped")
    })
    .await;
    person.types("fg\n");
    eventually("the command goes on", async || !is_stopped(pid)).await;
    person.types("hello\n");
    person.sees("read:hello").await;
    person.types("\u{4}");
    eventually("the command ends", async || !is_alive(pid)).await;
}

/// A command that reads before it was lent the terminal has been stopped for it when it has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_was_stopped_for_the_terminal_that_it_has_goes_on() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    person.types(&format!("$F run --ttl 1m k -- sh -c '{ECHO}'\n"));
    let pid = scene.number("pid").await;
    person.types("one\n");
    person.sees("read:one").await;
    signal(pid, "TTIN");
    person.types("two\n");
    person.sees("read:two").await;
    assert!(!person.screen().contains("Stopped"), "{:?}", person.screen());
    person.types("\u{4}");
    eventually("the command ends", async || !is_alive(pid)).await;
}

/// Were `run` to stop alone, its command would go on, and nobody would renew.
#[tokio::test(flavor = "multi_thread")]
async fn control_z_stops_the_command_too_where_it_is_not_in_the_foreground() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    person.types("$F run --ttl 1m k -- sh -c 'echo $$ >pid; exec sleep 60' | cat\n");
    let pid = scene.number("pid").await;
    person.types("\u{1a}");
    person.sees("Stopped").await;
    eventually("the command is stopped", async || is_stopped(pid)).await;
    person.types("fg\n");
    eventually("the command goes on", async || !is_stopped(pid)).await;
    person.types("\u{3}");
    eventually("the command ends", async || !is_alive(pid)).await;
    person.types("echo status ${PIPESTATUS[0]}\n");
    person.sees("\nstatus 130").await;
}

/// All that is left is to print, and its reader has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn control_z_stops_once_also_when_its_command_has_ended() {
    let (gateway, scene, mut person) = at_a_shell().await;
    let reader = "sh -c 'while [ ! -e over ]; do sleep 0.02; done; wc -l'";
    // The pipe to the reader holds less than that. Together with the one from the command it holds more.
    person.types(&format!("$F once k -- seq 1 20000 | {reader}\n"));
    let is_stored = || requests(&gateway).iter().any(|request| request.method == "POST");
    eventually("the result is stored", async || is_stored()).await;
    person.types("\u{1a}");
    person.sees("Stopped").await;
    std::fs::write(scene.path("over"), "").unwrap();
    person.types("fg\n");
    person.sees("20000\r\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_at_a_terminal_that_takes_no_more_hears_sigterm_all_the_same() {
    let gateway = Gateway::embedded(&[]).await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    client.put("/locks/k?ttl=5m").token(&fresh_token()).send().await.expect(201);
    let mut person = Person::starts(&scene, &["sh", "-c", "echo $$ >pid; exec $F run k -- true"]);
    person.sees("position 1 of 1").await;
    // Control-S. It would write the time in each second.
    person.types("\u{13}");
    eventually("nothing more is shown", async || {
        let shown = person.screen();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        person.screen() == shown
    })
    .await;
    let pid = scene.number("pid").await;
    signal(pid, "TERM");
    eventually("it ends", async || !is_alive(pid)).await;
    assert_eq!(waiters(&client).await, 0);
}

/// In front of a pager, it is the pager that reads keys, until the command asks for the terminal.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_a_pipe_gets_the_terminal_when_it_wants_it() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    person.types(&format!("$F run --ttl 1m k -- sh -c '{ECHO}' | sed -u s/^/piped:/\n"));
    person.sees("piped:ready").await;
    person.types("hello\n");
    person.sees("piped:read:hello").await;
    person.types("\u{4}");
    let pid = scene.number("pid").await;
    eventually("the command ends", async || !is_alive(pid)).await;
    person.types("echo status $?\n");
    person.sees("\nstatus 0").await;
}

/// Its children are a shell's, so the run is a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_behind_other_children_is_one_job_and_gets_each_key_once() {
    let (_gateway, scene, mut person) = at_a_shell().await;
    // It stops in its own time, as an editor does. It has no child then, which would be stopped before it.
    let command = "
        exec 2>/dev/null; mkfifo never; exec 3<>never; pause() { read -t 0.02 <&3; }
        trap 'echo INT >>got' INT; trap 'exit 5' TERM
        trap 'echo >asked; until [ -e may ]; do pause; done; trap - TSTP; kill -TSTP $$' TSTP
        echo $$ >pid; while :; do pause; done";
    std::fs::write(scene.path("command"), command).unwrap();
    // Not sh: one that waits for its stopped vfork is stopped too, and does not look so.
    let shell =
        "sleep 30 & echo $! >stranger; sh -c 'echo $PPID' >run; exec $F run --ttl 1m k -- bash command";
    std::fs::write(scene.path("shell"), shell).unwrap();
    person.types("sh shell >out\n");
    let pid = scene.number("pid").await;
    let run = scene.number("run").await;
    person.types("\u{1a}");
    eventually("the command is asked to stop", async || scene.path("asked").exists()).await;
    // The shell would offer to go on with what has yet to stop.
    assert!(!is_stopped(run));
    std::fs::write(scene.path("may"), "").unwrap();
    person.sees("Stopped").await;
    // So it can go on at once.
    assert!(is_stopped(pid));
    person.types("fg\n");
    eventually("the command goes on", async || !is_stopped(pid)).await;
    // A signal to the run alone follows, so that whatever was passed on before it has arrived.
    person.types("\u{3}");
    scene.says("got", "INT\n").await;
    signal(run, "TERM");
    eventually("the command ends", async || !is_alive(pid)).await;
    assert_eq!(scene.read("got"), "INT\n");
    person.types("echo status $?\n");
    person.sees("\nstatus 5").await;
}

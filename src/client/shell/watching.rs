//! `fencepost watch`: what happens to locks, as it happens, for as long as somebody reads it.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;

use super::ListSettings;
use super::ask::{Aim, AskTries};
use super::output::{nobody_reads, print, print_json};
use crate::client::{CommandFailure, Gateways, LockEvent, NoDecision, say};
use crate::clock::boottime;
use crate::lock::for_people;
use crate::log::unseen::{cell, quoted};

/// A stream of at least this length worked.
const LASTING: Duration = Duration::from_secs(2);
const AIM: Aim = Aim::to("watch the locks");

/// Prints what happens to the locks whose names begin so, until its reader or a right has gone.
pub(super) async fn watch(settings: &ListSettings) -> Result<u8, CommandFailure> {
    tokio::select! {
        biased;
        () = reader_goes() => Err(nobody_reads()),
        ended = follow(settings) => ended,
    }
}

/// Follows one gateway after the other. If one goes away, the next goes on behind the last event, or says `resync`.
async fn follow(settings: &ListSettings) -> Result<u8, CommandFailure> {
    let ListSettings { gateways, prefix, json } = settings;
    let mut gateways = Gateways::new(gateways, None, None)?;
    let (mut last, mut has_begun) = (None::<String>, false);
    let (mut tries, mut told) = (AskTries::new(&gateways), HashMap::new());
    loop {
        let (number, gateway) = gateways.next();
        let (asked_at, patience) = (boottime(), gateways.answer_may_take());
        let events = gateway.events(prefix, last.as_deref(), patience).await;
        gateways.note_stop(asked_at, patience);
        let trouble = match events {
            Err(no_answer) => {
                // It would be waited for without a word.
                if let NoDecision::NotNow(trouble) = &no_answer
                    && has_begun
                    && trouble.is_lasting
                    && told.insert(number, trouble.reason.clone()).as_ref() != Some(&trouble.reason)
                {
                    say(&format!("{}: {}", gateways.name(number), trouble.reason));
                }
                no_answer
            }
            Ok(mut events) => {
                gateways.answered(number);
                has_begun = true;
                told.clear();
                let began_at = boottime();
                let trouble = loop {
                    let event = match events.next().await {
                        Ok(event) => event,
                        Err(trouble) => break trouble,
                    };
                    if event.id.is_some() {
                        last.clone_from(&event.id);
                    }
                    tell(&event, *json)?;
                };
                say(&format!("{}: {}; looking for a gateway", gateways.name(number), trouble.reason));
                // Streams that end at once must not be asked for without a pause.
                if boottime() > began_at + LASTING {
                    tries = AskTries::new(&gateways);
                }
                tries.pause(&mut gateways).await;
                NoDecision::NotNow(trouble)
            }
        };
        // Once there was a gateway, one that comes back is worth waiting for.
        tries.failed(&mut gateways, number, trouble, AIM, !has_begun).await?;
    }
}

fn tell(event: &LockEvent, json: bool) -> Result<(), CommandFailure> {
    if event.event == "heartbeat" {
        return Ok(());
    }
    if json { print_json(event) } else { print(&line(event, Timestamp::now())) }
}

/// An event as people read it.
fn line(event: &LockEvent, now: Timestamp) -> String {
    let key = event.key.as_deref().map(cell);
    let time = now.strftime("%H:%M:%SZ");
    let mut said = Vec::new();
    if event.event == "resync" {
        said.push(match key {
            Some(_) => "events may be missing: look with fencepost status".to_owned(),
            None => "events may be missing: look with fencepost list".to_owned(),
        });
    }
    said.extend(event.waiters.map(|waiters| format!("{waiters} waiting")));
    said.extend(event.ttl_ms.map(|ms| match event.event.as_str() {
        "released" => format!("kept for {} more", for_people(ms)),
        _ => format!("for {}", for_people(ms)),
    }));
    said.extend(event.owner.as_deref().map(|owner| format!("held by {}", quoted(owner))));
    said.extend(event.fencing_token.map(|number| format!("fencing token {number}")));
    let event = cell(&event.event);
    let key = key.map(|key| format!("{key}  ")).unwrap_or_default();
    format!("{time}  {event:<8}  {key}{}\n", said.join("; "))
}

/// Completes when the reader of standard output has gone. Without it, `fencepost watch | head -1` would stay until the next
/// event.
async fn reader_goes() {
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    // What is no pipe, such as a file, has no reader to lose. As it is only looked at, it goes on blocking.
    let Ok(stdout) = stdout.and_then(|stdout| Sender::from_file_unchecked(stdout.into())) else {
        return pending().await;
    };
    match stdout.ready(Interest::ERROR).await {
        Ok(ready) if ready.is_error() => {}
        // The next event finds out.
        _ => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_one_line_in_which_nothing_can_pass_for_another() {
        let now = Timestamp::UNIX_EPOCH;
        let read = |json: &str| serde_json::from_str(json).map(|event| line(&event, now)).ok();
        for (json, said) in [
            (r#"{"event":"resync","id":"x"}"#, "resync    events may be missing: look with fencepost list"),
            (
                r#"{"event":"granted","key":"ci/a","fencing_token":7,"ttl_ms":29999,"owner":"a b"}"#,
                "granted   ci/a  for 30 s; held by \"a b\"; fencing token 7",
            ),
            (
                r#"{"event":"released","key":"k","fencing_token":7,"ttl_ms":500}"#,
                "released  k  kept for 500 ms more; fencing token 7",
            ),
            (r#"{"event":"waiting","key":"\u202ek","waiters":2}"#, "waiting   \"\\u{202e}k\"  2 waiting"),
            (r#"{"event":"of-later","key":"k"}"#, "of-later  k  "),
        ] {
            assert_eq!(read(json).as_deref(), Some(&*format!("00:00:00Z  {said}\n")), "{json}");
        }
    }
}

//! A client that writes down what it asked and what it was told.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::{Action, Answer, Fault, History, Holder, Operation, Place, Share, Span, Terms, Update, now_us};
use crate::{Client, fresh_token, http};

/// Writes into one history. Its clones write into the same.
#[derive(Clone, Default)]
pub struct Witness {
    history: Arc<Mutex<History>>,
}

impl Witness {
    /// One who has seen all of this.
    pub fn of_all(histories: &[History]) -> Self {
        let mut all = History::default();
        for history in histories {
            let history = history.clone();
            all.operations.extend(history.operations);
            all.updates.extend(history.updates);
            all.losses.extend(history.losses);
            all.splits.extend(history.splits);
            all.kills.extend(history.kills);
            all.faults.extend(history.faults);
        }
        Self { history: Arc::new(Mutex::new(all)) }
    }

    /// How many such answers were given so far.
    pub fn count(&self, is_such: impl Fn(&Answer) -> bool) -> usize {
        self.history.lock().unwrap().operations.iter().filter(|one| is_such(&one.answer)).count()
    }

    /// Sends one request, and gives up after `patience`: the connection is closed then.
    pub async fn ask(
        &self,
        client: &Client,
        key: &str,
        token: Option<&str>,
        action: Action,
        patience: Duration,
    ) -> Operation {
        self.ask_beside(client, key, token, action, None, patience).await
    }

    /// As [`Self::ask`], for a lock that so many may hold at once.
    pub async fn ask_beside(
        &self,
        client: &Client,
        key: &str,
        token: Option<&str>,
        action: Action,
        slots: Option<u16>,
        patience: Duration,
    ) -> Operation {
        let slots = slots.filter(|_| matches!(action, Action::Acquire { .. }));
        let id = fresh_token();
        let address = format!("/lock?key={key}");
        let call = match action {
            Action::Acquire { ttl_ms } => {
                let slots = slots.map(|slots| format!("&slots={slots}")).unwrap_or_default();
                client.put(&format!("{address}&ttl={ttl_ms}ms&owner={id}{slots}"))
            }
            Action::Renew { ttl_ms } => client.patch(&format!("{address}&ttl={ttl_ms}ms")),
            Action::Release => client.delete(&address),
            Action::Look => client.get(&format!("{address}&holders=true")),
            Action::Break { .. } => panic!("nobody breaks a lock by HTTP"),
        };
        let call = call.header("X-Request-Id", &id);
        let call = if let Some(token) = token { call.token(token) } else { call };
        let start_us = now_us();
        let answer = tokio::time::timeout(patience, call.try_send()).await;
        let span = Span { start_us, end_us: now_us() };
        let mut token = token.map(str::to_owned);
        let (answer, share) = match answer {
            Ok(Ok(answer)) => {
                if token.is_none() && answer.status == 201 {
                    token = Some(answer.token());
                }
                read(action, &answer)
            }
            Ok(Err(_)) | Err(_) => (Answer::Lost { was_written: false }, Share::default()),
        };
        let operation = Operation {
            id,
            key: key.to_owned(),
            token,
            action,
            span,
            answer,
            waits: false,
            true_at_us: None,
            ended_us: None,
            terms: Terms { slots, ..Terms::default() },
            share,
        };
        self.history.lock().unwrap().operations.push(operation.clone());
        operation
    }

    pub fn updated(&self, update: Update) {
        self.history.lock().unwrap().updates.push(update);
    }

    /// Says that this is done now.
    pub fn befalls(&self, name: &str) {
        let fault = Fault { name: name.to_owned(), start_us: now_us() };
        self.history.lock().unwrap().faults.push(fault);
    }

    /// Says that the store lost what it held at some time since `start_us`.
    pub fn lost_since(&self, start_us: u64) {
        self.history.lock().unwrap().losses.push(Span { start_us, end_us: now_us() });
    }

    /// Says that a deposed primary and its successor may both have granted locks since `start_us`.
    pub fn split_since(&self, start_us: u64) {
        self.history.lock().unwrap().splits.push(Span { start_us, end_us: now_us() });
    }

    /// Says that a gateway was ended at some time since `start_us`, and with it what it was about to take back.
    pub fn killed_since(&self, start_us: u64) {
        self.history.lock().unwrap().kills.push(Span { start_us, end_us: now_us() });
    }

    /// Says that no command is under way any more, and that from here on everybody just looks.
    pub fn is_quiet(&self) {
        self.history.lock().unwrap().quiet_us = Some(now_us());
    }

    /// Every key that was asked for.
    pub fn keys(&self) -> BTreeSet<String> {
        self.history.lock().unwrap().operations.iter().map(|operation| operation.key.clone()).collect()
    }

    pub fn history(&self) -> History {
        self.history.lock().unwrap().clone()
    }
}

fn read(action: Action, answer: &http::Answer) -> (Answer, Share) {
    let body = if answer.body.is_empty() { Value::Null } else { answer.json() };
    let problem = body["type"].as_str().unwrap_or_default().trim_start_matches("/problems/");
    let number = || body["fencing_token"].as_u64().unwrap();
    let ttl_ms = || body["ttl_ms"].as_u64().unwrap();
    let said = match (action, answer.status, problem) {
        (Action::Acquire { .. }, 201, _) => Answer::Granted { number: number(), ttl_ms: ttl_ms() },
        (Action::Acquire { .. }, 200, _) => Answer::AlreadyHeld { number: number(), ttl_ms: ttl_ms() },
        (Action::Renew { .. }, 200, _) => Answer::Renewed { number: number(), ttl_ms: ttl_ms() },
        (Action::Release, 204, _) => Answer::Released,
        (Action::Look, 200, _) if body["released"] == true => Answer::HeldByAnother(None),
        (Action::Look, 200, _) => {
            Answer::Held { holder: holder(&body), yours: body.get("yours").and_then(Value::as_bool) }
        }
        (_, 404, "not-held") => Answer::NotHeld,
        (_, 423, "lock-held") => Answer::HeldByAnother(named(&body)),
        (_, 409, "held-by-another") => Answer::HeldByAnother(None),
        (_, 409, "token-released") => Answer::TokenReleased,
        (_, 409, "held-otherwise") => {
            let detail = body["detail"].as_str().unwrap();
            let number = detail.split(|c: char| !c.is_ascii_digit()).find_map(|word| word.parse().ok());
            Answer::HeldOtherwise { slots: number.unwrap() }
        }
        (_, 503, "outcome-unknown") => Answer::Unknown,
        (_, 503, "store-unavailable" | "shutting-down") => Answer::NotDone,
        _ => panic!("{action:?} was answered {} {body:#}", answer.status),
    };
    (said, share(action, &body))
}

fn number_at(body: &Value, name: &str) -> Option<u16> {
    body[name].as_u64().map(|number| u16::try_from(number).unwrap())
}

/// What is said of those who share the lock.
fn share(action: Action, body: &Value) -> Share {
    let place =
        |body: &Value| Some(Place { slot: number_at(body, "slot")?, slots: number_at(body, "slots")? });
    let all = body["holders"].as_array().map(Vec::as_slice).unwrap_or_default();
    let held_by = all.iter().filter(|one| one["released"] != true);
    let holders: Vec<_> = held_by.map(|one| (holder(one), place(one).unwrap())).collect();
    let is_seen = action == Action::Look && body["held"].is_u64();
    // At the top of a look stands the least of what they have said, beside the place of the token's own grant.
    let own = holders.iter().find(|(holder, _)| Some(holder.number) == body["fencing_token"].as_u64());
    Share {
        place: if is_seen {
            own.filter(|_| body["slot"].is_u64()).map(|(_, place)| *place)
        } else {
            place(body)
        },
        held: if is_seen { body["held"].as_u64().unwrap() } else { 0 },
        slots: if is_seen { number_at(body, "slots") } else { None },
        holders,
    }
}

/// The holder in a 423. While none has a majority of a quorum there is none to be named.
fn named(body: &Value) -> Option<Holder> {
    body.get("holder").filter(|holder| !holder.is_null()).map(holder)
}

fn holder(body: &Value) -> Holder {
    Holder {
        id: body["owner"].as_str().unwrap_or_default().to_owned(),
        number: body["fencing_token"].as_u64().unwrap(),
        left_ms: body["expires_in_ms"].as_u64().unwrap(),
    }
}

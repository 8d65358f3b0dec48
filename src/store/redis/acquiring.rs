//! The five ways of asking for a lock. One script does them all; each is answered what its kind can be.

use std::sync::Arc;

use redis::Cmd;
use tokio::time::Instant;

use super::RedisStore;
use super::connection::link::Link;
use super::fast_path::{refusal_in, replicated};
use super::scripts::keys::QueueKeys;
use super::scripts::{self, ScriptReply, lease_of, lease_seen, queue_position_of, unexpected};
use crate::lock::{Acquired, Confirmed, Enqueued, LastPolled, Lease, LockKey, Polled, Refusal, Slots};
use crate::store::{AnswerTo, Confirm, Enqueue, LastPoll, LockRequest, Poll, StoreError, TicketAfter, Try};

/// What the script is told that it may do.
#[derive(Default)]
struct Mode {
    name: &'static str,
    /// Whether the arguments that concern the wait queue are sent.
    waits: bool,
    supersedes: String,
    ticket: String,
}

/// What the script has answered, and over which link.
struct Answered<'a> {
    reply: ScriptReply,
    link: Arc<Link>,
    key: &'a LockKey,
    names: QueueKeys,
    token: String,
    deadline: Instant,
}

impl RedisStore {
    pub(super) async fn try_lock(&self, Try(lock): &Try, deadline: Instant) -> AnswerTo<Try> {
        let taken = match self.take_free(lock, deadline).await? {
            None => self.take_slot(lock, deadline).await?,
            taken => taken,
        };
        if let Some(answer) = taken {
            return Ok(answer);
        }
        let answered = self.ask(lock, Mode { name: "grant", ..Mode::default() }, deadline).await?;
        answered.acquired(|reply, key| refused(reply, key, |refusal| refusal)).await
    }

    pub(super) async fn confirm(&self, Confirm(lock): &Confirm, deadline: Instant) -> AnswerTo<Confirm> {
        let answered = self.ask(lock, Mode { name: "confirm", ..Mode::default() }, deadline).await?;
        match answered.reply.outcome {
            1 => Ok(match answered.replicated().await? {
                Ok(lease) => Confirmed::AlreadyHeld(lease),
                Err(reason) => Confirmed::NotReplicated(reason),
            }),
            3 => Ok(Confirmed::TokenReleased),
            4 => Ok(Confirmed::AttemptVoided),
            9 => slots_of(&answered.reply, &lock.key).map(Confirmed::HeldOtherwise),
            _ => refused(&answered.reply, &lock.key, Confirmed::Refused),
        }
    }

    pub(super) async fn enqueue(&self, request: &Enqueue, deadline: Instant) -> AnswerTo<Enqueue> {
        let mode = Mode {
            name: if request.takes_over { "join" } else { "rejoin" },
            waits: true,
            supersedes: request.supersedes.iter().map(|attempt| format!("{attempt} ")).collect(),
            ticket: request.ticket.map_or_else(String::new, |ticket| ticket.get().to_string()),
        };
        let answered = self.ask(&request.lock, mode, deadline).await?;
        answered
            .acquired(|reply, _| match reply.outcome {
                8 => Ok(Enqueued::QueueFull),
                _ => polled(reply).map(Enqueued::Polled),
            })
            .await
    }

    pub(super) async fn poll(&self, Poll(lock): &Poll, deadline: Instant) -> AnswerTo<Poll> {
        let mode = Mode { name: "look", waits: true, ..Mode::default() };
        self.ask(lock, mode, deadline).await?.acquired(|reply, _| polled(reply)).await
    }

    pub(super) async fn last_poll(
        &self,
        LastPoll { lock, ticket }: &LastPoll,
        deadline: Instant,
    ) -> AnswerTo<LastPoll> {
        let name = if *ticket == TicketAfter::Removed { "end" } else { "end-keep" };
        let answered = self.ask(lock, Mode { name, waits: true, ..Mode::default() }, deadline).await?;
        answered
            .acquired(|reply, key| match reply.outcome {
                7 => Ok(LastPolled::TicketLost),
                _ => refused(reply, key, LastPolled::Refused),
            })
            .await
    }

    /// Runs the script.
    async fn ask<'a>(
        &self,
        request: &'a LockRequest,
        mode: Mode,
        deadline: Instant,
    ) -> Result<Answered<'a>, StoreError> {
        let key = &request.key;
        let names = self.keys.queue_of(key);
        let bucket = self.keys.bucket_of(key);
        let tombstone = self.keys.tombstone(key, &request.token);
        let fence = self.keys.fence(bucket);
        let keys = [&names.in_order()[..], &[tombstone.as_bytes(), fence.as_bytes()]].concat();
        let token = request.token.to_string();
        let attempt = request.attempt.to_string();
        let add_args = |link: &Link, call: &mut Cmd| {
            call.arg(&token).arg(&attempt).arg(&*self.mark_ttl_ms).arg(&self.ticket_ms);
            call.arg(mode.name).arg(request.ttl.as_ms()).arg(request.note.stored());
            call.arg(&link.incarnation);
            if mode.waits || !request.terms.are_none() {
                call.arg(&*self.hints.gateway).arg(&self.max_waiters_per_key);
                call.arg(&mode.supersedes).arg(&mode.ticket);
                call.arg(&scripts::terms(request.terms));
            }
        };
        let grants = mode.name != "confirm";
        if request.terms.slots > Slots::ONE {
            self.fast_path.shared_keys.note(key.as_str());
        }
        let (reply, link) = self.run_in(bucket, &scripts::ACQUIRE, grants, &keys, deadline, add_args).await?;
        Ok(Answered { reply, link, key, names, token, deadline })
    }
}

impl Answered<'_> {
    /// What any request may be answered; `told` reads what only its kind is told.
    async fn acquired<T>(
        self,
        told: impl FnOnce(&ScriptReply, &LockKey) -> Result<T, StoreError>,
    ) -> Result<Acquired<T>, StoreError> {
        match self.reply.outcome {
            0 => Ok(match self.replicated().await? {
                Ok(lease) => Acquired::Granted(lease),
                Err(reason) => Acquired::NotReplicated { is_new: true, reason },
            }),
            1 => Ok(match self.replicated().await? {
                Ok(lease) => Acquired::AlreadyHeld(lease),
                Err(reason) => Acquired::NotReplicated { is_new: false, reason },
            }),
            3 => Ok(Acquired::TokenReleased),
            4 => Ok(Acquired::AttemptVoided),
            9 => slots_of(&self.reply, self.key).map(Acquired::HeldOtherwise),
            10 => Ok(Acquired::TakenOver),
            _ => told(&self.reply, self.key).map(Acquired::NotTaken),
        }
    }

    /// The lease of the token, once the server's replicas have it too, where they must; or why it is not to be relied on.
    async fn replicated(&self) -> Result<Result<Lease, String>, StoreError> {
        let lease = lease_of(&self.reply, self.key)?;
        let [lock, .., held, _, _] = self.names.in_order();
        let keys = if lease.slot.is_some() { &[lock, held][..] } else { &[lock] };
        Ok(replicated(&self.link, keys, &self.token, lease, self.deadline).await)
    }
}

/// How many slots the token's own grant has said.
fn slots_of(reply: &ScriptReply, key: &LockKey) -> Result<Slots, StoreError> {
    Ok(lease_seen(reply, key)?.slot.map_or(Slots::ONE, |slot| slot.slots))
}

/// The answer if another holds the lock.
fn refused<T>(
    reply: &ScriptReply,
    key: &LockKey,
    answer: impl FnOnce(Refusal) -> T,
) -> Result<T, StoreError> {
    match reply.outcome {
        2 => refusal_in(reply, key).map(answer),
        other => Err(unexpected("acquire", other)),
    }
}

/// The answer to a waiter.
fn polled(reply: &ScriptReply) -> Result<Polled, StoreError> {
    match reply.outcome {
        5 => queue_position_of(reply).map(Polled::Queued),
        6 => queue_position_of(reply).map(Polled::Moved),
        7 => Ok(Polled::TicketLost),
        other => Err(unexpected("acquire", other)),
    }
}

//! Records on Redis: each operation one script, one round trip, as with locks, but for long results (`aside.rs`). Begins that
//! are ready at the same moment share a call, and so do short results.

use std::sync::Arc;

use redis::Cmd;
use tokio::time::Instant;

use self::record::{RecordReply, SeenRecord};
use super::RedisStore;
use super::connection::link::Link;
use super::connection::replicas::Written;
use super::fast_path::records::{BeginOperation, MOST_SHARED_BYTES, StoreOperation, memory_ms};
use super::listing::PageKind;
use super::scripts::keys::KeySpace;
use super::scripts::{Script, flag, scripts, send, unexpected, unreadable};
use crate::clock::whole_ms;
use crate::lock::{Attempt, FencingToken, Hex, Lease, LockKey};
use crate::once::{
    Begun, BrokenRecord, GivenUp, Place, RecordPage, RecordView, RenewedWork, Storing, WorkStatus,
};
use crate::store::{
    Begin, BreakRecord, GiveUp, ListRecords, LookAtRecord, RenewWork, StoreError, StoreResult, Tombstone,
    UndoBegin,
};

mod aside;
mod record;

scripts! {
    RENEW: record, "scripts/once/renew.lua";
    GIVE_UP: lock, record, "scripts/once/give_up.lua";
    UNDO: lock, record, "scripts/once/undo.lua";
    BREAK: record, "scripts/once/break.lua";
    LOOK: record, "scripts/once/look.lua";
    ACK: record, "scripts/once/ack.lua";
}

/// Why a result was not stored that Redis had taken a moment before.
const LOST_ASIDE: &str = "Redis dropped the result before it could be stored";
/// Why there is no result where there was one a moment before.
const OVER_MEANWHILE: &str = "the result was forgotten or replaced while it was read";

/// What the scripts say of a value that none of them wrote. They have left it as it was.
const NOT_OURS: i64 = 9;

impl RedisStore {
    pub(super) async fn begin(&self, request: &Begin, deadline: Instant) -> Result<Begun, StoreError> {
        let Begin { key, token, attempt, ttl, keep, note, fingerprint, may_take_over, only_confirms } =
            request;
        let (bucket, token_hash) = (self.keys.bucket_of(key), token.to_string());
        let fingerprint =
            fingerprint.map_or_else(|| "-".to_owned(), |print| Hex(print.as_bytes()).to_string());
        let begin = Arc::new(BeginOperation {
            record: self.keys.once(key),
            tombstone: self.keys.tombstone(key, token),
            fence: self.keys.fence(bucket),
            args: [
                format!("w{token_hash} {attempt} "),
                ttl.as_ms().to_string(),
                format!(" 0 {} {fingerprint} 0 {}", whole_ms(keep.as_duration()), note.stored()),
                [flag(*may_take_over), flag(*only_confirms)].concat(),
            ],
        });
        let (reply, link): (RecordReply, _) =
            self.run_batched(bucket, !only_confirms, &begin, Some(&self.fast_path.begins), deadline).await?;
        let is_new = reply.outcome == 0;
        let keys = [begin.record.as_bytes()];
        match reply.outcome {
            0 | 1 => {
                let place = match reply.number() {
                    // Of a new record only the number is told: all else is as it was asked for.
                    Some(fencing_token) => {
                        let (left_ms, note) = (ttl.as_ms(), note.clone());
                        let lease = Lease { fencing_token, left_ms, note, is_released: false, slot: None };
                        Place { lease, earlier: 0, earlier_fencing_token: None }
                    }
                    None => reply.record().ok_or_else(|| StoreError::Unknown(unreadable(key)))?.place(),
                };
                let number = place.lease.fencing_token;
                if is_new {
                    link.room.took(begin.record.len());
                }
                let written = written(&keys, &token_hash, number);
                Ok(match replicated(&link, &written, deadline).await {
                    Err(reason) => Begun::NotReplicated { is_new, reason },
                    Ok(()) if is_new => Begun::Granted(place),
                    Ok(()) => Begun::Continued(place),
                })
            }
            2 => reply.record().map(|record| Begun::Busy(record.worker())).ok_or_else(|| not_ours(key)),
            3 => reply.record().map(|record| Begun::Abandoned(record.worker())).ok_or_else(|| not_ours(key)),
            4 | 10 => {
                let (worker, number) = reply.grant().ok_or_else(|| not_ours(key))?;
                // Before a long one is read: none waits for replicas in the gateway's memory.
                let written = written(&keys, worker, number);
                if let Err(reason) = result_replicated(&link, &written, deadline).await {
                    return Ok(Begun::NotReplicated { is_new: false, reason });
                }
                let done = match reply.outcome {
                    4 => reply.record(),
                    _ => Some(self.long_result(key, number, &reply, &link, deadline).await?),
                };
                done.and_then(SeenRecord::stored).map(Begun::Done).ok_or_else(|| not_ours(key))
            }
            5 => Ok(Begun::FingerprintMismatch),
            6 => Ok(Begun::TokenReleased),
            7 => Ok(Begun::AttemptVoided),
            8 => Ok(link.room.refusal().map_or(Begun::NearlyFull, |why| Begun::Unsupported(why.to_string()))),
            outcome => Err(unknown("begin", outcome, key)),
        }
    }

    pub(super) async fn store_result(
        &self,
        request: &StoreResult,
        deadline: Instant,
    ) -> Result<Storing, StoreError> {
        let StoreResult { key, token, fence, keep, result } = request;
        let content_type = result.content_type.as_deref().unwrap_or_default();
        let is_long = content_type.len() + 1 + result.body.len() > MOST_SHARED_BYTES;
        let is_aside = is_long && self.keys.share_a_slot();
        let header: &[u8] = if is_aside { &aside::NO_HEADER } else { &[] };
        let store = Arc::new(StoreOperation {
            record: self.keys.once(key),
            token: token.to_string(),
            fence: number(*fence),
            keep: keep.map_or_else(String::new, |keep| whole_ms(keep.as_duration()).to_string()),
            status: result
                .status
                .map_or_else(|| "-".to_owned(), |status: WorkStatus| status.get().to_string()),
            text: [header, content_type.as_bytes(), b"\n", &result.body].concat(),
            told_at: header.len(),
            is_short: result.is_short(),
        });
        let bucket = self.keys.bucket_of(key);
        let (reply, link): (RecordReply, _) = if is_aside {
            let (store, aside) = (&store, &self.keys.aside(key, &Attempt::generate().to_string()));
            self.step(bucket, false, false, deadline, |link, _| aside::store(link, store, aside, deadline))
                .await?
        } else {
            let batcher = (!is_long).then_some(&self.fast_path.stores);
            self.run_batched(bucket, false, &store, batcher, deadline).await?
        };
        match reply.outcome {
            0 => {
                let (Some(fencing_token), Some(kept_ms), Some(is_late)) =
                    (reply.number(), reply.length(0), reply.length(1))
                else {
                    return Err(StoreError::Unknown(unreadable(key)));
                };
                // What was stored before takes no more room.
                if reply.length(2).is_none() {
                    link.room.took(store.told().len());
                }
                let keys = [store.record.as_bytes()];
                let written = written(&keys, &store.token, fencing_token);
                Ok(match result_replicated(&link, &written, deadline).await {
                    Err(reason) => Storing::NotReplicated(reason),
                    Ok(()) => Storing::Stored { fencing_token, kept_ms, is_late: is_late == 1 },
                })
            }
            1 => Ok(Storing::Differs),
            5 => Ok(Storing::NearlyFull),
            6 => Err(StoreError::Unavailable(LOST_ASIDE.to_owned())),
            outcome => reply.not_worker().map(Storing::Refused).ok_or_else(|| unknown("store", outcome, key)),
        }
    }

    pub(super) async fn renew_work(
        &self,
        request: &RenewWork,
        deadline: Instant,
    ) -> Result<RenewedWork, StoreError> {
        let RenewWork { key, token, fence, ttl } = request;
        let token = token.to_string();
        let reply = self
            .ask_record(&RENEW, key, None, deadline, |call| {
                call.arg(&token).arg(number(*fence)).arg(ttl.as_ms()).arg(memory_ms());
            })
            .await?;
        match reply.outcome {
            0 => match reply.record() {
                Some(record) => Ok(RenewedWork::Renewed(record.place())),
                None => Err(StoreError::Unknown(unreadable(key))),
            },
            1 => Ok(RenewedWork::AlreadyStored),
            5 => Ok(RenewedWork::LeaseOver),
            outcome => {
                reply.not_worker().map(RenewedWork::Refused).ok_or_else(|| unknown("renew", outcome, key))
            }
        }
    }

    pub(super) async fn give_up(&self, request: &GiveUp, deadline: Instant) -> Result<GivenUp, StoreError> {
        let GiveUp { key, token, is_clean, tombstone } = request;
        let mark = (*tombstone == Tombstone::Final).then(|| self.keys.tombstone(key, token));
        let token = token.to_string();
        let reply = self
            .ask_record(&GIVE_UP, key, mark, deadline, |call| {
                call.arg(&token).arg(flag(*is_clean)).arg(memory_ms()).arg(&*self.mark_ttl_ms);
            })
            .await?;
        match reply.outcome {
            0 => Ok(GivenUp::GivenUp),
            1 => Ok(GivenUp::AlreadyStored),
            outcome => {
                reply.not_worker().map(GivenUp::Refused).ok_or_else(|| unknown("give_up", outcome, key))
            }
        }
    }

    pub(super) async fn undo_begin(
        &self,
        request: &UndoBegin,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let UndoBegin { key, token, attempt } = request;
        let mark = Some(self.keys.tombstone(key, token));
        let by = [token.to_string(), attempt.to_string()];
        let reply = self
            .ask_record(&UNDO, key, mark, deadline, |call| {
                call.arg(&by).arg(memory_ms()).arg(&*self.mark_ttl_ms);
            })
            .await?;
        Ok(reply.outcome == 1)
    }

    pub(super) async fn break_record(
        &self,
        request: &BreakRecord,
        deadline: Instant,
    ) -> Result<BrokenRecord, StoreError> {
        let BreakRecord { key, fence, is_clean } = request;
        let reply = self
            .ask_record(&BREAK, key, None, deadline, |call| {
                call.arg(fence.get()).arg(flag(*is_clean)).arg(memory_ms());
            })
            .await?;
        match (reply.outcome, reply.number()) {
            (0, _) => Ok(BrokenRecord::Broken),
            (1, _) => Ok(BrokenRecord::None),
            (3, Some(number)) => Ok(BrokenRecord::Superseded(number)),
            (outcome, _) => Err(unknown("break", outcome, key)),
        }
    }

    pub(super) async fn look_at_record(
        &self,
        request: &LookAtRecord,
        deadline: Instant,
    ) -> Result<Option<RecordView>, StoreError> {
        let LookAtRecord { key, token } = request;
        let shown = token.map(|token| token.to_string()).unwrap_or_default();
        let name = self.keys.once(key);
        let add_args = |_: &Link, call: &mut Cmd| {
            call.arg(&shown).arg(memory_ms());
        };
        let [reply]: [RecordReply; 1] =
            self.run_script(key, &LOOK, &[name.as_bytes()], deadline, add_args).await?;
        match reply.outcome {
            // It may have been pinned.
            0 | 2 => reply.view(token.as_ref()).map(Some).ok_or_else(|| StoreError::Unknown(unreadable(key))),
            1 => Ok(None),
            outcome => Err(unknown("look", outcome, key)),
        }
    }

    pub(super) async fn list_records(
        &self,
        request: &ListRecords,
        deadline: Instant,
    ) -> Result<RecordPage, StoreError> {
        let (mut records, next) = self.page_of::<Records>(request.into(), deadline).await?;
        records.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(RecordPage { records, next })
    }

    /// A record that is done, of which a script told over this link only whose grant it is, its age, and what is left of it.
    async fn long_result(
        &self,
        key: &LockKey,
        number: FencingToken,
        told: &RecordReply,
        link: &Link,
        deadline: Instant,
    ) -> Result<SeenRecord, StoreError> {
        let _turn = link.turn_to_read(deadline).await?;
        let record = &self.keys.once(key);
        let read =
            self.step(self.keys.bucket_of(key), false, false, deadline, |link, is_asking| async move {
                let get = redis::cmd("GET").arg(record).take();
                send(&mut link.connection.clone(), is_asking, get).await
            });
        let text: Vec<u8> = match read.await {
            Ok((text, _)) => text,
            // Only reading was asked for.
            Err(StoreError::Unknown(reason)) => return Err(StoreError::Unavailable(reason)),
            Err(error) => return Err(error),
        };
        let (age_ms, left_ms) = (told.length(0).unwrap_or(0), told.length(1).unwrap_or(0));
        let record = SeenRecord::read(text, age_ms, left_ms, None);
        record
            .filter(|record| record.is_result_of(number))
            .ok_or_else(|| StoreError::Unavailable(OVER_MEANWHILE.to_owned()))
    }

    /// Runs a script on a record, and on the token's tombstone if it touches one.
    async fn ask_record(
        &self,
        script: &Script,
        key: &LockKey,
        tombstone: Option<String>,
        deadline: Instant,
        add_args: impl Fn(&mut Cmd),
    ) -> Result<RecordReply, StoreError> {
        let record = self.keys.once(key);
        let names = [Some(record), tombstone];
        let keys: Vec<&[u8]> = names.iter().flatten().map(String::as_bytes).collect();
        self.run_script(key, script, &keys, deadline, |_, call| add_args(call)).await
    }
}

/// Records of which anybody needs to know.
struct Records;

impl PageKind for Records {
    type Entry = (LockKey, RecordView);
    type Reply = RecordReply;

    fn script() -> &'static Script {
        &LOOK
    }

    fn names(keys: &KeySpace, key: &LockKey) -> Vec<String> {
        vec![keys.once(key)]
    }

    fn add_args(_: usize, call: &mut Cmd) {
        // No client shows a token.
        call.arg("").arg(memory_ms());
    }

    fn read(key: LockKey, reply: RecordReply) -> Option<Self::Entry> {
        let view = reply.view(None)?;
        Some((key, view))
    }
}

/// What replicas are asked about a record.
fn written<'a>(keys: &'a [&'a [u8]], token: &'a str, number: FencingToken) -> Written<'a> {
    Written { kind: "record", keys, ack: &ACK, token, number }
}

/// Waits for the server's replicas, where they must have the record; or says why it is not to be relied on.
async fn replicated(link: &Link, written: &Written<'_>, deadline: Instant) -> Result<(), String> {
    match &link.replicas {
        Some(replicas) => replicas.have(written, deadline).await,
        None => Ok(()),
    }
}

/// The same for its result.
async fn result_replicated(link: &Link, written: &Written<'_>, deadline: Instant) -> Result<(), String> {
    match &link.replicas {
        Some(replicas) => replicas.have_result(written, deadline).await,
        None => Ok(()),
    }
}

fn number(fence: Option<FencingToken>) -> String {
    fence.map_or_else(String::new, |fence| fence.get().to_string())
}

/// The error for a value that no script of ours wrote, and that was left as it was.
fn not_ours(key: &LockKey) -> StoreError {
    StoreError::Unavailable(unreadable(key))
}

/// The error for an outcome that is no answer.
fn unknown(script: &str, outcome: i64, key: &LockKey) -> StoreError {
    if outcome == NOT_OURS { not_ours(key) } else { unexpected(script, outcome) }
}

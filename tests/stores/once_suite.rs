//! What every store that keeps records must do, step by step, asked through the trait: one suite, run for each of them.

use std::time::Duration;

use bytes::Bytes;
use fencepost::lock::{Attempt, FencingToken, LeaseToken, LockKey, Note, TokenHash, Ttl};
use fencepost::once::{
    Begun, BrokenRecord, Fingerprint, GivenUp, Keep, NotWorker, Place, RecordView, RenewedWork, Stored,
    Storing, WorkResult,
};
use fencepost::store::{
    Begin, BreakRecord, Call, GiveUp, LookAtRecord, RenewWork, StoreResult, Tombstone, UndoBegin,
};
use tokio::time::Instant;

use kit::PATIENCE;
use kit::asking::LockStoreExt;
use kit::stores::AnyStore;
use kit::{for_each_record_store, for_each_record_store_with_a_clock};

mod agreement;
mod beginning;
mod breaking;
mod fingerprints;
mod leaving;
mod listing;
mod looking;
mod on_redis;
mod room;
mod storing;
mod taking_over;

/// How long a token that gave up is refused.
const MARK_TTL: Duration = Duration::from_secs(120);
/// No lease of this length ends while a test runs.
const LONG_MS: u64 = 30_000;
/// Leases that are to end have this length.
const BRIEF_MS: u64 = 60;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Somebody with a token, who may work on a record.
#[derive(Clone)]
struct Person<'a> {
    scene: &'a AnyStore,
    key: LockKey,
    token: TokenHash,
    keep: Keep,
    fingerprint: Option<Fingerprint>,
    may_take_over: bool,
    only_confirms: bool,
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).unwrap()
}

fn keep(length: Duration) -> Keep {
    Keep::new(length).unwrap()
}

fn print(text: &str) -> Option<Fingerprint> {
    Some(Fingerprint::of(text.as_bytes()).unwrap())
}

fn text(body: &'static str) -> WorkResult {
    WorkResult { status: None, content_type: None, body: Bytes::from_static(body.as_bytes()) }
}

impl<'a> Person<'a> {
    fn new(scene: &'a AnyStore, key: &str) -> Self {
        Self {
            scene,
            key: LockKey::parse(key.as_bytes()).unwrap(),
            token: LeaseToken::generate().record_hash(),
            keep: Keep::DEFAULT,
            fingerprint: None,
            may_take_over: true,
            only_confirms: false,
        }
    }

    fn with_print(self, text: &str) -> Self {
        Self { fingerprint: print(text), ..self }
    }

    fn keeping(self, length: Duration) -> Self {
        Self { keep: keep(length), ..self }
    }

    /// The same, but not willing to take over.
    fn cautious(&self) -> Self {
        Self { may_take_over: false, ..self.clone() }
    }

    /// The same, with a token that the server made.
    fn confirming(&self) -> Self {
        Self { only_confirms: true, ..self.clone() }
    }

    async fn ask<C: Call>(&self, call: C) -> C::Answer {
        self.scene.store.call(call, soon()).await.unwrap()
    }

    async fn begin_as(&self, attempt: Attempt, ttl_ms: u64) -> Begun {
        let Self { key, token, keep, fingerprint, may_take_over, only_confirms, .. } = self.clone();
        let note = Note::from_stored("somebody").unwrap();
        let ttl = ttl(ttl_ms);
        self.ask(Begin { key, token, attempt, ttl, keep, note, fingerprint, may_take_over, only_confirms })
            .await
    }

    async fn begin(&self) -> Begun {
        self.begin_as(Attempt::generate(), LONG_MS).await
    }

    /// Begins, and must be granted the place.
    #[track_caller]
    fn grant(&self) -> impl Future<Output = Place> {
        let begun = self.begin();
        let at = std::panic::Location::caller();
        async move { granted_at(begun.await, at) }
    }

    /// Is granted the place, and lets the lease end.
    async fn crash(&self) -> Place {
        let place = granted(self.begin_as(Attempt::generate(), BRIEF_MS).await);
        self.scene.pass(Duration::from_millis(BRIEF_MS + 5)).await;
        place
    }

    async fn store_for(
        &self,
        fence: Option<FencingToken>,
        keep: Option<Keep>,
        result: WorkResult,
    ) -> Storing {
        self.ask(StoreResult { key: self.key.clone(), token: self.token, fence, keep, result }).await
    }

    async fn store(&self, body: &'static str) -> Storing {
        self.store_for(None, None, text(body)).await
    }

    async fn renew_for(&self, fence: Option<FencingToken>, ttl_ms: u64) -> RenewedWork {
        self.ask(RenewWork { key: self.key.clone(), token: self.token, fence, ttl: ttl(ttl_ms) }).await
    }

    async fn renew(&self, ttl_ms: u64) -> RenewedWork {
        self.renew_for(None, ttl_ms).await
    }

    async fn give_up_leaving(&self, is_clean: bool, tombstone: Tombstone) -> GivenUp {
        self.ask(GiveUp { key: self.key.clone(), token: self.token, is_clean, tombstone }).await
    }

    async fn give_up(&self) -> GivenUp {
        self.give_up_leaving(false, Tombstone::Final).await
    }

    async fn give_up_clean(&self) -> GivenUp {
        self.give_up_leaving(true, Tombstone::Final).await
    }

    async fn undo(&self, attempt: Attempt) -> bool {
        self.ask(UndoBegin { key: self.key.clone(), token: self.token, attempt }).await
    }

    /// Is granted the place, which is undone.
    async fn undone(&self) -> Place {
        let attempt = Attempt::generate();
        let place = granted(self.begin_as(attempt, LONG_MS).await);
        assert!(self.undo(attempt).await);
        place
    }

    async fn look(&self) -> Option<RecordView> {
        self.ask(LookAtRecord { key: self.key.clone(), token: None }).await
    }

    async fn look_as_worker(&self) -> Option<RecordView> {
        self.ask(LookAtRecord { key: self.key.clone(), token: Some(self.token) }).await
    }

    async fn break_record(&self, fence: FencingToken, is_clean: bool) -> BrokenRecord {
        self.ask(BreakRecord { key: self.key.clone(), fence, is_clean }).await
    }

    /// What the record says to one who asks for its result.
    async fn result(&self) -> Stored {
        done(self.begin().await)
    }
}

fn number(place: &Place) -> FencingToken {
    place.lease.fencing_token
}

/// How many were earlier, and who was the last of them.
fn history(place: &Place) -> (u64, Option<FencingToken>) {
    (place.earlier, place.earlier_fencing_token)
}

#[track_caller]
fn granted(begun: Begun) -> Place {
    granted_at(begun, std::panic::Location::caller())
}

fn granted_at(begun: Begun, at: &std::panic::Location<'_>) -> Place {
    match begun {
        Begun::Granted(place) => place,
        other => panic!("not granted, at {at}: {other:?}"),
    }
}

#[track_caller]
fn continued(begun: Begun) -> Place {
    match begun {
        Begun::Continued(place) => place,
        other => panic!("not continued: {other:?}"),
    }
}

#[track_caller]
fn done(begun: Begun) -> Stored {
    match begun {
        Begun::Done(stored) => stored,
        other => panic!("not done: {other:?}"),
    }
}

#[track_caller]
fn stored(storing: Storing) -> (FencingToken, u64, bool) {
    match storing {
        Storing::Stored { fencing_token, kept_ms, is_late } => (fencing_token, kept_ms, is_late),
        other => panic!("not stored: {other:?}"),
    }
}

fn superseded(by: &Place) -> NotWorker {
    NotWorker::Superseded { fencing_token: number(by), is_done: false }
}

fn superseded_and_done(by: &Place) -> NotWorker {
    NotWorker::Superseded { fencing_token: number(by), is_done: true }
}

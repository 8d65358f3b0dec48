//! What a connection's timers need to know of its requests.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Version;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::application::Malformed;

/// The requests of one connection, and what is on its wire between two of them.
#[derive(Default)]
pub(super) struct Requests {
    counts: Mutex<Counts>,
    /// Whether hyper was given something to read since the last request in flight ended.
    has_begun_another: AtomicBool,
    /// Whether hyper was given something to read, or began a request, since it last found nothing more.
    is_moving: AtomicBool,
    /// Whether something that was written may still wait here.
    is_unwritten: AtomicBool,
    /// Whether it waits for the client.
    is_held_up: AtomicBool,
    /// The first request with a malformed head: how many requests came before it, and what is wrong.
    malformed: OnceLock<(usize, Malformed)>,
    /// Whether the HTTP/2 table of fields keeps so much in memory that the client must open another connection.
    has_full_table: AtomicBool,
}

#[derive(Default)]
struct Counts {
    /// The protocol of the first request; `None` before it.
    version: Option<Version>,
    begun: usize,
    in_flight: usize,
    /// When the last request in flight ended.
    quiet_since: Option<Instant>,
}

impl Requests {
    pub(super) fn version(&self) -> Option<Version> {
        self.counts.lock().version
    }

    /// For how long no request has been in flight; `None` while one is, and before the first.
    pub(super) fn quiet_for(&self) -> Option<Duration> {
        self.counts.lock().quiet_since.map(|since| since.elapsed())
    }

    /// The same, but an answer counts as in flight until all of it is written.
    pub(super) fn silent_for(&self) -> Option<Duration> {
        self.quiet_for().filter(|_| !self.is_unwritten.load(Ordering::Relaxed))
    }

    pub(super) fn note_full_table(&self) {
        self.has_full_table.store(true, Ordering::Relaxed);
    }

    /// Waits until the table is full. That is noted while the connection is read, so the task that reads it is awake.
    pub(super) async fn table_is_full(&self) {
        let is_full = |_: &mut Context<'_>| match self.has_full_table.load(Ordering::Relaxed) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        poll_fn(is_full).await;
    }

    /// Whether hyper was given something to read since the last request in flight ended.
    pub(super) fn has_begun_another(&self) -> bool {
        self.has_begun_another.load(Ordering::Relaxed)
    }

    /// Whether this is HTTP/1, and hyper has the answers to all that it has read.
    pub(super) fn are_answered_by_http1(&self) -> bool {
        let counts = self.counts.lock();
        counts.in_flight == 0 && counts.version.is_some_and(|version| version <= Version::HTTP_11)
    }

    /// Notes that hyper finds nothing more to read. Returns whether it found nothing before, either, and so has seen all that
    /// came.
    pub(super) fn come_to_rest(&self) -> bool {
        !self.is_moving.swap(false, Ordering::Relaxed)
    }

    /// Notes that the request after this many others is malformed.
    pub(super) fn note_malformed(&self, before: usize, why: Malformed) {
        self.malformed.get_or_init(|| (before, why));
    }

    /// Why the request that was begun last is malformed, if it is.
    pub(super) fn malformed(&self) -> Option<Malformed> {
        let (before, why) = self.malformed.get()?;
        (self.counts.lock().begun > *before).then_some(*why)
    }

    pub(super) fn note_read(&self) {
        self.has_begun_another.store(true, Ordering::Relaxed);
        self.is_moving.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_writing(&self) {
        self.is_unwritten.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_held_up(&self) {
        self.is_held_up.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_written(&self) {
        self.is_unwritten.store(false, Ordering::Relaxed);
        // If nothing was held up, everything was already written when the last request ended.
        if self.is_held_up.swap(false, Ordering::Relaxed)
            && let Some(since) = &mut self.counts.lock().quiet_since
        {
            *since = Instant::now();
        }
    }
}

/// One request in flight; dropped when it has been answered, or when the client has gone.
pub(super) struct InFlight(Arc<Requests>);

impl InFlight {
    pub(super) fn new(requests: &Arc<Requests>, version: Version) -> Self {
        let mut counts = requests.counts.lock();
        counts.version.get_or_insert(version);
        requests.is_moving.store(true, Ordering::Relaxed);
        counts.begun += 1;
        counts.in_flight += 1;
        counts.quiet_since = None;
        Self(Arc::clone(requests))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut counts = self.0.counts.lock();
        counts.in_flight -= 1;
        if counts.in_flight == 0 {
            counts.quiet_since = Some(Instant::now());
            self.0.has_begun_another.store(false, Ordering::Relaxed);
        }
    }
}

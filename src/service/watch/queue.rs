//! What waits to be read by one who watches.
//!
//! Readers are woken in groups, a moment after each other: however many they are, others are served in between. A reader
//! that is woken reads all that has come until then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use super::Told;

/// What may wait to be read by one who watches.
pub(super) const MOST_QUEUED: usize = 4_096;
/// How much of it is read at once: so many, and with long names only as many as have about so many bytes.
const MOST_READ: usize = 64;
const MOST_READ_BYTES: usize = 16 * 1024;
/// Readers that are woken at once.
const GROUP: usize = 64;
/// The time between groups, so that 1,000 readers are woken in 50 ms.
const BETWEEN_GROUPS: Duration = Duration::from_millis(2);

/// Those whose readers are to be woken. Each stands here once, so there are no more than watchers.
pub(super) type Line = UnboundedSender<Arc<Queue>>;

/// Wakes those in the line, until it has no other end any more.
pub(super) async fn keep_waking(mut line: UnboundedReceiver<Arc<Queue>>) {
    let mut group = Vec::with_capacity(GROUP);
    while line.recv_many(&mut group, GROUP).await > 0 {
        group.drain(..).for_each(|queue| queue.wake());
        sleep(BETWEEN_GROUPS).await;
    }
}

/// What waits to be read by one who watches.
#[derive(Default)]
pub(super) struct Queue(Mutex<Queued>);

#[derive(Default)]
struct Queued {
    told: VecDeque<Arc<Told>>,
    turn: Turn,
    is_closed: bool,
    waker: Option<Waker>,
}

/// Where the reader of a queue stands.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// There is nothing to read.
    #[default]
    None,
    /// There is, and the reader waits to be woken.
    Due,
    /// The reader was woken, and may read until nothing is left.
    Now,
}

impl Queue {
    /// Adds what is told. Returns whether the reader has to be woken for it.
    #[must_use]
    pub(super) fn push(&self, told: &Arc<Told>) -> bool {
        let mut queued = self.0.lock();
        if queued.told.len() < MOST_QUEUED {
            queued.told.push_back(told.clone());
        } else {
            queued.told.clear();
            queued.told.push_back(Arc::new(Told::missed(told.number)));
        }
        let is_first = queued.turn == Turn::None;
        if is_first {
            queued.turn = Turn::Due;
        }
        is_first
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }

    /// Forgets what waits to be read. Something must be added at once, unless nothing follows.
    pub(super) fn clear(&self) {
        self.0.lock().told.clear();
    }

    pub(super) fn wake(&self) {
        let mut queued = self.0.lock();
        queued.turn = Turn::Now;
        if let Some(waker) = queued.waker.take() {
            waker.wake();
        }
    }

    /// Says that nothing follows.
    pub(super) fn close(&self) {
        self.0.lock().is_closed = true;
        self.wake();
    }

    /// What is told next, and what else has come by now; `None` at the end.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Vec<Arc<Told>>>> {
        let mut queued = self.0.lock();
        if queued.turn == Turn::Now && !queued.told.is_empty() {
            let mut bytes = 0;
            let fits = |told: &&Arc<Told>| {
                bytes += told.about_bytes();
                bytes <= MOST_READ_BYTES
            };
            let count = queued.told.iter().take(MOST_READ).take_while(fits).count();
            let read = queued.told.drain(..count.max(1)).collect();
            if queued.told.is_empty() {
                queued.turn = Turn::None;
            }
            return Poll::Ready(Some(read));
        }
        if queued.is_closed && queued.told.is_empty() {
            return Poll::Ready(None);
        }
        queued.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use super::super::News;
    use super::*;
    use crate::lock::LockKey;

    #[test]
    fn a_reader_takes_fewer_at_once_where_their_names_are_long() {
        let read = |name_bytes: usize| {
            let (queue, key) = (Queue::default(), LockKey::parse("k".repeat(name_bytes).as_bytes()).unwrap());
            for number in 0..100 {
                let _ = queue.push(&Arc::new(Told::new(number, Some(key.clone()), News::Waiting(1))));
            }
            queue.wake();
            let mut counts = Vec::new();
            while let Poll::Ready(Some(read)) = queue.poll(&mut Context::from_waker(Waker::noop())) {
                counts.push(read.len());
            }
            counts
        };
        assert_eq!(read(10), [MOST_READ, 100 - MOST_READ]);
        let of_long_names = read(LockKey::MAX_BYTES);
        assert!(of_long_names.iter().all(|count| (1..=24).contains(count)), "{of_long_names:?}");
        assert_eq!(of_long_names.iter().sum::<usize>(), 100, "nothing is lost");
    }
}

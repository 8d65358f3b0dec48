//! How far HTTP/2 requests are read ahead of their handlers.
//!
//! A request that was read counts for nothing until it has an answer, and its handler waits in one queue with the connections. So a burst
//! on a thousand connections would be in memory as a whole before the first of it is answered, and a connection that is cut would be
//! dropped only behind all of it. Beyond a limit, connections wait in a line before they read on. None is closed for that.
//!
//! Who waits goes before who comes, and addresses take turns: each place belongs to a round, as in Goyal, Vin and Cheng, "Start-time Fair
//! Queuing", SIGCOMM 1996.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use parking_lot::Mutex;

/// So many requests may be read whose handlers have not begun. Each takes some 3 KiB.
const MOST_READ_AHEAD: usize = 2_048;
/// So many connections are called at once. Each may bring as many requests as it may have open.
const MOST_CALLED: usize = 8;

/// On all connections of a server.
#[derive(Default)]
pub(super) struct ReadAhead(Mutex<State>);

#[derive(Default)]
struct State {
    requests: usize,
    line: BTreeMap<PlaceInLine, Waker>,
    /// Those that were called and have not read since, and in which lap. They stand in the queue of all tasks, and who comes must not read
    /// before them.
    called: HashMap<PlaceInLine, u64>,
    /// How often all requests have begun.
    lap: u64,
    /// That of the one that was called last.
    round: u64,
    /// In which round the last place of an address is, of those who came in this lap.
    rounds: HashMap<IpAddr, u64>,
    last_number: u64,
}

/// The round, and a number that is given once.
pub(super) type PlaceInLine = (u64, u64);

impl ReadAhead {
    /// Whether a connection must wait before it reads more. Then it has a place in the line, and its task is woken when it is called.
    pub(super) fn must_wait(
        &self,
        place: &mut Option<PlaceInLine>,
        address: IpAddr,
        context: &Context<'_>,
    ) -> bool {
        let mut state = self.0.lock();
        let is_called = place.is_some_and(|place| state.called.remove(&place).is_some());
        let is_next = state.requests < MOST_READ_AHEAD && (is_called || state.is_empty());
        // Where there are no requests, nothing would call it.
        if state.requests == 0 || is_next {
            place.take().and_then(|place| state.line.remove(&place));
            return false;
        }
        // One that was called too early keeps its place.
        let place = *place.get_or_insert_with(|| state.place_for(address));
        state.line.insert(place, context.waker().clone());
        true
    }

    /// The connection is gone.
    pub(super) fn leaves(&self, place: PlaceInLine) {
        let mut state = self.0.lock();
        state.line.remove(&place);
        state.called.remove(&place);
    }

    /// Counts a request that was read, until its handler begins.
    pub(super) fn count(ahead: Arc<Self>) -> AheadOfHandler {
        ahead.0.lock().requests += 1;
        AheadOfHandler(ahead)
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.line.is_empty() && self.called.is_empty()
    }

    fn place_for(&mut self, address: IpAddr) -> PlaceInLine {
        let (next, last) = (self.round, self.rounds.get(&address));
        let round = last.map_or(next, |last| next.max(last + 1));
        self.rounds.insert(address, round);
        self.last_number += 1;
        (round, self.last_number)
    }

    /// Each that begins calls another connection, and the last one calls all. What was called in the lap before does not read: it cannot
    /// write for long.
    fn begins(&mut self) {
        self.requests -= 1;
        if self.requests == 0 {
            self.called.retain(|_, lap| *lap == self.lap);
            self.lap += 1;
            while self.calls_next() {}
            self.rounds.clear();
        } else if self.requests <= MOST_READ_AHEAD / 2 && self.called.len() < MOST_CALLED {
            self.calls_next();
        }
    }

    fn calls_next(&mut self) -> bool {
        let Some((place, waker)) = self.line.pop_first() else { return false };
        self.round = self.round.max(place.0);
        self.called.insert(place, self.lap);
        waker.wake();
        true
    }
}

/// A request that was read, and whose handler has not begun.
pub(in crate::server) struct AheadOfHandler(Arc<ReadAhead>);

impl Drop for AheadOfHandler {
    fn drop(&mut self) {
        self.0.0.lock().begins();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection that reads whenever it may.
    struct Reader {
        address: IpAddr,
        place: Option<PlaceInLine>,
        calls: Arc<Calls>,
    }

    impl Reader {
        fn of(last_byte: u8) -> Self {
            let address = Ipv4Addr::new(10, 0, 0, last_byte).into();
            Self { address, place: None, calls: Arc::default() }
        }

        fn must_wait(&mut self, ahead: &ReadAhead) -> bool {
            let waker = Waker::from(self.calls.clone());
            ahead.must_wait(&mut self.place, self.address, &Context::from_waker(&waker))
        }

        fn calls(&self) -> usize {
            self.calls.0.load(Ordering::Relaxed)
        }
    }

    fn full() -> (Arc<ReadAhead>, Vec<AheadOfHandler>) {
        let ahead = Arc::<ReadAhead>::default();
        let requests = (0..MOST_READ_AHEAD).map(|_| ReadAhead::count(ahead.clone())).collect();
        (ahead, requests)
    }

    #[test]
    fn who_waits_reads_before_who_comes_and_addresses_take_turns() {
        let (ahead, mut requests) = full();
        let mut line = [1, 1, 1, 2].map(Reader::of);
        assert!(line.iter_mut().all(|reader| reader.must_wait(&ahead)));
        requests.truncate(MOST_READ_AHEAD / 2 + 1);
        assert!(line.iter().all(|reader| reader.calls() == 0));
        for calls in [[1, 0, 0, 0], [1, 0, 0, 1], [1, 1, 0, 1]] {
            requests.pop();
            assert_eq!(line.each_ref().map(Reader::calls), calls);
        }
        // There is room. But one that comes now waits, and one that looks before it is called goes on waiting.
        let mut newcomer = Reader::of(3);
        assert!(newcomer.must_wait(&ahead) && line[2].must_wait(&ahead));
        requests.drain(..2);
        assert_eq!((line[2].calls(), newcomer.calls()), (1, 1));
        // None stands in the line, and those that were called go first all the same.
        let mut late = Reader::of(4);
        assert!(late.must_wait(&ahead));
        assert!(line.iter_mut().all(|reader| !reader.must_wait(&ahead)) && !newcomer.must_wait(&ahead));
        requests.pop();
        assert!(late.calls() == 1 && !late.must_wait(&ahead) && !Reader::of(1).must_wait(&ahead));
    }

    #[test]
    fn those_that_were_called_go_first_also_when_all_requests_have_begun() {
        let (ahead, mut requests) = full();
        let mut line: Vec<_> = (1..10).map(Reader::of).collect();
        assert!(line.iter_mut().all(|reader| reader.must_wait(&ahead)));
        requests.truncate(1);
        assert_eq!(line.iter().map(Reader::calls).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        requests.clear();
        assert_eq!(line[8].calls(), 1);
        // The first to look reads, whichever it is: those that were called may not.
        assert!(!Reader::of(20).must_wait(&ahead));
        requests.push(ReadAhead::count(ahead.clone()));
        let mut late = Reader::of(21);
        assert!(late.must_wait(&ahead) && !line[8].must_wait(&ahead) && !line[0].must_wait(&ahead));
        // Those that have not looked for a whole lap keep none waiting.
        for _ in 0..3 {
            requests.extend((0..2).map(|_| ReadAhead::count(ahead.clone())));
            requests.clear();
        }
        requests.push(ReadAhead::count(ahead.clone()));
        assert!(!Reader::of(22).must_wait(&ahead));
    }

    #[test]
    fn of_those_that_are_called_at_once_each_reads_at_its_first_look() {
        let (ahead, mut requests) = full();
        let mut line: Vec<_> = (1..101).map(Reader::of).collect();
        assert!(line.iter_mut().all(|reader| reader.must_wait(&ahead)));
        requests.clear();
        for reader in &mut line {
            assert!(!reader.must_wait(&ahead));
            requests.push(ReadAhead::count(ahead.clone()));
        }
    }

    #[test]
    fn one_that_is_gone_is_not_called() {
        let (ahead, mut requests) = full();
        let [mut gone, mut waits] = [1, 2].map(Reader::of);
        assert!(gone.must_wait(&ahead) && waits.must_wait(&ahead));
        ahead.leaves(gone.place.unwrap());
        requests.truncate(MOST_READ_AHEAD / 2);
        assert_eq!((gone.calls(), waits.calls()), (0, 1));
    }

    #[test]
    fn one_that_was_called_too_early_keeps_its_place() {
        let (ahead, mut requests) = full();
        let mut line = [1, 2].map(Reader::of);
        assert!(line.iter_mut().all(|reader| reader.must_wait(&ahead)));
        requests.truncate(MOST_READ_AHEAD / 2);
        requests.extend((0..MOST_READ_AHEAD / 2).map(|_| ReadAhead::count(ahead.clone())));
        assert!(line[0].must_wait(&ahead));
        requests.truncate(MOST_READ_AHEAD / 2);
        assert_eq!(line.each_ref().map(Reader::calls), [2, 0]);
        // Where all requests have begun, all are called: there is none left to call them.
        requests.clear();
        assert_eq!(line.each_ref().map(Reader::calls), [2, 1]);
        assert!(line.iter_mut().all(|reader| !reader.must_wait(&ahead)));
    }
}

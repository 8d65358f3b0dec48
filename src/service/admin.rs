//! What operators do: looking at all locks, and breaking one.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::time::count_down;
use super::{Doing, LockService, Turn};
use crate::clock::boottime;
use crate::lock::{Broken, Ended, FencingToken, Inspected, Lease, LockKey, Page};
use crate::store::{Break, Inspect, List, StoreError};

/// How many pages of lists the store is asked for at once. A page costs it far more than a lock, and those who take locks
/// must not wait for those who list.
pub(super) const MOST_LISTS: usize = 4;
/// So much time a page leaves to those who take locks.
const PAUSE_BEFORE_PAGE: Duration = Duration::from_millis(1);

impl LockService {
    /// Waits for a turn to list; tenants take turns. Drop the turn when the page is written: writing a page takes as long
    /// as finding it.
    pub async fn turn_to_list(&self, tenant: Option<&str>) -> Result<Turn, StoreError> {
        match timeout(self.store_timeout, self.lists.turn(tenant)).await {
            Ok(Some(turn)) => {
                // An embedded store answers at once. A page would then be found and written, and its turn over, in one go, and
                // thousands of pages in a row: those who would wait for their turn must come to ask for it first.
                sleep(PAUSE_BEFORE_PAGE).await;
                Ok(turn)
            }
            _ => Err(StoreError::Unavailable("too many requests ask for lists at once".to_owned())),
        }
    }

    /// Lists some of the locks that are held and within reach.
    pub async fn list(&self, _turn: &Turn, list: List) -> Result<Page, StoreError> {
        // From here on: a step that is begun late is not answered in time, and takes the connection with it.
        let (sent_at, list) = (boottime(), list.into());
        let mut page = self.look(|until| self.store.ask::<List>(&list, until)).await?;
        page.locks.iter_mut().for_each(|listed| count_down(&mut listed.lease, sent_at));
        Ok(page)
    }

    /// Breaks a lock of any holder; with a `number`, only if the grant of that number holds it.
    ///
    /// It ends one grant at most: the one that is named, or that a first look finds. It never touches a later holder,
    /// even if its command is sent again, or arrives late. What a look has shown of that grant is returned as well, for
    /// where it is not known whether it was ended.
    pub async fn break_lock(
        &self,
        key: &LockKey,
        number: Option<FencingToken>,
    ) -> (Result<Broken, StoreError>, Option<Lease>) {
        let deadline = self.deadline();
        let look = Inspect { key: key.clone(), token: None }.into();
        // A grant that is named can be ended also where it is not known who holds the lock. That needs time, too.
        let look_until = number.map_or(deadline, |_| deadline - self.store_timeout / 2);
        let looking = self.settle_from(None, look_until, |until| self.store.ask::<Inspect>(&look, until));
        let (found, seen, shows_all) = match (looking.await, number) {
            (Err(StoreError::Unknown(_)), Some(number)) => (number, None, false),
            (Err(error), _) => return (Err(nothing_done(error)), None),
            (Ok(looked), number) => match which(looked.answer, number) {
                Ok(found) => found,
                Err(answer) => return (Ok(answer), None),
            },
        };
        (self.end_grant(key, found, seen.clone(), shows_all, deadline).await, seen)
    }

    /// Ends the grant of the number that was `found`, of which this was `seen`.
    async fn end_grant(
        &self,
        key: &LockKey,
        found: FencingToken,
        seen: Option<Lease>,
        shows_all: bool,
        deadline: Instant,
    ) -> Result<Broken, StoreError> {
        let end = Break { key: key.clone(), fence: found };
        let settled = self.watch.or_unclear(key, self.settle_call(deadline, end).await)?;
        // In each of these cases, that grant does not hold the lock any more.
        self.ledger.ended(key, Ended { fencing_token: found, kept_ms: 0 });
        match settled.answer {
            Broken::Broken(Lease { slot: Some(_), .. }) => self.watch.tell(key, || Doing::Unclear),
            Broken::Broken(_) => self.watch.tell(key, || Doing::Broken(found)),
            _ if settled.in_doubt => self.watch.tell(key, || Doing::Unclear),
            _ => {}
        }
        match (settled.answer, seen) {
            // An earlier copy has ended the grant that was seen, or it has ended by itself. Both are what was asked for.
            (Broken::NotHeld | Broken::HeldByAnother, Some(seen)) if settled.in_doubt => {
                Ok(Broken::Broken(seen))
            }
            (Broken::NotHeld | Broken::HeldByAnother, None) if settled.in_doubt && !shows_all => {
                Err(StoreError::Unknown("an earlier copy of this request may have broken it".into()))
            }
            (answer, _) => Ok(answer),
        }
    }
}

/// Which grant to break, what was seen of it, and whether all holders were seen. The answer, if there is none to break.
fn which(
    looked: Inspected,
    number: Option<FencingToken>,
) -> Result<(FencingToken, Option<Lease>, bool), Broken> {
    match (looked, number) {
        (Inspected::Free { .. }, _) => Err(Broken::NotHeld),
        (Inspected::Held { sharing: Some(_), .. }, None) => Err(Broken::HeldBySeveral),
        // Of several, only the one that was named: a look shows at most a hundred of them, and the store knows all.
        (Inspected::Held { sharing: Some(sharing), .. }, Some(number)) => {
            let shows_all = sharing.holders.len() as u64 >= sharing.held;
            let is_its = |lease: &Lease| lease.fencing_token == number;
            Ok((number, sharing.holders.into_iter().find(is_its), shows_all))
        }
        (Inspected::Held { lease, .. }, Some(number)) if number != lease.fencing_token => {
            Err(Broken::HeldByAnother)
        }
        (Inspected::Held { lease, .. }, _) => Ok((lease.fencing_token, Some(lease), true)),
    }
}

/// The error of a look, which changes nothing.
pub(super) fn nothing_done(error: StoreError) -> StoreError {
    StoreError::Unavailable(error.into_reason())
}

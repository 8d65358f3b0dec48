//! How locks and marks lie in the file.

use redb::TableDefinition;

use crate::lock::{Attempt, FencingToken, LockKey, Note, Released, Slot, Slots, TokenHash};
use crate::once::{GivenUp, NotWorker};

use super::life::{Life, LifeRow, Moment, WrittenIn, life_row, restored};
use super::record::{HeldLock, Mark, Record, RecordId, Verdict};

/// Token hash, attempt (none once pinned), fencing token, note (empty for none), life.
pub(super) type LockRow<'a> = (&'a [u8; 32], Option<&'a [u8; 16]>, u64, &'a str, LifeRow);
/// The end of `max_hold` and of `min_hold`, as lives; one without length where there is none.
pub(super) type TermsRow = (LifeRow, LifeRow);
/// Slot, slots, the lock and its terms, without length where there are none.
pub(super) type SlotRow<'a> = (u16, u16, LockRow<'a>, TermsRow);
/// Final answer (0 for none), the voided attempts one after the other or the number that belongs to the answer, life.
pub(super) type MarkRow<'a> = (u8, &'a [u8], LifeRow);

/// The locks by their keys.
pub(super) const LOCKS: TableDefinition<&str, LockRow<'static>> = TableDefinition::new("locks");
/// The terms of the locks that have some.
pub(super) const TERMS: TableDefinition<&str, TermsRow> = TableDefinition::new("terms");
/// The slots of locks by key and by what tells them apart.
pub(super) const SLOTS: TableDefinition<(&str, &[u8; 32]), SlotRow<'static>> = TableDefinition::new("slots");
/// The marks by key and token hash.
pub(super) const MARKS: TableDefinition<(&str, &[u8; 32]), MarkRow<'static>> = TableDefinition::new("marks");

/// The row of a lock.
pub(super) fn lock_row(lock: &HeldLock) -> LockRow<'_> {
    (
        lock.token.as_bytes(),
        lock.attempt.as_ref().map(Attempt::as_bytes),
        lock.fence.get(),
        lock.note.stored(),
        life_row(lock.life),
    )
}

/// The row of a lock's terms, if it has some.
pub(super) fn terms_row(lock: &HeldLock) -> Option<TermsRow> {
    let row = |life: Option<Life>| life.map(life_row).unwrap_or_default();
    (lock.max_hold.is_some() || lock.min_hold.is_some()).then(|| (row(lock.max_hold), row(lock.min_hold)))
}

/// The row of a slot.
pub(super) fn slot_row(lock: &HeldLock, slot: Slot) -> SlotRow<'_> {
    (slot.number, slot.slots.get(), lock_row(lock), terms_row(lock).unwrap_or_default())
}

/// The first two columns of the row of a mark: the final answer, and the voided attempts or the answer's number.
pub(super) fn verdict_row(verdict: &Verdict) -> (u8, Vec<u8>) {
    match verdict {
        Verdict::Voided(attempts) => (0, attempts.iter().flat_map(Attempt::as_bytes).copied().collect()),
        Verdict::Final(Released::Released) => (1, Vec::new()),
        Verdict::Final(Released::NotHeld) => (2, Vec::new()),
        Verdict::Final(Released::HeldByAnother) => (3, Vec::new()),
        Verdict::GaveUp(GivenUp::GivenUp) => (4, Vec::new()),
        Verdict::GaveUp(GivenUp::AlreadyStored) => (5, Vec::new()),
        Verdict::GaveUp(GivenUp::Refused(NotWorker::NotBegun)) => (6, Vec::new()),
        Verdict::GaveUp(GivenUp::Refused(NotWorker::Superseded { fencing_token, is_done })) => {
            (if *is_done { 8 } else { 7 }, fencing_token.get().to_le_bytes().to_vec())
        }
    }
}

/// The record in a row of `SLOTS`, or `None` where the row makes no sense.
pub(super) fn read_slot(
    (key, id): (&str, &[u8; 32]),
    (slot, slots, lock, terms): SlotRow<'_>,
    now: Moment,
    written_in: WrittenIn,
) -> Option<(RecordId, Record)> {
    let slot = Slot { number: slot, slots: Slots::new(slots).filter(|_| slot > 0)? };
    let (RecordId::Lock(key), Record::Lock(lock)) = read_lock(key, lock, Some(terms), now, written_in)?
    else {
        return None;
    };
    let lock = HeldLock { slot: Some(slot), ..lock };
    let id_of_it = lock.id(&key);
    (id_of_it == RecordId::Slot(key, *id)).then_some((id_of_it, Record::Lock(lock)))
}

/// The record in a row of `LOCKS`, or `None` where the row makes no sense.
pub(super) fn read_lock(
    key: &str,
    row: LockRow<'_>,
    terms: Option<TermsRow>,
    now: Moment,
    written_in: WrittenIn,
) -> Option<(RecordId, Record)> {
    let (token, attempt, fence, note, life) = row;
    let (max_hold, min_hold) = terms.unwrap_or_default();
    let term = |row: LifeRow| (row.0 > 0).then(|| restored(row, now, written_in));
    let lock = HeldLock {
        token: TokenHash::from_bytes(*token),
        attempt: attempt.map(|bytes| Attempt::from_bytes(*bytes)),
        fence: FencingToken::new(fence)?,
        note: Note::from_stored(note)?,
        life: restored(life, now, written_in),
        max_hold: term(max_hold),
        min_hold: term(min_hold),
        slot: None,
    };
    let key = LockKey::parse(key.as_bytes()).ok()?;
    Some((RecordId::Lock(key), Record::Lock(lock)))
}

/// The record in a row of `MARKS`, or `None` where the row makes no sense.
pub(super) fn read_mark(
    (key, token): (&str, &[u8; 32]),
    (answer, attempts, life): MarkRow<'_>,
    now: Moment,
    written_in: WrittenIn,
) -> Option<(RecordId, Record)> {
    let verdict = match answer {
        0 => {
            Verdict::Voided(attempts.as_chunks().0.iter().map(|bytes| Attempt::from_bytes(*bytes)).collect())
        }
        1 => Verdict::Final(Released::Released),
        2 => Verdict::Final(Released::NotHeld),
        3 => Verdict::Final(Released::HeldByAnother),
        4 => Verdict::GaveUp(GivenUp::GivenUp),
        5 => Verdict::GaveUp(GivenUp::AlreadyStored),
        6 => Verdict::GaveUp(GivenUp::Refused(NotWorker::NotBegun)),
        7 | 8 => {
            let fencing_token = FencingToken::new(u64::from_le_bytes(attempts.try_into().ok()?))?;
            let is_done = answer == 8;
            Verdict::GaveUp(GivenUp::Refused(NotWorker::Superseded { fencing_token, is_done }))
        }
        _ => return None,
    };
    let mark = Mark { verdict, life: restored(life, now, written_in) };
    let key = LockKey::parse(key.as_bytes()).ok()?;
    Some((RecordId::Mark(key, *token), Record::Mark(mark)))
}

//! The tables of the file that one batch writes to.

use redb::{Key, Table, TableDefinition, TableError, Value, WriteTransaction};

use super::life::{Moment, life_row};
use super::record::{HeldLock, Record, RecordId};
use super::rows::{
    LOCKS, LockRow, MARKS, MarkRow, SLOTS, SlotRow, TERMS, TermsRow, lock_row, slot_row, terms_row,
    verdict_row,
};
use super::work::Work;
use super::work_rows::{FORMER, ONCE, RESULTS, WorkRow, work_row};

/// The tables by what they hold. Each is opened once for all rows of the batch, and where it has none not at all: to open one takes
/// as long as to write some rows.
pub(super) struct BatchTables<'t> {
    now: Moment,
    locks: OpenedOnce<'t, &'static str, LockRow<'static>>,
    terms: OpenedOnce<'t, &'static str, TermsRow>,
    slots: OpenedOnce<'t, (&'static str, &'static [u8; 32]), SlotRow<'static>>,
    marks: OpenedOnce<'t, (&'static str, &'static [u8; 32]), MarkRow<'static>>,
    works: OpenedOnce<'t, &'static str, WorkRow<'static>>,
    former: OpenedOnce<'t, &'static str, WorkRow<'static>>,
    results: OpenedOnce<'t, &'static str, &'static [u8]>,
}

impl<'t> BatchTables<'t> {
    pub(super) fn new(transaction: &'t WriteTransaction, now: Moment) -> Self {
        Self {
            now,
            locks: OpenedOnce::new(transaction, LOCKS),
            terms: OpenedOnce::new(transaction, TERMS),
            slots: OpenedOnce::new(transaction, SLOTS),
            marks: OpenedOnce::new(transaction, MARKS),
            works: OpenedOnce::new(transaction, ONCE),
            former: OpenedOnce::new(transaction, FORMER),
            results: OpenedOnce::new(transaction, RESULTS),
        }
    }

    /// Writes what has become of the record `id`, of which the file has `before`.
    pub(super) fn write(
        &mut self,
        id: &RecordId,
        before: Option<&Record>,
        after: Option<&Record>,
    ) -> Result<(), TableError> {
        match (id, after) {
            (RecordId::Lock(key), Some(Record::Lock(lock))) => {
                self.locks.insert(key.as_str(), lock_row(lock))?;
                self.write_terms(key.as_str(), before, terms_row(lock))
            }
            (RecordId::Lock(key), _) => {
                self.locks.remove(key.as_str())?;
                self.write_terms(key.as_str(), before, None)
            }
            (RecordId::Slot(key, id), Some(Record::Lock(lock @ HeldLock { slot: Some(slot), .. }))) => {
                self.slots.insert((key.as_str(), id), slot_row(lock, *slot))
            }
            (RecordId::Slot(key, id), _) => self.slots.remove((key.as_str(), id)),
            (RecordId::Mark(key, token), Some(Record::Mark(mark))) => {
                let (answer, attempts) = verdict_row(&mark.verdict);
                self.marks.insert((key.as_str(), token), (answer, &attempts, life_row(mark.life)))
            }
            (RecordId::Mark(key, token), _) => self.marks.remove((key.as_str(), token)),
            (RecordId::Work(key), Some(Record::Work(work))) => {
                self.works.insert(key.as_str(), work_row(work, self.now))?;
                self.write_former(key.as_str(), before, work.former.as_deref())?;
                self.write_body(key.as_str(), before, after)
            }
            (RecordId::Work(key), _) => {
                self.works.remove(key.as_str())?;
                self.write_former(key.as_str(), before, None)?;
                self.write_body(key.as_str(), before, None)
            }
        }
    }

    /// Most locks have no terms, before and after.
    fn write_terms(
        &mut self,
        key: &str,
        before: Option<&Record>,
        row: Option<TermsRow>,
    ) -> Result<(), TableError> {
        match (before, row) {
            (_, Some(row)) => self.terms.insert(key, row),
            (Some(Record::Lock(before)), None) if terms_row(before).is_some() => self.terms.remove(key),
            _ => Ok(()),
        }
    }

    /// Most were not taken over, before and after.
    fn write_former(
        &mut self,
        key: &str,
        before: Option<&Record>,
        former: Option<&Work>,
    ) -> Result<(), TableError> {
        match (before, former) {
            (_, Some(former)) => self.former.insert(key, work_row(former, self.now)),
            (Some(Record::Work(before)), None) if before.former.is_some() => self.former.remove(key),
            _ => Ok(()),
        }
    }

    /// A body is written only where there is a new one: it may be long.
    fn write_body(
        &mut self,
        key: &str,
        before: Option<&Record>,
        after: Option<&Record>,
    ) -> Result<(), TableError> {
        match (before.and_then(Record::body), after.and_then(Record::body)) {
            (before, Some(body)) if before != Some(body) => self.results.insert(key, body.as_ref()),
            (Some(_), None) => self.results.remove(key),
            _ => Ok(()),
        }
    }
}

/// A table that is opened by its first row.
struct OpenedOnce<'t, K: Key + 'static, V: Value + 'static> {
    transaction: &'t WriteTransaction,
    definition: TableDefinition<'static, K, V>,
    table: Option<Table<'t, K, V>>,
}

impl<'t, K: Key + 'static, V: Value + 'static> OpenedOnce<'t, K, V> {
    fn new(transaction: &'t WriteTransaction, definition: TableDefinition<'static, K, V>) -> Self {
        Self { transaction, definition, table: None }
    }

    fn open(&mut self) -> Result<&mut Table<'t, K, V>, TableError> {
        let table = match self.table.take() {
            Some(table) => table,
            None => self.transaction.open_table(self.definition)?,
        };
        Ok(self.table.insert(table))
    }

    fn insert<'k, 'v>(&mut self, key: K::SelfType<'k>, row: V::SelfType<'v>) -> Result<(), TableError> {
        drop(self.open()?.insert(key, row)?);
        Ok(())
    }

    fn remove<'k>(&mut self, key: K::SelfType<'k>) -> Result<(), TableError> {
        drop(self.open()?.remove(key)?);
        Ok(())
    }
}

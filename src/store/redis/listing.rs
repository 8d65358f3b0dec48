//! A page of the list of all locks, or of all records: what a scan of the servers found, with what their scripts say of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::connection::link::Link;
use super::connection::scan::PageRequest;
use super::scripts::keys::KeySpace;
use super::scripts::{self, Script, ScriptReply};
use crate::lock::{Listed, LockKey, Page};
use crate::store::{List, StoreError};

/// The most that one call of a script tells of, since all other commands wait for it.
const MOST_AT_ONCE: usize = 50;

/// What can be listed.
pub(super) trait PageKind: 'static {
    /// What a page says of one.
    type Entry: Send + 'static;
    /// What the script replies to one.
    type Reply: FromRedisValue + Send + 'static;

    /// Says for each what there is to say.
    fn script() -> &'static Script;

    /// The names that the script has to be told of one; its own comes first, and is enough.
    fn names(keys: &KeySpace, key: &LockKey) -> Vec<String>;

    /// Adds what else the script is told.
    fn add_args(names_each: usize, call: &mut Cmd);

    /// What a page says, if there is something to say.
    fn read(key: LockKey, reply: Self::Reply) -> Option<Self::Entry>;
}

/// Entries whose names may stand in one call, with those names.
struct Group {
    keys: Vec<LockKey>,
    names: Vec<String>,
}

impl RedisStore {
    /// Lists some of the locks that are held, beginning at the cursor.
    pub(super) async fn list_page(&self, request: &List, deadline: Instant) -> Result<Page, StoreError> {
        let (mut locks, next) = self.page_of::<HeldLocks>(request.into(), deadline).await?;
        locks.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Page { locks, next })
    }

    /// Some of what there is of a kind, and where to go on.
    pub(super) async fn page_of<L: PageKind>(
        &self,
        request: PageRequest<'_>,
        deadline: Instant,
    ) -> Result<(Vec<L::Entry>, Option<String>), StoreError> {
        let scan = self.servers.scan(deadline).await?;
        let walked = scan.page(&self.keys, request, deadline).await?;
        let mut by_slot = BTreeMap::<_, Vec<LockKey>>::new();
        for (server, key) in walked.found {
            by_slot.entry((server, self.keys.bucket_of(&key).0)).or_default().push(key);
        }
        let mut asked = JoinSet::new();
        for ((server, _), keys) in by_slot {
            for keys in keys.chunks(MOST_AT_ONCE) {
                asked.spawn(tell::<L>(scan.links[server].clone(), self.group::<L>(keys), deadline));
            }
        }
        let mut entries = Vec::new();
        while let Some(told) = asked.join_next().await {
            match told.map_err(|error| StoreError::Unavailable(error.to_string()))? {
                Ok(told) => entries.extend(told),
                Err(keys) => {
                    for key in keys {
                        entries.extend(self.tell_of_one::<L>(key, deadline).await?);
                    }
                }
            }
        }
        Ok((entries, walked.next))
    }

    fn group<L: PageKind>(&self, keys: &[LockKey]) -> Group {
        let names = keys.iter().flat_map(|key| L::names(&self.keys, key)).collect();
        Group { keys: keys.to_vec(), names }
    }

    /// What is known of one whose slot is on its way to another server. There only calls with a single key are certain to
    /// be answered, so the waiters of a lock are not counted.
    async fn tell_of_one<L: PageKind>(
        &self,
        key: LockKey,
        deadline: Instant,
    ) -> Result<Option<L::Entry>, StoreError> {
        let names = L::names(&self.keys, &key);
        let Some(own) = names.first() else { return Ok(None) };
        let told: Vec<L::Reply> = self
            .run_script(&key, L::script(), &[own.as_bytes()], deadline, |_, call| L::add_args(1, call))
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(told.into_iter().next().and_then(|reply| L::read(key, reply)))
    }
}

/// Asks the server at which entries were found what there is to say. Where it does not say, they are returned as they are: the
/// slot may be leaving it, or the server stops.
async fn tell<L: PageKind>(
    link: Arc<Link>,
    group: Group,
    deadline: Instant,
) -> Result<Vec<L::Entry>, Vec<LockKey>> {
    let Group { keys, names } = group;
    let names_each = names.len() / keys.len().max(1);
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let mut connection = link.connection.clone();
    let add_args = |call: &mut Cmd| L::add_args(names_each, call);
    let call = L::script().run::<Vec<L::Reply>>(&mut connection, false, &names, add_args);
    let asked_at = Instant::now();
    match link.settle(timeout_at(deadline, call).await, asked_at) {
        Ok(told) => Ok(keys.into_iter().zip(told).filter_map(|(key, reply)| L::read(key, reply)).collect()),
        Err(_) => Err(keys),
    }
}

/// Locks that are held.
struct HeldLocks;

impl PageKind for HeldLocks {
    type Entry = Listed;
    type Reply = ScriptReply;

    fn script() -> &'static Script {
        &scripts::LIST
    }

    fn names(keys: &KeySpace, key: &LockKey) -> Vec<String> {
        let queue = keys.queue_of(key);
        let [lock, _, waiting, away, _, _, held, ends, wide] = queue.in_order();
        [lock, waiting, away, held, ends, wide].map(|name| String::from_utf8_lossy(name).into_owned()).into()
    }

    fn add_args(names_each: usize, call: &mut Cmd) {
        call.arg(names_each);
    }

    fn read(key: LockKey, reply: ScriptReply) -> Option<Listed> {
        let lease = reply.lease().filter(|_| reply.outcome == 1)?;
        Some(Listed { key, lease, waiters: reply.waiters() })
    }
}

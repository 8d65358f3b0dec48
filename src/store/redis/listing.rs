//! A page of the list of all locks: what a scan of the servers found, with what their scripts say of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::connection::link::Link;
use super::scripts::{self, ScriptReply};
use crate::lock::{Listed, LockKey, Page};
use crate::store::{List, StoreError};

/// The most locks that one call of the script lists, since all other commands wait for it.
const MOST_AT_ONCE: usize = 50;

/// Locks whose names may stand in one call, with those names.
struct Group {
    keys: Vec<LockKey>,
    names: Vec<String>,
}

impl RedisStore {
    /// Lists some of the locks that are held, beginning at the cursor.
    pub(super) async fn list_page(&self, request: &List, deadline: Instant) -> Result<Page, StoreError> {
        let scan = self.servers.scan(deadline).await?;
        let walked = scan.page(&self.keys, request, deadline).await?;
        let mut by_slot = BTreeMap::<_, Vec<LockKey>>::new();
        for (server, key) in walked.found {
            by_slot.entry((server, self.keys.bucket_of(&key).0)).or_default().push(key);
        }
        let mut asked = JoinSet::new();
        for ((server, _), keys) in by_slot {
            for keys in keys.chunks(MOST_AT_ONCE) {
                asked.spawn(tell(scan.links[server].clone(), self.group(keys), deadline));
            }
        }
        let mut locks = Vec::new();
        while let Some(told) = asked.join_next().await {
            match told.map_err(|error| StoreError::Unavailable(error.to_string()))? {
                Ok(told) => locks.extend(told),
                Err(keys) => {
                    for key in keys {
                        locks.extend(self.tell_of_one(key, deadline).await?);
                    }
                }
            }
        }
        locks.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Page { locks, next: walked.next })
    }

    fn group(&self, keys: &[LockKey]) -> Group {
        let mut names = Vec::new();
        for key in keys {
            let queue = self.keys.queue_of(key);
            let [lock, _, waiting, away, ..] = queue.in_order();
            names.extend([lock, waiting, away].map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        Group { keys: keys.to_vec(), names }
    }

    /// What is known of a lock whose slot is on its way to another server. There only calls with a single key are
    /// certain to be answered, so waiters are not counted.
    async fn tell_of_one(&self, key: LockKey, deadline: Instant) -> Result<Option<Listed>, StoreError> {
        let lock = self.keys.lock(&key);
        let told: Vec<ScriptReply> = self
            .run_script(&key, &scripts::LIST, &[lock.as_bytes()], deadline, |_, call| {
                call.arg(1);
            })
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(told.into_iter().next().and_then(|reply| listed(key, &reply)))
    }
}

/// Asks the server at which locks were found who holds them. Where it does not say, they are returned as they are: the
/// slot may be leaving it, or the server stops.
async fn tell(link: Arc<Link>, group: Group, deadline: Instant) -> Result<Vec<Listed>, Vec<LockKey>> {
    let Group { keys, names } = group;
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let mut connection = link.connection.clone();
    let call = scripts::LIST.run::<Vec<ScriptReply>>(&mut connection, &names, |call| {
        call.arg(3);
    });
    match timeout_at(deadline, call).await {
        Ok(Ok(told)) => {
            Ok(keys.into_iter().zip(&told).filter_map(|(key, reply)| listed(key, reply)).collect())
        }
        Ok(Err(_)) => Err(keys),
        Err(_) => {
            link.report_broken();
            Err(keys)
        }
    }
}

/// The lock in a reply, if it is held.
fn listed(key: LockKey, reply: &ScriptReply) -> Option<Listed> {
    let lease = reply.lease().filter(|_| reply.outcome == 1)?;
    Some(Listed { key, lease, waiters: reply.waiters() })
}

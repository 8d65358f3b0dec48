//! Going through all that servers hold, a bounded piece at a time, by `SCAN`.
//!
//! A `SCAN` returns at least once each key that is there from its beginning to its end. The order belongs to the server
//! process: in another process the same position means another place. So a cursor has a check of its view, which is what
//! the scan went through, of what was listed, and of itself. The scan begins anew if the check does not fit: another
//! process, another owner of a slot, another server, another list, or a character that was lost.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use super::link::Link;
use crate::clock::part_of;
use crate::lock::{LockKey, Reach};
use crate::store::redis::scripts::keys::{KeySpace, NameKind};
use crate::store::{List, ListRecords, StoreError};

/// The most keys that one `SCAN` looks at, since all other commands wait for it.
const MOST_AT_ONCE: usize = 1_000;
/// The most of them that one page takes.
const MOST_STEPS: usize = 100;
/// The part of a page's time after which no further one is begun: the rest is for what was found.
const SCANNED_WITHIN: f64 = 0.25;

/// The servers to go through, in their order.
pub(crate) struct Scan {
    pub(crate) links: Vec<Arc<Link>>,
    view: u64,
}

/// What a page is to have.
pub(crate) struct PageRequest<'a> {
    /// Locks, or records.
    pub(crate) kind: NameKind,
    /// Which of them.
    pub(crate) reach: &'a Reach,
    /// Where to go on.
    pub(crate) cursor: Option<&'a str>,
    /// The most of them.
    pub(crate) limit: usize,
}

impl<'a> From<&'a List> for PageRequest<'a> {
    fn from(List { reach, cursor, limit }: &'a List) -> Self {
        Self { kind: NameKind::Lock, reach, cursor: cursor.as_deref(), limit: *limit }
    }
}

impl<'a> From<&'a ListRecords> for PageRequest<'a> {
    fn from(ListRecords { reach, cursor, limit }: &'a ListRecords) -> Self {
        Self { kind: NameKind::Record, reach, cursor: cursor.as_deref(), limit: *limit }
    }
}

/// What was found on the way.
pub(crate) struct Scanned {
    /// Keys of locks or records that are there, or were a moment ago, each with the number of its server in the tour, and each once.
    pub(crate) found: Vec<(usize, LockKey)>,
    /// Where to go on; `None` at the end.
    pub(crate) next: Option<String>,
}

/// Where a scan was left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ScanPosition {
    server: usize,
    position: u64,
    /// Marks of what was listed already from here on, if not all of it fitted on the page.
    told: Vec<u64>,
}

impl Scan {
    /// Through these servers, as long as `layout` too stays the same.
    pub(crate) fn new(links: Vec<Arc<Link>>, layout: &str) -> Self {
        let names = links.iter().map(|link| link.incarnation.as_str());
        let view = digest(names.chain([layout]));
        Self { links, view }
    }

    /// Finds at most `limit` of those within reach, beginning at the cursor.
    pub(crate) async fn page(
        &self,
        keys: &KeySpace,
        PageRequest { kind, reach, cursor, limit }: PageRequest<'_>,
        deadline: Instant,
    ) -> Result<Scanned, StoreError> {
        let pattern = keys.pattern_of(kind, reach.common_prefix());
        let check_of = |place: &str| {
            let view = format!("{:x}", self.view);
            // The pattern says of which kind they are, and whose.
            format!("{:016x}", digest([&*view, &*pattern, reach.name(), place]))
        };
        let own =
            cursor.and_then(|cursor| cursor.split_once('.')).filter(|(check, at)| *check == check_of(at));
        let mut place = own.and_then(|(_, at)| ScanPosition::parse(at)).unwrap_or_default();
        let stop_at = part_of(deadline, SCANNED_WITHIN);
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let mut count = piece_for(limit);
        for _ in 0..MOST_STEPS {
            let Some(link) = self.links.get(place.server) else { break };
            let (position, names) = scan(link, place.position, &pattern, count, deadline).await?;
            let mut step: Vec<_> = names
                .iter()
                .filter_map(|name| keys.key_at(kind, std::str::from_utf8(name).ok()?))
                .filter(|key| reach.has(key) && !seen.contains(key))
                .map(|key| (digest([&*link.incarnation, key.as_str()]), key))
                .filter(|(digest, _)| !place.told.contains(digest))
                .collect();
            step.sort_unstable();
            step.dedup();
            let left = limit - found.len();
            if step.len() > left && (count > 1 || !found.is_empty()) {
                if !found.is_empty() {
                    break;
                }
                count = (count / 4).max(1);
                continue;
            }
            let is_all = step.len() <= left;
            count = if step.is_empty() {
                (4 * count).min(MOST_AT_ONCE)
            } else {
                piece_for(left.saturating_sub(step.len()))
            };
            for (digest, key) in step.into_iter().take(left) {
                if !is_all {
                    place.told.push(digest);
                }
                seen.insert(key.clone());
                found.push((place.server, key));
            }
            if is_all {
                let server = place.server + usize::from(position == 0);
                place = ScanPosition { server, position, told: Vec::new() };
            }
            if found.len() == limit || Instant::now() >= stop_at {
                break;
            }
        }
        let next = (place.server < self.links.len()).then(|| {
            let at = place.to_string();
            format!("{}.{at}", check_of(&at))
        });
        Ok(Scanned { found, next })
    }
}

/// How many keys to look at, for so many entries of a page. A `SCAN` may return a few more than it was asked for.
fn piece_for(places: usize) -> usize {
    (places - places / 8).clamp(1, MOST_AT_ONCE)
}

/// One step on one server: where the next one begins, 0 at the end, and the names that were found.
async fn scan(
    link: &Link,
    position: u64,
    pattern: &str,
    count: usize,
    deadline: Instant,
) -> Result<(u64, Vec<Vec<u8>>), StoreError> {
    let mut connection = link.connection.clone();
    let (mut scan, asked_at) = (redis::cmd("SCAN"), Instant::now());
    scan.arg(position).arg("MATCH").arg(pattern).arg("COUNT").arg(count);
    let answer = timeout_at(deadline, scan.query_async(&mut connection)).await;
    // A look changes nothing.
    link.settle(answer, asked_at).map_err(|failure| StoreError::Unavailable(failure.reason))
}

impl ScanPosition {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('.');
        let (server, position) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let told = fields.map(|digest| u64::from_str_radix(digest, 16).ok()).collect::<Option<_>>()?;
        Some(Self { server, position, told })
    }
}

impl fmt::Display for ScanPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.server, self.position)?;
        self.told.iter().try_for_each(|digest| write!(f, ".{digest:016x}"))
    }
}

/// A short name for texts. It tells none of them to a reader that does not know them all.
fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    }
    let hash = hash.finalize();
    u64::from_be_bytes(std::array::from_fn(|i| hash[i]))
}

//! Who the primary is, by the word of Sentinel.
//!
//! A deposed primary may go on for many seconds as if nothing had happened, so its own word is not enough. The gateway
//! asks all sentinels each second, and believes what most of the configured ones say. They name the address and the
//! *config-epoch*, which Sentinel counts up with each failover. The gateway never follows a lower epoch than before.
//! One exception: every sentinel reports it. Then Sentinel was set up anew. If only most report it, they may have
//! forgotten failovers, or count new ones from the beginning: a primary that they do not name may be deposed, and is left.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::store::Bucket;
use crate::store::redis::address::{AddressError, RedisAddress};
use crate::store::redis::client::{Client, without_deadlines};
use crate::store::redis::failure::{trouble, trouble_of_sentinel};
use crate::store::redis::health::identity::info_field;
use crate::store::redis::node::Node;
use crate::store::redis::scripts::keys::KeySpace;
use crate::telemetry::metrics::metrics;

/// How long one sentinel may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
/// How long the others may take once most have said the same: one that is silent must not keep all from a new primary. Where most
/// have gone back to a lower epoch, each has its whole time: only the word of all is followed.
const OTHERS_ANSWER_WITHIN: Duration = Duration::from_millis(50);
/// How long what they say is no help before the log says so: a failover that is under way is soon over.
const TOLD_AFTER: Duration = Duration::from_secs(3);
const NO_MAJORITY: &str = "no majority of the sentinels agrees on the primary: a connection that stands is kept, and a failover \
                           would not be noticed";
const GONE_BACK: &str = "most sentinels have gone back to an earlier config-epoch: only a connection that stands to the server \
                         that they name is kept";

/// What sentinels say, and how many of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Primary {
    pub(crate) node: Node,
    /// The number of the failover that made it the primary.
    pub(crate) epoch: u64,
    /// Whether every sentinel says so.
    pub(crate) is_unanimous: bool,
    /// That a sentinel is named twice, if so: it has one vote.
    pub(crate) twins: Option<String>,
}

impl Primary {
    /// Why it is not followed after this epoch, if so.
    pub(crate) fn is_behind(&self, followed: u64) -> Option<String> {
        (self.epoch < followed && !self.is_unanimous).then(|| {
            format!(
                "most sentinels report config-epoch {} and name {}, but gateways have followed epoch {followed}, so it may be a \
                 deposed primary: start the other sentinels, or set them up anew; if they are gone for good, take them out of \
                 --store and restart the gateways",
                self.epoch, self.node
            )
        })
    }
}

/// The sentinels of one primary.
pub(crate) struct Sentinels {
    address: RedisAddress,
    name: String,
    members: Vec<Member>,
    /// The epoch that was followed last, by this gateway or by others.
    epoch: AtomicU64,
    /// Since when nothing that they say can be followed, and what the log says of it.
    silence: Mutex<Option<(Instant, Vec<&'static str>)>>,
}

/// One sentinel, and the connection to it while there is one.
#[derive(Clone)]
struct Member {
    client: Client,
    connection: Arc<Mutex<Option<Identified>>>,
}

/// A connection to a sentinel, with what tells that one from others.
type Identified = (MultiplexedConnection, Option<String>);
/// What one sentinel says: by which epoch which server is the primary.
type Report = (u64, Node);
/// The same, with what tells the sentinel from others.
type Signed = (Report, Option<String>);

impl Sentinels {
    /// The sentinels that the address names, and the name by which they know the primary.
    pub(crate) fn new(address: &RedisAddress, name: &str) -> Result<Self, AddressError> {
        let member = |node| {
            let client = address.sentinel_client(node)?;
            Ok(Member { client, connection: Arc::default() })
        };
        let members = address.nodes().iter().map(member).collect::<Result<_, _>>()?;
        Ok(Self {
            address: address.clone(),
            name: name.to_owned(),
            members,
            epoch: AtomicU64::new(0),
            silence: Mutex::default(),
        })
    }

    /// The primary by the word of most sentinels, or why there is none.
    pub(crate) async fn find_primary(&self) -> Result<Primary, String> {
        let (primary, behind) = self.hear(self.epoch.load(Ordering::Acquire)).await?;
        self.epoch.fetch_max(primary.epoch, Ordering::AcqRel);
        behind.map_or(Ok(primary), Err)
    }

    /// The same for a person: each sentinel is waited for, since what matters may be whether all say so.
    pub(crate) async fn find_primary_of_all(&self) -> Result<Primary, String> {
        self.ask(u64::MAX).await
    }

    /// Asks once more for the primary that was found. Its epoch is followed from now on.
    pub(super) async fn confirm(&self, found: &Primary) -> Result<Primary, String> {
        let primary = self.find_primary().await?;
        // The halves of one answer may tell of a new address under an old epoch, but not those of two.
        if (&primary.node, primary.epoch) != (&found.node, found.epoch) {
            return Err("Sentinel has another primary by now".to_owned());
        }
        let followed = self.epoch.swap(primary.epoch, Ordering::AcqRel);
        if primary.epoch < followed {
            tracing::warn!(
                epoch = primary.epoch,
                followed,
                "Sentinel was set up anew: all sentinels report a lower config-epoch, which is followed"
            );
        }
        Ok(primary)
    }

    /// Whether the sentinels have made another server the primary since, or this one once more. Where they cannot be
    /// asked, or do not agree, they have not.
    pub(crate) async fn have_left(&self, primary: &Primary) -> bool {
        match self.hear(primary.epoch).await {
            // A number that they have forgotten deposes no server. If they name another one, either may be deposed.
            Ok((now, Some(_))) => now.node != primary.node,
            Ok((now, None)) => (&now.node, now.epoch) != (&primary.node, primary.epoch),
            Err(_) => false,
        }
    }

    /// Why a server refuses this word: it knows that gateways have followed a later one. From now on this gateway knows it, too.
    pub(super) async fn why_refused(
        &self,
        primary: &Primary,
        connection: &mut MultiplexedConnection,
        keys: &KeySpace,
    ) -> Result<String, String> {
        let known = epoch_known_to(connection, keys).await.map_err(|error| trouble(&error))?;
        let known = self.epoch.fetch_max(known, Ordering::AcqRel).max(known);
        Ok(primary.is_behind(known).unwrap_or_else(|| "Sentinel has named a primary since".to_owned()))
    }

    /// What most sentinels say, and why it is not followed after this epoch, if so. The log is told if that lasts.
    async fn hear(&self, followed: u64) -> Result<(Primary, Option<String>), String> {
        let answer = self.ask(followed).await.map(|primary| {
            let behind = primary.is_behind(followed);
            (primary, behind)
        });
        self.tell(match &answer {
            Ok((_, None)) => None,
            Ok((_, Some(reason))) => Some((GONE_BACK, reason)),
            Err(reason) => Some((NO_MAJORITY, reason)),
        });
        answer
    }

    /// Tells the log once of each kind of trouble, since a failover may not be noticed, and once that it is over.
    fn tell(&self, trouble: Option<(&'static str, &String)>) {
        let mut silence = self.silence.lock();
        let Some((what, reason)) = trouble else {
            if silence.take().is_some_and(|(_, told)| !told.is_empty()) {
                metrics().sentinels_unheard.set(0);
                tracing::info!("most sentinels agree on the primary again");
            }
            return;
        };
        let (since, told) = silence.get_or_insert((Instant::now(), Vec::new()));
        if !told.contains(&what) && since.elapsed() >= TOLD_AFTER {
            told.push(what);
            metrics().sentinels_unheard.set(1);
            tracing::warn!(reason, "{what}");
        }
    }

    pub(crate) fn client_of(&self, primary: &Primary) -> Result<Client, String> {
        self.address.client(&primary.node).map_err(|error| error.to_string())
    }

    /// What most of the sentinels say. The others have but a moment more, unless it is less than this epoch, which was followed.
    async fn ask(&self, followed: u64) -> Result<Primary, String> {
        let mut asked = JoinSet::new();
        for member in &self.members {
            let (member, name) = (member.clone(), self.name.clone());
            asked.spawn(async move {
                let answer = timeout(ANSWERS_WITHIN, member.ask(&name)).await.unwrap_or_else(|_| {
                    member.forget_connection();
                    Err("a sentinel does not answer".to_owned())
                });
                let address = member.client.address().to_string();
                match answer {
                    Ok(signed) => Ok((signed, address)),
                    Err(reason) => Err((reason, address)),
                }
            });
        }
        let mut all = self.members.len();
        let (mut votes, mut reasons) = (HashMap::<Report, usize>::new(), BTreeMap::<_, BTreeSet<_>>::new());
        let (mut heard, mut twins) = (HashMap::new(), BTreeSet::new());
        loop {
            let is_settled = votes.iter().any(|((epoch, _), votes)| votes * 2 > all && *epoch >= followed);
            let patience = if is_settled { OTHERS_ANSWER_WITHIN } else { Duration::MAX };
            match timeout(patience, asked.join_next()).await {
                Ok(Some(Ok(Ok(((report, id), sentinel))))) => {
                    let former = id.and_then(|id| heard.insert((id, report.clone()), sentinel.clone()));
                    match former {
                        None => *votes.entry(report).or_default() += 1,
                        Some(former) => {
                            all -= 1;
                            twins.extend([former, sentinel]);
                        }
                    }
                }
                Ok(Some(Ok(Err((reason, sentinel))))) => {
                    reasons.entry(reason).or_default().insert(sentinel);
                }
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }
        // Each goes on until it is answered or has left its connection.
        asked.detach_all();
        let twins = (!twins.is_empty()).then(|| {
            format!(
                "{} are one sentinel, or have the same `sentinel myid`: name each once",
                twins.into_iter().collect::<Vec<_>>().join(" and ")
            )
        });
        let named: usize = votes.values().sum();
        match votes.into_iter().max_by_key(|(_, votes)| *votes) {
            Some(((epoch, node), votes)) if votes * 2 > all => {
                Ok(Primary { node, epoch, is_unanimous: votes == all, twins })
            }
            Some(_) if named * 2 > all => {
                let why = twins.map(|twins| format!(": {twins}")).unwrap_or_default();
                Err(format!("the sentinels do not agree on the primary of the name {:?}{why}", self.name))
            }
            _ => {
                // One that refuses to say it has answered, too.
                let reasons = reasons.into_iter().map(|(reason, sentinels)| {
                    format!("{reason} ({})", sentinels.into_iter().collect::<Vec<_>>().join(", "))
                });
                let reasons = reasons.chain(twins).collect::<Vec<_>>().join("; ");
                Err(format!(
                    "only {named} of {all} sentinels named a primary, which is no majority: {reasons}"
                ))
            }
        }
    }
}

impl Member {
    async fn ask(&self, name: &str) -> Result<Signed, String> {
        let answer = self.try_to_ask(name).await;
        if answer.is_err() {
            self.forget_connection();
        }
        answer.map_err(|error| trouble_of_sentinel(&error))?
    }

    /// Asks for the epoch first. Then a failover between the two answers shows a new address under the old epoch. An
    /// old address under the new epoch would let a deposed primary begin a new run of numbers.
    async fn try_to_ask(&self, name: &str) -> RedisResult<Result<Signed, String>> {
        let known = self.connection.lock().clone();
        let (mut connection, known) = match known {
            Some((connection, id)) => (connection, Some(id)),
            None => (self.client.connect(without_deadlines()).await?, None),
        };
        let other = connection.clone();
        let answer = async {
            redis::pipe()
                .cmd("SENTINEL")
                .arg("MASTER")
                .arg(name)
                .cmd("SENTINEL")
                .arg("GET-MASTER-ADDR-BY-NAME")
                .arg(name)
                .query_async::<(HashMap<String, String>, Option<(String, u16)>)>(&mut connection)
                .await
        };
        let id = async {
            match known {
                Some(id) => id,
                None => id_of(other).await,
            }
        };
        // Side by side: of a sentinel that is far away, answers one after the other would come too late.
        let (answer, id) = tokio::join!(answer, id);
        let (state, address) = answer?;
        *self.connection.lock() = Some((connection, id.clone()));
        let epoch = state.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        Ok(match (epoch, address) {
            (Some(epoch), Some((host, port))) => Ok(((epoch, Node { host, port }), id)),
            _ => Err(format!("a sentinel knows no primary of the name {name:?}")),
        })
    }

    /// The next question goes over a new one.
    fn forget_connection(&self) {
        *self.connection.lock() = None;
    }
}

/// The config-epoch by which gateways have followed a server last, or 0.
pub(crate) async fn epoch_known_to(
    connection: &mut MultiplexedConnection,
    keys: &KeySpace,
) -> RedisResult<u64> {
    let fence = keys.fence(Bucket::default());
    let epoch = redis::cmd("HGET").arg(fence).arg("epoch").query_async::<Option<u64>>(connection).await?;
    Ok(epoch.unwrap_or_default())
}

/// What tells a sentinel from others, however its address is spelled; nothing where its user may ask for neither. Its process comes
/// first: sentinels whose files were copied have one `MYID`.
async fn id_of(connection: MultiplexedConnection) -> Option<String> {
    let (mut one, mut other) = (connection.clone(), connection);
    let (info, id) = tokio::join!(
        async { redis::cmd("INFO").arg("server").query_async::<String>(&mut one).await },
        async { redis::cmd("SENTINEL").arg("MYID").query_async::<String>(&mut other).await },
    );
    info.ok().and_then(|info| info_field(&info, "run_id").map(str::to_owned)).or(id.ok())
}

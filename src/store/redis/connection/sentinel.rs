//! Who the primary is, by the word of Sentinel.
//!
//! A deposed primary may go on for many seconds as if nothing had happened, so its own word is not enough. The gateway
//! asks all sentinels each second, and believes what most of the configured ones say. They name the address and the
//! *config-epoch*, which Sentinel counts up with each failover. The gateway never follows a lower epoch than before.
//! One exception: every sentinel reports it. Then Sentinel was set up anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::store::redis::address::{AddressError, RedisAddress};
use crate::store::redis::client::{Client, without_deadlines};
use crate::store::redis::failure::trouble_of_sentinel;
use crate::store::redis::health::identity::info_field;
use crate::store::redis::node::Node;
use crate::telemetry::metrics::metrics;

/// How long one sentinel may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
/// How long the others may take once most have said the same: one that is silent must not keep all from a new primary.
const OTHERS_ANSWER_WITHIN: Duration = Duration::from_millis(50);
/// How long there is no majority before the log says so: a failover that is under way is soon over.
const TOLD_AFTER: Duration = Duration::from_secs(3);

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

/// The sentinels of one primary.
pub(crate) struct Sentinels {
    address: RedisAddress,
    name: String,
    members: Vec<Member>,
    /// The highest epoch that was believed.
    epoch: AtomicU64,
    /// Since when there is no majority, and whether the log says so.
    silence: Mutex<Option<(Instant, bool)>>,
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
        let answer = self.ask().await;
        self.tell(answer.as_ref().err());
        let primary = answer?;
        let followed = self.epoch.load(Ordering::Acquire);
        if primary.epoch < followed {
            if !primary.is_unanimous {
                return Err("most sentinels know an older primary than the one that was followed".to_owned());
            }
            tracing::warn!(
                epoch = primary.epoch,
                followed,
                "Sentinel was set up anew: all sentinels report a lower config-epoch, which is followed"
            );
        }
        self.epoch.store(primary.epoch, Ordering::Release);
        Ok(primary)
    }

    /// Whether the sentinels have made another server the primary since, or this one once more. Where they cannot be
    /// asked, or do not agree, they have not.
    pub(crate) async fn have_left(&self, primary: &Primary) -> bool {
        let answer = self.ask().await;
        self.tell(answer.as_ref().err());
        match answer {
            Ok(now) if now.epoch < primary.epoch => now.is_unanimous,
            Ok(now) => (&now.node, now.epoch) != (&primary.node, primary.epoch),
            Err(_) => false,
        }
    }

    /// Tells the log once why a failover would not be noticed, and once that it would be again.
    fn tell(&self, trouble: Option<&String>) {
        let mut silence = self.silence.lock();
        let Some(reason) = trouble else {
            if let Some((_, true)) = silence.take() {
                metrics().sentinels_unheard.set(0);
                tracing::info!("most sentinels agree on the primary again");
            }
            return;
        };
        let (since, is_told) = silence.get_or_insert((Instant::now(), false));
        if !*is_told && since.elapsed() >= TOLD_AFTER {
            *is_told = true;
            metrics().sentinels_unheard.set(1);
            tracing::warn!(
                reason,
                "no majority of the sentinels agrees on the primary: a connection that stands is kept, and a failover would not be noticed"
            );
        }
    }

    pub(crate) fn client_of(&self, primary: &Primary) -> Result<Client, String> {
        self.address.client(&primary.node).map_err(|error| error.to_string())
    }

    /// What most of the sentinels say.
    async fn ask(&self) -> Result<Primary, String> {
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
            let is_settled = votes.values().any(|votes| votes * 2 > all);
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

//! Whether a server is safe to lock on: what is refused, what is warned of, and what that puts at risk.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::RwLock;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::identity::IS_REPLICA;
use super::loading::Loading;
use super::permissions::{Permissions, records, refusal_of_writes, samples};
use super::profile::{Config, OtherStore, Profile, Version};
use super::room::{NoRecords, RoomState};
use crate::store::redis::address::{Layout, RedisAddress};
use crate::store::redis::scripts::keys::KeySpace;
use crate::store::redis::settings::{OnceMemory, RedisSettings, Risk};
use crate::store::{Bucket, StoreError};

/// The first version that has all commands of the scripts.
const OLDEST_VERSION: Version = Version(6, 2);

/// Why a server is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerRefusal {
    /// By which it is used all the same, if it can be.
    pub(crate) risk: Option<Risk>,
    pub(crate) reason: String,
    /// What of it only those are told who run the gateway.
    details: Option<String>,
}

/// With the setting that overrides it.
impl fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        self.details.as_ref().map_or(Ok(()), |details| write!(f, " {details}"))?;
        self.risk.map_or(Ok(()), |risk| write!(f, " (--redis-accept {} uses it all the same)", risk.name()))
    }
}

/// What a look at a server has found.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) profile: Profile,
    pub(crate) config: Config,
    accepts_replica: bool,
    /// Whether keys may be gone through.
    pub(crate) may_list: bool,
    pub(crate) loading: Loading,
    /// How much memory records may take.
    pub(crate) room: RoomState,
    pub(crate) refusals: Vec<ServerRefusal>,
    pub(crate) warnings: Vec<String>,
    /// That no lock is granted, as too few replicas are connected.
    pub(crate) too_few_replicas: Option<String>,
}

impl Look {
    /// Whether there is any use in a connection to this server; else why not.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.profile.identity.check(self.accepts_replica).map_err(str::to_owned)
    }

    /// Why nothing may be granted on this server, as clients are told it.
    pub(crate) fn refusal(&self) -> Option<Arc<str>> {
        let reasons: Vec<_> = self.refusals.iter().map(|refusal| &*refusal.reason).collect();
        (!reasons.is_empty()).then(|| reasons.join("; ").into())
    }

    /// Why the server grants nothing at the moment, though it is safe to lock on.
    pub(crate) fn unready(&self) -> Option<Arc<str>> {
        self.profile.unready().map(Arc::from)
    }
}

/// Whether locks may be granted on a server; closed, it says why not.
pub(crate) struct Gate(RwLock<GateState>);

/// What a look at a server comes to.
#[derive(Clone, Debug, Default)]
pub(crate) struct GateState {
    /// Why nothing may be granted.
    pub(crate) refusal: Option<Arc<str>>,
    /// Why the server itself grants nothing. It is asked all the same: that may be over by then.
    pub(crate) unready: Option<Arc<str>>,
}

impl Gate {
    pub(crate) fn new(state: GateState) -> Self {
        Self(RwLock::new(state))
    }

    pub(crate) fn set(&self, state: GateState) {
        *self.0.write() = state;
    }

    pub(crate) fn may_grant(&self) -> Result<(), StoreError> {
        said(self.0.read().refusal.as_ref())
    }

    /// Whether a request for a lock would be granted, as far as the last look can tell.
    pub(crate) fn is_ready(&self) -> Result<(), StoreError> {
        let state = self.0.read();
        said(state.refusal.as_ref().or(state.unready.as_ref()))
    }
}

fn said(reason: Option<&Arc<str>>) -> Result<(), StoreError> {
    reason.map_or(Ok(()), |reason| Err(StoreError::Unavailable(reason.to_string())))
}

/// What servers are asked, and judged by.
#[derive(Clone, Debug)]
pub(crate) struct Preflight {
    layout: Layout,
    keys: KeySpace,
    pub(super) accepted: Vec<Risk>,
    replicas_ack: u32,
    once_memory: OnceMemory,
    /// Whether a server of the store was seen to take new records. A failover may end that: so all that look at one share it.
    pub(super) some_take_records: Arc<AtomicBool>,
}

impl Preflight {
    pub(crate) fn new(address: &RedisAddress, settings: &RedisSettings) -> Self {
        let layout = address.layout().clone();
        let keys = KeySpace::new(&settings.prefix, &layout, address.database());
        let RedisSettings { replicas_ack, once_memory, ref accepted, .. } = *settings;
        let (accepted, some_take_records) = (accepted.clone(), Arc::default());
        Self { layout, keys, accepted, replicas_ack, once_memory, some_take_records }
    }

    pub(crate) fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// How many replicas must have a lock.
    pub(crate) fn replicas_ack(&self) -> u32 {
        self.replicas_ack
    }

    /// Looks at a server. Most of the configuration is taken for what is known of it, if the server was looked at before.
    ///
    /// It takes two round trips, however much is asked: of a server that is far away, answers one after the other would come
    /// too late. What the user may not ask is not asked: the server would keep a record of it, as of an attack.
    pub(crate) async fn look(
        &self,
        connection: &MultiplexedConnection,
        known: Option<Config>,
    ) -> RedisResult<Look> {
        let (keys, on_cluster, for_quorum) =
            (&self.keys, self.layout == Layout::Cluster, self.is_for_quorum());
        let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| connection.clone());
        let (mut profile, (mut permissions, may_ask_of_others)) = tokio::try_join!(
            Profile::ask(&mut first, on_cluster),
            Permissions::ask(&mut second, keys, on_cluster, self.replicas_ack > 0),
        )?;
        let keeps_records = !for_quorum && permissions.lacking_for_records.is_empty();
        let of_records = records(keys);
        let of_records: &[String] = if keeps_records { &of_records } else { &[] };
        let loading = async {
            match profile.has_append_only_file && may_ask_of_others {
                true => Loading::ask(&mut first, samples(keys), of_records).await,
                false => Ok(permissions.loading.clone()),
            }
        };
        let refused_write = async {
            match permissions.lacking.is_empty() {
                true => refusal_of_writes(&mut second, keys).await,
                false => Ok(None),
            }
        };
        let other_store = async {
            match permissions.lacking.iter().any(|call| call == "eval") {
                // On a node of a cluster, the keys of one store are on several.
                _ if profile.is_cluster_node => Ok(None),
                true => Ok((!for_quorum).then_some(OtherStore::Unknown)),
                false => OtherStore::ask(&mut third, keys, for_quorum).await,
            }
        };
        let config = async {
            match (known, permissions.may_read_config) {
                (Some(known), _) => known.ask_again(&mut fourth).await,
                (None, Some(false)) => Ok(Config::default()),
                (None, Some(true) | None) => Config::ask(&mut fourth).await,
            }
        };
        let (loading, refused_write, other_store, config) =
            tokio::try_join!(loading, refused_write, other_store, config)?;
        permissions.loading = loading;
        (profile.refused_write, profile.other_store) = (refused_write, other_store);
        profile.is_past_numbers &= !for_quorum;
        Ok(self.judge(profile, permissions, config))
    }

    fn judge(&self, profile: Profile, permissions: Permissions, config: Config) -> Look {
        let found = self.find(&profile, &permissions);
        let is_accepted = |risk| self.accepted.contains(&risk);
        let (accepted, refusals): (Vec<_>, _) =
            found.into_iter().partition(|refusal| refusal.risk.is_some_and(is_accepted));
        let accepted = accepted.into_iter().filter_map(|ServerRefusal { risk, reason, .. }| {
            Some(format!("accepted by --redis-accept {}: {reason}", risk?.name()))
        });
        let warnings = accepted.chain(self.warnings(&profile, &permissions, &config)).collect();
        let accepts_replica = self.is_named() && is_accepted(Risk::Replica);
        let Permissions { may_list, lacking_for_records, loading, .. } = permissions;
        let room = RoomState::of(&profile, self.once_memory, lacking_for_records);
        let too_few_replicas = profile.too_few_replicas(self.replicas_ack);
        Look {
            profile,
            config,
            accepts_replica,
            may_list,
            loading,
            room,
            refusals,
            warnings,
            too_few_replicas,
        }
    }

    /// Whether the servers are those of a quorum.
    pub(crate) fn is_for_quorum(&self) -> bool {
        self.layout == Layout::Quorum
    }

    /// Whether a person has chosen the server by its address.
    fn is_named(&self) -> bool {
        matches!(self.layout, Layout::Server | Layout::Quorum)
    }

    /// What speaks against a server.
    fn find(&self, profile: &Profile, permissions: &Permissions) -> Vec<ServerRefusal> {
        let mut found = Vec::new();
        let mut find = |risk, reason| found.push(ServerRefusal { risk, reason, details: None });
        // Otherwise the gateway was sent there, and no person has chosen it.
        if !profile.identity.is_primary && self.is_named() {
            find(Some(Risk::Replica), IS_REPLICA.to_owned());
        }
        if profile.evicts() {
            let policy = &profile.eviction_policy;
            let reason = format!(
                "Redis may evict held locks: its maxmemory-policy is {policy}, and must be noeviction"
            );
            find(Some(Risk::Eviction), reason);
        }
        if profile.version.is_some_and(|version| version < OLDEST_VERSION) {
            let reason =
                format!("{} is older than {OLDEST_VERSION}, which the scripts need", profile.product);
            find(Some(Risk::OldServer), reason);
        }
        if !permissions.lacking.is_empty() {
            let reason = format!("the Redis user lacks permissions: {}", permissions.lacking.join(", "));
            find(Some(Risk::MissingPermission), reason);
        }
        if let Some(OtherStore::Quorum(members)) = &profile.other_store {
            let (prefix, record) = (self.keys.prefix(), self.keys.record());
            let details = format!(
                "({members}): use that, or another --redis-prefix than {prefix}. Where that quorum is given up, stop its gateways, \
                 and delete the key {record}"
            );
            let reason = "it is part of a quorum, which grants the same locks".to_owned();
            found.push(ServerRefusal { risk: None, reason, details: Some(details) });
        }
        found
    }

    /// What does not speak against a server, and is good to know.
    fn warnings(&self, profile: &Profile, permissions: &Permissions, config: &Config) -> Vec<String> {
        let mut found: Vec<_> = profile.past_numbers().into_iter().collect();
        let mut warn = |text: &str| found.push(text.to_owned());
        match (profile.has_append_only_file, config.takes_snapshots) {
            // Even with a file, a restart keeps it out of the quorum for as long as a lease may last.
            _ if self.is_for_quorum() && profile.replicas > 0 => warn(
                "a replica is connected, which a quorum has no use for: when the first one connects, and an hour after the \
                 last one has left, the server goes into quarantine",
            ),
            _ if self.is_for_quorum() => {}
            (true, _) => match &permissions.loading {
                Loading::All => {}
                Loading::Part(reason) => warn(&format!(
                    "a restart of the server may free locks that are held, or lose results of records: it loads its append-only \
                     file as the user default, and may drop what that user may not do ({reason}). If no program needs this user, write \
                     `user default off ~* &* +@all`"
                )),
                Loading::Unknown => warn(
                    "whether a restart of the server keeps the locks that are held is not known, since the Redis user may not \
                     use ACL DRYRUN",
                ),
            },
            (false, Some(false)) => {
                warn("no persistence: a restart of the server frees every lock that is held")
            }
            (false, Some(true)) => warn(
                "snapshots only, no append-only file: a restart of the server frees the locks of the last minutes",
            ),
            (false, None) => warn(
                "no append-only file: a restart of the server frees the locks of the last minutes, or all where it \
                 takes no snapshots",
            ),
        }
        if let Some(reason) = profile.lacks_guard(config).filter(|_| !self.is_named()) {
            let stops = ", until it stops by itself, about cluster-node-timeout after the cut";
            let until = if self.layout == Layout::Cluster { stops } else { "" };
            warn(&format!(
                "{reason}: a primary that is cut off can go on granting locks that its successor grants too (I3), and \
                 its fencing tokens may go above its successor's (I2){until}"
            ));
        }
        if self.is_named() && profile.is_cluster_node {
            warn("this server is a node of a cluster: write redis+cluster://");
        }
        match &profile.other_store {
            Some(OtherStore::Single) => warn(&format!(
                "it holds, or held, locks of a gateway with redis:// under this prefix. One that still runs keeps them from ending, \
                 and the quorum grants the same locks: stop it, wait for the longest ttl, and delete the key {}",
                self.keys.fence(Bucket::default())
            )),
            Some(OtherStore::Unfounded(members)) => warn(&format!(
                "a quorum that has not begun has this server in its list ({members}). Once it begins, nothing is granted here: \
                 stop its gateways, and delete the key {}",
                self.keys.record()
            )),
            Some(OtherStore::Unknown) => warn(&format!(
                "whether it is part of a quorum, which would grant the same locks, is not known, since the Redis user may not \
                 read the key {}",
                self.keys.record()
            )),
            Some(OtherStore::Quorum(_)) | None => {}
        }
        if !permissions.has_peer_channels {
            warn(
                "the Redis user may not use the channels by which gateways tell each other what happens: clients cannot \
                 watch locks (/events)",
            );
        }
        if !permissions.has_hints {
            warn(
                "the Redis user may not use the channels that it needs: waiters learn of their turn by polling",
            );
        }
        if !permissions.may_list {
            warn("the Redis user may not use SCAN: locks cannot be listed");
        }
        if !permissions.lacking_for_records.is_empty() && !self.is_for_quorum() {
            warn(&NoRecords::MayNot(permissions.lacking_for_records.clone()).to_string());
        }
        found
    }
}

#[cfg(test)]
mod tests;

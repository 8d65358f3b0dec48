//! Who a server is, by its own word.

/// Why a replica is not used.
pub(crate) const IS_REPLICA: &str = "it is a replica, and locks need the primary";

/// Who a server is, from its `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerIdentity {
    pub(crate) run_id: String,
    pub(crate) replication_id: String,
    pub(crate) is_primary: bool,
    /// Whether the cluster works, where there is one.
    pub(crate) is_cluster_up: Option<bool>,
}

impl ServerIdentity {
    pub(crate) fn read(info: &str, on_cluster: bool) -> Self {
        let field = |name| info_field(info, name).unwrap_or_default();
        Self {
            run_id: field("run_id").to_owned(),
            replication_id: field("master_replid").to_owned(),
            is_primary: field("role") == "master",
            is_cluster_up: on_cluster.then(|| is_cluster_up(info)),
        }
    }

    /// Whether locks can be kept there; else why not.
    pub(crate) fn check(&self, accepts_replica: bool) -> Result<(), &'static str> {
        if !self.is_primary && !accepts_replica {
            return Err(IS_REPLICA);
        }
        // Under a name that does not change, a restarted server that lost its last second would repeat numbers.
        if self.run_id.is_empty() || self.replication_id.is_empty() {
            return Err("its INFO has no run_id or no master_replid");
        }
        if self.is_cluster_up == Some(false) {
            return Err("it says that the cluster is down");
        }
        Ok(())
    }

    /// The name of the server's run of numbers, or of its record in a quorum. It changes with every restart and every
    /// promotion. So it changes whenever the server may have loaded old data, or the data of another server.
    ///
    /// Half of each id is 80 random bits: enough to tell servers apart, and short enough to travel with each call.
    pub(crate) fn incarnation(&self) -> String {
        format!("{}-{}", half(&self.run_id), half(&self.replication_id))
    }

    /// Sentinel counts promotions by a number of its own, and closes the connections of a server that is deposed.
    pub(crate) fn incarnation_under_sentinel(&self) -> String {
        half(&self.run_id)
    }

    /// On a cluster connections outlive promotions: by this form `acquire.lua` knows that it must look for itself.
    pub(crate) fn incarnation_on_cluster(&self) -> String {
        format!("{}/{}", half(&self.run_id), half(&self.replication_id))
    }
}

/// The part of an incarnation of [`ServerIdentity::incarnation_on_cluster`] that a promotion changes; of others there is none.
pub(crate) fn replication_on_cluster(incarnation: &str) -> Option<&str> {
    incarnation.split_once('/').map(|(_, replication_id)| replication_id)
}

fn half(id: &str) -> String {
    id.chars().take(20).collect()
}

/// Whether a server finds, by its `CLUSTER INFO`, that the cluster works: that all slots are served, and that it reaches most primaries.
pub(crate) fn is_cluster_up(info: &str) -> bool {
    info_field(info, "cluster_state") == Some("ok")
}

/// The value of one `name:value` line of an `INFO` reply.
pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// The part of a server in an id: its process, and since when that is there.
pub(crate) fn part_of_id(run: &str, since_ms: u64, born_ms: u64) -> String {
    format!("{run:.12}/{}", since_ms.max(born_ms))
}

//! Who a server is, by its own word.

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

/// Who a server is, from its `INFO`.
pub(super) struct Identity {
    run_id: String,
    replication_id: String,
    is_primary: bool,
    /// Whether the cluster works, where there is one.
    is_cluster_up: Option<bool>,
}

impl Identity {
    pub(super) async fn ask(connection: &mut MultiplexedConnection, on_cluster: bool) -> RedisResult<Self> {
        // One call for each section, since servers before 7.0 take one at a time.
        let mut calls = redis::pipe();
        calls.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        if on_cluster {
            calls.cmd("CLUSTER").arg("INFO");
        }
        let answers: Vec<String> = calls.query_async(connection).await?;
        let field = |name| answers.iter().find_map(|answer| info_field(answer, name)).unwrap_or_default();
        Ok(Self {
            run_id: field("run_id").to_owned(),
            replication_id: field("master_replid").to_owned(),
            is_primary: field("role") == "master",
            is_cluster_up: on_cluster.then(|| field("cluster_state") == "ok"),
        })
    }

    /// Whether locks can be kept there; else why not.
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.is_primary {
            return Err("it is a replica, and locks need the primary".to_owned());
        }
        // Under a name that does not change, a restarted server that lost its last second would repeat numbers.
        if self.run_id.is_empty() || self.replication_id.is_empty() {
            return Err("its INFO has no run_id or no master_replid".to_owned());
        }
        if self.is_cluster_up == Some(false) {
            return Err("the cluster is down".to_owned());
        }
        Ok(())
    }

    /// What the server's run of numbers is named after: it changes with every restart and every promotion.
    ///
    /// Half of each id is 80 random bits: enough to tell servers apart, and short enough to travel with each call.
    pub(super) fn incarnation(&self) -> String {
        format!("{}-{}", half(&self.run_id), half(&self.replication_id))
    }

    /// Sentinel counts promotions by a number of its own, and closes the connections of a server that is deposed.
    pub(super) fn incarnation_under_sentinel(&self) -> String {
        half(&self.run_id)
    }

    /// On a cluster connections outlive promotions: by this form `acquire.lua` knows that it must look for itself.
    pub(super) fn incarnation_on_cluster(&self) -> String {
        format!("{}/{}", half(&self.run_id), half(&self.replication_id))
    }
}

fn half(id: &str) -> String {
    id.chars().take(20).collect()
}

/// The value of one `name:value` line of an `INFO` reply.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

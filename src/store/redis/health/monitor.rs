//! A server that is looked at again and again, and what the log says of it.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::preflight::{Look, Preflight};
use super::profile::Config;
use crate::store::redis::client::Client;
use crate::store::redis::settings::Risk;

/// Looks at one server again and again, and says in the log what is new about it.
pub(crate) struct ServerMonitor {
    preflight: Preflight,
    known: Mutex<LastLook>,
}

/// What a monitor knows from before.
#[derive(Default)]
struct LastLook {
    address: String,
    config: Config,
    refusals: Vec<String>,
    /// How many keys which process had evicted.
    evicted: (String, u64),
    is_evicting: bool,
    unready: Option<String>,
    warnings: Vec<String>,
    /// Whether the log says that it takes no new records.
    takes_no_records: bool,
}

impl ServerMonitor {
    pub(crate) fn new(preflight: Preflight) -> Self {
        Self { preflight, known: Mutex::default() }
    }

    /// Looks at the server to which `client` has just connected, or once more at the same as before.
    pub(crate) async fn look(
        &self,
        connection: &MultiplexedConnection,
        client: Option<&Client>,
    ) -> RedisResult<Look> {
        let config = client.is_none().then(|| self.known.lock().config.clone());
        let look = self.preflight.look(connection, config).await?;
        if let Some(client) = client {
            self.known.lock().address = client.address().to_string();
        }
        self.say(&look);
        Ok(look)
    }

    /// Where the server is that was looked at last.
    pub(crate) fn address(&self) -> String {
        self.known.lock().address.clone()
    }

    fn say(&self, look: &Look) {
        let mut known = self.known.lock();
        let address = &known.address;
        let refusals: Vec<_> = look.refusals.iter().map(ToString::to_string).collect();
        let is_in = |list: &[String], text: &&String| list.contains(text);
        for reason in refusals.iter().filter(|refusal| !is_in(&known.refusals, refusal)) {
            tracing::error!(address, reason, "nothing is granted on this Redis");
        }
        let evicted = (look.profile.identity.run_id.clone(), look.profile.evicted_keys);
        let is_evicting = evicted.0 == known.evicted.0 && evicted.1 > known.evicted.1;
        let is_accepted = self.preflight.accepted.contains(&Risk::Eviction);
        if is_evicting && !known.is_evicting && !is_accepted {
            tracing::warn!(address, "this Redis has evicted keys, and with them perhaps locks that are held");
        }
        if refusals.is_empty() && !known.refusals.is_empty() {
            tracing::info!(address, "this Redis is safe to lock on again");
        }
        let unready = look.profile.unready();
        if unready != known.unready {
            match &unready {
                Some(reason) => tracing::warn!(address, reason, "this Redis grants no lock now"),
                None => tracing::info!(address, "this Redis grants locks again"),
            }
        }
        let warnings: Vec<_> = look.warnings.iter().chain(&look.too_few_replicas).cloned().collect();
        for warning in warnings.iter().filter(|warning| !is_in(&known.warnings, warning)) {
            tracing::warn!(address, "{warning}");
        }
        for warning in known.warnings.iter().filter(|warning| !is_in(&warnings, warning)) {
            tracing::info!(address, "no longer: {warning}");
        }
        let some_take_records = &self.preflight.some_take_records;
        if look.room.refusal().is_none() && !self.preflight.is_for_quorum() {
            some_take_records.store(true, Ordering::Relaxed);
        }
        // Where none ever took any, that is no news. What its user lacks is among the warnings.
        let is_news = some_take_records.load(Ordering::Relaxed);
        let refusal = look.room.refusal().filter(|why| is_news && !why.is_of_all());
        match refusal {
            Some(reason) if !known.takes_no_records => {
                tracing::warn!(address, reason = reason.to_string(), "this Redis takes no new records");
            }
            None if known.takes_no_records && look.room.refusal().is_none() => {
                tracing::info!(address, "this Redis takes new records again");
            }
            _ => {}
        }
        known.takes_no_records = refusal.is_some();
        known.config = look.config.clone();
        (known.unready, known.refusals, known.warnings) = (unready, refusals, warnings);
        (known.evicted, known.is_evicting) = (evicted, is_evicting);
    }
}

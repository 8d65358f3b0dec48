//! The metrics of this process, as Prometheus reads them. Those of requests are where requests are answered.

use std::sync::{Arc, LazyLock};

use prometheus::{Histogram, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::connections::Connections;
use super::labels::{
    CounterTable, Counters, Histograms, LateGauges, OnceRoomGauges, States, gauge, histogram, labels,
    late_gauge, register, valid,
};
use super::process::Process;

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The buckets for times of up to a few seconds: requests, and steps at the store.
pub const SHORT_TIMES_S: &[f64] =
    &[0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// The buckets for waits in a wait queue, which last up to an hour.
const LONG_TIMES_S: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];
/// The buckets for lengths of results, up to the longest that a setting allows.
const RESULT_BYTES: &[f64] = &[64.0, 256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0];

labels! {
    /// What a store is asked to do.
    pub enum Step {
        /// To take a lock or a ticket, or to poll for a ticket.
        Acquire = "acquire",
        /// To renew a lease.
        Renew = "renew",
        /// To release a lock.
        Release = "release",
        /// To say who holds a lock.
        Inspect = "inspect",
        /// To roll back a grant that no client was told of.
        TakeBack = "take-back",
        /// To pass on an offer that none of our waiters claims.
        Decline = "decline",
        /// To break a lock.
        Break = "break",
        /// To list locks that are held.
        List = "list",
        /// To send a heartbeat.
        Beat = "beat",
        /// To say whether the store can be used.
        Check = "check",
        /// To begin a piece of work.
        Begin = "begin",
        /// To store its result.
        Store = "store",
        /// To give it up.
        GiveUp = "give-up",
    }
}

labels! {
    /// The logs.
    pub enum LogName {
        /// The normal log.
        Normal = "normal",
        /// The audit log.
        Audit = "audit",
    }
}

labels! {
    /// How a step failed at the store.
    pub enum NoAnswer {
        /// Nothing has happened.
        Unavailable = "unavailable",
        /// Something may have happened.
        Unknown = "unknown",
    }
}

labels! {
    /// How a doubt ended. A step was sent, and its answer did not come.
    pub enum DoubtEnded {
        /// The step was sent again, and was answered.
        Answered = "answered",
        /// What it may have done was rolled back.
        Undone = "undone",
        /// Neither worked: the caller was told that the result is unknown.
        Unknown = "unknown",
    }
}

labels! {
    /// How it ended when the gateway rolled something back.
    pub enum TakenBack {
        /// A lock was released.
        Freed = "freed",
        /// There was no lock to release, and none will follow.
        Voided = "voided",
        /// A lock that a connection held was released when the connection ended.
        Ended = "connection-ended",
        /// A connection ended, and its lock stays held: its token was told of a lease before that lasts longer.
        LeftToToken = "left-to-token",
        /// The store was out of reach for too long. If there is a lock, it ends at its ttl.
        GivenUp = "given-up",
    }
}

labels! {
    /// Why a connection lost its lock while it was open.
    pub enum LeaseLost {
        /// `max_hold` was reached.
        MaxHoldReached = "max-hold-reached",
        /// It was released with the token, or the store has lost it.
        Released = "released",
        /// It could not be renewed in time.
        Expired = "expired",
        /// Another token holds the lock.
        HeldByAnother = "held-by-another",
        /// Another request of the token holds the lock.
        TakenOver = "taken-over",
        /// The caller no longer has the right to hold it.
        KeyRefused = "key-refused",
        /// The gateway stops.
        ShuttingDown = "shutting-down",
    }
}

labels! {
    /// How a wait in the wait queue ended.
    pub enum WaitEnded {
        /// With the lock.
        Granted = "granted",
        /// Without it.
        NotGranted = "not-granted",
    }
}

labels! {
    /// The state of a quorum member.
    pub enum MemberState {
        /// It takes part.
        Counts = "counts",
        /// It may have forgotten something, and will take part again by itself.
        Quarantine = "quarantine",
        /// It takes part, but accepts no new lock: its memory is full, or it refuses to write.
        GrantsNothing = "grants-nothing",
        /// It cannot be reached or used, or its clock is too far behind.
        Unusable = "unusable",
    }
}

labels! {
    /// Settings that are read from files, and read again when these change.
    pub enum SettingsFile {
        /// The API keys.
        Keys = "keys",
        /// The certificate, with its key and the authorities of clients.
        Certificate = "certificate",
    }
}

/// The metrics of this process.
pub struct Metrics {
    registry: Registry,
    process: Process,
    /// How long the store took for each step.
    pub store_seconds: Histograms<Step>,
    /// Steps that the store did not answer.
    pub store_errors: CounterTable<Step, NoAnswer>,
    /// How doubts ended.
    pub doubts: Counters<DoubtEnded>,
    /// How it ended when the gateway rolled something back.
    pub takes_back: Counters<TakenBack>,
    /// Locks that connections lost.
    pub leases_lost: Counters<LeaseLost>,
    /// How long requests waited in a wait queue.
    pub wait_seconds: Histograms<WaitEnded>,
    /// Requests that wait now.
    pub waiters: IntGauge,
    /// Requests that wait for a record now.
    pub once_waiters: IntGauge,
    /// How long results are that were stored here.
    pub once_result_bytes: Histogram,
    /// How full the servers are on which records live.
    pub once_room: OnceRoomGauges,
    /// Streams of events.
    pub watchers: IntGauge,
    /// The locks that connections hold.
    pub holds: IntGauge,
    /// What is being rolled back now.
    pub takes_back_pending: IntGauge,
    /// The state of each quorum member.
    pub quorum_members: States<MemberState>,
    /// Whether no majority of the sentinels agrees on what can be followed, so that a failover may not be noticed.
    pub sentinels_unheard: IntGauge,
    /// When the served certificate expires, in seconds since 1970.
    pub certificate_expires: IntGaugeVec,
    /// Whether the gateway uses its settings files as they are now.
    pub settings_in_force: LateGauges<SettingsFile>,
    /// Whether the gateway is ready, as far as it knows.
    pub ready: IntGauge,
    /// Whether the gateway drains.
    pub draining: IntGauge,
    /// Lines that are missing in a log.
    pub log_lines_dropped: Counters<LogName>,
    /// What becomes of the connections to the gateway.
    pub connections: Arc<Connections>,
}

/// The metrics of this process.
pub fn metrics() -> &'static Metrics {
    static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);
    &METRICS
}

impl Metrics {
    fn new() -> Self {
        let registry = Registry::new();
        let all = &registry;
        let gauge = |name, help| gauge(all, name, help);
        Self {
            process: Process::register(all),
            store_seconds: Histograms::register(
                all,
                "fencepost_store_seconds",
                "How long the store took to do, or not to do, one step.",
                "step",
                SHORT_TIMES_S,
            ),
            store_errors: CounterTable::register(
                all,
                "fencepost_store_errors_total",
                "Steps that the store did not answer: certainly nothing happened, or it is not known.",
                ["step", "kind"],
            ),
            doubts: Counters::register(
                all,
                "fencepost_doubts_total",
                "Requests of which a step was sent and not answered, by how that ended.",
                "ended",
            ),
            takes_back: Counters::register(
                all,
                "fencepost_takes_back_total",
                "Grants and places of clients that left, by what became of them.",
                "result",
            ),
            leases_lost: Counters::register(
                all,
                "fencepost_leases_lost_total",
                "Locks that were lost by the connection that held them.",
                "reason",
            ),
            wait_seconds: Histograms::register(
                all,
                "fencepost_wait_seconds",
                "How long requests waited in the queue.",
                "ended",
                LONG_TIMES_S,
            ),
            waiters: gauge("fencepost_waiters", "Requests that wait in a queue here."),
            once_waiters: gauge("fencepost_once_waiters", "Requests that wait for a record here."),
            once_result_bytes: histogram(
                all,
                "fencepost_once_result_bytes",
                "How long the results are that were stored here.",
                RESULT_BYTES,
            ),
            once_room: OnceRoomGauges::register(all),
            watchers: gauge("fencepost_watchers", "Streams of events that are open here."),
            holds: gauge("fencepost_holds", "Locks that connections hold here."),
            takes_back_pending: gauge(
                "fencepost_takes_back_pending",
                "Grants and places that are being taken back.",
            ),
            quorum_members: States::register(
                all,
                "fencepost_quorum_members",
                "The servers of the quorum: 1 for the status that each has now.",
                ["server", "status"],
            ),
            sentinels_unheard: gauge(
                "fencepost_sentinels_unheard",
                "1 while no majority of the sentinels agrees on the primary, or most report an earlier failover than was followed, else 0.",
            ),
            certificate_expires: late_gauge(
                all,
                "fencepost_tls_certificate_expiry_timestamp_seconds",
                "When the certificate that is served expires, in seconds since 1970.",
            ),
            settings_in_force: LateGauges::register(
                all,
                "fencepost_settings_file_in_force",
                "1 if the gateway uses this settings file as it is now, 0 if it could not read it and uses an earlier one.",
                "file",
            ),
            ready: gauge("fencepost_ready", "1 if the gateway can use its store and does not stop, else 0."),
            draining: gauge("fencepost_draining", "1 while the gateway finishes what it has begun, to stop."),
            log_lines_dropped: Counters::register(
                all,
                "fencepost_log_lines_dropped_total",
                "Lines that are missing in a log, since its reader or its disk could not follow.",
                "log",
            ),
            connections: Arc::new(Connections::register(all)),
            registry,
        }
    }

    /// The registry, for further metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Sets the metric that says which program this is. Must be called once.
    pub fn set_build(&self, store: &'static str) {
        let about =
            Opts::new("fencepost_build_info", "The version of the program, and where locks live; always 1.");
        let info = valid(IntGaugeVec::new(about, &["version", "store"]));
        info.with_label_values(&[env!("CARGO_PKG_VERSION"), store]).set(1);
        register(&self.registry, info);
    }

    /// All of them, in the text form of Prometheus.
    pub fn text(&self) -> String {
        self.process.read();
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

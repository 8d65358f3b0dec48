//! Metrics with labels. The values of the labels are known when the program is built, or are in its settings: no client
//! can add one. Each value has its place in a table, so counting looks nothing up.

use std::marker::PhantomData;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// A label, which is the set of its values.
pub trait Label: Copy {
    /// The names of all values.
    fn names() -> Vec<&'static str>;

    /// The place of this value among them.
    fn index(self) -> usize;
}

/// Makes an enum whose variants are the values of a [`Label`], each with its name.
macro_rules! labels {
    ($(#[$about:meta])* $visibility:vis enum $label:ident {
        $($(#[$about_value:meta])* $value:ident = $name:literal,)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "a value is shown as zero, also where nothing counts it yet")]
        $visibility enum $label {
            $($(#[$about_value])* $value,)+
        }

        impl $label {
            /// The name of this value.
            #[allow(dead_code, reason = "not every label is named elsewhere too")]
            $visibility const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl $crate::telemetry::Label for $label {
            fn names() -> Vec<&'static str> {
                vec![$($name,)+]
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use labels;

/// A counter for each value of a label.
#[derive(Debug)]
pub struct Counters<L>(Vec<IntCounter>, PhantomData<fn(L)>);

impl<L: Label> Counters<L> {
    /// All counters begin at zero and are shown from the start. Otherwise the first increase could not be seen as one.
    pub fn register(registry: &Registry, name: &str, help: &str, label: &str) -> Self {
        let family = valid(IntCounterVec::new(Opts::new(name, help), &[label]));
        let all = L::names().into_iter().map(|value| family.with_label_values(&[value])).collect();
        register(registry, family);
        Self(all, PhantomData)
    }

    /// Adds one.
    pub fn count(&self, value: L) {
        self.add(value, 1);
    }

    /// Adds this number.
    pub fn add(&self, value: L, more: u64) {
        if let Some(counter) = self.0.get(value.index()) {
            counter.inc_by(more);
        }
    }

    /// The current count.
    pub fn get(&self, value: L) -> u64 {
        self.0.get(value.index()).map_or(0, IntCounter::get)
    }
}

/// A counter for each pair of the values of two labels.
pub struct CounterTable<A, B> {
    rows: Vec<Vec<IntCounter>>,
    labels: PhantomData<fn(A, B)>,
}

impl<A: Label, B: Label> CounterTable<A, B> {
    /// Like [`Counters::register`].
    pub fn register(registry: &Registry, name: &str, help: &str, labels: [&str; 2]) -> Self {
        let family = valid(IntCounterVec::new(Opts::new(name, help), &labels));
        let row = |a| B::names().into_iter().map(|b| family.with_label_values(&[a, b])).collect();
        let rows = A::names().into_iter().map(row).collect();
        register(registry, family);
        Self { rows, labels: PhantomData }
    }

    /// Adds one.
    pub fn count(&self, a: A, b: B) {
        if let Some(counter) = self.rows.get(a.index()).and_then(|row| row.get(b.index())) {
            counter.inc();
        }
    }
}

/// A histogram of times for each value of a label.
pub struct Histograms<L>(Vec<Histogram>, PhantomData<fn(L)>);

impl<L: Label> Histograms<L> {
    /// With the upper bounds of its buckets, in seconds.
    pub fn register(registry: &Registry, name: &str, help: &str, label: &str, bounds_s: &[f64]) -> Self {
        let about = HistogramOpts::new(name, help).buckets(bounds_s.to_vec());
        let family = valid(HistogramVec::new(about, &[label]));
        let all = L::names().into_iter().map(|value| family.with_label_values(&[value])).collect();
        register(registry, family);
        Self(all, PhantomData)
    }

    /// Adds one observation.
    pub fn observe(&self, value: L, took: Duration) {
        if let Some(histogram) = self.0.get(value.index()) {
            histogram.observe(took.as_secs_f64());
        }
    }
}

/// The states of things that the settings name. There is a gauge for each thing and state, and it is 1 for the current
/// state.
pub struct States<L>(IntGaugeVec, PhantomData<fn(L)>);

impl<L: Label> States<L> {
    /// A thing is shown from its first [`Self::set`] on.
    pub fn register(registry: &Registry, name: &str, help: &str, labels: [&str; 2]) -> Self {
        let family = valid(IntGaugeVec::new(Opts::new(name, help), &labels));
        register(registry, family.clone());
        Self(family, PhantomData)
    }

    /// The thing is in this state now, and in no other.
    pub fn set(&self, thing: &str, state: L) {
        for (index, name) in L::names().into_iter().enumerate() {
            self.0.with_label_values(&[thing, name]).set(i64::from(index == state.index()));
        }
    }
}

/// A late gauge for each value of a label.
pub struct LateGauges<L>(IntGaugeVec, PhantomData<fn(L)>);

impl<L: Label> LateGauges<L> {
    /// As the other metrics.
    pub fn register(registry: &Registry, name: &str, help: &str, label: &str) -> Self {
        let family = valid(IntGaugeVec::new(Opts::new(name, help), &[label]));
        register(registry, family.clone());
        Self(family, PhantomData)
    }

    /// Shows this number from now on.
    pub fn set(&self, of: L, value: i64) {
        if let Some(name) = L::names().get(of.index()) {
            self.0.with_label_values(&[name]).set(value);
        }
    }
}

/// How full servers are on which records live: what they use, and from how much on no new record is begun.
pub struct OnceRoomGauges([IntGaugeVec; 2]);

impl OnceRoomGauges {
    /// A server is shown while there is a connection to it.
    pub fn register(registry: &Registry) -> Self {
        let about = [
            ("fencepost_once_room_used_bytes", "How much of its memory a Redis server with records uses."),
            (
                "fencepost_once_room_limit_bytes",
                "From how many used bytes on a Redis server gets no new records.",
            ),
        ];
        Self(about.map(|(name, help)| {
            let family = valid(IntGaugeVec::new(Opts::new(name, help), &["server"]));
            register(registry, family.clone());
            family
        }))
    }

    /// Shows these numbers of a server from now on.
    pub fn show(&self, server: &str, used_bytes: u64, limit_bytes: u64) {
        for (family, bytes) in self.0.iter().zip([used_bytes, limit_bytes]) {
            family.with_label_values(&[server]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Shows nothing of a server any more.
    pub fn hide(&self, server: &str) {
        for family in &self.0 {
            // It may be hidden already.
            let _ = family.remove_label_values(&[server]);
        }
    }
}

/// A number that goes up and down.
pub(super) fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    let gauge = valid(IntGauge::with_opts(Opts::new(name, help)));
    register(registry, gauge.clone());
    gauge
}

/// A gauge without labels that is hidden until it is set for the first time: a zero would look like a value.
pub(super) fn late_gauge(registry: &Registry, name: &str, help: &str) -> IntGaugeVec {
    let family = valid(IntGaugeVec::new(Opts::new(name, help), &[]));
    register(registry, family.clone());
    family
}

/// How often a number was within which bounds.
pub(super) fn histogram(registry: &Registry, name: &str, help: &str, bounds: &[f64]) -> Histogram {
    let about = HistogramOpts::new(name, help).buckets(bounds.to_vec());
    let histogram = valid(Histogram::with_opts(about));
    register(registry, histogram.clone());
    histogram
}

/// A number that only goes up.
pub(super) fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    let counter = valid(IntCounter::with_opts(Opts::new(name, help)));
    register(registry, counter.clone());
    counter
}

/// Registers a metric, so that it is shown.
pub(super) fn register(registry: &Registry, metric: impl Collector + 'static) {
    valid(registry.register(Box::new(metric)));
}

/// Names, bounds and labels are in the source. So an error in one of them shows at the first start.
#[expect(clippy::expect_used, reason = "a metric that is not valid is a fault of the program")]
pub(super) fn valid<T>(metric: prometheus::Result<T>) -> T {
    metric.expect("a valid metric")
}

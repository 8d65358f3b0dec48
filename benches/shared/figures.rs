//! What many values come down to.

use serde::Serialize;

/// The median, the least and the most.
#[derive(Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

pub fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_unstable_by(f64::total_cmp);
    Spread { median: values[values.len() / 2], least: values[0], most: values[values.len() - 1] }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = formatter.precision().unwrap_or(0);
        write!(formatter, "{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.least, self.most)
    }
}

/// The value below which so many percent of sorted ones lie.
pub fn percentile(sorted_ns: &[u64], percent: usize) -> f64 {
    let at = (sorted_ns.len() * percent / 100).min(sorted_ns.len().saturating_sub(1));
    sorted_ns.get(at).map_or(f64::NAN, |ns| *ns as f64)
}

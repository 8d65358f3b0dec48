//! The numbers of a gateway, as a collector reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::{Client, Gateway};

/// All samples at one moment, by their names with labels.
pub struct Scrape(pub BTreeMap<String, f64>);

impl Scrape {
    pub async fn of(address: SocketAddr) -> Self {
        let answer = Client::new(address).get("/metrics").send().await.expect(200);
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        Self::read(std::str::from_utf8(&answer.body).unwrap())
    }

    /// Reads the page, and fails the test where a line has not the form that Prometheus asks for.
    pub fn read(page: &str) -> Self {
        let mut samples = BTreeMap::new();
        let mut family = ("", "");
        for line in page.lines() {
            if let Some(about) = line.strip_prefix("# HELP ") {
                assert!(about.split_once(' ').is_some_and(|(_, text)| text.ends_with('.')), "{line}");
                continue;
            }
            if let Some(about) = line.strip_prefix("# TYPE ") {
                family = about.split_once(' ').unwrap();
                assert_eq!(family.0.ends_with("_total"), family.1 == "counter", "{line}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let suffixes: &[_] = if family.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let is_of_family = suffixes.iter().any(|suffix| name == format!("{}{suffix}", family.0));
            assert!(is_of_family, "{line} stands below {family:?}");
            let is_ours = name.starts_with("fencepost_") || name.starts_with("process_");
            assert!(is_ours && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
            let before = samples.insert(series.to_owned(), value.parse().unwrap());
            assert!(before.is_none(), "twice: {line}");
        }
        Self(samples)
    }

    #[track_caller]
    pub fn get(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("there is no {series}"))
    }

    pub fn requests(&self, operation: &str, outcome: &str) -> f64 {
        self.get(&format!("fencepost_requests_total{{operation=\"{operation}\",outcome=\"{outcome}\"}}"))
    }

    /// The names of all metrics.
    pub fn names(&self) -> BTreeSet<&str> {
        let names = self.0.keys().map(|series| series.split('{').next().unwrap());
        names.map(without_suffix).collect()
    }

    /// The names of all series.
    pub fn series(&self) -> BTreeSet<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// Where a gateway says that its metrics are.
pub fn metrics_address(gateway: &Gateway) -> SocketAddr {
    let line = gateway.log().into_iter().find(|line| line.contains("metrics are at http://")).unwrap();
    line.split("metrics are at http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap()
}

/// What a histogram is called, by one of its series.
pub fn without_suffix(name: &str) -> &str {
    // What is measured is a time or a length; `…_total` and other names stay.
    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    of_histogram.filter(|name| name.ends_with("_seconds") || name.ends_with("_bytes")).unwrap_or(name)
}

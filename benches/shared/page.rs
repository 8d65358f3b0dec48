//! Where results are kept: in a file of the day, and as tables on the page about measurements.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use jiff::Timestamp;
use serde::Serialize;

/// Where others used a larger part of the processors than this, they were measured too.
const MOST_OF_OTHERS: f64 = 0.03;

/// What is to be said beside the verdicts if others used so many cores.
pub fn note_on_others(cores: f64) -> String {
    let part = cores / available_parallelism().unwrap().get() as f64;
    if part <= MOST_OF_OTHERS {
        return String::new();
    }
    let percent = part * 100.0;
    format!(
        "**Others took up to {percent:.0} % of the processors' time**, stolen time among it: these verdicts are worth little.\n\n"
    )
}

/// The date in UTC.
pub fn today() -> String {
    Timestamp::now().to_string().split('T').next().unwrap().to_owned()
}

pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

/// A line for each.
pub fn json_lines(values: &[impl Serialize]) -> String {
    let lines: Vec<_> = values.iter().map(json).collect();
    format!("[\n{}\n]", lines.join(",\n"))
}

/// The folder of all measurements.
pub fn benches() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches")
}

/// The page about measurements.
pub struct Page {
    pub path: PathBuf,
    /// Up to the tables, and from their end on; both with the line that says who writes what stands between.
    before: String,
    after: String,
}

impl Page {
    /// Reads what is to stay, before anything is measured: where there is no place for the tables of `command` it would be in
    /// vain.
    pub fn read(command: &str) -> Self {
        let path = benches().join("README.md");
        let text = fs::read_to_string(&path).unwrap();
        let [begin, end] = ["begin", "end"].map(|word| format!("<!-- written by `{command}`: {word} -->\n"));
        let (before, rest) = text.split_once(&begin).expect("the page says where the tables begin");
        let (_, after) = rest.split_once(&end).expect("the page says where the tables end");
        Self { path, before: format!("{before}{begin}"), after: format!("{end}{after}") }
    }

    /// The page with these tables in the place of those before.
    pub fn with(&self, tables: &str) -> String {
        format!("{}\n{tables}\n{}", self.before, self.after)
    }
}

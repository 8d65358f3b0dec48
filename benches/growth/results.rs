//! Where results are kept: all of them in a file of the day, pictures beside it, and tables on the page about
//! measurements.

use std::fs;
use std::path::PathBuf;

use serde::de::IgnoredAny;

use crate::api_keys::ApiKeys;
use crate::connections::Connections;
use crate::expiry::Expiry;
use crate::keys::Keys;
use crate::live::Live;
use crate::machine::Machine;
use crate::report;
use crate::shared::page::{Page, benches, json, json_lines, note_on_others, today};
use crate::waiters::Waiters;

pub struct Results {
    /// In UTC.
    date: String,
    machine: Machine,
    pub live: Vec<Live>,
    pub keys: Vec<Keys>,
    pub waiters: Vec<Waiters>,
    pub expiry: Vec<Expiry>,
    pub connections: Vec<Connections>,
    pub api_keys: Vec<ApiKeys>,
}

impl Results {
    /// None yet.
    pub fn here() -> Self {
        let date = today();
        let (live, keys, waiters, expiry, connections, api_keys) = Default::default();
        Self { date, machine: Machine::here(), live, keys, waiters, expiry, connections, api_keys }
    }

    /// All of it for people.
    pub fn to_markdown(&self) -> String {
        let of_keys = self.api_keys.iter().map(|row| &row.compared);
        let of_waiters = self.waiters.iter().map(|row| &row.compared);
        let compared = self.live.iter().map(|row| &row.compared).chain(of_waiters).chain(of_keys);
        let others_cores = compared.map(|compared| compared.others_cores).fold(0.0, f64::max);
        let busy = note_on_others(others_cores);
        let plots = report::plots(self);
        let pictures = plots.iter().map(|plot| format!("![{}](plots/{}.svg)\n", plot.title, plot.file));
        format!(
            "{}: {}.\n\n{busy}{}{}",
            self.date,
            self.machine,
            report::tables(self),
            pictures.collect::<Vec<_>>().join("\n")
        )
    }

    /// All of it, with a line for each row, so that two files can be compared.
    pub fn to_json(&self) -> String {
        let Self { date, machine, live, keys, waiters, expiry, connections, api_keys } = self;
        let fields = [
            ("date", json(date)),
            ("machine", json(machine)),
            ("live", json_lines(live)),
            ("keys", json_lines(keys)),
            ("waiters", json_lines(waiters)),
            ("expiry", json_lines(expiry)),
            ("connections", json_lines(connections)),
            ("api_keys", json_lines(api_keys)),
        ];
        let fields = fields.map(|(name, value)| format!("\"{name}\": {value}"));
        let text = format!("{{\n{}\n}}\n", fields.join(",\n"));
        assert!(serde_json::from_str::<IgnoredAny>(&text).is_ok(), "what is put together here is JSON");
        text
    }

    /// Writes all, and says where.
    pub fn keep(&self, page: &Page) -> Vec<PathBuf> {
        let mut files = vec![
            (benches().join("results").join(format!("growth-{}.json", self.date)), self.to_json()),
            (page.path.clone(), page.with(&self.to_markdown())),
        ];
        for plot in report::plots(self) {
            files.push((benches().join("plots").join(format!("{}.svg", plot.file)), plot.to_svg()));
        }
        for (path, text) in &files {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        files.into_iter().map(|(path, _)| path).collect()
    }
}

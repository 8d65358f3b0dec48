//! Where results are kept: all of them in a file of the day, and the tables on the page about measurements.

use std::fs;
use std::path::PathBuf;

use serde::de::IgnoredAny;

use crate::goals::Goal;
use crate::idle::Idle;
use crate::machine::Machine;
use crate::report;
use crate::shared::page::{MOST_OTHERS_CORES, Page, benches, json, json_lines};
use crate::summary::Summary;

pub struct Results<'a> {
    /// In UTC.
    pub date: String,
    pub machine: Machine,
    pub replies_checked: u64,
    pub goals: Vec<Goal>,
    pub idle_connections: Vec<Idle>,
    pub rows: Vec<Summary<'a>>,
}

impl Results<'_> {
    /// All of it for people.
    pub fn to_markdown(&self) -> String {
        let Self { date, machine, replies_checked, goals, idle_connections, rows } = self;
        let others_cores = rows.iter().map(|row| row.others_cores.median).fold(0.0, f64::max);
        let busy = if others_cores > MOST_OTHERS_CORES {
            format!(
                "**The machine was busy with something else**, with {others_cores:.2} cores: these \
                 figures are worth little.\n\n"
            )
        } else {
            String::new()
        };
        format!(
            "{date}: {machine}. {replies_checked} replies were checked.\n\n{busy}{}\n{}{}",
            report::goals(goals),
            report::tables(rows),
            report::idle(idle_connections),
        )
    }

    /// All of it, with a line for each row, so that two files can be compared.
    pub fn to_json(&self) -> String {
        let Self { date, machine, replies_checked, goals, idle_connections, rows } = self;
        let fields = [
            ("date", json(date)),
            ("machine", json(machine)),
            ("replies_checked", json(replies_checked)),
            ("goals", json_lines(goals)),
            ("idle_connections", json_lines(idle_connections)),
            ("rows", json_lines(rows)),
        ];
        let fields = fields.map(|(name, value)| format!("\"{name}\": {value}"));
        let text = format!("{{\n{}\n}}\n", fields.join(",\n"));
        assert!(serde_json::from_str::<IgnoredAny>(&text).is_ok(), "what is put together here is JSON");
        text
    }

    /// Writes both, and says where.
    pub fn keep(&self, page: &Page) -> [PathBuf; 2] {
        let file = benches().join("results").join(format!("{}.json", self.date));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, self.to_json()).unwrap();
        fs::write(&page.path, page.with(&self.to_markdown())).unwrap();
        [file, page.path.clone()]
    }
}

//! Where results are kept: all of them in a file of the day, and the tables on the page about measurements.

use std::fs;
use std::path::PathBuf;

use kit::plot::Plot;
use serde::de::IgnoredAny;

use crate::goals::Goal;
use crate::idle::Idle;
use crate::machine::Machine;
use crate::shared::page::{Page, benches, json, json_lines, note_on_others};
use crate::summary::Summary;
use crate::{plots, report};

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
        let busy = note_on_others(others_cores);
        let plots = plots::plots(rows);
        let picture =
            |(plot, told): &(Plot, &str)| format!("![{}](plots/{}.svg)\n\n{told}\n\n", plot.title, plot.file);
        let pictures: String = plots.iter().map(picture).collect();
        format!(
            "{date}: {machine}. {replies_checked} replies were checked.\n\n{busy}{pictures}{}\n{}{}",
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

    /// Writes all, and says where.
    pub fn keep(&self, page: &Page) -> Vec<PathBuf> {
        let mut files = vec![
            (benches().join("results").join(format!("{}.json", self.date)), self.to_json()),
            (page.path.clone(), page.with(&self.to_markdown())),
        ];
        for (plot, _) in plots::plots(&self.rows) {
            files.push((benches().join("plots").join(format!("{}.svg", plot.file)), plot.to_svg()));
        }
        for (path, text) in &files {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        files.into_iter().map(|(path, _)| path).collect()
    }
}

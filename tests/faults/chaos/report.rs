//! What was done and what was survived, as a page with pictures that needs nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use kit::history::{Answer, Fault, History, Operation};
use kit::plot::{Line, Plot, Point};
use kit::resource::Discipline;

use super::DISCIPLINES;

/// So long before a time without service what was done may be its cause.
const BEFORE_US: u64 = 2_000_000;
/// As many as can be told apart.
const MOST_POINTS: u64 = 120;
const STYLE: &str = "body{font:16px sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}\
     table{border-collapse:collapse}td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:left}\
     td:last-child{text-align:right}";

/// What the resources of each discipline had come to at one moment: updates, and those of them that were lost.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    pub at_us: u64,
    pub of: [(u64, u64); 3],
}

pub struct Report {
    store: String,
    began_us: u64,
    rounds: Vec<History>,
    violations: Vec<String>,
    pub losses: Vec<Losses>,
}

/// The longest time in which no client was told what became of its request, although some asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub ms: u64,
    pub start_us: u64,
    /// What was done shortly before, and meanwhile.
    pub faults: Vec<String>,
}

impl Report {
    pub fn new(store: &str, began_us: u64) -> Self {
        Self {
            store: store.to_owned(),
            began_us,
            rounds: Vec::new(),
            violations: Vec::new(),
            losses: Vec::new(),
        }
    }

    pub fn add(&mut self, history: History, violations: Vec<String>) {
        self.rounds.push(history);
        self.violations.extend(violations);
    }

    pub fn violations(&self) -> Vec<&str> {
        self.violations.iter().map(String::as_str).collect()
    }

    pub fn lost_by(&self, discipline: Discipline) -> u64 {
        let at = DISCIPLINES.iter().position(|one| *one == discipline).unwrap();
        self.losses.last().map_or(0, |losses| losses.of[at].1)
    }

    fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.rounds.iter().flat_map(|round| &round.operations)
    }

    fn seconds_since_begin(&self, at_us: u64) -> u64 {
        at_us.saturating_sub(self.began_us) / 1_000_000
    }

    /// Each table with its head: name, and number.
    fn tables(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
        let mut faults = BTreeMap::new();
        for fault in self.rounds.iter().flat_map(|round| &round.faults) {
            *faults.entry(fault.name.clone()).or_insert(0_u64) += 1;
        }
        let mut answers = BTreeMap::new();
        for operation in self.operations() {
            *answers.entry(said(&operation.answer).to_owned()).or_insert(0_u64) += 1;
        }
        let updates = self.losses.last().map_or([(0, 0); 3], |losses| losses.of);
        let updates = DISCIPLINES.iter().zip(updates).map(|(discipline, (updates, lost))| {
            (name(*discipline).to_owned(), format!("{lost} of {updates}"))
        });
        let gap = self.longest_gap();
        let without = gap.map_or(("none".to_owned(), "0 ms".to_owned()), |gap| {
            let at = self.seconds_since_begin(gap.start_us);
            (format!("{at} s after the begin: {}", gap.faults.join(", ")), format!("{} ms", gap.ms))
        });
        let counted = |counts: BTreeMap<String, u64>| {
            counts.into_iter().map(|(name, count)| (name, count.to_string())).collect()
        };
        vec![
            ("What was done", counted(faults)),
            ("What clients were told", counted(answers)),
            ("Updates lost", updates.collect()),
            ("Longest time without service", vec![without]),
            ("Broken promises", vec![("found by the judge".to_owned(), self.violations.len().to_string())]),
        ]
    }

    /// Between the first and the last request of each round.
    pub fn longest_gap(&self) -> Option<Gap> {
        self.rounds.iter().filter_map(longest_gap).max_by_key(|gap| gap.ms)
    }

    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (head, rows) in self.tables() {
            writeln!(text, "\n{head}").unwrap();
            for (name, number) in rows {
                writeln!(text, "  {number:>12}  {name}").unwrap();
            }
        }
        for violation in self.violations.iter().take(20) {
            writeln!(text, "{violation}").unwrap();
        }
        text
    }

    /// Writes it to `target/chaos`, and returns the file.
    pub fn write(&self) -> PathBuf {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/chaos");
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("{}.html", self.store));
        std::fs::write(&file, self.to_html()).unwrap();
        file
    }

    pub fn to_html(&self) -> String {
        let title = format!("{} s of faults: {}", self.seconds(), self.store);
        let mut page = format!(
            "<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n\
             <p>{} requests, {} locks granted.</p>\n",
            self.operations().count(),
            self.operations().filter(|one| matches!(one.answer, Answer::Granted { .. })).count(),
        );
        for (head, rows) in self.tables() {
            writeln!(page, "<h2>{head}</h2>\n<table>").unwrap();
            for (name, number) in rows {
                writeln!(page, "<tr><td>{name}<td>{number}").unwrap();
            }
            page.push_str("</table>\n");
        }
        for violation in self.violations.iter().take(20) {
            let shown = violation.replace('&', "&amp;").replace('<', "&lt;");
            writeln!(page, "<pre>{shown}</pre>").unwrap();
        }
        page + &self.plot_of_answers().to_svg() + &self.plot_of_losses().to_svg()
    }

    fn plot_of_answers(&self) -> Plot {
        let width = self.width_s();
        let mut counts = vec![[0_u32; 3]; usize::try_from(self.seconds() / width).unwrap() + 1];
        for operation in self.operations() {
            let at = usize::try_from(self.seconds_since_begin(operation.span.end_us) / width).unwrap();
            // Of the second in which it ends.
            if let Some(count) = counts.get_mut(at) {
                count[kind(&operation.answer)] += 1;
            }
        }
        let line = |kind: usize, name: &str| Line {
            name: name.to_owned(),
            points: (0_u64..)
                .zip(&counts)
                .map(|(at, counts)| point((at * width) as f64, f64::from(counts[kind]) / width as f64))
                .collect(),
        };
        let lines =
            vec![line(0, "answered"), line(1, "503, nothing happened"), line(2, "unknown, or no answer")];
        plot("answers", "Answers per second", "answers", lines)
    }

    fn plot_of_losses(&self) -> Plot {
        let each = usize::try_from(self.width_s()).unwrap();
        let line = |(at, name): (usize, &str)| Line {
            name: name.to_owned(),
            points: self
                .losses
                .iter()
                .step_by(each)
                .map(|losses| point(self.seconds_since_begin(losses.at_us) as f64, losses.of[at].1 as f64))
                .collect(),
        };
        let names = ["claims", "checks at the write", "has no fence"];
        plot("lost", "Updates lost so far", "updates", names.into_iter().enumerate().map(line).collect())
    }

    /// How long it was.
    fn seconds(&self) -> u64 {
        self.losses.last().map_or(0, |losses| self.seconds_since_begin(losses.at_us))
    }

    /// So many seconds are one point of a picture.
    fn width_s(&self) -> u64 {
        self.seconds().div_ceil(MOST_POINTS).max(1)
    }
}

fn point(x: f64, y: f64) -> Point {
    Point { x, y, between: None }
}

fn plot(file: &'static str, title: &str, y_label: &'static str, lines: Vec<Line>) -> Plot {
    Plot { file, title: title.to_owned(), x_label: "seconds", is_log: false, y_label, lines }
}

/// 0: its client knows; 1: nothing happened; 2: nobody knows.
fn kind(answer: &Answer) -> usize {
    match answer {
        Answer::Unknown | Answer::Lost { .. } => 2,
        Answer::NotDone => 1,
        _ => 0,
    }
}

fn said(answer: &Answer) -> &'static str {
    match answer {
        Answer::Granted { .. } | Answer::AlreadyHeld { .. } => "the lock is yours",
        Answer::Renewed { .. } => "renewed",
        Answer::Released => "released",
        Answer::Broken { .. } => "broken",
        Answer::HeldOtherwise { .. } => "held otherwise",
        Answer::NotHeld => "nobody holds it",
        Answer::HeldByAnother(_) | Answer::Held { .. } => "who holds it",
        Answer::TokenReleased => "the token was released before",
        Answer::NotDone => "503: nothing happened",
        Answer::Unknown => "503: nobody knows",
        Answer::Lost { .. } => "no answer, or its client left",
    }
}

fn name(discipline: Discipline) -> &'static str {
    match discipline {
        Discipline::Claim => "by a resource that claims",
        Discipline::CheckAtWrite => "by one that only checks at the write",
        Discipline::Unfenced => "by one without a fence",
    }
}

fn longest_gap(round: &History) -> Option<Gap> {
    // At its end clients stop one after the other, and then only look at what is left.
    let is_at_work = |one: &&Operation| round.quiet_us.is_none_or(|quiet_us| one.span.end_us < quiet_us);
    let at_work: Vec<_> = round.operations.iter().filter(is_at_work).collect();
    let last_us = at_work.iter().map(|one| one.span.start_us).max()?;
    let definite = at_work.iter().filter(|one| kind(&one.answer) == 0);
    let mut answered: Vec<_> = definite.map(|one| one.span.end_us.min(last_us)).collect();
    answered.sort_unstable();
    let (start_us, end_us) =
        answered.windows(2).map(|pair| (pair[0], pair[1])).max_by_key(|(start, end)| end - start)?;
    let is_near = |fault: &&Fault| fault.start_us + BEFORE_US >= start_us && fault.start_us <= end_us;
    let faults: BTreeSet<_> = round.faults.iter().filter(is_near).map(|fault| fault.name.clone()).collect();
    Some(Gap { ms: (end_us - start_us) / 1_000, start_us, faults: faults.into_iter().collect() })
}

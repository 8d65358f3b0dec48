//! One interleaved run: in each round every row has its turn, beside that of the no-op handler under the same load.

use crate::plan::{self, Plan, Row, TARGETS};
use crate::shared::load::{self, Turn};
use crate::shared::servers::Server;
use crate::shared::standstill;
use crate::shared::workload::Workload;

/// What was measured of a row, by rounds.
pub struct Measured {
    pub row: Row,
    pub turns: Vec<Turn>,
}

/// All that was measured.
pub struct Run {
    /// Those that were needed, by target, once for each load that leaves something behind which others would notice.
    servers: Vec<Option<Server>>,
    pub rows: Vec<Measured>,
}

impl Run {
    pub fn of(&self, target: usize, row: &Row) -> Option<&Measured> {
        let wanted = Row { target, ..*row };
        self.rows.iter().find(|measured| measured.row == wanted)
    }

    /// The turns of the no-op handler beside those of this row.
    pub fn reference(&self, row: &Row) -> &[Turn] {
        &self.of(0, row).unwrap().turns
    }

    /// The server that a row was measured at.
    pub fn server(&self, row: &Row) -> &Server {
        self.servers[server_of(row)].as_ref().unwrap()
    }

    /// All replies that fitted their requests.
    pub fn replies(&self) -> u64 {
        self.rows.iter().flat_map(|measured| &measured.turns).map(|turn| turn.replies).sum()
    }

    pub fn mismatches(&self) -> impl Iterator<Item = (&Server, &String)> {
        self.rows.iter().flat_map(|measured| {
            let server = self.server(&measured.row);
            measured.turns.iter().flat_map(|turn| &turn.mismatches).map(move |mismatch| (server, mismatch))
        })
    }
}

/// Loads that leave nothing behind share the servers of the first. Tokens of the client's own leave marks, which Redis has
/// to remove two minutes later, and works leave their results. Watchers have the gateway follow all locks for a while after they
/// have left.
const APART: [Workload; 5] =
    [Workload::Pairs, Workload::Watched, Workload::OwnTokens, Workload::Once, Workload::Replay];

fn server_of(row: &Row) -> usize {
    let set = APART.iter().position(|workload| *workload == row.workload).unwrap_or(0);
    set * TARGETS.len() + row.target
}

pub async fn measure(plan: &Plan, rows: &[Row]) -> Run {
    let is_needed = |at: usize| rows.iter().any(|row| server_of(row) == at);
    let start = |(at, (workload, target))| is_needed(at).then(|| plan::start(target, workload));
    let all = APART.into_iter().flat_map(|workload| (0..TARGETS.len()).map(move |target| (workload, target)));
    let servers = all.enumerate().map(start).collect();
    let mut run = Run { servers, rows: Vec::new() };
    run.rows = rows.iter().map(|row| Measured { row: *row, turns: Vec::new() }).collect();
    let mut turn = 0;
    for round in 1..=plan.rounds {
        eprintln!("round {round} of {}", plan.rounds);
        // Rows under the same load follow each other, and the no-op handler's comes first.
        for same_load in run.rows.chunk_by_mut(|before, next| before.row.is_like(&next.row)) {
            let (reference, others) = same_load.split_first_mut().unwrap();
            // What comes next to the reference changes from round to round.
            others.rotate_left(1.min(others.len().saturating_sub(1)));
            for measured in std::iter::once(reference).chain(others) {
                let server = run.servers[server_of(&measured.row)].as_ref().unwrap();
                let load = measured.row.load(plan);
                let done = standstill::without(async || {
                    turn += 1;
                    load::run(server, turn, &load).await
                });
                measured.turns.push(done.await);
            }
        }
    }
    run.rows.sort_by_key(|measured| rows.iter().position(|row| *row == measured.row));
    run
}

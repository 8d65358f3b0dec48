//! What was measured, as a table.

use crate::load::Turn;
use crate::servers::Server;
use crate::table;

/// Prints one line for each server. The first server is the one that the others are compared with.
pub fn print(servers: &[Server], turns: &[Vec<Turn>]) {
    table::print_head("no-op");
    for (server, rounds) in servers.iter().zip(turns) {
        table::print_line(server.name, rounds.iter(), turns[0].iter());
    }
}

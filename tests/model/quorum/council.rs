//! What befalls nodes, and what gateways do for a node that has forgotten, and for a changed list of members.

use super::state::{Command, Node, Phase, Role, Set, Standing, State, TOKENS, set_of};
use super::{MOST, Mutant, Rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Connections end, and what is on its way is lost with them.
    Restart(usize),
    Flush(usize),
    /// A lock of the same bucket, under another key, is granted by this node.
    Bump(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    Quarantine(usize),
    /// The quarantine is over: the others are read,
    Read(usize),
    /// and what they said is stored.
    Restore(usize),
    /// A node stores the second epoch.
    Store(usize),
}

impl Rules {
    pub fn mishap(&self, state: &mut State, mishap: Mishap) {
        let (Mishap::Restart(at) | Mishap::Flush(at) | Mishap::Bump(at)) = mishap;
        let node = &mut state.nodes[at];
        match mishap {
            Mishap::Restart(_) => {
                node.inbox.clear();
                self.forget(node);
            }
            Mishap::Flush(_) => self.forget(node),
            Mishap::Bump(_) => node.fence += 1,
        }
    }

    fn forget(&self, node: &mut Node) {
        let before = node.fence;
        node.standing = if self.is(Mutant::NoQuarantine) || self.is(Mutant::RecordOfAnotherProcess) {
            Standing::Good
        } else {
            Standing::Forgot
        };
        // The mutant believes what a server loaded that was written before the last number.
        let has_old_data = self.is(Mutant::RecordOfAnotherProcess);
        node.fence = if has_old_data { before.saturating_sub(1) } else { 0 };
        node.lock = None;
        node.marks = [None; TOKENS];
        node.voided = 0;
    }

    pub fn cares(&self, state: &State, cares: &mut Vec<Care>) {
        let is_counted = self.is_counted(state);
        for (at, node) in state.nodes.iter().enumerate() {
            let may_begin = node.role != Role::Added || is_counted;
            cares.extend(match node.standing {
                Standing::Forgot if may_begin => Some(Care::Quarantine(at)),
                Standing::Quarantined(_) if self.others(state, at).count() >= MOST => Some(Care::Read(at)),
                Standing::Restored(_) => Some(Care::Restore(at)),
                _ => None,
            });
            let is_common = !matches!(node.role, Role::Former | Role::Added);
            if self.changes_members && is_common && node.epoch == 1 && node.is_good() {
                cares.push(Care::Store(at));
            }
        }
    }

    /// As many of the old list as are needed have stored the new one.
    fn is_counted(&self, state: &State) -> bool {
        let stored = state.nodes.iter().filter(|node| node.role == Role::Member && node.epoch == 2).count();
        let enough = match self.mutant {
            Mutant::QuarantineBegunBefore => 0,
            Mutant::CountsTheFirstThatStored => 1,
            _ => MOST,
        };
        stored >= enough
    }

    /// Members in good standing beside this one, in the list by which it is cared for.
    fn others<'a>(&self, state: &'a State, at: usize) -> impl Iterator<Item = &'a Node> {
        let epoch = state.nodes[at].epoch;
        let is_other = move |(it, node): &(usize, &Node)| *it != at && node.is_good() && node.epoch == epoch;
        state.nodes.iter().enumerate().filter(is_other).map(|(_, node)| node)
    }

    pub fn care(&self, state: &mut State, care: Care) {
        match care {
            Care::Quarantine(at) => {
                let read = self.others(state, at).map(|node| node.fence).max();
                let alive = alive(state);
                let node = &mut state.nodes[at];
                let was_added = node.role == Role::Added;
                node.standing = match self.mutant {
                    Mutant::RestoredAtRestart => Standing::Quarantined(alive),
                    Mutant::AddedWithoutQuarantine if was_added => Standing::Quarantined(0),
                    _ => Standing::Quarantined(alive),
                };
                if self.is(Mutant::RestoredAtRestart) {
                    node.fence = read.unwrap_or(0);
                }
                if was_added {
                    node.epoch = 2;
                }
            }
            Care::Read(at) => {
                let Standing::Quarantined(given_before) = state.nodes[at].standing else { return };
                let read = self.others(state, at).map(|node| node.fence).max().unwrap_or(0);
                state.end(given_before);
                state.nodes[at].standing = Standing::Restored(match self.mutant {
                    // Its clock is behind.
                    Mutant::FromItsClockAlone | Mutant::RestoredAtRestart => 0,
                    _ => read,
                });
            }
            Care::Restore(at) => {
                let node = &mut state.nodes[at];
                let Standing::Restored(fence) = node.standing else { return };
                node.fence = node.fence.max(fence);
                node.standing = Standing::Good;
            }
            Care::Store(at) => state.nodes[at].epoch = 2,
        }
    }
}

/// Sources that something still rests on.
fn alive(state: &State) -> Set {
    let of_phase = |phase| match phase {
        Phase::Asking { source, .. } | Phase::Holds { source, .. } => set_of(source),
        _ => 0,
    };
    let of_command = |command: &Command| match command {
        Command::Repair { source, .. } => set_of(*source),
        _ => 0,
    };
    let phases = state.requests.iter().map(|request| of_phase(request.phase));
    let commands = state.nodes.iter().flat_map(|node: &Node| node.inbox.iter().map(of_command));
    phases.chain(commands).fold(0, |all, one| all | one)
}

/// Takes out what makes no difference any more, so that like states are found to be like.
pub fn tidy(state: &mut State) {
    let alive = alive(state);
    state.over &= alive;
    let running = alive & !state.over;
    for node in &mut state.nodes {
        if let Some(lock) = &mut node.lock {
            lock.times &= running;
        }
        if let Standing::Quarantined(sources) = &mut node.standing {
            *sources &= running;
        }
    }
    for request in &mut state.requests {
        if request.is_at_rest() && request.phase != Phase::NotBegun {
            request.seen = 0;
            request.above = 0;
            request.is_late = false;
            request.proposals = 0;
            request.attempts = 0;
        }
    }
    state.nodes.sort_unstable();
}

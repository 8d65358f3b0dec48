//! What befalls nodes, and what gateways do for a node that has forgotten, and for a changed list of members.

use super::state::{Command, Memory, Node, Phase, Role, Set, Standing, State, TOKENS, set_of};
use super::{MOST, Mutant, Rules, Stale};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Connections end, and what is on its way is lost with them.
    Restart(usize),
    /// The same, without the file that it keeps, which stays as it is.
    RestartWithout(usize),
    /// From now on what it keeps stays as it is.
    Copy(usize),
    /// It follows its copy, or another node, and is made to lead again: it holds what that one holds.
    Follow(usize, Option<usize>),
    Flush(usize),
    /// A lock of the same bucket, under another key, is granted by this node.
    Bump(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// By gateways that have the list of this epoch.
    Quarantine(usize, u8),
    /// The quarantine is over: the others are read,
    Read(usize),
    /// and what they said is stored.
    Restore(usize),
    /// A node stores the second epoch.
    Store(usize),
    /// Enough have.
    Settle,
}

impl Rules {
    /// What may befall a node that counts, but for what others are granted.
    pub fn mishaps(&self, state: &State, at: usize) -> impl Iterator<Item = Mishap> {
        let has_copy = state.nodes[at].copy.is_some();
        let mut mishaps = vec![Mishap::Restart(at)];
        mishaps.extend(self.flushes.then_some(Mishap::Flush(at)));
        match self.stale {
            Stale::SwitchedOff | Stale::FollowsItsCopy if !has_copy => mishaps.push(Mishap::Copy(at)),
            Stale::RunsWithout if !has_copy => mishaps.push(Mishap::RestartWithout(at)),
            Stale::FollowsAnother => {
                let others = (0..state.nodes.len()).filter(|other| *other != at);
                mishaps.extend(others.map(|other| Mishap::Follow(at, Some(other))));
            }
            Stale::FollowsItsCopy => mishaps.push(Mishap::Follow(at, None)),
            Stale::Never | Stale::SwitchedOff | Stale::RunsWithout => {}
        }
        mishaps.into_iter()
    }

    pub fn mishap(&self, state: &mut State, mishap: Mishap) {
        let leader = match mishap {
            Mishap::Follow(_, Some(other)) => Some(state.nodes[other].memory()),
            _ => None,
        };
        let (Mishap::Restart(at)
        | Mishap::RestartWithout(at)
        | Mishap::Copy(at)
        | Mishap::Follow(at, _)
        | Mishap::Flush(at)
        | Mishap::Bump(at)) = mishap;
        let node = &mut state.nodes[at];
        match mishap {
            Mishap::Restart(_) => {
                node.inbox.clear();
                if self.keeps {
                    let kept = node.copy.take().map_or_else(|| node.memory(), |copy| *copy);
                    self.come_back(node, kept, &[Mutant::DurableIsBelieved]);
                } else {
                    self.forget(node);
                }
            }
            Mishap::RestartWithout(_) => {
                node.inbox.clear();
                node.copy = Some(Box::new(node.memory()));
                self.forget(node);
            }
            Mishap::Copy(_) => node.copy = Some(Box::new(node.memory())),
            Mishap::Follow(_, Some(_)) => {
                let memory = leader.unwrap_or_else(|| node.memory());
                self.come_back(node, memory, &[Mutant::DurableIsBelieved]);
            }
            Mishap::Follow(_, None) => {
                let memory = node.copy.take().map_or_else(|| node.memory(), |copy| *copy);
                self.come_back(node, memory, &[Mutant::DurableIsBelieved, Mutant::ProcessIsBelieved]);
            }
            Mishap::Flush(_) => self.forget(node),
            Mishap::Bump(_) => node.fence += 1,
        }
    }

    /// The node holds this from now on. Only the mutants believe that it is what it held last.
    fn come_back(&self, node: &mut Node, memory: Memory, believers: &[Mutant]) {
        node.load(memory);
        let is_believed = believers.contains(&self.mutant);
        node.standing = if is_believed { Standing::Good } else { Standing::Forgot };
    }

    fn forget(&self, node: &mut Node) {
        // The mutant believes what a server loaded that was written before the last number.
        let is_old = self.is(Mutant::RecordOfAnotherProcess);
        let fence = if is_old { node.fence.saturating_sub(1) } else { 0 };
        let nothing = Memory { fence, lock: None, marks: [None; TOKENS], voided: 0 };
        self.come_back(node, nothing, &[Mutant::NoQuarantine, Mutant::RecordOfAnotherProcess]);
    }

    pub fn cares(&self, state: &State, cares: &mut Vec<Care>) {
        let has_stored = |node: &&Node| node.role == Role::Member && node.epoch == 2 && node.is_good();
        let stored = state.nodes.iter().filter(has_stored).count();
        for (at, node) in state.nodes.iter().enumerate() {
            match node.standing {
                Standing::Forgot => cares.extend(self.joins(state, node).map(|by| Care::Quarantine(at, by))),
                Standing::Quarantined(_) if self.may_read(state, at) => cares.push(Care::Read(at)),
                Standing::Restored(_) => cares.push(Care::Restore(at)),
                Standing::Good if self.changes_members && node.role == Role::Member && node.epoch == 1 => {
                    cares.push(Care::Store(at));
                }
                _ => {}
            }
        }
        let enough = match self.mutant {
            Mutant::QuarantineBegunBefore => 0,
            Mutant::CountsTheFirstThatStored => 1,
            _ => MOST,
        };
        if self.changes_members && !state.is_settled && stored >= enough {
            cares.push(Care::Settle);
        }
    }

    /// By which epochs a node that has no record, or none of this list, may be taken in.
    fn joins(&self, state: &State, node: &Node) -> impl Iterator<Item = u8> {
        let by_former = match node.role {
            Role::Added => false,
            Role::Former => true,
            // Whoever knows of a later list does nothing by its own.
            _ => !state.is_settled || self.is(Mutant::FormerListTakesIn),
        };
        let by_latter = state.is_settled && node.role != Role::Former;
        [(1, by_former), (2, by_latter)].into_iter().filter(|(_, may)| *may).map(|(epoch, _)| epoch)
    }

    /// Whether enough others can be read; or nobody can hope for that, where a node has left and another one has
    /// forgotten.
    fn may_read(&self, state: &State, at: usize) -> bool {
        let good = self.others(state, at).count();
        let is_hopeless = match state.nodes[at].epoch {
            2 => self.restarts > 0,
            _ => self.is(Mutant::FormerListTakesIn) && state.is_settled,
        };
        good >= MOST || is_hopeless && good > 0
    }

    /// Members in good standing beside this one, in the list by which it is cared for.
    fn others<'a>(&self, state: &'a State, at: usize) -> impl Iterator<Item = &'a Node> {
        let epoch = state.nodes[at].epoch;
        let is_other = move |(it, node): &(usize, &Node)| *it != at && node.is_good() && node.epoch == epoch;
        state.nodes.iter().enumerate().filter(is_other).map(|(_, node)| node)
    }

    pub fn care(&self, state: &mut State, care: Care) {
        match care {
            Care::Quarantine(at, epoch) => {
                let read = self.others(state, at).map(|node| node.fence).max();
                let alive = alive(state);
                let node = &mut state.nodes[at];
                let has_none = self.is(Mutant::AddedWithoutQuarantine) && node.role == Role::Added;
                node.standing = Standing::Quarantined(if has_none { 0 } else { alive });
                if self.is(Mutant::RestoredAtRestart) {
                    node.fence = read.unwrap_or(0);
                }
                node.epoch = epoch;
            }
            Care::Read(at) => {
                let Standing::Quarantined(given_before) = state.nodes[at].standing else { return };
                let read = self.others(state, at).map(|node| node.fence).max().unwrap_or(0);
                // A lock that it loaded is over by then: no lease lasts as long, whenever it was written.
                let loaded = state.nodes[at].lock.take();
                state.end(given_before | loaded.map_or(0, |lock| lock.times));
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
            Care::Settle => {
                state.is_settled = true;
                let storing = |node: &&mut Node| node.role == Role::Member && node.epoch == 2;
                let nodes = || state.nodes.iter().filter(|node| node.role == Role::Member);
                let floor = nodes().map(|node| node.fence).max().unwrap_or(0);
                if !self.is(Mutant::SettlesWithoutFloor) {
                    state
                        .nodes
                        .iter_mut()
                        .filter(storing)
                        .for_each(|node| node.fence = node.fence.max(floor));
                }
            }
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
        for lock in node.all_locks() {
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

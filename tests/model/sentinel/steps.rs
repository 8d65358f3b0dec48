//! What each step does: the scripts' part, the gateway's, and what befalls servers.

use super::state::{Data, Epoch, Fence, Gateway, Grant, Heard, Phase, Place, Run, State, Word};
use super::{Clause, FIRST_WORD, Mutant, PROMOTION_TAKES, Rules};

impl Rules {
    /// `start_run` of the scripts.
    fn start_run(state: &mut State, at: Place, epoch: Option<Epoch>) {
        let server = &mut state.servers[at];
        let largest = server.fence.run.map_or(0, |(_, run)| run.last);
        let start = state.time.max(largest + 1);
        let run = Run { began: start, last: start };
        server.fence = Fence { run: Some((server.run_id, run)), epoch: epoch.or(server.fence.epoch) };
        state.time += 1;
    }

    /// Whether the gateway may stay. It connects, and has just been told by how many; or it looks, as it does each
    /// second, and the word is as old as the connection.
    pub fn learn(&self, state: &mut State, word: Word, is_unanimous: bool, is_look: bool) -> bool {
        let server = &mut state.servers[word.at];
        let known = server.fence.epoch.filter(|_| self.mutant != Mutant::WithoutEpoch);
        let is_lower = known.is_some_and(|known| word.epoch < known);
        if is_lower && (is_look || !is_unanimous) && self.mutant != Mutant::LearnsALowerEpoch {
            return false;
        }
        let is_missing = server.run().is_none();
        let starts = match self.mutant {
            Mutant::LearnsAtFirstMint => false,
            Mutant::WithoutEpoch => is_missing,
            Mutant::EpochRestartsNothing => {
                server.fence.epoch = Some(word.epoch);
                is_missing
            }
            // What a script started that gave a number after a flush has no epoch.
            _ if is_look && self.mutant != Mutant::LooksRestart => is_missing || known.is_none(),
            _ => is_missing || known != Some(word.epoch),
        };
        if starts {
            Self::start_run(state, word.at, Some(word.epoch));
        }
        let server = &mut state.servers[word.at];
        let is_learned = self.mutant == Mutant::LearnsAtFirstMint || server.fence.epoch == Some(word.epoch);
        server.is_met |= is_learned && word.epoch == server.epoch;
        true
    }

    /// The part of the acquire script that gives a number.
    pub fn mint(state: &mut State, at: Place) -> Option<()> {
        match state.servers[at].run() {
            Some(run) => {
                run.last += 1;
                state.time += 1;
            }
            None => Self::start_run(state, at, None),
        }
        let server = &mut state.servers[at];
        let number = server.run()?.last;
        let (term, is_excused) = (server.term, server.is_excused);
        state.grants.push(Grant { number, term, is_excused });
        Some(())
    }

    /// What a gateway may be told, and whether all sentinels say so.
    pub fn words(&self, state: &State) -> Vec<(Word, bool)> {
        let (newest, former) = (state.newest(), state.former);
        let mut words = vec![match state.heard {
            Heard::ByOne => (former, false),
            Heard::ByMost => (newest, true),
            Heard::Forgotten(at) => (Word { epoch: 0, at }, false),
        }];
        if state.heard == Heard::ByOne {
            // Most of them hear of the failover between the two halves of their answer.
            let halves = match self.mutant {
                Mutant::AsksForTheAddressFirst => Word { epoch: newest.epoch, at: former.at },
                _ => Word { epoch: former.epoch, at: newest.at },
            };
            words.push((halves, false));
        }
        if self.mutant == Mutant::BelievesAMinority {
            // One of them may have been cut off from the beginning.
            words.extend([newest, former, FIRST_WORD].map(|word| (word, false)));
        }
        words
    }

    pub fn ask(&self, gateway: &mut Gateway, word: Word, is_unanimous: bool) {
        let is_lower = word.epoch < gateway.followed;
        if !is_lower || is_unanimous || self.mutant == Mutant::FollowsALowerEpoch {
            *gateway = Gateway { followed: word.epoch, phase: Phase::Asked(word, is_unanimous) };
        }
    }

    pub fn is_connected(&self, gateway: &Gateway, to: Place) -> bool {
        match gateway.phase {
            Phase::Asked(..) if self.mutant == Mutant::AsksBeforeConnecting => false,
            phase => phase.server() == Some(to),
        }
    }

    fn disconnect(&self, state: &mut State, at: Place) {
        for gateway in &mut state.gateways {
            if self.is_connected(gateway, at) {
                gateway.phase = Phase::Idle;
            }
        }
    }

    /// Sentinel ends all connections to a server with the command that makes it a primary or a replica.
    fn reconfigure(&self, state: &mut State, at: Place) {
        if self.mutant != Mutant::ConnectionsOutliveFailover {
            self.disconnect(state, at);
        }
    }

    fn excuse(&self, state: &mut State, at: Place, clause: Clause) {
        if state.is_deposed(at) && self.struck != Some(clause) {
            state.servers[at].is_excused = true;
        }
    }

    pub fn promote(&self, state: &mut State, with: Data) {
        let former = state.newest();
        let at = 1 - former.at;
        let predecessor = state.servers[former.at].clone();
        let server = &mut state.servers[at];
        if with != Data::Own {
            server.fence = predecessor.fence.left_with(with);
        }
        server.is_primary = true;
        server.term = predecessor.term + 1;
        server.epoch = former.epoch + 1;
        server.is_met = false;
        server.is_excused = false;
        state.former = former;
        state.heard = Heard::ByOne;
        if self.struck != Some(Clause::PromotionTakesTime) {
            state.time += PROMOTION_TAKES;
        }
        if !predecessor.is_met {
            self.excuse(state, former.at, Clause::NotMet);
        }
        self.reconfigure(state, at);
    }

    pub fn rejoin(&self, state: &mut State, at: Place) {
        state.servers[at].is_primary = false;
        self.reconfigure(state, at);
    }

    pub fn restart(&self, state: &mut State, at: Place, with: Data) {
        let server = &mut state.servers[at];
        server.run_id += 1;
        server.fence = server.fence.left_with(with);
        server.is_met = false;
        self.disconnect(state, at);
        self.excuse(state, at, Clause::Restarted);
    }

    pub fn flush(&self, state: &mut State, at: Place) {
        state.servers[at].fence = Fence::default();
        state.servers[at].is_met = false;
        self.excuse(state, at, Clause::LostData);
    }

    pub fn set_up_anew(&self, state: &mut State) {
        let at = state.newest().at;
        state.servers[at].epoch = 0;
        state.servers[at].is_met = false;
        if self.struck != Some(Clause::SetUpInPeace) {
            state.servers[1 - at].fence = state.servers[at].fence;
        }
        state.former = Word { epoch: 0, at };
        state.heard = Heard::ByMost;
    }
}

//! Whose servers are: one process has one vote, and all servers of a quorum have one id.

use super::super::member_status::MemberStatus;
use super::Membership;
use crate::store::redis::health::quorum::Whose;

impl Membership {
    /// Compares the id of a server that was just looked at with that of the quorum.
    pub(super) fn recognized(&self, index: usize, mut seen: MemberStatus) -> MemberStatus {
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.filter_map(|(_, member)| member.status().ok());
        let whose = self.whose(&mut self.quorum_id.lock(), others.chain([seen.clone()]));
        seen.recognize(&whose);
        seen
    }

    /// Compares those of all: what one server says is of weight for the others. None is ours before its record is heeded.
    pub(super) fn recognize_all(&self) {
        let mut quorum_id = self.quorum_id.lock();
        let whose = self.whose(&mut quorum_id, self.members.iter().filter_map(|member| member.status().ok()));
        for member in &self.members {
            if let Ok(mut status) = member.status() {
                status.recognize(&whose);
                self.learn_longest(&member.name, &status);
            }
            member.recognize(&whose);
        }
    }

    /// Whose these servers are, by their ids. What most of them say is `learned`, and stays for as long as any says it: most addresses may
    /// lead elsewhere for a while.
    pub(in crate::store::quorum) fn whose(
        &self,
        learned: &mut Option<String>,
        seen: impl Iterator<Item = MemberStatus>,
    ) -> Whose {
        let known: Vec<_> = seen.map(|status| status.known_list()).collect();
        match learned.clone().filter(|id| known.iter().any(|server| server.quorum == *id)) {
            Some(id) => Whose::Of(id),
            None => {
                let whose = Whose::of(&known, self.quorum());
                if let Whose::Of(id) = &whose {
                    *learned = Some(id.clone());
                    // The looks without it have written nothing: they are repeated.
                    self.members.iter().for_each(|member| member.nudge.notify_one());
                }
                whose
            }
        }
    }

    /// Whether the id of the quorum is known, since a server that was looked at says it.
    pub(in crate::store::quorum) fn knows_whose(&self) -> bool {
        let says_it = |status: MemberStatus| status.is_ours() && !status.is_unnamed();
        self.members.iter().any(|member| member.status().is_ok_and(says_it))
    }

    /// Lets a process count as this server; `false` if it counts as another.
    pub(super) fn claim(&self, run: &str, index: usize) -> bool {
        let mut runs = self.runs.lock();
        // A server that was started anew is another process.
        runs.retain(|known, holder| *holder != index || known == run);
        *runs.entry(run.to_owned()).or_insert(index) == index
    }

    /// Lets the process of a server that is away count as another one by which it is reached.
    pub(super) fn disclaim(&self, index: usize) {
        self.runs.lock().retain(|_, holder| *holder != index);
    }

    pub(super) fn twin_of(&self, run: &str) -> String {
        let runs = self.runs.lock();
        let name = runs.get(run).map_or("another", |index| &self.members[*index].name);
        format!("it is the same server as {name}: name each server once")
    }
}

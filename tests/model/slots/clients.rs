//! What clients and gateways do, and what happens to them.

use super::Action;
use super::rules::Rules;
use super::state::{Deletion, Due, Phase, Request, Script, Sent, Standing, State, Token, Told};
use super::store::Reply;

impl Rules {
    pub fn commands(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, sent) in state.sent.iter().copied().enumerate() {
            if state.sent[..at].contains(&sent) {
                continue;
            }
            actions.push(Action::Arrive { sent, is_client_gone: false });
            let may_grant = matches!(sent.script, Script::Try | Script::Join | Script::Look);
            if sent.is_awaited && may_grant && state.left.leaves > 0 {
                actions.push(Action::Arrive { sent, is_client_gone: true });
            }
            if sent.is_awaited && state.left.timeouts > 0 {
                actions.push(Action::GiveUp(sent));
            }
        }
    }

    pub fn requests(&self, state: &State, actions: &mut Vec<Action>) {
        for (request, asker) in self.askers.iter().enumerate() {
            let mut before = (0..request).filter(|other| self.askers[*other].token == asker.token);
            match state.phases[request] {
                Phase::NotSent => {
                    let is_next = before.all(|other| state.phases[other] != Phase::NotSent);
                    if is_next && state.holders[asker.token].deletion == Deletion::None {
                        actions.push(Action::Ask(request));
                    }
                }
                Phase::Waits => {
                    if self.is_bound_to_look(state, request) {
                        actions.push(Action::Look(request));
                    }
                    if state.left.leaves > 0 {
                        actions.push(Action::Leave(request));
                        actions.extend(self.kills.then_some(Action::Kill(request)));
                    }
                }
                _ => {}
            }
        }
    }

    fn is_bound_to_look(&self, state: &State, request: Request) -> bool {
        let token = self.askers[request].token;
        let place = state.queue.iter().find(|place| place.token == token);
        let is_away =
            place.is_none_or(|place| place.by != Some(request) || place.standing == Standing::Aside);
        let is_offered = state.holders[token].entry.is_some_and(|entry| entry.grant.is_none());
        let is_due = match state.due {
            Due::Never => false,
            Due::AtAnEnd => state.entries().any(|entry| entry.is_over),
            Due::EachSecond => true,
        };
        is_away || is_offered || is_due
    }

    pub fn ends(&self, state: &State, actions: &mut Vec<Action>) {
        for (token, holder) in state.holders.iter().enumerate() {
            if state.left.ends > 0 && holder.entry.is_some_and(|entry| !entry.is_over) {
                actions.push(Action::End(token));
            }
            let is_sent = self.first_of(token).is_some_and(|first| state.phases[first] != Phase::NotSent);
            if self.releases.contains(&token) && holder.deletion == Deletion::None && is_sent {
                actions.push(Action::Delete(token));
            }
        }
    }

    /// A command is run, and answered to whoever waits for that.
    pub fn arrive(&self, state: &mut State, sent: Sent, is_client_gone: bool) -> Option<()> {
        state.remove(sent);
        let Sent { script, request, is_awaited } = sent;
        let reply = self.run_script(state, script, request);
        if !is_awaited {
            return Some(());
        }
        if is_client_gone {
            if !matches!(reply, Reply::Granted(_)) {
                return None;
            }
            state.left.leaves -= 1;
            self.undo(state, request);
            return Some(());
        }
        let asker = self.askers[request];
        let holder = &mut state.holders[asker.token];
        match (script, reply) {
            (Script::Release, _) => holder.deletion = Deletion::Answered,
            (_, Reply::Granted(number)) => {
                state.phases[request] = Phase::Told;
                if holder.deletion == Deletion::None {
                    let width = holder.told.map_or(asker.width, |told| told.width.min(asker.width));
                    holder.told = Some(Told { number, width });
                }
            }
            (_, Reply::InQueue) => state.phases[request] = Phase::Waits,
            (_, Reply::Moved) => self.undo(state, request),
            (_, Reply::Refused | Reply::Done) => state.phases[request] = Phase::Over,
        }
        Some(())
    }

    /// Nobody waits for it any longer. Its answer was lost, or it comes late.
    pub fn give_up(&self, state: &mut State, sent: Sent) {
        state.left.timeouts -= 1;
        state.remove(sent);
        state.add(Sent { is_awaited: false, ..sent });
        match sent.script {
            Script::Release | Script::TakeBack => state.send(sent.script, sent.request),
            Script::Try | Script::Join | Script::Look => self.undo(state, sent.request),
        }
    }

    pub fn undo(&self, state: &mut State, request: Request) {
        state.phases[request] = Phase::TakesBack;
        state.send(Script::TakeBack, request);
    }

    pub fn ask(&self, state: &mut State, request: Request, script: Script) {
        state.phases[request] = Phase::Sent;
        state.send(script, request);
    }

    /// No client is told of a later end than the store has.
    pub fn end(&self, state: &mut State, token: Token) -> Option<()> {
        state.left.ends -= 1;
        let holder = &mut state.holders[token];
        let entry = holder.entry.as_mut()?;
        entry.is_over = true;
        if entry.grant.is_some() {
            holder.told = None;
        }
        Some(())
    }

    pub fn delete(&self, state: &mut State, token: Token) -> Option<()> {
        let holder = &mut state.holders[token];
        (holder.deletion, holder.told) = (Deletion::Sent, None);
        state.send(Script::Release, self.first_of(token)?);
        Some(())
    }
}

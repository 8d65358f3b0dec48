//! What must hold whatever happens, and what must happen for a search to prove something.

use std::collections::BTreeSet;

use stateright::Property;

use super::rules::{Asker, Rules};
use super::state::{Deletion, Due, Entry, Phase, Place, Standing, State, Width};

pub const BESIDE: &str = "S1: nobody is told that it holds beside more others than it said";
pub const COUNTED: &str = "S1: no entry of the store stands beside more others than it said";
pub const HELD: &str = "S2: who is told that it holds has that very grant";
pub const FREED: &str = "S2: after its DELETE was answered a token holds nothing";
pub const OWN_SLOT: &str = "S4: each holder has a slot of its own, which is no larger than what it said";
pub const IN_TURN: &str = "S6: nobody is offered or granted anything while one waits who came earlier";
pub const NOT_IDLE: &str = "S7: who is admitted is offered the lock, or somebody is bound to look";
pub const LEFT: &str = "S8: nothing is held in the end that nobody was told of";

fn are_few(widths: impl Iterator<Item = Width>) -> bool {
    let widths: Vec<_> = widths.collect();
    widths.iter().all(|width| widths.len() <= usize::from(*width))
}

impl Rules {
    /// Whether the first who waits knows, or will be told, that it would be admitted.
    fn is_first_served(&self, state: &State) -> bool {
        let is_there = |place: &&Place| {
            place.standing == Standing::Present
                && place.by.is_some_and(|by| state.phases[by] != Phase::Killed)
        };
        let Some(first) = state.queue.iter().find(is_there) else { return true };
        let offers = state.unexpired().filter(|entry| entry.grant.is_none()).count();
        let least = state.unexpired().map(|entry| entry.width).fold(first.width, Width::min);
        if offers >= self.most_offers || state.unexpired().count() >= usize::from(least) {
            return true;
        }
        let mut before = state.queue.iter().take_while(|place| *place != first);
        // A gateway that was killed is found out by the next who looks.
        let is_behind = before.any(|place| place.standing == Standing::Present);
        match state.due {
            Due::Never => false,
            Due::EachSecond if is_behind => true,
            _ => state.entries().any(|entry| entry.is_over),
        }
    }

    pub fn promises(&self) -> Vec<Property<Self>> {
        let tokens_of = |is_it: fn(&&Asker) -> bool| {
            let tokens: BTreeSet<_> = self.askers.iter().filter(is_it).map(|asker| asker.token).collect();
            tokens.len()
        };
        let is_wide = tokens_of(|asker| asker.width > 1) > 1;
        // A writer holds it, and two wait who bear each other.
        let is_waited = self.askers[0].width == 1 && tokens_of(|asker| asker.waits && asker.width > 1) > 1;
        let mut promises = vec![
            Property::always(BESIDE, |_, state: &State| {
                are_few(state.holders.iter().filter_map(|holder| holder.told).map(|told| told.width))
            }),
            Property::always(COUNTED, |_, state: &State| are_few(state.unexpired().map(|entry| entry.width))),
            Property::always(HELD, |_, state: &State| {
                state.holders.iter().all(|holder| {
                    let is_its = |told: u8| {
                        let entry = holder.entry.filter(|entry| !entry.is_over);
                        entry.and_then(|entry| entry.grant).is_some_and(|grant| grant.number == told)
                    };
                    holder.told.is_none_or(|told| is_its(told.number))
                })
            }),
            Property::always(FREED, |_, state: &State| {
                let is_held = |entry: Entry| entry.grant.is_some() && !entry.is_over;
                let mut freed = state.holders.iter().filter(|holder| holder.deletion == Deletion::Answered);
                freed.all(|holder| !holder.entry.is_some_and(is_held))
            }),
            Property::always(OWN_SLOT, |_, state: &State| {
                let slots: Vec<_> =
                    state.entries().filter_map(|entry| Some((entry.grant?.slot, entry.width))).collect();
                let is_own = |slot: u8| slots.iter().filter(|(other, _)| *other == slot).count() == 1;
                slots.iter().all(|(slot, width)| slot <= width && is_own(*slot))
            }),
            Property::always(IN_TURN, |_, state: &State| state.broken.is_none()),
            Property::always(NOT_IDLE, |rules: &Rules, state: &State| rules.is_first_served(state)),
            Property::always(LEFT, |_, state: &State| {
                let is_over = |phase: &Phase| {
                    matches!(phase, Phase::NotSent | Phase::Told | Phase::Over | Phase::Killed)
                };
                let is_quiet = state.sent.is_empty() && state.phases.iter().all(is_over);
                let is_left = |entry: Entry| entry.grant.is_some() && !entry.is_over && entry.by.is_some();
                let mut untold = state.holders.iter().filter(|holder| holder.told.is_none());
                !is_quiet || !untold.any(|holder| holder.entry.is_some_and(is_left))
            }),
            Property::sometimes("the last of all requests is granted the lock", |_, state: &State| {
                state.phases.last() == Some(&Phase::Told)
            }),
        ];
        if is_wide {
            promises.push(Property::sometimes("two hold it, and know it", |_, state: &State| {
                state.holders.iter().filter(|holder| holder.told.is_some()).count() > 1
            }));
        }
        if is_waited && self.most_offers > 1 {
            promises.push(Property::sometimes("two are offered it", |_, state: &State| {
                state.unexpired().filter(|entry| entry.grant.is_none()).count() > 1
            }));
        }
        promises
    }
}

//! Channels, plain ones and those of slots.

use super::Call;
use crate::reply::Reply;
use crate::state::{Channel, State};

pub(super) fn publish(state: &mut State, call: &Call) -> Reply {
    let [_, channel, message] = call.words else { return Reply::Int(0) };
    // The other nodes of a cluster tell their own listeners.
    if state.cluster.is_some() {
        state.to_other_nodes.push((channel.clone(), message.clone()));
    }
    Reply::Int(state.tell(&Channel::Plain(channel.clone()), message))
}

pub(super) fn spublish(state: &mut State, call: &Call) -> Reply {
    let [_, channel, message] = call.words else { return Reply::Int(0) };
    Reply::Int(state.tell(&Channel::OfSlot(channel.clone()), message))
}

pub(super) fn subscribe(state: &mut State, call: &Call) -> Reply {
    listen(state, call, Channel::Plain, "subscribe")
}

pub(super) fn ssubscribe(state: &mut State, call: &Call) -> Reply {
    listen(state, call, Channel::OfSlot, "ssubscribe")
}

/// Each channel is confirmed on its own; what stands last is the reply.
fn listen(state: &mut State, call: &Call, kind: fn(Vec<u8>) -> Channel, said: &'static str) -> Reply {
    let mut last = Reply::Nil;
    for (at, name) in call.words[1..].iter().enumerate() {
        let Some(session) = state.sessions.get_mut(&call.session) else { return Reply::Nil };
        session.channels.insert(kind(name.clone()));
        let of_kind = |channel: &&Channel| {
            std::mem::discriminant(*channel) == std::mem::discriminant(&kind(Vec::new()))
        };
        let count = session.channels.iter().filter(of_kind).count();
        if at > 0 {
            session.write(&last);
        }
        last = Reply::Push(vec![Reply::bulk(said), Reply::Bulk(name.clone()), Reply::Int(count as i64)]);
    }
    last
}

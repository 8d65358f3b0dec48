//! What the gateway knows of which server of a cluster has which slot.

use std::collections::HashMap;
use std::sync::Arc;

use super::slots::gap;
use super::supervisor::LinkSupervisor;
use crate::store::StoreError;
use crate::store::redis::node::Node;

#[derive(Clone)]
pub(super) enum MapState {
    /// No server has been reached yet: requests wait, within their deadline.
    Connecting,
    Known(Arc<Map>),
    /// No server was reached for a while, for this reason.
    Down(Arc<str>),
}

impl MapState {
    /// The server that has the slot, as far as is known.
    pub(super) fn owner_of(&self, slot: u16) -> Result<Option<&Arc<LinkSupervisor>>, StoreError> {
        match self {
            Self::Known(map) => Ok(map.owner_of(slot)),
            Self::Connecting => Ok(None),
            Self::Down(reason) => Err(StoreError::Unavailable(reason.to_string())),
        }
    }

    /// Notes that this server has the slot from now on. Returns whether that is news.
    pub(super) fn moves(&mut self, slot: u16, node: &Node, supervisor: &Arc<LinkSupervisor>) -> bool {
        let Self::Known(map) = self else { return false };
        if map.owner_of(slot).is_some_and(|owner| Arc::ptr_eq(owner, supervisor)) {
            return false;
        }
        let (mut supervisors, mut owners) = (map.supervisors.clone(), map.owners.clone());
        supervisors.insert(node.clone(), supervisor.clone());
        if let Some(owner) = owners.get_mut(usize::from(slot)) {
            *owner = Some(supervisor.clone());
        }
        *map = Arc::new(Map { supervisors, owners });
        true
    }
}

#[derive(Default)]
pub(super) struct Map {
    /// Those that keep links to the primaries.
    pub(super) supervisors: HashMap<Node, Arc<LinkSupervisor>>,
    /// Which server has which slot; none if a slot has no server.
    pub(super) owners: Vec<Option<Arc<LinkSupervisor>>>,
}

impl Map {
    fn owner_of(&self, slot: u16) -> Option<&Arc<LinkSupervisor>> {
        self.owners.get(usize::from(slot))?.as_ref()
    }

    /// The server that the owner of this slot has named. Where the name has no host, the owner's own is meant; `None` where only
    /// the whole map can tell.
    pub(super) fn named_by_owner(&self, node: &Node, slot: u16) -> Option<Node> {
        if node.is_known() {
            return Some(node.clone());
        }
        let owner = self.owner_of(slot)?;
        let (owner, _) = self.supervisors.iter().find(|(_, other)| Arc::ptr_eq(owner, other))?;
        node.host.is_empty().then(|| Node { host: owner.host.clone(), port: node.port })
    }

    /// The servers that have slots, in the order of their first ones.
    pub(super) fn primaries(&self) -> Vec<&Arc<LinkSupervisor>> {
        let mut primaries: Vec<&Arc<LinkSupervisor>> = Vec::new();
        for owner in self.owners.iter().flatten() {
            if !primaries.iter().any(|known| Arc::ptr_eq(known, owner)) {
                primaries.push(owner);
            }
        }
        primaries
    }

    /// That some slots have no server, if so.
    pub(super) fn gap(&self) -> Option<String> {
        gap(self.owners.iter().flatten().count())
    }

    /// Which slots each of them has, as a text, where each slot has a server.
    pub(super) fn layout(&self) -> String {
        let primaries = self.primaries();
        let mut layout = String::new();
        let mut before = None;
        for (slot, owner) in self.owners.iter().flatten().enumerate() {
            let number = primaries.iter().take_while(|primary| !Arc::ptr_eq(primary, owner)).count();
            if before != Some(number) {
                layout.push_str(&format!("{slot}:{number} "));
                before = Some(number);
            }
        }
        layout
    }
}

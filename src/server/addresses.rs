//! How many connections each address has. One address must not be able to take them all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The addresses with open connections. There are never more of them than connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses(Arc<Mutex<HashMap<IpAddr, Open>>>);

/// How many connections an address has, and the turns of its handshakes.
type Open = (usize, Arc<AddressTurns>);

/// In which order the handshakes of one address have their turns.
#[derive(Debug)]
pub(super) struct AddressTurns {
    /// Those that have begun wait here for their further turns, and one at a time has it.
    pub(super) line: Semaphore,
    /// Only one of them waits there for its first.
    pub(super) beginner: Semaphore,
}

impl Default for AddressTurns {
    fn default() -> Self {
        Self { line: Semaphore::new(1), beginner: Semaphore::new(1) }
    }
}

/// One connection of an address; it counts until it is dropped.
#[derive(Debug)]
pub(super) struct AddressPermit {
    addresses: Addresses,
    whose: IpAddr,
    handshakes: Arc<AddressTurns>,
}

impl Addresses {
    /// Counts one more connection of this address, unless it has `most` already.
    pub(super) fn enter(&self, address: IpAddr, most: usize) -> Option<AddressPermit> {
        let whose = network(address);
        let mut counts = self.0.lock();
        let (count, handshakes) = counts.entry(whose).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(AddressPermit { addresses: self.clone(), whose, handshakes: handshakes.clone() })
    }
}

impl AddressPermit {
    /// The turns of this address's handshakes.
    pub(super) fn handshakes(&self) -> &AddressTurns {
        &self.handshakes
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut counts = self.addresses.0.lock();
        let Some((count, _)) = counts.get_mut(&self.whose) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.whose);
        }
    }
}

/// What stands for one party: an IPv4 address, or an IPv6 network of 64 bits. Within such a network, everybody can use
/// any number of addresses.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_place_is_free_again_and_nothing_is_kept_of_those_who_left() {
        let addresses = Addresses::default();
        let enter = |address: IpAddr| addresses.enter(address, 2);
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        let v6 = |network, host| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
        let (first, second) = (enter(v4.into()), enter(v4.to_ipv6_mapped().into()));
        assert!(first.is_some() && second.is_some() && enter(v4.into()).is_none());
        let others = [enter(v6(1, 1)), enter(v6(1, 2)), enter(v6(2, 1))];
        assert!(others.iter().all(Option::is_some) && enter(v6(1, 3)).is_none());
        drop(first);
        let again = enter(v4.into());
        assert!(again.is_some());
        drop((second, others, again));
        assert!(addresses.0.lock().is_empty());
    }
}

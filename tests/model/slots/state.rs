//! What the store, the gateways and the clients know.

/// By its place in `Rules::askers`.
pub type Request = usize;
/// A token may have several requests.
pub type Token = usize;
/// The most that may hold the lock while one who says so does, itself included.
pub type Width = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant {
    /// From 1 on: the smallest that nobody had.
    pub slot: u8,
    pub number: u8,
}

/// What a token has of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// `None` for an offer.
    pub grant: Option<Grant>,
    /// Whose attempt it belongs to; `None` once it is pinned.
    pub by: Option<Request>,
    /// Its lease has ended, or the offer has lapsed.
    pub is_over: bool,
    pub width: Width,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Standing {
    /// Passed over until its waiter comes back.
    Aside,
    Present,
    Offered,
}

/// A place in the wait queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub token: Token,
    pub by: Option<Request>,
    pub standing: Standing,
    pub width: Width,
}

/// When somebody is bound to look at the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Due {
    Never,
    AtAnEnd,
    EachSecond,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Script {
    /// Without `wait`.
    Try,
    Join,
    Look,
    Release,
    TakeBack,
}

/// A command that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sent {
    pub script: Script,
    pub request: Request,
    /// Nobody waits any more for the answer to one that comes late.
    pub is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    NotSent,
    Sent,
    Waits,
    Told,
    Over,
    TakesBack,
    /// Its gateway was killed.
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deletion {
    None,
    Sent,
    Answered,
}

/// What a client relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Told {
    pub number: u8,
    /// The smallest that it asked for and was told to have.
    pub width: Width,
}

/// What a token is for the store and for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    pub entry: Option<Entry>,
    /// It was released, and never holds again.
    pub is_final: bool,
    pub told: Option<Told>,
    pub deletion: Deletion,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Left {
    pub ends: u8,
    pub timeouts: u8,
    /// Clients that leave, and gateways that are killed.
    pub leaves: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub holders: Vec<Holder>,
    /// First come, first served.
    pub queue: Vec<Place>,
    /// One per request.
    pub voided: Vec<bool>,
    pub phases: Vec<Phase>,
    pub due: Due,
    /// In order, so that equal states are equal.
    pub sent: Vec<Sent>,
    pub left: Left,
    /// The promise that a step broke.
    pub broken: Option<&'static str>,
}

impl State {
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.holders.iter().filter_map(|holder| holder.entry)
    }

    pub fn unexpired(&self) -> impl Iterator<Item = Entry> {
        self.entries().filter(|entry| !entry.is_over)
    }

    pub fn place_of(&mut self, token: Token) -> Option<&mut Place> {
        self.queue.iter_mut().find(|place| place.token == token)
    }

    pub fn leave_queue(&mut self, token: Token) {
        self.queue.retain(|place| place.token != token);
    }

    pub fn send(&mut self, script: Script, request: Request) {
        self.add(Sent { script, request, is_awaited: true });
    }

    pub fn add(&mut self, sent: Sent) {
        self.sent.push(sent);
        self.sent.sort_unstable();
    }

    pub fn remove(&mut self, sent: Sent) {
        let at = self.sent.iter().position(|other| *other == sent);
        if let Some(at) = at {
            self.sent.remove(at);
        }
    }

    /// Only the order of numbers matters: it makes them small.
    pub fn rank_numbers(&mut self) {
        let known = |holder: &Holder| {
            let granted = holder.entry.and_then(|entry| entry.grant).map(|grant| grant.number);
            [granted, holder.told.map(|told| told.number)]
        };
        let mut numbers: Vec<u8> = self.holders.iter().flat_map(known).flatten().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let rank = |number: &mut u8| {
            *number = numbers.iter().take_while(|other| **other <= *number).count() as u8;
        };
        for holder in &mut self.holders {
            holder.told.iter_mut().for_each(|told| rank(&mut told.number));
            let grant = holder.entry.as_mut().and_then(|entry| entry.grant.as_mut());
            grant.into_iter().for_each(|grant| rank(&mut grant.number));
        }
    }
}

//! What is searched: who asks, what else may happen, and which rule is left out.

use super::state::{Left, Request, Token, Width};

#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub token: Token,
    pub width: Width,
    pub waits: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Those of one token follow each other, in the order in which they are sent.
    pub askers: &'static [Asker],
    pub may: Left,
    /// The tokens whose clients may send a `DELETE`.
    pub releases: &'static [Token],
    pub most_offers: usize,
    /// Gateways are killed.
    pub kills: bool,
    pub mutant: Mutant,
}

/// What is left out of the rules, or done otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    None,
    /// A token that asks again is not asked first what it has.
    OwnEntryIsIgnored,
    /// Only what the one who asks says counts, and not what those say who hold.
    OwnWidthAlone,
    /// An offer is no entry.
    OffersDoNotCount,
    /// Who does not wait takes what is free while somebody waits.
    NewcomerOvertakes,
    /// Whoever fits is served, and not who came first.
    WhoFitsOvertakes,
    /// A hand-off makes one offer, however many are admitted.
    OneOffer,
    /// A grant does not hand off.
    GrantHandsOffNothing,
    /// A script that grants nothing does not hand off what it found over.
    RefusalHandsOffNothing,
    /// Nobody looks whether the first, who is not admitted yet, is still there.
    NobodyLooksEachSecond,
    /// Nobody looks when a lease ends.
    NothingIsDue,
    /// A lease that has ended counts.
    WhatIsOverStays,
    TakeBackIgnoresAttempt,
    TakeBackVoidsNothing,
    RepetitionDoesNotPin,
    ReleaseLeavesNoMark,
    /// The slot of a newcomer is how many hold it then.
    SlotIsCounted,
    /// A command takes what its token was offered, whatever it says itself.
    OfferIsTakenByAnyWidth,
    /// Who holds beside others is told so when it asks to hold beside fewer.
    FewerIsToldAsHeld,
}

impl Rules {
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    pub fn tokens(&self) -> usize {
        self.askers.iter().map(|asker| asker.token + 1).max().unwrap_or(0)
    }

    pub fn first_of(&self, token: Token) -> Option<Request> {
        self.askers.iter().position(|asker| asker.token == token)
    }
}

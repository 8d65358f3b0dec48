//! How much may happen in one search, and by which rules.

use super::state::{ATTEMPTS, Attempt, Faults, Gateway, REQUESTS, Request, Token, request_of};

/// A request: whose it is, and where it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    pub token: Token,
    pub gateway: Gateway,
    /// Without `wait`, it never takes a place.
    pub waits: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The first request of each token is sent in this order; a second one, a retry, at any time after the
    /// first.
    pub askers: &'static [Asker],
    /// The first so many stand in line when the search begins.
    pub joined: usize,
    /// The server made the tokens: their release leaves no mark.
    pub made: bool,
    /// What heals by itself and only costs time is wrong too: a second offer that lapses on account of one
    /// killed gateway, and a turn that is missed because another request gave up its token's place.
    pub is_strict: bool,
    pub may: Faults,
    pub mutant: Mutant,
}

/// What is left out of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    None,
    /// Whoever frees the lock hands it to nobody.
    FreeingHandsOffNothing,
    /// A new request takes a free lock, whoever stands in line.
    NewcomerOvertakes,
    /// A place is written without a look at the lock.
    JoinDoesNotLook,
    /// A look of one request takes the place that another has taken over.
    LookTakesPlace,
    /// A look makes a place where it finds none.
    LookCreatesPlace,
    /// Leaving voids nothing.
    LeavingVoidsNothing,
    /// Leaving voids what has a place or the lock, and nothing else.
    LeavingVoidsOnlySuccess,
    /// A last look that takes nothing voids nothing.
    LastLookVoidsNothing,
    /// What is superseded is not voided.
    SupersededIsNotVoided,
    /// A lock that was granted to a superseded attempt is pinned, as by another request.
    SupersededLockIsPinned,
    /// A place of a superseded attempt is another's.
    SupersededSeatIsForeign,
    /// The note of whom a place was taken from keeps a superseded attempt.
    SupersededStaysNoted,
    /// An offer keeps a superseded attempt.
    SupersededOfferStays,
    /// Whoever leaves takes back its last attempt only.
    FormersAreForgotten,
    /// A last look goes under the attempt whose command was not answered.
    LastLookSupersedesNothing,
    /// A ticket keeps its attempt.
    TicketKeepsAttempt,
    /// An offer to an attempt that its gateway does not know is not declined.
    NothingIsDeclined,
    /// Declining takes a lock back too.
    DecliningDeletesLock,
    /// Not only a beat makes a gateway known.
    JoinMakesKnown,
    /// A gateway without waiters does not beat before the first of them joins.
    FirstJoinWithoutBeat,
    /// A gateway does nothing about a beat that finds it unknown.
    NewBeatIsIgnored,
    /// What was heard while an answer was on its way is forgotten when it comes.
    OldAnswerIsBelieved,
    /// A beat finds a gateway new only if the store has no beat of it at all.
    AnyBeatIsKnown,
    /// A beat after a long silence finds its gateway known.
    SilentIsKnown,
    /// A new incarnation of the store is not noticed.
    FailoverIsNotNoticed,
    /// A connection on which hints may have been lost is replaced, and no more.
    LostMoveIsNotNoticed,
    /// Whoever is passed over loses its place.
    PassedOverLosesPlace,
    /// A look from aside withdraws the offer that was made in the meantime.
    LookWithdrawsOffer,
    /// A look is granted although the offer has gone on.
    LookIgnoresOffer,
    /// When an offer lapses, gateways are present that were not heard since it began.
    LapseCountsOldBeats,
    /// Whoever let an offer lapse is present if its gateway beats.
    LapserIsPresent,
    /// A gateway that beats is not told that one of its waiters let an offer lapse.
    LapserIsNotTold,
    /// A grant to a request that takes no place is not told to the one of its token that stands in line.
    GrantTellsNobody,
    /// An offered lock is not on the list of those to look at.
    OfferIsNotDue,
    /// Whoever leaves or declines leaves its offer to lapse.
    LeaverKeepsOffer,
    /// A release by the token that the lock is offered to leaves the offer.
    ReleaseKeepsOffer,
    /// A client that is seen to leave loses its place.
    LeaverLosesPlace,
    /// A place is not given back to whom it was taken from.
    NothingIsGivenBack,
    /// A look that finds its place taken does not hand off a free lock.
    MovedHandsOffNothing,
    /// Whose place was taken does not look again.
    MovedDoesNotLook,
    /// Whoever puts itself back just after its offer lapsed is absent.
    PutBackIsAbsent,
    /// A reply that names another waiter of the gateway wakes nobody.
    OtherOfferIsIgnored,
    /// Whoever puts itself back does so at the end of the line.
    PutBackIsLast,
    /// Whoever puts itself back displaces another request of its token.
    PutBackDisplaces,
    /// Whoever leaves stays noted as the one to whom the place goes back.
    LeaverStaysNoted,
    /// A last look makes a ticket of a place that was taken from another, and stays noted itself.
    LastLookGivesNothingBack,
    /// A freed token keeps its place.
    ReleaseKeepsPlace,
    /// A freed token may join and be granted.
    FreedIsForgotten,
    /// The first in line is not granted a lock that it asks for without waiting.
    TicketIsNotGranted,
}

impl Rules {
    pub fn token_of(&self, attempt: Attempt) -> Token {
        self.askers[request_of(attempt)].token
    }

    pub fn gateway_of(&self, attempt: Attempt) -> Gateway {
        self.askers[request_of(attempt)].gateway
    }

    pub fn has(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    /// The requests of a gateway, or all.
    pub fn requests(&self, at: Option<Gateway>) -> impl Iterator<Item = Request> {
        let askers = self.askers.iter().enumerate().take(REQUESTS);
        askers.filter(move |(_, asker)| at.is_none_or(|at| asker.gateway == at)).map(|(request, _)| request)
    }
}

pub fn first_attempt(request: Request) -> Attempt {
    u8::try_from(request).unwrap() * ATTEMPTS
}

//! What is searched: who works, what else may happen, and which rule is left out.

use super::state::{Print, Run, Token};

/// A run of a worker. Two runs may share a token, as two processes do that were given the same one.
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    pub token: Token,
    /// The server made the token, for its first request: it only confirms afterwards.
    pub is_made: bool,
    pub print: Option<Print>,
    pub takes_over: bool,
    /// Its posts and renewals carry `Fencing-Token`.
    pub says_number: bool,
    pub begins: u8,
    /// Each with a body of its own.
    pub posts: u8,
    pub gives_up: u8,
    pub renews: u8,
}

/// How much may happen in one search, and by which rules.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub workers: &'static [Worker],
    /// Commands that run twice. A begin is sent only once: in doubt its gateway voids it.
    pub repeats: u8,
    /// How often a record ends, and the key is new.
    pub ends: u8,
    pub losses: u8,
    pub breaks: u8,
    /// Marks run out once nothing of their token is on its way.
    pub marks_run_out: bool,
    pub mutant: Mutant,
}

/// What is left out of the rules, or done otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    None,
    /// Taking back looks at the token only.
    TakeBackIgnoresAttempt,
    /// A repeated begin leaves the place as it is.
    RepetitionDoesNotPin,
    GivingUpLeavesNoMark,
    /// A copy of a begin that comes late is granted the place.
    TakeBackVoidsNothing,
    /// A server-made token begins like any other.
    ServerMadeBegins,
    /// Marks are gone while a request of their token is still on its way.
    MarksRunOutEarly,
    /// A post is taken from any token.
    AnyTokenStores,
    /// A second body replaces the first.
    SecondPostReplaces,
    /// A post makes the record that it does not find.
    PostCreates,
    /// A result is kept for less than a post may be repeated.
    KeepIsShort,
    /// What `keep` leaves is counted from the beginning: nothing, for a result that is stored late.
    KeepCountsFromBeginning,
    RenewalRevives,
    /// The end of the lease removes the record.
    LeaseEndForgets,
    /// Who leaves a place that was taken over removes the record.
    LeaverForgetsEarlier,
    /// Who has done nothing leaves a place that was taken over without a worker.
    LeaverThrowsOut,
    /// Who gave up while another was at work has its place again after that.
    FormerIsNotGivenUp,
    /// A worker that gives up is not counted, whatever it says.
    GivingUpIsClean,
    /// While there is no result a record lives for 7 days, but for a take-over,
    TakeOverShortensMemory,
    /// a give-up,
    GivingUpShortensMemory,
    /// or a take-back, from which on it lives for `keep`.
    TakeBackShortensMemory,
    /// A break removes what it finds.
    BreakForgets,
    /// A late copy of a break ends the next place.
    BreakIgnoresNumber,
    /// Over nobody's record a post is told that it was superseded.
    NobodySupersedes,
    PostIgnoresNumber,
    RenewalIgnoresNumber,
    /// Where nobody works any more, `takeover=false` forbids nothing.
    NobodyIsTakenOver,
    /// A request without a fingerprint passes as the one that the record has.
    MissingPrintMatches,
    TakeOverChangesPrint,
    /// A worker whose lease lapsed gets its old number back.
    OwnLapsedRunsOn,
    /// `earlier` does not count the run of the token itself.
    OwnRunIsNotCounted,
    /// The number is counted in the record, and not by the fence.
    RecordCountsNumbers,
    /// A result is told before fingerprints are compared.
    ResultBeforePrint,
    /// Who gave up is refused before it is told the result.
    ReleasedBeforeResult,
    /// Who gave up is told to wait.
    BusyBeforeReleased,
    /// A worker's own repetition is told to wait for itself.
    BusyBeforeOwn,
}

impl Rules {
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    pub fn token(&self, run: Run) -> Token {
        self.workers[run].token
    }
}

//! Several gateways of one store: who is asked next, and why the others gave no answer.

use std::sync::Arc;
use std::time::Duration;

use super::GatewaySettings;
use super::addresses::name_of;
use super::ending::CommandFailure;
use super::gateway::{Gateway, LOCK};
use super::reply::ReleaseAnswer;
use super::trouble::{Contact, Trouble};
use crate::clock::{Backoff, boottime};
use crate::lock::{LeaseToken, LockKey};

/// How late a timer may ring on a busy machine. If it is later, this process or the machine stood still.
const MAY_BE_LATE: Duration = Duration::from_secs(1);
/// So much is added once where they stood still: the last try may have begun when its time was over.
const ONE_MORE_TRY: Duration = Duration::from_secs(1);
/// How long an answer may take, and how long where another gateway can be asked instead.
const ANSWER_MAY_TAKE: Duration = Duration::from_secs(10);
const ANSWER_OF_SEVERAL_MAY_TAKE: Duration = Duration::from_secs(4);

/// All gateways, asked about the same. They share a store, so what one of them granted holds at all.
#[derive(Clone)]
pub(crate) struct Gateways {
    members: Vec<Member>,
    wait: Duration,
    /// For how long this process or the machine stood still: that was no silence of a gateway.
    stood_still: Duration,
    /// Who is asked next, unless that is useless: the last one that answered, until it fails.
    first: usize,
    /// How many have failed since one answered, or since all had failed.
    failures: usize,
    /// A gateway has answered once, so these are addresses of gateways.
    have_answered: bool,
}

#[derive(Clone)]
struct Member {
    name: String,
    gateway: Arc<Gateway>,
    /// Why it gave no answer when it was last asked.
    trouble: Option<Trouble>,
}

impl Gateways {
    /// Those of the settings, to be asked about this lock with this token, if about one and with one.
    pub(crate) fn new(
        settings: &GatewaySettings,
        key: Option<&LockKey>,
        token: Option<&LeaseToken>,
    ) -> Result<Self, CommandFailure> {
        Self::at(LOCK, settings, key.map(std::slice::from_ref).unwrap_or_default(), token)
    }

    /// The same, where what they are asked about is at this path, and may be several.
    pub(crate) fn at(
        path: &'static str,
        settings: &GatewaySettings,
        keys: &[LockKey],
        token: Option<&LeaseToken>,
    ) -> Result<Self, CommandFailure> {
        let member = |address| {
            let gateway = Gateway::new(path, address, settings, keys, token);
            let gateway = Arc::new(gateway.map_err(CommandFailure::not_possible)?);
            Ok(Member { name: name_of(address), gateway, trouble: None })
        };
        let members = settings.addresses.iter().map(member).collect::<Result<_, CommandFailure>>()?;
        Ok(Self::of(members, settings.wait))
    }

    fn of(members: Vec<Member>, wait: Duration) -> Self {
        Self { members, wait, stood_still: Duration::ZERO, first: 0, failures: 0, have_answered: false }
    }

    /// The time as gateways are waited for: without that in which this process or the machine stood still.
    pub(crate) fn now(&self) -> Duration {
        boottime().saturating_sub(self.stood_still)
    }

    /// What is left of the wait for a gateway that decides, if it began at this time.
    pub(crate) fn left_since(&self, began_at: Duration) -> Duration {
        began_at.saturating_add(self.wait).saturating_sub(self.now())
    }

    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// How long the answer to a request may take that does not wait.
    pub(crate) fn answer_may_take(&self) -> Duration {
        if self.count() == 1 { ANSWER_MAY_TAKE } else { ANSWER_OF_SEVERAL_MAY_TAKE }
    }

    pub(crate) fn name(&self, number: usize) -> &str {
        &self.members[number].name
    }

    /// Who is to be asked, and by which number it is known here. One that would refuse again is asked only if all would.
    pub(crate) fn next(&self) -> (usize, Arc<Gateway>) {
        let in_turn = (self.first..self.count()).chain(0..self.first);
        let next = in_turn.into_iter().find(|&number| !self.members[number].is_useless());
        let number = next.unwrap_or(self.first);
        (number, self.members[number].gateway.clone())
    }

    /// Asks another one next.
    pub(crate) fn pass_over(&mut self, number: usize) {
        self.first = (number + 1) % self.count();
    }

    /// Notes that this one has answered: it is asked first from now on.
    pub(crate) fn answered(&mut self, number: usize) {
        self.first = number;
        self.failures = 0;
        self.have_answered = true;
        self.forget_troubles();
    }

    /// Notes why this one gave no answer: the one after it is asked next. Returns whether all have failed in turn, but for
    /// those that would refuse again. Then strangers are forgiven, if there was a gateway once: none is left to ask instead.
    pub(crate) fn failed(&mut self, number: usize, trouble: Trouble) -> bool {
        if self.next().0 == number {
            self.pass_over(number);
        }
        self.have_answered |= trouble.contact == Contact::Answered;
        self.failures += usize::from(!trouble.is_lasting);
        self.members[number].trouble = Some(trouble);
        let have_all_failed = self.failures >= self.useful();
        if have_all_failed {
            self.failures = 0;
            if self.have_answered {
                self.forgive_strangers();
            }
        }
        have_all_failed
    }

    /// Makes the pause before the next try.
    pub(crate) async fn pause(&mut self, backoff: &mut Backoff) {
        let (began_at, may_take) = (boottime(), backoff.next());
        backoff.pause().await;
        self.note_stop(began_at, may_take);
    }

    /// Notes that something has ended that began at this time of the machine, and may have taken so long. If it took longer, this
    /// process or the machine stood still. The first time, all of it is forgiven. A machine that is busy all the time must not have
    /// the wait go on for ever, so later only the rest is.
    pub(crate) fn note_stop(&mut self, began_at: Duration, may_take: Duration) {
        let took = boottime().saturating_sub(began_at);
        if took > may_take + MAY_BE_LATE {
            let is_first = self.stood_still.is_zero();
            self.stood_still += if is_first { took + ONE_MORE_TRY } else { took - may_take };
        }
    }

    /// How many might say something else when they are asked again.
    fn useful(&self) -> usize {
        self.members.iter().filter(|member| !member.is_useless()).count()
    }

    /// Whether asking again may help at one of them.
    pub(crate) fn may_answer(&self) -> bool {
        self.useful() > 0
    }

    /// What has answered in the place of a gateway, without a word of HTTP or with another certificate, may be gone in a moment.
    pub(crate) fn forgive_strangers(&mut self) {
        let troubles = self.members.iter_mut().filter_map(|member| member.trouble.as_mut());
        for trouble in troubles.filter(|trouble| trouble.contact < Contact::Answered) {
            trouble.is_lasting = false;
        }
    }

    /// The same of all, also of those that refuse: each is asked once more in its turn.
    pub(crate) fn forgive_all(&mut self) {
        let troubles = self.members.iter_mut().filter_map(|member| member.trouble.as_mut());
        troubles.for_each(|trouble| trouble.is_lasting = false);
    }

    /// Why there is no answer, gateway by gateway; nothing where none is known to have failed.
    pub(crate) fn trouble(&self) -> Option<String> {
        let told = self.members.iter().filter_map(|member| {
            let trouble = member.trouble.as_ref()?;
            Some(format!("{}: {}", member.name, trouble.reason))
        });
        let told: Vec<_> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Releases the lock, or gives up the place in the queue, at the first that answers. Of work that is done once,
    /// `is_clean` says that certainly nothing of it was done.
    pub(crate) async fn release(&mut self, is_clean: bool, patience: Duration) -> Option<ReleaseAnswer> {
        self.ask(patience, async |gateway, patience| gateway.release(is_clean, patience).await).await
    }

    /// The first answer. Each is asked once, unless it would say again what it has said before.
    pub(crate) async fn ask<T>(
        &mut self,
        patience: Duration,
        request: impl AsyncFn(&Gateway, Duration) -> Result<T, Trouble>,
    ) -> Option<T> {
        let patience = patience / u32::try_from(self.count()).unwrap_or(u32::MAX);
        for _ in 0..self.useful() {
            let (number, gateway) = self.next();
            match request(&gateway, patience).await {
                Ok(answer) => {
                    self.answered(number);
                    return Some(answer);
                }
                Err(trouble) => {
                    self.failed(number, trouble);
                }
            }
        }
        None
    }

    /// Asks all with this token from now on.
    pub(crate) fn use_token(&mut self, token: &LeaseToken) -> Result<(), String> {
        self.members.iter_mut().try_for_each(|member| Arc::make_mut(&mut member.gateway).use_token(token))
    }

    /// Forgets what went wrong: what was refused to one request may be granted to another.
    pub(crate) fn forget_troubles(&mut self) {
        self.members.iter_mut().for_each(|member| member.trouble = None);
    }

    /// Notes that this one refuses requests with this token, whatever they ask for.
    pub(crate) fn refused(&mut self, number: usize, reason: String) {
        let contact = Contact::Answered;
        self.failed(number, Trouble { reason, contact, may_be_done: false, is_lasting: true });
    }
}

impl Member {
    fn is_useless(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_lasting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_still_is_no_part_of_the_wait_and_a_busy_machine_does_not_make_it_endless() {
        let wait = Duration::from_secs(10);
        let mut gateways = Gateways::of(Vec::new(), wait);
        let began_at = gateways.now();
        let left_since = |gateways: &Gateways, began_at| gateways.left_since(began_at).as_secs_f64().round();
        // What may take a second is late; the machine slept; then it is busy all the time.
        for (took_ms, left) in [(1_900, 10.0), (5_000, 16.0), (3_000, 18.0), (3_000, 20.0)] {
            let took = Duration::from_millis(took_ms);
            gateways.note_stop(boottime().saturating_sub(took), Duration::from_secs(1));
            let all_left = [began_at, gateways.now()].map(|began_at| left_since(&gateways, began_at));
            // What begins later is waited for as long as was said, and not for longer.
            assert_eq!(all_left, [left, 10.0], "{took:?}");
        }
    }
}

//! Of results, and of those who store them.

use super::*;

/// A break whose answer was lost may be done after the result was told. One that was answered was done before.
pub fn a_break_that_nobody_heard_of_may_still_be_done() {
    let history = |broken: Answer| {
        told()
            .to("a", begin(), work(1, 0))
            .to("a", store("r"), stored(1))
            .to("", break_cleanly(1), broken)
            .to("b", begin(), done(1, "r"))
            .to("c", begin(), work(3, 0))
    };
    history(Answer::Lost).is_right();
    history(Answer::Unknown).is_right();
    history(Answer::Broken).breaks("O1");
    history(Answer::Refused).breaks("O1");
    history(superseded(2, false)).breaks("O1");
}

pub fn a_result_that_its_worker_never_posted_is_found() {
    let begun = || told().to("a", begin(), work(1, 0)).to("b", begin(), Answer::Busy { number: 1 });
    begun().to("a", store("r"), stored(1)).to("c", begin(), done(1, "r")).is_right();
    begun().to("a", store("r"), Answer::Lost).to("c", begin(), done(1, "r")).is_right();
    begun().to("c", begin(), done(1, "r")).breaks_also_after_a_loss("O2");
    begun().to("a", store("r"), stored(1)).to("c", begin(), done(1, "s")).breaks_also_after_a_loss("O2");
    begun().to("b", store("r"), Answer::Lost).to("c", begin(), done(1, "r")).breaks_also_after_a_loss("O2");
    begun()
        .to("a", store("r"), stored(1))
        .to("c", begin(), Answer::Done { number: 1, result: "r".to_owned(), status: Some(3) })
        .breaks_also_after_a_loss("O2");
}

pub fn a_result_that_changes_is_found() {
    let begun = || told().to("a", begin(), work(1, 0)).to("a", store("r"), stored(1));
    begun().to("a", store("s"), Answer::ResultDiffers).to("b", begin(), done(1, "r")).is_right();
    begun().to("a", store("s"), stored(1)).breaks("O1");
    begun().to("a", store("s"), Answer::Lost).to("b", begin(), done(1, "s")).breaks("O1");
    begun().to("b", begin(), done(2, "r")).to("b", begin(), Answer::Lost).breaks_also_after_a_loss("O1");
    begun().to("b", begin(), work(2, 1)).breaks("O1");
    begun().to("b", begin(), Answer::Busy { number: 1 }).breaks("O1");
    begun().to("b", begin(), Answer::Abandoned).breaks_also_after_a_loss("O1");
    begun().to("a", renew(), Answer::AlreadyStored).to("a", give_up(), Answer::AlreadyStored).is_right();
    begun().to("a", renew(), Answer::LeaseOver).breaks("O1");
    begun().to("a", give_up(), Answer::GivenUp).breaks("O1");
}

/// A wall clock that was set ahead while the machine was off: results that are there after that end early.
pub fn a_result_whose_time_a_wrong_clock_has_read_may_end_early() {
    let misread_at = |at_us: u64| {
        let mut told = told()
            .to("a", begin(), work(1, 0))
            .to("a", store("r"), stored(1))
            .after_ms(100)
            .to("b", begin(), done(1, "r"))
            .after_ms(20_000)
            .to("c", begin(), work(2, 0));
        let stored_us = told.operations[1].end_us;
        told.disturbances.misread =
            vec![Span { start_us: stored_us + at_us, end_us: stored_us + at_us + MS }];
        told
    };
    misread_at(50 * MS).is_right();
    misread_at(60_000 * MS).breaks("O1");
}

pub fn a_result_that_is_gone_before_its_time_is_found() {
    let history = |ms, keep_s| {
        let store = Action::Store { result: "r".to_owned(), status: None, keep_s, number: None };
        told().to("a", begin(), work(1, 0)).to("a", store, stored(1)).after_ms(ms).to(
            "b",
            begin(),
            work(2, 0),
        )
    };
    history(KEEP_S * 1_000, None).is_right();
    history(KEEP_S * 1_000 - 100, None).breaks("O1");
    history(KEEP_S * 1_000, Some(2 * KEEP_S)).breaks("O1");
    history(KEEP_S * 2_000, Some(2 * KEEP_S)).is_right();
    // What comes then knows of nobody.
    told()
        .to("a", begin(), work(1, 0))
        .to("a", store("r"), stored(1))
        .after_ms(KEEP_S * 1_000)
        .to("b", begin(), work(2, 1))
        .breaks("O9");
}

pub fn a_result_that_stays_after_its_time_is_found() {
    let history = |ms| {
        told().to("a", begin(), work(1, 0)).to("a", store("r"), stored(1)).after_ms(ms).to(
            "b",
            begin(),
            done(1, "r"),
        )
    };
    history(KEEP_S * 1_000 - 100).is_right();
    history(KEEP_S * 1_000 + 100).breaks_also_after_a_loss("O1");
    // It was stored once: storing it again, and reading it, makes that no longer.
    told()
        .to("a", begin(), work(1, 0))
        .to("a", store("r"), stored(1))
        .after_ms(KEEP_S * 900)
        .to("a", store("r"), stored(1))
        .after_ms(KEEP_S * 900)
        .to("b", begin(), done(1, "r"))
        .breaks_also_after_a_loss("O1");
}

pub fn another_answer_to_the_same_result_is_found() {
    let again = |answer| {
        told().to("a", begin(), work(1, 0)).to("a", store("r"), stored(1)).to("a", store("r"), answer)
    };
    again(stored(1)).is_right();
    again(Answer::Unknown).is_right();
    again(Answer::ResultDiffers).breaks("O1");
    again(Answer::NotBegun).breaks("O1");
    again(superseded(1, true)).breaks("O1");
    let another = |answer| {
        told().to("a", begin(), work(1, 0)).to("a", store("r"), stored(1)).to("b", store("s"), answer)
    };
    another(superseded(1, true)).is_right();
    another(superseded(1, false)).breaks("O1");
    another(Answer::NotBegun).breaks("O1");
}

pub fn a_late_result_is_taken_from_the_last_worker_alone() {
    let lapsed = || told().to("a", begin(), work(1, 0)).after_ms(2 * TTL_MS);
    lapsed().to("a", store("r"), stored(1)).to("b", begin(), done(1, "r")).is_right();
    lapsed().to("b", begin(), work(2, 1)).to("a", store("r"), superseded(2, false)).is_right();
    lapsed()
        .to("b", begin(), work(2, 1))
        .to("a", store("r"), stored(1))
        .breaks("O3: stored by one who was superseded");
    lapsed()
        .to("b", begin(), work(2, 1))
        .to("b", leave_cleanly(), Answer::GivenUp)
        .to("b", store("s"), superseded(1, false))
        .to("a", store("r"), stored(1))
        .is_right();
    lapsed()
        .to("b", begin(), Answer::Unknown)
        .to("c", begin(), Answer::Busy { number: 2 })
        .to("a", store("r"), stored(1))
        .is_right();
    lapsed().to("b", begin(), work(2, 1)).to("a", store("r"), stored(2)).breaks_also_after_a_loss("O3");
}

/// A copy of its post came late, when its token had begun once more.
pub fn a_copy_of_a_refused_result_may_come_late_while_something_fails() {
    let history = |calm_since_us| {
        told()
            .to("a", begin(), work(1, 0))
            .after_ms(2 * TTL_MS)
            .to("b", begin(), work(2, 1))
            .to("a", store("r"), superseded(2, false))
            .but(|store| store.calm_since_us = calm_since_us)
            .after_ms(2 * TTL_MS)
            .to("a", begin(), work(3, 2))
            .to("c", begin(), done(3, "r"))
    };
    history(None).is_right();
    history(Some(0)).breaks_also_after_a_loss("O2");
}

pub fn a_worker_that_is_refused_without_a_reason_is_found() {
    let lapsed = || told().to("a", begin(), work(1, 0)).after_ms(2 * TTL_MS);
    lapsed().to("a", store("r"), Answer::NotBegun).breaks("O3");
    lapsed().to("a", store("r"), superseded(2, false)).breaks("O3");
    lapsed().to("b", begin(), Answer::Lost).to("a", store("r"), superseded(2, false)).is_right();
    lapsed().to("a", leave_cleanly(), Answer::Lost).to("a", store("r"), Answer::NotBegun).is_right();
    lapsed().to("", break_it(1), Answer::Lost).to("a", store("r"), Answer::NotBegun).is_right();
    let again = || lapsed().to("a", begin(), work(2, 1));
    again().to("", break_it(2), Answer::Broken).to("a", store("r"), Answer::NotBegun).is_right();
    // A take-over that no client was told of puts the worker back, its own too. Of two, only the last is undone.
    for token in ["a", "b"] {
        let taken = || lapsed().to(token, begin(), Answer::Lost);
        taken().to("a", store("r"), Answer::NotBegun).breaks("O3");
        taken().to("c", begin(), Answer::Lost).to("a", store("r"), Answer::NotBegun).is_right();
        taken().to(token, give_up(), Answer::Lost).to("a", store("r"), Answer::NotBegun).is_right();
    }
    again().to("a", store("r"), Answer::NotBegun).breaks("O3");
    // Nobody has a place that was given up.
    let given_up = || told().to("a", begin(), work(1, 0)).to("a", give_up(), Answer::GivenUp);
    given_up().to("a", store("r"), Answer::NotBegun).is_right();
    given_up().to("a", store("r"), superseded(1, false)).breaks("O3");
    given_up().to("b", begin(), work(2, 1)).to("a", store("r"), superseded(2, false)).is_right();
    given_up()
        .to("b", begin(), work(2, 1))
        .to("a", give_up(), Answer::GivenUp)
        .to("a", store("r"), superseded(2, false))
        .is_right();
    // Another was granted the place, and its lease was over before it could be told.
    let refused_after_ms = |ms| {
        lapsed().to("b", begin(), Answer::Refused).but(|begin| begin.start_us -= ms * MS).to(
            "a",
            store("r"),
            superseded(2, false),
        )
    };
    refused_after_ms(TTL_MS).is_right();
    refused_after_ms(TTL_MS - 10).breaks("O3");
    // Its own grant supersedes nobody.
    lapsed().to("b", begin(), Answer::Lost).to("a", store("r"), superseded(1, false)).breaks("O3");
}

pub fn a_number_that_is_not_compared_is_found() {
    let twice = || told().to("a", begin(), work(1, 0)).after_ms(2 * TTL_MS).to("a", begin(), work(2, 1));
    twice().to("a", store_by("r", 2), stored(2)).is_right();
    twice().to("a", store_by("r", 1), superseded(2, false)).is_right();
    twice().to("a", store_by("r", 1), stored(2)).breaks_also_after_a_loss("O3");
    let renew_by = |number| Action::Renew { ttl_ms: TTL_MS, number: Some(number) };
    twice().to("a", renew_by(2), same(2, 1)).is_right();
    twice().to("a", renew_by(1), superseded(2, false)).is_right();
    twice().to("a", renew_by(1), same(2, 1)).breaks_also_after_a_loss("O3");
    twice().to("a", store_by("r", 2), superseded(2, false)).breaks("O3");
}

pub fn a_waiter_that_is_told_late_is_found() {
    let history = |told_after_ms: u64| {
        told()
            .to("a", begin(), work(1, 0))
            .to("b", wait_for_s(20), done(1, "r"))
            .but(|waits| {
                waits.end_us += (told_after_ms + 3_000) * MS;
                waits.said_us = waits.end_us;
            })
            .after_ms(3_000)
            .to("a", store("r"), stored(1))
    };
    history(100).is_right();
    history(3_500).breaks_also_after_a_loss("O12");
}

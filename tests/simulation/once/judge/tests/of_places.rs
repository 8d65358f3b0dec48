//! Of those who are at work, and those who were.

use super::*;

pub fn numbers_that_do_not_grow_are_found() {
    let lapsed = || told().to("a", begin(), work(5, 0)).after_ms(2 * TTL_MS);
    lapsed().to("b", begin(), work(6, 1)).is_right();
    lapsed().to("b", begin(), work(4, 1)).breaks_also_after_a_loss("O7");
    lapsed().to("b", begin(), work(5, 1)).breaks_also_after_a_loss("O7");
    // Of one token too, and after it was given up.
    lapsed().to("a", begin(), work(6, 1)).is_right();
    lapsed().to("a", begin(), work(5, 1)).breaks_also_after_a_loss("O7");
    let given_up = || told().to("a", begin(), work(5, 0)).to("a", leave_cleanly(), Answer::GivenUp);
    given_up().to("b", begin(), work(6, 0)).is_right();
    given_up().to("b", begin(), work(5, 0)).breaks_also_after_a_loss("O7");
    // What others are told of it.
    lapsed().to("b", begin(), Answer::Lost).to("c", begin(), Answer::Busy { number: 4 }).breaks("O7");
}

pub fn a_place_that_is_taken_too_early_is_found() {
    let begun = || told().to("a", begin(), work(1, 0)).after_ms(TTL_MS / 2);
    begun().to("b", begin(), Answer::Busy { number: 1 }).is_right();
    begun().to("b", begin(), work(2, 1)).breaks("O5");
    begun().to("b", begin(), Answer::Abandoned).breaks_also_after_a_loss("O5");
    begun().to("a", give_up(), Answer::Lost).to("b", begin(), work(2, 1)).is_right();
    begun().to("", break_it(1), Answer::Broken).to("b", begin(), work(2, 1)).is_right();
    begun().to("", break_it(0), Answer::Broken).to("b", begin(), work(2, 1)).breaks("O5");
    begun().to("", break_it(1), superseded(2, false)).to("b", begin(), work(3, 1)).breaks("O5");
    // What ended it may be lost later, with all else, and a second try may find another worker.
    let tries_again = || begun().to("a", give_up(), superseded(3, false)).but(|last| last.end_us += 99 * MS);
    let mut lost_later = tries_again().to("b", begin(), work(2, 1));
    let at_us = lost_later.operations[1].end_us;
    lost_later.disturbances.losses = vec![Span { start_us: at_us, end_us: at_us }];
    lost_later.is_right();
    tries_again().to("b", begin(), work(2, 1)).breaks("O5");
    begun().to("b", Action::Look, seen(State::Working, 1, 0, Some(false))).is_right();
    begun().to("b", Action::Look, seen(State::Lapsed, 1, 0, Some(false))).breaks("O5");
    begun().to("b", Action::Look, Answer::NotBegun).breaks("O5");
    // A renewal, and a look of the worker itself, say for how long the place is its.
    let renewed = || begun().to("a", renew(), same(1, 0)).after_ms(TTL_MS / 2 + 100);
    renewed().to("b", begin(), work(2, 1)).breaks("O5");
    let looked = || {
        told()
            .to("a", begin(), Answer::Lost)
            .to("a", Action::Look, seen(State::Working, 1, 0, Some(true)))
            .to("c", begin(), work(2, 1))
    };
    looked().breaks("O5");
}

pub fn a_worker_that_is_not_counted_is_found() {
    let lapsed = || told().to("a", begin(), work(1, 0)).after_ms(2 * TTL_MS);
    let twice = || lapsed().to("b", begin(), work(2, 1)).after_ms(2 * TTL_MS);
    lapsed().to("b", begin(), work(2, 0)).breaks("O9");
    twice().to("c", begin(), work(3, 2)).is_right();
    twice().to("c", begin(), work(3, 1)).breaks("O9");
    // Its own first run counts.
    lapsed().to("a", begin(), work(2, 0)).breaks("O9");
    // Who gives up counts, unless it is clean. Then those before it count still.
    lapsed().to("a", give_up(), Answer::GivenUp).to("b", begin(), work(2, 0)).breaks("O9");
    lapsed().to("a", leave_cleanly(), Answer::GivenUp).to("b", begin(), work(2, 0)).is_right();
    twice().to("b", leave_cleanly(), Answer::GivenUp).to("c", begin(), work(3, 1)).is_right();
    twice().to("b", leave_cleanly(), Answer::GivenUp).to("c", begin(), work(3, 0)).breaks("O9");
    // A take-over that nobody was told of leaves all as it was.
    lapsed().to("b", begin(), Answer::Lost).to("c", begin(), work(3, 0)).breaks("O9");
    // A break counts the worker, and who stored a result, unless it is clean.
    lapsed().to("", break_it(1), Answer::Broken).to("b", begin(), work(2, 0)).breaks("O9");
    lapsed().to("", break_cleanly(1), Answer::Broken).to("b", begin(), work(2, 0)).is_right();
    lapsed().to("", break_cleanly(0), Answer::Broken).to("b", begin(), work(2, 0)).breaks("O9");
    let broken = |broken| lapsed().to("a", store("r"), stored(1)).to("", broken, Answer::Broken);
    broken(break_it(1)).to("b", begin(), work(2, 1)).is_right();
    broken(break_it(1)).to("b", begin(), work(2, 0)).breaks("O9");
    broken(break_cleanly(1)).to("b", begin(), work(2, 0)).is_right();
    // Time alone forgets nobody.
    lapsed().after_ms(KEEP_S * 2_000).to("b", begin(), work(2, 0)).breaks("O9");
    lapsed().to("b", Action::Look, Answer::NotBegun).breaks("O9");
    lapsed().to("b", Action::Look, seen(State::Lapsed, 1, 0, Some(false))).is_right();
}

pub fn a_worker_that_is_counted_twice_is_found() {
    let lapsed = || told().to("a", begin(), work(1, 0)).after_ms(2 * TTL_MS);
    lapsed().to("b", begin(), work(2, 2)).breaks("O9");
    lapsed().to("c", begin(), Answer::Refused).to("b", begin(), work(2, 2)).breaks("O9");
    lapsed().to("c", begin(), Answer::Lost).to("b", begin(), work(3, 2)).is_right();
    lapsed()
        .to("c", begin(), Answer::Busy { number: 1 })
        .to("b", begin(), work(3, 2))
        .breaks_also_after_a_loss("O9");
    // While something failed, a begin may have had the place, and lost it again.
    let failing = |wait: &mut Operation| wait.calm_since_us = None;
    lapsed().to("c", wait_for_s(1), Answer::Refused).but(failing).to("b", begin(), work(3, 2)).is_right();
    // So may an earlier try of the same one.
    lapsed().to("b", wait_for_s(1), work(3, 2)).but(failing).is_right();
    lapsed().to("b", wait_for_s(1), work(3, 2)).breaks("O9");
    // One that was refused is undone, unless a failover lost that.
    lapsed().to("c", begin(), Answer::Refused).but(failing).to("b", begin(), work(3, 2)).breaks("O9");
    let mut refused = lapsed().to("c", begin(), Answer::Refused).but(failing);
    let Operation { start_us, end_us, .. } = refused.operations[1];
    refused.disturbances.losses = vec![Span { start_us, end_us }];
    refused.to("b", begin(), work(3, 2)).is_right();
    // One grant has one answer.
    told().to("a", begin(), work(1, 0)).to("a", begin(), same(1, 0)).is_right();
    told().to("a", begin(), work(1, 0)).to("a", begin(), same(1, 1)).breaks("O9");
    told().to("a", begin(), work(1, 0)).to("b", begin(), same(1, 0)).breaks("O7");
}

pub fn a_lease_that_is_revived_is_found() {
    let lapsed = || told().to("a", begin(), work(1, 0)).after_ms(TTL_MS + 100);
    lapsed().to("a", renew(), Answer::LeaseOver).is_right();
    lapsed().to("a", renew(), same(1, 0)).breaks("O4");
    // Somebody may have renewed it before, or begun once more.
    lapsed().to("a", renew(), Answer::Lost).to("a", renew(), same(1, 0)).is_right();
    told()
        .to("a", begin(), work(1, 0))
        .after_ms(TTL_MS / 2)
        .to("a", renew(), same(1, 0))
        .after_ms(TTL_MS / 2 + 100)
        .to("a", renew(), same(1, 0))
        .is_right();
    // Before its end it is renewed.
    told().to("a", begin(), work(1, 0)).to("a", renew(), Answer::LeaseOver).breaks("O5");
}

pub fn a_place_that_is_blocked_beyond_its_lease_is_found() {
    let lapsed = || told().to("a", begin(), work(1, 0)).after_ms(TTL_MS + 100);
    lapsed().to("b", begin(), Answer::Busy { number: 1 }).breaks("O4");
    lapsed().to("b", Action::Look, seen(State::Working, 1, 0, Some(false))).breaks("O4");
    lapsed().to("a", begin(), Answer::Lost).to("b", begin(), Answer::Busy { number: 1 }).is_right();
    // Whoever waits is granted it soon after the end.
    let waits = |ms: u64| {
        told().to("a", begin(), work(1, 0)).to("b", wait_for_s(5), Answer::Busy { number: 1 }).but(|waits| {
            waits.end_us += ms * MS;
            waits.said_us = waits.end_us;
        })
    };
    waits(TTL_MS + 1_000).is_right();
    waits(TTL_MS + 2_000).breaks("O4");
}

pub fn a_place_of_which_nobody_was_told_is_found() {
    let alone = |answer, was_handed_out| {
        let told = Told { key: format!("{ALONE}a"), ..told() };
        let begun = told.to("a", begin(), answer).but(|begin| begin.was_handed_out = was_handed_out);
        begun.to("", Action::Look, seen(State::Working, 1, 0, None))
    };
    alone(Answer::Lost, true).is_right();
    alone(Answer::Lost, false).breaks("O11");
    alone(Answer::Refused, true).breaks("O11");
    alone(Answer::Unknown, true).is_right();
    let left = |answer| {
        let told = Told { key: format!("{ALONE}a"), ..told() };
        let begun = told.to("a", begin(), work(1, 0)).to("a", leave_cleanly(), answer);
        begun.to("", Action::Look, seen(State::Working, 2, 0, None))
    };
    left(Answer::Lost).is_right();
    left(Answer::GivenUp).breaks("O11");
    let mut at_once = left(Answer::GivenUp);
    at_once.operations[2].start_us = at_once.operations[1].start_us;
    at_once.is_right();
    let killed = |start_us| {
        let mut told = alone(Answer::Lost, false);
        told.disturbances.kills.push(Span { start_us, end_us: start_us });
        told
    };
    killed(1_001_000_000).is_right();
    killed(1_020_000_000).breaks("O11");
    let mut older = alone(Answer::Lost, false).after_ms(60_000);
    older.operations[1].end_us += 60_000 * MS;
    older.disturbances.returns.push(Span { start_us: 1_050_000_000, end_us: 1_050_000_000 });
    older.is_right();
}

pub fn a_look_that_is_wrong_is_found() {
    let begun = || told().to("a", begin(), work(1, 0));
    begun().to("a", Action::Look, seen(State::Working, 1, 0, Some(true))).is_right();
    begun().to("a", Action::Look, seen(State::Working, 1, 0, Some(false))).breaks_also_after_a_loss("O10");
    let _ =
        begun().to("b", Action::Look, seen(State::Working, 1, 0, Some(true))).breaks_also_after_a_loss("O10");
    let _ =
        begun().to("", Action::Look, seen(State::Working, 1, 0, Some(false))).breaks_also_after_a_loss("O10");
    // A late copy of its post came between the grant and its answer, which tells of the result.
    let found_its_own = |who| {
        told()
            .to(who, store("r"), Answer::Lost)
            .to("a", Action::Look, seen(State::Working, 1, 0, Some(true)))
            .to("a", begin(), done(1, "r"))
            .but(|begin| begin.start_us -= 100 * MS)
    };
    found_its_own("a").is_right();
    let _ = found_its_own("b").breaks_also_after_a_loss("O10");
    // A late copy of its begin came when the store had lost the grant.
    let begun_again = |calm_since_us| {
        begun().but(|begin| begin.calm_since_us = calm_since_us).to(
            "a",
            Action::Look,
            seen(State::Working, 2, 0, Some(true)),
        )
    };
    begun_again(None).breaks("O10");
    let _ = begun_again(Some(0)).breaks_also_after_a_loss("O10");
    // An earlier try of its begin was granted the place, and nobody heard of that but who looked.
    let tried_before = |calm_since_us| {
        told()
            .to("b", begin(), Answer::Lost)
            .to("a", Action::Look, seen(State::Working, 1, 0, Some(true)))
            .to("a", begin(), work(2, 1))
            .but(|begin| begin.start_us -= 100 * MS)
            .but(|begin| begin.calm_since_us = calm_since_us)
    };
    tried_before(None).is_right();
    let _ = tried_before(Some(0)).breaks_also_after_a_loss("O10");
    let stored = || begun().to("a", store("r"), stored(1));
    stored().to("a", Action::Look, seen(State::Done, 1, 0, Some(true))).is_right();
    stored().to("a", Action::Look, seen(State::Lapsed, 1, 0, Some(true))).breaks("O1");
    let of_length = |bytes| {
        Answer::Seen(Seen {
            state: State::Done,
            number: 1,
            earlier: 0,
            left_ms: 0,
            yours: None,
            bytes: Some(bytes),
        })
    };
    stored().to("", Action::Look, of_length(1)).is_right();
    stored().to("", Action::Look, of_length(2)).breaks("O2");
}

//! Of what a token, or a request, is told again.

use super::*;

pub fn a_token_that_gave_up_and_works_on_is_found() {
    let given_up = || told().to("a", begin(), work(1, 0)).to("a", give_up(), Answer::GivenUp);
    given_up().to("a", begin(), Answer::TokenReleased).is_right();
    given_up()
        .to("b", begin(), work(2, 1))
        .to("b", store("r"), stored(2))
        .to("a", begin(), done(2, "r"))
        .is_right();
    given_up().to("a", begin(), work(2, 1)).breaks("O10");
    given_up().to("b", begin(), work(2, 1)).to("a", begin(), Answer::Busy { number: 2 }).breaks("O10");
    given_up().after_ms(20_000).to("a", begin(), work(2, 1)).is_right();
    told().to("a", begin(), Answer::TokenReleased).breaks_also_after_a_loss("O10");
}

pub fn another_answer_to_the_same_request_is_found() {
    let given_up = || told().to("a", begin(), work(1, 0)).to("a", give_up(), Answer::GivenUp);
    given_up().to("b", begin(), work(2, 1)).to("a", give_up(), Answer::GivenUp).is_right();
    given_up().to("a", give_up(), Answer::NotBegun).breaks("O10");
    given_up().to("b", begin(), work(2, 1)).to("a", give_up(), superseded(2, false)).breaks("O10");
    // Also where it asks in the moment in which it is answered.
    let mut at_once = given_up().to("a", give_up(), Answer::NotBegun);
    at_once.operations[2].start_us = at_once.operations[1].end_us;
    at_once.breaks("O10");
    // A begin, while the lease runs.
    let begun = || told().to("a", begin(), work(1, 0));
    begun().to("a", begin(), same(1, 0)).is_right();
    begun().to("a", begin(), Answer::Busy { number: 1 }).breaks("O5");
    begun().to("a", begin(), work(2, 1)).breaks("O5");
    begun().to("a", store("r"), stored(1)).to("a", begin(), done(1, "r")).is_right();
}

pub fn a_token_that_a_gateway_made_and_that_begins_is_found() {
    let made = "~a-token-that-a-gateway-made-for-this";
    let lapsed =
        || told().to(made, begin(), work(1, 0)).but(|begin| begin.shows_token = false).after_ms(2 * TTL_MS);
    lapsed().to(made, begin(), Answer::TokenReleased).is_right();
    lapsed().to(made, begin(), work(2, 1)).breaks_also_after_a_loss("O10");
}

pub fn a_take_over_that_was_not_asked_for_is_found() {
    let lapsed = || told().to("a", begin(), work(1, 0)).after_ms(2 * TTL_MS);
    lapsed().to("b", begin_without_taking_over(), Answer::Abandoned).is_right();
    lapsed().to("b", begin_without_taking_over(), work(2, 1)).breaks_also_after_a_loss("O3");
    lapsed().to("b", begin(), Answer::Abandoned).breaks_also_after_a_loss("O4");
}

pub fn a_fingerprint_that_is_not_compared_is_found() {
    let (x, y) = (|| begin_for(Some("x")), || begin_for(Some("y")));
    let begun = || told().to("a", x(), work(1, 0));
    let differs = || Answer::FingerprintDiffers;
    begun().to("b", y(), differs()).to("b", begin(), differs()).is_right();
    begun().to("b", y(), Answer::Busy { number: 1 }).breaks("O2");
    begun().to("b", begin(), Answer::Busy { number: 1 }).breaks("O2");
    begun().to("b", x(), differs()).breaks_also_after_a_loss("O2");
    told().to("b", x(), differs()).breaks_also_after_a_loss("O2");
    // Nor when it is done, when it is lapsed, after a take-over, and after it was given up or broken.
    let stored = || begun().to("a", store("r"), stored(1));
    stored().to("b", x(), done(1, "r")).is_right();
    stored().to("b", y(), done(1, "r")).breaks("O2");
    let lapsed = || begun().after_ms(2 * TTL_MS);
    lapsed().to("b", y(), work(2, 1)).breaks("O2");
    lapsed().to("b", x(), work(2, 1)).to("c", y(), Answer::Busy { number: 2 }).breaks("O2");
    begun().to("a", give_up(), Answer::GivenUp).to("b", y(), work(2, 1)).breaks("O2");
    stored().to("", break_it(1), Answer::Broken).to("b", y(), work(2, 1)).breaks("O2");
    // Once it is over, or was left cleanly, it is for any request.
    begun().to("a", leave_cleanly(), Answer::GivenUp).to("b", y(), work(2, 0)).is_right();
    stored().to("", break_cleanly(1), Answer::Broken).to("b", y(), work(2, 0)).is_right();
    stored().after_ms(KEEP_S * 1_000).to("b", y(), work(2, 0)).is_right();
    // A record without one is for all.
    told().to("a", begin(), work(1, 0)).to("b", x(), Answer::Busy { number: 1 }).is_right();
    told().to("a", begin(), work(1, 0)).to("b", y(), Answer::Lost).to("c", x(), differs()).breaks("O2");
}

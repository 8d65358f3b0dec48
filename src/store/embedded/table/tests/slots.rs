//! Locks that several hold: who gets in, and in which order.

use std::collections::BTreeMap;

use super::*;
use crate::lock::{Attempt, Polled, Sharing, Slot, Slots};
use crate::store::{Enqueue, OFFER, Poll};

fn slots(number: u16) -> Slots {
    match Slots::new(number) {
        Some(slots) => slots,
        None => panic!("{number} slots"),
    }
}

/// A fresh attempt of `token` that bears so many holders.
fn wants(token: TokenHash, number: u16) -> LockRequest {
    let terms = Terms { slots: slots(number), ..Terms::default() };
    LockRequest { terms, ..request(token) }
}

fn waits(table: &mut Table, lock: &LockRequest, now: Duration) -> Acquired<Polled> {
    let request = Enqueue { lock: lock.clone(), takes_over: true, ticket: None, supersedes: Vec::new() };
    match table.enqueue(&request, now) {
        Ok(answer) => answer.map(|told| match told {
            crate::lock::Enqueued::Polled(polled) => polled,
            crate::lock::Enqueued::QueueFull => panic!("the queue is full"),
        }),
        Err(error) => panic!("{error}"),
    }
}

fn polls(table: &mut Table, lock: &LockRequest, now: Duration) -> Acquired<Polled> {
    match table.poll(&Poll(lock.clone()), now) {
        Ok(answer) => answer,
        Err(error) => panic!("{error}"),
    }
}

fn slot_of(lease: &Lease) -> (u16, u16) {
    lease.slot.map_or((0, 0), |Slot { number: slot, slots }| (slot, slots.get()))
}

fn refused(table: &mut Table, lock: &LockRequest, now: Duration) -> Refusal {
    match asked(table, lock, now) {
        Ok(Acquired::NotTaken(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn s1_the_smallest_number_counts_and_offers_count_too() {
    let mut table = table();
    let [first, second] = [(); 2].map(|()| wants(token(), 3));
    assert_eq!(slot_of(&granted(&mut table, &first, NOW)), (1, 3));
    assert_eq!(slot_of(&granted(&mut table, &second, NOW)), (2, 3));
    // One who bears fewer gets in when there are fewer, and then no other does.
    let refusal = refused(&mut table, &wants(token(), 2), NOW);
    assert_eq!(refusal.sharing, Some(Sharing { held: 2, slots: slots(3), holders: () }));
    refused(&mut table, &wants(token(), 1), NOW);
    assert_eq!(released(&mut table, &first.token, Tombstone::Final, NOW), Released::Released);
    let narrow = wants(token(), 2);
    assert_eq!(slot_of(&granted(&mut table, &narrow, NOW)), (1, 2));
    let refusal = refused(&mut table, &wants(token(), 1_000), NOW);
    assert_eq!(refusal.sharing, Some(Sharing { held: 2, slots: slots(2), holders: () }));
    // An offer takes the place of a holder until it lapses.
    let waiting = wants(token(), 2);
    assert!(matches!(waits(&mut table, &waiting, NOW), Acquired::NotTaken(Polled::Queued(_))));
    released(&mut table, &narrow.token, Tombstone::Final, NOW);
    refused(&mut table, &wants(token(), 3), NOW);
    assert!(matches!(polls(&mut table, &waiting, NOW + ms(1)), Acquired::Granted(_)));
}

#[test]
fn s2_a_token_has_one_slot_and_is_told_of_no_more_company_than_it_asks_for() {
    let mut table = table();
    let own = wants(token(), 5);
    let lease = granted(&mut table, &own, NOW);
    granted(&mut table, &wants(token(), 5), NOW);
    for (asks_for, is_told) in [(5, true), (9, true), (4, false), (1, false)] {
        let again = wants(own.token, asks_for);
        match asked(&mut table, &again, NOW) {
            Ok(Acquired::AlreadyHeld(held)) if is_told => assert_eq!(held.slot, lease.slot),
            Ok(Acquired::HeldOtherwise(number)) if !is_told => assert_eq!(number, slots(5)),
            other => panic!("{asks_for}: {other:?}"),
        }
    }
    // Who holds the lock alone asks for no less by asking for company.
    let alone = request(token());
    let elsewhere = LockKey::parse(b"elsewhere").unwrap_or_else(|error| panic!("{error}"));
    granted(&mut table, &LockRequest { key: elsewhere.clone(), ..alone.clone() }, NOW);
    let again = asked(&mut table, &LockRequest { key: elsewhere, ..wants(alone.token, 5) }, NOW);
    assert!(matches!(again, Ok(Acquired::AlreadyHeld(Lease { slot: None, .. }))), "{again:?}");
}

#[test]
fn s2_nothing_on_behalf_of_one_token_touches_another() {
    let mut table = table();
    let [one, two, three] = [(); 3].map(|()| wants(token(), 3));
    let [_, second, third] = [&one, &two, &three].map(|lock| granted(&mut table, lock, NOW));
    let renewal = renewed(&mut table, &two.token, ttl(60_000), NOW + ms(1));
    assert!(matches!(renewal, Renewed::Renewed(lease) if lease.slot == second.slot));
    released(&mut table, &one.token, Tombstone::None, NOW + ms(2));
    // Neither a stranger nor one whose lease is over ends what others have.
    assert_eq!(released(&mut table, &one.token, Tombstone::None, NOW + ms(3)), Released::HeldByAnother);
    assert_eq!(renewed(&mut table, &token(), ttl(60_000), NOW + ms(3)), Renewed::HeldByAnother);
    roll_back(&mut table, &two.token, Attempt::generate(), NOW + ms(4));
    let at = NOW + ms(10_000);
    assert_eq!(renewed(&mut table, &three.token, ttl(1), at), Renewed::HeldByAnother, "it is over");
    let broken = table.break_lock(&Break { key: key(), fence: third.fencing_token }, at);
    assert_eq!(broken, Broken::HeldByAnother, "a number is given once");
    let broken = table.break_lock(&Break { key: key(), fence: second.fencing_token }, at);
    assert!(matches!(broken, Broken::Broken(lease) if lease.slot == second.slot));
    assert!(is_free(&mut table, at));
}

#[test]
fn s4_a_slot_is_the_smallest_that_is_free_and_stays() {
    let mut table = table();
    let all = [(); 4].map(|()| wants(token(), 10));
    let slots_of: Vec<_> = all.iter().map(|lock| slot_of(&granted(&mut table, lock, NOW)).0).collect();
    assert_eq!(slots_of, [1, 2, 3, 4]);
    released(&mut table, &all[1].token, Tombstone::Final, NOW);
    released(&mut table, &all[3].token, Tombstone::Final, NOW);
    assert_eq!(slot_of(&granted(&mut table, &wants(token(), 10), NOW)), (2, 10));
    // What is over takes no slot, although nothing has removed it.
    renewed(&mut table, &all[2].token, ttl(60_000), NOW);
    assert_eq!(slot_of(&granted(&mut table, &wants(token(), 10), NOW + ms(10_000))), (1, 10));
}

#[test]
fn s6_a_writer_waits_for_no_reader_behind_it_and_a_request_that_does_not_wait_passes_nobody() {
    let mut table = table();
    let reader = wants(token(), 1_000);
    granted(&mut table, &reader, NOW);
    let writer = request(token());
    assert!(matches!(waits(&mut table, &writer, NOW), Acquired::NotTaken(Polled::Queued(_))));
    let behind = wants(token(), 1_000);
    assert!(matches!(waits(&mut table, &behind, NOW), Acquired::NotTaken(Polled::Queued(_))));
    refused(&mut table, &wants(token(), 1_000), NOW);
    released(&mut table, &reader.token, Tombstone::Final, NOW);
    assert!(matches!(polls(&mut table, &behind, NOW), Acquired::NotTaken(Polled::Queued(_))));
    let lease = match polls(&mut table, &writer, NOW) {
        Acquired::Granted(lease) => lease,
        other => panic!("{other:?}"),
    };
    assert_eq!(lease.slot, None);
    released(&mut table, &writer.token, Tombstone::Final, NOW);
    assert!(matches!(polls(&mut table, &behind, NOW), Acquired::Granted(_)));
}

#[test]
fn s7_all_readers_go_in_at_once_also_those_for_whom_there_was_no_offer_yet() {
    let mut table = table();
    let writer = request(token());
    granted(&mut table, &writer, NOW);
    let readers: Vec<_> = (0..100).map(|_| wants(token(), 1_000)).collect();
    for reader in &readers {
        waits(&mut table, reader, NOW);
    }
    table.take_hints();
    released(&mut table, &writer.token, Tombstone::Final, NOW);
    // Each looks only when it is told of an offer.
    let mut rounds = 0;
    let mut granted = 0;
    loop {
        let offered: Vec<_> = table.take_hints().into_iter().filter_map(offered_in).collect();
        if offered.is_empty() {
            break;
        }
        rounds += 1;
        assert!(offered.len() <= 30, "{}", offered.len());
        for attempt in offered {
            let reader = readers.iter().find(|reader| reader.attempt == attempt);
            let reader = reader.unwrap_or_else(|| panic!("nobody was offered that"));
            assert!(matches!(polls(&mut table, reader, NOW), Acquired::Granted(_)));
            granted += 1;
        }
    }
    assert_eq!(granted, 100, "in {rounds} rounds");
}

fn offered_in(hint: Hint) -> Option<Attempt> {
    if let Hint::Offered(_, _, attempt) = hint { Some(attempt) } else { None }
}

#[test]
fn s7_somebody_is_told_to_look_when_the_first_has_gone_and_others_fit() {
    let mut table = table();
    let reader = LockRequest { ttl: ttl(3_600_000), ..wants(token(), 1_000) };
    granted(&mut table, &reader, NOW);
    let writer = request(token());
    waits(&mut table, &writer, NOW);
    let behind = wants(token(), 1_000);
    waits(&mut table, &behind, NOW);
    assert_eq!(table.heartbeat(NOW).1, [], "the writer waits for the reader");
    table.queues.end(&key(), &writer.token, writer.attempt, TicketAfter::Kept, NOW);
    let lost_at = NOW + Duration::from_secs(10);
    assert_eq!(table.heartbeat(lost_at - ms(1)).1, []);
    assert_eq!(table.heartbeat(lost_at).1, [(key(), 0)]);
    assert!(matches!(polls(&mut table, &behind, lost_at), Acquired::Granted(_)));
}

/// Rule 3: what is offered is taken only by one who bears the company that there is.
#[test]
fn an_offer_that_its_token_may_not_take_any_more_is_withdrawn_and_its_place_stays() {
    let mut table = table();
    let [holder, leaving] = [(); 2].map(|()| wants(token(), 2));
    granted(&mut table, &holder, NOW);
    granted(&mut table, &leaving, NOW);
    let waiting = wants(token(), 2);
    waits(&mut table, &waiting, NOW);
    released(&mut table, &leaving.token, Tombstone::Final, NOW);
    // The same token asks anew, and wants to be alone.
    let narrower = request(waiting.token);
    assert!(matches!(waits(&mut table, &narrower, NOW), Acquired::NotTaken(Polled::Queued(_))));
    released(&mut table, &holder.token, Tombstone::Final, NOW);
    match polls(&mut table, &narrower, NOW) {
        Acquired::Granted(lease) => assert_eq!(lease.slot, None),
        other => panic!("{other:?}"),
    }
}

/// Rule 4: a slot that is kept belongs to no token, and its token's next one is another.
#[test]
fn a_slot_that_is_kept_after_its_release_is_taken_until_then() {
    let mut table = table();
    let min_hold = Some(Duration::from_secs(5));
    let first = wants(token(), 2);
    let first = LockRequest { terms: Terms { min_hold, ..first.terms }, ..first };
    granted(&mut table, &first, NOW);
    assert_eq!(released(&mut table, &first.token, Tombstone::None, NOW + ms(1)), Released::Released);
    assert_eq!(released(&mut table, &first.token, Tombstone::None, NOW + ms(1)), Released::HeldByAnother);
    assert_eq!(renewed(&mut table, &first.token, ttl(9_000), NOW + ms(1)), Renewed::HeldByAnother);
    let again = wants(first.token, 2);
    assert_eq!(slot_of(&granted(&mut table, &again, NOW + ms(1))), (2, 2));
    refused(&mut table, &wants(token(), 2), NOW + ms(2));
    assert_eq!(slot_of(&granted(&mut table, &wants(token(), 2), NOW + ms(5_000))), (1, 2));
}

#[test]
fn an_offer_of_a_slot_lapses_and_goes_on() {
    let mut table = table();
    let [holder, leaving] = [(); 2].map(|()| wants(token(), 2));
    granted(&mut table, &holder, NOW);
    granted(&mut table, &leaving, NOW);
    let [first, second] = [(); 2].map(|()| wants(token(), 2));
    waits(&mut table, &first, NOW);
    waits(&mut table, &second, NOW);
    released(&mut table, &leaving.token, Tombstone::Final, NOW);
    assert_eq!(table.heartbeat(NOW).1, [(key(), 0)], "an offer stands");
    assert!(matches!(polls(&mut table, &second, NOW), Acquired::NotTaken(Polled::Queued(_))));
    assert!(matches!(polls(&mut table, &second, NOW + OFFER), Acquired::Granted(_)));
}

#[test]
fn a_lock_by_slots_is_looked_at_and_listed_once() {
    let mut table = table();
    let all = [(3, 30_000), (5, 10_000), (4, 20_000)];
    let all = all.map(|(number, ttl_ms)| LockRequest { ttl: ttl(ttl_ms), ..wants(token(), number) });
    let leases = [&all[0], &all[1], &all[2]].map(|lock| granted(&mut table, lock, NOW));
    let (lease, sharing) = match inspected(&mut table, None, NOW) {
        Inspected::Held { lease, yours: None, sharing: Some(sharing), .. } => (lease, sharing),
        other => panic!("{other:?}"),
    };
    assert_eq!(lease, leases[1], "the one that ends first");
    assert_eq!((sharing.held, sharing.slots), (3, slots(3)));
    assert_eq!(sharing.holders, [1, 2, 0].map(|index: usize| leases[index].clone()));
    match inspected(&mut table, Some(all[0].token), NOW) {
        Inspected::Held { lease, yours: Some(true), .. } => assert_eq!(lease, leases[0], "its own"),
        other => panic!("{other:?}"),
    }
    let keys = |table: &mut Table, now| -> Vec<_> {
        table.list(&Reach::all(""), None, 10, now).0.into_iter().map(|listed| listed.lease).collect()
    };
    assert_eq!(keys(&mut table, NOW), [leases[1].clone()]);
    // The first is over, and the lock is held all the same.
    let later = NOW + ms(10_000);
    assert_eq!(keys(&mut table, later).len(), 1);
    assert!(table.purge(NOW + ms(30_000), 100));
    assert_eq!(keys(&mut table, NOW + ms(30_000)), []);
    assert_eq!(records_of(&table), 0, "S10: nothing is left");
}

#[test]
fn slots_that_are_undone_or_changed_leave_no_trace_in_what_is_counted() {
    let mut table = table();
    let [first, second] = [(); 2].map(|()| wants(token(), 2));
    granted(&mut table, &first, NOW);
    table.take_changes();
    granted(&mut table, &second, NOW);
    renewed(&mut table, &first.token, ttl(60_000), NOW);
    let changes = table.take_changes();
    table.undo(changes, NOW);
    assert_eq!(slot_of(&granted(&mut table, &wants(token(), 2), NOW)), (2, 2));
    assert_eq!(refused(&mut table, &wants(token(), 2), NOW).sharing.map(|sharing| sharing.held), Some(2));
}

/// Random steps beside a plain list of those who hold.
#[test]
fn random_steps_agree_with_a_list_of_holders() {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    let mut random = StdRng::seed_from_u64(31);
    let mut table = table();
    let mut now = NOW;
    // Slots, width and end by token.
    let mut holders = BTreeMap::<TokenHash, (u16, u16, Duration)>::new();
    let mut tokens: Vec<_> = (0..12).map(|_| token()).collect();
    let (mut grants, mut refusals) = (0, 0);
    for _ in 0..20_000 {
        now += ms(random.random_range(0..400));
        holders.retain(|_, (_, _, end)| *end > now);
        let index = random.random_range(0..tokens.len());
        let token = tokens[index];
        let own = holders.get(&token).copied();
        match random.random_range(0..10) {
            0..6 => {
                let number = random.random_range(1..=6);
                let lock = LockRequest { ttl: ttl(random.random_range(1..4_000)), ..wants(token, number) };
                let end = now + lock.ttl.as_duration();
                let least = holders.values().map(|(_, width, _)| *width).fold(number, u16::min);
                let answer = asked(&mut table, &lock, now);
                match (own, answer) {
                    (Some((_, width, _)), Ok(Acquired::HeldOtherwise(_))) => assert!(number < width),
                    (Some((slot, width, until)), Ok(Acquired::AlreadyHeld(lease))) => {
                        assert!(number >= width);
                        let told = slot_of(&lease);
                        assert!(told == (slot, width) || width == 1 && told == (0, 0), "{told:?}");
                        holders.insert(token, (slot, width, until.max(end)));
                    }
                    (None, Ok(Acquired::Granted(lease))) => {
                        assert!(holders.len() < usize::from(least), "one too many");
                        let slot = (1..).find(|slot| holders.values().all(|(taken, ..)| taken != slot));
                        let expected = if number == 1 { (0, 0) } else { (slot.unwrap_or(0), number) };
                        assert_eq!(slot_of(&lease), expected);
                        holders.insert(token, (expected.0.max(1), number, end));
                        grants += 1;
                    }
                    (None, Ok(Acquired::NotTaken(refusal))) => {
                        assert!(holders.len() >= usize::from(least), "room was left: {refusal:?}");
                        refusals += 1;
                    }
                    (own, answer) => panic!("{own:?}: {answer:?}"),
                }
            }
            6..8 => {
                let released = released(&mut table, &token, Tombstone::Final, now);
                let expected = match (own, holders.is_empty()) {
                    (Some(_), _) => Released::Released,
                    (None, true) => Released::NotHeld,
                    (None, false) => Released::HeldByAnother,
                };
                assert_eq!(released, expected);
                holders.remove(&token);
                tokens[index] = super::token();
            }
            8 => {
                let ttl = ttl(random.random_range(1..4_000));
                let is_renewed = matches!(renewed(&mut table, &token, ttl, now), Renewed::Renewed(_));
                assert_eq!(is_renewed, own.is_some());
                if let Some((_, _, end)) = holders.get_mut(&token) {
                    *end = (*end).max(now + ttl.as_duration());
                }
            }
            _ => drop(table.purge(now, random.random_range(0..3))),
        }
        let held = match inspected(&mut table, None, now) {
            Inspected::Free { .. } => 0,
            Inspected::Held { sharing, .. } => sharing.map_or(1, |sharing| sharing.held),
        };
        assert_eq!(held, holders.len() as u64);
    }
    assert!(grants > 1_000 && refusals > 1_000, "{grants} {refusals}");
}

/// How many hold it, and who they are, is told of the same ones: a lease of which less than a millisecond is left is over.
#[test]
fn those_who_are_counted_are_those_who_are_named() {
    let mut table = table();
    let (long, short) = (wants(token(), 9), wants(token(), 5));
    granted(&mut table, &long, NOW);
    granted(&mut table, &LockRequest { ttl: ttl(10), ..short }, NOW);
    let almost = NOW + ms(10) - Duration::from_micros(300);
    let seen = table.see(&Inspect { key: long.key.clone(), token: None }, almost);
    let Some(Inspected::Held { sharing: Some(Sharing { held, slots, holders }), .. }) = seen else {
        panic!("{seen:?}");
    };
    assert_eq!((held, slots.get(), holders.len()), (1, 9, 1));
}

//! Whose turn it is, and who is told.

use std::time::Duration;

use fencepost::lock::{Inspected, Refusal, Released, Renewed, Slots, Terms, Ticket, Ttl};
use fencepost::store::{Hint, Inspect, Renew, Renewer, TicketAfter};
use tokio::time::{Instant, timeout};

use super::{MARK_TTL, Scene, Waiter, beat, granted, in_line, is_told, offer_lapses, refused, soon};
use crate::for_each_store;
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask, Join};
use kit::stores::{AnyStore, LINE};
use kit::{PATIENCE, eventually};

for_each_store!(
    places_are_served_in_the_order_of_their_arrival,
    a_newcomer_never_overtakes_the_line,
    the_earlier_of_two_places_counts_and_a_new_one_is_behind_all,
    the_lease_begins_at_the_grant,
    an_offer_is_told_and_a_lost_hint_is_due,
    who_lets_an_offer_lapse_steps_aside_and_comes_back_to_its_place,
    who_looks_is_present_even_after_its_own_lapse,
    the_end_of_a_short_lease_is_told,
    the_end_of_a_min_hold_is_told,
    a_full_line_refuses_newcomers_at_its_limit,
    one_who_does_not_wait_never_joins,
);

async fn places_are_served_in_the_order_of_their_arrival(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let holder = scene.waiter();
    let mut last = holder.grant(30_000).await.fencing_token;
    let waiters = [scene.waiter(), scene.waiter_there(), scene.waiter(), scene.waiter_there()];
    let mut places = Vec::new();
    for (number, waiter) in waiters.iter().enumerate() {
        let standing = in_line(waiter.join().await);
        assert_eq!(standing.is_first, number == 0);
        assert!(standing.due_in_ms > 20_000, "{standing:?}");
        places.push(standing.ticket);
    }
    assert!(places.is_sorted() && places.windows(2).all(|pair| pair[0] != pair[1]), "{places:?}");
    let refusal = refused(scene.waiter().ask(1_000, Ask::Try).await);
    assert_eq!((refusal.waiters, refusal.position), (4, None));
    assert!(refusal.holder.is_some());
    let mut before = holder;
    for waiter in &waiters {
        assert_eq!(before.release().await, Released::Released);
        for other in waiters.iter().rev().filter(|other| other.token != waiter.token) {
            let answer = other.look().await;
            assert!(!matches!(answer, Answer::Granted(_)), "out of turn: {answer:?}");
        }
        let number = granted(waiter.look().await).fencing_token;
        assert!(number > last);
        (last, before) = (number, waiter.clone());
    }
}

async fn a_newcomer_never_overtakes_the_line(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    holder.grant(30_000).await;
    in_line(first.join().await);
    holder.release().await;
    // The lock is free, and promised.
    let refusal = refused(scene.waiter_there().ask(1_000, Ask::Try).await);
    assert_eq!(refusal, Refusal { waiters: 1, ..Refusal::default() });
    assert!(matches!(
        holder.store.call(Inspect { key: holder.key.clone(), token: None }, soon()).await.unwrap(),
        Inspected::Free { waiters: 1 }
    ));
    let second = scene.waiter_there();
    let standing = in_line(second.join().await);
    assert_eq!(standing.offered_to, Some(first.attempt), "a reply names to whom the lock is offered");
    assert!(standing.due_in_ms <= 800, "{standing:?}");
    // Nobody holds a lock that is only offered.
    let renewed = first
        .store
        .call(
            Renew {
                key: first.key.clone(),
                token: first.token,
                ttl: Ttl::from_ms(1_000).unwrap(),
                by: Renewer::Token,
            },
            soon(),
        )
        .await;
    assert_eq!(renewed.unwrap(), Renewed::NotHeld);
    granted(first.look().await);
}

async fn the_earlier_of_two_places_counts_and_a_new_one_is_behind_all(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, second) = (scene.waiter(), scene.waiter(), scene.waiter_there());
    holder.grant(60_000).await;
    let place = in_line(first.join().await).ticket;
    refused(first.last_look(TicketAfter::Kept).await);
    let remembered = |us| Join { ticket: Some(Ticket::new(us)), takes_over: false, supersedes: Vec::new() };
    let (early_us, late_us) = (1_000, 8_000_000_000_000_000);
    assert_eq!(in_line(first.again(&scene.here).join_again(remembered(late_us)).await).ticket, place);
    first.leave(TicketAfter::Kept).await;
    assert_eq!(in_line(second.join_again(remembered(late_us)).await).ticket, Ticket::new(late_us));
    // As if the clock had been set back.
    assert!(in_line(scene.waiter().join().await).ticket > Ticket::new(late_us));
    refused(second.last_look(TicketAfter::Kept).await);
    let back = second.again(&scene.there);
    assert_eq!(in_line(back.join_again(remembered(early_us)).await).ticket, Ticket::new(early_us));
}

async fn the_lease_begins_at_the_grant(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, waiter) = (scene.waiter(), scene.waiter());
    holder.grant(700).await;
    let join = Ask::Enqueue(Join { takes_over: true, ..Join::default() });
    in_line(waiter.ask(400, join).await);
    let mut left_ms = 0;
    eventually("the lease of the holder ends", async || match waiter.ask(400, Ask::Poll).await {
        Answer::Granted(lease) => {
            left_ms = lease.left_ms;
            true
        }
        _ => false,
    })
    .await;
    // On a quorum a part is not relied on, since clocks run apart.
    assert!((390..=400).contains(&left_ms), "none of it went by while waiting: {left_ms}");
}

async fn an_offer_is_told_and_a_lost_hint_is_due(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, waiter) = (scene.waiter(), scene.waiter_there());
    let mut hints = scene.there.hints();
    holder.grant(60_000).await;
    in_line(waiter.join().await);
    let far = beat(&waiter.store).await;
    assert!(far.due.is_empty(), "nothing is due: {far:?}");
    holder.release().await;
    is_told(&mut hints, &waiter.offer()).await;
    for gateway in [&scene.here, &scene.there] {
        assert_eq!(beat(gateway).await.due, [(waiter.key.clone(), 0)]);
    }
    granted(waiter.look().await);
    assert!(beat(&scene.there).await.due.is_empty());
    assert_eq!(in_line(scene.waiter().join().await).offered_to, None, "the offer was taken");
}

async fn who_lets_an_offer_lapse_steps_aside_and_comes_back_to_its_place(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, second) = (scene.waiter(), scene.waiter(), scene.waiter_there());
    holder.grant(60_000).await;
    let mut hints = scene.here.hints();
    let place = in_line(first.join().await).ticket;
    in_line(second.join().await);
    holder.release().await;
    offer_lapses(Instant::now()).await;
    // Its gateway beats, and yet it did not come: whoever never answers must not block the line.
    beat(&scene.here).await;
    granted(second.look().await);
    is_told(&mut hints, &Hint::Look(first.key.clone(), first.attempt)).await;
    assert!(beat(&scene.here).await.is_new, "its gateway learns that it has to come back");
    let late = in_line(first.look().await);
    assert_eq!((late.ticket, late.is_first), (place, true), "a late look brings it back");
    // It is there again, and no longer one whose place is lost after a while.
    tokio::time::sleep(LINE.ticket_ttl).await;
    let third = scene.waiter();
    assert!(!in_line(third.join().await).is_first);
    second.release().await;
    granted(first.look().await);
}

async fn who_looks_is_present_even_after_its_own_lapse(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, late) = (scene.waiter(), scene.waiter());
    holder.grant(60_000).await;
    in_line(late.join().await);
    holder.release().await;
    offer_lapses(Instant::now()).await;
    granted(late.look().await);
}

/// The numbers of slots that a store can be asked for: one, and where it can share a lock, two.
fn each_slots(stores: &AnyStore) -> impl Iterator<Item = Slots> {
    let most = if stores.store.shares_no_locks().is_none() { 2 } else { 1 };
    (1..=most).map(|slots| Slots::new(slots).unwrap())
}

/// The first of a wait queue, who asks on these terms and has just been granted the lock; and the next one, for whom there is no
/// room beside it, at the other gateway.
async fn one_follows_another(scene: &Scene, terms: Terms, ttl_ms: u64) -> [Waiter; 2] {
    let (holder, first, second) = (scene.waiter(), Waiter { terms, ..scene.waiter() }, scene.waiter_there());
    holder.grant(60_000).await;
    in_line(first.join().await);
    in_line(second.join().await);
    holder.release().await;
    granted(first.ask(ttl_ms, Ask::Poll).await);
    [first, second]
}

async fn the_end_of_a_short_lease_is_told(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    for slots in each_slots(stores) {
        let mut hints = scene.there.hints();
        let terms = Terms { slots, ..Terms::default() };
        let [first, second] = one_follows_another(&scene, terms, 300).await;
        is_told(&mut hints, &Hint::Due(first.key.clone(), 300)).await;
        second.release().await;
        first.release().await;
    }
}

async fn the_end_of_a_min_hold_is_told(stores: &AnyStore) {
    // The servers of a quorum tell that a lock is free, and not when it will be.
    if stores.store.shares_no_locks().is_some() {
        return;
    }
    let scene = Scene::new(stores).await;
    for slots in each_slots(stores) {
        let mut hints = scene.there.hints();
        let terms = Terms { slots, min_hold: Some(Duration::from_millis(1_900)), ..Terms::default() };
        let [first, second] = one_follows_another(&scene, terms, 60_000).await;
        assert_eq!(first.release().await, Released::Released);
        let end = async {
            loop {
                match hints.recv().await.unwrap() {
                    Hint::Due(key, in_ms) if key == first.key => return in_ms,
                    _ => {}
                }
            }
        };
        let in_ms = timeout(PATIENCE, end).await.expect("not told");
        assert!(in_ms <= 1_900, "{in_ms}");
        second.release().await;
        let seen = async || {
            second.store.call(Inspect { key: second.key.clone(), token: None }, soon()).await.unwrap()
        };
        eventually("it is free", async || matches!(seen().await, Inspected::Free { .. })).await;
    }
}

async fn a_full_line_refuses_newcomers_at_its_limit(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let holder = scene.waiter();
    holder.grant(60_000).await;
    let mut waiters = Vec::new();
    for _ in 0..LINE.max_waiters_per_key {
        let waiter = scene.waiter_there();
        in_line(waiter.join().await);
        waiters.push(waiter);
    }
    let newcomer = scene.waiter();
    assert_eq!(newcomer.join().await, Answer::QueueFull);
    assert_eq!(newcomer.waiters().await, 5);
    in_line(waiters[2].again(&scene.here).join().await);
    assert_eq!(waiters[3].release().await, Released::Released);
    in_line(newcomer.join().await);
}

async fn one_who_does_not_wait_never_joins(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, passer) = (scene.waiter(), scene.waiter_there());
    holder.grant(60_000).await;
    for intent in [Ask::Try, Ask::Confirm] {
        assert_eq!(refused(passer.ask(1_000, intent).await).waiters, 0);
    }
    assert_eq!(passer.look().await, Answer::TicketLost, "nor by a look");
    assert_eq!(passer.waiters().await, 0);
    assert_eq!(passer.release().await, Released::HeldByAnother);
}

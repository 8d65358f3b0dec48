//! Places without their clients: tickets, and those who leave.

use std::time::Duration;

use fencepost::lock::{Inspected, Released};
use fencepost::store::{Inspect, TicketAfter};
use tokio::time::Instant;

use super::{MARK_TTL, Scene, granted, in_line, is_told, offer_lapses, refused, soon};
use crate::for_each_store;
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask};
use kit::eventually;
use kit::stores::{AnyStore, LINE};

for_each_store!(
    a_ticket_keeps_its_place_and_is_granted_when_its_client_is_back,
    a_ticket_without_its_client_is_passed_over_and_keeps_its_place_while_it_lives,
    a_ticket_that_has_ended_is_not_counted,
    a_ticket_lives_no_longer_for_being_passed_over,
    a_ticket_is_kept_anew_for_a_client_that_waits_elsewhere_and_nothing_is_taken,
    many_tickets_side_by_side_cost_one_offer,
    a_release_leaves_the_line_and_hands_an_offer_on,
    leaving_keeps_the_place_of_a_clients_token_and_hands_an_offer_on,
    declining_hands_an_offer_on_and_never_deletes_a_lock,
    taking_back_a_grant_hands_the_lock_on,
);

async fn a_ticket_keeps_its_place_and_is_granted_when_its_client_is_back(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, [first, second], place) = scene.two_wait().await;
    let refusal = refused(first.last_look(TicketAfter::Kept).await);
    assert_eq!((refusal.waiters, refusal.position), (2, Some(1)));
    let back = first.again(&scene.there);
    assert_eq!(in_line(back.join().await).ticket, place);
    refused(back.last_look(TicketAfter::Kept).await);
    // It is offered the lock while its client is away, and the client comes back in time.
    holder.release().await;
    assert!(matches!(second.look().await, Answer::Queued(_)));
    granted(first.again(&scene.here).join().await);
    // One that does not wait may have come back as well.
    refused(second.last_look(TicketAfter::Kept).await);
    first.release().await;
    granted(second.again(&scene.here).ask(30_000, Ask::Try).await);
}

async fn a_ticket_without_its_client_is_passed_over_and_keeps_its_place_while_it_lives(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, [first, second], place) = scene.two_wait().await;
    refused(first.last_look(TicketAfter::Kept).await);
    holder.release().await;
    let offered_at = Instant::now();
    assert!(matches!(second.look().await, Answer::Queued(_)), "the ticket comes first");
    offer_lapses(offered_at).await;
    granted(second.look().await);
    // It was passed over, and is still the first of those who wait.
    let third = scene.waiter();
    in_line(third.join().await);
    let back = first.again(&scene.there);
    let standing = in_line(back.join().await);
    assert_eq!((standing.ticket, standing.is_first), (place, true));
    refused(back.last_look(TicketAfter::Kept).await);
    // A ticket that nobody calls for is lost.
    tokio::time::sleep(LINE.ticket_ttl).await;
    let later = first.again(&scene.here);
    let mut last = None;
    eventually("the ticket is lost", async || {
        let standing = in_line(later.join().await);
        last = Some(standing.ticket);
        standing.ticket != place || !standing.is_first
    })
    .await;
    assert!(last > Some(place));
}

async fn a_ticket_that_has_ended_is_not_counted(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, away) = (scene.waiter(), scene.waiter());
    holder.grant(60_000).await;
    in_line(away.join().await);
    assert_eq!(refused(away.last_look(TicketAfter::Kept).await).waiters, 1);
    assert_eq!(away.waiters().await, 1);
    eventually("it has ended", async || away.waiters().await == 0).await;
    let refusal = refused(scene.waiter_there().ask(1_000, Ask::Try).await);
    assert_eq!(refusal.waiters, 0);
}

async fn a_ticket_lives_no_longer_for_being_passed_over(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, [first, second], place) = scene.two_wait().await;
    refused(first.last_look(TicketAfter::Kept).await);
    let left_at = Instant::now();
    holder.release().await;
    offer_lapses(Instant::now()).await;
    granted(second.look().await);
    tokio::time::sleep_until(left_at + LINE.ticket_ttl + Duration::from_millis(20)).await;
    assert!(in_line(first.again(&scene.there).join().await).ticket > place, "it was to be lost by now");
}

async fn a_ticket_is_kept_anew_for_a_client_that_waits_elsewhere_and_nothing_is_taken(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, [first, second], place) = scene.two_wait().await;
    let elsewhere = first.again(&scene.here);
    assert_eq!(scene.waiter().pass_on().await, None, "it has no ticket");
    refused(first.last_look(TicketAfter::Kept).await);
    // It is kept while it stands in the queue, and while it is aside.
    for is_aside in [false, true] {
        for _ in 0..3 {
            tokio::time::sleep(LINE.ticket_ttl * 2 / 3).await;
            assert_eq!(elsewhere.pass_on().await, Some(LINE.ticket_ttl));
        }
        assert_eq!(second.waiters().await, if is_aside { 1 } else { 2 });
        if !is_aside {
            holder.release().await;
            offer_lapses(Instant::now()).await;
            assert!(elsewhere.pass_on().await.is_some());
            // The lock is free, and it has not taken it.
            granted(second.look().await);
            in_line(scene.waiter().join().await);
        }
    }
    assert_eq!(in_line(first.again(&scene.there).join().await).ticket, place);
}

async fn many_tickets_side_by_side_cost_one_offer(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let holder = scene.waiter();
    holder.grant(60_000).await;
    for number in 0..4 {
        let away = if number % 2 == 0 { scene.waiter() } else { scene.waiter_there() };
        in_line(away.join().await);
        refused(away.last_look(TicketAfter::Kept).await);
    }
    let live = scene.waiter();
    in_line(live.join().await);
    holder.release().await;
    offer_lapses(Instant::now()).await;
    granted(live.look().await);
}

async fn a_release_leaves_the_line_and_hands_an_offer_on(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, second) = (scene.waiter(), scene.waiter(), scene.waiter_there());
    let mut hints = scene.there.hints();
    holder.grant(60_000).await;
    in_line(first.join().await);
    in_line(second.join().await);
    assert_eq!(first.release().await, Released::Released, "it had a place");
    assert_eq!(first.waiters().await, 1);
    assert_eq!(first.look().await, Answer::TokenReleased);
    assert_eq!(first.again(&scene.there).join().await, Answer::TokenReleased, "for good");
    let offered = scene.waiter();
    in_line(offered.join().await);
    assert_eq!(second.release().await, Released::Released);
    holder.release().await;
    let third = scene.waiter_there();
    in_line(third.join().await);
    assert_eq!(offered.release().await, Released::Released, "it was offered the lock");
    is_told(&mut hints, &third.offer()).await;
    granted(third.look().await);
    assert_eq!(scene.waiter().release().await, Released::HeldByAnother, "one without a place leaves nothing");
}

async fn leaving_keeps_the_place_of_a_clients_token_and_hands_an_offer_on(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, second) = (scene.waiter(), scene.waiter(), scene.waiter_there());
    let mut hints = scene.there.hints();
    holder.grant(60_000).await;
    let place = in_line(first.join().await).ticket;
    in_line(second.join().await);
    assert!(!first.leave(TicketAfter::Kept).await);
    assert_eq!(second.waiters().await, 1, "it has left the line");
    assert_eq!(first.look().await, Answer::AttemptVoided);
    let back = first.again(&scene.there);
    assert_eq!(in_line(back.join().await).ticket, place, "its place was kept");
    holder.release().await;
    back.leave(TicketAfter::Removed).await;
    is_told(&mut hints, &second.offer()).await;
    let anew = first.again(&scene.here);
    assert!(in_line(anew.join().await).ticket > place, "this time its place was not kept");
    granted(second.look().await);
}

async fn declining_hands_an_offer_on_and_never_deletes_a_lock(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, second) = (scene.waiter(), scene.waiter(), scene.waiter_there());
    let mut hints = scene.there.hints();
    holder.grant(60_000).await;
    in_line(first.join().await);
    in_line(second.join().await);
    first.pass_on().await;
    holder.release().await;
    is_told(&mut hints, &second.offer()).await;
    granted(second.look().await);
    // The hint came late: the offer was taken already.
    second.pass_on().await;
    let look = second
        .store
        .call(Inspect { key: second.key.clone(), token: Some(second.token) }, soon())
        .await
        .unwrap();
    assert!(matches!(look, Inspected::Held { yours: Some(true), .. }), "{look:?}");
}

async fn taking_back_a_grant_hands_the_lock_on(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, waiter) = (scene.waiter(), scene.waiter_there());
    let mut hints = scene.there.hints();
    holder.grant(60_000).await;
    in_line(waiter.join().await);
    assert!(holder.leave(TicketAfter::Kept).await, "the grant reached nobody");
    is_told(&mut hints, &waiter.offer()).await;
    granted(waiter.look().await);
}

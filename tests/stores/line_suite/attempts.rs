//! Several requests of one token, and several attempts of one request.

use fencepost::store::{Hint, Release, TicketAfter, Tombstone};
use tokio::time::Instant;

use super::{MARK_TTL, Scene, beat, granted, in_line, is_told, offer_lapses, refused, soon};
use crate::for_each_store;
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask, Join};
use kit::stores::AnyStore;

for_each_store!(
    a_place_is_taken_over_by_a_new_request_and_given_back_when_that_leaves,
    a_late_clean_up_of_the_first_request_does_not_remove_the_second,
    a_place_that_was_taken_over_is_given_back_at_the_end_of_the_wait,
    a_request_whose_wait_is_over_is_not_given_its_place_back,
    a_request_that_was_displaced_takes_its_place_back_once_the_other_is_absent,
    an_attempt_stands_for_those_that_it_supersedes,
    a_superseding_attempt_takes_over_what_was_granted,
    a_last_look_voids_its_attempt_and_may_be_repeated,
    a_late_copy_of_a_last_look_pins_nothing_that_its_token_was_granted_since,
    a_request_whose_token_is_granted_by_another_is_told,
    a_moved_request_puts_itself_back_once_the_mover_has_let_its_offer_lapse,
    a_client_that_left_before_its_grant_arrived_has_its_place_back,
    an_attempt_that_joined_anew_has_its_earlier_place_back,
    all_requests_of_a_token_are_told_of_its_release,
);

async fn a_place_is_taken_over_by_a_new_request_and_given_back_when_that_leaves(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    let mut hints = scene.here.hints();
    holder.grant(60_000).await;
    let place = in_line(first.join().await).ticket;
    let retry = first.again(&scene.there);
    let standing = in_line(retry.join().await);
    assert_eq!((standing.ticket, standing.is_first), (place, true));
    is_told(&mut hints, &Hint::Look(first.key.clone(), first.attempt)).await;
    let moved = first.look().await;
    assert!(
        matches!(&moved, Answer::Moved(at) if at.ticket == place),
        "a look does not take the place back: {moved:?}"
    );
    assert!(matches!(first.join_again(Join::default()).await, Answer::Moved(_)), "nor does it, put back");
    retry.leave(TicketAfter::Kept).await;
    is_told(&mut hints, &Hint::Look(first.key.clone(), first.attempt)).await;
    assert_eq!(in_line(first.look().await).ticket, place);
    holder.release().await;
    granted(first.look().await);
}

async fn a_late_clean_up_of_the_first_request_does_not_remove_the_second(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    holder.grant(60_000).await;
    let place = in_line(first.join().await).ticket;
    let retry = first.again(&scene.there);
    in_line(retry.join().await);
    first.leave(TicketAfter::Kept).await;
    assert_eq!(in_line(retry.look().await).ticket, place);
    // The first will not be heard of any more, so the place does not go back to it.
    retry.leave(TicketAfter::Kept).await;
    assert_eq!(retry.waiters().await, 0);
    let third = first.again(&scene.here);
    assert_eq!(in_line(third.join().await).ticket, place);
    holder.release().await;
    first.leave(TicketAfter::Kept).await;
    granted(third.look().await);
}

async fn a_place_that_was_taken_over_is_given_back_at_the_end_of_the_wait(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    let mut hints = scene.here.hints();
    holder.grant(60_000).await;
    let place = in_line(first.join().await).ticket;
    let retry = first.again(&scene.there);
    in_line(retry.join().await);
    is_told(&mut hints, &Hint::Look(first.key.clone(), first.attempt)).await;
    // Under another attempt of its own it still owes the place.
    let second = retry.again(&scene.there);
    let join = Join { ticket: None, takes_over: true, supersedes: vec![retry.attempt] };
    in_line(second.join_again(join).await);
    refused(second.last_look(TicketAfter::Kept).await);
    is_told(&mut hints, &Hint::Look(first.key.clone(), first.attempt)).await;
    assert_eq!(in_line(first.look().await).ticket, place);
}

async fn a_request_whose_wait_is_over_is_not_given_its_place_back(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    holder.grant(60_000).await;
    in_line(first.join().await);
    let retry = first.again(&scene.there);
    in_line(retry.join().await);
    refused(first.last_look(TicketAfter::Kept).await);
    retry.leave(TicketAfter::Kept).await;
    assert_eq!(retry.waiters().await, 0, "nobody stands there any more");
}

async fn a_request_that_was_displaced_takes_its_place_back_once_the_other_is_absent(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, ticket, first, other) =
        (scene.waiter(), scene.waiter(), scene.waiter(), scene.waiter_there());
    let mut hints = scene.there.hints();
    holder.grant(60_000).await;
    in_line(ticket.join().await);
    refused(ticket.last_look(TicketAfter::Kept).await);
    let place = in_line(first.join().await).ticket;
    let retry = first.again(&scene.there);
    in_line(retry.join().await);
    in_line(other.join().await);
    holder.release().await;
    offer_lapses(Instant::now()).await;
    // It has no place of its own, and yet sees to it that the lock goes on.
    beat(&scene.there).await;
    let answer = first.look().await;
    assert!(matches!(answer, Answer::Moved(_)), "{answer:?}");
    is_told(&mut hints, &retry.offer()).await;
    offer_lapses(Instant::now()).await;
    granted(other.look().await);
    assert_eq!(first.look().await, Answer::TicketLost, "nobody is at it now");
    let again = Join { ticket: Some(place), takes_over: false, supersedes: Vec::new() };
    assert_eq!(in_line(first.join_again(again).await).ticket, place);
}

async fn an_attempt_stands_for_those_that_it_supersedes(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, other) = (scene.waiter(), scene.waiter(), scene.waiter_there());
    holder.grant(60_000).await;
    let standing = in_line(first.join().await);
    in_line(other.join().await);
    // The answer was lost: the request goes on under another attempt.
    let second = first.again(&scene.here);
    let join = Join { ticket: None, takes_over: true, supersedes: vec![first.attempt] };
    assert_eq!(in_line(second.join_again(join).await).ticket, standing.ticket);
    assert_eq!(first.join().await, Answer::AttemptVoided, "a late copy takes no place");
    // Nobody was displaced: there is no one to whom the place could go back.
    second.leave(TicketAfter::Removed).await;
    assert_eq!(second.waiters().await, 1);
    // A place that was taken from a request comes back to the attempt that this request uses now.
    let retry = other.again(&scene.here);
    in_line(retry.join().await);
    let renamed = other.again(&scene.there);
    let join = Join { ticket: None, takes_over: false, supersedes: vec![other.attempt] };
    assert!(matches!(renamed.join_again(join).await, Answer::Moved(_)));
    retry.leave(TicketAfter::Kept).await;
    in_line(renamed.look().await);
}

async fn a_superseding_attempt_takes_over_what_was_granted(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let first = scene.waiter();
    let lease = granted(first.join().await);
    let second = first.again(&scene.there);
    let join = Join { ticket: None, takes_over: true, supersedes: vec![first.attempt] };
    assert_eq!(granted(second.join_again(join).await).fencing_token, lease.fencing_token);
    assert_eq!(first.join().await, Answer::AttemptVoided);
    assert!(!first.leave(TicketAfter::Removed).await, "it is no longer the first attempt's to take back");
    assert!(second.leave(TicketAfter::Removed).await, "but the second's");
}

async fn a_last_look_voids_its_attempt_and_may_be_repeated(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, kept, made) = (scene.waiter(), scene.waiter(), scene.waiter_there());
    holder.grant(60_000).await;
    in_line(kept.join().await);
    in_line(made.join().await);
    assert_eq!(refused(made.last_look(TicketAfter::Removed).await).waiters, 1, "its place is removed");
    for _ in 0..2 {
        let refusal = refused(kept.last_look(TicketAfter::Kept).await);
        assert_eq!((refusal.waiters, refusal.position), (1, Some(1)));
    }
    holder.release().await;
    for waiter in [&kept, &made] {
        assert_eq!(waiter.join().await, Answer::AttemptVoided);
        assert_eq!(waiter.look().await, Answer::AttemptVoided);
    }
    // The last look takes the lock where it can, and only then leaves its attempt alone.
    let back = kept.again(&scene.here);
    granted(back.join().await);
    let next = scene.waiter_there();
    in_line(next.join().await);
    back.release().await;
    granted(next.last_look(TicketAfter::Removed).await);
    granted(next.last_look(TicketAfter::Removed).await);
}

async fn a_late_copy_of_a_last_look_pins_nothing_that_its_token_was_granted_since(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, waiter) = (scene.waiter(), scene.waiter());
    holder.grant(60_000).await;
    in_line(waiter.join().await);
    refused(waiter.last_look(TicketAfter::Kept).await);
    holder.release().await;
    let back = waiter.again(&scene.here);
    granted(back.join().await);
    let answer = waiter.last_look(TicketAfter::Kept).await;
    assert!(!matches!(answer, Answer::Granted(_) | Answer::AlreadyHeld(_)), "{answer:?}");
    assert!(back.leave(TicketAfter::Removed).await, "nobody was told of it");
}

async fn a_request_whose_token_is_granted_by_another_is_told(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    let mut hints = scene.here.hints();
    holder.grant(60_000).await;
    in_line(first.join().await);
    holder.release().await;
    granted(first.again(&scene.there).ask(30_000, Ask::Try).await);
    is_told(&mut hints, &Hint::Look(first.key.clone(), first.attempt)).await;
    assert!(matches!(first.look().await, Answer::AlreadyHeld(_)));
}

async fn a_moved_request_puts_itself_back_once_the_mover_has_let_its_offer_lapse(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, second) = (scene.waiter(), scene.waiter(), scene.waiter());
    holder.grant(60_000).await;
    let place = in_line(first.join().await).ticket;
    in_line(first.again(&scene.there).join().await);
    in_line(second.join().await);
    holder.release().await;
    offer_lapses(Instant::now()).await;
    // Its look passes the mover over, at whose place nobody stands any more.
    assert_eq!(first.look().await, Answer::TicketLost);
    let back = in_line(first.join_again(Join { ticket: Some(place), ..Join::default() }).await);
    assert_eq!((back.ticket, back.is_first), (place, true));
    granted(second.look().await);
    second.release().await;
    granted(first.look().await);
}

/// As where a late copy of the command by which it joined comes after its place was lost.
async fn an_attempt_that_joined_anew_has_its_earlier_place_back(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (_, [first, _], place) = scene.two_wait().await;
    let release = Release { key: first.key.clone(), token: first.token, tombstone: Tombstone::None };
    first.store.call(release, soon()).await.unwrap();
    assert!(in_line(first.join().await).ticket > place);
    let back = in_line(first.join_again(Join { ticket: Some(place), ..Join::default() }).await);
    assert_eq!((back.ticket, back.is_first), (place, true));
}

async fn a_client_that_left_before_its_grant_arrived_has_its_place_back(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, [first, second], place) = scene.two_wait().await;
    holder.release().await;
    granted(first.look().await);
    assert!(first.leave(TicketAfter::KeptAt(place)).await, "the grant is undone");
    // The next has been offered the lock, and is not made to wait.
    let back = first.again(&scene.there);
    let standing = in_line(back.join().await);
    assert_eq!((standing.ticket, standing.is_first), (place, true));
    granted(second.look().await);
    second.release().await;
    granted(back.look().await);
}

async fn all_requests_of_a_token_are_told_of_its_release(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    let (mut here, mut there) = (scene.here.hints(), scene.there.hints());
    holder.grant(60_000).await;
    in_line(first.join().await);
    let retry = first.again(&scene.there);
    in_line(retry.join().await);
    is_told(&mut here, &Hint::Look(first.key.clone(), first.attempt)).await;
    first.release().await;
    is_told(&mut here, &Hint::Look(first.key.clone(), first.attempt)).await;
    is_told(&mut there, &Hint::Look(retry.key.clone(), retry.attempt)).await;
}

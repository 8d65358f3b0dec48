//! A lock that is broken goes to the first in line.

use fencepost::lock::{Broken, Inspected};
use fencepost::store::{Break, Inspect};

use super::{MARK_TTL, Scene, granted, in_line, is_told, refused, soon, the_key};
use crate::for_each_store;
use kit::asking::LockStoreExt;
use kit::asking::{Answer, Ask};
use kit::stores::AnyStore;

for_each_store!(
    a_broken_lock_is_offered_to_the_first_in_line_in_the_same_step,
    breaking_again_leaves_the_offer_and_the_next_holder_alone,
);

async fn a_broken_lock_is_offered_to_the_first_in_line_in_the_same_step(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first, second) = (scene.waiter(), scene.waiter(), scene.waiter());
    let number = holder.grant(60_000).await.fencing_token;
    in_line(first.join().await);
    in_line(second.join().await);
    let mut hints = scene.here.hints();
    let answer = scene.here.call(Break { key: the_key(), fence: number }, soon()).await.unwrap();
    assert!(matches!(answer, Broken::Broken(_)), "{answer:?}");
    is_told(&mut hints, &first.offer()).await;
    // Nobody who comes now overtakes.
    let stranger = scene.waiter();
    refused(stranger.ask(30_000, Ask::Try).await);
    let lease = granted(first.look().await);
    assert!(lease.fencing_token > number);
    assert!(matches!(second.look().await, Answer::Queued(_)));
}

async fn breaking_again_leaves_the_offer_and_the_next_holder_alone(stores: &AnyStore) {
    let scene = Scene::new(stores).await;
    let (holder, first) = (scene.waiter(), scene.waiter());
    let number = holder.grant(60_000).await.fencing_token;
    in_line(first.join().await);
    let break_it = async || scene.here.call(Break { key: the_key(), fence: number }, soon()).await.unwrap();
    assert!(matches!(break_it().await, Broken::Broken(_)));
    assert_eq!(break_it().await, Broken::NotHeld);
    let next = granted(first.look().await);
    assert_eq!(break_it().await, Broken::HeldByAnother);
    let seen = scene.here.call(Inspect { key: the_key(), token: Some(first.token) }, soon()).await.unwrap();
    let Inspected::Held { lease, yours: Some(true), .. } = seen else { panic!("{seen:?}") };
    assert_eq!(lease.fencing_token, next.fencing_token);
}

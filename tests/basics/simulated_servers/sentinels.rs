//! Sentinels of which one is far away, and gateways that know a server by two names.

use std::sync::atomic::AtomicU64;

use super::*;
use fencepost::store::redis::diagnose;

/// Further away than the others have once most have said the same.
const FAR: Duration = Duration::from_millis(80);

#[tokio::test(start_paused = true)]
async fn sentinels_that_were_set_up_anew_are_followed_although_one_of_them_is_far_away() {
    let fleet = Fleet::with_sentinels(&Clock::running(NOW_US));
    let name = |epoch| (0..3).for_each(|sentinel| fleet.name_primary(sentinel, 0, epoch));
    name(5);
    let store = store(&fleet);
    let mut last = number(&store, "before").await;
    fleet.network.set("sentinel3", 26379, |way| way.delay = FAR);
    sleep(RECONNECTED_WITHIN).await;
    name(0);
    // One that has followed the higher epoch, and one that learns of it from the server.
    let another = super::store(&fleet);
    sleep(2 * RECONNECTED_WITHIN).await;
    for (store, key) in [(&store, "stayed"), (&another, "came")] {
        let next = number(store, key).await;
        assert!(next > last, "{key}: {next} after {last}");
        last = next;
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_waits_for_a_sentinel_that_is_far_away() {
    let fleet = Fleet::with_sentinels(&Clock::running(NOW_US));
    fleet.network.set("sentinel3", 26379, |way| way.delay = FAR);
    let found = diagnose(&fleet.address().unwrap(), &RedisSettings::default()).await.unwrap();
    let rows = format!("{:?}", found.blocks);
    assert!(rows.contains("by the word of all sentinels"), "{rows}");
}

/// The one that names the server itself gives its run a longer name.
#[tokio::test(start_paused = true)]
async fn small_scripts_take_locks_also_after_another_gateway_has_given_the_run_another_name() {
    let fleet = Fleet::with_sentinels(&Clock::running(NOW_US));
    let by_sentinel = store(&fleet);
    number(&by_sentinel, "before").await;
    let address = RedisAddress::parse("redis://server1", None).unwrap();
    let address = address.through(Arc::new(fleet.network.clone()));
    let by_server = RedisStore::start(&address, &RedisSettings::default()).unwrap();
    number(&by_server, "named").await;
    sleep(RECONNECTED_WITHIN).await;
    let takes = Arc::new(AtomicU64::new(0));
    let seen = takes.clone();
    fleet.servers[0].set_listener(move |words, _| {
        if words.iter().any(|word| word.ends_with(b":lock:after")) {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    });
    number(&by_sentinel, "after").await;
    assert_eq!(takes.load(Ordering::SeqCst), 1, "the general script ran as well");
}

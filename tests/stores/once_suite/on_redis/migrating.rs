//! A slot of a cluster on its way from one server to another: what touches the record alone works all the while.

use kit::RedisCluster;
use kit::cluster::slot_of_lock;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn storing_renewing_and_looking_work_while_a_slot_moves() {
    let cluster = RedisCluster::start().await;
    let scene = AnyStore::of(store_on(&cluster.url(), &settings()));
    let slot = slot_of_lock("k");
    let worker = Person::new(&scene, "k");
    let place = worker.grant().await;
    let from = cluster.owner_of(slot).await;
    let migration = cluster.begin_migration(slot, (from + 1) % 3).await;
    for is_moved in [false, true] {
        if is_moved {
            while cluster.move_keys(migration, usize::MAX).await > 0 {}
        }
        assert!(matches!(worker.renew(LONG_MS).await, RenewedWork::Renewed(_)), "{is_moved}");
        let view = worker.look_as_worker().await.unwrap();
        assert_eq!((view.yours, number(&view.place)), (Some(true), number(&place)), "{is_moved}");
        let list = ListRecords { reach: Reach::all("k"), cursor: None, limit: 10 };
        let page = scene.store.call(list, soon()).await.unwrap();
        assert_eq!(page.records.len(), 1, "{is_moved}");
        let early = text("early");
        match is_moved {
            false => assert_eq!(
                worker.store_for(FencingToken::new(1), None, early).await,
                Storing::Refused(superseded(&place))
            ),
            true => drop(stored(worker.store_for(Some(number(&place)), None, early).await)),
        }
    }
    assert_eq!(stored(worker.store("early").await).0, number(&place), "a repetition");
    cluster.end_migration(migration).await;
    assert_eq!(Person::new(&scene, "k").result().await.result, text("early"));
    cluster.is_whole().await;
}

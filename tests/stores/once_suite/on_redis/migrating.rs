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
    let name = cluster.keys_left(migration).await.into_iter().find(|name| name.ends_with(":once:k")).unwrap();
    let port = cluster.nodes[migration.to].port().to_string();
    for stage in ["nothing has moved", "the record has moved, and the fence has not", "all has moved"] {
        match stage {
            "nothing has moved" => {}
            "all has moved" => while cluster.move_keys(migration, usize::MAX).await > 0 {},
            _ => {
                let words = ["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"];
                let _: () = cluster.nodes[migration.from].command(&words).await;
                assert!(!cluster.keys_left(migration).await.is_empty(), "the fence");
            }
        }
        assert!(matches!(worker.renew(LONG_MS).await, RenewedWork::Renewed(_)), "{stage}");
        let view = worker.look_as_worker().await.unwrap();
        assert_eq!((view.yours, number(&view.place)), (Some(true), number(&place)), "{stage}");
        let list = ListRecords { reach: Reach::all("k"), cursor: None, limit: 10 };
        let page = scene.store.call(list, soon()).await.unwrap();
        assert_eq!(page.records.len(), 1, "{stage}");
        let other = worker.store_for(FencingToken::new(1), None, text("early")).await;
        assert_eq!(other, Storing::Refused(superseded(&place)), "{stage}");
    }
    stored(worker.store_for(Some(number(&place)), None, text("early")).await);
    cluster.end_migration(migration).await;
    assert_eq!(Person::new(&scene, "k").result().await.result, text("early"));
    cluster.is_whole().await;
}

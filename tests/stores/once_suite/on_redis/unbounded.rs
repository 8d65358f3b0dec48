//! A server that has no bound on its memory, or none any more: it begins no record, and those that there are go on.

use kit::RedisCluster;
use kit::cluster::slot_of_lock;

use super::*;

const LONG: usize = 64 * 1024;

fn bounded_by_server() -> RedisSettings {
    RedisSettings { reply_timeout: PATIENCE, ..RedisSettings::default() }
}

async fn bound_memory(redis: &RedisServer, most: &str) {
    let _: () = redis.command(&["CONFIG", "SET", "maxmemory", most]).await;
}

/// Begins records of names that begin so, until one is refused because of the server. Returns why.
async fn refusal(scene: &AnyStore, name: &str) -> String {
    let mut said = None;
    eventually("it begins none", async || {
        let newcomer = Person::new(scene, &format!("{name}-{}", LeaseToken::generate().hash()));
        if let Begun::Unsupported(reason) = newcomer.begin().await {
            assert_eq!(newcomer.look().await, None);
            said = Some(reason);
        }
        said.is_some()
    })
    .await;
    said.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bound_on_memory_nothing_is_begun_and_what_was_begun_goes_on() {
    let redis = RedisServer::start().await;
    let scene = scene_on(&redis, &bounded_by_server());
    let said = refusal(&scene, "at the start").await;
    assert!(said.contains("maxmemory in Redis, or --once-memory"), "{said}");

    bound_memory(&redis, "1gb").await;
    let [stores, renews, gives_up, repeats, crashed, broken, done] =
        ["stores", "renews", "gives up", "repeats", "crashed", "broken", "done"]
            .map(|key| Person::new(&scene, key));
    eventually("it begins some", async || matches!(stores.begin().await, Begun::Granted(_))).await;
    for worker in [&renews, &gives_up, &repeats, &done] {
        worker.grant().await;
    }
    let (place, _) = (broken.grant().await, crashed.crash().await);
    stored(done.store("done").await);

    bound_memory(&redis, "0").await;
    refusal(&scene, "later").await;
    assert_eq!(scene.store.keeps_no_records(None), None, "requests about records reach it");
    let long = WorkResult { status: None, content_type: None, body: vec![b'x'; LONG].into() };
    assert_eq!(stores.store_for(None, None, long).await, Storing::NearlyFull, "the bound may come back");
    stored(stores.store("short").await);
    assert_eq!(Person::new(&scene, "stores").result().await.result, text("short"));
    assert_eq!(Person::new(&scene, "done").result().await.result, text("done"));
    assert!(matches!(renews.renew(2 * LONG_MS).await, RenewedWork::Renewed(_)));
    assert_eq!(gives_up.give_up().await, GivenUp::GivenUp);
    continued(repeats.begin().await);
    assert_eq!(Person::new(&scene, "crashed").grant().await.earlier, 1);
    assert_eq!(broken.break_record(number(&place), false).await, BrokenRecord::Broken);
    let list = ListRecords { reach: Reach::all("renews"), cursor: None, limit: 10 };
    assert_eq!(scene.store.call(list, soon()).await.unwrap().records.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_of_a_cluster_speaks_for_its_own_records() {
    let cluster = RedisCluster::start_with(&["--maxmemory", "1gb"]).await;
    let scene = AnyStore::of(store_on(&cluster.url(), &bounded_by_server()));
    let node = cluster.owner_of(slot_of_lock("k")).await;
    let mut elsewhere = String::new();
    for n in 0.. {
        elsewhere = format!("k{n}");
        if cluster.owner_of(slot_of_lock(&elsewhere)).await != node {
            break;
        }
    }
    let (here, there) = (Person::new(&scene, "k"), Person::new(&scene, &elsewhere));
    here.grant().await;
    there.grant().await;

    bound_memory(&cluster.nodes[node], "0").await;
    refusal(&scene, "new").await;
    stored(here.store("done").await);
    assert_eq!(there.give_up_clean().await, GivenUp::GivenUp);
    Person::new(&scene, &elsewhere).grant().await;

    let _: () = cluster.nodes[node].command(&["ACL", "SETUSER", "default", "-getrange"]).await;
    eventually("it keeps none", async || scene.store.keeps_no_records(Some(&here.key)).is_some()).await;
    assert_eq!(scene.store.keeps_no_records(Some(&there.key)), None);
    assert!(scene.store.keeps_no_records(None).is_some(), "not all can be listed");
}

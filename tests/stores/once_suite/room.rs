//! Room: what the embedded store keeps of records is counted, and full before it takes the room of locks.

use super::*;

/// What a record takes without its result, under a key of two characters, of which its owner says that it is "somebody".
const RECORD: u64 = 850 + 2 + 8;

fn long(bytes: usize) -> WorkResult {
    WorkResult { status: None, content_type: None, body: vec![b'x'; bytes].into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn above_the_bound_nothing_new_is_begun_and_what_is_under_way_goes_on() {
    let scene = AnyStore::memory_for_records(MARK_TTL, 10 * RECORD).await;
    let people: Vec<_> = (0..11).map(|n| Person::new(&scene, &format!("k{n}"))).collect();
    for person in &people[..9] {
        person.grant().await;
    }
    people[9].crash().await;
    assert_eq!(people[10].begin().await, Begun::NearlyFull);
    assert_eq!(people[10].look().await, None);
    // Neither a repetition nor a take-over takes more room.
    continued(people[0].begin().await);
    assert!(matches!(people[1].renew(LONG_MS).await, RenewedWork::Renewed(_)));
    assert!(matches!(people[10].clone().confirming().begin().await, Begun::TokenReleased));
    let successor = Person::new(&scene, "k9");
    assert_eq!(successor.grant().await.earlier, 1);
    for person in &people[..9] {
        stored(person.store_for(None, None, long(WorkResult::SHORT_BYTES)).await);
    }
    assert_eq!(people[10].begin().await, Begun::NearlyFull);
    assert_eq!(people[0].result().await.result, long(WorkResult::SHORT_BYTES));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_third_above_the_bound_only_short_results_are_stored() {
    // Room for 3 records, and 4 thirds of that for results.
    let bound = 30_000;
    let scene = AnyStore::memory_for_records(MARK_TTL, bound).await;
    let people: Vec<_> = (0..4).map(|n| Person::new(&scene, &format!("k{n}"))).collect();
    for person in &people {
        person.grant().await;
    }
    let room = (bound / 3 * 4 - 4 * RECORD) as usize;
    assert_eq!(people[0].store_for(None, None, long(room + 1)).await, Storing::NearlyFull);
    let view = people[0].look().await.unwrap();
    assert_eq!(view.result, None, "the place is still its worker's");
    assert!(matches!(people[0].renew(LONG_MS).await, RenewedWork::Renewed(_)));
    stored(people[0].store_for(None, None, long(room)).await);
    assert_eq!(people[1].store_for(None, None, long(WorkResult::SHORT_BYTES + 1)).await, Storing::NearlyFull);
    stored(people[1].store_for(None, None, long(WorkResult::SHORT_BYTES)).await);
    stored(people[2].store_for(None, None, long(0)).await);
    // What is removed makes room again.
    let full = people[0].result().await;
    assert_eq!(full.result, long(room));
    assert_eq!(people[0].break_record(full.fencing_token, true).await, BrokenRecord::Broken);
    stored(people[3].store_for(None, None, long(room - WorkResult::SHORT_BYTES)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_makes_room() {
    let scene = AnyStore::memory_for_records(MARK_TTL, 2 * RECORD + 8).await;
    for key in ["k1", "k2"] {
        let person = Person::new(&scene, key).keeping(Keep::SHORTEST);
        person.grant().await;
        stored(person.store("done").await);
    }
    let next = Person::new(&scene, "k3");
    assert_eq!(next.begin().await, Begun::NearlyFull);
    scene.pass(Keep::SHORTEST).await;
    // The same key needs no more room than what has ended had. It is removed with the commits.
    Person::new(&scene, "k1").keeping(Keep::SHORTEST).grant().await;
    kit::eventually("there is room", async || {
        matches!(next.begin().await, Begun::Granted(_) | Begun::Continued(_))
    })
    .await;
}

//! Fingerprints: who asks for something else is told so, whatever the state of the record.

use super::*;

for_each_record_store!(
    another_fingerprint_is_a_mismatch_in_every_state,
    what_the_record_lacks_is_not_compared,
    a_take_over_never_changes_the_fingerprint,
    a_clean_end_of_the_first_frees_the_fingerprint,
);

/// Somebody with the same, another and no fingerprint.
async fn only_its_own_fits(first: &Person<'_>, state: &str) {
    let person = || Person::new(first.scene, first.key.as_str());
    for person in [person().with_print("other"), person(), person().confirming(), person().cautious()] {
        assert_eq!(person.begin().await, Begun::FingerprintMismatch, "{state}: {:?}", person.fingerprint);
    }
    let other = Person { fingerprint: print("other"), ..first.clone() };
    assert_eq!(other.begin().await, Begun::FingerprintMismatch, "{state}: its own token, too");
    let same = person().with_print("its").cautious().begin().await;
    assert_ne!(same, Begun::FingerprintMismatch, "{state}");
}

async fn another_fingerprint_is_a_mismatch_in_every_state(scene: &AnyStore) {
    let person = |key: &str| Person::new(scene, key).with_print("its");
    let working = person("working");
    working.grant().await;
    only_its_own_fits(&working, "working").await;
    stored(working.store("done").await);
    only_its_own_fits(&working, "done").await;
    let lapsed = person("lapsed");
    lapsed.crash().await;
    only_its_own_fits(&lapsed, "lapsed").await;
    let successor = person("lapsed");
    successor.grant().await;
    only_its_own_fits(&successor, "taken over").await;
    let given_up = person("given up");
    given_up.grant().await;
    given_up.give_up().await;
    only_its_own_fits(&person("given up"), "given up").await;
    let undone = person("undone");
    undone.crash().await;
    person("undone").undone().await;
    only_its_own_fits(&undone, "a take-over was undone").await;
    let broken = person("broken");
    let place = broken.grant().await;
    broken.break_record(number(&place), false).await;
    only_its_own_fits(&broken, "broken").await;
    let result = person("a result was broken");
    let place = result.grant().await;
    stored(result.store("done").await);
    result.break_record(number(&place), false).await;
    only_its_own_fits(&result, "a result was broken").await;
}

async fn what_the_record_lacks_is_not_compared(scene: &AnyStore) {
    let plain = Person::new(scene, "k");
    plain.grant().await;
    let other = Person::new(scene, "k").with_print("any");
    assert!(matches!(other.begin().await, Begun::Busy(_)));
    stored(plain.store("done").await);
    let told = other.result().await;
    assert_eq!((told.fingerprint, told.result), (None, text("done")));
}

async fn a_take_over_never_changes_the_fingerprint(scene: &AnyStore) {
    // One that had none gets none.
    Person::new(scene, "none").crash().await;
    Person::new(scene, "none").with_print("late").grant().await;
    let Begun::Busy(found) = Person::new(scene, "none").begin().await else { panic!("not busy") };
    assert_eq!(found.fingerprint, None);
    // One that had one keeps it to the end.
    Person::new(scene, "one").with_print("its").crash().await;
    let successor = Person::new(scene, "one").with_print("its");
    successor.grant().await;
    stored(successor.store("done").await);
    assert_eq!(successor.result().await.fingerprint, print("its"));
}

async fn a_clean_end_of_the_first_frees_the_fingerprint(scene: &AnyStore) {
    let first = Person::new(scene, "given up").with_print("a");
    first.grant().await;
    assert_eq!(first.give_up_clean().await, GivenUp::GivenUp);
    Person::new(scene, "given up").with_print("b").grant().await;
    Person::new(scene, "undone").with_print("a").undone().await;
    Person::new(scene, "undone").with_print("b").grant().await;
    let broken = Person::new(scene, "broken").with_print("a");
    let place = broken.grant().await;
    assert_eq!(broken.break_record(number(&place), true).await, BrokenRecord::Broken);
    Person::new(scene, "broken").with_print("b").grant().await;
}

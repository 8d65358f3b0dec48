//! A wall clock that is set while leases run, as NTP does after a start with a clock that is slow. Then the machine reboots.

use fencepost::lock::Slots;
use redb::{Database, ReadableTable, TableDefinition};

use super::*;

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

/// A lock for 10 minutes, and a token that is released a minute later.
async fn held_and_released(machine: &Machine) -> (Caller, Caller) {
    let (holder, released) = (Caller::new(), Caller::new());
    holder.grant(machine, 10 * MINUTE_MS).await;
    machine.pass(MINUTE);
    assert_eq!(released.release(machine).await, Released::NotHeld);
    (holder, released)
}

/// The clock was an hour slow at the grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_was_set_right_before_a_reboot_ends_no_lease_early() {
    for meanwhile in [Meanwhile::Open, Meanwhile::ClosedAndOpened] {
        let mut machine = Machine::new();
        let (holder, released) = held_and_released(&machine).await;
        machine.set_while(Set::Forward(HOUR), meanwhile).await;
        machine.reboot(MINUTE, RIGHT).await;
        assert_eq!(holder.left_ms(&machine).await, 8 * MINUTE_MS, "{meanwhile:?}");
        assert_eq!(released.acquire(&machine, MINUTE_MS).await, Acquired::TokenReleased, "{meanwhile:?}");
        // What the first reboot left counts at the next one.
        machine.reboot(MINUTE, RIGHT).await;
        assert_eq!(holder.left_ms(&machine).await, 7 * MINUTE_MS, "{meanwhile:?}");
    }
}

/// The clock was right at the grant, and is right again after the reboot.
#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_was_set_wrong_before_a_reboot_ends_no_lease_early() {
    for meanwhile in [Meanwhile::Open, Meanwhile::ClosedAndOpened] {
        let mut machine = Machine::new();
        let (holder, released) = held_and_released(&machine).await;
        machine.set_while(Set::Back(HOUR), meanwhile).await;
        machine.reboot(MINUTE, Set::Forward(HOUR)).await;
        assert_eq!(holder.left_ms(&machine).await, 8 * MINUTE_MS, "{meanwhile:?}");
        assert_eq!(released.acquire(&machine, MINUTE_MS).await, Acquired::TokenReleased, "{meanwhile:?}");
        // If it was ahead meanwhile, which end is right is not known: the later one counts, up to the rest that was given last.
        let (mut machine, holder) = (Machine::new(), Caller::new());
        holder.grant(&machine, 10 * MINUTE_MS).await;
        machine.set_while(Set::Forward(HOUR), meanwhile).await;
        machine.reboot(MINUTE, Set::Back(HOUR)).await;
        assert_eq!(holder.left_ms(&machine).await, 10 * MINUTE_MS, "{meanwhile:?}");
    }
}

/// The clock is right at the grant, and after the reboot. What is asked for in between writes the rows anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_while_the_clock_is_set_back_ends_no_lease_early_after_a_reboot() {
    for meanwhile in [Meanwhile::Open, Meanwhile::ClosedAndOpened] {
        let mut machine = Machine::new();
        let (looked, repeated, renewed, longer) =
            (Caller::new(), Caller::new(), Caller::new(), Caller::new());
        for holder in [&looked, &repeated, &renewed, &longer] {
            holder.grant(&machine, 10 * MINUTE_MS).await;
        }
        let (shared, kept) = (Caller::new(), Caller::new());
        let two = Terms { slots: Slots::new(2).unwrap(), ..Terms::default() };
        let least = Terms { min_hold: Some(10 * MINUTE), ..Terms::default() };
        for (holder, terms) in [(&shared, two), (&kept, least)] {
            let granted = holder.acquire_on(&machine, 10 * MINUTE_MS, terms).await;
            assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
        }
        machine.pass(MINUTE);
        let released = Caller::new();
        assert_eq!(released.release(&machine).await, Released::NotHeld);

        machine.set_while(Set::Back(HOUR), meanwhile).await;
        assert_eq!(looked.left_ms(&machine).await, 9 * MINUTE_MS);
        assert_eq!(shared.left_ms(&machine).await, 9 * MINUTE_MS);
        let again = repeated.acquire(&machine, MINUTE_MS).await;
        assert!(matches!(again, Acquired::AlreadyHeld(_)), "{again:?}");
        assert_eq!(renewed.renew(&machine, MINUTE_MS).await.left_ms, 9 * MINUTE_MS);
        assert_eq!(longer.renew(&machine, 12 * MINUTE_MS).await.left_ms, 12 * MINUTE_MS);
        assert_eq!(kept.release(&machine).await, Released::Released);
        assert_eq!(released.release(&machine).await, Released::NotHeld);

        machine.reboot(MINUTE, Set::Forward(HOUR)).await;
        for holder in [&looked, &shared, &repeated, &renewed] {
            assert_eq!(holder.left_ms(&machine).await, 8 * MINUTE_MS, "{meanwhile:?}");
        }
        assert_eq!(longer.left_ms(&machine).await, 11 * MINUTE_MS, "{meanwhile:?}");
        assert_eq!(released.acquire(&machine, MINUTE_MS).await, Acquired::TokenReleased, "{meanwhile:?}");
        let next = Caller { key: kept.key.clone(), ..Caller::new() };
        let refused = next.acquire(&machine, MINUTE_MS).await;
        assert!(matches!(refused, Acquired::NotTaken(_)), "{refused:?} {meanwhile:?}");
        machine.pass(8 * MINUTE);
        assert_eq!(looked.left_ms(&machine).await, 0, "{meanwhile:?}");
        next.grant(&machine, MINUTE_MS).await;
    }
}

/// Which of its ends is right is not known, also after a renewal by a clock that was set right.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_by_a_clock_that_was_ahead_leaves_a_lease_its_last_ttl_at_most_and_the_next_grant_nothing() {
    let mut machine = Machine::new();
    let holder = Caller::new();
    machine.set(Set::Forward(HOUR));
    holder.grant(&machine, 20 * MINUTE_MS).await;
    machine.pass(15 * MINUTE);
    machine.set(Set::Back(HOUR));
    assert_eq!(holder.renew(&machine, 10 * MINUTE_MS).await.left_ms, 10 * MINUTE_MS);
    machine.reboot(MINUTE, RIGHT).await;
    assert_eq!(holder.left_ms(&machine).await, 10 * MINUTE_MS);
    machine.pass(10 * MINUTE);
    assert_eq!(holder.left_ms(&machine).await, 0);
    let next = Caller { key: holder.key.clone(), ..Caller::new() };
    next.grant(&machine, 10 * MINUTE_MS).await;
    machine.reboot(MINUTE, RIGHT).await;
    assert_eq!(next.left_ms(&machine).await, 9 * MINUTE_MS);
}

/// It is slow where its battery is empty, and ahead where that was set wrong. Nothing was asked for meanwhile, or the row was written
/// anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_boot_with_a_wrong_clock_ends_no_lease_early_that_is_told_by_the_next_one() {
    let wrong = [
        (Set::Back(HOUR), Set::Forward(HOUR)),
        (Set::Back(100 * HOUR), Set::Forward(100 * HOUR)),
        (Set::Forward(5 * MINUTE), Set::Back(5 * MINUTE)),
    ];
    for (wrong, right) in wrong {
        for is_asked in [false, true] {
            let mut machine = Machine::new();
            let (holder, released) = held_and_released(&machine).await;
            machine.reboot(Duration::ZERO, wrong).await;
            if is_asked {
                // To look pins the grant, and what a later start of the same boot reads is this.
                assert!(holder.left_ms(&machine).await > 0);
                machine.set_while(RIGHT, Meanwhile::ClosedAndOpened).await;
                holder.renew(&machine, MINUTE_MS).await;
            }
            machine.reboot(MINUTE, right).await;
            assert_eq!(holder.left_ms(&machine).await, 8 * MINUTE_MS, "{wrong:?} {is_asked}");
            if let Set::Back(_) = wrong {
                assert_eq!(released.acquire(&machine, MINUTE_MS).await, Acquired::TokenReleased, "{wrong:?}");
            }
            // It ends by the clock that is right.
            machine.reboot(8 * MINUTE, RIGHT).await;
            assert_eq!(holder.left_ms(&machine).await, 0, "{wrong:?} {is_asked}");
        }
    }
}

/// The program before this one writes batches, and does not say by which clock.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_version_has_written_since_is_not_judged_by_an_older_step() {
    let mut machine = Machine::new();
    let (holder, _) = held_and_released(&machine).await;
    machine.set(Set::Forward(HOUR));
    machine.close().await;
    let database = Database::open(&machine.file).unwrap();
    let change = database.begin_write().unwrap();
    let mut numbers = change.open_table(NUMBERS).unwrap();
    let batch = numbers.get("batch").unwrap().unwrap().value();
    assert_eq!(numbers.get("wall-at-boot-of").unwrap().unwrap().value(), batch);
    numbers.insert("batch", batch + 1).unwrap();
    drop(numbers);
    change.commit().unwrap();
    drop(database);
    machine.clock.reboot();
    machine.pass(MINUTE);
    machine.set(Set::Back(HOUR));
    machine.open();
    assert_eq!(holder.left_ms(&machine).await, 8 * MINUTE_MS);
}

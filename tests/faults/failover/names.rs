//! Gateways that name one server differently, as while a setting is rolled out: by the server itself, and by Sentinel. They go
//! on with one run of numbers.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{all_resume, gateways, new_key, of_note};
use kit::sentinels::{Promotion, SentinelOptions};
use kit::{Client, Gateway, SentinelSetup};

/// More than two looks of each gateway at its server: those who restart each other's runs would do so in it.
const LONG_ENOUGH: Duration = Duration::from_millis(2_500);

/// A number that this gateway gives on a new key.
async fn number(gateway: &Gateway) -> u64 {
    let client = Client::new(gateway.address);
    client.put(&format!("/locks/{}", new_key())).send().await.expect(201).fencing_token()
}

/// All numbers that these gateways give by turns in a while.
async fn numbers_by_turns(gateways: &[&Gateway]) -> Vec<u64> {
    let (began, mut numbers) = (Instant::now(), Vec::new());
    while began.elapsed() < LONG_ENOUGH {
        for gateway in gateways {
            numbers.push(number(gateway).await);
        }
        sleep(Duration::from_millis(10)).await;
    }
    numbers
}

/// Where a run is restarted, numbers are left out.
fn assert_is_one_run(numbers: &[u64], gateways: &[&Gateway]) {
    let logs: Vec<_> = gateways.iter().map(|gateway| of_note(gateway)).collect();
    let restarts = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert_eq!(restarts, 0, "in {} numbers: {logs:#?}", numbers.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_name_a_server_differently_go_on_with_one_run_of_numbers() {
    let setup = SentinelSetup::start().await;
    let (by_sentinel, by_server) = (setup.url(), setup.url_of_server(0));
    let start = async |url: &str, args: &[&str]| gateways(1, url, args).await.remove(0);
    // Whoever comes first: each order has locks and numbers of its own.
    for (prefix, urls) in [("server", [&by_server, &by_sentinel]), ("sentinel", [&by_sentinel, &by_server])] {
        let args = ["--redis-prefix", prefix];
        let (first, second) = (start(urls[0], &args).await, start(urls[1], &args).await);
        let both = [&first, &second];
        number(&second).await;
        number(&first).await;
        assert_is_one_run(&numbers_by_turns(&both).await, &both);
    }

    let named = start(&by_server, &[]).await;
    let followers = gateways(2, &by_sentinel, &[]).await;
    let all = [&named, &followers[0], &followers[1]];
    let before = numbers_by_turns(&all).await;
    assert_is_one_run(&before, &all);
    let promotion = setup.failover().await;
    all_resume(&followers, promotion, &setup.servers[1], new_key).await;
    setup.settles_on(1).await;
    let after = number(&followers[0]).await;
    assert!(after > *before.last().unwrap(), "{after} after {before:?}");
    // One that is told the new primary itself begins a run, once.
    let named = start(&setup.url_of_server(1), &[]).await;
    let all = [&named, &followers[0], &followers[1]];
    let numbers = numbers_by_turns(&all).await;
    assert!(numbers[0] > after, "{numbers:?} after {after}");
    assert_is_one_run(&numbers, &all);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_name_a_deposed_primary_differently_do_not_lift_its_numbers_over_its_successors() {
    let options = SentinelOptions { is_divisible: true, ..SentinelOptions::default() };
    let setup = SentinelSetup::start_with(options).await;
    let by_sentinel = gateways(2, &setup.url(), &[]).await;
    let by_server = gateways(1, &setup.url_of_server(0), &[]).await.remove(0);
    let (cut_off, rightful) = (&by_sentinel[0], &by_sentinel[1]);
    let deposed = [cut_off, &by_server];
    numbers_by_turns(&deposed).await;

    let (server, sentinel) = (setup.servers[0].pid(), setup.sentinels[2].pid());
    setup.network().cut_off(&[server, sentinel, cut_off.pid(), by_server.pid()]);
    let promotion = Promotion { server: 1, at: setup.servers[1].becomes_primary().await };
    all_resume(&by_sentinel[1..], promotion, &setup.servers[1], new_key).await;
    let smallest = number(rightful).await;
    let numbers = numbers_by_turns(&deposed).await;
    let largest = *numbers.iter().max().unwrap();
    assert!(
        largest < smallest,
        "{largest} was given by the deposed primary, and {smallest} by its successor"
    );
    assert_is_one_run(&numbers, &deposed);
}

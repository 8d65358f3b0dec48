//! A Redis that results fill, through two gateways: they leave room for locks, and work that was begun can be stored.

use futures_util::future::join_all;

use super::Pair;
use kit::{Answer, Client, RedisServer, fresh_token};

const MEMORY: u64 = 64 << 20;
/// As long as a result may be, unless a setting says otherwise; and how long a short one may be.
const LONG: usize = 64 * 1024;
const SHORT: usize = 1024;
/// How much of it records may take by default: new ones begin below this, and long results are stored below a third more.
const BEGINS_PERCENT: u64 = 60;
const LONG_PERCENT: u64 = 80;
/// How much more may be used, since a look at the server is some moments old.
const PAST_PERCENT: u64 = 8;
/// Work that was begun before, whose results are twice what there is room for then.
const UNDER_WAY: usize = 600;
const AT_ONCE: usize = 8;

fn result(bytes: usize) -> Vec<u8> {
    vec![b'x'; bytes]
}

async fn begin(client: &Client, key: &str, token: &str) -> Answer {
    client.put(&format!("/once/{key}?ttl=1h")).token(token).send().await
}

async fn store(client: &Client, key: &str, token: &str, bytes: usize) -> Answer {
    client.post(&format!("/once/{key}")).token(token).body(result(bytes)).send().await
}

async fn used_percent(redis: &RedisServer) -> u64 {
    redis.info("used_memory").await.parse::<u64>().unwrap() * 100 / MEMORY
}

#[tokio::test(flavor = "multi_thread")]
async fn results_leave_room_for_locks_and_work_under_way_is_stored() {
    let redis = RedisServer::start_with(&["--maxmemory", &MEMORY.to_string()]).await;
    let pair = Pair::on(redis, &[]).await;
    let mut under_way = Vec::new();
    for number in 0..UNDER_WAY {
        let (key, token) = (format!("way-{number}"), fresh_token());
        begin(&pair.client(number), &key, &token).await.expect(201);
        under_way.push((number, key, token));
    }

    // Both gateways fill it, until nothing more is begun.
    let fill = join_all((0..AT_ONCE).map(async |filler| {
        let mut stored = 0;
        for number in 0.. {
            let (client, key, token) =
                (pair.client(filler), format!("full-{filler}-{number}"), fresh_token());
            let begun = begin(&client, &key, &token).await;
            if begun.status == 503 {
                begun.expect_problem(503, "store-nearly-full");
                client.get(&format!("/once/{key}")).send().await.expect_problem(404, "not-begun");
                break;
            }
            begun.expect(201);
            store(&client, &key, &token, LONG).await.expect(200);
            stored += 1;
        }
        stored
    }));
    let stored: usize = fill.await.into_iter().sum();
    let used = used_percent(pair.redis()).await;
    println!("{stored} results of {LONG} bytes were stored, and {used} % are used");
    assert!((BEGINS_PERCENT - 5..=BEGINS_PERCENT + PAST_PERCENT).contains(&used), "{used} %");
    for (number, gateway) in [pair.here(), pair.there()].iter().enumerate() {
        kit::eventually("neither begins anything", async || {
            let (key, token) = (format!("new-{number}-{}", fresh_token()), fresh_token());
            let is_full = begin(gateway, &key, &token).await.status == 503;
            if !is_full {
                store(gateway, &key, &token, LONG).await;
            }
            is_full
        })
        .await;
    }
    lock_pairs(&pair, 1_000).await;

    // What is under way goes on: long results while there is room for them, and short ones always.
    let mut refused = Vec::new();
    for (number, key, token) in &under_way {
        let client = pair.client(*number);
        let answer = store(&client, key, token, LONG).await;
        if answer.status == 503 {
            answer.expect_problem(503, "store-nearly-full");
            refused.push((client, key, token));
        } else {
            answer.expect(200);
        }
    }
    println!("{} of {UNDER_WAY} results were refused", refused.len());
    assert!((UNDER_WAY / 4..UNDER_WAY).contains(&refused.len()), "{} were refused", refused.len());
    lock_pairs(&pair, 1_000).await;
    // Where a long one does not fit any more, a few of these still may.
    let mut squeezed_in = 0;
    for (client, key, token) in &refused {
        client.patch(&format!("/once/{key}")).token(token).send().await.expect(200);
        let answer = store(client, key, token, SHORT + 1).await;
        if answer.status == 200 {
            squeezed_in += 1;
            continue;
        }
        answer.expect_problem(503, "store-nearly-full");
        store(client, key, token, SHORT).await.expect(200);
    }
    assert!(squeezed_in < refused.len() / 4, "{squeezed_in} of {} fit all the same", refused.len());
    for (number, key, _) in &under_way {
        let read = begin(&pair.client(number + 1), key, &fresh_token()).await.expect(200);
        assert!([LONG, SHORT + 1, SHORT].contains(&read.body.len()), "{key}: {}", read.body.len());
    }
    let used = used_percent(pair.redis()).await;
    println!("{used} % are used in the end");
    assert!(used <= LONG_PERCENT + PAST_PERCENT, "{used} %");
    lock_pairs(&pair, 1_000).await;
}

/// Takes and releases locks at both gateways.
async fn lock_pairs(pair: &Pair, pairs: usize) {
    join_all((0..AT_ONCE).map(async |client| {
        for number in (client..pairs).step_by(AT_ONCE) {
            let (client, address) = (pair.client(number), format!("/locks/lock-{number}"));
            let token = client.put(&address).send().await.expect(201).token();
            client.delete(&address).token(&token).send().await.expect(204);
        }
    }))
    .await;
}

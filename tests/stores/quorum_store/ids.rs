//! The id of a quorum, by which servers of another one with the same names are told apart.

use super::{
    Client, Duration, Gateway, Quorum, RedisServer, eventually, fresh_token, ready, run, why_not_ready,
};
use kit::quorum::{BRIEF, RECORD, count_at_once, counts_at_once, shows};
use tokio::time::Instant;

/// The id that a server's record has.
async fn id(node: &RedisServer) -> Option<String> {
    node.command(&["HGET", RECORD, "quorum"]).await
}

/// Has a server be one of another quorum with the same list, as where an address leads to that.
async fn belongs_to(node: &RedisServer, quorum: &str) {
    let _: u64 = node.command(&["HSET", RECORD, "quorum", quorum]).await;
}

/// Waits until all have one id; returns it.
async fn common_id(quorum: &Quorum) -> String {
    eventually("all have the id", async || {
        let first = id(&quorum.nodes[0]).await;
        let mut are_alike = first.is_some();
        for node in &quorum.nodes {
            are_alike &= id(node).await == first;
        }
        are_alike
    })
    .await;
    id(&quorum.nodes[0]).await.unwrap()
}

/// Waits until a gateway has founded it, and ends that; returns the id.
async fn founded(quorum: &Quorum) -> String {
    let founder = ready(quorum.gateway(&BRIEF).await).await;
    let known = common_id(quorum).await;
    drop(founder);
    known
}

/// Has servers lose their data, and starts a gateway that looks at the one that has its own before it sees these.
async fn gateway_after_a_loss(quorum: &Quorum, lost: &[RedisServer]) -> Gateway {
    for node in lost {
        let _: () = node.command(&["FLUSHALL"]).await;
        node.stand_still().await;
    }
    let gateway = quorum.gateway(&BRIEF).await;
    eventually("the one is looked at before the others", async || {
        why_not_ready(&gateway).await.is_some_and(|why| why.contains("it belongs to another quorum"))
    })
    .await;
    for node in lost {
        node.signal("CONT");
    }
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_start_together_give_all_servers_one_id_and_one_that_forgot_gets_it_again() {
    let quorum = Quorum::start(3).await;
    let (first, second) = tokio::join!(quorum.gateway(&BRIEF), quorum.gateway(&BRIEF));
    let (first, second) = (ready(first).await, ready(second).await);
    let known = common_id(&quorum).await;
    let _: () = quorum.nodes[2].command(&["FLUSHALL"]).await;
    counts_at_once(&quorum.nodes[2]).await;
    assert_eq!(common_id(&quorum).await, known);
    // All forget, and a gateway starts that has not known it: it is the same, or all gateways make the same new one, and go by it.
    for node in &quorum.nodes {
        let _: () = node.command(&["FLUSHALL"]).await;
    }
    let fresh = quorum.gateway(&BRIEF).await;
    count_at_once(&quorum.nodes).await;
    common_id(&quorum).await;
    let fresh = ready(fresh).await;
    for gateway in [&first, &second, &fresh] {
        for node in &quorum.nodes {
            shows(gateway, node, "counts").await;
        }
    }
    // Those of a version that gave none get one too. Gateways that go on may know either of the former ones.
    drop((first, second, fresh));
    for node in &quorum.nodes {
        let _: u64 = node.command(&["HDEL", RECORD, "quorum"]).await;
    }
    let _both = tokio::join!(quorum.gateway(&BRIEF), quorum.gateway(&BRIEF));
    common_id(&quorum).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_quorum_with_the_same_names_has_no_vote_and_is_left_what_it_is() {
    let mut quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    let known = common_id(&quorum).await;
    belongs_to(&quorum.nodes[2], "another").await;
    let says = |line: &str| line.contains("\"WARN\"") && line.contains("it belongs to another quorum");
    gateway.logs("whose it is", says).await;
    shows(&gateway, &quorum.nodes[2], "unusable").await;
    // As soon as its address leads where it should, it counts.
    belongs_to(&quorum.nodes[2], &known).await;
    shows(&gateway, &quorum.nodes[2], "counts").await;
    // The other's is not taken in either if it was restarted.
    belongs_to(&quorum.nodes[2], "another").await;
    let _: u64 = quorum.nodes[2].command(&["HSET", RECORD, "run", "gone"]).await;
    quorum.nodes[0].kill();
    eventually("one is too few", async || {
        why_not_ready(&gateway).await.is_some_and(|why| why.contains("it belongs to another quorum"))
    })
    .await;
    let client = Client::new(gateway.address);
    client.put("/locks/k?ttl=4s").token(&fresh_token()).send().await.expect(503);
    let run: String = quorum.nodes[2].command(&["HGET", RECORD, "run"]).await;
    assert_eq!((run.as_str(), id(&quorum.nodes[2]).await.as_deref()), ("gone", Some("another")));
}

/// Waits until the gateway has looked at a server that it asks nothing else.
async fn is_looked_at(node: &RedisServer) {
    let looks = async || {
        let stats: String = node.command(&["INFO", "commandstats"]).await;
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    let before = looks().await;
    // The first may have begun before.
    eventually("it is looked at", async || looks().await >= before + 2).await;
}

/// How long a lease can last by the record of a server, after a gateway has written into it what it knows.
async fn longest_ms(node: &RedisServer) -> u64 {
    let _: u64 = node.command(&["HSET", RECORD, "longest", "1"]).await;
    let longest_ms = async || node.command::<u64>(&["HGET", RECORD, "longest"]).await;
    eventually("it is told", async || longest_ms().await > 1).await;
    longest_ms().await
}

/// Its quorum has another `--max-ttl`, and accepts that it evicts keys.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_learned_of_a_server_of_another_quorum_and_no_look_writes_into_it() {
    let quorum = Quorum::start(3).await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    let known = common_id(&quorum).await;
    let [first, second, other] = &*quorum.nodes else { unreachable!() };
    shows(&gateway, other, "counts").await;
    let longest = longest_ms(first).await;
    let belongs_with = async |quorum: &str, longest_ms: &str| {
        let _: u64 = other.command(&["HSET", RECORD, "quorum", quorum, "longest", longest_ms]).await;
    };
    let record = async || other.command::<Vec<String>>(&["HGETALL", RECORD]).await;
    belongs_with("another", "86400000").await;
    shows(&gateway, other, "unusable").await;
    assert_eq!(longest_ms(first).await, longest);
    belongs_with("another", "1").await;
    other.evict().await;
    let before = record().await;
    is_looked_at(other).await;
    assert_eq!(record().await, before);
    drop(gateway);
    // A gateway that starts looks at it before it knows its own quorum.
    for ms in ["86400000", "1"] {
        belongs_with("another", ms).await;
        let before = record().await;
        for node in [first, second] {
            node.stand_still().await;
        }
        let late = quorum.gateway(&BRIEF).await;
        is_looked_at(other).await;
        for node in [first, second] {
            node.signal("CONT");
        }
        let late = ready(late).await;
        shows(&late, other, "unusable").await;
        assert_eq!((longest_ms(first).await, record().await), (longest, before));
    }
    // What it has evicted is found out as soon as it is known to be of this one.
    let late = ready(quorum.gateway(&BRIEF).await).await;
    belongs_with(&known, "1").await;
    shows(&late, other, "quarantine").await;
    assert_eq!(longest_ms(other).await, longest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_starts_believes_no_server_before_it_knows_whose_most_of_them_are() {
    let quorum = Quorum::start(3).await;
    founded(&quorum).await;
    belongs_to(&quorum.nodes[2], "another").await;
    quorum.nodes[0].stand_still().await;
    let unlike = "it belongs to another quorum, or others of these servers do";
    let late: Gateway = quorum.gateway(&BRIEF).await;
    eventually("neither counts", async || {
        why_not_ready(&late).await.is_some_and(|why| why.matches(unlike).count() == 2)
    })
    .await;
    let check = run(&["check", "--store", &quorum.url()]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    assert_eq!(String::from_utf8(check.stdout).unwrap().matches(unlike).count(), 2);
    // With the third, most of them say it.
    quorum.nodes[0].signal("CONT");
    ready(late).await;
}

/// The gateways that knew its id have gone with the others' data.
#[tokio::test(flavor = "multi_thread")]
async fn servers_whose_id_most_have_lost_have_no_vote_and_the_others_make_one_of_their_own() {
    let quorum = Quorum::start(5).await;
    let former = founded(&quorum).await;
    let (lost, kept) = quorum.nodes.split_at(3);
    for node in lost {
        let _: () = node.command(&["FLUSHALL"]).await;
    }
    let gateway = quorum.gateway(&BRIEF).await;
    count_at_once(lost).await;
    eventually("they have one id", async || {
        let first = id(&lost[0]).await;
        first.is_some() && first == id(&lost[1]).await && first == id(&lost[2]).await
    })
    .await;
    assert_ne!(id(&lost[0]).await.as_deref(), Some(&*former));
    let gateway = ready(gateway).await;
    for node in kept {
        shows(&gateway, node, "unusable").await;
    }
    let check = run(&["check", "--store", &quorum.url()]);
    let page = String::from_utf8(check.stdout).unwrap();
    assert!(
        check.status.code() == Some(0) && page.contains("it belongs to another quorum, or others"),
        "{page}"
    );
    // They counted for nothing: so they may be emptied.
    for node in kept {
        let _: () = node.command(&["FLUSHALL"]).await;
        counts_at_once(node).await;
        shows(&gateway, node, "counts").await;
    }
    assert_ne!(common_id(&quorum).await, former);
}

/// Locks may be held of which the first two know nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_forgot_beside_one_without_a_vote_are_not_new_when_that_one_is_emptied() {
    // A gateway that has just started may have taken that one in, too: then only its id says that it was part of a quorum.
    for is_born in [true, false] {
        let quorum = Quorum::start(3).await;
        founded(&quorum).await;
        let (lost, kept) = (&quorum.nodes[..2], &quorum.nodes[2]);
        if !is_born {
            let _: u64 = kept.command(&["HDEL", RECORD, "born"]).await;
        }
        let second = gateway_after_a_loss(&quorum, lost).await;
        for node in lost {
            shows(&second, node, "quarantine").await;
        }
        drop(second);
        let _: () = kept.command(&["FLUSHALL"]).await;
        let third = quorum.gateway(&BRIEF).await;
        shows(&third, kept, "quarantine").await;
        let client = Client::new(third.address);
        client.put("/locks/k?ttl=4s").send().await.expect_problem(503, "store-unavailable");
        for node in &quorum.nodes {
            let since: u64 = node.command(&["HGET", RECORD, "since"]).await;
            assert!(since > 0, "it is taken for new");
        }
    }
}

/// Of two servers of four as well: most of them cannot say their id any more.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_lost_their_data_after_a_change_of_the_list_are_taken_in_again() {
    for count in [3, 4] {
        let quorum = Quorum::start(count).await;
        let former = founded(&quorum).await;
        for node in &quorum.nodes {
            let _: u64 = node.command(&["HSET", RECORD, "epoch", "2"]).await;
        }
        let (lost, kept) = quorum.nodes.split_at(2);
        for node in lost {
            let _: () = node.command(&["FLUSHALL"]).await;
        }
        let gateway = quorum.gateway(&[&BRIEF[..], &["--redlock-epoch", "2"]].concat()).await;
        for node in lost {
            shows(&gateway, node, "quarantine").await;
        }
        // Of four, three must be let out at once. So one of those that count for nothing is emptied before.
        let (before, after) = kept.split_at(count - 3);
        for node in before {
            let _: () = node.command(&["FLUSHALL"]).await;
        }
        count_at_once(lost.iter().chain(before)).await;
        let gateway = ready(gateway).await;
        for node in after {
            shows(&gateway, node, "unusable").await;
            let _: () = node.command(&["FLUSHALL"]).await;
            counts_at_once(node).await;
        }
        for node in &quorum.nodes {
            shows(&gateway, node, "counts").await;
        }
        assert_ne!(common_id(&quorum).await, former);
        // Without any that tells of the list, nothing says when their leases end.
        drop(gateway);
        for node in &quorum.nodes {
            let _: () = node.command(&["FLUSHALL"]).await;
        }
        let late = quorum.gateway(&[&BRIEF[..], &["--redlock-epoch", "2"]].concat()).await;
        let why = "no server knows an earlier list: a first list has epoch 1, and if all servers have lost their data, stop all gateways";
        eventually("it is said", async || why_not_ready(&late).await.is_some_and(|said| said.contains(why)))
            .await;
        let check = run(&["check", "--store", &quorum.url(), "--redlock-epoch", "2"]);
        let page = String::from_utf8(check.stdout).unwrap();
        assert!(page.contains(why), "{page}");
        // The one that is away may know it.
        quorum.nodes[0].stand_still().await;
        eventually("it is not said", async || {
            why_not_ready(&late).await.is_some_and(|said| !said.contains(why))
        })
        .await;
        quorum.nodes[0].signal("CONT");
    }
}

/// {1,2,3} to {1,2,4}, and 2 and 3 forget: they must not help the former list to grant what the later one has granted.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_list_takes_no_server_in_beside_one_that_alone_tells_of_a_later_list() {
    let quorum = Quorum::start(3).await;
    founded(&quorum).await;
    let (first, others) = quorum.nodes.split_first().unwrap();
    let _: u64 = first.command(&["HSET", RECORD, "epoch", "2"]).await;
    let former = gateway_after_a_loss(&quorum, others).await;
    let why = "knows a later list of servers, and whose it is is not known: meanwhile this gateway takes no server in";
    eventually("it is said of each", async || {
        why_not_ready(&former).await.is_some_and(|said| said.matches(why).count() == 2)
    })
    .await;
    let warns = |line: &str| line.contains("\"WARN\"") && line.contains(why);
    former.logs("the log warns of it", warns).await;
    let looked_at = Instant::now();
    while looked_at.elapsed() < Duration::from_secs(3) {
        for node in others {
            assert_eq!(node.command::<u64>(&["EXISTS", RECORD]).await, 0, "it was taken in");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_without_an_id_serve_beside_another_quorums_with_a_later_list_and_get_one_without_it() {
    let quorum = Quorum::start(3).await;
    let known = founded(&quorum).await;
    let (other, ours) = quorum.nodes.split_first().unwrap();
    belongs_to(other, "another").await;
    let _: u64 = other.command(&["HSET", RECORD, "epoch", "2"]).await;
    for node in ours {
        let _: u64 = node.command(&["HDEL", RECORD, "quorum"]).await;
    }
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    shows(&gateway, other, "unusable").await;
    Client::new(gateway.address).put("/locks/k?ttl=4s").send().await.expect(201);
    assert_eq!((id(&ours[0]).await, id(&ours[1]).await), (None, None));
    // Its address leads where it should.
    let _: u64 = other.command(&["HDEL", RECORD, "quorum"]).await;
    let _: u64 = other.command(&["HSET", RECORD, "epoch", "1"]).await;
    assert_eq!(common_id(&quorum).await, known);
    shows(&gateway, other, "counts").await;
}

/// A gateway that has not seen the third server ends the first quarantine of the others when another one has just founded the quorum:
/// only the third has got its id.
#[tokio::test(flavor = "multi_thread")]
async fn servers_whose_first_quarantine_ended_beside_the_founding_get_its_id() {
    let quorum = Quorum::start(3).await;
    founded(&quorum).await;
    let (others, third) = (&quorum.nodes[..2], &quorum.nodes[2]);
    let are_in_quarantine =
        "local since = string.format('%.0f', redis.call('HGET', KEYS[1], 'born') - 36000000)
        redis.call('HSET', KEYS[1], 'since', since, 'served', since .. ' 36000000 ' .. since, 'settled', '0')
        redis.call('HDEL', KEYS[1], 'born', 'quorum')
        return string.sub(redis.call('HGET', KEYS[1], 'run'), 1, 12) .. '/' .. since";
    let mut parts = Vec::new();
    for node in others {
        parts.push(node.command::<String>(&["EVAL", are_in_quarantine, "1", RECORD]).await);
    }
    let made = parts.join(" ");
    belongs_to(third, &made).await;
    third.stand_still().await;
    let gateway = ready(quorum.gateway(&BRIEF).await).await;
    assert_eq!((id(&others[0]).await, id(&others[1]).await), (None, None));
    third.signal("CONT");
    assert_eq!(common_id(&quorum).await, made);
    for node in &quorum.nodes {
        shows(&gateway, node, "counts").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_reached_one_server_before_its_gateway_crashed_is_given_to_the_others() {
    let quorum = Quorum::start(3).await;
    let known = founded(&quorum).await;
    let is_being_founded = "local born = redis.call('HGET', KEYS[1], 'born')
        redis.call('HSET', KEYS[1], 'since', born, 'settled', '0')
        redis.call('HDEL', KEYS[1], 'born', 'quorum')";
    for node in &quorum.nodes[1..] {
        let _: () = node.command(&["EVAL", is_being_founded, "1", RECORD]).await;
    }
    let next = quorum.gateway(&BRIEF).await;
    assert_eq!(common_id(&quorum).await, known);
    count_at_once(&quorum.nodes).await;
    for node in &quorum.nodes {
        shows(&next, node, "counts").await;
    }
    drop(ready(next).await);
    // Also where they all counted without one.
    for node in &quorum.nodes {
        let _: u64 = node.command(&["HDEL", RECORD, "quorum"]).await;
    }
    let first = ready(quorum.gateway(&BRIEF).await).await;
    let made = common_id(&quorum).await;
    drop(first);
    for node in &quorum.nodes[..2] {
        let _: u64 = node.command(&["HDEL", RECORD, "quorum"]).await;
    }
    let next = ready(quorum.gateway(&BRIEF).await).await;
    assert_eq!(common_id(&quorum).await, made);
    shows(&next, &quorum.nodes[2], "counts").await;
}

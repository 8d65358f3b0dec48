//! What is told of a lock that several hold: that it is to be looked at, whenever something changed there.

use std::time::Duration;

use tokio::time::timeout;

use super::{Pair, Stream};
use kit::fresh_token;

/// How long a stream is silent once all has been told of a change: it is looked at once more, a tenth of a second later.
const SILENCE: Duration = Duration::from_millis(600);

/// The event that says to look at `k`, and all that say so again.
async fn look(stream: &mut Stream, after: &str) {
    let mut next = Ok(stream.next().await);
    while let Ok(event) = next {
        assert_eq!(event.clone().is("resync").key(), Some("k"), "{after}: {event:?}");
        next = timeout(SILENCE, stream.next()).await;
    }
}

/// Before the first look has told how many hold it.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_that_is_released_at_once_is_not_told_as_the_end_of_the_lock() {
    let pair = Pair::embedded().await;
    let client = pair.there();
    let mut stream = Stream::open(&client, "key=k").await;
    let tokens = [fresh_token(), fresh_token()];
    for token in &tokens {
        client.put("/locks/k?slots=2&ttl=1m").token(token).send().await.expect(201);
    }
    client.delete("/locks/k").token(&tokens[0]).send().await.expect(204);
    look(&mut stream, "one of two is released").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_lock_that_several_hold_has_watchers_look() {
    let pair = Pair::embedded().await;
    let client = pair.there();
    let mut stream = Stream::open(&client, "key=k").await;
    let [first, second, third] = [(); 3].map(|()| fresh_token());
    client.put("/locks/k?slots=3&ttl=1m").token(&first).send().await.expect(201);
    look(&mut stream, "the first is granted").await;
    client.put("/locks/k?slots=3&ttl=1m").token(&second).send().await.expect(201);
    look(&mut stream, "the second is granted").await;
    client.patch("/locks/k?ttl=2m").token(&first).send().await.expect(200);
    look(&mut stream, "one is renewed").await;
    client.put("/locks/k?slots=3&ttl=3s").token(&third).send().await.expect(201);
    look(&mut stream, "the third is granted").await;
    // Without anybody who does anything.
    look(&mut stream, "a lease ends").await;
    client.delete("/locks/k").token(&first).send().await.expect(204);
    look(&mut stream, "one is released").await;
    let seen = client.get("/locks/k").send().await.expect(200).json();
    assert_eq!(seen["held"], 1);
    client.delete("/locks/k").token(&second).send().await.expect(204);
    look(&mut stream, "the last is released").await;
    client.put("/locks/k?ttl=1m").send().await.expect(201);
    stream.next_news().await.is("granted");
}

//! Copies of commands that reach Redis late, with real gateways and a proxy that keeps the copies back: after their
//! client has left, or has been answered and has released, they take nothing.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::lost_replies::Scene;
use kit::proxy::{Fate, Framing, Gate, Passage, Progress, gate_after};
use kit::{Client, Gateway, Proxy, RedisServer, eventually, fresh_token, secrets};

/// How late a copy is that was kept back.
const SECONDS_LATE: Duration = Duration::from_millis(2_500);

/// A token of the client's own, and none, so that the server makes one.
fn each_token() -> [String; 2] {
    [fresh_token(), String::new()]
}

/// Sends a `PUT` whose client can leave.
async fn put_and_stay(gateway: &Gateway, key: &str, token: &str) -> TcpStream {
    let token = if token.is_empty() { String::new() } else { format!("Lease-Token: {token}\r\n") };
    let request = format!("PUT /locks/{key}?ttl=1h HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
    secrets::remember_head(request.as_bytes());
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn leave(gateway: &Gateway, key: &str, client: TcpStream) {
    drop(client);
    let key = format!("\"key\":\"{key}\"");
    let left = |line: &str| line.contains("the client left before the answer") && line.contains(&key);
    gateway.logs("the gateway sees its client leave", left).await;
}

async fn arrives(mut late: Passage, gate: &Gate) {
    assert!(late.progress() <= Progress::Seen, "it was to be late");
    gate.cancel();
    late.reaches(Progress::Answered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_client_has_left_takes_nothing() {
    let scene = Scene::start().await;
    for (number, token) in each_token().into_iter().enumerate() {
        let key = format!("k{number}");
        let (cut, message) = (Gate::new(), Gate::new());
        let fate = Fate::Late { cut: cut.clone(), message: message.clone() };
        let mut late = scene.proxy.expect(&format!("lock:{key}"), fate);
        let client = put_and_stay(&scene.gateway, &key, &token).await;
        late.reaches(Progress::Seen).await;
        leave(&scene.gateway, &key, client).await;
        cut.cancel();
        eventually("its attempt is voided", async || {
            scene.redis.keys().await.iter().filter(|key| key.contains(":freed:")).count() > number + 1
        })
        .await;
        arrives(late, &message).await;
        scene.assert_free(&key, "after the late copy").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_client_was_answered_and_has_released_takes_nothing() {
    let scene = Scene::start().await;
    for (number, token) in each_token().into_iter().enumerate() {
        let key = format!("k{number}");
        let mut late = scene.proxy.expect(&format!("lock:{key}"), Fate::late(gate_after(SECONDS_LATE)));
        let granted = scene.put(&key, &token).await.expect(201);
        scene.delete(&key, &granted.token()).await.expect(204);
        late.reaches(Progress::Answered).await;
        scene.assert_free(&key, "after the late copy").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_lease_has_ended_takes_nothing() {
    let scene = Scene::start().await;
    for (number, token) in each_token().into_iter().enumerate() {
        let key = format!("k{number}");
        let gate = Gate::new();
        let late = scene.proxy.expect(&format!("lock:{key}"), Fate::late(gate.clone()));
        let put = scene.client.put(&format!("/locks/{key}?ttl=1s"));
        let put = if token.is_empty() { put } else { put.token(&token) };
        put.send().await.expect(201);
        let look = format!("/locks/{key}");
        eventually("the lease ends", async || scene.client.get(&look).send().await.status == 404).await;
        arrives(late, &gate).await;
        scene.assert_free(&key, "after the late copy").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_renewal_or_release_touches_no_other_lease() {
    let scene = Scene::start().await;
    for (number, token) in each_token().into_iter().enumerate() {
        for method in ["PATCH", "DELETE"] {
            let key = format!("k{number}-{method}");
            let granted = scene.put(&key, &token).await.expect(201);
            let gate = Gate::new();
            let late = scene.proxy.expect(&format!("lock:{key}"), Fate::late(gate.clone()));
            let address = if method == "PATCH" { "?ttl=24h" } else { "" };
            let address = format!("/locks/{key}{address}");
            scene.client.call(method, &address).token(&granted.token()).send().await;
            if method == "PATCH" {
                scene.delete(&key, &granted.token()).await.expect(204);
            }
            let other = scene.put(&key, &fresh_token()).await.expect(201);
            arrives(late, &gate).await;
            let look =
                scene.client.get(&format!("/locks/{key}")).token(&other.token()).send().await.expect(200);
            assert_eq!(look.json()["yours"], true);
            assert_eq!(look.fencing_token(), other.fencing_token());
            assert!(look.json()["expires_in_ms"].as_u64().unwrap() <= 3_600_000);
        }
    }
}

/// What travels when a client's connection drops and its retry goes through another gateway: the first acquire, its
/// answer, its clean-up, the retry's acquire, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Acquire,
    Answer,
    CleanUp,
    Retry,
    RetryAnswer,
}

/// Every order in which an answer comes after its command.
fn orders() -> Vec<Vec<Message>> {
    use Message::{Acquire, Answer, CleanUp, Retry, RetryAnswer};
    let mut orders = vec![vec![]];
    for message in [Acquire, Answer, CleanUp, Retry, RetryAnswer] {
        let longer = |order: &Vec<Message>| {
            let order = order.clone();
            let after = match message {
                Answer => order.iter().position(|other| *other == Acquire).map_or(0, |at| at + 1),
                RetryAnswer => order.iter().position(|other| *other == Retry).map_or(0, |at| at + 1),
                _ => 0,
            };
            (after..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, message);
                order
            })
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_through_another_gateway_keeps_its_grant_in_every_order_of_the_five_messages() {
    let redis = RedisServer::start().await;
    let (here, there) =
        (Proxy::start(redis.port(), Framing::Resp).await, Proxy::start(redis.port(), Framing::Resp).await);
    // Nothing may time out while a message is kept back.
    let start = async |proxy: &Proxy| {
        Gateway::start(&["--store", &proxy.redis_url(), "--store-timeout", "40s"]).await
    };
    let (first, second) = (start(&here).await, start(&there).await);
    let client = Client::new(second.address);
    for gateway in [&first, &second] {
        Client::new(gateway.address).put("/locks/warm?ttl=10ms").send().await;
    }
    let orders = orders();
    assert_eq!(orders.len(), 30);
    for (number, order) in orders.iter().enumerate() {
        let (key, token) = (format!("k{number}"), fresh_token());
        let text = format!("lock:{key}");
        let gates: [Gate; 5] = std::array::from_fn(|_| Gate::new());
        let gate = |message: Message| gates[message as usize].clone();
        let at = |message| order.iter().position(|other| *other == message).unwrap();
        // On one connection the clean-up cannot overtake its acquire: then that connection is cut.
        let cut = Gate::new();
        let overtakes = at(Message::CleanUp) < at(Message::Acquire);
        let fate = match overtakes {
            true => Fate::Late { cut: cut.clone(), message: gate(Message::Acquire) },
            false => Fate::Hold { message: gate(Message::Acquire), answer: gate(Message::Answer) },
        };
        let mut acquire = here.expect(&text, fate);
        let put = put_and_stay(&first, &key, &token).await;
        acquire.reaches(Progress::Seen).await;
        let open = Gate::new();
        open.cancel();
        let mut clean_up =
            here.expect(&text, Fate::Hold { message: gate(Message::CleanUp), answer: open.clone() });
        leave(&first, &key, put).await;
        cut.cancel();
        let fate = Fate::Hold { message: gate(Message::Retry), answer: gate(Message::RetryAnswer) };
        let mut retry = there.expect(&text, fate);
        let put = client.put(&format!("/locks/{key}?ttl=1h")).token(&token).send();
        let mut put = Some(tokio::spawn(put));
        retry.reaches(Progress::Seen).await;
        let mut answered = None;
        for message in order {
            gate(*message).cancel();
            match message {
                Message::Acquire => acquire.reaches(Progress::Answered).await,
                Message::CleanUp => clean_up.reaches(Progress::Answered).await,
                Message::Retry => retry.reaches(Progress::Answered).await,
                Message::Answer => {}
                Message::RetryAnswer => {
                    let answer = put.take().unwrap().await.unwrap();
                    assert!([200, 201].contains(&answer.status), "{order:?}: {}", answer.status);
                    answered = Some(answer.fencing_token());
                }
            }
            if let Some(number) = answered {
                let lock: Option<String> = redis.command(&["GET", &format!("fencepost:{{0}}:{text}")]).await;
                assert!(
                    lock.as_ref().is_some_and(|lock| lock.contains(&format!(" {number} "))),
                    "{order:?}: after {message:?} it is {lock:?} and not {number}"
                );
            }
        }
    }
}

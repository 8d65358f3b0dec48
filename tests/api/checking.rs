//! Whether a grant still holds its lock, as a proxy asks before it passes a write on: each row on the wire.

use crate::on_each::each_store;
use kit::{Client, Gateway, fresh_token};

/// The two forms of the address, and the two ways to say the number.
const FORMS: [&str; 2] = ["/locks/k?", "/lock?key=k&"];

/// The status by which each way is answered, which is the same.
async fn checked(client: &Client, number: u64) -> u16 {
    let mut statuses = Vec::new();
    for form in FORMS {
        let said = client.get(&format!("{form}fencing_token={number}")).send().await;
        let shown = client.get(&format!("{form}fencing_token=header"));
        let shown = shown.header("fencing-token", number.to_string()).send().await;
        statuses.extend([said.status, shown.status]);
    }
    statuses.dedup();
    assert_eq!(statuses.len(), 1, "{statuses:?}");
    statuses[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_grant_that_holds_the_lock_is_let_through() {
    each_store(async |client| {
        assert_eq!(checked(client, 7).await, 403, "nobody holds it");
        let first = client.put("/locks/k?ttl=1m").send().await.expect(201);
        assert_eq!(checked(client, first.fencing_token()).await, 204);
        assert_eq!(checked(client, first.fencing_token() + 1).await, 403);
        client.delete("/locks/k").token(&first.token()).send().await.expect(204);
        assert_eq!(checked(client, first.fencing_token()).await, 403, "it was released");
        let second = client.put("/locks/k?ttl=1m&min_hold=1m").send().await.expect(201);
        assert_eq!(checked(client, first.fencing_token()).await, 403, "another holds it");
        assert_eq!(checked(client, second.fencing_token()).await, 204);
        client.delete("/locks/k").token(&second.token()).send().await.expect(204);
        assert_eq!(checked(client, second.fencing_token()).await, 403, "it is kept, and was released");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_a_number_lets_nothing_through() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    let token = fresh_token();
    let number = client.put("/locks/k?ttl=1m").token(&token).send().await.expect(201).fencing_token();
    // That of a proxy whose client has said nothing, or rubbish, or two things.
    for value in ["", "0", "-1", "1.5", "x", "9007199254740992", "Header"] {
        let call = client.get(&format!("/lock?key=k&fencing_token={value}")).token(&token);
        call.send().await.expect_problem(400, "bad-parameter");
    }
    let asks = || client.get("/lock?key=k&fencing_token=header").token(&token);
    asks().send().await.expect_problem(400, "bad-parameter");
    asks().header("fencing-token", "").send().await.expect_problem(400, "bad-parameter");
    let two = asks().header("fencing-token", "1").header("fencing-token", number.to_string());
    two.send().await.expect_problem(400, "bad-parameter");
    let both = client.get(&format!("/lock?key=k&holders=true&fencing_token={number}"));
    both.send().await.expect_problem(400, "bad-parameter");
    // The token of the client that holds it makes no difference.
    let other = client.get(&format!("/lock?key=k&fencing_token={}", number + 1)).token(&token);
    other.send().await.expect_problem(403, "grant-over");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_lock_that_is_held_by_slots_nothing_is_said() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    let number = client.put("/locks/k?ttl=1m&slots=2").send().await.expect(201).fencing_token();
    let asked = client.get(&format!("/locks/k?fencing_token={number}")).send().await;
    asked.expect_problem(409, "held-by-several");
}

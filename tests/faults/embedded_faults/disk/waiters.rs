//! Who waits while the disk is full keeps the place in the queue.

use super::*;

/// Whichever change finds no room: of another lock, or of the one that they wait for.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_those_who_wait_are_counted_and_no_newcomer_overtakes_them() {
    let disk = SmallDisk::new();
    let gateway = disk.gateway().await;
    let client = Client::new(gateway.address);
    let mut held = Claim::new();
    held.put(&client).await.expect(201);
    held.is_yours(&client).await;
    let waiters = async || client.get(&held.path).send().await.expect(200).json()["waiters"].as_u64();
    let wait = async |order: u64| {
        eventually("the one before waits", async || waiters().await == Some(order)).await;
        let (path, token) = (format!("{}?wait=60s", held.path), fresh_token());
        let granted = client.put(&path).token(&token).send().await.expect(201);
        client.delete(&held.path).token(&token).send().await.expect(204);
        granted.fencing_token()
    };
    let release = async {
        eventually("all wait", async || waiters().await == Some(3)).await;
        disk.fill_but(0);
        take_until_refused(&client).await;
        assert_eq!(waiters().await, Some(3));
        let release = client.delete(&held.path).token(&held.token);
        refused_for_want_of_room(release.send().await);
        // Each try opens the file anew.
        take_until_refused(&client).await;
        assert_eq!(waiters().await, Some(3));
        disk.make_room();
        client.delete(&held.path).token(&held.token).send().await.expect(204);
        client.put(&held.path).send().await.expect_problem(423, "lock-held");
    };
    let (first, second, third, ()) = tokio::join!(wait(0), wait(1), wait(2), release);
    assert!(first < second && second < third, "{first}, {second}, {third}");
}

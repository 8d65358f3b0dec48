//! Names with an API key in them.

use kit::{Client, Gateway, KeysFile, RedisServer, eventually, fresh_token};

/// As where a client takes the parameter `key` for that of an API key. Names are in both logs, in lists and in events.
#[tokio::test(flavor = "multi_thread")]
async fn no_lock_no_record_and_no_owner_is_named_after_an_api_key() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"acquire\", \"inspect\", \"once\"");
    file.write();
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.log");
    let flag = file.flag();
    let tools = ["--terraform", "--dapr", "--fleet-lock", "g=1", "--audit-log", audit.to_str().unwrap()];
    let gateway = Gateway::start(&[&["--store", "memory:", &flag[0], &flag[1]][..], &tools].concat()).await;
    let client = Client::new(gateway.address);
    for (method, address, problem) in [
        ("PUT", format!("/lock?key={key}"), "bad-key"),
        ("PUT", format!("/locks/job-{key}"), "bad-key"),
        ("PUT", format!("/lock?key=a&key={key}"), "bad-key"),
        ("POST", format!("/hold?key=a&owner=x{key}"), "bad-parameter"),
        ("PUT", format!("/once/{key}"), "bad-key"),
        ("PUT", format!("/once/a?owner={key}"), "bad-parameter"),
    ] {
        client.call(method, &address).key(&key).send().await.expect_problem(400, problem);
    }
    let dapr = |resource: &str, owner: &str| {
        format!(r#"{{"resourceId":"{resource}","lockOwner":"{owner}","expiryInSeconds":60}}"#)
    };
    for (method, address, body) in [
        ("LOCK", "/terraform/a", format!(r#"{{"ID":"1","Who":"{key}"}}"#)),
        ("POST", "/v1.0-alpha1/lock/s", dapr(&key, "me")),
        ("POST", "/v1.0-alpha1/lock/s", dapr("r", &key)),
        ("POST", "/fleet-lock/v1/pre-reboot", format!(r#"{{"client_params":{{"id":"{key}","group":"g"}}}}"#)),
    ] {
        let call = client.call(method, address).key(&key).header("fleet-lock-protocol", "true").body(body);
        call.send().await.expect(400);
    }
    let audited = || std::fs::read_to_string(&audit).unwrap();
    eventually("each is a line", async || audited().matches("\"key-use\"").count() == 10).await;
    eventually("in the normal log too", async || {
        gateway
            .log()
            .iter()
            .filter(|line| line.contains("\"answered\"") && line.contains("\"status\":400"))
            .count()
            == 10
    })
    .await;
    let logs = [gateway.log().join("\n"), audited()];
    assert!(logs.iter().all(|log| !log.contains(&key[16..])), "{logs:?}");
}

/// As where a script sends `key=$TOKEN`. The token may still hold a lock: who reads the log could release it.
#[tokio::test(flavor = "multi_thread")]
async fn no_log_shows_a_name_with_the_lease_token_of_the_request_in_it() {
    let mut file = KeysFile::new();
    let key = file.add_for_all("ci", "\"acquire\", \"inspect\", \"once\", \"admin\"");
    file.write();
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.log");
    let flag = file.flag();
    let flags = ["--store", "memory:", &flag[0], &flag[1], "--audit-log", audit.to_str().unwrap()];
    let gateway = Gateway::start(&flags).await;
    let client = Client::new(gateway.address);
    let token = fresh_token();
    let requests = [
        ("PATCH", format!("/lock?key=a/{token}"), 404),
        ("DELETE", format!("/locks/a%2F{token}"), 404),
        ("DELETE", format!("/lock?key={token}&force=true"), 400),
        ("GET", format!("/lock?key=a/{}", token.to_uppercase()), 404),
        ("HEAD", format!("/locks/{token}"), 404),
        ("PATCH", format!("/once/{token}"), 400),
        ("DELETE", format!("/once?key={token}"), 400),
        ("GET", format!("/once/{token}"), 400),
        ("GET", format!("/events?key={token}"), 400),
        // This name is longer than the token, and stays in the logs.
        ("PATCH", "/lock?key=a-name-of-more-than-thirty-two-letters".to_owned(), 404),
    ];
    for (method, address, status) in &requests {
        client.call(method, address).key(&key).token(&token).send().await.expect(*status);
    }
    let audited = || std::fs::read_to_string(&audit).unwrap();
    let answered =
        || gateway.log().into_iter().filter(|line| line.contains("\"answered\"")).collect::<Vec<_>>();
    eventually("each is a line of both logs", async || {
        audited().matches("\"key-use\"").count() == requests.len() && answered().len() == requests.len()
    })
    .await;
    for log in [gateway.log().join("\n"), audited()] {
        assert!(!log.to_lowercase().contains(&token) && log.contains("thirty-two-letters"), "{log}");
    }
}

/// It was taken at 0.1.0, which let such names pass. Its holder goes on, and logs do not show the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_0_1_0_that_is_named_after_an_api_key_is_renewed_released_and_broken() {
    let redis = RedisServer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.log");
    let gateway = Gateway::on_redis(&redis, &["--audit-log", audit.to_str().unwrap()]).await;
    let client = Client::new(gateway.address);
    let secret = fresh_token();
    let name = format!("x_fp_k3y0f4lice00_{secret}");
    let taken = async || {
        let token = client.put("/locks/k?ttl=1m&owner=job-").send().await.expect(201).token();
        let key = |name: &str| format!("fencepost:{{0}}:lock:{name}");
        let _: () = redis.command(&["RENAME", &key("k"), &key(&name)]).await;
        // The owner is the end of the lock's value.
        let _: u64 = redis.command(&["APPEND", &key(&name), &name]).await;
        token
    };
    let token = taken().await;
    let looked = client.get(&format!("/locks/{name}")).token(&token).send().await.expect(200);
    assert_eq!(looked.json()["owner"], format!("job-{name}"));
    client.patch(&format!("/lock?key={name}&ttl=2m")).token(&token).send().await.expect(200);
    client.put(&format!("/locks/{name}")).token(&token).send().await.expect_problem(400, "bad-key");
    client.delete(&format!("/lock?key={name}")).token(&token).send().await.expect(204);
    taken().await;
    client.delete(&format!("/locks/{name}?force=true")).send().await.expect(204);
    client.get(&format!("/locks/{name}")).send().await.expect(404);
    gateway.logs("the last one has a line", |line| line.contains("\"status\":404")).await;
    eventually("the break is audited", async || {
        std::fs::read_to_string(&audit).unwrap().contains("\"event\":\"break\"")
    })
    .await;
    let logs = [gateway.log().join("\n"), std::fs::read_to_string(&audit).unwrap()];
    assert!(logs.iter().all(|log| !log.contains(&secret)), "{logs:?}");
}

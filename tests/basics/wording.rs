//! The kit's search for debug forms finds those that are there, and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kit::wording::find;
use kit::{Client, Gateway};

#[test]
fn debug_forms_are_found_in_texts_and_in_the_fields_of_a_line() {
    for text in [
        "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))",
        "loss=ShuttingDown(Lease { fencing_token: FencingToken(5), left_ms: 9890 })",
        "the owner is Some(\"x\")",
        "Os { code: 2, kind: NotFound, message: \"No such file\" }",
        "Invalid database number - InvalidClientConfig",
        "settings={\"listen\": \"127.0.0.1:8080\"}",
        "std::io::Error",
        "the type fencepost::lock::Lease",
        "it is \\\\\\\"quoted\\\\\\\" twice",
    ] {
        assert_eq!(find([text]), [text], "as text");
        let line = serde_json::json!({"level": "INFO", "key": "a", "reason": text}).to_string();
        assert_eq!(find([line.as_str()]), [text], "{line}");
    }
}

#[test]
fn what_people_may_read_is_not_found() {
    for text in [
        "listening on http://[::1]:8080, with an introduction at http://[fe80::1]:8080/docs",
        "the keys fencepost:{0}:lock:a cannot be read",
        "redis \"mymaster\" of the sentinels at a:26379, database 0 (it may lack the last renewals, and its clock may be ahead)",
        "raise the hard limit (ulimit -Hn, LimitNOFILE=)",
        "write [[key]], such as [\"CN=worker\"]",
        "ERR Error running script (call to f_2045): @user_script:533: OOM",
        "127.0.0.1:6379: Connection refused (os error 111)",
    ] {
        assert_eq!(find([text]), [""; 0]);
        let line = serde_json::json!({"level": "INFO", "reason": text}).to_string();
        assert_eq!(find([line.as_str()]), [""; 0]);
    }
    // What clients have chosen may look like anything.
    let line = r#"{"message":"answered","key":"Some(1)","owner":"Lease { a: 1 }","request_id":"std::x"}"#;
    assert_eq!(find([line]), [""; 0]);
}

/// What the end of a gateway fails the test with, if it does.
fn ends_with(gateway: Gateway) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(gateway))).err()?;
    Some(*panic.downcast::<String>().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_debug_form_in_what_a_gateway_writes_fails_the_test() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.json");
    let mut gateway = Gateway::start(&["--store", "memory:"]).await;
    gateway.audited_in(file.clone());
    std::fs::write(&file, "{\"detail\":\"Some(5)\"}\n").unwrap();
    let finding = ends_with(gateway).expect("nobody notices");
    assert!(finding.starts_with("no text for people is in the audit log"), "{finding}");
}

/// The owner of a lock is told in the detail of a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_debug_form_in_the_detail_of_an_error_fails_the_test() {
    let gateway = Gateway::start(&["--store", "memory:"]).await;
    let client = Client::new(gateway.address);
    client.put("/locks/k?owner=Some(x)").send().await.expect(201);
    let refused = tokio::spawn(client.put("/locks/k").send()).await;
    assert!(refused.is_err_and(|error| error.is_panic()), "nobody notices");
}

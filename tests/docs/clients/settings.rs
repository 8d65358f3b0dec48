//! What clients make of settings that are wrong before anything is asked.

use super::workshop::Kind;

with_each!(super::Kind::EXAMPLES; a_file_that_cannot_be_used_is_refused_by_its_name);

async fn a_file_that_cannot_be_used_is_refused_by_its_name(kind: Kind) {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(path("empty"), "\n").unwrap();
    for (url, variable) in
        [("http://127.0.0.1:1", "FENCEPOST_API_KEY_FILE"), ("https://127.0.0.1:1", "SSL_CERT_FILE")]
    {
        for file in [path("missing"), path("empty")] {
            let mut client = kind.start_in(&[("FENCEPOST_URL", url), (variable, &file)]).await;
            assert_eq!(client.says().await, "refused", "{variable}");
            let why = client.says().await;
            assert!(why.contains(&file), "{variable}: {why}");
        }
    }
    // Where there is no TLS, the authorities do not matter.
    let missing = path("missing");
    let plain = [("FENCEPOST_URL", "http://127.0.0.1:1"), ("SSL_CERT_FILE", &missing)];
    assert_eq!(kind.start_in(&plain).await.does("acquire k 300 0").await, "unavailable");
}

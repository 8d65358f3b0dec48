//! What a web page may do: nothing from another site, nothing under a rebound name, and all from our own pages.

use std::path::Path;

use kit::certificates::Certificates;
use kit::http::raw_call;
use kit::secure::{SecureClient, call};
use kit::{Client, Gateway, Stage, on_each_store};

on_each_store!(
    a_page_of_another_site_is_refused,
    a_rebound_host_is_refused,
    try_it_out_of_the_own_pages_works,
    the_docs_come_from_the_binary_alone,
    no_other_site_shows_a_page_of_ours_in_a_frame,
    what_a_browser_asks_for_another_site_is_refused_but_for_the_pages,
);

async fn a_page_of_another_site_is_refused(stage: Stage) {
    let client = stage.client();
    let own_port = stage.gateway.address.port();
    let near_miss = format!("http://127.0.0.1:{}", own_port.wrapping_add(1));
    for origin in ["https://evil.example", "null", "http://127.0.0.1", "file://", "junk", &near_miss] {
        for (method, address) in [
            ("PUT", "/locks/k"),
            ("PATCH", "/locks/k"),
            ("DELETE", "/locks/k"),
            ("GET", "/locks/k"),
            ("OPTIONS", "/locks/k"),
        ] {
            let answer = client.call(method, address).header("Origin", origin).send().await;
            let answer = answer.expect_problem(403, "cross-origin");
            assert!(answer.header("access-control-allow-origin").is_none());
        }
    }
    // One that is welcome does not hide one that is not.
    let address = stage.gateway.address;
    let both = format!("Origin: http://{address}\r\nOrigin: https://evil.example\r\n");
    raw_call(address, "PUT", "/locks/k", &both).await.expect_problem(403, "cross-origin");
    client.get("/locks/k").send().await.expect_problem(404, "not-held");
}

async fn a_rebound_host_is_refused(stage: Stage) {
    let address = stage.gateway.address;
    let call = async |host: &str| {
        let request = format!("PUT /locks/k HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        kit::http::parse(&kit::http::raw(address, request.as_bytes()).await)
    };
    for host in [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.nip.io",
        "10.0.0.1",
        "[::2]",
        "localhost.evil",
        "[",
        "local host",
    ] {
        let answer = call(host).await.expect_problem(403, "unknown-host");
        assert!(answer.json()["detail"].as_str().unwrap().contains("--allow-host"), "{host}");
    }
    call("a@b").await.expect_problem(400, "malformed-request");
    stage.client().get("/locks/k").send().await.expect_problem(404, "not-held");
    for (n, host) in
        ["localhost", "LOCALHOST:1", "127.0.0.1", "127.8.9.1:80", "[::1]:8080"].iter().enumerate()
    {
        let request = format!("PUT /locks/k{n} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let bytes = kit::http::raw(address, request.as_bytes()).await;
        kit::http::parse(&bytes).expect(201);
    }
}

/// What Swagger UI sends when a person presses "Execute" on a page of ours.
async fn try_it_out_of_the_own_pages_works(stage: Stage) {
    let client = stage.client();
    let address = stage.gateway.address;
    for origin in [format!("http://{address}"), format!("http://localhost:{}", address.port())] {
        let host = origin.trim_start_matches("http://");
        let headers = format!("Origin: {origin}\r\nContent-Length: 0\r\n");
        // The Host is that of the page.
        let request = format!("PUT /locks/k HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
        let bytes = kit::http::raw(address, request.as_bytes()).await;
        let token = kit::http::parse(&bytes).expect(201).token();
        client
            .delete("/locks/k")
            .token(&token)
            .header("Origin", format!("http://{address}"))
            .send()
            .await
            .expect(204);
    }
    // The pages know only relative addresses, so "Execute" goes to where the page came from.
    let document = client.get("/openapi.json").send().await.expect(200).json();
    assert_eq!(document["servers"][0]["url"], "/");
}

async fn the_docs_come_from_the_binary_alone(stage: Stage) {
    let client = stage.client();
    let page = client.get("/docs/").send().await.expect(200);
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src=\"//"), "{page}");
    let linked: Vec<_> = page
        .split(['"', '\''])
        .filter(|text| {
            [".js", ".css", ".png"].contains(
                &Path::new(text).extension().map_or(String::new(), |e| format!(".{}", e.display())).as_str(),
            )
        })
        .collect();
    assert!(linked.len() >= 3, "{linked:?}");
    for file in linked {
        let answer = client.get(&format!("/docs/{}", file.trim_start_matches("./"))).send().await.expect(200);
        assert!(!answer.body.is_empty(), "{file}");
    }
    let start = client.get("/docs/swagger-initializer.js").send().await.expect(200);
    assert!(String::from_utf8_lossy(&start.body).contains("\"/openapi.json\""));
}

async fn no_other_site_shows_a_page_of_ours_in_a_frame(stage: Stage) {
    let client = stage.client();
    let docs = ["/docs", "/docs/", "/docs/swagger-ui-bundle.js", "/docs/swagger-initializer.js"];
    for address in
        docs.into_iter().chain(["/docs/nothing.js", "/ui", "/ui/", "/ui/page.js", "/ui/nothing.js"])
    {
        let answer = client.get(address).send().await;
        let policy = answer.header("content-security-policy").unwrap_or_else(|| panic!("{address}"));
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(rule), "{address}: {policy}");
        }
        let script = policy.split(';').find(|rule| rule.contains("script-src")).unwrap();
        assert!(!script.contains("unsafe") && !policy.contains('*'), "{address}: {policy}");
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{address}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{address}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{address}");
    }
    // Beyond this machine Swagger UI would show the document to a service that validates it.
    let start = client.get("/docs/swagger-initializer.js").send().await.expect(200);
    assert!(String::from_utf8_lossy(&start.body).contains("\"validatorUrl\": \"none\""), "{:?}", start.body);
}

/// An `<object>` or an `<img>` of another site sends no `Origin`, and tells its page whether the answer was a good one.
async fn what_a_browser_asks_for_another_site_is_refused_but_for_the_pages(stage: Stage) {
    let client = stage.client();
    client.put("/locks/held").send().await.expect(201);
    for site in ["cross-site", "same-site", "SAME-SITE", "nonsense"] {
        let ask = |address: &str| client.get(address).header("Sec-Fetch-Site", site).send();
        for address in
            ["/locks/held", "/locks/free", "/lock?key=held", "/locks", "/events?prefix=", "/metrics"]
        {
            ask(address).await.expect_problem(403, "cross-origin");
        }
        for address in ["/ui", "/docs/", "/openapi.json", "/problems/lock-held", "/healthz", "/readyz"] {
            ask(address).await.expect(200);
        }
    }
    for site in ["none", "same-origin"] {
        client.get("/locks/held").header("Sec-Fetch-Site", site).send().await.expect(200);
    }
    let two = "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n";
    raw_call(stage.gateway.address, "GET", "/locks/held", two).await.expect_problem(403, "cross-origin");
    // For browsers that do not say it, and for what is asked by the name of an address beyond this machine.
    for address in ["/locks/held", "/locks/free", "/locks", "/metrics", "/openapi.json"] {
        let answer = client.get(address).send().await;
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_server_with_tls_a_page_that_came_without_it_is_of_another_site() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let args = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key];
    let gateway = Gateway::start(&args).await;
    let port = gateway.address.port();
    let mut stream = SecureClient::new(&certificates).connect(gateway.address).await.unwrap();
    for (origin, status) in [
        // The Host says no port, which is that of https.
        ("http://localhost".to_owned(), 403),
        ("http://localhost:443".to_owned(), 403),
        (format!("https://localhost:{port}"), 403),
        ("https://localhost".to_owned(), 404),
    ] {
        let headers = format!("Origin: {origin}\r\n");
        let answer = call(&mut stream, "GET", "/locks/k", &headers).await.unwrap();
        assert_eq!(answer.status, status, "{origin}");
    }
    // One without TLS may have a proxy in front that has it, and is told nothing of that.
    let gateway = Gateway::start(&["--store", "memory:", "--allow-host", "locks.example"]).await;
    // Only the browser knows, and newer ones say it.
    for (scheme, site, status) in [
        ("http", "", 404),
        ("https", "", 404),
        ("https", "Sec-Fetch-Site: same-origin\r\n", 404),
        ("http", "Sec-Fetch-Site: cross-site\r\n", 403),
    ] {
        let headers = format!("Host: locks.example\r\nOrigin: {scheme}://locks.example\r\n{site}");
        let request = format!("GET /locks/k HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        let answer = kit::http::raw(gateway.address, request.as_bytes()).await;
        kit::http::parse(&answer).expect(status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_origins_can_be_allowed() {
    let gateway = Gateway::embedded(&[
        "--allow-host",
        "locks.example",
        "--allow-host",
        "other.example",
        "--cors-origin",
        "https://app.example",
    ])
    .await;
    let address = gateway.address;
    let put = async |host: &str, key: &str| {
        let request = format!("PUT /locks/{key} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        kit::http::parse(&kit::http::raw(address, request.as_bytes()).await)
    };
    put("locks.example", "a").await.expect(201);
    put("Other.Example:443", "b").await.expect(201);
    put("third.example", "c").await.expect_problem(403, "unknown-host");

    let client = Client::new(address);
    let granted = client.put("/locks/d").header("Origin", "https://app.example").send().await.expect(201);
    assert_eq!(granted.header("access-control-allow-origin"), Some("https://app.example"));
    let exposed = granted.header("access-control-expose-headers").unwrap().to_ascii_lowercase();
    for name in [
        "lease-token",
        "fencing-token",
        "slot",
        "retry-after",
        "x-request-id",
        "once",
        "once-earlier",
        "once-status",
        "once-content-type",
        "once-bytes",
        "once-stored-at",
        "once-kept-until",
    ] {
        assert!(exposed.split(',').any(|exposed| exposed.trim() == name), "{name}: {exposed}");
    }
    let preflight = "Origin: https://app.example\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: lease-token\r\n";
    let answer = raw_call(address, "OPTIONS", "/locks/e", preflight).await.expect(200);
    assert!(answer.header("access-control-allow-methods").unwrap().contains("PUT"));
    let allowed = answer.header("access-control-allow-headers").unwrap().to_ascii_lowercase();
    for name in
        ["lease-token", "x-request-id", "authorization", "last-event-id", "once-fingerprint", "content-type"]
    {
        assert!(allowed.split(',').any(|allowed| allowed.trim() == name), "{name}: {allowed}");
    }
    // A page of another site cannot store a result: what it sends is asked for first, or refused.
    let simple = "Origin: https://evil.example\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n";
    raw_call(address, "POST", "/once/e", simple).await.expect_problem(403, "cross-origin");
    // As a browser sends it, which also says of which site the page is.
    for site in ["cross-site", "same-site"] {
        let call = client.get("/locks/d").header("Origin", "https://app.example");
        let answer = call.header("Sec-Fetch-Site", site).send().await.expect(200);
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
        let preflight = format!("{preflight}Sec-Fetch-Site: {site}\r\n");
        raw_call(address, "OPTIONS", "/locks/e", &preflight).await.expect(200);
    }
    let stranger = preflight.replace("app.example", "evil.example");
    raw_call(address, "OPTIONS", "/locks/e", &stranger).await.expect_problem(403, "cross-origin");
}

/// As in a container whose port is published on loopback, where a page can reach it by a name that it has rebound.
#[tokio::test(flavor = "multi_thread")]
async fn beyond_loopback_a_gateway_without_keys_answers_to_no_name_that_a_page_can_have() {
    let args = ["--store", "memory:", "--listen", "0.0.0.0:0", "--allow-anonymous"];
    let args = [&args[..], &["--allow-host", "locks.example", "--allow-host", "gateway"]].concat();
    let gateway = Gateway::start(&args).await;
    let address = ([127, 0, 0, 1], gateway.address.port()).into();
    let ask = async |line: &str, host: &str| {
        let headers = format!("Host: {host}\r\nOrigin: http://{host}\r\nConnection: close\r\n");
        let request = format!("{line} HTTP/1.1\r\n{headers}\r\n");
        kit::http::parse(&kit::http::raw(address, request.as_bytes()).await)
    };
    let known =
        ["gateway:8080", "192.0.2.7:8080", "[fd00::7]", "localhost", "a.localhost:1", "LOCKS.example"];
    for (n, host) in known.iter().enumerate() {
        ask(&format!("PUT /locks/{n}"), host).await.expect(201);
    }
    // Whoever answers for `printer` in this network can have it mean another machine a moment later.
    for host in ["printer", "printer:8080", "evil.example:8080", "192.0.2.7.nip.io", "gateway.example", "a b"]
    {
        ask("PUT /locks/evil", host).await.expect_problem(403, "unknown-host");
        ask("GET /locks", host).await.expect_problem(403, "unknown-host");
    }
    for probe in ["/healthz", "/readyz"] {
        let request = format!("GET {probe} HTTP/1.1\r\nHost: pool.example\r\nConnection: close\r\n\r\n");
        let answer = kit::http::raw(address, request.as_bytes()).await;
        kit::http::parse(&answer).expect(200);
    }
}

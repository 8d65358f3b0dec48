//! Proxies that the environment names.

use kit::server_port;

use super::door::Door;
use super::hostile::pages;
use crate::run::kit::Scene;
use crate::run::shape::Recorder;

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_on_this_machine_is_never_asked_through_a_proxy() {
    let proxy = Recorder::start().await;
    let mut door = Door::open(true, false).await;
    let port = door.gateway.address.port();
    for host in ["127.0.0.1", "localhost", "127.9.9.9"] {
        door.scene = Scene::at(format!("http://{host}:{port}"));
        for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
            let script = format!("export {variable}={}; \"$F\" run k -- true; \"$F\" list", proxy.url());
            let ended = door.script(&script).await;
            // The gateway listens at one of the addresses only.
            assert!(host == "127.9.9.9" || ended.status == Some(0), "{ended:?}");
        }
    }
    assert_eq!(proxy.requests().len(), 0, "{:?}", proxy.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_through_a_proxy_names_the_proxy_and_not_its_password() {
    let mut door = Door::plain().await;
    let (bad, nobody) = (pages(502).await, format!("127.0.0.1:{}", server_port()));
    // The rest of a password with a slash is taken for a path.
    door.scene = Scene::at("http://gateway.example:8080");
    for password in ["hunter2/x", "12/hunter2", "hunter2?x", "hunter2#x"] {
        let script =
            format!("HTTP_PROXY=http://localhost:{password}@127.0.0.1:9 \"$F\" list --gateway-wait 0s");
        let ended = door.script(&script).await;
        let ended = ended.expect_line(69, &["through the proxy of the environment", "write / as %2F"]);
        assert!(!ended.stderr.contains("localhost") && !ended.stderr.contains("hunter2"), "{ended:?}");
    }
    for (url, variable, proxy, said) in [
        ("http://gateway.example:8080", "HTTP_PROXY", bad.to_string(), "HTTP 502"),
        ("http://gateway.example:8080", "ALL_PROXY", nobody.clone(), "connection refused"),
        ("https://gateway.example", "HTTPS_PROXY", bad.to_string(), "unsuccessful"),
        ("https://gateway.example", "https_proxy", nobody, "connection refused"),
    ] {
        door.scene = Scene::at(url);
        for words in ["list --gateway-wait 0s", "run --gateway-wait 0s k -- true"] {
            let script = format!("{variable}=http://user:hunter2@{proxy} \"$F\" {words}");
            let ended = door.script(&script).await;
            let through = format!("{url} through the proxy http://{proxy}: ");
            let ended = ended.expect_line(69, &[&through, said]);
            assert!(!ended.stderr.contains("hunter2"), "{ended:?}");
        }
    }
}

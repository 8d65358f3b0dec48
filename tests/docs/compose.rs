//! The compose file, as far as it can be judged without Docker.

use std::path::Path;

use crate::recipes::yaml;
use kit::RedisServer;

const COMPOSE: &str = include_str!("../../docker/compose.yaml");

#[tokio::test(flavor = "multi_thread")]
async fn no_service_of_the_compose_file_can_do_more_than_it_must() {
    let compose = yaml(COMPOSE).await;
    let services = compose["services"].as_object().unwrap();
    for (name, service) in services {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"][0], "ALL", "{name}");
        assert_eq!(service["security_opt"][0], "no-new-privileges:true", "{name}");
        assert!(service.get("privileged").is_none() && service.get("cap_add").is_none(), "{name}");
        if let Some(image) = service["image"].as_str() {
            let (_, version) = image.split_once(':').expect(image);
            let is_exact = version.trim_start_matches('v').split('-').next().unwrap().split('.').count() == 3;
            assert!(is_exact || image.contains("@sha256:"), "{image}");
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
        }
        for secret in service["secrets"].as_array().into_iter().flatten() {
            assert!(compose["secrets"][secret.as_str().unwrap()]["file"].is_string(), "{name}: {secret}");
        }
    }
    let ignored = include_str!("../../.gitignore");
    for secret in compose["secrets"].as_object().unwrap().values() {
        let extension = Path::new(secret["file"].as_str().unwrap()).extension().unwrap().to_str().unwrap();
        assert!(ignored.contains(&format!("*.{extension}")), "{secret}");
    }

    let grafana = &services["grafana"]["environment"];
    assert_eq!(grafana["GF_AUTH_BASIC_ENABLED"], "false");
    assert_eq!(grafana["GF_AUTH_DISABLE_LOGIN_FORM"], "true");
    assert_eq!(grafana["GF_SECURITY_ADMIN_PASSWORD__FILE"], "/run/secrets/grafana-password");
    // Docker kills after 10 s: then the gateway may still finish requests, for as long as --drain-timeout says.
    assert_eq!(services["gateway"]["stop_grace_period"], "20s");
    assert!(include_str!("../../docs/install.md").contains("docker run --rm --stop-timeout 20 "));
    let gateway = &services["gateway"]["environment"];
    assert_eq!(gateway["FENCEPOST_REDIS_PASSWORD_FILE"], "/run/secrets/redis-password");
}

/// By the very command of the compose file, but for the places of files.
#[tokio::test(flavor = "multi_thread")]
async fn the_redis_of_the_compose_file_asks_for_its_password_and_shows_it_to_nobody() {
    let compose = yaml(COMPOSE).await;
    let redis = &compose["services"]["redis"];
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "of-compose\n").unwrap();
    // In a compose file a dollar is written twice.
    let place = file.to_str().unwrap();
    let word = |word: &serde_json::Value| {
        word.as_str().unwrap().replace("$$", "$").replace("/run/secrets/redis-password", place)
    };
    let words: Vec<_> =
        ["entrypoint", "command"].iter().flat_map(|part| redis[part].as_array().unwrap()).map(word).collect();
    let server = RedisServer::start_by(&words, "of-compose").await;
    assert_eq!(server.command::<String>(&["PING"]).await, "PONG");
    // It is the process that the container sends its signals, and all see its arguments.
    assert_eq!(server.info("process_id").await, server.pid().to_string());
    let arguments = std::fs::read(format!("/proc/{}/cmdline", server.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains("of-compose"));
    assert_eq!(server.info("aof_enabled").await, "1");
    let anonymous = redis::Client::open(server.url()).unwrap();
    let mut connection = anonymous.get_multiplexed_async_connection().await.unwrap();
    let reply: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
    assert_eq!(reply.unwrap_err().code(), Some("NOAUTH"));
}

#[test]
fn the_image_is_built_from_all_that_cargo_reads() {
    let dockerfile = include_str!("../../docker/Dockerfile");
    let copied: Vec<&str> = dockerfile
        .lines()
        .take_while(|line| !line.starts_with("RUN "))
        .filter_map(|line| line.strip_prefix("COPY "))
        .flat_map(str::split_whitespace)
        .collect();
    for path in ["Cargo.toml", "Cargo.lock", "build.rs", "openapi", "src", "benches", "tests"] {
        assert!(copied.contains(&path), "{path} is not copied");
    }
}

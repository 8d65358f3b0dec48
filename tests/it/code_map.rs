//! The code map: dependencies point one way, and the page in `lib.rs` names what there is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Which modules of ours each top-level module may use, besides itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("lock", &[]),
    ("clock", &[]),
    ("store", &["lock", "clock", "telemetry"]),
    ("service", &["store", "lock", "clock", "telemetry"]),
    ("api", &["service", "store", "lock", "server", "access", "audit", "telemetry"]),
    ("access", &["lock"]),
    ("audit", &["log", "telemetry"]),
    ("log", &["telemetry"]),
    ("files", &[]),
    ("server", &["telemetry"]),
    ("telemetry", &[]),
    ("run", &["lock", "clock"]),
    ("config", &["access", "api", "audit", "server", "store", "run", "lock"]),
    ("lib", &[]),
    (
        "main",
        &[
            "access",
            "api",
            "audit",
            "clock",
            "config",
            "files",
            "log",
            "run",
            "server",
            "service",
            "store",
            "telemetry",
        ],
    ),
];

/// Crates that only these places may use: module, or a path below it.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("axum", &["api", "server", "config"]),
    ("utoipa", &["api"]),
    ("tower_http", &["api"]),
    ("hyper", &["server"]),
    ("hyper_util", &["server"]),
    ("tokio_rustls", &["server"]),
    ("x509_parser", &["server"]),
    ("redis", &["store/redis", "store/quorum"]),
    ("bb8_redis", &["store/redis"]),
    ("redb", &["store/embedded"]),
    ("reqwest", &["run", "telemetry"]),
    ("opentelemetry", &["telemetry"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry_otlp", &["telemetry"]),
    ("nix", &["run"]),
    ("anyhow", &["main"]),
    ("clap", &["config", "main"]),
    ("prometheus", &["telemetry"]),
];

fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().with_extension("").display().to_string();
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// The code without comments and without what only its unit tests use.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn mentions(code: &str, path: &str) -> bool {
    code.match_indices(path).any(|(at, _)| {
        // `::redis` is the crate itself, and `store::redis` is not.
        let before = code[..at].strip_suffix("::").filter(|before| !before.ends_with(is_part_of_name));
        let before = before.unwrap_or(&code[..at]).chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
    })
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '>'
}

/// What is cut off as tests is nothing else, so no import can hide behind it.
#[test]
fn unit_tests_stand_at_the_end() {
    for (file, text) in sources() {
        let Some((_, tests)) = text.split_once("#[cfg(test)]\n") else { continue };
        let is_last = match tests.strip_prefix("mod tests") {
            Some(rest) if rest.starts_with(" {") => rest.find("\n}\n").is_some_and(|at| at + 3 == rest.len()),
            rest => rest == Some(";\n"),
        };
        assert!(is_last, "{file}.rs: something follows the unit tests");
    }
}

#[test]
fn dependencies_point_one_way() {
    let names: Vec<_> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for (file, text) in sources() {
        let module = file.split('/').next().unwrap();
        let (_, allowed) = MAY_USE
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{file}.rs has no place in the code map"));
        let code = code(&text);
        for other in names.iter().filter(|other| **other != module && !allowed.contains(other)) {
            let root = if module == "main" { "fencepost" } else { "crate" };
            assert!(!mentions(&code, &format!("{root}::{other}")), "{file}.rs must not use {other}");
        }
        // Paths that climb out of a module by `super` would hide an arrow; grouped imports of the root too.
        assert!(!code.contains("crate::{"), "{file}.rs: import modules of ours one by one");
        let depth = file.matches('/').count();
        assert!(!code.contains(&"super::".repeat(depth + 1)), "{file}.rs climbs out of its module");
    }
}

#[test]
fn crates_are_used_only_where_they_belong() {
    for (file, text) in sources() {
        let code = code(&text);
        for (name, places) in ONLY_IN {
            let is_at_home =
                places.iter().any(|place| file == *place || file.starts_with(&format!("{place}/")));
            assert!(is_at_home || !mentions(&code, &format!("{name}::")), "{file}.rs must not use {name}");
        }
    }
}

#[test]
fn the_page_in_lib_names_every_place() {
    let sources = sources();
    let page = &sources["lib"];
    for file in sources.keys().filter(|file| !file.contains('/') && *file != "lib") {
        assert!(
            page.contains(&format!("`{file}`")) || page.contains(&format!("`{file}.rs`")),
            "{file} is not on the page"
        );
    }
    for file in sources.keys().filter(|file| file.starts_with("api/") && file.matches('/').count() == 1) {
        assert!(page.contains(&format!("`{file}`")), "{file} is not on the page");
    }
    for file in sources.keys().filter(|file| file.starts_with("store/") && file.matches('/').count() == 1) {
        assert!(page.contains(&format!("`{}`", file.replace('/', "::"))), "{file} is not on the page");
    }
    // And nothing is on it that is gone.
    for row in page.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let names = row.split('|').next().unwrap().split('`').skip(1).step_by(2);
        for name in names.filter(|name| !name.contains('*')) {
            let file = name.trim_end_matches(".rs").replace("::", "/");
            assert!(sources.contains_key(&file), "{name} is on the page, and there is no such place");
        }
    }
}

#[test]
fn files_can_be_read_in_a_sitting() {
    for (file, text) in sources() {
        assert!(text.lines().count() <= 450, "{file}.rs is too long: split it by meaning");
    }
}

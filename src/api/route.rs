//! Which route a request takes, by its path: what the log and the numbers call it. A path may hold what is nobody's
//! business, and there is no end of them.

/// The routes without a variable part.
const PLAIN: [&str; 13] = [
    "/",
    "/problems",
    "/lock",
    "/locks",
    "/hold",
    "/events",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/ui",
    "/ui/",
];
/// Those that end in one: what comes before it, and the whole.
const WITH_NAME: [(&str, &str); 3] =
    [("/locks/", "/locks/{key}"), ("/problems/", "/problems/{name}"), ("/ui/", "/ui/{file}")];
/// What stands below this is Swagger UI's.
const DOCS: (&str, &str) = ("/docs/", "/docs/{*rest}");
/// Addresses that say nothing of locks, and answer to everybody. Whatever is not among them needs a key.
const OPEN: [&str; 7] = ["/", "/problems", "/healthz", "/readyz", "/openapi.json", "/docs", "/ui"];
/// And what is below these.
const OPEN_BELOW: [&str; 3] = ["/docs/", "/problems/", "/ui/"];
/// What is said of a path that is none.
const NONE: &str = "-";

/// The route of a path; `-` where it is none.
pub(super) fn route_of(path: &str) -> &'static str {
    let named = |(start, route): &(&str, &'static str)| {
        let name = path.strip_prefix(start)?;
        (!name.is_empty() && !name.contains('/')).then_some(*route)
    };
    // Those of locks first: they are most of all.
    if let Some(route) = WITH_NAME.iter().find_map(named) {
        return route;
    }
    if let Some(plain) = PLAIN.iter().find(|plain| **plain == path) {
        return plain;
    }
    if path.starts_with(DOCS.0) { DOCS.1 } else { NONE }
}

/// Whether an address answers to everybody.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || OPEN_BELOW.iter().any(|open| path.starts_with(open))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

    use serde_json::Value;

    use super::*;
    use crate::api::openapi_json;

    /// Each path of the document is its own route.
    #[test]
    fn every_documented_route_is_known() {
        let document: Value = serde_json::from_str(openapi_json()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.len() > 8, "{}", paths.len());
        for path in paths.keys() {
            assert_eq!(route_of(path), path);
        }
    }

    #[test]
    fn a_path_that_is_no_route_is_not_told() {
        for path in ["/locks/", "/locks/a/b", "/lock/", "/docsy", "/nothing/secret", ""] {
            assert_eq!(route_of(path), "-", "{path}");
        }
        assert_eq!(route_of("/docs/index.css"), "/docs/{*rest}");
        assert_eq!(route_of("/ui/page.js"), "/ui/{file}");
    }
}

//! Finds the route of a path. The log and the metrics name the route, not the path: a path may hold a secret, and there
//! is no end of different paths.

/// The routes without a variable part.
const PLAIN: [&str; 19] = [
    "/",
    "/problems",
    "/lock",
    "/locks",
    "/hold",
    "/events",
    "/once",
    "/records",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/ui",
    "/ui/",
    "/terraform",
    "/v1.0/metadata",
    "/fleet-lock/v1/pre-reboot",
    "/fleet-lock/v1/steady-state",
];
/// The routes that end in a variable part: what comes before it, and the whole route.
const WITH_NAME: [(&str, &str); 4] = [
    ("/locks/", "/locks/{key}"),
    ("/once/", "/once/{key}"),
    ("/problems/", "/problems/{name}"),
    ("/ui/", "/ui/{file}"),
];
/// Those of the protocols of other tools.
const OF_TOOLS: [(&str, &str); 4] = [
    ("/terraform/", "/terraform/{key}"),
    ("/v1.0-alpha1/lock/", "/v1.0-alpha1/lock/{store}"),
    ("/v1.0-alpha1/unlock/", "/v1.0-alpha1/unlock/{store}"),
    ("/fleet-lock/v1/", "/fleet-lock/v1/{step}"),
];
/// Everything below this belongs to Swagger UI.
const DOCS: (&str, &str) = ("/docs/", "/docs/{*rest}");
/// Addresses that say nothing about locks and need no key. All others need one.
const OPEN: [&str; 8] =
    ["/", "/problems", "/healthz", "/readyz", "/openapi.json", "/docs", "/ui", "/v1.0/metadata"];
/// Addresses below these need no key either.
const OPEN_BELOW: [&str; 3] = ["/docs/", "/problems/", "/ui/"];
/// The name for a path that is no route.
const NONE: &str = "-";

/// The route of a path, or `-` if it has none.
pub(super) fn route_of(path: &str) -> &'static str {
    let named = |(start, route): &(&str, &'static str)| {
        let name = path.strip_prefix(start)?;
        (!name.is_empty() && !name.contains('/')).then_some(*route)
    };
    // Locks first: most requests are about them.
    if let Some(route) = WITH_NAME.iter().find_map(named) {
        return route;
    }
    if let Some(plain) = PLAIN.iter().find(|plain| **plain == path) {
        return plain;
    }
    if path.starts_with(DOCS.0) {
        return DOCS.1;
    }
    OF_TOOLS.iter().find_map(named).unwrap_or(NONE)
}

/// Whether a route asks for locks in the protocol of another tool.
pub(super) fn is_of_tool(route: &str) -> bool {
    route == "/terraform"
        || route.starts_with("/fleet-lock/")
        || OF_TOOLS.iter().any(|(_, of_tool)| *of_tool == route)
}

/// Whether an address needs no key.
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
        assert_eq!(route_of("/terraform/k"), "/terraform/{key}");
        assert_eq!(route_of("/fleet-lock/v1/steady-state"), "/fleet-lock/v1/steady-state");
        assert_eq!(route_of("/fleet-lock/v1/x"), "/fleet-lock/v1/{step}");
        assert_eq!(route_of("/v1.0-alpha1/lock/s"), "/v1.0-alpha1/lock/{store}");
    }
}

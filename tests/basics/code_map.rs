//! The code map: dependencies point one way, and the page in `lib.rs` names what there is.

use std::collections::{BTreeMap, BTreeSet};

use self::tree::{Arrow, Tree};

mod tree;

/// What breaks a rule below and is still to be mended. Whatever is mended must leave this list.
const STILL_BROKEN: &[&str] = &[];

/// What stands for a module in a program that was built without it, and so has its names.
const STAND_INS: &[&str] = &["telemetry/untraced"];

const MOST_FILES: usize = 15;
const MOST_LINES: usize = 400;
const MOST_FLOORS: usize = 8;

/// Which modules of ours each top-level module may use, besides itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("lock", &[]),
    ("clock", &[]),
    ("store", &["lock", "clock", "telemetry"]),
    ("service", &["store", "lock", "clock", "telemetry"]),
    ("api", &["service", "store", "lock", "clock", "server", "access", "audit", "log", "telemetry"]),
    ("access", &["lock"]),
    ("audit", &["log", "telemetry"]),
    ("log", &["telemetry"]),
    ("files", &["telemetry"]),
    ("server", &["telemetry"]),
    ("telemetry", &[]),
    ("client", &["access", "lock", "log", "clock"]),
    ("config", &["access", "api", "audit", "server", "store", "client", "lock"]),
    ("lib", &[]),
    (
        "main",
        &[
            "access",
            "api",
            "audit",
            "client",
            "clock",
            "config",
            "files",
            "log",
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
    // Errors of a client have its types within.
    ("hyper", &["server", "client/addresses", "client/trouble"]),
    ("hyper_util", &["server", "client/addresses"]),
    ("tokio_rustls", &["server"]),
    ("x509_parser", &["server"]),
    ("redis", &["store/redis", "store/quorum"]),
    ("bb8_redis", &["store/redis"]),
    ("redb", &["store/embedded"]),
    ("reqwest", &["client", "telemetry"]),
    ("opentelemetry", &["telemetry"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry_otlp", &["telemetry"]),
    ("nix", &["client/run", "files"]),
    ("anyhow", &["main"]),
    ("sd_notify", &["main"]),
    ("clap", &["config", "main"]),
    ("prometheus", &["telemetry"]),
];

#[test]
fn dependencies_point_one_way() {
    let tree = Tree::of_this_project();
    let top = |file: &str| file.split('/').next().unwrap().to_owned();
    for file in tree.rust_files() {
        assert!(MAY_USE.iter().any(|(name, _)| *name == top(file)), "{file}.rs has no place in the code map");
    }
    for Arrow { from, to, name, .. } in tree.arrows() {
        let (module, other) = (top(&from), top(&to));
        let (_, allowed) = MAY_USE.iter().find(|(name, _)| *name == module).unwrap();
        assert!(
            module == other || allowed.contains(&other.as_str()),
            "{from}.rs must not use {other}, of which it takes {name}"
        );
    }
}

#[test]
fn crates_are_used_only_where_they_belong() {
    for (file, used) in Tree::of_this_project().crates() {
        let Some((name, places)) = ONLY_IN.iter().find(|(name, _)| *name == used) else { continue };
        let is_at_home = places.iter().any(|place| file == *place || file.starts_with(&format!("{place}/")));
        assert!(is_at_home, "{file}.rs must not use {name}");
    }
}

#[test]
fn the_page_in_lib_names_every_place() {
    let tree = Tree::of_this_project();
    let sources: Vec<_> = tree.rust_files().collect();
    let page = &tree.texts["lib"];
    for file in sources.iter().filter(|file| !file.contains('/') && **file != "lib") {
        assert!(
            page.contains(&format!("`{file}`")) || page.contains(&format!("`{file}.rs`")),
            "{file} is not on the page"
        );
    }
    for file in sources.iter().filter(|file| file.starts_with("api/") && file.matches('/').count() == 1) {
        assert!(page.contains(&format!("`{file}`")), "{file} is not on the page");
    }
    for file in sources.iter().filter(|file| file.starts_with("store/") && file.matches('/').count() == 1) {
        assert!(page.contains(&format!("`{}`", file.replace('/', "::"))), "{file} is not on the page");
    }
    // And nothing is on it that is gone.
    for row in page.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let names = row.split('|').next().unwrap().split('`').skip(1).step_by(2);
        for name in names.filter(|name| !name.contains('*')) {
            let file = name.trim_end_matches(".rs").replace("::", "/");
            assert!(sources.contains(&file.as_str()), "{name} is on the page, and there is no such place");
        }
    }
}

#[test]
fn the_walls_stand() {
    let broken = broken_rules(&Tree::of_this_project());
    let is_known = |rule: &str| STILL_BROKEN.contains(&rule);
    let new: Vec<_> = broken.iter().filter(|(rule, _)| !is_known(rule)).collect();
    let mended: Vec<_> = STILL_BROKEN.iter().filter(|rule| !broken.contains_key(**rule)).collect();
    assert!(
        new.is_empty() && mended.is_empty(),
        "broken: {new:#?}\nno longer broken, so to be taken off the list: {mended:#?}"
    );
}

/// Each rule that is broken, and by what.
fn broken_rules(tree: &Tree) -> BTreeMap<String, String> {
    let mut broken = BTreeMap::new();
    let files_of = |(name, mut files): (String, Vec<String>)| {
        files.retain(|file| !STAND_INS.contains(&file.as_str()));
        (name, files)
    };
    for (name, files) in tree.visible_types().into_iter().map(files_of).filter(|(_, files)| files.len() > 1) {
        broken.insert(format!("one name, one type: {name}"), files.join(", "));
    }
    let is_code = |name: &str| !name.contains('.') || name.ends_with(".lua");
    for (name, text) in tree.texts.iter().filter(|(name, _)| is_code(name)) {
        let lines = text.lines().count();
        if lines > MOST_LINES {
            broken.insert(format!("at most {MOST_LINES} lines: {name}"), format!("{lines} lines"));
        }
    }
    let mut folders = BTreeMap::<_, usize>::new();
    for name in tree.texts.keys() {
        *folders.entry(name.rsplit_once('/').map_or("", |(folder, _)| folder)).or_default() += 1;
    }
    // A file may use the type, declared in its folder's first file, whose parts it and others implement.
    let is_part = |arrow: &Arrow| {
        arrow.is_type && arrow.from.rsplit_once('/').is_some_and(|(above, _)| above == arrow.to)
    };
    let arrows: Vec<_> = tree.arrows().into_iter().filter(|arrow| !is_part(arrow)).collect();
    for (folder, files) in folders {
        if files > MOST_FILES {
            broken.insert(format!("at most {MOST_FILES} files: src/{folder}"), format!("{files} files"));
        }
        let mut rooms = Rooms::default();
        for arrow in &arrows {
            let (Some(from), Some(to)) = (room_in(folder, &arrow.from), room_in(folder, &arrow.to)) else {
                continue;
            };
            if from != to {
                rooms.entry(from).or_default().entry(to).or_default().push(arrow);
            }
        }
        let floors = floors(&rooms);
        if let Err(circle) = &floors {
            let ties = circle.iter().flat_map(|from| {
                rooms[from].iter().filter(|(to, _)| circle.contains(*to)).flat_map(|(_, arrows)| arrows)
            });
            let ties: Vec<_> =
                ties.map(|arrow| format!("{} -> {}: {}", arrow.from, arrow.to, arrow.name)).collect();
            broken.insert(format!("arrows one way: src/{folder}"), ties.join("; "));
        }
        if let Ok(floors) = floors
            && floors > MOST_FLOORS
        {
            broken.insert(format!("at most {MOST_FLOORS} floors: src/{folder}"), format!("{floors} floors"));
        }
    }
    broken
}

/// Who takes what from whom, among the files and folders of one folder.
type Rooms<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a Arrow>>>;

/// Where a file is within a folder: in a folder of that, or by itself. The folder's first file stands beside it.
fn room_in<'a>(folder: &str, file: &'a str) -> Option<&'a str> {
    if folder.is_empty() {
        return file.split('/').next();
    }
    match file.strip_prefix(folder)? {
        "" => Some(file),
        inside => inside.strip_prefix('/')?.split('/').next(),
    }
}

/// On how many floors rooms stand, each above all that it uses; or the rooms of which each uses another of them, in the end
/// itself.
fn floors<'a>(rooms: &Rooms<'a>) -> Result<usize, BTreeSet<&'a str>> {
    let mut left: BTreeSet<_> =
        rooms.iter().flat_map(|(from, to)| to.keys().chain([from])).copied().collect();
    let uses = |room: &str, others: &BTreeSet<&str>| {
        rooms.get(room).is_some_and(|used| used.keys().any(|other| others.contains(other)))
    };
    let mut floors = 0;
    while !left.is_empty() {
        let above: BTreeSet<_> = left.iter().copied().filter(|room| uses(room, &left)).collect();
        if above.len() == left.len() {
            // From the other side: whoever is used by none of them is in no circle.
            let is_used =
                |room: &&str, by: &BTreeSet<&str>| by.iter().any(|other| uses(other, &[*room].into()));
            loop {
                let used: BTreeSet<_> = left.iter().copied().filter(|room| is_used(room, &left)).collect();
                if used.len() == left.len() {
                    return Err(left);
                }
                left = used;
            }
        }
        (left, floors) = (above, floors + 1);
    }
    Ok(floors)
}

/// Each rule finds what breaks it.
#[test]
fn a_planted_break_is_found() {
    let broken = |files: &[(&str, &str)]| {
        let texts = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        broken_rules(&Tree::of(texts.collect())).into_keys().collect::<Vec<_>>()
    };
    let long = "//\n".repeat(MOST_LINES + 1);
    let taking = |at: usize| format!("use super::f{}::F{};\npub struct F{at};", at - 1, at - 1);
    let chain = (0..=MOST_FLOORS).map(|at| match at {
        0 => ("a/f0".to_owned(), "pub struct F0;".to_owned()),
        _ => (format!("a/f{at}"), taking(at)),
    });
    let chain: Vec<_> = chain.collect();
    let crowd: Vec<_> = (0..=MOST_FILES).map(|at| (format!("a/f{at}.lua"), String::new())).collect();
    let below_a = |files: &[(String, String)]| {
        let files = files.iter().map(|(name, text)| (&name[..], &text[..]));
        broken(&files.chain([("a", "")]).collect::<Vec<_>>())
    };
    assert_eq!(below_a(&chain[..MOST_FLOORS]), Vec::<String>::new());
    assert_eq!(below_a(&chain), ["at most 8 floors: src/a"]);
    assert_eq!(below_a(&crowd[1..]), Vec::<String>::new());
    assert_eq!(below_a(&crowd), ["at most 15 files: src/a"]);
    assert_eq!(broken(&[("a", &long)]), ["at most 400 lines: a"]);
    assert_eq!(broken(&[("a.lua", &long)]), ["at most 400 lines: a.lua"]);
    assert_eq!(
        broken(&[("a", "pub struct A;"), ("b", "pub(super) type A = ();")]),
        ["one name, one type: A"]
    );
    assert_eq!(
        broken(&[("a", "labels! { pub(crate) enum A { B } }"), ("b", "pub trait A {}")]),
        ["one name, one type: A"]
    );
    assert_eq!(broken(&[("a", "struct A;"), ("b", "pub struct A;")]), Vec::<String>::new());

    let upward = ["arrows one way: src/"];
    let lib = ("lib", "pub mod a; pub mod b;");
    let taker = ("b", "pub struct B; fn b() { crate::a::f() }");
    for a in [
        "use crate::b::B; pub fn f() {}",
        "use super::b::B; pub fn f() {}",
        "pub fn f() -> crate::b::B { todo!() }",
        "pub fn f() { show!(crate::b::B) }",
        "mod c; pub fn f() {} fn g() { c::h() }",
        "mod c; pub use c::f;",
    ] {
        let c = ("a/c", "use crate::b::{self as other}; pub fn f() {} pub fn h() { other::B; }");
        assert_eq!(broken(&[lib, ("a", a), c, taker])[0], upward[0], "{a}");
    }
    // A path leads to whoever declares the name: here `a` only passes on what it has from `c`, which uses nobody.
    let passes_on = [lib, ("a", "pub use crate::c::f;"), ("c", "pub fn f() {}"), taker];
    assert_eq!(broken(&passes_on), Vec::<String>::new());
    // What unit tests use is no arrow.
    let tested = "pub fn f() {} #[cfg(test)] mod tests { use crate::b::B; }";
    assert_eq!(broken(&[lib, ("a", tested), taker]), Vec::<String>::new());

    // The parts of a type may use it, but nothing else of the file that declares it.
    let whole = "mod part; pub struct Whole; pub fn help() { part::f() }";
    assert_eq!(broken(&[("a", whole), ("a/part", "use super::Whole; pub fn f() {}")]), Vec::<String>::new());
    let part = ("a/part", "use super::help; pub fn f() {}");
    assert_eq!(broken(&[("a", whole), part]), ["arrows one way: src/a"]);
}

//! Every link of every page leads to something that is there: to a file of the project, and to a heading of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Tag, TagEnd};

use super::{Page, ROOT, pages, parse};

/// How a heading is called in an address: by GitHub's rule, and by mdBook's.
const SLUGS: [fn(&str) -> String; 2] = [slug_of_github, slug_of_mdbook];

fn slug_of_github(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    kept.chars().filter(is_kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn slug_of_mdbook(heading: &str) -> String {
    let part = |c: char| match c {
        _ if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c.to_lowercase().to_string()),
        _ if c.is_whitespace() => Some("-".to_owned()),
        _ => None,
    };
    heading.trim().chars().filter_map(part).collect()
}

/// What a page links to and what can be linked to in it.
struct Targets {
    /// Each with the line in which it stands.
    links: Vec<(usize, String)>,
    /// By each of the rules.
    anchors: [BTreeSet<String>; 2],
}

fn targets(page: &Page) -> Targets {
    let mut found = Targets { links: Vec::new(), anchors: Default::default() };
    let mut counts = [BTreeMap::<String, usize>::new(), BTreeMap::new()];
    let mut heading = None::<String>;
    for (event, range) in parse(&page.text) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                found.links.push((page.line(range.start), dest_url.into_string()));
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    *heading += &text;
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let heading = heading.take().unwrap_or_default();
                for ((slug, counts), anchors) in SLUGS.iter().zip(&mut counts).zip(&mut found.anchors) {
                    let slug = slug(&heading);
                    let count = counts.entry(slug.clone()).or_default();
                    anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
                    *count += 1;
                }
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                for (attribute, is_link) in [("href=\"", true), ("src=\"", true), ("id=\"", false)] {
                    for value in html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()) {
                        if is_link {
                            found.links.push((page.line(range.start), value.to_owned()));
                            continue;
                        }
                        for anchors in &mut found.anchors {
                            anchors.insert(value.to_owned());
                        }
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// A path without what leads back, or nothing where it leads out of the project.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => normal.pop().then_some(())?,
            Component::Normal(name) => normal.push(name),
            _ => {}
        }
    }
    Some(normal)
}

/// Why a link leads nowhere.
fn dead(page: &Page, link: &str, anchors: &BTreeMap<&str, [BTreeSet<String>; 2]>) -> Option<String> {
    let is_elsewhere = ["https://", "http://", "mailto:"].iter().any(|start| link.starts_with(start));
    if is_elsewhere {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let folder = Path::new(&page.name).parent().unwrap();
    let target = if file.is_empty() { Some(PathBuf::from(&page.name)) } else { normal(&folder.join(file)) };
    let Some(target) = target.filter(|target| Path::new(ROOT).join(target).exists()) else {
        return Some("there is no such file".to_owned());
    };
    if file.is_empty() && anchor.is_none() || Path::new(ROOT).join(&target).is_dir() && page.is_of_the_book()
    {
        return Some("it names no page".to_owned());
    }
    let (anchor, target) = (anchor?, target.to_str().unwrap());
    let Some(known) = anchors.get(target) else {
        return Some(format!("{target} has no headings"));
    };
    let missing = known.iter().any(|known| !known.contains(anchor));
    missing.then(|| format!("there is no heading {anchor}: {:#?}", known[0]))
}

#[test]
fn every_link_leads_somewhere() {
    let targets: Vec<_> = pages().iter().map(|page| (page, targets(page))).collect();
    let anchors =
        targets.iter().map(|(page, targets)| (page.name.as_str(), targets.anchors.clone())).collect();
    let mut complaints = Vec::new();
    for (page, targets) in &targets {
        for (line, link) in &targets.links {
            if let Some(why) = dead(page, link, &anchors) {
                complaints.push(format!("{}:{line}: {link}: {why}", page.name));
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn a_dead_link_is_found() {
    let page = |name: &str, text: &str| Page { name: name.to_owned(), text: text.to_owned() };
    let at =
        page("docs/http.md", "# `GET /locks` & more\n\n## Twice\n\n## Twice\n\n[a](#b) <a id=\"c\"></a>");
    let here = targets(&at);
    assert_eq!(here.links, [(7, "#b".to_owned())]);
    let anchors = BTreeMap::from([("docs/http.md", here.anchors.clone())]);
    for link in [
        "#get-locks--more",
        "#twice",
        "#twice-1",
        "#c",
        "../README.md",
        "https://example.com/",
        "../src/lib.rs",
    ] {
        assert_eq!(dead(&at, link, &anchors), None, "{link}");
    }
    for link in ["#b", "#twice-2", "../nothing.md", "../README.md#twice", "../../x", "../src", "", "#"] {
        assert!(dead(&at, link, &anchors).is_some(), "{link}");
    }
}

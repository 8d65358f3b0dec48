//! What `make dist` makes of a built program: it is looked into here, and installed in bare Debian roots.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use clap::CommandFactory;
use serde_json::Value;
use tempfile::TempDir;

use crate::pages::{Said, file};
use kit::gateway::program;
use kit::remove_with_the_tests;

mod installed;
mod root;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What is shipped of the program under test, and of "the version before": the same files by another number.
static PACKED: LazyLock<[Packed; 2]> = LazyLock::new(|| {
    let packed = [Packed::new("0.0.9-rc1", "022"), Packed::new(VERSION, "022")];
    remove_with_the_tests(&packed.each_ref().map(|packed| packed.directory.path()));
    packed
});

/// A directory that `packaging/build` has filled.
pub struct Packed {
    directory: TempDir,
    version: String,
}

impl Packed {
    /// Packs with this mask for the modes of new files.
    fn new(version: &str, umask: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut build = Command::new("bash");
        build.args(["-ec", r#"umask "$1"; shift; exec packaging/build "$@""#, "bash", umask, program()]);
        build.arg(directory.path()).arg(version).current_dir(ROOT).env("LEVEL", "1");
        Said::of(build.output().unwrap()).expect(0, "glibc");
        Self { directory, version: version.to_owned() }
    }

    /// The one file whose name ends so.
    pub fn file(&self, end: &str) -> PathBuf {
        let mut all = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        all.find(|path| path.to_str().unwrap().ends_with(end)).unwrap_or_else(|| panic!("no {end}"))
    }

    /// The names of all files and directories in an archive, and their modes and owners.
    fn listed(&self, end: &str) -> String {
        let path = self.file(end);
        let mut command = match end {
            ".deb" => Command::new("dpkg-deb"),
            _ => Command::new("tar"),
        };
        command.args(if end == ".deb" { ["--contents"].as_slice() } else { &["-tvzf"] });
        Said::of(command.arg(path).output().unwrap()).expect(0, "").text
    }

    /// The files of the tarball, unpacked.
    fn unpacked(&self) -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        bash(r#"tar -C "$1" -xzf "$2""#, &[directory.path(), &self.file(".tar.gz")]);
        let inner = fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
        (directory, inner)
    }
}

pub fn current() -> &'static Packed {
    &PACKED[1]
}

pub fn before() -> &'static Packed {
    &PACKED[0]
}

/// Runs code that must succeed, and returns what it printed.
#[track_caller]
pub fn bash(code: &str, args: &[&Path]) -> String {
    let mut bash = Command::new("bash");
    let output = bash.args(["-euo", "pipefail", "-c", code, "bash"]).args(args).output();
    Said::of(output.unwrap()).expect(0, "").text
}

/// The names of all commands that the program shows, as those of their pages: `fencepost`, `fencepost-run` and so on.
fn commands(command: &clap::Command, name: String, found: &mut BTreeSet<String>) {
    for within in
        command.get_subcommands().filter(|within| !within.is_hide_set() && within.get_name() != "help")
    {
        commands(within, format!("{name}-{}", within.get_name()), found);
    }
    found.insert(name);
}

#[test]
fn the_tarball_and_the_package_have_all_that_belongs_to_the_program() {
    let (tarball, package) = (current().listed(".tar.gz"), current().listed(".deb"));
    let mut names = BTreeSet::new();
    commands(&fencepost::config::Cli::command(), "fencepost".to_owned(), &mut names);
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(tarball.contains(&format!("/share/man/man1/{name}.1\n")), "{name}: {tarball}");
        assert!(package.contains(&format!("./usr/share/man/man1/{name}.1.gz\n")), "{name}: {package}");
    }
    for name in [
        "bin/fencepost",
        "lib/systemd/system/fencepost.service",
        "share/bash-completion/completions/fencepost",
        "share/fish/vendor_completions.d/fencepost.fish",
        "share/doc/fencepost/copyright",
        "share/doc/fencepost/fencepost.cdx.json",
    ] {
        assert!(tarball.contains(&format!("linux/{name}\n")), "{name}: {tarball}");
        assert!(package.contains(&format!("./usr/{name}\n")), "{name}: {package}");
    }
    assert!(tarball.contains("/share/zsh/site-functions/_fencepost\n"));
    assert!(package.contains("./usr/share/zsh/vendor-completions/_fencepost\n"));
    for name in ["CHANGELOG.md", "environment", "logrotate"] {
        assert!(tarball.contains(&format!("/share/doc/fencepost/{name}\n")), "{name}: {tarball}");
    }
    for name in ["fencepost/environment", "fencepost/logrotate", "doc/fencepost/changelog.gz"] {
        assert!(package.contains(&format!("./usr/share/{name}\n")), "{name}: {package}");
    }
    bash(r#"cd "$1" && sha256sum --check SHA256SUMS"#, &[current().directory.path()]);
    let sums = fs::read_to_string(current().file("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count() + 1, fs::read_dir(current().directory.path()).unwrap().count(), "{sums}");
}

#[test]
fn the_unit_the_settings_and_the_rotation_in_the_packages_are_those_of_the_page() {
    let (_kept, tree) = current().unpacked();
    let unit = fs::read_to_string(tree.join("lib/systemd/system/fencepost.service")).unwrap();
    assert_eq!(unit, file("fencepost.service"));
    for name in ["environment", "logrotate"] {
        assert_eq!(fs::read_to_string(tree.join("share/doc/fencepost").join(name)).unwrap(), file(name));
    }
}

#[test]
fn the_same_program_gives_the_same_packages_whatever_the_mask_for_new_files() {
    let again = Packed::new(VERSION, "077");
    assert_eq!(again.version, current().version);
    for end in [".tar.gz", ".deb", ".cdx.json", "SHA256SUMS"] {
        let [one, other] = [current(), &again].map(|packed| fs::read(packed.file(end)).unwrap());
        assert!(one == other, "{end} differs: {}\n{}", current().listed(".deb"), again.listed(".deb"));
    }
    for end in [".tar.gz", ".deb"] {
        for line in again.listed(end).lines() {
            assert!(line.contains(" root/root ") || line.contains(" 0/0 "), "{line}");
            let mode = &line[..10];
            assert!(!mode.ends_with("---") && !mode.ends_with("w-"), "{line}");
        }
    }
}

#[test]
fn the_manual_and_the_completions_are_understood_by_what_reads_them() {
    let (_kept, tree) = current().unpacked();
    for page in fs::read_dir(tree.join("share/man/man1")).unwrap() {
        let page = page.unwrap().path();
        let warnings = bash(r#"man --warnings --local-file -Tutf8 "$1" 2>&1 >/dev/null"#, &[&page]);
        assert_eq!(warnings, "", "{page:?}");
        let shown = bash(r#"MANWIDTH=200 man --local-file -P cat "$1" | col -b"#, &[&page]);
        let name = page.file_stem().unwrap().to_str().unwrap().replacen("-", " ", 2);
        assert!(shown.contains("NAME") && shown.contains("SYNOPSIS"), "{name}: {shown}");
        // As `--help` has it, and as it is typed.
        let words: Vec<_> = name.split(' ').skip(1).collect();
        let help = Command::new(program()).args(words).arg("--help").output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
        let (_, synopsis) = shown.split_once("SYNOPSIS\n").unwrap();
        assert_eq!(synopsis.lines().next().unwrap().trim(), usage, "{name}");
        assert_eq!(shown.contains("\nEXIT STATUS\n"), help.contains("\nExit status:\n"), "{name}");
    }
    let share = tree.join("share");
    bash(
        r#"cd "$1"; source bash-completion/completions/fencepost
        COMP_WORDS=(fencepost run --tt) COMP_CWORD=2
        _fencepost fencepost --tt run
        [ "${COMPREPLY[*]}" = --ttl ]"#,
        &[&share],
    );
    bash(r#"zsh -n "$1/zsh/site-functions/_fencepost""#, &[&share]);
    let offered = bash(
        r#"HOME=$2 fish --no-config -c 'source $argv[1]/fish/vendor_completions.d/fencepost.fish; complete -C "fencepost run --tt"' "$1""#,
        &[&share, &tree],
    );
    assert!(offered.contains("--ttl"), "{offered}");
}

#[test]
fn completions_offer_the_commands_that_help_shows_and_no_other() {
    let mut expected: BTreeSet<_> = fencepost::config::Cli::command()
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| command.get_name().to_owned())
        .collect();
    expected.insert("help".to_owned());
    let (_kept, tree) = current().unpacked();
    let share = tree.join("share");
    let in_bash = bash(
        r#"cd "$1"; source bash-completion/completions/fencepost
        COMP_WORDS=(fencepost "") COMP_CWORD=1
        _fencepost fencepost "" fencepost
        printf '%s\n' "${COMPREPLY[@]}""#,
        &[&share],
    );
    let in_fish = bash(
        r#"HOME=$2 fish --no-config -c 'source $argv[1]/fish/vendor_completions.d/fencepost.fish; complete -C "fencepost "' "$1""#,
        &[&share, &tree],
    );
    // The list of commands is a function there, with a line for each.
    let in_zsh = bash(
        r#"sed -n "/^_fencepost_commands() {/,/^}/s/^'\([a-z]*\):.*/\1/p" "$1/zsh/site-functions/_fencepost""#,
        &[&share],
    );
    for (shell, offered) in [("bash", in_bash), ("fish", in_fish), ("zsh", in_zsh)] {
        let offered: BTreeSet<_> = offered
            .lines()
            .filter_map(|line| line.split('\t').next())
            .filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()))
            .map(str::to_owned)
            .collect();
        assert_eq!(offered, expected, "{shell}");
    }
}

#[test]
fn a_program_of_more_than_15_mb_is_not_packed_as_it_is_shipped() {
    let dist = bash("make --dry-run dist CARGO_TARGET_DIR=/elsewhere", &[]);
    assert!(dist.contains(" packaging/build /elsewhere/dist/fencepost "), "{dist}");
    let dist = bash("env --unset=CARGO_TARGET_DIR make --dry-run dist", &[]);
    assert!(dist.contains("MOST=15000000 packaging/build target/dist/fencepost "), "{dist}");
    let directory = tempfile::tempdir().unwrap();
    let mut build = Command::new("packaging/build");
    build.args([program(), directory.path().to_str().unwrap()]).current_dir(ROOT).env("MOST", "1000000");
    let said = Said::of(build.output().unwrap()).expect(1, "bytes, and at most 1000000 are allowed");
    assert_eq!(said.text.lines().count(), 1, "{}", said.text);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn the_package_names_the_place_of_the_apache_license_and_has_all_other_licenses() {
    let unpacked = tempfile::tempdir().unwrap();
    bash(r#"dpkg-deb --extract "$2" "$1""#, &[unpacked.path(), &current().file(".deb")]);
    let copyright = fs::read_to_string(unpacked.path().join("usr/share/doc/fencepost/copyright")).unwrap();
    let (_kept, tree) = current().unpacked();
    let whole = fs::read_to_string(tree.join("share/doc/fencepost/copyright")).unwrap();
    let place = "/usr/share/common-licenses/Apache-2.0";
    assert!(Path::new(place).exists() && copyright.contains(place) && !whole.contains(place));
    let apart = |text: &str| {
        text.lines().filter(|line| line.starts_with("Of ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(apart(&copyright), apart(&whole));
    let standard = fs::read_to_string(format!("{ROOT}/LICENSE-APACHE")).unwrap();
    let (terms, _) = standard.split_once("END OF TERMS AND CONDITIONS").unwrap();
    assert!(whole.contains(terms.trim()) && !copyright.contains(terms.trim()));
    // Whose copyright it is stands above or below the terms.
    let lost: Vec<_> =
        whole.lines().filter(|line| !standard.contains(line.trim()) && !copyright.contains(line)).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

/// By the schema of CycloneDX. Each part of it has a license, and the text of it is in the packages.
#[test]
fn the_bill_of_materials_is_valid_and_each_part_has_its_license() {
    let path = current().file(".cdx.json");
    let bill: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let python = format!("{ROOT}/target/manifests/venv/bin/python");
    let script = "import importlib.util, json, pathlib, sys
from jsonschema import Draft7Validator
from referencing import Registry, Resource
place = pathlib.Path(importlib.util.find_spec('cyclonedx').origin).parent / 'schema' / '_res'
schemas = [json.loads((place / f'{name}.SNAPSHOT.schema.json').read_text()) for name in ('bom-1.6', 'spdx', 'jsf-0.82')]
registry = Registry().with_resources((schema['$id'], Resource.from_contents(schema)) for schema in schemas)
Draft7Validator(schemas[0], registry=registry).validate(json.loads(pathlib.Path(sys.argv[1]).read_text()))";
    let check = |path: &Path| {
        let output = Command::new(&python).args(["-c", script]).arg(path).output();
        Said::of(output.expect("what checks manifests must be installed: `make clients`"))
    };
    check(&path).expect(0, "");
    let mut wrong = bill.clone();
    wrong["components"][0]["type"] = "crate".into();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("wrong.json"), wrong.to_string()).unwrap();
    check(&directory.path().join("wrong.json")).expect(1, "crate");

    let (_kept, tree) = current().unpacked();
    let copyright = fs::read_to_string(tree.join("share/doc/fencepost/copyright")).unwrap();
    let parts = bill["components"].as_array().unwrap();
    let names: BTreeSet<_> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
    // The last two are no crates that the program asks for.
    for name in ["tokio", "redb", "rust-std", "swagger-ui"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    for name in ["criterion", "tempfile", "fencepost-models", "mlua"] {
        assert!(!names.contains(name), "{name} is in tests only: {names:?}");
    }
    for part in parts {
        let (name, version) = (part["name"].as_str().unwrap(), part["version"].as_str().unwrap());
        assert!(
            part["licenses"][0]["expression"].as_str().is_some_and(|license| !license.is_empty()),
            "{part}"
        );
        let (_, texts) = copyright.split_once("Their licenses follow.").unwrap();
        let (_, texts) = texts.split_once("\n-----").unwrap();
        let words = texts.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("{name} {version}")), "{name} {version} has no text");
    }
    let digest = bash(r#"sha256sum <"$1" | cut -c 1-64"#, &[&tree.join("bin/fencepost")]);
    assert_eq!(bill["metadata"]["component"]["hashes"][0]["content"], digest.trim());
    let mode = fs::metadata(tree.join("bin/fencepost")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

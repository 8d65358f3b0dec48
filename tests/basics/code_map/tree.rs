//! The sources as a tree of modules, and what each file takes from which other: imports are followed through re-exports to
//! the file that declares a name. What only unit tests use counts for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// A name that one file takes from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    pub from: String,
    pub to: String,
    pub name: String,
    pub is_type: bool,
}

/// A path as it is written: `crate::lock::LockKey`.
type Names = Vec<String>;

#[derive(Default)]
struct Module {
    /// What the file declares, and whether that is a type.
    declared: BTreeMap<String, bool>,
    /// Types that can be named outside of their file.
    visible_types: BTreeSet<String>,
    /// What is imported, under its name here.
    imports: BTreeMap<String, Names>,
    globs: Vec<Names>,
    /// What is used: by a path, or by an import that is for this file alone.
    used: BTreeSet<Names>,
    tests: Vec<String>,
}

/// All files below `src`, by path without `src/`; those of Rust without `.rs` too.
pub struct Tree {
    pub texts: BTreeMap<String, String>,
    modules: BTreeMap<String, Module>,
}

enum Found {
    Declared { file: String, name: String, is_type: bool },
    Module(String),
}

impl Tree {
    pub fn of_this_project() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut texts = BTreeMap::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(&root).unwrap().display().to_string();
                    let name = name.strip_suffix(".rs").unwrap_or(&name).to_owned();
                    texts.insert(name, fs::read_to_string(&path).unwrap());
                }
            }
        }
        Self::of(texts)
    }

    pub fn of(texts: BTreeMap<String, String>) -> Self {
        let read = |text: &str| {
            let file = syn::parse_file(text).unwrap();
            let mut reader = Reader::default();
            reader.visit_file(&file);
            reader.0
        };
        let files = texts.iter().filter(|(name, _)| is_rust(name));
        let mut modules: BTreeMap<_, _> = files.map(|(name, text)| (name.clone(), read(text))).collect();
        let tests = |(file, module): (&String, &Module)| {
            module.tests.iter().map(|name| join(file, name)).collect::<Vec<_>>()
        };
        for file in modules.iter().flat_map(tests).collect::<Vec<_>>() {
            modules.remove(&file);
        }
        Self { texts, modules }
    }

    /// The files of Rust.
    pub fn rust_files(&self) -> impl Iterator<Item = &str> {
        self.texts.keys().map(String::as_str).filter(|name| is_rust(name))
    }

    /// Who takes what from whom.
    pub fn arrows(&self) -> BTreeSet<Arrow> {
        let of_file = |(file, module): (&String, &Module)| {
            let found = module.used.iter().filter_map(|names| match self.find(file, names, 0) {
                Some(Found::Declared { file: to, name, is_type }) if to != *file => {
                    Some(Arrow { from: file.clone(), to, name, is_type })
                }
                _ => None,
            });
            found.collect::<Vec<_>>()
        };
        self.modules.iter().flat_map(of_file).collect()
    }

    /// Who uses which crate, or module of the standard library's kind, that is none of ours.
    pub fn crates(&self) -> BTreeSet<(String, String)> {
        let of_file = |(file, module): (&String, &Module)| {
            let all = module.used.iter().filter(|names| names.len() > 1).chain(module.imports.values());
            let strange = all.filter(|names| self.find(file, names, 0).is_none());
            let imported =
                |first: &String| module.imports.get(first).map_or(first, |names| &names[0]).clone();
            let name = |names: &Names| imported(&names[0]).trim_start_matches(':').to_owned();
            strange.map(|names| (file.clone(), name(names))).collect::<Vec<_>>()
        };
        self.modules.iter().flat_map(of_file).collect()
    }

    /// Types that can be named outside of their files, and those files.
    pub fn visible_types(&self) -> BTreeMap<String, Vec<String>> {
        let mut types = BTreeMap::<_, Vec<_>>::new();
        for (file, module) in &self.modules {
            for name in &module.visible_types {
                types.entry(name.clone()).or_default().push(file.clone());
            }
        }
        types
    }

    fn find(&self, file: &str, names: &[String], depth: usize) -> Option<Found> {
        let (first, mut rest) = names.split_first()?;
        let mut base = match first.as_str() {
            "crate" if file == "main" => "main",
            "crate" | "fencepost" => "lib",
            "self" => file,
            "super" => above(file),
            _ if !rest.is_empty() && self.child(file, first).is_some() => {
                return self.step(file, names, depth);
            }
            _ => return self.look_up(file, first, rest, depth),
        };
        while rest.first().is_some_and(|name| name == "super") {
            (base, rest) = (above(base), &rest[1..]);
        }
        self.step(base, rest, depth)
    }

    /// Follows a path that begins within a module of ours.
    fn step(&self, file: &str, names: &[String], depth: usize) -> Option<Found> {
        self.modules.get(file)?;
        let Some((first, rest)) = names.split_first() else { return Some(Found::Module(file.to_owned())) };
        match self.child(file, first) {
            Some(child) if !rest.is_empty() => self.step(&child, rest, depth),
            child => match self.look_up(file, first, rest, depth) {
                None => match child {
                    Some(child) => Some(Found::Module(child)),
                    // What a macro declares.
                    None if file != "lib" => {
                        Some(Found::Declared { file: file.to_owned(), name: first.clone(), is_type: false })
                    }
                    None => None,
                },
                found => found,
            },
        }
    }

    /// What a name means in a module that declares or imports it.
    fn look_up(&self, file: &str, first: &str, rest: &[String], depth: usize) -> Option<Found> {
        let module = self.modules.get(file).filter(|_| depth < 16)?;
        if let Some(&is_type) = module.declared.get(first) {
            return Some(Found::Declared { file: file.to_owned(), name: first.to_owned(), is_type });
        }
        if let Some(import) = module.imports.get(first) {
            return match self.find(file, import, depth + 1)? {
                Found::Module(module) => self.step(&module, rest, depth + 1),
                declared => Some(declared),
            };
        }
        module.globs.iter().find_map(|glob| {
            let Some(Found::Module(module)) = self.find(file, glob, depth + 1) else { return None };
            self.look_up(&module, first, rest, depth + 1)
        })
    }

    fn child(&self, file: &str, name: &str) -> Option<String> {
        let child = if file == "lib" { name.to_owned() } else { join(file, name) };
        let is_one = !["lib", "main"].contains(&child.as_str()) && self.modules.contains_key(&child);
        (is_one && file != "main").then_some(child)
    }
}

fn is_rust(name: &str) -> bool {
    !name.contains('.')
}

fn above(file: &str) -> &str {
    file.rsplit_once('/').map_or("lib", |(above, _)| above)
}

fn join(file: &str, name: &str) -> String {
    format!("{file}/{name}")
}

#[derive(Default)]
struct Reader(Module);

impl Reader {
    fn declare(&mut self, name: &syn::Ident, is_type: bool, visibility: &Visibility) {
        self.0.declared.insert(name.to_string(), is_type);
        if is_type && !matches!(visibility, Visibility::Inherited) {
            self.0.visible_types.insert(name.to_string());
        }
    }

    fn import(&mut self, tree: &UseTree, mut names: Names, is_public: bool) {
        match tree {
            UseTree::Path(path) => {
                names.push(path.ident.to_string());
                self.import(&path.tree, names, is_public);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, names.clone(), is_public));
            }
            UseTree::Glob(_) => {
                if !is_public {
                    self.0.used.insert([&names[..], &["*".to_owned()]].concat());
                }
                self.0.globs.push(names);
            }
            UseTree::Name(name) => self.import_one(names, &name.ident, &name.ident, is_public),
            UseTree::Rename(rename) => self.import_one(names, &rename.ident, &rename.rename, is_public),
        }
    }

    fn import_one(&mut self, mut names: Names, what: &syn::Ident, as_name: &syn::Ident, is_public: bool) {
        let mut as_name = as_name.to_string();
        if what == "self" {
            as_name = if as_name == "self" { names.last().unwrap().clone() } else { as_name };
        } else {
            names.push(what.to_string());
        }
        if !is_public {
            self.0.used.insert(names.clone());
        }
        self.0.imports.insert(as_name, names);
    }

    /// What a macro is given, as far as it can be seen: paths, and types that it declares.
    fn read_tokens(&mut self, tokens: &str) {
        let words: Vec<_> = tokens.split_whitespace().collect();
        let is_name = |word: &str| word.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut at = 0;
        while at < words.len() {
            if !is_name(words[at]) {
                at += 1;
                continue;
            }
            let mut names = vec![words[at].to_owned()];
            while words.get(at + 1) == Some(&"::") && words.get(at + 2).is_some_and(|word| is_name(word)) {
                at += 2;
                names.push(words[at].to_owned());
            }
            self.0.used.insert(names);
            if ["enum", "struct"].contains(&words[at]) && at + 1 < words.len() {
                let name = words[at + 1].to_owned();
                let is_visible = at > 0 && (words[at - 1] == "pub" || words[at - 1].ends_with(')'));
                self.0.visible_types.extend(is_visible.then(|| name.clone()));
                self.0.declared.insert(name, true);
            }
            at += 1;
        }
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let mut lists = attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok());
    lists.any(|list| list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if is_for_tests(attributes) {
            if let Item::Mod(item) = item {
                self.0.tests.push(item.ident.to_string());
            }
            return;
        }
        match item {
            Item::Struct(item) => self.declare(&item.ident, true, &item.vis),
            Item::Enum(item) => self.declare(&item.ident, true, &item.vis),
            Item::Union(item) => self.declare(&item.ident, true, &item.vis),
            Item::Trait(item) => self.declare(&item.ident, true, &item.vis),
            Item::Type(item) => self.declare(&item.ident, true, &item.vis),
            Item::Fn(item) => self.declare(&item.sig.ident, false, &item.vis),
            Item::Const(item) => self.declare(&item.ident, false, &item.vis),
            Item::Static(item) => self.declare(&item.ident, false, &item.vis),
            Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    self.declare(name, false, &Visibility::Inherited);
                    // What it says is meant where it is used.
                    return;
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, Visibility::Inherited);
        match (&item.tree, item.leading_colon) {
            (UseTree::Path(path), Some(_)) => {
                self.import(&path.tree, vec![format!("::{}", path.ident)], is_public);
            }
            (tree, _) => self.import(tree, Vec::new(), is_public),
        }
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_some() {
            names[0].insert_str(0, "::");
        }
        self.0.used.insert(names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.visit_path(&mac.path);
        self.read_tokens(&mac.tokens.to_string());
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }
}

//! The repository tests itself: what its files promise about each other.

mod documents;
mod commands;

use std::fs;
use std::path::{Path, PathBuf};

use ::sluice::config;

/// Where Rust is.
const RUST_DIRS: [&str; 4] = ["src", "tests", "benches", "examples"];

/// Past so many lines a file has a second idea in it, which wants a file of its own.
const LINES_MAX: usize = 400;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir` that ends so, by name.
fn files(dir: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![root().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no {ending} in {dir}");
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn every_rust_file_opens_with_what_it_is_for() {
    let mut mute = Vec::new();
    for dir in RUST_DIRS {
        for path in files(dir, ".rs") {
            assert_ne!(path.file_name().unwrap(), "mod.rs", "foo.rs stands beside foo/: {}", shown(&path));
            if !read(&path).starts_with("//! ") {
                mute.push(shown(&path));
            }
        }
    }
    assert_eq!(mute, [""; 0], "these have no `//!` on their first line");
}

#[test]
fn no_file_is_longer_than_one_can_read() {
    let lines = |path: &PathBuf| read(path).lines().count();
    let all = RUST_DIRS.iter().flat_map(|dir| files(dir, ".rs"));
    let long = all.filter(|path| lines(path) > LINES_MAX);
    assert_eq!(long.map(|path| shown(&path)).collect::<Vec<_>>(), [""; 0]);
}

/// What is spawned bare can end without anybody noticing. Tasks belong to a Supervisor, to a tracker, or to one of these.
#[test]
fn every_task_has_an_owner() {
    let owners = ["src/ledger/restart.rs", "src/listen/port.rs"];
    let spawning = files("src", ".rs").into_iter().filter(|path| {
        let text = read(path);
        let (code, _) = text.split_once("\nmod tests {").unwrap_or((&text, ""));
        !shown(path).contains("tests") && code.contains("tokio::spawn(")
    });
    assert_eq!(spawning.map(|path| shown(&path)).collect::<Vec<_>>(), owners);
}

/// Imports go down only: a module uses those that lib.rs lists after it.
#[test]
fn every_module_uses_only_those_below_it() {
    let lib = read(&root().join("src/lib.rs"));
    let order: Vec<&str> =
        lib.lines().filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';')).collect();
    assert!(order.len() > 10, "{order:?}");
    let rank = |module: &str| order.iter().position(|name| *name == module);
    let mut violations = Vec::new();
    for path in files("src", ".rs") {
        let inside = path.strip_prefix(root().join("src")).unwrap();
        let module = inside.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        if module == "lib" || module == "main" {
            continue;
        }
        let own = rank(&module).unwrap_or_else(|| panic!("lib.rs doesn't list {module}"));
        for used in used_modules(&read(&path)) {
            let Some(other) = rank(&used) else { continue };
            if other < own || used == "client" && module != "client" {
                violations.push(format!("{} uses {used}", shown(&path)));
            }
        }
    }
    violations.dedup();
    assert_eq!(violations, [""; 0], "lib.rs lists what is used above who uses it");
}

/// What follows `crate::`, also in braces, outside of comments.
fn used_modules(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let mut used = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => used.push(word(rest)),
            Some(list) => used.extend(heads(list)),
        }
    }
    used
}

fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first word of each item of a list in braces, up to its end.
fn heads(list: &str) -> Vec<String> {
    let mut heads = vec![word(list)];
    let mut depth = 0;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(word(&list[at + 1..])),
            _ => {}
        }
    }
    heads
}

#[test]
fn used_modules_are_found() {
    let text =
        "use crate::a::{b, c};\n// crate::no\nuse crate::{d, e::{f, g},\n h};\nfn x() { crate::i::j() }";
    assert_eq!(used_modules(text), ["a", "d", "e", "h", "i"]);
}

#[test]
fn every_yaml_file_can_be_read() {
    for path in files("config", ".yaml").into_iter().chain(files("envoy", ".yaml")) {
        for document in read(&path).split("\n---\n") {
            let parsed = serde_saphyr::from_str::<serde_json::Value>(document);
            assert!(parsed.is_ok_and(|value| value.is_object()), "{}", shown(&path));
        }
    }
    let loaded = config::load(Some(&root().join("config")));
    assert_eq!(
        loaded.map(|loaded| loaded.hot.warnings).map_err(|problems| format!("{problems:#?}")),
        Ok(vec![])
    );
}

/// What is run for a change is what a developer runs.
#[test]
fn the_workflow_runs_everything() {
    let workflow: serde_json::Value =
        serde_saphyr::from_str(&read(&root().join(".github/workflows/ci.yaml"))).unwrap();
    let steps = workflow["jobs"]["test"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["run"] == ".ci/run"), "{steps:?}");
    assert!(read(&root().join(".ci/run")).ends_with("\nmake test\n"));
    let image = workflow["jobs"]["test"]["container"]["image"].as_str().unwrap().to_owned();
    let built_in = read(&root().join("Dockerfile"));
    let version = image.strip_prefix("rust:").and_then(|tag| tag.strip_suffix("-bookworm")).unwrap();
    assert!(built_in.contains(&format!("ARG RUST_IMAGE=rust:{version}-slim-bookworm\n")), "{image}");
}

/// With `-isystem` the headers of a clang on the machine and ours would hide each other's types, and nothing would build.
#[test]
fn building_with_tigerbeetle_does_not_depend_on_a_clang() {
    let script = read(&root().join("scripts/tools.sh"));
    let line = script.lines().find(|line| line.starts_with("export BINDGEN_EXTRA_CLANG_ARGS="));
    let line = line.expect("it tells bindgen where headers are");
    assert!(line.contains("=-resource-dir=") && !line.contains("-isystem"), "{line}");
}

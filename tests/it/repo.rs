//! The repository tests itself: what its files promise about each other.

use std::fs;
use std::path::{Path, PathBuf};

use ::sluice::cli::Cli;
use ::sluice::config;
use clap::Parser;

use crate::sluice::{Sluice, directory, run, serve, sluice};

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
    for dir in ["src", "tests", "benches", "examples"] {
        for path in files(dir, ".rs") {
            assert_ne!(path.file_name().unwrap(), "mod.rs", "foo.rs stands beside foo/: {}", shown(&path));
            if !read(&path).starts_with("//! ") {
                mute.push(shown(&path));
            }
        }
    }
    assert_eq!(mute, [""; 0], "these have no `//!` on their first line");
}

/// Past so many lines a file has a second idea in it, which wants a file of its own.
#[test]
fn no_file_is_longer_than_one_can_read() {
    let lines = |path: &PathBuf| read(path).lines().count();
    let long = files("src", ".rs").into_iter().filter(|path| lines(path) > 400);
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

/// The snippets of a document in one language.
fn snippets(text: &str, language: &str) -> Vec<String> {
    let mut snippets = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == format!("```{language}") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            snippets.push(block.join("\n") + "\n");
        }
    }
    snippets
}

fn documents() -> Vec<PathBuf> {
    let mut documents = files("docs", ".md");
    documents.extend(
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|name| root().join(name)),
    );
    documents
}

/// What a snippet of process settings begins with.
const SETTINGS: [&str; 5] = ["grpc:", "admin:", "hub:", "ledger:", "leases:"];

/// Limits, a retry policy or settings in a document are such that Sluice would take them.
#[test]
fn files_in_the_documents_are_right() {
    for path in documents() {
        for text in snippets(&read(&path), "yaml") {
            let file = config::Document { name: shown(&path), text };
            let problems = if file.text.starts_with("domain:") {
                config::load_limits(std::slice::from_ref(&file), None).err()
            } else if file.text.starts_with("retry_policy:") {
                config::load_retry_policy(Some(&file)).err()
            } else if SETTINGS.iter().any(|start| file.text.starts_with(start)) {
                let dir = directory(&[("sluice.yaml", &file.text)]);
                config::load(Some(dir.path())).err()
            } else {
                continue;
            };
            assert_eq!(problems, None, "{}\n{}", shown(&path), file.text);
        }
    }
}

/// Whoever is woken finds what to do.
#[test]
fn every_alert_is_in_the_manual() {
    let manual = read(&root().join("docs/operating.md"));
    let alerts = read(&root().join("demo/prometheus/alerts.yaml"));
    let alerts: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let rows: Vec<&str> =
        manual.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for alert in alerts {
        assert!(rows.contains(&alert), "{alert} has no row");
    }
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    for path in documents().into_iter().chain([root().join("SECURITY.md")]) {
        let text = read(&path);
        for (at, mark) in ["](", "src=\"", "srcset=\""].iter().flat_map(|mark| text.match_indices(mark)) {
            let link = text[at + mark.len()..].split([')', '"']).next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", shown(&path));
            let there = heading.is_empty() || read(&target).lines().any(|line| anchor(line) == heading);
            assert!(there, "{}: {link} leads to no heading", shown(&path));
        }
    }
}

/// What a link to a heading says, as GitHub has it; empty for what is none.
fn anchor(line: &str) -> String {
    let heading = if line.starts_with('#') { line.trim_start_matches('#').trim() } else { "" };
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_metric_is_in_the_documents() {
    let document = read(&root().join("docs/admin.md"));
    let mut names = Vec::new();
    for path in files("src/telemetry", ".rs").into_iter().chain([root().join("src/telemetry.rs")]) {
        let text = read(&path);
        names.extend(text.match_indices("\"sluice_").map(|(at, _)| word(&text[at + 1..])));
    }
    assert!(names.len() > 30, "{names:?}");
    let is_missing =
        |name: &String| !["`", "{", "_total"].iter().any(|end| document.contains(&format!("`{name}{end}")));
    names.retain(is_missing);
    assert_eq!(names, [""; 0], "docs/admin.md says nothing of these");
}

/// A command that a document tells people to type, and what it shows as its output.
#[derive(Debug)]
#[allow(dead_code, reason = "the place is told when a test fails")]
struct Shown {
    place: String,
    words: Vec<String>,
    output: String,
}

/// The commands in the documents, and in the comments of the files that people start from.
fn commands() -> Vec<Shown> {
    let mut commands = Vec::new();
    for path in documents() {
        let text = read(&path);
        for snippet in snippets(&text, "console") {
            for part in format!("\n{snippet}").split("\n$ ").skip(1) {
                let (command, output) = part.split_once('\n').unwrap_or((part, ""));
                commands.push(typed(&path, command, output));
            }
        }
        let indented = text.lines().filter_map(|line| line.strip_prefix("    "));
        let starts = ["cargo run ", "make ", "sluice "];
        let typed_ones = indented.filter(|line| starts.iter().any(|start| line.starts_with(start)));
        commands.extend(typed_ones.map(|line| typed(&path, line, "")));
    }
    for path in files("config", ".yaml").into_iter().chain(files("envoy", ".yaml")) {
        let comments = read(&path);
        let lines = comments.lines().filter_map(|line| line.trim_start().strip_prefix("#   "));
        let ours = lines.filter(|line| line.starts_with("sluice ") || line.starts_with("cargo run "));
        commands.extend(ours.map(|line| typed(&path, line, "")));
    }
    commands
}

/// Without what comes after the command: a comment, an explanation, another command.
fn typed(path: &Path, command: &str, output: &str) -> Shown {
    let command = command.split(" #").next().unwrap_or_default();
    let command = command.split("  ").next().unwrap_or_default();
    let command = command.split(';').next().unwrap_or_default().trim_end_matches(['&', ' ']);
    let command = command.split(" | ").next().unwrap_or_default();
    let words = command.split_whitespace().map(str::to_owned).collect();
    Shown { place: shown(path), words, output: output.to_owned() }
}

impl Shown {
    /// What comes after `sluice`, however it is called.
    fn arguments(&self) -> Option<Vec<&str>> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        match &words[..] {
            ["sluice" | "target/release/sluice", arguments @ ..] => Some(arguments.to_vec()),
            ["cargo", "run", "--release", "--", arguments @ ..] => Some(arguments.to_vec()),
            _ => None,
        }
    }
}

#[test]
fn commands_in_the_documents_are_commands() {
    let makefile = read(&root().join("Makefile"));
    let commands = commands();
    assert!(commands.len() > 10, "{commands:#?}");
    for shown in &commands {
        if let Some(arguments) = shown.arguments() {
            let parsed = Cli::try_parse_from(["sluice"].into_iter().chain(arguments));
            assert!(parsed.is_ok(), "{shown:?}: {}", parsed.unwrap_err());
        }
        if let [make, target, ..] = &shown.words[..]
            && make == "make"
        {
            assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "{shown:?}");
        }
        for word in &shown.words {
            let ours = ["envoy/", "config/", "docs/", "scripts/"].iter().any(|dir| word.starts_with(dir));
            assert!(!ours || root().join(word).exists(), "{shown:?}: {word} is not there");
        }
    }
}

/// Whoever follows the documents sees what they show. A command that is shown to be denied is typed until it is.
#[tokio::test]
async fn commands_in_the_documents_say_what_is_shown() {
    let dir = directory(&[]);
    let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config-dir"]);
    command.arg(root().join("config"));
    let served = Sluice::start(dir, command).await;
    let mut compared = 0;
    for shown in commands() {
        let Some(arguments) = shown.arguments().filter(|arguments| arguments.first() == Some(&"try")) else {
            continue;
        };
        let ask = || run(sluice(served.dir.path(), &arguments).env("SLUICE_GRPC", &served.grpc));
        let mut ran = ask();
        for _ in 0..100 {
            if ran.code != 0 || !shown.output.contains("OVER_LIMIT") {
                break;
            }
            ran = ask();
        }
        assert!(ran.code == 0 || ran.code == 2, "{shown:?}: {ran:?}");
        if !shown.output.is_empty() {
            let exit =
                if shown.output.contains("\nexit ") { format!("exit {}\n", ran.code) } else { String::new() };
            assert_eq!(masked(&(ran.stdout + &exit)), masked(&shown.output), "{shown:?}");
            compared += 1;
        }
    }
    assert!(compared > 0, "the README shows an answer");
}

/// The broken file that the README shows is broken as it says.
#[test]
fn mistakes_in_the_documents_are_the_ones_that_are_found() {
    let commands = commands();
    let output = |start: &[&str]| {
        let is_it = |shown: &&Shown| shown.words.iter().zip(start).all(|(word, other)| word == other);
        let found = commands.iter().find(is_it);
        found.unwrap_or_else(|| panic!("no {start:?}")).output.clone()
    };
    let dir = directory(&[("broken/limits/shop.yaml", &output(&["cat", "broken/limits/shop.yaml"]))]);
    let arguments = ["check", "--config-dir", "broken"];
    let ran = run(&mut sluice(dir.path(), &arguments));
    assert_eq!(ran.stderr + &ran.stdout + &format!("exit {}\n", ran.code), output(&["sluice", "check"]));
}

/// Hints are partly random, and what is left depends on who asked before: digits of those are left out.
fn masked(output: &str) -> String {
    let mut text = String::new();
    for line in output.lines() {
        let random = ["retry-after: ", "retry-after-ms: "].iter().any(|start| line.starts_with(start));
        let words = line.split(' ').map(|word| match word.split_once('=') {
            Some((name @ ("remaining" | "reset"), _)) => format!("{name}=…"),
            _ if random && word.parse::<u64>().is_ok() => "…".to_owned(),
            _ => word.to_owned(),
        });
        text += &(words.collect::<Vec<_>>().join(" ") + "\n");
    }
    text
}

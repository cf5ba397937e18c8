//! The commands in the documents are typed, and say what the documents show.

use std::path::Path;

use ::sluice::cli::Cli;
use clap::Parser;

use super::documents::{documents, snippets};
use super::{files, read, root, shown};
use crate::sluice::{Sluice, directory, run, serve, sluice};

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

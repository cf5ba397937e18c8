//! The worked example of docs/simulation.md: whoever types its commands sees what it shows.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use crate::sluice::run;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Copies a directory and all that is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

/// `sluice` is this one.
fn typed(dir: &Path, command: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_sluice")).parent().unwrap();
    let path = format!("{}:{}", program.display(), env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.current_dir(dir).env("PATH", path).env_remove("SLUICE_CONFIG_DIR");
    // Both outputs, as a terminal shows them.
    bash.args(["-c", &format!("exec 2>&1; {command}")]);
    bash
}

#[test]
fn commands_of_the_worked_example_print_what_is_shown() {
    let text = fs::read_to_string(root().join("docs/simulation.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    copy(&root().join("examples/simulation"), dir.path());
    let mut compared = 0;
    for block in text.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for part in format!("\n{block}").split("\n$ ").skip(1) {
            let (command, output) = part.split_once('\n').unwrap_or((part, ""));
            if command.starts_with("cd ") {
                continue;
            }
            let ran = run(&mut typed(dir.path(), command));
            assert_eq!(ran.stdout.trim_end(), output.trim_end(), "{command}");
            compared += 1;
        }
    }
    assert!(compared >= 8, "{compared}");
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("tenant=scraper"), "{page}");
    let shown = fs::read_to_string(root().join("docs/images/simulation.svg")).unwrap();
    let drawn = fs::read_to_string(dir.path().join("report.svg")).unwrap();
    assert!(drawn == shown, "docs/images/simulation.svg is another picture than report.svg of the example");
}

/// The log that ships is the one that its script makes.
#[test]
fn the_script_makes_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let script = root().join("examples/simulation/make_log.py");
    let made = Command::new("python3").arg(script).arg("made.gz").current_dir(dir.path()).status();
    assert!(made.expect("python3 must be there").success());
    // Whatever packed them, the lines are the same.
    let unpacked = |path: &Path| run(Command::new("zcat").arg(path)).stdout;
    let there = unpacked(&root().join("examples/simulation/access.log.gz"));
    assert_eq!(there.lines().count(), 10_882);
    assert!(there == unpacked(&dir.path().join("made.gz")), "make_log.py makes another log");
}

//! The guard that isn't noise: instructions per decision, counted by callgrind, against those in `benches/instructions.txt`.
//!
//! Two runs of different length, and the difference of their counts: what starting and stopping costs cancels out.

use std::path::PathBuf;
use std::process::Command;

use super::load::{self, Shape, TENANTS};
use super::process::{self, Server};

/// What two runs of the same program differ by, and some room for another minor version of the compiler.
const TOLERANCE: f64 = 1.03;

const SHORT: u64 = 1_000;
const LONG: u64 = 6_000;

/// What counting who is heavy (`src/activity.rs`) may take of a decision with one limit. A promise, so there is no room beside it.
const SKETCH_MAX: u64 = 100;
/// The function that does it on the way of a request; what it calls counts as well.
const SKETCH: &str = "--toggle-collect=*Activity*admitted*";
/// So slow that callgrind keeps up, and each tenant comes once in two seconds: then every request lists its limit anew.
const SKETCH_RATE: f64 = 500.0;
const SKETCH_SECONDS: u64 = 8;

#[derive(Debug, Clone, serde::Serialize)]
pub struct Count {
    pub name: String,
    pub instructions: u64,
    pub allowed: Option<u64>,
    /// How much more than that is still fine.
    tolerance: f64,
}

impl Count {
    pub fn is_fine(&self) -> bool {
        self.allowed.is_some_and(|allowed| self.instructions as f64 <= allowed as f64 * self.tolerance)
    }
}

fn file() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.txt")
}

/// `name count`, one a line; `#` starts a comment.
fn allowed(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file()).unwrap();
    let lines = text.lines().filter_map(|line| line.split('#').next()?.trim().rsplit_once(' '));
    lines.filter(|(there, _)| there.trim() == name).find_map(|(_, count)| count.parse().ok())
}

pub fn count_all() -> Vec<Count> {
    let count = |name: &str, limits: &str, server: Command| {
        let total = |requests| total(&server, &[], |grpc| load::count(grpc, limits, requests));
        let instructions = (total(LONG) - total(SHORT)) / (LONG - SHORT);
        Count { name: name.to_owned(), instructions, allowed: allowed(name), tolerance: TOLERANCE }
    };
    let sketch = |name: &str, tenants: u64| {
        let mut answers = 0.0;
        let total = total(&process::sluice("memory"), &[SKETCH], |grpc| {
            let run = load::of_tenants(tenants, grpc, "one", Shape(1, 8), Some(SKETCH_RATE), SKETCH_SECONDS);
            answers = run.answers;
        });
        assert!(total > 0, "callgrind must know {SKETCH}");
        let instructions = (total as f64 / answers).ceil() as u64;
        Count { name: name.to_owned(), instructions, allowed: Some(SKETCH_MAX), tolerance: 1.0 }
    };
    vec![
        count("bare tonic", "one", process::bare()),
        count("memory, 1 limit", "one", process::sluice("memory")),
        count("memory, 3 limits", "three", process::sluice("memory")),
        sketch("sketch, 1 tenant", 1),
        sketch("sketch, 1,000 tenants", TENANTS),
    ]
}

/// Everything that a server executes while it is asked, or what these flags of callgrind leave of it.
fn total(server: &Command, flags: &[&str], ask: impl FnOnce(&str)) -> u64 {
    let out = process::directory().join("callgrind.out");
    // A run that was killed leaves none, and the last one's must not be read for it.
    let _ = std::fs::remove_file(&out);
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", &format!("--callgrind-out-file={}", out.display())]).args(flags);
    command.arg(server.get_program()).args(server.get_args());
    let server = Server::start(&mut command);
    ask(&server.grpc);
    server.process.finish();
    let text = std::fs::read_to_string(&out).expect("callgrind must have written its counts");
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    line.and_then(|total| total.trim().parse().ok()).expect("callgrind must have written a total")
}

pub fn print(counts: &[Count]) {
    println!("\ninstructions per decision (callgrind, one connection, one in flight)");
    for count in counts {
        let allowed = count.allowed.map_or("not in the file".to_owned(), |allowed| {
            let more = (count.tolerance - 1.0) * 100.0;
            format!(
                "{allowed} allowed{}",
                if more > 0.0 { format!(", and {more:.0} % more") } else { String::new() }
            )
        });
        let mark = if count.is_fine() { "" } else { "   TOO MANY" };
        println!("  {:<24}{:>8}   {allowed}{mark}", count.name, count.instructions);
    }
    if counts.iter().any(|count| !count.is_fine()) {
        println!(
            "If that is what it takes, write the new number into {} and why beside it.",
            file().display()
        );
    }
}

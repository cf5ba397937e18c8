//! The guard that isn't noise: instructions per decision, counted by callgrind, against those in `benches/instructions.txt`.
//!
//! Two runs of different length, and the difference of their counts: what starting and stopping costs cancels out.

use std::path::PathBuf;
use std::process::Command;

use super::load;
use super::process::{self, Server};

/// What two runs of the same program differ by, and some room for another minor version of the compiler.
const TOLERANCE: f64 = 1.03;

const SHORT: u64 = 1_000;
const LONG: u64 = 6_000;

#[derive(Debug, Clone, serde::Serialize)]
pub struct Count {
    pub name: String,
    pub instructions: u64,
    pub allowed: Option<u64>,
}

impl Count {
    pub fn is_fine(&self) -> bool {
        self.allowed.is_some_and(|allowed| self.instructions as f64 <= allowed as f64 * TOLERANCE)
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
        let (short, long) = (total(&server, limits, SHORT), total(&server, limits, LONG));
        let instructions = (long - short) / (LONG - SHORT);
        Count { name: name.to_owned(), instructions, allowed: allowed(name) }
    };
    vec![
        count("bare tonic", "one", process::bare()),
        count("memory, 1 limit", "one", process::sluice("memory")),
        count("memory, 3 limits", "three", process::sluice("memory")),
    ]
}

/// Everything that a server executes for so many requests.
fn total(server: &Command, limits: &str, requests: u64) -> u64 {
    let out = process::directory().join("callgrind.out");
    // A run that was killed leaves none, and the last one's must not be read for it.
    let _ = std::fs::remove_file(&out);
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", &format!("--callgrind-out-file={}", out.display())]);
    command.arg(server.get_program()).args(server.get_args());
    let server = Server::start(&mut command);
    load::count(&server.grpc, limits, requests);
    server.process.finish();
    let text = std::fs::read_to_string(&out).expect("callgrind must have written its counts");
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    line.and_then(|total| total.trim().parse().ok()).expect("callgrind must have written a total")
}

pub fn print(counts: &[Count]) {
    println!("\ninstructions per decision (callgrind, one connection, one in flight)");
    for count in counts {
        let allowed =
            count.allowed.map_or("not in the file".to_owned(), |allowed| format!("{allowed} in the file"));
        let mark = if count.is_fine() { "" } else { "   TOO MANY" };
        println!("  {:<20}{:>8}   {allowed}{mark}", count.name, count.instructions);
    }
    if counts.iter().any(|count| !count.is_fine()) {
        println!(
            "If that is what it takes, write the new number into {} and why beside it.",
            file().display()
        );
    }
}

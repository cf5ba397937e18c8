//! What was measured, as a table, as JSON to compare the next run with, and against the targets. Measures nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Measured;

/// One line of the table.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Row {
    pub name: String,
    pub load: String,
    /// Of the first of those that were measured together; the middle round's.
    pub ratio: Option<f64>,
    pub per_second: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub cpu_us: Option<f64>,
    pub resident_mb: Option<f64>,
    pub written_bytes: Option<f64>,
}

impl Row {
    /// Of all rounds together; percentiles are those of the middle round.
    pub fn new(name: &str, load: &str, rounds: &[Measured]) -> Self {
        let answers: f64 = rounds.iter().map(|round| round.run.answers).sum();
        let sum = |of: fn(&Measured) -> Option<f64>| rounds.iter().map(of).sum::<Option<f64>>();
        let middle = |of: fn(&Measured) -> Option<f64>| {
            let mut values: Vec<f64> = rounds.iter().filter_map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Self {
            name: name.to_owned(),
            load: load.to_owned(),
            ratio: None,
            per_second: rounds.iter().map(|round| round.run.per_second).sum::<f64>() / rounds.len() as f64,
            p50_ms: middle(|round| round.run.p50_ms),
            p99_ms: middle(|round| round.run.p99_ms),
            cpu_us: sum(|round| round.cpu_seconds).map(|seconds| seconds * 1e6 / answers),
            resident_mb: middle(|round| round.resident_bytes.map(|bytes| bytes as f64 / 1e6)),
            written_bytes: sum(|round| round.written_bytes.map(|bytes| bytes as f64))
                .map(|bytes| bytes / answers),
        }
    }
}

/// What was wanted, and what came of it.
#[derive(Debug, serde::Serialize)]
pub struct Target {
    pub name: String,
    pub wanted: String,
    pub measured: f64,
    pub met: bool,
}

#[derive(Debug, serde::Serialize)]
pub struct Report {
    pub date: String,
    pub cores: usize,
    /// What else ran: the load average before the first row.
    pub load_before: String,
    pub rows: Vec<Row>,
    pub targets: Vec<Target>,
}

/// As a program of the system writes it.
pub fn date() -> String {
    let output = Command::new("date").arg("+%Y-%m-%dT%H%M%S").output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn print_head() {
    println!(
        "{:>6}  {:<42}{:<24}{:>10}{:>9}{:>9}{:>9}{:>8}{:>10}",
        "ratio", "", "load", "answers/s", "p50 ms", "p99 ms", "CPU us", "RSS MB", "B written"
    );
}

pub fn print_row(row: &Row, before: &[Row]) {
    let or_blank =
        |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    let last = before.iter().find(|there| (&there.name, &there.load) == (&row.name, &row.load));
    let last = last.map_or(String::new(), |last| {
        format!("   before: {:.0}/s {}", last.per_second, or_blank(last.ratio, 2))
    });
    println!(
        "{:>6}  {:<42}{:<24}{:>10.0}{:>9}{:>9}{:>9}{:>8}{:>10}{last}",
        or_blank(row.ratio, 2),
        row.name,
        row.load,
        row.per_second,
        or_blank(row.p50_ms, 2),
        or_blank(row.p99_ms, 2),
        or_blank(row.cpu_us, 1),
        or_blank(row.resident_mb, 0),
        or_blank(row.written_bytes, 0),
    );
}

/// The rows of the run before this one.
pub fn rows_before(dir: &Path) -> Vec<Row> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().filter_map(|file| Some(file.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    let text = files.last().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    serde_json::from_value(value["rows"].clone()).unwrap_or_default()
}

impl Report {
    pub fn finish(&self, dir: &Path) {
        println!("\ntargets");
        for target in &self.targets {
            let mark = if target.met { "met" } else { "NOT MET" };
            println!("  {:<72}{:<10}{:>8.2}   {mark}", target.name, target.wanted, target.measured);
        }
        let json = dir.join(format!("{}.json", self.date));
        std::fs::write(&json, serde_json::to_string_pretty(self).unwrap()).unwrap();
        println!("\n{} cores, load average before the run {}", self.cores, self.load_before);
        println!("kept for comparison: {}", json.display());
    }
}

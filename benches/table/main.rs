//! `make bench`: everything from end to end in one run and one table, ratios first.
//!
//! Two cores carry the load, the server and TigerBeetle, and often something else: a ratio within the run says more than a
//! rate. `make bench-instructions` counts only instructions, which say the same on any day.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a benchmark reads the clock and stops on errors"
)]

mod bare;
mod client;
mod hubs;
mod instructions;
mod keys;
mod load;
mod plot;
mod process;
mod report;
mod slabs;
mod tls;

use std::sync::Arc;

use self::client::{Caller, Clients};
use self::load::{Run, Shape, TENANTS};
use self::plot::Curve;
use self::process::{Server, TigerBeetle};
use self::report::{Report, Row, Target};

/// A cell is measured in rounds, everybody in turn, so that what else the machine does meets all alike.
const ROUNDS: usize = 3;
const SECONDS: u64 = 2;
const WARM_UP_SECONDS: u64 = 1;
const PROVISION_SECONDS: u64 = 5;
const SHAPES: [Shape; 3] = [Shape(1, 1), Shape(2, 32), Shape(4, 64)];
const WIDEST: Shape = SHAPES[2];

/// Of the top rate, in the open loop.
const PARTS: [f64; 5] = [0.05, 0.1, 0.25, 0.5, 0.75];

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("bare") => return bare::serve(),
        Some("instructions") => {}
        // Only these rows, where nothing else is to be known.
        Some("slabs") => return Table::new().only(Table::slab_rows),
        Some("tls") => return Table::new().only(Table::tls_rows),
        Some("hubs") => return Table::new().only(Table::hub_rows),
        _ => Table::new().measure(),
    }
    let counts = instructions::count_all();
    instructions::print(&counts);
    if !counts.iter().all(instructions::Count::is_fine) {
        std::process::exit(1);
    }
}

struct Table {
    runtime: Arc<tokio::runtime::Runtime>,
    rows: Vec<Row>,
    before: Vec<Row>,
    targets: Vec<Target>,
    curves: Vec<Curve>,
    load_before: String,
}

impl Table {
    fn new() -> Self {
        let before = report::rows_before(&process::directory());
        let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap());
        let load_before = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load_before = load_before.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        let (rows, targets, curves) = (Vec::new(), Vec::new(), Vec::new());
        Self { runtime, rows, before, targets, curves, load_before }
    }

    fn only(mut self, rows: impl FnOnce(&mut Self)) {
        report::print_head();
        rows(&mut self);
        self.finish();
    }

    fn measure(mut self) {
        report::print_head();
        let bare = Server::start(&mut process::bare());
        let memory = Server::start(&mut process::sluice("memory"));
        let subjects = [
            ("bare tonic, a constant", &bare, "one"),
            ("memory, 1 limit", &memory, "one"),
            ("memory, 3 limits", &memory, "three"),
        ];
        self.grpc_rows(&subjects, None);
        self.open_loop("memory, 3 limits", &memory, "three");
        drop(memory);
        self.targets_of_grpc();
        self.tls_rows();
        let tigerbeetle = TigerBeetle::start();
        let durable = Server::start(&mut process::sluice(&format!("tigerbeetle:0@{}", tigerbeetle.address)));
        // Until it is connected, every answer is an error.
        std::thread::sleep(std::time::Duration::from_secs(3));
        // A limit that is asked for the first time is made first, which is not what is measured.
        for limits in ["one", "two", "three"] {
            load::many(&durable.grpc, limits, WIDEST, None, PROVISION_SECONDS);
        }
        let subjects = [
            ("bare tonic, beside TigerBeetle", &bare, "one"),
            ("TigerBeetle, 1 limit", &durable, "one"),
            ("TigerBeetle, 3 limits", &durable, "three"),
        ];
        self.grpc_rows(&subjects, Some(&tigerbeetle));
        drop(bare);
        self.client_rows(&tigerbeetle, &durable);
        drop((tigerbeetle, durable));
        self.slab_rows();
        self.hub_rows();
        self.sum_rows();
        let (before, after) = keys::before_and_after(&self.runtime);
        println!(
            "\na decision for a known key: {before:.0} ns, after a million keys seen once {after:.0} ns"
        );
        let name = "a million keys seen once: time of the next decision, of before";
        self.target(name, "<= 1.50", after / before, |n| n <= 1.5);
        self.finish();
    }

    /// Everybody in turn under one load; the first is what the others are compared with.
    fn together(&mut self, load: &str, subjects: &[Subject<'_>]) -> Vec<Row> {
        let mut rounds: Vec<Vec<Measured>> = subjects.iter().map(|_| Vec::new()).collect();
        for subject in subjects {
            (subject.run)(WARM_UP_SECONDS);
        }
        for _ in 0..ROUNDS {
            for (subject, rounds) in subjects.iter().zip(&mut rounds) {
                rounds.push(watched(subject));
            }
        }
        let mut rows = Vec::new();
        for (subject, own) in subjects.iter().zip(&rounds) {
            let mut ratios: Vec<f64> = own
                .iter()
                .zip(&rounds[0])
                .map(|(own, first)| own.run.per_second / first.run.per_second)
                .collect();
            ratios.sort_by(f64::total_cmp);
            let mut row = Row::new(subject.name, load, own);
            row.ratio = (!rows.is_empty()).then(|| ratios[ROUNDS / 2]);
            rows.push(self.add(row));
        }
        rows
    }

    fn add(&mut self, row: Row) -> Row {
        report::print_row(&row, &self.before);
        self.rows.push(row.clone());
        row
    }

    fn row(&self, name: &str, load: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name && row.load == load)
    }

    fn target(&mut self, name: &str, wanted: &str, measured: f64, met: impl Fn(f64) -> bool) {
        self.targets.push(Target {
            name: name.to_owned(),
            wanted: wanted.to_owned(),
            measured,
            met: met(measured),
        });
    }

    /// Servers under every closed loop.
    fn grpc_rows(&mut self, subjects: &[(&str, &Server, &str)], disk: Option<&TigerBeetle>) {
        let loads = SHAPES.map(|shape| (shape, true)).into_iter().chain([(WIDEST, false)]);
        for (shape, is_hot) in loads {
            let subjects: Vec<Subject<'_>> = subjects
                .iter()
                .map(|&(name, server, limits)| {
                    let run: Box<dyn Fn(u64) -> Run> = match is_hot {
                        true => Box::new(move |seconds| load::hot(&server.grpc, limits, shape, seconds)),
                        false => {
                            Box::new(move |seconds| load::many(&server.grpc, limits, shape, None, seconds))
                        }
                    };
                    // The first one writes nothing.
                    let disk = disk.filter(|_| !name.starts_with("bare"));
                    Subject { name, run, server: Some(server), disk }
                })
                .collect();
            self.together(&load_name(shape, is_hot), &subjects);
        }
    }

    /// Latency at parts of the top rate. p99 at the half of it.
    fn open_loop(&mut self, name: &str, server: &Server, limits: &str) -> Option<f64> {
        let top = self.row(name, &load_name(WIDEST, false))?.per_second;
        self.curve(name, top, |rate| load::many(&server.grpc, limits, WIDEST, Some(rate), SECONDS * 2))
    }

    fn curve(&mut self, name: &str, top: f64, run: impl Fn(f64) -> Run) -> Option<f64> {
        let points = PARTS.map(|part| (part, run(top * part)));
        for (part, run) in points {
            self.add(Row::new(name, &format!("open loop, {part} of top"), &[run.into()]));
        }
        let point = |(part, run): &(f64, Run)| Some((top * part, run.p50_ms?, run.p99_ms?));
        self.curves.push(Curve { name: name.to_owned(), points: points.iter().filter_map(point).collect() });
        points.iter().find(|(part, _)| *part == 0.5)?.1.p99_ms
    }

    /// The bare client library, the submitter without gRPC, and Sluice.
    fn client_rows(&mut self, tigerbeetle: &TigerBeetle, durable: &Server) {
        let runtime = Arc::clone(&self.runtime);
        let clients = runtime.block_on(Clients::new(&tigerbeetle.address));
        let (bare, summing) = runtime.block_on(async { (clients.bare(), clients.submitter(true).await) });
        let tasks = WIDEST.0 * WIDEST.1;
        let run = |caller: &Caller, tenants, rate, seconds| {
            runtime.block_on(clients.run(caller, tasks, tenants, rate, seconds))
        };
        let subject = |name, run: Box<dyn Fn(u64) -> Run>, server| Subject {
            name,
            run,
            server,
            disk: Some(tigerbeetle),
        };
        let many = load_name(WIDEST, false);
        let rows = self.together(
            &many,
            &[
                subject(
                    "bare client, 2 limits",
                    Box::new(|seconds| run(&bare, TENANTS, None, seconds)),
                    None,
                ),
                subject(
                    "submitter, 2 limits",
                    Box::new(|seconds| run(&summing, TENANTS, None, seconds)),
                    None,
                ),
                subject(
                    "TigerBeetle, 2 limits",
                    Box::new(|seconds| load::many(&durable.grpc, "two", WIDEST, None, seconds)),
                    Some(durable),
                ),
            ],
        );
        let name = "TigerBeetle, 2 limits, 256 in flight, of the bare client";
        self.target(name, ">= 0.80", rows[2].ratio.unwrap_or(0.0), |n| n >= 0.8);
        let theirs = self.curve("bare client, 2 limits", rows[0].per_second, |rate| {
            run(&bare, TENANTS, Some(rate), SECONDS * 2)
        });
        let ours = self.open_loop("TigerBeetle, 2 limits", durable, "two");
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let name = "TigerBeetle, 2 limits, p99 at half of the top rate, of the bare client's";
            self.target(name, "< 4.00", ours / theirs, |n| n < 4.0);
        }
        runtime.block_on(summing.close());
    }

    /// One tenant with and without sums, each on a TigerBeetle of its own: what one run leaves to be compacted is not
    /// written in the other.
    fn sum_rows(&mut self) {
        let runtime = Arc::clone(&self.runtime);
        let servers = [TigerBeetle::start(), TigerBeetle::start()];
        let started = |server: &TigerBeetle, sums| {
            runtime.block_on(async {
                let clients = Clients::new(&server.address).await;
                let caller = clients.submitter(sums).await;
                (clients, caller)
            })
        };
        let callers = [started(&servers[0], false), started(&servers[1], true)];
        let tasks = WIDEST.0 * WIDEST.1;
        let subject = |n: usize, name| {
            let (clients, caller) = &callers[n];
            let runtime = &runtime;
            let run = move |seconds| runtime.block_on(clients.run(caller, tasks, 1, None, seconds));
            Subject { name, run: Box::new(run), server: None, disk: Some(&servers[n]) }
        };
        let subjects =
            [subject(0, "submitter, 2 limits, one by one"), subject(1, "submitter, 2 limits, summed")];
        let rows = self.together(&load_name(WIDEST, true), &subjects);
        let name = "one hot tenant, summed: decisions/s, of one by one";
        self.target(name, ">= 2.00", rows[1].ratio.unwrap_or(0.0), |n| n >= 2.0);
        if let (Some(less), Some(more)) = (rows[1].written_bytes, rows[0].written_bytes) {
            let name = "one hot tenant, summed: bytes written, of one by one";
            self.target(name, "<= 0.10", less / more, |n| n <= 0.1);
        }
        drop(subjects);
        for (_, caller) in callers {
            runtime.block_on(caller.close());
        }
    }

    fn targets_of_grpc(&mut self) {
        for name in ["memory, 1 limit", "memory, 3 limits"] {
            for is_hot in [true, false] {
                let load = load_name(WIDEST, is_hot);
                if let Some(ratio) = self.row(name, &load).and_then(|row| row.ratio) {
                    self.target(&format!("{name}, {load}, of bare tonic"), ">= 0.85", ratio, |n| n >= 0.85);
                }
            }
        }
    }

    fn finish(self) {
        let dir = process::directory();
        let report = Report {
            date: report::date(),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            load_before: self.load_before,
            rows: self.rows,
            targets: self.targets,
        };
        report.finish(&dir);
        let plot = dir.join("latency.svg");
        std::fs::write(&plot, plot::svg("Latency against rate, 1,000 tenants", &self.curves)).unwrap();
        println!("latency against rate: {}", plot.display());
    }
}

fn load_name(Shape(connections, streams): Shape, is_hot: bool) -> String {
    format!("{connections}x{streams}, {}", if is_hot { "one tenant" } else { "many tenants" })
}

/// Who is measured.
struct Subject<'a> {
    name: &'a str,
    /// For so many seconds.
    run: Box<dyn Fn(u64) -> Run + 'a>,
    server: Option<&'a Server>,
    disk: Option<&'a TigerBeetle>,
}

/// One round, and what the one that answers and the one that writes used for it.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    run: Run,
    cpu_seconds: Option<f64>,
    resident_bytes: Option<u64>,
    written_bytes: Option<u64>,
}

impl From<Run> for Measured {
    fn from(run: Run) -> Self {
        Self { run, cpu_seconds: None, resident_bytes: None, written_bytes: None }
    }
}

fn watched(subject: &Subject<'_>) -> Measured {
    let server = || subject.server.map(|server| server.process.usage());
    let disk = || subject.disk.map(|disk| disk.process.usage());
    let before = (server(), disk());
    let run = (subject.run)(SECONDS);
    let after = (server(), disk());
    Measured {
        run,
        cpu_seconds: before.0.zip(after.0).map(|(before, after)| after.cpu_seconds - before.cpu_seconds),
        resident_bytes: after.0.map(|after| after.resident_bytes),
        written_bytes: before
            .1
            .zip(after.1)
            .map(|(before, after)| after.written_bytes - before.written_bytes),
    }
}

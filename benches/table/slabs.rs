//! Hot limits on TigerBeetle beside the memory ledger: what a round trip that isn't made is worth. Each in one run.

use std::thread::sleep;
use std::time::Duration;

use super::load::{self, Run, Shape};
use super::process::{self, Server, TigerBeetle};
use super::report::Row;
use super::{SECONDS, SHAPES, Subject, Table, WIDEST, load_name};

const MEMORY: &str = "memory, beside slabs";
const SLABS: &str = "slabs";

/// Few enough that each of them is warm at the rate.
const WARM_TENANTS: u64 = 100;
const WARM_RATE: f64 = 1_000.0;

/// So few over so many tenants that none of them has a slab.
const QUIET_RATE: f64 = 200.0;

/// Until it is connected, every answer is an error.
pub(super) const CONNECTED_AFTER: Duration = Duration::from_secs(3);

/// What TigerBeetle is asked for, whatever it is.
const ASKS: &str = "sluice_ledger_batch_events_count";

impl Table {
    /// On a server of its own: what is written is what slabs write, and nothing is compacted that others left.
    pub(super) fn slab_rows(&mut self) {
        let tigerbeetle = TigerBeetle::start();
        let memory = Server::start(&mut process::sluice("memory"));
        let uri = format!("tigerbeetle:0@{}", tigerbeetle.address);
        let mut durable = Server::start(&mut process::sluice(&uri));
        let admin = durable.admin();
        sleep(CONNECTED_AFTER);
        let servers = [&memory, &durable];
        let disk = Some(&tigerbeetle);

        let hot = self.memory_and_slabs(&load_name(WIDEST, true), servers, disk, |server, seconds| {
            load::hot(&server.grpc, "one", WIDEST, seconds)
        });
        let ratio = hot[1].ratio.unwrap_or(0.0);
        self.target("slabs, one hot tenant, answers/s, of memory", ">= 0.90", ratio, |n| n >= 0.9);
        if let (Some(memory), Some(slabs)) = (hot[0].p99_ms, hot[1].p99_ms) {
            let name = "slabs, one hot tenant, p99, of memory's";
            self.target(name, "<= 1.30", slabs / memory, |n| n <= 1.3);
        }
        if let Some(bytes) = hot[1].written_bytes {
            let name = "slabs, one hot tenant, bytes written per decision";
            self.target(name, "<= 20", bytes, |n| n <= 20.0);
        }

        let alone = SHAPES[0];
        let rows = self.memory_and_slabs(&load_name(alone, true), servers, disk, |server, seconds| {
            load::hot(&server.grpc, "one", alone, seconds)
        });
        self.p50_target("slabs, one caller at a time, p50 ms above memory's", &rows, "<= 0.05", 0.05);

        let name = format!("{WARM_RATE:.0}/s, {WARM_TENANTS} tenants");
        let rows = self.memory_and_slabs(&name, servers, disk, |server, seconds| {
            let shape = Shape(4, 16);
            load::of_tenants(WARM_TENANTS, &server.grpc, "one", shape, Some(WARM_RATE), seconds)
        });
        let name = format!("slabs, {name}, p50 ms above memory's");
        self.p50_target(&name, &rows, "<= 0.10", 0.1);

        for (limits, limit) in [("second", "100/s"), ("minute", "3,000/min")] {
            let asks = asks_over_the_limit(&durable, &admin, limits);
            // Giving back is counted too, so it is more than what is asked for.
            let name = format!("a tenant over {limit}: requests to TigerBeetle a second");
            self.target(&name, "<= 100", asks, |n| n <= 100.0);
        }

        // Last: making a thousand limits is work for TigerBeetle that goes on for a while.
        load::many(&durable.grpc, "one", WIDEST, None, super::PROVISION_SECONDS);
        let rows = self.memory_and_slabs(&load_name(WIDEST, false), servers, disk, |server, seconds| {
            load::many(&server.grpc, "one", WIDEST, None, seconds)
        });
        let ratio = rows[1].ratio.unwrap_or(0.0);
        self.target("slabs, many tenants, answers/s, of memory", ">= 0.80", ratio, |n| n >= 0.8);
        self.quiet_rows(&durable, disk);
    }

    /// Limits that have no slab because nobody asks for them beside those that never have one.
    fn quiet_rows(&mut self, durable: &Server, disk: Option<&TigerBeetle>) {
        load::many(&durable.grpc, "exact", WIDEST, None, super::PROVISION_SECONDS);
        let subject = |name, limits| {
            let run =
                move |seconds| load::many(&durable.grpc, limits, Shape(4, 16), Some(QUIET_RATE), seconds);
            Subject { name, run: Box::new(run), server: Some(durable), disk }
        };
        let load = format!("{QUIET_RATE:.0}/s, many tenants");
        let rows =
            self.together(&load, &[subject("exact: true", "exact"), subject("quiet, without a slab", "one")]);
        self.p50_target("quiet limits, p50 ms above exact ones'", &rows, "<= 0.10", 0.1);
    }

    fn memory_and_slabs(
        &mut self,
        load: &str,
        [memory, durable]: [&Server; 2],
        disk: Option<&TigerBeetle>,
        run: impl Fn(&Server, u64) -> Run,
    ) -> Vec<Row> {
        let run = &run;
        let subject = |name, server, disk| {
            let run = Box::new(move |seconds| run(server, seconds));
            Subject { name, run, server: Some(server), disk }
        };
        self.together(load, &[subject(MEMORY, memory, None), subject(SLABS, durable, disk)])
    }

    fn p50_target(&mut self, name: &str, rows: &[Row], wanted: &str, most_ms: f64) {
        if let (Some(memory), Some(slabs)) = (rows[0].p50_ms, rows[1].p50_ms) {
            self.target(name, wanted, slabs - memory, |n| n <= most_ms);
        }
    }
}

/// Once the limit is spent, as hard as it can be hammered.
fn asks_over_the_limit(server: &Server, admin: &str, limits: &str) -> f64 {
    load::hot(&server.grpc, limits, WIDEST, SECONDS);
    let before = process::metric(admin, ASKS);
    load::hot(&server.grpc, limits, WIDEST, SECONDS * 2);
    (process::metric(admin, ASKS) - before) / (SECONDS * 2) as f64
}

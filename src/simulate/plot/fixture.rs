//! A report for the tests of what is made from one: every list has something, and every name is hostile.

use crate::simulate::report::{
    Difference, Differences, LimitAgainst, LimitPlot, LimitReport, Plots, PopulationReport, Recorded, Report,
    Suggestion, TenantDenials, WaitMs, WaitPlot,
};
use crate::simulate::series::{Use, Waits};

const NAME: &str =
    "</title></text><script>alert(1)</script>\" onload=\"x\" & ' \u{1b}[2J \u{202e} http&#58;//x";

pub(crate) fn hostile() -> Report {
    let name = |what: &str| format!("{what}={NAME}");
    let limit = LimitReport {
        key: name("limit"),
        kind: "rolling",
        capacity: Some(20),
        window_seconds: Some(10),
        timeout_seconds: None,
        admitted: 1_500,
        denied: 1_234,
        peak: 20,
        used: 0.987,
        against: Some(LimitAgainst { capacity: 40, admitted: 2_000, denied: 734, peak: 40 }),
        suggested: Some(Suggestion { capacity: 55, demand_peak: 61 }),
    };
    let used = (0..60u64).map(|n| Use {
        peak: (n % 17 != 3).then_some(10 + (n * 7) % 11),
        denied: if n % 5 == 0 { n } else { 0 },
    });
    let waits =
        (0..60u64).map(|n| Waits { count: n % 4, sum_ms: n % 4 * (n * 40 + 100), max_ms: n * 90 + 300 });
    let waits: Vec<Waits> = waits.collect();
    let difference = Difference {
        at: name("file"),
        time: 12.5,
        code: "OVER_LIMIT",
        against: "OK",
        key: Some(name("limit")),
    };
    Report {
        seed: 1,
        requests: 2_734,
        admitted: 1_500,
        denied: 1_234,
        unmatched: 3,
        broken: 2,
        recorded: Recorded { denied: 1_200, agree: 2_700 },
        limits: vec![limit],
        limits_left_out: 0,
        populations: vec![PopulationReport {
            name: name("population"),
            requests: 1_600,
            attempts: 2_734,
            admitted: 1_500,
            denied: 1_234,
            goodput_per_second: 1.99,
            attempts_per_admission: 1.82,
            returns_per_admission: 0.82,
            wait_ms: WaitMs { mean: 2_345.6, p50: 2_000, p90: 4_500, p99: 6_700, max: 7_000 },
        }],
        differences: Some(Differences {
            denied_only_here: 500,
            denied_only_against: 0,
            requests: vec![difference],
        }),
        plots: Plots {
            start_ms: 1_794_853_800_000,
            span_ms: 59_900,
            bucket_ms: 1_000,
            limits: vec![LimitPlot { key: name("limit"), capacity: 20, used: used.collect() }],
            tenants: (0..5)
                .map(|n| TenantDenials {
                    tenant: format!("{n}{}", name("tenant")),
                    denied: 1_234 >> n,
                    against: Some(734 >> n),
                })
                .collect(),
            waits: vec![
                WaitPlot { population: name("population"), waits: waits.clone() },
                WaitPlot { population: "patient".to_owned(), waits: waits.into_iter().rev().collect() },
            ],
        },
    }
}

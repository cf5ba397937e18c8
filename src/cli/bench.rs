//! `sluice bench`: load on a running server, and how long its answers took.
//!
//! Closed loop by default: each of `--in-flight` callers asks again as soon as it is answered. With `--rate` the loop is
//! open: requests are due at fixed times, and latency counts from the due time, so that a server that falls behind shows.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tonic::transport::Channel;

use super::try_it::request;
use super::{BenchArgs, complain, connect, print_json};
use crate::api::pb;
use crate::clock;
use crate::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

/// What one caller, or all of them, saw.
#[derive(Debug, Default)]
struct Answers {
    micros: Vec<u32>,
    codes: BTreeMap<String, u64>,
}

impl Answers {
    fn add(&mut self, code: String, took: Duration) {
        self.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        *self.codes.entry(code).or_default() += 1;
    }

    fn merge(&mut self, other: Answers) {
        self.micros.extend(other.micros);
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
    }
}

/// When requests are due. Shared by all callers.
struct Schedule {
    start: Instant,
    end: Instant,
    /// Between two requests; `None` for a closed loop.
    gap: Option<Duration>,
    next: AtomicU64,
    /// Requests that are due and not yet taken.
    due: Semaphore,
}

impl Schedule {
    /// The next due time, waited for; `None` when the run is over.
    async fn next(&self) -> Option<Instant> {
        let due = match self.gap {
            None => clock::instant(),
            Some(gap) => {
                self.due.acquire().await.ok()?.forget();
                self.at(gap, self.next.fetch_add(1, Ordering::Relaxed))
            }
        };
        (due < self.end).then_some(due)
    }

    fn at(&self, gap: Duration, n: u64) -> Instant {
        self.start + Duration::from_secs_f64(gap.as_secs_f64() * n as f64)
    }

    /// Says when a request is due. It has a thread of its own: the runtime's timer is only exact to a millisecond, which would be
    /// most of the latency that is measured.
    fn keep_time(&self, gap: Duration) {
        let mut told = 0;
        loop {
            let now = clock::instant();
            let mut news = 0;
            while self.at(gap, told + news) <= now {
                news += 1;
            }
            told += news;
            self.due.add_permits(usize::try_from(news).unwrap_or(0));
            let next = self.at(gap, told);
            if next >= self.end {
                // Whoever waits is told that it is over.
                std::thread::sleep(self.end.saturating_duration_since(clock::instant()));
                return self.due.close();
            }
            std::thread::sleep(next.saturating_duration_since(clock::instant()));
        }
    }
}

pub(super) fn run(args: &BenchArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime");
    match runtime.and_then(|runtime| runtime.block_on(load(args))) {
        Ok((seen, took)) => {
            let report = Report::new(seen, took);
            match args.json {
                true => print_json(&report.as_json()),
                false => report.print(args),
            }
            ExitCode::SUCCESS
        }
        Err(error) => complain(&error),
    }
}

async fn load(args: &BenchArgs) -> anyhow::Result<(Answers, Duration)> {
    let mut channels = Vec::new();
    for _ in 0..args.connections {
        channels.push(connect::grpc(&args.grpc, &args.tls).await?);
    }
    let start = clock::instant();
    let gap = args.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
    let end = start + Duration::from_secs(args.seconds);
    let schedule = Arc::new(Schedule { start, end, gap, next: AtomicU64::new(0), due: Semaphore::new(0) });
    if let Some(gap) = gap {
        let schedule = Arc::clone(&schedule);
        std::thread::spawn(move || schedule.keep_time(gap));
    }
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..args.in_flight {
        let channel = channels[n % channels.len()].clone();
        callers.spawn(caller(args.clone(), channel, Arc::clone(&schedule)));
    }
    let mut seen = Answers::default();
    while let Some(one) = callers.join_next().await {
        seen.merge(one?);
    }
    Ok((seen, start.elapsed()))
}

async fn caller(args: BenchArgs, channel: Channel, schedule: Arc<Schedule>) -> Answers {
    let mut client = RateLimitServiceClient::new(channel);
    let mut seen = Answers::default();
    while let Some(due) = schedule.next().await {
        let answer = client.should_rate_limit(request(&args.domain, &entries(&args), args.hits)).await;
        let code = match answer {
            Ok(response) => response.into_inner().overall_code().as_str_name().to_owned(),
            Err(status) => format!("{:?}", status.code()),
        };
        seen.add(code, due.elapsed());
    }
    seen
}

/// `{}` in a value stands for one of `--keys` numbers.
fn entries(args: &BenchArgs) -> Vec<(String, String)> {
    let number = |value: &str| match value.contains("{}") {
        true => value.replace("{}", &fastrand::u64(..args.keys).to_string()),
        false => value.to_owned(),
    };
    args.entries.iter().map(|(key, value)| (key.clone(), number(value))).collect()
}

/// What is told about a run.
struct Report {
    took: Duration,
    /// Sorted.
    micros: Vec<u32>,
    codes: BTreeMap<String, u64>,
}

impl Report {
    fn new(mut seen: Answers, took: Duration) -> Self {
        seen.micros.sort_unstable();
        Self { took, micros: seen.micros, codes: seen.codes }
    }

    fn answers_per_second(&self) -> f64 {
        self.micros.len() as f64 / self.took.as_secs_f64()
    }

    /// Milliseconds that this part of the answers did not exceed.
    fn at(&self, part: f64) -> f64 {
        let index = ((self.micros.len().max(1) - 1) as f64 * part).round();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of the list")]
        self.micros.get(index as usize).map_or(0.0, |micros| f64::from(*micros) / 1000.0)
    }

    fn as_json(&self) -> Value {
        let latency_ms = json!({
            "p50": self.at(0.5), "p90": self.at(0.9), "p99": self.at(0.99), "p99.9": self.at(0.999),
        });
        json!({
            "answers_per_second": self.answers_per_second(), "latency_ms": latency_ms, "codes": self.codes,
        })
    }

    fn print(&self, args: &BenchArgs) {
        let kind = args.rate.map_or("closed loop".to_owned(), |rate| format!("open loop at {rate}/s"));
        let (connections, in_flight) = (args.connections, args.in_flight);
        println!(
            "{kind}, {connections} connections, {in_flight} in flight, {:.1} s",
            self.took.as_secs_f64()
        );
        println!("answers/s   {:.0}", self.answers_per_second());
        println!(
            "latency ms  p50 {:.3}  p90 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}",
            self.at(0.5),
            self.at(0.9),
            self.at(0.99),
            self.at(0.999),
            self.at(1.0)
        );
        let codes: Vec<String> = self.codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
        println!("codes       {}", codes.join("  "));
        if self.codes.keys().all(|code| code != pb::Code::Ok.as_str_name()) {
            println!("nothing was allowed: is the domain right, and do its limits have room?");
        }
    }
}

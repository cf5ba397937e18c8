//! Load on a gRPC server: h2load, which costs little and sends one body, and `sluice bench`, which sends many and can keep
//! a rate. Both are programs of their own; here they are started and read.

use std::path::PathBuf;
use std::process::Command;

use prost::Message;
use sluice::api::pb;
use sluice::grpc::rls;

/// What came of one run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    pub answers: f64,
    pub per_second: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

/// Connections, and requests in flight on each.
#[derive(Debug, Clone, Copy)]
pub struct Shape(pub usize, pub usize);

/// Tenants that `sluice bench` picks from.
pub const TENANTS: u64 = 1_000;

/// One request of the hot tenant, framed as gRPC does.
pub fn body(limits: &str) -> PathBuf {
    let entry = |key: &str, value: &str| {
        sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        }
    };
    let descriptor =
        pb::RateLimitDescriptor { entries: vec![entry(limits, "tenant-00042")], ..Default::default() };
    let message =
        pb::RateLimitRequest { domain: "bench".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
    let message = message.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let path = super::process::directory().join(format!("{limits}.bin"));
    std::fs::write(&path, framed).unwrap();
    path
}

fn h2load(url: &str, limits: &str, Shape(connections, streams): Shape) -> Command {
    let mut command = Command::new("h2load");
    command.args(["-t1", "-c", &connections.to_string(), "-m", &streams.to_string()]);
    command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    command.arg("-d").arg(body(limits)).arg(format!("{url}{}", rls::PATH));
    command
}

fn output(command: &mut Command) -> String {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: run it as `make bench`"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The number in front of `unit`.
fn number_before(text: &str, unit: &str) -> f64 {
    let before = text.split(unit).next().unwrap_or_default();
    let number = before.rsplit([' ', '\n']).find(|word| !word.is_empty()).unwrap_or_default();
    number.parse().unwrap_or_else(|_| panic!("no number before `{unit}` in {text}"))
}

/// One hot tenant, closed loop.
pub fn hot(grpc: &str, limits: &str, shape: Shape, seconds: u64) -> Run {
    hot_at(&format!("http://{grpc}"), limits, shape, seconds)
}

/// The same at a URL. h2load takes every certificate.
pub fn hot_at(url: &str, limits: &str, shape: Shape, seconds: u64) -> Run {
    // It prints the mean only; its log has a line for each request. It appends to what is there.
    let log = super::process::directory().join("h2load.log");
    let _ = std::fs::remove_file(&log);
    let mut command = h2load(url, limits, shape);
    let text = output(command.args(["-D", &seconds.to_string(), &format!("--log-file={}", log.display())]));
    assert!(text.contains(" 0 failed, 0 errored, 0 timeout"), "{text}");
    let answers = number_before(&text, " succeeded");
    let mut times = times_ms(&std::fs::read_to_string(&log).unwrap());
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied();
    Run { answers, per_second: answers / seconds as f64, p50_ms: at(0.5), p99_ms: at(0.99) }
}

/// Each line: when it began, the status, and how many microseconds it took.
fn times_ms(log: &str) -> Vec<f64> {
    let took = |line: &str| line.split('\t').nth(2)?.parse::<f64>().ok();
    log.lines().filter_map(took).map(|micros| micros / 1e3).collect()
}

/// Exactly so many requests of one hot tenant.
pub fn count(grpc: &str, limits: &str, requests: u64) {
    // One at a time: how many come in one read is up to the machine.
    let text =
        output(h2load(&format!("http://{grpc}"), limits, Shape(1, 1)).args(["-n", &requests.to_string()]));
    assert!(text.contains(&format!("{requests} succeeded")), "{text}");
}

/// Many tenants; closed loop, or open at a rate.
pub fn many(grpc: &str, limits: &str, shape: Shape, rate: Option<f64>, seconds: u64) -> Run {
    of_tenants(TENANTS, grpc, limits, shape, rate, seconds)
}

/// So many of them.
pub fn of_tenants(
    tenants: u64,
    grpc: &str,
    limits: &str,
    Shape(connections, streams): Shape,
    rate: Option<f64>,
    seconds: u64,
) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["bench", "--grpc", grpc, "--connections", &connections.to_string()]);
    command.args(["--in-flight", &(connections * streams).to_string(), "--seconds", &seconds.to_string()]);
    command.args(["--keys", &tenants.to_string()]);
    if let Some(rate) = rate {
        command.args(["--rate", &format!("{rate:.0}")]);
    }
    command.args(["bench", &format!("{limits}={{}}")]);
    let text = output(&mut command);
    let codes = text.lines().find_map(|line| line.strip_prefix("codes")).unwrap_or_default().trim();
    let answers = codes.strip_prefix("OK ").and_then(|count| count.parse().ok());
    let answers = answers.unwrap_or_else(|| panic!("not everything was allowed: {text}"));
    let after = |word: &str| {
        let rest = text.split(word).nth(1).unwrap_or_default();
        rest.split_whitespace().next().and_then(|number| number.parse().ok())
    };
    Run { answers, per_second: after("answers/s").unwrap(), p50_ms: after("p50 "), p99_ms: after("p99 ") }
}

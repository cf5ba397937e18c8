//! The submitter against the bare client library, on a real TigerBeetle server in production mode, in one run.
//!
//! Both columns are measured here, one after the other and twice, so that only their ratio is worth reading.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark reads the clock and stops on errors"
)]

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice::ledger::tigerbeetle::{Cluster, Options, TigerBeetle, TransferIds};
use sluice::ledger::{Action, Chain, Hold, Keep, Transfer, Verdict, Want};
use sluice::limit::{Account, LeaseId, LimitKey, Overage};
use sluice::telemetry::Metrics;
use tigerbeetle_unofficial as tb;

const CALLERS: usize = 512;
const LIMITS: usize = 1_000;
const CAPACITY: u64 = 1 << 40;
const ROUND: Duration = Duration::from_secs(4);
const ROUNDS: usize = 3;

struct Server {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let binary = std::env::var_os("SLUICE_TEST_TIGERBEETLE").expect("run it as `make bench`");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("0_0.tigerbeetle");
        let format = ["format", "--cluster=0", "--replica=0", "--replica-count=1"];
        assert!(
            Command::new(&binary).args(format).arg(&file).stderr(Stdio::null()).status().unwrap().success()
        );
        let mut child = Command::new(&binary)
            .args(["start", "--addresses=0"])
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap(), _dir: dir }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let server = Server::start();
    let address = format!("127.0.0.1:{}", server.port);
    let options = Options {
        cluster: Cluster { id: 0, addresses: vec![address.clone()] },
        transfer_ids: TransferIds::TimeOrdered,
        timeout: Duration::from_secs(10),
        queue_max: 65_536,
        sums: true,
        events: None,
    };
    let ledger = TigerBeetle::start(options, Arc::new(Metrics::default()));
    while ledger.ready().is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let accounts: Arc<Vec<Arc<Account>>> =
        Arc::new((0..LIMITS).map(|n| Arc::new(Account::new(LimitKey::new(&format!("bench:{n}"))))).collect());
    let wants = accounts.iter().map(|account| Want {
        account: Arc::clone(account),
        capacity: CAPACITY,
        overage: Overage::Deny,
    });
    ledger.provision(wants.collect(), Duration::from_secs(60)).await.unwrap();
    let client = Arc::new(tb::Client::new(0, &address).unwrap());

    println!("two-limit chains, {LIMITS} limits, production mode, {} s a cell", ROUND.as_secs());
    println!("{:<28}{:>14}{:>14}{:>9}", "", "bare client", "submitter", "ratio");
    for round in 0..ROUNDS {
        let bare = closed_loop(CALLERS, |n| bare(Arc::clone(&client), Arc::clone(&accounts), n)).await;
        let ours = closed_loop(CALLERS, |n| submitted(ledger.clone(), Arc::clone(&accounts), n)).await;
        row(&format!("{CALLERS} callers, chains/s #{round}"), bare.per_second, ours.per_second);
        row("    p50 ms", bare.p50_ms, ours.p50_ms);
        row("    p99 ms", bare.p99_ms, ours.p99_ms);
    }
    for round in 0..ROUNDS {
        let bare = closed_loop(1, |n| bare(Arc::clone(&client), Arc::clone(&accounts), n)).await;
        let ours = closed_loop(1, |n| submitted(ledger.clone(), Arc::clone(&accounts), n)).await;
        row(&format!("1 caller, p50 ms #{round}"), bare.p50_ms, ours.p50_ms);
        println!("{:<28}{:>42.3} ms", "    p50 difference", ours.p50_ms - bare.p50_ms);
    }
}

fn row(name: &str, bare: f64, ours: f64) {
    println!("{name:<28}{bare:>14.2}{ours:>14.2}{:>9.2}", ours / bare);
}

struct Result {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Each caller asks again as soon as it is answered.
async fn closed_loop<F: Future<Output = Vec<f64>> + Send + 'static>(
    callers: usize,
    call: impl Fn(usize) -> F,
) -> Result {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    (0..callers).for_each(|n| drop(tasks.spawn(call(n))));
    let mut times: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
    let seconds = started.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] * 1e3;
    Result { per_second: times.len() as f64 / seconds, p50_ms: at(0.5), p99_ms: at(0.99) }
}

fn pair(random: &mut fastrand::Rng) -> (usize, usize) {
    let first = random.usize(..LIMITS);
    (first, (first + 1 + random.usize(..LIMITS - 1)) % LIMITS)
}

async fn bare(client: Arc<tb::Client>, accounts: Arc<Vec<Arc<Account>>>, n: usize) -> Vec<f64> {
    let operator = sluice::limit::id::digest_id(&["acct:operator"]);
    let mut random = fastrand::Rng::with_seed(n as u64);
    let mut times = Vec::new();
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        let (first, second) = pair(&mut random);
        let transfer = |limit: usize, flags| {
            tb::Transfer::new(tb::id())
                .with_debit_account_id(accounts[limit].id)
                .with_credit_account_id(operator)
                .with_ledger(1)
                .with_code(1)
                .with_amount(1)
                .with_timeout(3600)
                .with_flags(tb::transfer::Flags::PENDING | flags)
        };
        let chain = vec![
            transfer(first, tb::transfer::Flags::LINKED),
            transfer(second, tb::transfer::Flags::empty()),
        ];
        let started = Instant::now();
        client.create_transfers(chain).await.unwrap();
        times.push(started.elapsed().as_secs_f64());
    }
    times
}

async fn submitted(ledger: TigerBeetle, accounts: Arc<Vec<Arc<Account>>>, n: usize) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(n as u64);
    let mut times = Vec::new();
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        let (first, second) = pair(&mut random);
        let transfer = |limit: usize| Transfer {
            account: Arc::clone(&accounts[limit]),
            action: Action::Reserve(Hold {
                amount: 1,
                lifetime_seconds: NonZeroU32::new(3600).unwrap(),
                capacity: CAPACITY,
            }),
        };
        let started = Instant::now();
        let lease = LeaseId::fresh(sluice::clock::unix_ms(), fastrand::u128(..));
        let chain =
            Chain { lease, keep: Keep::Nothing, transfers: vec![transfer(first), transfer(second)].into() };
        let outcome = ledger.apply(chain, Duration::from_secs(10)).await.unwrap();
        assert_eq!(outcome.verdict, Verdict::Done);
        times.push(started.elapsed().as_secs_f64());
    }
    times
}

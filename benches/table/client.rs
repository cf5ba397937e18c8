//! The other ceiling: TigerBeetle's client library with as many tasks as there are requests in flight, and the submitter
//! beside it. In this process, so no gRPC is in the way.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice::ledger::tigerbeetle::{Cluster, Options, TigerBeetle, TransferIds};
use sluice::ledger::{Account, Action, Chain, Hold, Keep, Ledger, Transfer, Verdict, Want};
use sluice::limit::{LeaseId, LimitKey, Overage};
use sluice::telemetry::Metrics;
use tigerbeetle_unofficial as tb;
use tokio::sync::Semaphore;

use super::load::{Run, TENANTS};

const CAPACITY: u64 = 1 << 40;
const WINDOW_SECONDS: u32 = 60;
const PATIENCE: Duration = Duration::from_secs(60);

/// One way to reserve two limits.
#[derive(Clone)]
pub enum Caller {
    Bare(Arc<tb::Client>),
    Submitter(TigerBeetle),
}

/// Pairs of limits, each of one tenant.
pub struct Clients {
    address: String,
    accounts: Arc<Vec<[Arc<Account>; 2]>>,
}

impl Clients {
    /// With everything made and funded.
    pub async fn new(address: &str) -> Self {
        let account = |n: u64, name| Arc::new(Account::new(LimitKey::new(&format!("client:{n}:{name}"))));
        let accounts: Vec<_> = (0..TENANTS).map(|n| [account(n, "a"), account(n, "b")]).collect();
        let clients = Self { address: address.to_owned(), accounts: Arc::new(accounts) };
        let ledger = clients.ledger(true).await;
        let want = |account: &Arc<Account>| Want {
            account: Arc::clone(account),
            capacity: CAPACITY,
            overage: Overage::Deny,
            lifetime_seconds: NonZeroU32::new(WINDOW_SECONDS).unwrap(),
        };
        let wants = clients.accounts.iter().flatten().map(want).collect();
        ledger.provision_within(wants, PATIENCE).await.unwrap();
        ledger.close().await;
        clients
    }

    async fn ledger(&self, sums: bool) -> TigerBeetle {
        let options = Options {
            cluster: Cluster { id: 0, addresses: vec![self.address.clone()] },
            transfer_ids: TransferIds::TimeOrdered,
            timeout: PATIENCE,
            queue_max: 65_536,
            sums,
            events: None,
        };
        let ledger = TigerBeetle::start(options, Arc::new(Metrics::default())).unwrap();
        while ledger.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ledger
    }

    pub async fn submitter(&self, sums: bool) -> Caller {
        Caller::Submitter(self.ledger(sums).await)
    }

    pub fn bare(&self) -> Caller {
        Caller::Bare(Arc::new(tb::Client::new(0, &self.address).unwrap()))
    }

    /// `tasks` callers over the first `tenants`; each asks again at once, or takes what is due next at `rate`.
    pub async fn run(
        &self,
        caller: &Caller,
        tasks: usize,
        tenants: u64,
        rate: Option<f64>,
        seconds: u64,
    ) -> Run {
        let started = Instant::now();
        let turns =
            Arc::new(Turns { started, end: started + Duration::from_secs(seconds), ..Turns::new(rate) });
        if rate.is_some() {
            let turns = Arc::clone(&turns);
            std::thread::spawn(move || turns.keep_time());
        }
        let mut running = tokio::task::JoinSet::new();
        for n in 0..tasks {
            let (caller, accounts, turns) = (caller.clone(), Arc::clone(&self.accounts), Arc::clone(&turns));
            running.spawn(async move {
                let mut random = fastrand::Rng::with_seed(n as u64);
                let mut times = Vec::new();
                while let Some(due) = turns.next().await {
                    let pair = &accounts[usize::try_from(random.u64(..tenants)).unwrap()];
                    caller.reserve(pair).await;
                    times.push(due.elapsed().as_secs_f64() * 1e3);
                }
                times
            });
        }
        let mut times: Vec<f64> = running.join_all().await.into_iter().flatten().collect();
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied();
        let answers = times.len() as f64;
        let per_second = answers / started.elapsed().as_secs_f64();
        Run { answers, per_second, p50_ms: at(0.5), p99_ms: at(0.99) }
    }
}

impl Caller {
    async fn reserve(&self, pair: &[Arc<Account>; 2]) {
        match self {
            Self::Bare(client) => client.create_transfers(bare_chain(pair)).await.unwrap(),
            Self::Submitter(ledger) => {
                let hold = Hold {
                    amount: 1,
                    lifetime_seconds: NonZeroU32::new(WINDOW_SECONDS).unwrap(),
                    capacity: CAPACITY,
                    is_exact: true,
                    overage: Overage::Deny,
                };
                let transfer = |account: &Arc<Account>| Transfer {
                    account: Arc::clone(account),
                    action: Action::Reserve(hold),
                };
                let lease = LeaseId::fresh(sluice::clock::unix_ms(), fastrand::u128(..));
                let chain =
                    Chain { lease, keep: Keep::Nothing, transfers: pair.iter().map(transfer).collect() };
                assert_eq!(ledger.apply_within(&chain, PATIENCE).await.unwrap().verdict, Verdict::Done);
            }
        }
    }

    pub async fn close(self) {
        if let Self::Submitter(ledger) = self {
            ledger.close().await;
        }
    }
}

/// When requests are due, as `sluice bench` does it.
struct Turns {
    started: Instant,
    end: Instant,
    rate: Option<f64>,
    next: AtomicU64,
    due: Semaphore,
}

impl Turns {
    fn new(rate: Option<f64>) -> Self {
        let now = Instant::now();
        Self { started: now, end: now, rate, next: AtomicU64::new(0), due: Semaphore::new(0) }
    }

    async fn next(&self) -> Option<Instant> {
        let due = match self.rate {
            None => Instant::now(),
            Some(rate) => {
                self.due.acquire().await.ok()?.forget();
                self.at(rate, self.next.fetch_add(1, Ordering::Relaxed))
            }
        };
        (due < self.end).then_some(due)
    }

    fn at(&self, rate: f64, n: u64) -> Instant {
        self.started + Duration::from_secs_f64(n as f64 / rate)
    }

    fn keep_time(&self) {
        let Some(rate) = self.rate else { return };
        let mut told = 0;
        while Instant::now() < self.end {
            let due = (self.started.elapsed().as_secs_f64() * rate) as u64 + 1;
            self.due.add_permits(usize::try_from(due - told).unwrap());
            told = due;
            std::thread::sleep(self.at(rate, told).saturating_duration_since(Instant::now()));
        }
        self.due.close();
    }
}

fn bare_chain(pair: &[Arc<Account>; 2]) -> Vec<tb::Transfer> {
    let operator = sluice::limit::id::digest_id(&["acct:operator"]);
    let transfer = |account: &Arc<Account>, flags| {
        tb::Transfer::new(tb::id())
            .with_debit_account_id(account.id.bits())
            .with_credit_account_id(operator)
            .with_ledger(1)
            .with_code(1)
            .with_amount(1)
            .with_timeout(WINDOW_SECONDS)
            .with_flags(tb::transfer::Flags::PENDING | flags)
    };
    vec![transfer(&pair[0], tb::transfer::Flags::LINKED), transfer(&pair[1], tb::transfer::Flags::empty())]
}

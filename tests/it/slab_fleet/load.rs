//! Callers that never stop asking, and what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::instance::{Instance, admits};
use super::oracle::Admission;
use crate::wait::until;

/// Whoever is denied asks again after this.
const PAUSE: Duration = Duration::from_millis(10);

/// Load on one limit.
pub struct Load {
    seen: Arc<Seen>,
    callers: JoinSet<()>,
}

/// How callers go about it.
#[derive(Debug, Clone, Copy, Default)]
struct Manner {
    /// After a denial.
    pause: Duration,
    /// From the start, and how long a caller waits after an admission then.
    slow_for: Duration,
    gap: Duration,
}

struct Seen {
    began: Instant,
    admissions: Mutex<Vec<Admission>>,
    denied: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

impl Seen {
    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).expect("a test must end")
    }
}

impl Load {
    /// So many callers at each instance.
    pub fn start(instances: &[Instance], asked: &str, callers_each: usize) -> Self {
        Self::run(instances, asked, callers_each, Manner { pause: PAUSE, ..Manner::default() })
    }

    /// What the limit has is spent evenly over the first window, so that it comes back evenly ever after. A limit that was
    /// spent in a rush comes back in a rush, and whether that is used says more of the callers.
    pub fn start_slowly(
        instances: &[Instance],
        asked: &str,
        callers_each: usize,
        window: Duration,
        capacity: u32,
    ) -> Self {
        let callers = u32::try_from(instances.len() * callers_each).expect("they are few");
        let manner = Manner { pause: PAUSE, slow_for: window, gap: window * callers / capacity };
        Self::run(instances, asked, callers_each, manner)
    }

    /// Whoever is denied asks again at once.
    pub fn start_without_pause(instances: &[Instance], asked: &str, callers_each: usize) -> Self {
        Self::run(instances, asked, callers_each, Manner::default())
    }

    fn run(instances: &[Instance], asked: &str, callers_each: usize, manner: Manner) -> Self {
        let seen = Arc::new(Seen {
            began: sluice::clock::instant(),
            admissions: Mutex::default(),
            denied: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let mut callers = JoinSet::new();
        for caller in 0..instances.len() * callers_each {
            let instance = caller % instances.len();
            let (client, seen) = (instances[instance].client.clone(), Arc::clone(&seen));
            let asked = asked.to_owned();
            callers.spawn(async move {
                while !seen.stop.load(Ordering::Relaxed) {
                    let sent_us = seen.now_us();
                    let answer = admits(&client, &asked, None).await;
                    let answered_us = seen.now_us();
                    let missed = match answer {
                        Ok(true) => {
                            let admission = Admission { instance, sent_us, answered_us, units: 1 };
                            seen.admissions.lock().push(admission);
                            if seen.began.elapsed() < manner.slow_for {
                                tokio::time::sleep(manner.gap).await;
                            }
                            continue;
                        }
                        Ok(false) => &seen.denied,
                        // Whether it was admitted is not known, so it is not counted.
                        Err(_) => &seen.failed,
                    };
                    missed.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(manner.pause).await;
                }
            });
        }
        Self { seen, callers }
    }

    pub fn now_us(&self) -> u64 {
        self.seen.now_us()
    }

    pub fn denied(&self) -> u64 {
        self.seen.denied.load(Ordering::Relaxed)
    }

    pub fn failed(&self) -> u64 {
        self.seen.failed.load(Ordering::Relaxed)
    }

    /// Waits for so many more admissions at one instance, or at any.
    pub async fn until_admitted(&self, more: usize, at: Option<usize>, what: &str) {
        let count = || {
            let admissions = self.seen.admissions.lock();
            admissions.iter().filter(|it| at.is_none_or(|instance| it.instance == instance)).count()
        };
        let goal = count() + more;
        until(what, async || match count() {
            enough if enough >= goal => Ok(()),
            count => Err(format!("{count} of {goal} admitted, {} failed", self.failed())),
        })
        .await;
    }

    /// Ends it: everything that was admitted.
    pub async fn finish(mut self) -> Vec<Admission> {
        self.seen.stop.store(true, Ordering::Relaxed);
        while let Some(caller) = self.callers.join_next().await {
            caller.expect("a caller must not fail");
        }
        std::mem::take(&mut *self.seen.admissions.lock())
    }
}

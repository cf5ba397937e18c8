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
                            continue;
                        }
                        Ok(false) => &seen.denied,
                        // Whether it was admitted is not known, so it is not counted.
                        Err(_) => &seen.failed,
                    };
                    missed.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
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

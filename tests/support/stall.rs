//! Whether the machine stood still: a busy host may stop it for seconds, and then nothing here is in time.
//!
//! A thread that only sleeps sees how much longer that took. What is promised within some time is promised without that, and a run whose
//! steps have to follow each other closely says nothing if it failed then. Refuses to know what is tested.

use std::panic::AssertUnwindSafe;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

const NAP: Duration = Duration::from_millis(20);

/// Less than that is what any machine with many tests has.
const LEAST: Duration = Duration::from_millis(100);

/// A run is begun again if the machine stood still for so long in it, and so often.
const DISTURBED: Duration = Duration::from_millis(300);
const RUNS_MAX: usize = 4;

/// What the machine has stood still since this was made.
pub struct Stalls(Duration);

impl Stalls {
    pub fn since_now() -> Self {
        Self(total())
    }

    pub fn time(&self) -> Duration {
        total().saturating_sub(self.0)
    }
}

/// Since the first time that somebody asked.
fn total() -> Duration {
    static TOTAL_MS: AtomicU64 = AtomicU64::new(0);
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let before = sluice::clock::instant();
                std::thread::sleep(NAP);
                let longer = before.elapsed().saturating_sub(NAP);
                if longer >= LEAST {
                    let longer_ms = u64::try_from(longer.as_millis()).unwrap_or(u64::MAX);
                    TOTAL_MS.fetch_add(longer_ms, Ordering::Relaxed);
                }
            }
        });
    });
    Duration::from_millis(TOTAL_MS.load(Ordering::Relaxed))
}

/// Runs it with the number of the run. It is run again if it panics and the machine stood still meanwhile.
pub async fn steadily(mut run: impl AsyncFnMut(usize)) {
    for number in 1.. {
        let stalls = Stalls::since_now();
        let Err(panic) = AssertUnwindSafe(run(number)).catch_unwind().await else { return };
        // The thread that sees it may have stood still as well.
        tokio::time::sleep(NAP * 3).await;
        if number == RUNS_MAX || stalls.time() < DISTURBED {
            std::panic::resume_unwind(panic);
        }
        println!("the machine stood still for {:?}; this is run again", stalls.time());
    }
}

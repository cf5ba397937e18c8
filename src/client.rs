//! A caller that doesn't make an outage worse: what to retry, how long to wait, how to say that it is a retry.
//!
//! For applications that call through Envoy or a gateway. [`Rules::next`] decides and is pure; [`retrying`] is the
//! loop around it. Knows no HTTP client: the caller sends, sleeps and brings the random numbers, so any client will do. See
//! `examples/retrying_client.rs` for one, docs/retries.md for the rules in words.

pub mod outcome;
pub mod rules;

use std::time::Duration;

pub use outcome::Outcome;
pub use rules::{Next, Repeat, Rules, Stop};

/// Says which retry of a request this is. An Envoy route hands it on as the descriptor entry `retry_attempt`, which is
/// what the retry budget counts.
pub const RETRY_ATTEMPT_HEADER: &str = "x-retry-attempt";

/// Marks attempt `n`; the original (0) carries no mark.
pub fn mark(headers: &mut http::HeaderMap, attempt: u32) {
    if attempt > 0 {
        headers.insert(RETRY_ATTEMPT_HEADER, attempt.into());
    }
}

/// Sends until there is nothing to gain. `attempt` gets the number of the attempt, from 0, and returns what became of
/// it with whatever the caller wants back of the last one; `rand(n)` is a number in `0..=n`.
pub async fn retrying<T>(
    rules: &Rules,
    repeat: Repeat,
    mut attempt: impl AsyncFnMut(u32) -> (Outcome, T),
    mut sleep: impl AsyncFnMut(Duration),
    mut rand: impl FnMut(u64) -> u64,
) -> (T, Stop) {
    let mut number = 0;
    loop {
        let (outcome, last) = attempt(number).await;
        match rules.next(number, outcome, repeat, &mut rand) {
            Next::Wait(wait) => sleep(wait).await,
            Next::Stop(stop) => return (last, stop),
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Outcome = Outcome::answered(429, Some(Duration::from_millis(700)));

    /// Runs a script of outcomes; the waits, the attempts that were sent, and why it ended.
    async fn play(script: &[Outcome]) -> (Vec<u128>, u32, Stop) {
        let mut waits = Vec::new();
        let attempt = async |n: u32| (script[n as usize], n);
        let sleep = async |wait: Duration| waits.push(wait.as_millis());
        let (last, stop) = retrying(&Rules::default(), Repeat::Safe, attempt, sleep, |n| n).await;
        (waits, last + 1, stop)
    }

    #[tokio::test]
    async fn it_waits_the_larger_of_hint_and_backoff_until_it_is_served() {
        let script = [BUSY, Outcome::NotSent, BUSY, Outcome::answered(200, None)];
        // Backoff at its most is 300, 600, 1200.
        assert_eq!(play(&script).await, (vec![700, 600, 1200], 4, Stop::Answered));
    }

    #[tokio::test]
    async fn it_gives_up_after_four_attempts_and_surfaces_the_last() {
        assert_eq!(play(&[BUSY; 9]).await, (vec![700, 700, 1200], 4, Stop::AttemptsUsed));
    }

    #[tokio::test]
    async fn the_loop_can_run_in_a_task() {
        let attempt = async |n: u32| (Outcome::answered(200, None), n);
        let task = async move {
            let rules = Rules::default();
            retrying(&rules, Repeat::Safe, attempt, tokio::time::sleep, |n| fastrand::u64(0..=n)).await
        };
        assert_eq!(tokio::spawn(task).await.unwrap(), (0, Stop::Answered));
    }

    #[test]
    fn only_retries_are_marked() {
        let mut headers = http::HeaderMap::new();
        mark(&mut headers, 0);
        assert!(headers.is_empty());
        mark(&mut headers, 1);
        mark(&mut headers, 2);
        assert_eq!(headers.get_all("x-retry-attempt").iter().collect::<Vec<_>>(), ["2"]);
    }
}

//! Waiting for a condition: asked again and again up to a deadline, and the last "not yet" is told.

use std::time::Duration;

/// Far above what anything here takes, so that a slow machine is not a failure.
const DEADLINE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(10);

/// What `ask` finds, once it does. `Err` is "not yet", and why.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let start = sluice::clock::instant();
    loop {
        match ask().await {
            Ok(found) => return found,
            Err(not_yet) if start.elapsed() > DEADLINE => panic!("{what}: not in {DEADLINE:?}: {not_yet}"),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

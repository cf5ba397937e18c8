//! Overviews that all who look at the page share: each is made at most once a second, and none when nobody looks.
//!
//! To make one, all limits are gone through. One is made at a time, so that those who look can't take more than that of the
//! machine, however many they are and whatever they look at. Refuses to know what is in an overview.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tokio::sync::Mutex;

use crate::clock;

const SECOND_MS: u64 = 1_000;

/// Timers and the clock may differ by this much, and a look must come after its second has begun.
const AFTER_MS: u64 = 5;

/// The overviews of this second, by what is looked at. They are as many as there are viewers at most.
#[derive(Debug, Default)]
pub(super) struct Overviews {
    /// One of tokio's, because an overview is made under it.
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    /// Counted from the clock's beginning.
    second: u64,
    texts: AHashMap<String, Arc<str>>,
}

impl Overviews {
    /// The overview of this second; the first who wants it makes it.
    pub(super) async fn get(&self, prefix: &str, make: impl Future<Output = String>) -> Arc<str> {
        let mut made = self.made.lock().await;
        let second = clock::monotonic_ms() / SECOND_MS;
        if made.second != second {
            *made = Made { second, texts: AHashMap::new() };
        }
        if let Some(text) = made.texts.get(prefix) {
            return Arc::clone(text);
        }
        let text: Arc<str> = make.await.into();
        made.texts.insert(prefix.to_owned(), Arc::clone(&text));
        text
    }
}

/// Returns when the next second has begun. All who look wait for the same moment, and then share what is made.
pub(super) async fn next_second() {
    let left_ms = SECOND_MS - clock::monotonic_ms() % SECOND_MS;
    tokio::time::sleep(Duration::from_millis(left_ms + AFTER_MS)).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn all_who_look_share_what_is_made_once_a_second() {
        let (overviews, made) = (Overviews::default(), AtomicUsize::new(0));
        let look = async |prefix: &'static str| {
            let make = async {
                tokio::task::yield_now().await;
                format!("{prefix} {}", made.fetch_add(1, Ordering::Relaxed))
            };
            overviews.get(prefix, make).await
        };
        next_second().await;
        let seen = join_all((0..100).map(|_| look("a"))).await;
        assert!(seen.iter().all(|text| **text == *"a 0"), "{seen:?}");
        assert_eq!(*look("b").await, *"b 1");
        assert_eq!(*look("a").await, *"a 0");
        next_second().await;
        assert_eq!(*look("a").await, *"a 2", "it is another second");
        assert_eq!(overviews.made.lock().await.texts.len(), 1, "what nobody looks at is forgotten");
    }
}

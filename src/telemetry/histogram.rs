//! A histogram that every decision may count into: atomic buckets in shards, so that no thread waits for another.
//!
//! The metrics library's own takes one lock for all threads. What is printed is the same text. Refuses to know what is
//! measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Threads that count at the same time without touching each other's memory. More threads than this share.
const SHARDS: usize = 16;

/// Counts values by size. A clone counts into the same buckets.
#[derive(Debug, Clone)]
pub(crate) struct Histogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Rising; a value belongs to the first bucket whose bound it doesn't exceed. The last one is infinity.
    bounds: Box<[f64]>,
    shards: [Shard; SHARDS],
}

/// Aligned to two cache lines, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    /// As many as there are bounds.
    counts: Box<[AtomicU64]>,
    /// The bits of an f64.
    sum: AtomicU64,
}

impl Histogram {
    /// With these upper bounds, which must rise, and one for all that is above.
    pub(crate) fn new(bounds: impl IntoIterator<Item = f64>) -> Self {
        let bounds: Box<[f64]> = bounds.into_iter().chain([f64::INFINITY]).collect();
        debug_assert!(bounds.is_sorted(), "bounds must rise: {bounds:?}");
        let counts = || bounds.iter().map(|_| AtomicU64::new(0)).collect();
        let shards = std::array::from_fn(|_| Shard { counts: counts(), sum: AtomicU64::new(0) });
        Self(Arc::new(Inner { bounds, shards }))
    }

    /// Counts a value. Infinity counts as the largest number; what is no number is not counted.
    pub(crate) fn observe(&self, value: f64) {
        if value.is_nan() {
            return;
        }
        let value = value.min(f64::MAX);
        let Inner { bounds, shards } = &*self.0;
        let shard = &shards[own_shard()];
        let bucket = bounds.partition_point(|bound| *bound < value);
        shard.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let mut bits = shard.sum.load(Ordering::Relaxed);
        loop {
            let sum = (f64::from_bits(bits) + value).to_bits();
            match shard.sum.compare_exchange_weak(bits, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => bits = changed,
            }
        }
    }

    /// The sum of all values, and each bound with the count of its bucket.
    fn read(&self) -> (f64, Vec<(f64, u64)>) {
        let Inner { bounds, shards } = &*self.0;
        let count = |n: usize| shards.iter().map(|shard| shard.counts[n].load(Ordering::Relaxed)).sum();
        let buckets = bounds.iter().enumerate().map(|(n, bound)| (*bound, count(n))).collect();
        let sum = shards.iter().map(|shard| f64::from_bits(shard.sum.load(Ordering::Relaxed))).sum();
        (sum, buckets)
    }
}

/// Every thread gets the next shard when it first counts, and keeps it.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    SHARD.with(|shard| *shard)
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (sum, buckets) = self.read();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::histogram::{self, exponential_buckets};
    use prometheus_client::registry::Registry;

    use super::*;

    fn printed(metric: impl prometheus_client::registry::Metric) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register("h", "Help", metric);
        encode(&mut text, &registry).unwrap();
        text
    }

    /// The text is that of the library's own histogram, for values on, between and beyond the bounds.
    #[test]
    fn what_is_printed_is_what_the_library_prints() {
        let bounds = || exponential_buckets(1.0, 2.0, 5);
        let (ours, theirs) = (Histogram::new(bounds()), histogram::Histogram::new(bounds()));
        assert_eq!(printed(ours.clone()), printed(theirs.clone()), "before the first value");
        for value in [0.0, -3.0, 0.5, 1.0, 1.0, 1.5, 2.0, 15.75, 16.0, 17.0, 1e9] {
            ours.observe(value);
            theirs.observe(value);
        }
        assert_eq!(printed(ours.clone()), printed(theirs));
        assert!(printed(ours).contains("h_bucket{le=\"+Inf\"} 11\n"));
    }

    #[test]
    fn what_is_no_number_spoils_nothing() {
        let histogram = Histogram::new([1.0]);
        [f64::NAN, f64::INFINITY, 0.5].iter().for_each(|value| histogram.observe(*value));
        let (sum, buckets) = histogram.read();
        assert_eq!((sum, buckets), (f64::MAX, vec![(1.0, 1), (f64::INFINITY, 1)]));
    }

    /// More threads than shards, so that some share one.
    #[test]
    fn threads_lose_nothing() {
        let histogram = Histogram::new([1.0, 2.0]);
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 4 {
                scope.spawn(|| (0..3_000).for_each(|n| histogram.observe(f64::from(n % 3) + 0.5)));
            }
        });
        let each = 1_000 * (SHARDS as u64 + 4);
        let (sum, buckets) = histogram.read();
        assert_eq!(buckets, [(1.0, each), (2.0, each), (f64::INFINITY, each)]);
        assert_eq!(sum, each as f64 * 4.5);
    }
}

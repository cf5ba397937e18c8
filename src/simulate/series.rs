//! What happens over time, in a bounded number of buckets: when they are full, two become one. So the first minute and the first
//! year of a log take the same memory.

/// Buckets of one series at most: as many as a plot can show.
const BUCKETS_MAX: usize = 128;

/// The length of a bucket before any two became one.
const FIRST_BUCKET_MS: u64 = 100;

/// What a bucket holds.
pub(super) trait Bucket: Copy + Default {
    /// Two buckets that follow one another, as one.
    fn merged(self, next: Self) -> Self;
}

/// The most that was used of a limit at once. `None`: nobody asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    pub peak: Option<u64>,
    pub denied: u64,
}

/// Clients that were admitted, and how long they had waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    pub count: u64,
    pub sum_ms: u64,
    pub max_ms: u64,
}

impl Bucket for Use {
    fn merged(self, next: Self) -> Self {
        Self { peak: self.peak.max(next.peak), denied: self.denied + next.denied }
    }
}

impl Bucket for Waits {
    fn merged(self, next: Self) -> Self {
        Self {
            count: self.count + next.count,
            sum_ms: self.sum_ms + next.sum_ms,
            max_ms: self.max_ms.max(next.max_ms),
        }
    }
}

/// How long the buckets of all series are, and where the first begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) start_ms: u64,
    pub(super) bucket_ms: u64,
}

impl Scale {
    pub(super) fn new(start_ms: u64) -> Self {
        Self { start_ms, bucket_ms: FIRST_BUCKET_MS }
    }

    /// Makes the buckets long enough for `now_ms`.
    pub(super) fn reach(&mut self, now_ms: u64) {
        while now_ms.saturating_sub(self.start_ms) / self.bucket_ms >= BUCKETS_MAX as u64 {
            self.bucket_ms = self.bucket_ms.saturating_mul(2);
        }
    }
}

/// One series. It catches up with its scale when something is put into it.
#[derive(Debug, Clone, Default)]
pub(super) struct Series<B> {
    buckets: Vec<B>,
    /// The scale that its buckets have; 0 before the first.
    bucket_ms: u64,
}

impl<B: Bucket> Series<B> {
    /// The bucket of `now_ms`, which the scale must reach.
    pub(super) fn at(&mut self, scale: &Scale, now_ms: u64) -> &mut B {
        self.rescale(scale);
        let place = now_ms.saturating_sub(scale.start_ms) / scale.bucket_ms;
        let place = usize::try_from(place).unwrap_or(usize::MAX).min(BUCKETS_MAX - 1);
        if self.buckets.len() <= place {
            self.buckets.resize(place + 1, B::default());
        }
        &mut self.buckets[place]
    }

    /// All of it, in buckets of this scale.
    pub(super) fn finish(mut self, scale: &Scale) -> Vec<B> {
        self.rescale(scale);
        self.buckets
    }

    fn rescale(&mut self, scale: &Scale) {
        if self.bucket_ms == 0 {
            self.bucket_ms = scale.bucket_ms;
        }
        while self.bucket_ms < scale.bucket_ms {
            let pairs = self.buckets.chunks(2);
            let merged = pairs.map(|pair| pair.iter().copied().reduce(B::merged).unwrap_or_default());
            self.buckets = merged.collect();
            self.bucket_ms = self.bucket_ms.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_takes_no_more_buckets_and_loses_nothing() {
        let (mut scale, mut series) = (Scale::new(1_000), Series::<Waits>::default());
        for n in 0..100_000u64 {
            let now_ms = 1_000 + n * 37;
            scale.reach(now_ms);
            let bucket = series.at(&scale, now_ms);
            *bucket = bucket.merged(Waits { count: 1, sum_ms: n, max_ms: n });
        }
        let buckets = series.finish(&scale);
        assert!((64..=128).contains(&buckets.len()), "{}", buckets.len());
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 100_000);
        assert_eq!(buckets.iter().map(|bucket| bucket.sum_ms).sum::<u64>(), 99_999 * 50_000);
        let per_bucket = scale.bucket_ms / 37;
        assert!(buckets[0].count.abs_diff(per_bucket) <= 1, "{} {per_bucket}", buckets[0].count);
        assert_eq!(buckets.last().map(|bucket| bucket.max_ms), Some(99_999));
    }

    #[test]
    fn a_series_that_was_quiet_catches_up() {
        let (mut scale, mut series) = (Scale::new(0), Series::<Use>::default());
        *series.at(&scale, 0) = Use { peak: Some(3), denied: 1 };
        *series.at(&scale, 150) = Use { peak: Some(5), denied: 0 };
        scale.reach(20_000);
        assert_eq!(scale.bucket_ms, 200);
        *series.at(&scale, 20_000) = Use { peak: Some(1), denied: 2 };
        let buckets = series.finish(&scale);
        assert_eq!(buckets.len(), 101);
        assert_eq!(buckets[0], Use { peak: Some(5), denied: 1 });
        assert_eq!(buckets[1], Use::default());
        assert_eq!(buckets[100], Use { peak: Some(1), denied: 2 });
    }
}

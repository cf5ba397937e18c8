//! What is counted per limit: answers, for descriptors that ask for a label of their own (`detailed_metric`), and what limits in
//! shadow mode would have denied.
//!
//! Values come from clients, and limits come and go with the files, so the tables are bounded; what had to make room is counted
//! as `other`. Refuses to know descriptors.

use std::ops::AddAssign;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::bounded::Bounded;

/// Limits with a label of their own.
const LIMITS_MAX: usize = 1_000;

/// Of a LimitKey in a label; the rest is cut.
const LABEL_BYTES_MAX: usize = 256;

/// The label of those that had to make room.
const OTHER: &str = "other";

/// Counts by limit and code. A clone counts into the same table.
#[derive(Debug, Clone)]
pub(super) struct PerLimit(Arc<Mutex<Bounded<Arc<str>, Counts>>>);

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    allowed: u64,
    denied: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
    }
}

type Labels<'a> = [(&'static str, &'a str); 2];

impl Default for PerLimit {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Bounded::new(LIMITS_MAX))))
    }
}

impl PerLimit {
    pub(super) fn count(&self, limit: &str, allowed: bool) {
        let limit = cut(limit);
        let mut table = self.0.lock();
        let counts = table.of(limit, || Arc::from(limit));
        *(if allowed { &mut counts.allowed } else { &mut counts.denied }) += 1;
    }
}

/// All that is printed.
fn labelled(table: &Bounded<Arc<str>, Counts>) -> impl Iterator<Item = (Labels<'_>, u64)> {
    let rows = table.iter().map(|(limit, counts)| (limit.map_or(OTHER, |limit| &**limit), counts));
    rows.flat_map(|(limit, counts)| [(limit, "OK", counts.allowed), (limit, "OVER_LIMIT", counts.denied)])
        .filter(|(_, _, count)| *count > 0)
        .map(|(limit, code, count)| ([("limit", limit), ("code", code)], count))
}

impl EncodeMetric for PerLimit {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (labels, count) in labelled(&self.0.lock()) {
            ConstCounter::new(count).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Denials of limits in shadow mode, by what the limit is called. A clone counts into the same table.
#[derive(Debug, Clone)]
pub(super) struct ShadowDenials(Arc<Mutex<Bounded<Arc<str>, u64>>>);

impl Default for ShadowDenials {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Bounded::new(LIMITS_MAX))))
    }
}

impl ShadowDenials {
    pub(super) fn count(&self, limit: &str) {
        let limit = cut(limit);
        *self.0.lock().of(limit, || Arc::from(limit)) += 1;
    }
}

impl EncodeMetric for ShadowDenials {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (limit, count) in self.0.lock().iter().filter(|(_, count)| **count > 0) {
            let labels = [("limit", limit.map_or(OTHER, |limit| &**limit))];
            ConstCounter::new(*count).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

fn cut(limit: &str) -> &str {
    &limit[..limit.floor_char_boundary(LABEL_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    fn printed<M: EncodeMetric + Clone + std::fmt::Debug + Send + Sync + 'static>(metric: &M) -> Vec<String> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register("l", "Help", metric.clone());
        encode(&mut text, &registry).unwrap();
        text.lines().filter_map(|line| line.strip_prefix("l_total")).map(str::to_owned).collect()
    }

    #[test]
    fn a_limit_has_a_line_for_each_code() {
        let metric = PerLimit::default();
        assert_eq!(printed(&metric), [""; 0]);
        for allowed in [true, true, false] {
            metric.count("a", allowed);
        }
        metric.count("b\"", false);
        assert_eq!(
            printed(&metric),
            [
                r#"{limit="a",code="OK"} 2"#,
                r#"{limit="a",code="OVER_LIMIT"} 1"#,
                r#"{limit="b\"",code="OVER_LIMIT"} 1"#
            ]
        );
    }

    #[test]
    fn shadows_are_counted_by_limit_and_bounded() {
        let metric = ShadowDenials::default();
        assert_eq!(printed(&metric), [""; 0]);
        for limit in ["a", "b", "a"] {
            metric.count(limit);
        }
        assert_eq!(printed(&metric), [r#"{limit="a"} 2"#, r#"{limit="b"} 1"#]);
        (0..LIMITS_MAX * 2).for_each(|n| metric.count(&format!("new-{n}")));
        assert_eq!(printed(&metric).len(), LIMITS_MAX + 1);
    }

    /// The first thousand have no right to stay: those in use do.
    #[test]
    fn the_coldest_makes_room_and_nothing_is_lost() {
        let metric = PerLimit::default();
        (0..LIMITS_MAX).for_each(|n| metric.count(&format!("old-{n}"), true));
        metric.count("old-7", true);
        for n in 0..LIMITS_MAX * 3 {
            metric.count(&format!("new-{n}"), true);
            metric.count("hot", true);
            metric.count("old-7", true);
        }
        let lines = printed(&metric);
        let count = |limit: &str| {
            let start = format!("{{limit=\"{limit}\",code=\"OK\"}} ");
            lines
                .iter()
                .find_map(|line| line.strip_prefix(&start))
                .map(|count| count.parse::<usize>().unwrap())
        };
        assert_eq!((count("hot"), count("old-7")), (Some(LIMITS_MAX * 3), Some(LIMITS_MAX * 3 + 2)));
        assert_eq!((count("old-8"), count(&format!("new-{}", LIMITS_MAX * 3 - 1))), (None, Some(1)));
        assert_eq!(lines.len(), LIMITS_MAX + 1, "as many as fit, and the others together");
        let all: usize =
            lines.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum();
        assert_eq!(all, LIMITS_MAX + 1 + LIMITS_MAX * 9);
    }

    #[test]
    fn a_long_name_is_cut_where_a_letter_ends() {
        let metric = PerLimit::default();
        metric.count(&"ä".repeat(200), true);
        metric.count(&"ä".repeat(300), true);
        assert_eq!(printed(&metric), [format!("{{limit=\"{}\",code=\"OK\"}} 2", "ä".repeat(128))]);
    }
}

//! Answers per limit, for descriptors that ask for a label of their own (`detailed_metric`).
//!
//! Values come from clients, so the table is bounded. When it is full, a limit that nobody has asked for lately makes room;
//! what was counted for it goes to `other`, so that the sum over all limits never falls. Refuses to know descriptors.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Limits with a label of their own.
const LIMITS_MAX: usize = 1_000;

/// Of a LimitKey in a label; the rest is cut.
const LABEL_BYTES_MAX: usize = 256;

/// The label of those that had to make room.
const OTHER: &str = "other";

/// Counts by limit and code. A clone counts into the same table.
#[derive(Debug, Clone, Default)]
pub(super) struct PerLimit(Arc<Mutex<Table>>);

/// Which row makes room is decided as by a clock's hand: it passes rows that were counted into since it last came by, and
/// takes the first that was not. So a limit in use stays, however many new names come along.
#[derive(Debug, Default)]
struct Table {
    index: AHashMap<Arc<str>, usize>,
    rows: Vec<Row>,
    hand: usize,
    other: Counts,
}

#[derive(Debug)]
struct Row {
    limit: Arc<str>,
    counts: Counts,
    /// Counted into since the hand last came by.
    warm: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    allowed: u64,
    denied: u64,
}

impl Counts {
    fn add(&mut self, allowed: bool) {
        *(if allowed { &mut self.allowed } else { &mut self.denied }) += 1;
    }
}

type Labels<'a> = [(&'static str, &'a str); 2];

impl PerLimit {
    pub(super) fn count(&self, limit: &str, allowed: bool) {
        let limit = &limit[..limit.floor_char_boundary(LABEL_BYTES_MAX)];
        self.0.lock().row(limit).counts.add(allowed);
    }
}

impl Table {
    fn row(&mut self, limit: &str) -> &mut Row {
        if let Some(&place) = self.index.get(limit) {
            let row = &mut self.rows[place];
            row.warm = true;
            return row;
        }
        let limit: Arc<str> = Arc::from(limit);
        let new = Row { limit: Arc::clone(&limit), counts: Counts::default(), warm: false };
        let place = if self.rows.len() < LIMITS_MAX {
            self.rows.push(new);
            self.rows.len() - 1
        } else {
            let place = self.coldest();
            let Row { limit, counts, .. } = std::mem::replace(&mut self.rows[place], new);
            self.index.remove(&limit);
            self.other.allowed += counts.allowed;
            self.other.denied += counts.denied;
            place
        };
        self.index.insert(limit, place);
        &mut self.rows[place]
    }

    /// The row that makes room. The hand goes round at most once, because it leaves all rows behind it cold.
    fn coldest(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.rows.len();
            if !std::mem::take(&mut self.rows[place].warm) {
                return place;
            }
        }
    }

    /// All that is printed.
    fn labelled(&self) -> impl Iterator<Item = (Labels<'_>, u64)> {
        let rows = self.rows.iter().map(|row| (&*row.limit, row.counts)).chain([(OTHER, self.other)]);
        rows.flat_map(|(limit, counts)| [(limit, "OK", counts.allowed), (limit, "OVER_LIMIT", counts.denied)])
            .filter(|(_, _, count)| *count > 0)
            .map(|(limit, code, count)| ([("limit", limit), ("code", code)], count))
    }
}

impl EncodeMetric for PerLimit {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (labels, count) in self.0.lock().labelled() {
            ConstCounter::new(count).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }

    fn is_empty(&self) -> bool {
        self.0.lock().rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    fn printed(metric: &PerLimit) -> Vec<String> {
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

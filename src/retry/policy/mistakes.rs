//! What is wrong with a retry policy: every mistake at once, each with the value that was given and what would do.
//!
//! Knows the settings and their bounds; not the file they came from.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::{
    BUDGET_FLOOR_MAX, BUDGET_RATIO_MAX, BUDGET_WINDOW_SECONDS_MAX, Budget, ELAPSED_ROWS_MAX, ElapsedStep,
    FACTOR_MAX, PLACES_MAX, Queue, RetryPolicy, WAIT_MS_MAX, WAIT_SECONDS_MAX,
};
use crate::limit::COMPLETION_ENTRY;

impl RetryPolicy {
    /// Every mistake: the field (`rolling.factor`, `queue.elapsed[2].below_seconds`), and what is wrong with it.
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut mistakes = Mistakes::default();
        let c = &self.concurrency;
        mistakes.curve("concurrency", c.base_ms, c.max_ms, c.factor, c.jitter_ms);
        let r = &self.rolling;
        mistakes.curve("rolling", r.base_ms, r.max_ms, r.factor, r.jitter_ms);
        mistakes.range("rolling.window_fraction", r.window_fraction, 0.0..=1.0);
        mistakes.range("rolling.informed_max_ms", r.informed_max_ms, 1..=WAIT_MS_MAX);
        if r.informed {
            let informed_max = ("informed_max_ms", r.informed_max_ms);
            mistakes.ordered("rolling", ("base_ms", r.base_ms), informed_max);
        }
        mistakes.range("decreasing_ms", self.decreasing_ms, 1..=WAIT_MS_MAX);
        mistakes.queue(&self.queue);
        mistakes.budget(&self.budget);
        mistakes.0
    }
}

#[derive(Default)]
struct Mistakes(Vec<(String, String)>);

impl Mistakes {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push((field.into(), message.into()));
    }

    /// NaN is in no range.
    fn range<N: PartialOrd + Display>(&mut self, field: &str, value: N, allowed: RangeInclusive<N>) {
        if !allowed.contains(&value) {
            self.add(field, format!("is {value}, must be {} to {}", allowed.start(), allowed.end()));
        }
    }

    fn ordered(&mut self, section: &str, (low, a): (&str, u64), (high, b): (&str, u64)) {
        if a > b {
            self.add(
                format!("{section}.{low}"),
                format!("is {a}, above {high}, which is {b}; lower {low} or raise {high}"),
            );
        }
    }

    fn curve(&mut self, section: &str, base_ms: u64, max_ms: u64, factor: f64, jitter_ms: u64) {
        self.range(&format!("{section}.base_ms"), base_ms, 1..=WAIT_MS_MAX);
        self.range(&format!("{section}.max_ms"), max_ms, 1..=WAIT_MS_MAX);
        self.ordered(section, ("base_ms", base_ms), ("max_ms", max_ms));
        self.range(&format!("{section}.factor"), factor, 1.0..=FACTOR_MAX);
        self.range(&format!("{section}.jitter_ms"), jitter_ms, 0..=WAIT_MS_MAX);
    }

    fn queue(&mut self, queue: &Queue) {
        self.range("queue.min_seconds", queue.min_seconds, 1..=WAIT_SECONDS_MAX);
        self.range("queue.max_seconds", queue.max_seconds, 1..=WAIT_SECONDS_MAX);
        self.ordered("queue", ("min_seconds", queue.min_seconds), ("max_seconds", queue.max_seconds));
        self.range("queue.safety_margin", queue.safety_margin, 0.0..=1.0);
        self.range("queue.processing_ms", queue.processing_ms, 0..=WAIT_MS_MAX);
        self.range("queue.confirmation_ms", queue.confirmation_ms, 0..=WAIT_MS_MAX);
        self.range("queue.pickup_seconds", queue.pickup_seconds, 1..=WAIT_SECONDS_MAX);
        self.range("queue.deadline_seconds", queue.deadline_seconds, 1..=WAIT_SECONDS_MAX);
        self.range("queue.places_max", queue.places_max, 0..=PLACES_MAX);
        self.range("queue.places_per_key_max", queue.places_per_key_max, 0..=PLACES_MAX);
        self.range("queue.reserved_share", queue.reserved_share, 0.0..=1.0);
        if let Some(rows) = &queue.elapsed {
            self.elapsed(rows);
        }
    }

    fn elapsed(&mut self, rows: &[ElapsedStep]) {
        let Some((last, closed)) = rows.split_last() else {
            self.add("queue.elapsed", "is empty; leave it out, or end it with a row without below_seconds");
            return;
        };
        if rows.len() > ELAPSED_ROWS_MAX {
            self.add("queue.elapsed", format!("has {} rows, at most {ELAPSED_ROWS_MAX}", rows.len()));
        }
        let mut previous = 0;
        for (n, row) in closed.iter().enumerate() {
            let field = format!("queue.elapsed[{n}].below_seconds");
            match row.below_seconds {
                None => self.add(field, "is missing; only the last row goes without it"),
                Some(below) if previous > 0 && below <= previous => {
                    self.add(field, format!("is {below}, must be above the {previous} of the row before"));
                }
                Some(below) => {
                    self.range(&field, below, 1..=WAIT_SECONDS_MAX);
                    previous = below;
                }
            }
        }
        if last.below_seconds.is_some() {
            let field = format!("queue.elapsed[{}].below_seconds", closed.len());
            self.add(field, "is in the last row, which must hold from there on; add a row without it");
        }
        for (n, row) in rows.iter().enumerate() {
            let field = format!("queue.elapsed[{n}].retry_after_seconds");
            self.range(&field, row.retry_after_seconds, 1..=WAIT_SECONDS_MAX);
        }
    }

    fn budget(&mut self, budget: &Budget) {
        self.range("budget.ratio", budget.ratio, 0.0..=BUDGET_RATIO_MAX);
        self.range("budget.window_seconds", budget.window_seconds, 1..=BUDGET_WINDOW_SECONDS_MAX);
        self.range("budget.min_retries_per_second", budget.min_retries_per_second, 0..=BUDGET_FLOOR_MAX);
        if budget.descriptor_key.is_empty() {
            self.add("budget.descriptor_key", "is empty; name the entry that marks a retry");
        }
        if budget.descriptor_key == COMPLETION_ENTRY {
            self.add("budget.descriptor_key", "is lease_id, which marks a completion; take another name");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ConcurrencyHint;
    use super::*;

    fn row(below_seconds: impl Into<Option<u64>>, retry_after_seconds: u64) -> ElapsedStep {
        ElapsedStep { below_seconds: below_seconds.into(), retry_after_seconds }
    }

    fn fields(change: impl FnOnce(&mut RetryPolicy)) -> Vec<String> {
        let mut policy = RetryPolicy::default();
        change(&mut policy);
        policy.validate().into_iter().map(|(field, _)| field).collect()
    }

    #[test]
    fn the_defaults_and_the_full_example_have_no_mistakes() {
        assert_eq!(RetryPolicy::default().validate(), vec![]);
        let table = vec![row(60, 4), row(120, 10), row(300, 30), row(900, 60), row(None, 300)];
        assert_eq!(fields(|p| p.queue.elapsed = Some(table)), [""; 0]);
    }

    #[test]
    fn the_longest_informed_hint_is_not_below_the_shortest() {
        let change = |informed, informed_max_ms| {
            fields(|p| {
                (p.rolling.base_ms, p.rolling.informed) = (200, informed);
                p.rolling.informed_max_ms = informed_max_ms;
            })
        };
        assert_eq!(change(true, 200), [""; 0]);
        assert_eq!(change(true, 199), ["rolling.base_ms"]);
        assert_eq!(change(false, 199), [""; 0], "nobody asks for it");
        assert_eq!(change(false, 0), ["rolling.informed_max_ms"]);
        assert_eq!(change(false, WAIT_MS_MAX + 1), ["rolling.informed_max_ms"]);
    }

    #[test]
    fn the_extremes_are_allowed() {
        let change = |p: &mut RetryPolicy| {
            p.concurrency = ConcurrencyHint { base_ms: 1, max_ms: 1, factor: 1.0, jitter_ms: 0 };
            p.rolling.max_ms = WAIT_MS_MAX;
            p.rolling.factor = FACTOR_MAX;
            p.rolling.window_fraction = 1.0;
            p.queue = Queue {
                min_seconds: 1,
                max_seconds: 1,
                safety_margin: 0.0,
                processing_ms: 0,
                confirmation_ms: 0,
                pickup_seconds: 1,
                deadline_seconds: WAIT_SECONDS_MAX,
                places_max: 0,
                places_per_key_max: PLACES_MAX,
                reserved_share: 1.0,
                elapsed: Some(vec![row(None, 1)]),
            };
            p.budget.ratio = 0.0;
            p.budget.min_retries_per_second = 0;
        };
        assert_eq!(fields(change), [""; 0]);
    }

    #[test]
    fn each_mistake_names_its_field() {
        type Change = fn(&mut RetryPolicy);
        let rows: [(Change, &str); 30] = [
            (|p| p.queue.pickup_seconds = 0, "queue.pickup_seconds"),
            (|p| p.queue.deadline_seconds = 86_401, "queue.deadline_seconds"),
            (|p| p.queue.places_max = 1_000_001, "queue.places_max"),
            (|p| p.queue.places_per_key_max = 1_000_001, "queue.places_per_key_max"),
            (|p| p.queue.reserved_share = 1.1, "queue.reserved_share"),
            (|p| p.concurrency.base_ms = 0, "concurrency.base_ms"),
            (|p| p.concurrency.base_ms = 2001, "concurrency.base_ms"),
            (|p| p.concurrency.factor = 0.99, "concurrency.factor"),
            (|p| p.concurrency.factor = -2.0, "concurrency.factor"),
            (|p| p.concurrency.factor = 101.0, "concurrency.factor"),
            (|p| p.concurrency.jitter_ms = u64::MAX, "concurrency.jitter_ms"),
            (|p| p.rolling.factor = f64::NAN, "rolling.factor"),
            (|p| p.rolling.factor = f64::INFINITY, "rolling.factor"),
            (|p| p.rolling.base_ms = 5001, "rolling.base_ms"),
            (|p| p.rolling.max_ms = WAIT_MS_MAX + 1, "rolling.max_ms"),
            (|p| p.rolling.window_fraction = -0.1, "rolling.window_fraction"),
            (|p| p.rolling.window_fraction = 1.1, "rolling.window_fraction"),
            (|p| p.decreasing_ms = 0, "decreasing_ms"),
            (|p| p.queue.min_seconds = 301, "queue.min_seconds"),
            (|p| p.queue.max_seconds = 86_401, "queue.max_seconds"),
            (|p| p.queue.safety_margin = f64::NAN, "queue.safety_margin"),
            (|p| p.queue.processing_ms = u64::MAX, "queue.processing_ms"),
            (|p| p.queue.confirmation_ms = u64::MAX, "queue.confirmation_ms"),
            (|p| p.queue.elapsed = Some(vec![]), "queue.elapsed"),
            (|p| p.budget.ratio = f64::NEG_INFINITY, "budget.ratio"),
            (|p| p.budget.window_seconds = 0, "budget.window_seconds"),
            (|p| p.budget.window_seconds = 301, "budget.window_seconds"),
            (|p| p.budget.min_retries_per_second = u64::MAX, "budget.min_retries_per_second"),
            (|p| p.budget.descriptor_key.clear(), "budget.descriptor_key"),
            (|p| p.budget.descriptor_key = "lease_id".to_owned(), "budget.descriptor_key"),
        ];
        for (change, field) in rows {
            assert_eq!(fields(change), [field]);
        }
    }

    #[test]
    fn the_elapsed_table_is_sorted_and_open_at_its_end_only() {
        let rows: [(Vec<ElapsedStep>, &[&str]); 7] = [
            (vec![row(120, 4), row(60, 10), row(None, 30)], &["queue.elapsed[1].below_seconds"]),
            (vec![row(60, 4), row(60, 10), row(None, 30)], &["queue.elapsed[1].below_seconds"]),
            (vec![row(0, 4), row(None, 30)], &["queue.elapsed[0].below_seconds"]),
            (vec![row(u64::MAX, 4), row(None, 30)], &["queue.elapsed[0].below_seconds"]),
            (vec![row(None, 4), row(None, 30)], &["queue.elapsed[0].below_seconds"]),
            (vec![row(60, 4), row(120, 10)], &["queue.elapsed[1].below_seconds"]),
            (
                vec![row(60, 0), row(None, 86_401)],
                &["queue.elapsed[0].retry_after_seconds", "queue.elapsed[1].retry_after_seconds"],
            ),
        ];
        for (table, expected) in rows {
            assert_eq!(fields(|p| p.queue.elapsed = Some(table.clone())), expected, "{table:?}");
        }
        assert_eq!(fields(|p| p.queue.elapsed = Some(vec![row(None, 1); 65]))[0], "queue.elapsed");
    }

    #[test]
    fn all_mistakes_come_together_and_say_what_would_be_right() {
        let mut policy = RetryPolicy::default();
        policy.rolling.factor = f64::NAN;
        policy.rolling.base_ms = 9000;
        policy.queue.elapsed = Some(vec![row(60, 4), row(30, 10), row(None, 300)]);
        let texts: Vec<String> = policy.validate().iter().map(|(f, m)| format!("{f} {m}")).collect();
        assert_eq!(
            texts,
            [
                "rolling.base_ms is 9000, above max_ms, which is 5000; lower base_ms or raise max_ms",
                "rolling.factor is NaN, must be 1 to 100",
                "queue.elapsed[1].below_seconds is 30, must be above the 60 of the row before",
            ]
        );
    }
}

//! `retry_policy.yaml`, and the same as JSON from the admin API, to a [`RetryPolicy`].
//!
//! One decoder for both: what isn't given stays as it was in the base. The policy itself knows which ranges its values may have; here
//! its complaints get the lines of the file.

use super::decode::{At, Fields, Sink};
use super::problem::{Problem, Problems};
use super::shape::Shape;
use super::source::Document;
use super::tree::Value;
use super::yaml;
use crate::retry::policy::{Budget, ConcurrencyHint, ElapsedStep, Queue, RetryPolicy, RollingHint};

static FAMILY: &[&Shape] = &[&FILE, &POLICY, &CONCURRENCY, &ROLLING, &QUEUE, &ELAPSED, &BUDGET];
static FILE: Shape = Shape { name: "the file", keys: &["retry_policy"], family: FAMILY };
static POLICY: Shape = Shape {
    name: "`retry_policy`",
    keys: &["concurrency", "rolling", "decreasing_ms", "queue", "budget"],
    family: FAMILY,
};
static CONCURRENCY: Shape =
    Shape { name: "`concurrency`", keys: &["base_ms", "max_ms", "factor", "jitter_ms"], family: FAMILY };
static ROLLING: Shape = Shape {
    name: "`rolling`",
    keys: &["base_ms", "max_ms", "factor", "jitter_ms", "window_fraction", "informed", "informed_max_ms"],
    family: FAMILY,
};
static QUEUE: Shape = Shape {
    name: "`queue`",
    keys: &[
        "min_seconds",
        "max_seconds",
        "safety_margin",
        "processing_ms",
        "confirmation_ms",
        "pickup_seconds",
        "deadline_seconds",
        "places_max",
        "places_per_key_max",
        "reserved_share",
        "elapsed",
    ],
    family: FAMILY,
};
static ELAPSED: Shape =
    Shape { name: "a row of `elapsed`", keys: &["below_seconds", "retry_after_seconds"], family: FAMILY };
static BUDGET: Shape = Shape {
    name: "`budget`",
    keys: &["ratio", "window_seconds", "min_retries_per_second", "descriptor_key"],
    family: FAMILY,
};

/// The policy of a file; the defaults if there is none, and for what it leaves out.
pub fn load_retry_policy(file: Option<&Document>) -> Result<RetryPolicy, Vec<Problem>> {
    let mut problems = Problems::default();
    let policy = read(file, &mut problems);
    problems.finish().map(|_| policy)
}

/// The same for a caller that has more to read. Worthless if there were mistakes.
pub(super) fn read(file: Option<&Document>, problems: &mut Problems) -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    let Some(file) = file else { return policy };
    let sink = Sink::new(&file.name);
    match yaml::parse(&file.text) {
        Ok(None) => {}
        Ok(Some(tree)) => {
            if let Some(root) = Fields::of(&tree, At::ROOT, &sink, &FILE)
                && let Some(fields) = root.map("retry_policy", &POLICY)
            {
                fill(&mut policy, &fields);
                check(&policy, &tree, "retry_policy", &sink);
            }
        }
        Err(fault) => sink.mistake(fault.line, &At::ROOT, || fault.message),
    }
    problems.absorb(sink.into_problems());
    policy
}

/// What the file has under `retry_policy`, whole or in part, over `base`.
pub(crate) fn retry_policy_from_json(
    json: &serde_json::Value,
    base: &RetryPolicy,
) -> Result<RetryPolicy, Vec<Problem>> {
    let (tree, sink) = (Value::from_json(json), Sink::new("body"));
    let mut policy = base.clone();
    if let Some(fields) = Fields::of(&tree, At::ROOT, &sink, &POLICY) {
        fill(&mut policy, &fields);
        check(&policy, &tree, "", &sink);
    }
    sink.into_problems().finish().map(|_| policy)
}

fn check(policy: &RetryPolicy, tree: &Value<'_>, section: &str, sink: &Sink) {
    for (field, message) in policy.validate() {
        let path = if section.is_empty() { field } else { format!("{section}.{field}") };
        sink.mistake(tree.line_of(&path), &At::ROOT.key(&path), || message);
    }
}

fn fill(policy: &mut RetryPolicy, fields: &Fields<'_>) {
    let RetryPolicy { concurrency, rolling, decreasing_ms, queue, budget } = policy;
    whole(fields, "decreasing_ms", decreasing_ms);
    if let Some(fields) = fields.map("concurrency", &CONCURRENCY) {
        let ConcurrencyHint { base_ms, max_ms, factor, jitter_ms } = concurrency;
        curve(&fields, base_ms, max_ms, factor, jitter_ms);
    }
    if let Some(fields) = fields.map("rolling", &ROLLING) {
        let RollingHint { base_ms, max_ms, factor, jitter_ms, window_fraction, informed, informed_max_ms } =
            rolling;
        curve(&fields, base_ms, max_ms, factor, jitter_ms);
        number(&fields, "window_fraction", window_fraction);
        *informed = if fields.has("informed") { fields.flag("informed") } else { *informed };
        whole(&fields, "informed_max_ms", informed_max_ms);
    }
    if let Some(fields) = fields.map("queue", &QUEUE) {
        fill_queue(queue, &fields);
    }
    if let Some(fields) = fields.map("budget", &BUDGET) {
        let Budget { ratio, window_seconds, min_retries_per_second, descriptor_key } = budget;
        number(&fields, "ratio", ratio);
        whole(&fields, "window_seconds", window_seconds);
        whole(&fields, "min_retries_per_second", min_retries_per_second);
        if let Some(key) = fields.text("descriptor_key") {
            key.clone_into(descriptor_key);
        }
    }
}

fn curve(fields: &Fields<'_>, base_ms: &mut u64, max_ms: &mut u64, factor: &mut f64, jitter_ms: &mut u64) {
    whole(fields, "base_ms", base_ms);
    whole(fields, "max_ms", max_ms);
    number(fields, "factor", factor);
    whole(fields, "jitter_ms", jitter_ms);
}

fn fill_queue(queue: &mut Queue, fields: &Fields<'_>) {
    whole(fields, "min_seconds", &mut queue.min_seconds);
    whole(fields, "max_seconds", &mut queue.max_seconds);
    number(fields, "safety_margin", &mut queue.safety_margin);
    whole(fields, "processing_ms", &mut queue.processing_ms);
    whole(fields, "confirmation_ms", &mut queue.confirmation_ms);
    whole(fields, "pickup_seconds", &mut queue.pickup_seconds);
    whole(fields, "deadline_seconds", &mut queue.deadline_seconds);
    whole(fields, "places_max", &mut queue.places_max);
    whole(fields, "places_per_key_max", &mut queue.places_per_key_max);
    number(fields, "reserved_share", &mut queue.reserved_share);
    let list = fields.list("elapsed");
    let row = |(value, at)| elapsed_step(&Fields::of(value, at, fields.sink, &ELAPSED)?);
    let rows: Vec<ElapsedStep> = list.iter().filter_map(row).collect();
    // With a row missing, the rows after it would be reported as unsorted although they are not.
    if list.given && rows.len() == list.items.len() {
        queue.elapsed = Some(rows);
    }
}

fn elapsed_step(fields: &Fields<'_>) -> Option<ElapsedStep> {
    fields.need("retry_after_seconds", "what a limit that has been decreasing this long answers");
    let below_seconds = fields.whole("below_seconds", 0..=u64::MAX);
    Some(ElapsedStep {
        below_seconds,
        retry_after_seconds: fields.whole("retry_after_seconds", 0..=u64::MAX)?,
    })
}

fn whole(fields: &Fields<'_>, key: &str, to: &mut u64) {
    if let Some(number) = fields.whole(key, 0..=u64::MAX) {
        *to = number;
    }
}

fn number(fields: &Fields<'_>, key: &str, to: &mut f64) {
    if let Some(number) = fields.number(key) {
        *to = number;
    }
}

#[cfg(test)]
mod tests;

//! What was used of limits over time against their capacities, and when they denied.

use std::fmt::Write;

use super::axis::{Amounts, Times};
use super::{LEFT, MARGIN, Plot, RIGHT, heading};
use crate::simulate::markup::{count, escaped, shortened};
use crate::simulate::report::{LimitPlot, Plots};

/// More would be a page that nobody reads; the table has all of them.
const LIMITS_MAX: usize = 8;

/// Of one limit: its name, the drawing, the denials below it, the times.
const NAME: f64 = 20.0;
const DRAWING: f64 = 84.0;
const DENIALS: f64 = 14.0;
const TIMES: f64 = 28.0;
const EACH: f64 = NAME + DRAWING + DENIALS + TIMES;
const HEADING: f64 = 48.0;

const NAME_CHARS_MAX: usize = 56;
const TITLE: &str = "Use over time against capacity";

pub(super) fn plot(plots: &Plots) -> Option<Plot> {
    let limits = &plots.limits[..plots.limits.len().min(LIMITS_MAX)];
    if limits.is_empty() {
        return None;
    }
    let times = Times::of(plots);
    let legend = "area: the most used at once; dashed: capacity; marks below: requests denied";
    let mut body = heading(TITLE, legend);
    for (index, limit) in limits.iter().enumerate() {
        one(&mut body, limit, &times, HEADING + index as f64 * EACH);
    }
    let told: Vec<String> = limits.iter().map(summary).collect();
    let description = format!("{TITLE}. {}.", told.join("; "));
    let height = HEADING + limits.len() as f64 * EACH;
    Some(Plot { title: TITLE, description, height, body })
}

fn peak(limit: &LimitPlot) -> u64 {
    limit.used.iter().filter_map(|bucket| bucket.peak).max().unwrap_or(0)
}

fn denied(limit: &LimitPlot) -> u64 {
    limit.used.iter().map(|bucket| bucket.denied).sum()
}

fn summary(limit: &LimitPlot) -> String {
    let (peak, capacity, denied) = (count(peak(limit)), count(limit.capacity), count(denied(limit)));
    format!("{}: at most {peak} of {capacity} used, {denied} requests denied", limit.key)
}

fn one(out: &mut String, limit: &LimitPlot, times: &Times, top: f64) {
    let (first, last) = (top + NAME, top + NAME + DRAWING);
    let numbers = format!(
        "capacity {}, peak {}, {} denied",
        count(limit.capacity),
        count(peak(limit)),
        count(denied(limit))
    );
    let _ = write!(
        out,
        "<g><title>{}</title><text class=\"name\" x=\"{MARGIN}\" y=\"{:.1}\">{}</text>\
         <text class=\"soft end\" x=\"{RIGHT}\" y=\"{:.1}\">{numbers}</text>",
        escaped(&summary(limit)),
        top + 13.0,
        escaped(&shortened(&limit.key, NAME_CHARS_MAX)),
        top + 13.0,
    );
    let amounts = Amounts::up_to(limit.capacity.max(peak(limit)) as f64, first, last);
    amounts.draw(out);
    area(out, limit, times, &amounts, last);
    let y = amounts.y(limit.capacity as f64);
    let _ = write!(out, "<path class=\"limit\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
    marks(out, limit, times, last + 3.0);
    times.draw(out, last + DENIALS);
    out.push_str("</g>");
}

/// Steps: a bucket has one value. A bucket in which nobody asked has none, and interrupts it.
fn area(out: &mut String, limit: &LimitPlot, times: &Times, amounts: &Amounts, bottom: f64) {
    let mut path = String::new();
    let mut is_open = false;
    for (index, bucket) in limit.used.iter().enumerate() {
        let (begin, end) = (times.x(index), times.x(index + 1));
        match bucket.peak {
            Some(peak) => {
                if !is_open {
                    let _ = write!(path, "M{begin:.1} {bottom}");
                }
                let _ = write!(path, "V{:.1}H{end:.1}", amounts.y(peak as f64));
                is_open = true;
            }
            None if is_open => {
                let _ = write!(path, "V{bottom}Z");
                is_open = false;
            }
            None => {}
        }
    }
    if is_open {
        let _ = write!(path, "V{bottom}Z");
    }
    if !path.is_empty() {
        let _ = write!(out, "<path class=\"used\" d=\"{path}\"/>");
    }
}

/// The higher, the more were denied.
fn marks(out: &mut String, limit: &LimitPlot, times: &Times, top: f64) {
    let most = limit.used.iter().map(|bucket| bucket.denied).max().unwrap_or(0).max(1);
    let width = (times.bucket_width() - 0.5).max(0.5);
    for (index, bucket) in limit.used.iter().enumerate().filter(|(_, bucket)| bucket.denied > 0) {
        let height = 2.0 + 8.0 * bucket.denied as f64 / most as f64;
        let _ = write!(
            out,
            "<rect class=\"denied\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"><title>{} denied at {}</title></rect>",
            times.x(index),
            top + 10.0 - height,
            count(bucket.denied),
            times.since_start(index),
        );
    }
}

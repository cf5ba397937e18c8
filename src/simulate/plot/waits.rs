//! How long clients that obey waited for their admission, over time.

use std::fmt::Write;

use super::axis::{Amounts, Times};
use super::{LEFT, MARGIN, Plot, heading};
use crate::simulate::markup::{count, duration, escaped, shortened};
use crate::simulate::report::{Plots, WaitPlot};
use crate::simulate::series::Waits;

/// Lines that can still be told apart.
const LINES_MAX: usize = 4;

const HEADING: f64 = 48.0;
const DRAWING: f64 = 160.0;
const TIMES: f64 = 28.0;
const ROW: f64 = 18.0;
const NAME_CHARS_MAX: usize = 48;
const TITLE: &str = "Wait of clients that obey";

pub(super) fn plot(plots: &Plots) -> Option<Plot> {
    let lines = &plots.waits[..plots.waits.len().min(LINES_MAX)];
    if lines.is_empty() {
        return None;
    }
    let times = Times::of(plots);
    let most = lines.iter().flat_map(|line| &line.waits).map(|bucket| bucket.max_ms).max().unwrap_or(0);
    let (first, last) = (HEADING, HEADING + DRAWING);
    let amounts = Amounts::up_to(most as f64, first, last);
    let legend = "from the first try to the admission; solid: the mean; dotted: the longest";
    let mut body = heading(TITLE, legend);
    amounts.draw_durations(&mut body);
    for (index, line) in lines.iter().enumerate() {
        draw(&mut body, line, index, &times, &amounts);
        name(&mut body, line, index, last + TIMES);
    }
    times.draw(&mut body, last);
    let told: Vec<String> = lines.iter().map(summary).collect();
    let description = format!("{TITLE}. {}.", told.join("; "));
    let height = last + TIMES + lines.len() as f64 * ROW;
    Some(Plot { title: TITLE, description, height, body })
}

fn mean_ms(bucket: &Waits) -> f64 {
    bucket.sum_ms as f64 / bucket.count.max(1) as f64
}

fn summary(line: &WaitPlot) -> String {
    let sum = line.waits.iter().fold(Waits::default(), |all, bucket| Waits {
        count: all.count + bucket.count,
        sum_ms: all.sum_ms + bucket.sum_ms,
        max_ms: all.max_ms.max(bucket.max_ms),
    });
    let (admitted, mean, longest) = (count(sum.count), duration(mean_ms(&sum)), duration(sum.max_ms as f64));
    format!("{}: {admitted} admitted after {mean} in the mean and {longest} at most", line.population)
}

fn draw(out: &mut String, line: &WaitPlot, index: usize, times: &Times, amounts: &Amounts) {
    let path = |value: fn(&Waits) -> f64| {
        let mut path = String::new();
        let mut is_open = false;
        for (place, bucket) in line.waits.iter().enumerate() {
            // Nobody was admitted then, so that there is nothing to say.
            if bucket.count == 0 {
                is_open = false;
                continue;
            }
            let x = times.x(place) + times.bucket_width() / 2.0;
            let command = if is_open { 'L' } else { 'M' };
            // A point alone is a line without a length, which round ends make visible.
            let end = if is_open { "" } else { "h0" };
            let _ = write!(path, "{command}{x:.1} {:.1}{end}", amounts.y(value(bucket)));
            is_open = true;
        }
        path
    };
    let _ = write!(
        out,
        "<g stroke-linecap=\"round\"><title>{}</title><path class=\"wait line{index}\" d=\"{}\"/>\
         <path class=\"wait most far line{index}\" d=\"{}\"/></g>",
        escaped(&summary(line)),
        path(mean_ms),
        path(|bucket| bucket.max_ms as f64),
    );
}

fn name(out: &mut String, line: &WaitPlot, index: usize, top: f64) {
    let y = top + index as f64 * ROW + 8.0;
    let _ = write!(
        out,
        "<path class=\"wait line{index}\" d=\"M{MARGIN} {:.1}h24\"/><text class=\"name\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
        y - 4.0,
        y,
        escaped(&shortened(&line.population, NAME_CHARS_MAX)),
    );
}

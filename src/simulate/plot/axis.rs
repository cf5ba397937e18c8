//! Axes: where time and amounts are on the paper, and the numbers beside them.

use std::fmt::Write;

use super::{LEFT, RIGHT};
use crate::simulate::markup::{Short, duration};
use crate::simulate::report::Plots;

/// Numbers along an axis, at most.
const TIMES_MAX: f64 = 8.0;
const AMOUNTS_MAX: f64 = 4.0;

/// Steps of time that people count in, in seconds.
const STEPS: [f64; 27] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0,
    300.0, 600.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0,
];

/// The shortest of them, or of whole days, that divides a time into at most so many parts.
fn time_step_ms(span_ms: f64, parts_max: f64) -> f64 {
    let least = span_ms / 1000.0 / parts_max;
    let days = || (least / 86_400.0).ceil() * 86_400.0;
    STEPS.into_iter().find(|step| *step >= least).unwrap_or_else(days) * 1000.0
}

/// Time, from left to right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    span_ms: f64,
    bucket_ms: f64,
}

impl Times {
    /// All buckets of all series are on it.
    pub(super) fn of(plots: &Plots) -> Self {
        let used = plots.limits.iter().map(|limit| limit.used.len());
        let buckets = used.chain(plots.waits.iter().map(|wait| wait.waits.len())).max().unwrap_or(0);
        let bucket_ms = plots.bucket_ms.max(1) as f64;
        Self { span_ms: (buckets.max(1) as f64 * bucket_ms).max(1.0), bucket_ms }
    }

    /// Where a bucket begins.
    pub(super) fn x(&self, bucket: usize) -> f64 {
        self.at_ms(bucket as f64 * self.bucket_ms)
    }

    pub(super) fn bucket_width(&self) -> f64 {
        self.x(1) - self.x(0)
    }

    fn at_ms(&self, ms: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * ms / self.span_ms
    }

    /// Since the begin of a bucket, in words.
    pub(super) fn since_start(&self, bucket: usize) -> String {
        duration(bucket as f64 * self.bucket_ms)
    }

    /// The numbers below a drawing that ends at `y`.
    pub(super) fn draw(&self, out: &mut String, y: f64) {
        let step_ms = time_step_ms(self.span_ms, TIMES_MAX).max(1000.0);
        let mut ms = 0.0;
        while ms <= self.span_ms {
            let x = self.at_ms(ms);
            let label = if ms == 0.0 { "0".to_owned() } else { duration(ms) };
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {y}v4\"/><text class=\"soft middle\" x=\"{x:.1}\" y=\"{}\">{label}</text>",
                y + 16.0
            );
            ms += step_ms;
        }
    }
}

/// An amount, from `bottom` up to `top`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amounts {
    most: f64,
    top: f64,
    bottom: f64,
}

impl Amounts {
    pub(super) fn up_to(most: f64, top: f64, bottom: f64) -> Self {
        Self { most: most.max(1.0) * 1.08, top, bottom }
    }

    pub(super) fn y(&self, amount: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * (amount / self.most).clamp(0.0, 1.0)
    }

    /// Lines across the drawing, and the numbers to their left.
    pub(super) fn draw(&self, out: &mut String) {
        self.draw_each(out, step(self.most), amount);
    }

    /// The same for amounts that are milliseconds.
    pub(super) fn draw_durations(&self, out: &mut String) {
        self.draw_each(out, time_step_ms(self.most, AMOUNTS_MAX), |ms| match ms {
            0.0 => "0".to_owned(),
            ms => duration(ms),
        });
    }

    fn draw_each(&self, out: &mut String, step: f64, label: impl Fn(f64) -> String) {
        let mut amount = 0.0;
        while amount <= self.most {
            let y = self.y(amount);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text class=\"soft end\" x=\"{}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                label(amount)
            );
            amount += step;
        }
    }
}

/// 1, 2 or 5 and zeros, so that there are at most [`AMOUNTS_MAX`] steps.
fn step(most: f64) -> f64 {
    let least = most / AMOUNTS_MAX;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= least);
    step.unwrap_or(most).max(1.0)
}

/// A number of things, short.
fn amount(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{}G", Short(n / 1e9)),
        n if n >= 1e6 => format!("{}M", Short(n / 1e6)),
        n if n >= 1e4 => format!("{}k", Short(n / 1e3)),
        n => Short(n).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for (most, expected) in
            [(1.0, 1.0), (4.0, 1.0), (5.0, 2.0), (20.0, 5.0), (21.6, 10.0), (1080.0, 500.0)]
        {
            assert_eq!(step(most), expected, "{most}");
        }
        for most in [3.0, 7.0, 99.0, 12_345.0, 1e12] {
            assert!((1.0..=AMOUNTS_MAX).contains(&(most / step(most))), "{most}");
        }
    }

    #[test]
    fn times_are_few_whatever_the_span() {
        assert_eq!(
            [9.0, 300_000.0, 60_000.0 * 9.0].map(|ms| time_step_ms(ms, 4.0)),
            [5.0, 120_000.0, 300_000.0]
        );
        for seconds in [1u64, 59, 60, 3_600, 86_400, 86_400 * 7, 86_400 * 400] {
            let times = Times { span_ms: seconds as f64 * 1000.0, bucket_ms: 100.0 };
            let mut out = String::new();
            times.draw(&mut out, 0.0);
            let labels = out.matches("<text").count();
            assert!((2..=9).contains(&labels), "{seconds}: {labels}");
        }
        assert_eq!([0.0, 12.0, 12_500.0, 2e6, 3e9].map(amount), ["0", "12", "12.5k", "2M", "3G"]);
    }
}

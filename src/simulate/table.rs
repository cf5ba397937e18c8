//! A report as text that people read: the totals, the limits that matter most, the populations, and what differs.

use std::fmt::{self, Display, Formatter, Write};

use super::report::{Difference, Differences, LimitReport, PopulationReport, Report};

/// Rows of each table; the JSON has all of them.
const ROWS_MAX: usize = 30;

/// Of a key; the rest is cut.
const KEY_CHARS_MAX: usize = 70;

/// A report, to be printed.
#[derive(Debug)]
pub(crate) struct Table<'r>(pub(crate) &'r Report);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let part = |n: u64| 100.0 * n as f64 / report.requests.max(1) as f64;
        writeln!(f, "requests   {}", report.requests)?;
        writeln!(f, "admitted   {} ({:.2} %)", report.admitted, part(report.admitted))?;
        writeln!(f, "denied     {} ({:.2} %)", report.denied, part(report.denied))?;
        writeln!(f, "unmatched  {}", report.unmatched)?;
        if report.broken > 0 {
            writeln!(f, "broken     {} lines, left out", report.broken)?;
        }
        let recorded = report.recorded;
        if recorded.denied + recorded.agree > 0 {
            writeln!(f, "recorded   {} were denied then; {} agree", recorded.denied, recorded.agree)?;
        }
        limits(f, report)?;
        populations(f, &report.populations)?;
        if let Some(differences) = &report.differences {
            self.differences(f, differences)?;
        }
        Ok(())
    }
}

impl Table<'_> {
    fn differences(&self, f: &mut Formatter<'_>, differences: &Differences) -> fmt::Result {
        let Differences { denied_only_here, denied_only_against, requests } = differences;
        writeln!(
            f,
            "\ndecided differently: {denied_only_here} denied only here, {denied_only_against} only against"
        )?;
        let mut rows = Rows::new(["tenant", "denied", "against"]);
        let differing =
            |it: &&super::report::TenantDenials| it.against.is_some_and(|other| other != it.denied);
        for it in self.0.plots.tenants.iter().filter(differing) {
            rows.push([cut(&it.tenant), it.denied.to_string(), it.against.unwrap_or(0).to_string()]);
        }
        rows.write(f)?;
        let mut rows = Rows::new(["at", "time", "code", "against", "limit"]);
        for Difference { at, time, code, against, key } in requests {
            let key = key.as_deref().unwrap_or("-");
            rows.push([cut(at), time.to_string(), (*code).to_owned(), (*against).to_owned(), cut(key)]);
        }
        rows.write(f)
    }
}

fn limits(f: &mut Formatter<'_>, report: &Report) -> fmt::Result {
    let mut limits: Vec<&LimitReport> = report.limits.iter().collect();
    let most =
        |it: &LimitReport| (it.denied.max(it.against.map_or(0, |against| against.denied)), it.admitted);
    limits.sort_by(|a, b| most(b).cmp(&most(a)).then_with(|| a.key.cmp(&b.key)));
    let is_compared = report.differences.is_some();
    let is_suggested = limits.iter().any(|limit| limit.suggested.is_some());
    let mut head = vec!["limit", "capacity", "seconds", "admitted", "denied", "peak", "use"];
    if is_compared {
        head.extend(["against", "denied", "peak"]);
    }
    if is_suggested {
        head.extend(["suggested", "demand"]);
    }
    let mut rows = Rows::new(head);
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for limit in limits {
        let seconds = limit.window_seconds.or(limit.timeout_seconds).map(u64::from);
        let mut row = vec![
            cut(&limit.key),
            number(limit.capacity),
            number(seconds),
            limit.admitted.to_string(),
            limit.denied.to_string(),
            limit.peak.to_string(),
            format!("{:.1} %", limit.used * 100.0),
        ];
        if is_compared {
            let against = limit.against;
            row.push(number(against.map(|it| it.capacity)));
            row.push(number(against.map(|it| it.denied)));
            row.push(number(against.map(|it| it.peak)));
        }
        if is_suggested {
            row.push(number(limit.suggested.map(|it| it.capacity)));
            row.push(number(limit.suggested.map(|it| it.demand_peak)));
        }
        rows.push(row);
    }
    rows.write(f)?;
    match report.limits_left_out {
        0 => Ok(()),
        n => writeln!(f, "{n} decisions were about limits that there is no room for here"),
    }
}

fn populations(f: &mut Formatter<'_>, populations: &[PopulationReport]) -> fmt::Result {
    let mut rows = Rows::new([
        "population",
        "requests",
        "attempts",
        "admitted",
        "denied",
        "goodput/s",
        "attempts each",
        "returns each",
        "wait p50",
        "p99",
        "max",
    ]);
    for it in populations {
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
        rows.push([
            cut(&it.name),
            it.requests.to_string(),
            it.attempts.to_string(),
            it.admitted.to_string(),
            it.denied.to_string(),
            format!("{:.2}", it.goodput_per_second),
            format!("{:.2}", it.attempts_per_admission),
            format!("{:.2}", it.returns_per_admission),
            seconds(it.wait_ms.p50),
            seconds(it.wait_ms.p99),
            seconds(it.wait_ms.max),
        ]);
    }
    rows.write(f)
}

/// A table whose columns are as wide as what is in them; the first is words, the others are numbers.
struct Rows {
    rows: Vec<Vec<String>>,
    left_out: usize,
}

impl Rows {
    fn new<'h>(head: impl IntoIterator<Item = &'h str>) -> Self {
        Self { rows: vec![head.into_iter().map(str::to_owned).collect()], left_out: 0 }
    }

    fn push(&mut self, row: impl Into<Vec<String>>) {
        match self.rows.len() > ROWS_MAX {
            true => self.left_out += 1,
            false => self.rows.push(row.into()),
        }
    }

    /// Nothing, if there is only a head.
    fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.rows.len() < 2 {
            return Ok(());
        }
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        writeln!(f)?;
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(line, "{cell:width$}")?,
                    _ => write!(line, "  {cell:>width$}")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        match self.left_out {
            0 => Ok(()),
            n => writeln!(f, "and {n} more; --json has all that are known"),
        }
    }
}

/// On one line, and no longer than one can read.
fn cut(text: &str) -> String {
    let mut shown: String =
        text.chars().take(KEY_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(KEY_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

//! The report as one HTML page: the plots, and the tables behind them. It needs no other file and no script.
//!
//! Names come from logs, so that all of them are escaped. Refuses to know how anything was found.

use std::fmt::Write;

use super::markup::{COLOURS, count, duration, escaped, percent};
use super::plot;
use super::report::{Difference, Differences, LimitReport, PopulationReport, Report};

/// Rows of a table, so that a page with a hundred thousand limits still opens.
const ROWS_MAX: usize = 500;

const STYLE: &str = "\
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}svg{max-width:100%;height:auto}figure{margin:1rem 0}\
.wide{overflow-x:auto}table{border-collapse:collapse;min-width:100%}caption{text-align:left;color:var(--soft)}\
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}\
thead th{color:var(--soft);font-weight:600}tbody th{min-width:20rem;font:.85em ui-monospace,monospace;white-space:normal;\
overflow-wrap:anywhere}th:first-child,td:first-child{text-align:left}.no{color:var(--denied)}.soft{color:var(--soft)}";

/// Nothing from anywhere, also if a name should ever get out of its quotes.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

pub(crate) fn html(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>sluice simulate</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"content-security-policy\" content=\"{POLICY}\"><style>{COLOURS}{STYLE}</style></head><body>\n\
         <h1>sluice simulate</h1>\n"
    );
    summary(&mut out, report);
    for plot in plot::plots(report) {
        let _ = writeln!(out, "<figure>{}</figure>", plot.inline());
    }
    limits(&mut out, report);
    tenants(&mut out, report);
    populations(&mut out, &report.populations);
    report.differences.iter().for_each(|differences| self::differences(&mut out, differences));
    out.push_str("</body></html>\n");
    out
}

fn summary(out: &mut String, report: &Report) {
    let requests = report.requests as f64;
    let _ = write!(
        out,
        "<p>{} requests: {} admitted, <span class=\"no\">{} denied</span> ({}). No limit applied to {} of them.",
        count(report.requests),
        count(report.admitted),
        count(report.denied),
        percent(report.denied as f64, requests),
        count(report.unmatched),
    );
    if report.recorded.agree > 0 || report.recorded.denied > 0 {
        let _ = write!(
            out,
            " The log has {} denials of its own, and {} requests are decided as they were then.",
            count(report.recorded.denied),
            count(report.recorded.agree)
        );
    }
    if report.broken > 0 {
        let _ = write!(out, " {} lines could not be read and were left out.", count(report.broken));
    }
    let _ = writeln!(out, " <span class=\"soft\">Seed {}.</span></p>", report.seed);
}

/// A table whose first column is a name. Cells are written by those who know them, so that they are escaped there.
fn table<T>(
    out: &mut String,
    title: &str,
    columns: &[&str],
    rows: &[T],
    more: u64,
    row: impl Fn(&mut String, &T),
) {
    if rows.is_empty() {
        return;
    }
    let shown = rows.len().min(ROWS_MAX);
    let _ = write!(
        out,
        "<h2>{title}</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"{title}\"><table>"
    );
    let left_out = (rows.len() - shown) as u64 + more;
    if left_out > 0 {
        let _ = write!(out, "<caption>{} more are not shown.</caption>", count(left_out));
    }
    out.push_str("<thead><tr>");
    columns.iter().for_each(|column| {
        let _ = write!(out, "<th scope=\"col\">{column}</th>");
    });
    out.push_str("</tr></thead>\n<tbody>");
    for it in &rows[..shown] {
        out.push_str("<tr>");
        row(out, it);
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn name(out: &mut String, name: &str) {
    let _ = write!(out, "<th scope=\"row\"><bdi>{}</bdi></th>", escaped(name));
}

fn cells<const N: usize>(out: &mut String, cells: [String; N]) {
    cells.iter().for_each(|cell| {
        let _ = write!(out, "<td>{}</td>", escaped(cell));
    });
}

/// A number that may not be there.
fn maybe(number: Option<u64>) -> String {
    number.map_or_else(|| "\u{2013}".to_owned(), count)
}

fn limits(out: &mut String, report: &Report) {
    let is_compared = report.limits.iter().any(|limit| limit.against.is_some());
    let is_suggested = report.limits.iter().any(|limit| limit.suggested.is_some());
    let mut columns = vec!["limit", "capacity", "in", "admitted", "denied", "peak", "used"];
    if is_compared {
        columns.extend(["capacity against", "denied against", "peak against"]);
    }
    if is_suggested {
        columns.extend(["suggested", "peak of demand"]);
    }
    let mut rows: Vec<&LimitReport> = report.limits.iter().collect();
    rows.sort_by_key(|limit| std::cmp::Reverse(limit.denied));
    table(out, "Limits", &columns, &rows, report.limits_left_out, |out, limit| {
        name(out, &limit.key);
        let time = match (limit.window_seconds, limit.timeout_seconds) {
            (Some(seconds), _) => format!("{seconds} s"),
            (None, _) => "at once".to_owned(),
        };
        let LimitReport { capacity, admitted, denied, peak, used, against, suggested, .. } = limit;
        let admitted = count(*admitted);
        cells(out, [maybe(*capacity), time, admitted]);
        denials(out, *denied);
        cells(out, [count(*peak), percent(*used, 1.0)]);
        if is_compared {
            let against =
                |number: fn(&super::report::LimitAgainst) -> u64| maybe(against.as_ref().map(number));
            cells(out, [against(|it| it.capacity), against(|it| it.denied), against(|it| it.peak)]);
        }
        if is_suggested {
            let (capacity, peak) = (suggested.map(|it| it.capacity), suggested.map(|it| it.demand_peak));
            cells(out, [maybe(capacity), maybe(peak)]);
        }
    });
}

/// Denials are seen at a glance.
fn denials(out: &mut String, denied: u64) {
    let class = if denied > 0 { " class=\"no\"" } else { "" };
    let _ = write!(out, "<td{class}>{}</td>", count(denied));
}

fn tenants(out: &mut String, report: &Report) {
    let tenants = &report.plots.tenants;
    let is_compared = tenants.iter().any(|tenant| tenant.against.is_some());
    let columns: &[&str] = if is_compared { &["tenant", "denied", "against"] } else { &["tenant", "denied"] };
    table(out, "Denied most", columns, tenants, 0, |out, tenant| {
        name(out, &tenant.tenant);
        denials(out, tenant.denied);
        if is_compared {
            cells(out, [maybe(tenant.against)]);
        }
    });
}

fn populations(out: &mut String, populations: &[PopulationReport]) {
    let columns = [
        "population",
        "requests",
        "admitted",
        "denied",
        "goodput",
        "attempts each",
        "returns each",
        "mean wait",
        "p50",
        "p90",
        "p99",
        "longest",
    ];
    table(out, "Populations", &columns, populations, 0, |out, it| {
        name(out, &it.name);
        cells(out, [count(it.requests), count(it.admitted)]);
        denials(out, it.denied);
        let per_second = format!("{:.2}/s", it.goodput_per_second);
        let tries = [it.attempts_per_admission, it.returns_per_admission].map(|tries| format!("{tries:.2}"));
        let [attempts, returns] = tries;
        cells(out, [per_second, attempts, returns]);
        let wait = &it.wait_ms;
        cells(
            out,
            [wait.mean, wait.p50 as f64, wait.p90 as f64, wait.p99 as f64, wait.max as f64].map(duration),
        );
    });
}

fn differences(out: &mut String, differences: &Differences) {
    let Differences { denied_only_here, denied_only_against, requests } = differences;
    let _ = writeln!(
        out,
        "<h2>Against the other configuration</h2>\n<p>{} requests are denied only here, {} only there.</p>",
        count(*denied_only_here),
        count(*denied_only_against),
    );
    let more = (denied_only_here + denied_only_against).saturating_sub(requests.len() as u64);
    let columns = ["request", "time", "here", "against", "limit"];
    table(out, "Decided differently", &columns, requests, more, |out, it: &Difference| {
        name(out, &it.at);
        let key = it.key.clone().unwrap_or_default();
        cells(out, [format!("{:.3}", it.time), it.code.to_owned(), it.against.to_owned(), key]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::plot::fixture;

    #[test]
    fn a_page_needs_nothing_else_and_escapes_every_name() {
        let page = html(&fixture::hostile());
        for forbidden in ["<script", "onload=\"", "\u{202e}", "\u{1b}"] {
            let at = page.find(forbidden);
            assert_eq!(at.map(|at| &page[at.saturating_sub(80)..]), None, "{forbidden}");
        }
        assert!(page.contains("&lt;script&gt;"), "the name must be there as text");
        for wanted in
            [POLICY, "prefers-color-scheme:dark", "scope=\"row\"", "Denied most", "Decided differently"]
        {
            assert!(page.contains(wanted), "{wanted}");
        }
        // The only addresses are the names of SVG, one for each plot.
        assert_eq!(page.matches("=\"http").count(), page.matches("=\"http://www.w3.org/2000/svg\"").count());
        for reference in ["src=\"", "href=\"", "url(", "@import"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }

    #[test]
    fn long_tables_are_cut_and_say_so() {
        let mut report = fixture::hostile();
        let limit = report.limits[0].clone();
        report.limits = vec![limit; ROWS_MAX + 7];
        report.limits_left_out = 5;
        let page = html(&report);
        assert!(page.contains("<caption>12 more are not shown.</caption>"));
        assert!(page.matches("<tr>").count() < ROWS_MAX + 20);
    }
}

//! The plots: use over time against capacity, denials by tenant, and how long clients that obey waited. SVG, written by hand.
//!
//! A reader who doesn't see them hears the title and the description; who points at something sees its numbers. Refuses to
//! know how anything was found.

mod axis;
mod denials;
mod usage;
mod waits;

use std::fmt::Write;

use super::markup::{COLOURS, escaped};
use super::report::Report;

/// All plots are this wide; a page may show them smaller.
const WIDTH: f64 = 760.0;

/// Where the drawing begins and ends: to its left are the numbers.
const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 28.0;

/// Between two plots of a file, and around them.
const MARGIN: f64 = 16.0;

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:var(--ink)}.title{font-size:16px;font-weight:600}.soft{fill:var(--soft)}\
.name{font-family:ui-monospace,monospace}.end{text-anchor:end}.middle{text-anchor:middle}\
.grid{stroke:var(--grid);stroke-width:1}.used{fill:var(--used);fill-opacity:.25;stroke:var(--used);stroke-width:1}\
.limit{stroke:var(--limit);stroke-width:2;stroke-dasharray:6 3;fill:none}.denied{fill:var(--denied)}\
.against{fill:none;stroke:var(--denied);stroke-width:1.5}.wait{fill:none;stroke-width:2}.most{stroke-width:1;stroke-dasharray:2 3}\
.line0{stroke:var(--line0)}.line1{stroke:var(--line1)}.line2{stroke:var(--line2)}.line3{stroke:var(--line3)}\
.far{stroke-opacity:.55}";

/// One plot, drawn from (0, 0).
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) title: &'static str,
    /// What it shows in a sentence, for those who don't see it.
    description: String,
    height: f64,
    body: String,
}

/// What there is to see. A plot that would be empty is left out.
pub(super) fn plots(report: &Report) -> Vec<Plot> {
    let plots = &report.plots;
    [usage::plot(plots), denials::plot(plots), waits::plot(plots)].into_iter().flatten().collect()
}

/// All of them, one below the other, as a file.
pub(crate) fn svg(report: &Report) -> String {
    let plots = plots(report);
    let mut body = String::new();
    let mut y = MARGIN;
    for plot in &plots {
        let _ = write!(body, "<g transform=\"translate(0 {y})\">{}</g>", plot.body);
        y += plot.height + MARGIN;
    }
    if plots.is_empty() {
        y += 24.0;
        let _ = write!(body, "<text x=\"{MARGIN}\" y=\"{}\">Nothing was asked.</text>", MARGIN + 16.0);
    }
    let description: Vec<&str> = plots.iter().map(|plot| plot.description.as_str()).collect();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    out.push_str(&element("sluice simulate", &description.join(" "), y, &body, COLOURS));
    out.push('\n');
    out
}

impl Plot {
    /// As a part of a page that has the colours.
    pub(super) fn inline(&self) -> String {
        element(self.title, &self.description, self.height, &self.body, "")
    }
}

fn element(title: &str, description: &str, height: f64, body: &str, colours: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\"><title>{}</title><desc>{}</desc><style>{colours}{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" style=\"fill:var(--paper)\"/>{body}</svg>",
        escaped(title),
        escaped(description),
    )
}

/// The title of a plot, and below it what its signs mean.
fn heading(title: &str, legend: &str) -> String {
    format!(
        "<text class=\"title\" x=\"{MARGIN}\" y=\"16\">{}</text><text class=\"soft\" x=\"{MARGIN}\" y=\"36\">{legend}</text>",
        escaped(title)
    )
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;

//! Who was denied most, a bar each; with another configuration, what that one would have denied beside it.

use std::fmt::Write;

use super::{MARGIN, Plot, RIGHT, heading};
use crate::simulate::markup::{count, escaped, shortened};
use crate::simulate::report::{Plots, TenantDenials};

const TENANTS_MAX: usize = 20;
const HEADING: f64 = 48.0;
const ROW: f64 = 22.0;

/// Bars begin here: to the left are names, to the right of the longest is its number.
const BEGIN: f64 = 256.0;
const END: f64 = RIGHT - 120.0;
const NAME_CHARS_MAX: usize = 32;
const TITLE: &str = "Denials by tenant";

pub(super) fn plot(plots: &Plots) -> Option<Plot> {
    let tenants = &plots.tenants[..plots.tenants.len().min(TENANTS_MAX)];
    if tenants.is_empty() {
        return None;
    }
    let is_compared = tenants.iter().any(|tenant| tenant.against.is_some());
    let legend = match is_compared {
        true => "filled: requests denied; outlined: with the other configuration",
        false => "requests denied, of those who were denied most",
    };
    let mut body = heading(TITLE, legend);
    let most = tenants.iter().map(|tenant| tenant.denied.max(tenant.against.unwrap_or(0))).max();
    let most = most.unwrap_or(0).max(1) as f64;
    for (index, tenant) in tenants.iter().enumerate() {
        row(&mut body, tenant, most, HEADING + index as f64 * ROW);
    }
    let told: Vec<String> = tenants.iter().map(summary).collect();
    let description = format!("{TITLE}. {}.", told.join("; "));
    Some(Plot { title: TITLE, description, height: HEADING + tenants.len() as f64 * ROW, body })
}

fn summary(tenant: &TenantDenials) -> String {
    format!("{}: {}", tenant.tenant, numbers(tenant))
}

fn numbers(tenant: &TenantDenials) -> String {
    match tenant.against {
        Some(against) => format!("{} (against {})", count(tenant.denied), count(against)),
        None => count(tenant.denied),
    }
}

fn row(out: &mut String, tenant: &TenantDenials, most: f64, top: f64) {
    let width = |denied: u64| (END - BEGIN) * denied as f64 / most;
    let longest = width(tenant.denied.max(tenant.against.unwrap_or(0)));
    let _ = write!(
        out,
        "<g><title>{}</title><text class=\"name\" x=\"{MARGIN}\" y=\"{:.1}\">{}</text>\
         <rect class=\"denied\" x=\"{BEGIN}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\"/>",
        escaped(&summary(tenant)),
        top + 14.0,
        escaped(&shortened(&tenant.tenant, NAME_CHARS_MAX)),
        top + 4.0,
        width(tenant.denied),
    );
    if let Some(against) = tenant.against {
        let _ = write!(
            out,
            "<rect class=\"against\" x=\"{BEGIN}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\"/>",
            top + 2.0,
            width(against),
        );
    }
    let (x, y) = (BEGIN + longest + 8.0, top + 14.0);
    let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text></g>", numbers(tenant));
}

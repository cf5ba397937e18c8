//! What became of each limit: a row each, bounded in number.

use std::sync::Arc;

use hashbrown::HashTable;

use super::report::{LimitAgainst, LimitPlot, LimitReport};
use super::series::{Bucket, Scale, Series, Use};
use super::suggest::Demand;
use crate::ledger::Account;
use crate::limit::{Kind, LimitId, LimitSpec};
use crate::registry::Requirement;

/// Rows at most: with its account one is 500 bytes, so 33 MB.
pub(super) const LIMITS_MAX: usize = 1 << 16;

/// Of the first limits that are met, what was used over time is kept: 3 KB each, so 12 MB.
const PLOTTED_MAX: usize = 1 << 12;

/// Plots that are handed out.
const PLOTS_MAX: usize = 12;

#[derive(Debug)]
struct Row {
    account: Arc<Account>,
    spec: Arc<LimitSpec>,
    admitted: u64,
    denied: u64,
    peak: u64,
    /// Each amount by the time for which it was held.
    held_ms: u128,
    plot: Option<Box<Series<Use>>>,
    demand: Option<Box<Demand>>,
}

#[derive(Debug)]
pub(super) struct Limits {
    rows: Vec<Row>,
    by_id: HashTable<u32>,
    scale: Scale,
    /// Demands are counted, so that a capacity can be suggested.
    suggests: bool,
    /// Decisions about limits that have no row.
    pub(super) unlisted: u64,
}

/// Ids are digests, so any part of one is a hash.
#[expect(clippy::cast_possible_truncation, reason = "a part of it is meant")]
fn hash(id: LimitId) -> u64 {
    id.bits() as u64
}

impl Limits {
    pub(super) fn new(start_ms: u64, suggests: bool) -> Self {
        let scale = Scale::new(start_ms);
        Self { rows: Vec::new(), by_id: HashTable::new(), scale, suggests, unlisted: 0 }
    }

    fn row(&mut self, requirement: &Requirement) -> Option<&mut Row> {
        let id = requirement.account.id;
        let rows = &self.rows;
        let found = self.by_id.find(hash(id), |&at| rows[at as usize].account.id == id).copied();
        let at = match found {
            Some(at) => at as usize,
            None if self.rows.len() == LIMITS_MAX => {
                self.unlisted += 1;
                return None;
            }
            None => {
                let at = self.rows.len();
                self.rows.push(Row {
                    account: Arc::clone(&requirement.account),
                    spec: Arc::clone(&requirement.spec),
                    admitted: 0,
                    denied: 0,
                    peak: 0,
                    held_ms: 0,
                    plot: (at < PLOTTED_MAX).then(Box::default),
                    demand: self.suggests.then(Box::default),
                });
                let rows = &self.rows;
                let place = u32::try_from(at).expect("rows must be few");
                self.by_id.insert_unique(hash(id), place, |&other| hash(rows[other as usize].account.id));
                at
            }
        };
        Some(&mut self.rows[at])
    }

    /// A request took its part of a limit, of which `available` is left, and has it for so long.
    pub(super) fn admitted(
        &mut self,
        requirement: &Requirement,
        available: Option<u64>,
        held_ms: u64,
        now_ms: u64,
    ) {
        self.scale.reach(now_ms);
        let scale = self.scale;
        let Some(row) = self.row(requirement) else { return };
        row.admitted += 1;
        row.held_ms += u128::from(requirement.amount) * u128::from(held_ms);
        let Some(available) = available else { return };
        let used = requirement.spec.capacity.saturating_sub(available);
        row.used(used, &scale, now_ms);
        if let Some(demand) = &mut row.demand {
            demand.add(used);
        }
    }

    /// A refused request was charged all the same, and this much is used now.
    pub(super) fn charged_late(&mut self, requirement: &Requirement, used: u64, now_ms: u64) {
        self.scale.reach(now_ms);
        let scale = self.scale;
        if let Some(row) = self.row(requirement) {
            row.used(used, &scale, now_ms);
        }
    }

    /// A limit said no.
    pub(super) fn denied(&mut self, requirement: &Requirement, now_ms: u64) {
        self.scale.reach(now_ms);
        let scale = self.scale;
        let Some(row) = self.row(requirement) else { return };
        row.denied += 1;
        if let Some(plot) = &mut row.plot {
            plot.at(&scale, now_ms).denied += 1;
        }
    }

    /// A report of each, by its key, with what the other configuration and the demand say.
    pub(super) fn reports(
        &self,
        span_ms: u64,
        against: Option<&Limits>,
        suggested: Option<(&Limits, f64)>,
    ) -> Vec<LimitReport> {
        let mut reports: Vec<LimitReport> = Vec::new();
        for row in &self.rows {
            let other = against.and_then(|against| against.find(row.account.id));
            let demand = suggested.and_then(|(demands, part)| {
                demands.find(row.account.id)?.demand.as_ref().map(|demand| demand.suggestion(part))
            });
            reports.push(LimitReport {
                capacity: Some(row.spec.capacity),
                admitted: row.admitted,
                denied: row.denied,
                peak: row.peak,
                used: row.use_of(span_ms),
                against: other.map(Row::against),
                suggested: demand,
                ..row.bare()
            });
        }
        let only_there = against.into_iter().flat_map(|against| &against.rows);
        for row in only_there.filter(|row| self.find(row.account.id).is_none()) {
            reports.push(LimitReport { against: Some(row.against()), ..row.bare() });
        }
        reports.sort_by(|a, b| a.key.cmp(&b.key));
        reports
    }

    fn find(&self, id: LimitId) -> Option<&Row> {
        let found = self.by_id.find(hash(id), |&at| self.rows[at as usize].account.id == id)?;
        Some(&self.rows[*found as usize])
    }

    pub(super) fn scale(&self) -> Scale {
        self.scale
    }

    /// What the limits that matter most were used over time.
    pub(super) fn plots(self, scale: &Scale) -> Vec<LimitPlot> {
        let mut plotted: Vec<Row> = self.rows.into_iter().filter(|row| row.plot.is_some()).collect();
        plotted.sort_by(|a, b| {
            (b.denied, b.admitted)
                .cmp(&(a.denied, a.admitted))
                .then_with(|| a.account.key.as_str().cmp(b.account.key.as_str()))
        });
        plotted.truncate(PLOTS_MAX);
        let plot = |row: Row| {
            let used = row.plot?.finish(scale);
            Some(LimitPlot { key: row.account.key.to_string(), capacity: row.spec.capacity, used })
        };
        plotted.into_iter().filter_map(plot).collect()
    }
}

impl Row {
    fn used(&mut self, used: u64, scale: &Scale, now_ms: u64) {
        self.peak = self.peak.max(used);
        if let Some(plot) = &mut self.plot {
            let bucket = plot.at(scale, now_ms);
            *bucket = bucket.merged(Use { peak: Some(used), denied: 0 });
        }
    }

    /// The part of the limit that was used. What is shorter than a window is taken for one.
    fn use_of(&self, span_ms: u64) -> f64 {
        let lifetime_ms = u64::from(self.spec.kind.lifetime_seconds().get()) * 1000;
        let span_ms = match self.spec.kind {
            Kind::Rolling { .. } => span_ms.max(lifetime_ms),
            Kind::Concurrency { .. } => span_ms.max(1),
        };
        let most = u128::from(self.spec.capacity) * u128::from(span_ms);
        if most == 0 { 0.0 } else { (self.held_ms as f64 / most as f64).min(1.0) }
    }

    fn against(&self) -> LimitAgainst {
        let Self { admitted, denied, peak, .. } = *self;
        LimitAgainst { capacity: self.spec.capacity, admitted, denied, peak }
    }

    /// Its name and kind.
    fn bare(&self) -> LimitReport {
        let seconds = Some(self.spec.kind.lifetime_seconds().get());
        let is_rolling = matches!(self.spec.kind, Kind::Rolling { .. });
        LimitReport {
            key: self.account.key.to_string(),
            kind: self.spec.kind.name(),
            capacity: None,
            window_seconds: seconds.filter(|_| is_rolling),
            timeout_seconds: seconds.filter(|_| !is_rolling),
            admitted: 0,
            denied: 0,
            peak: 0,
            used: 0.0,
            against: None,
            suggested: None,
        }
    }
}

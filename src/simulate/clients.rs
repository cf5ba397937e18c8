//! Made-up clients on virtual time: when each comes, what it asks, and when it comes back after a denial. Seeded: the same seed
//! gives the same clients.
//!
//! Refuses to know what decides about them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;

use super::report::{PopulationReport, WaitPlot};
use super::scenario::{Arrivals, Piece, Population, Retry, Scenario};
use super::series::{Bucket, Scale, Series, Waits};
use super::traffic::batch::{Batch, Request};
use super::waits::WaitTimes;

/// Those who wait to try again, over all populations. Whoever is denied beyond that gives up. 48 bytes each.
const WAITING_MAX: usize = 1 << 19;

const IGNORING_MS: u64 = 1_000;
const BACKOFF_FIRST_MS: u64 = 300;
const BACKOFF_LAST_MS: u64 = 3_000;

/// A client on its way; the earliest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Try {
    pub(super) at_ms: u64,
    /// Of those that come at the same time, the one that set out first.
    order: u64,
    pub(super) population: usize,
    /// Which request of its population, from 1; 0 for one that has no number yet.
    pub(super) number: u64,
    tenant: u64,
    first_ms: u64,
    pub(super) attempt: u64,
    /// It was told to come now.
    is_told: bool,
}

#[derive(Debug)]
struct Group {
    population: Population,
    until_ms: u64,
    seconds: f64,
    /// For when requests come and whose they are. Nothing that is answered changes what it draws.
    arrivals: fastrand::Rng,
    /// For the rest.
    rng: fastrand::Rng,
    /// When the next one comes, where they come at a rate.
    next_ms: f64,
    requests: u64,
    attempts: u64,
    returns: u64,
    admitted: u64,
    denied: u64,
    waits: WaitTimes,
    plot: Series<Waits>,
}

#[derive(Debug)]
pub(super) struct Clients {
    groups: Vec<Group>,
    tries: BinaryHeap<Reverse<Try>>,
    orders: u64,
    scale: Scale,
}

/// What a client hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    Admitted,
    /// With the time after which it should come back, if there is one.
    Denied(Option<u64>),
}

impl Clients {
    pub(super) fn new(scenarios: &[Scenario], seed: u64, start_ms: u64) -> Self {
        let mut clients =
            Self { groups: Vec::new(), tries: BinaryHeap::new(), orders: 0, scale: Scale::new(start_ms) };
        for scenario in scenarios {
            for population in &scenario.populations {
                clients.add(population, scenario.seconds, seed, start_ms);
            }
        }
        clients
    }

    fn add(&mut self, population: &Population, seconds: u64, seed: u64, start_ms: u64) {
        let place = self.groups.len();
        // Two generators for each population, whose numbers have nothing to do with one another.
        let mut seeds = fastrand::Rng::with_seed(seed);
        let mut seeds = std::iter::repeat_with(|| fastrand::Rng::with_seed(seeds.u64(..))).skip(place * 2);
        let mut rng = || seeds.next().expect("there must always be another number");
        let mut group = Group {
            population: population.clone(),
            until_ms: start_ms + seconds * 1000,
            seconds: seconds as f64,
            arrivals: rng(),
            rng: rng(),
            next_ms: start_ms as f64,
            requests: 0,
            attempts: 0,
            returns: 0,
            admitted: 0,
            denied: 0,
            waits: WaitTimes::default(),
            plot: Series::default(),
        };
        match population.arrivals {
            Arrivals::Rate(_) => {
                let (at_ms, tenant) = group.next_arrival();
                self.groups.push(group);
                self.send(place, tenant, at_ms);
            }
            Arrivals::Clients { count, .. } => {
                let firsts: Vec<u64> = (0..count).map(|_| start_ms + group.think_ms()).collect();
                let tenants = population.tenants;
                self.groups.push(group);
                for (client, at_ms) in (0..).zip(firsts) {
                    self.send(place, client % tenants, at_ms);
                }
            }
        }
    }

    /// Somebody sets out with a new request, unless it would come after the end.
    fn send(&mut self, population: usize, tenant: u64, at_ms: u64) {
        if at_ms < self.groups[population].until_ms {
            let (number, attempt, is_told) = (0, 0, false);
            self.push(Try { at_ms, order: 0, population, number, tenant, first_ms: at_ms, attempt, is_told });
        }
    }

    fn push(&mut self, new: Try) {
        self.orders += 1;
        self.tries.push(Reverse(Try { order: self.orders, ..new }));
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        self.tries.peek().map(|Reverse(next)| next.at_ms)
    }

    /// When the last of them stops.
    pub(super) fn until_ms(&self) -> Option<u64> {
        self.groups.iter().map(|group| group.until_ms).max()
    }

    /// Whether requests of this population come at the same times whatever is answered.
    pub(super) fn comes_anyway(&self, population: usize) -> bool {
        matches!(self.groups[population].population.arrivals, Arrivals::Rate(_))
    }

    pub(super) fn name(&self, population: usize) -> &str {
        &self.groups[population].population.name
    }

    /// The next one, whose request becomes all of `batch`.
    pub(super) fn pop(&mut self, batch: &mut Batch) -> Option<Try> {
        let Reverse(mut next) = self.tries.pop()?;
        let group = &mut self.groups[next.population];
        group.attempts += 1;
        group.returns += u64::from(next.is_told);
        if next.attempt == 0 {
            group.requests += 1;
            next.number = group.requests;
        }
        group.write(&next, batch);
        if next.attempt == 0 && matches!(group.population.arrivals, Arrivals::Rate(_)) {
            let (at_ms, tenant) = group.next_arrival();
            self.send(next.population, tenant, at_ms);
        }
        Some(next)
    }

    /// What the one that came was answered.
    pub(super) fn hear(&mut self, it: &Try, heard: Heard) {
        self.scale.reach(it.at_ms);
        let (is_full, scale) = (self.tries.len() >= WAITING_MAX, self.scale);
        let group = &mut self.groups[it.population];
        let again_ms = match heard {
            Heard::Admitted => {
                group.admitted += 1;
                let wait_ms = it.at_ms - it.first_ms;
                group.waits.add(wait_ms);
                if group.population.retry == Retry::Obey {
                    let bucket = group.plot.at(&scale, it.at_ms);
                    *bucket = bucket.merged(Waits { count: 1, sum_ms: wait_ms, max_ms: wait_ms });
                }
                None
            }
            Heard::Denied(hint_ms) => {
                group.denied += 1;
                group.again_ms(it.attempt, hint_ms).filter(|_| !is_full)
            }
        };
        if let Some((wait_ms, is_told)) = again_ms {
            let at_ms = it.at_ms.saturating_add(wait_ms);
            if at_ms < group.until_ms {
                self.push(Try { at_ms, attempt: it.attempt + 1, is_told, ..*it });
            }
            return;
        }
        if matches!(group.population.arrivals, Arrivals::Clients { .. }) {
            // Who gave up has held nothing.
            let held_ms = if heard == Heard::Admitted { group.population.hold_ms } else { 0 };
            let at_ms = it.at_ms + held_ms + group.think_ms();
            self.send(it.population, it.tenant, at_ms);
        }
    }

    pub(super) fn reports(&self) -> Vec<PopulationReport> {
        self.groups.iter().map(Group::report).collect()
    }

    /// How long those who obey waited, in buckets of `scale`.
    pub(super) fn plots(self, scale: &Scale) -> Vec<WaitPlot> {
        let obeying = self.groups.into_iter().filter(|group| group.population.retry == Retry::Obey);
        let plot =
            |group: Group| WaitPlot { population: group.population.name, waits: group.plot.finish(scale) };
        obeying.map(plot).collect()
    }
}

impl Group {
    /// When the next one comes, and who it is.
    fn next_arrival(&mut self) -> (u64, u64) {
        if let Arrivals::Rate(rate) = self.population.arrivals {
            self.next_ms += exponential(&mut self.arrivals, 1000.0 / rate);
        }
        let tenant = self.arrivals.u64(..self.population.tenants);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
        let at_ms = self.next_ms as u64;
        (at_ms, tenant)
    }

    fn think_ms(&mut self) -> u64 {
        let Arrivals::Clients { think_seconds, .. } = self.population.arrivals else { return 0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few times the mean")]
        let think_ms = exponential(&mut self.rng, think_seconds * 1000.0).round() as u64;
        think_ms
    }

    /// After how long a denied client tries again, and whether it was told so; `None` if it gives up.
    fn again_ms(&mut self, attempt: u64, hint_ms: Option<u64>) -> Option<(u64, bool)> {
        if self.population.attempts_max.is_some_and(|most| attempt + 1 >= most) {
            return None;
        }
        match self.population.retry {
            Retry::Never => None,
            // What can never be admitted is told no time, and whoever obeys doesn't come back.
            Retry::Obey => hint_ms.map(|ms| (ms, true)),
            Retry::Ignore => Some((IGNORING_MS, false)),
            Retry::Backoff => {
                let most_ms = (BACKOFF_FIRST_MS << attempt.min(8)).min(BACKOFF_LAST_MS);
                Some((self.rng.u64(0..=most_ms), false))
            }
        }
    }

    fn write(&self, it: &Try, batch: &mut Batch) {
        let population = &self.population;
        batch.clear();
        let mark = batch.mark();
        let mut value = String::new();
        for descriptor in &population.descriptors {
            let from = batch.entries_len();
            for entry in descriptor {
                value.clear();
                for piece in &entry.value {
                    match piece {
                        Piece::Text(text) => value.push_str(text),
                        Piece::Tenant => write!(value, "{}", it.tenant).expect("a String must take text"),
                        Piece::Attempt => write!(value, "{}", it.attempt).expect("a String must take text"),
                    }
                }
                batch.entry(&entry.key, &value);
            }
            batch.descriptor(from, None, None);
        }
        let domain = batch.word(&population.domain);
        let duration_ms = Some(population.hold_ms);
        let request = Request { time_ms: it.at_ms, hits: population.cost, duration_ms, ..Request::default() };
        batch.request(mark, domain, request);
    }

    fn report(&self) -> PopulationReport {
        let admitted = self.admitted.max(1) as f64;
        PopulationReport {
            name: self.population.name.clone(),
            requests: self.requests,
            attempts: self.attempts,
            admitted: self.admitted,
            denied: self.denied,
            goodput_per_second: self.admitted as f64 / self.seconds,
            attempts_per_admission: self.attempts as f64 / admitted,
            returns_per_admission: self.returns as f64 / admitted,
            wait_ms: self.waits.summary(),
        }
    }
}

/// The time between two events that happen independently of one another, at random.
fn exponential(rng: &mut fastrand::Rng, mean: f64) -> f64 {
    -(1.0 - rng.f64()).ln() * mean
}

//! The one loop: whoever is next in time asks, every configuration decides, and what it said is counted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::clients::{Clients, Heard};
use super::compare::Compare;
use super::decisions::{Decisions, code};
use super::report::{Plots, Recorded, Report, TenantDenials};
use super::scenario::Scenario;
use super::side::{Mode, Side};
use super::traffic::batch::{Batch, Request};
use super::traffic::map::Map;
use super::traffic::{Files, Part, Stream, name_of};
use super::{Failure, Options, Progress, Watch};
use crate::admission::DecideError;
use crate::clock::VirtualTime;
use crate::config::{self, Layout, Loaded, Problem};

/// The seed when none is named.
const SEED: u64 = 1;

/// Broken lines that are named.
const NAMED_MAX: u64 = 1_000;

/// Tries of clients between two looks at how far it is.
const TRIES_PER_LOOK: u64 = 4_096;

/// Tenants that are listed.
const TENANTS_LISTED: usize = 20;

/// The places of the sides.
const HERE: usize = 0;
const AGAINST: usize = 1;

pub fn run(options: &Options, watch: &mut dyn Watch) -> Result<Report, Failure> {
    let Inputs { loaded, scenarios, files } = Inputs::read(options).map_err(Failure::Problems)?;
    let decisions = options
        .decisions
        .as_deref()
        .map(|path| Decisions::create(path).map_err(|error| not_written(path, &error)));
    let mut decisions = decisions.transpose()?;
    let seed = options.seed.or_else(|| scenarios.iter().find_map(|scenario| scenario.seed)).unwrap_or(SEED);
    std::thread::scope(|scope| {
        let bytes_all: u64 =
            files.paths.iter().filter_map(|path| path.metadata().ok()).map(|it| it.len()).sum();
        let stream = Stream::open(scope, &files).map_err(Failure::Problems)?;
        let mut log = Log::new(stream, &files.paths, bytes_all);
        log.fill(watch);
        let start_ms = log.next_ms().unwrap_or(0);
        let time = VirtualTime::begin(start_ms);
        let side = |(loaded, mode): (Loaded, Mode)| {
            Side::new(loaded, mode, seed, Clients::new(&scenarios, seed, start_ms))
        };
        let mut run = Run {
            sides: loaded.into_iter().map(side).collect(),
            time,
            compare: options.against.as_ref().map(|_| Compare::default()),
            decisions: decisions.as_mut(),
            recorded: Recorded::default(),
            scratch: Batch::default(),
            start_ms,
            last_ms: start_ms,
            tries: 0,
        };
        run.until_the_end(&mut log, watch)?;
        let report = run.report(options, seed, log.broken);
        if let (Some(written), Some(path)) = (decisions, &options.decisions) {
            written.finish().map_err(|error| not_written(path, &error))?;
        }
        Ok(report)
    })
}

fn not_written(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Other(format!("{}: can't be written: {error}", path.display()))
}

/// All files that say what to do, checked together.
struct Inputs {
    /// A configuration for each side: what it says here, against, and without capacities.
    loaded: Vec<(Loaded, Mode)>,
    scenarios: Vec<Scenario>,
    files: Files,
}

impl Inputs {
    fn read(options: &Options) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut loaded = Vec::new();
        let here = &options.config;
        // Each has its own: a limit that two shared would remember the hints of both.
        let against = options.against.clone().map(Layout::from);
        let against = against.as_ref().map(|there| (there, Mode::AsWritten));
        let unlimited = options.suggest.map(|_| (here, Mode::Unlimited));
        for (layout, mode) in [Some((here, Mode::AsWritten)), against, unlimited].into_iter().flatten() {
            match config::load_layout(layout) {
                Ok(one) => loaded.push((one, mode)),
                Err(more) => problems.extend(more),
            }
        }
        let (scenarios, logs): (Vec<&PathBuf>, Vec<&PathBuf>) =
            options.traffic.iter().partition(|path| is_scenario(path));
        let mut read = Vec::new();
        for path in scenarios {
            match Scenario::load(path) {
                Ok(scenario) => read.push(scenario),
                Err(more) => problems.extend(more),
            }
        }
        let map = match options.map.as_deref().map(Map::load) {
            None => None,
            Some(Ok(map)) => Some(Arc::new(map)),
            Some(Err(more)) => {
                problems.extend(more);
                None
            }
        };
        problems.dedup();
        if !problems.is_empty() {
            return Err(problems);
        }
        let files = Files { paths: logs.into_iter().cloned().collect(), map };
        Ok(Self { loaded, scenarios: read, files })
    }
}

/// Also one that is packed.
fn is_scenario(path: &Path) -> bool {
    let is_packed = path.extension().is_some_and(|extension| extension == "gz");
    let plain = path.file_stem().filter(|_| is_packed).map_or(path, Path::new);
    plain.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Requests that were written down, one at a time.
struct Log<'p> {
    stream: Option<Stream>,
    paths: &'p [PathBuf],
    bytes_all: u64,
    batch: Batch,
    next: usize,
    broken: u64,
}

impl<'p> Log<'p> {
    fn new(stream: Stream, paths: &'p [PathBuf], bytes_all: u64) -> Self {
        Self { stream: Some(stream), paths, bytes_all, batch: Batch::default(), next: 0, broken: 0 }
    }

    /// Sees to it that there is a next request, if there is any.
    fn fill(&mut self, watch: &mut dyn Watch) {
        while self.next == self.batch.len()
            && let Some(stream) = &mut self.stream
        {
            match stream.next(Some(std::mem::take(&mut self.batch))) {
                Some(Part { batch, broken, broken_count }) => {
                    (self.batch, self.next) = (batch, 0);
                    for problem in &broken {
                        self.name(problem, watch);
                    }
                    self.broken += broken_count - broken.len() as u64;
                }
                None => (self.stream, self.next) = (None, 0),
            }
        }
    }

    fn name(&mut self, problem: &Problem, watch: &mut dyn Watch) {
        self.broken += 1;
        if self.broken <= NAMED_MAX {
            watch.broken(problem);
        }
    }

    fn next_ms(&self) -> Option<u64> {
        (self.next < self.batch.len()).then(|| self.batch.get(self.next).time_ms)
    }

    fn at(&self, request: &Request) -> String {
        let path = self.paths.get(request.file as usize);
        format!("{}:{}", path.map(|path| name_of(path)).unwrap_or_default(), request.line)
    }

    fn part_done(&self) -> Option<f64> {
        let stream = self.stream.as_ref()?;
        (self.bytes_all > 0).then(|| (stream.bytes_read() as f64 / self.bytes_all as f64).min(1.0))
    }
}

struct Run<'r> {
    /// Here; then against, and the one without capacities, if they are wanted.
    sides: Vec<Side>,
    time: VirtualTime,
    compare: Option<Compare>,
    decisions: Option<&'r mut Decisions>,
    recorded: Recorded,
    scratch: Batch,
    start_ms: u64,
    last_ms: u64,
    tries: u64,
}

impl Run<'_> {
    fn until_the_end(&mut self, log: &mut Log<'_>, watch: &mut dyn Watch) -> Result<(), Failure> {
        loop {
            let sides = self.sides.iter().enumerate();
            let client = sides.filter_map(|(side, it)| Some((it.clients.next_ms()?, side))).min();
            match (log.next_ms(), client) {
                (None, None) => return Ok(()),
                (Some(log_ms), client) if client.is_none_or(|(client_ms, _)| log_ms <= client_ms) => {
                    self.decide_line(log, watch)?;
                    log.next += 1;
                    if log.next == log.batch.len() {
                        let progress =
                            Progress { requests: self.sides[HERE].totals.requests, part: log.part_done() };
                        watch.progress(progress);
                        log.fill(watch);
                    }
                }
                (_, Some((_, side))) => self.decide_client(side, watch)?,
                (Some(_), None) => unreachable!("a line that nobody comes before must be next"),
            }
        }
    }

    fn decide_line(&mut self, log: &mut Log<'_>, watch: &mut dyn Watch) -> Result<(), Failure> {
        let request = *log.batch.get(log.next);
        self.last_ms = self.last_ms.max(request.time_ms);
        let here = match self.sides[HERE].decide(&log.batch, &request, &mut self.time) {
            Ok(denial) => denial,
            Err(DecideError::Invalid(error)) => {
                let path = log.paths.get(request.file as usize);
                let problem = Problem {
                    file: path.map(|path| name_of(path)).unwrap_or_default().into(),
                    line: u32::try_from(request.line).unwrap_or(u32::MAX),
                    field: "descriptors".to_owned(),
                    message: error.to_string(),
                };
                log.name(&problem, watch);
                return Ok(());
            }
            Err(error) => return Err(Failure::Other(error.to_string())),
        };
        if let Some(was_denied) = request.was_denied {
            self.recorded.denied += u64::from(was_denied);
            self.recorded.agree += u64::from(was_denied == here.is_some());
        }
        let mut against = None;
        for (place, side) in self.sides.iter_mut().enumerate().skip(1) {
            match side.decide(&log.batch, &request, &mut self.time) {
                Ok(denial) if place == AGAINST => against = Some(denial),
                // What only another configuration finds wrong can't be compared.
                Ok(_) | Err(DecideError::Invalid(_)) => {}
                Err(error) => return Err(Failure::Other(error.to_string())),
            }
        }
        let against = against.filter(|_| self.compare.is_some());
        if let (Some(compare), Some(against)) = (&mut self.compare, &against) {
            compare.both(|| log.at(&request), request.time_ms, here.as_ref(), against.as_ref());
        }
        if let Some(decisions) = &mut self.decisions {
            let other = against.as_ref().map(|denial| code(denial.as_ref()));
            let written = decisions.write(&log.at(&request), request.time_ms, here.as_ref(), other);
            written.map_err(|error| Failure::Other(format!("the decisions can't be written: {error}")))?;
        }
        Ok(())
    }

    fn decide_client(&mut self, place: usize, watch: &mut dyn Watch) -> Result<(), Failure> {
        let side = &mut self.sides[place];
        let Some(it) = side.clients.pop(&mut self.scratch) else { return Ok(()) };
        self.last_ms = self.last_ms.max(it.at_ms);
        let request = *self.scratch.get(0);
        let denial = side.decide(&self.scratch, &request, &mut self.time);
        let denial = denial.map_err(|error| {
            Failure::Other(format!("population {}: {error}", side.clients.name(it.population)))
        })?;
        side.clients.hear(
            &it,
            match &denial {
                None => Heard::Admitted,
                Some(denial) => Heard::Denied(denial.retry_after_ms),
            },
        );
        let at = || format!("{}:{}", side.clients.name(it.population), it.number);
        if let Some(compare) = &mut self.compare
            && place <= AGAINST
            && it.attempt == 0
            && side.clients.comes_anyway(it.population)
        {
            compare.one((it.population, it.number), at, it.at_ms, place == HERE, denial.as_ref());
        }
        if place != HERE {
            return Ok(());
        }
        if let Some(decisions) = &mut self.decisions {
            let written = decisions.write(&at(), it.at_ms, denial.as_ref(), None);
            written.map_err(|error| Failure::Other(format!("the decisions can't be written: {error}")))?;
        }
        self.tries += 1;
        if self.tries.is_multiple_of(TRIES_PER_LOOK) {
            let until_ms = side.clients.until_ms().unwrap_or(it.at_ms);
            let (done_ms, all_ms) = (it.at_ms - self.start_ms, until_ms - self.start_ms);
            let part = (all_ms > 0).then(|| (done_ms as f64 / all_ms as f64).min(1.0));
            watch.progress(Progress { requests: side.totals.requests, part });
        }
        Ok(())
    }

    fn report(self, options: &Options, seed: u64, broken: u64) -> Report {
        let until_ms = self.sides[HERE].clients.until_ms().unwrap_or(self.start_ms).max(self.last_ms);
        let span_ms = until_ms - self.start_ms;
        let mut sides = self.sides.into_iter();
        let here = sides.next().expect("there must be a configuration");
        let against = options.against.as_ref().and_then(|_| sides.next());
        let suggested = options.suggest.zip(sides.next());
        let suggested = suggested.as_ref().map(|(part, side)| (&side.limits, *part));
        let limits = here.limits.reports(span_ms, against.as_ref().map(|side| &side.limits), suggested);
        let mut scale = here.limits.scale();
        scale.reach(until_ms);
        Report {
            seed,
            requests: here.totals.requests,
            admitted: here.totals.admitted,
            denied: here.totals.denied,
            unmatched: here.totals.unmatched,
            broken,
            recorded: self.recorded,
            limits,
            limits_left_out: here.limits.unlisted,
            populations: here.clients.reports(),
            differences: self.compare.map(Compare::finish),
            plots: Plots {
                start_ms: self.start_ms,
                span_ms,
                bucket_ms: scale.bucket_ms,
                tenants: tenants(&here, against.as_ref()),
                limits: here.limits.plots(&scale),
                waits: here.clients.plots(&scale),
            },
        }
    }
}

/// Who was denied most, here or there.
fn tenants(here: &Side, against: Option<&Side>) -> Vec<TenantDenials> {
    let denied = |side: &Side, tenant: &str| side.tenants.get(tenant).copied().unwrap_or(0);
    let there = against.into_iter().flat_map(|side| side.tenants.keys());
    let only_there = there.filter(|tenant| !here.tenants.contains_key(*tenant));
    let mut all: Vec<TenantDenials> = here
        .tenants
        .keys()
        .chain(only_there)
        .map(|tenant| TenantDenials {
            tenant: tenant.clone(),
            denied: denied(here, tenant),
            against: against.map(|side| denied(side, tenant)),
        })
        .collect();
    all.sort_by(|a, b| {
        let most = |it: &TenantDenials| it.denied.max(it.against.unwrap_or(0));
        most(b).cmp(&most(a)).then_with(|| a.tenant.cmp(&b.tenant))
    });
    all.truncate(TENANTS_LISTED);
    all
}

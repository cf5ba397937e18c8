//! Which job waits at which limit, in what order, and whose turn it is. Pure.
//!
//! A job waits at one of its limits: the one that refused it, or one at which an earlier job waits. When a limit gets
//! something back, the job that has waited there longest is attempted. The next one has its turn only when that job was
//! served, or moved to another of its limits that refused it. So no job is overtaken at the limit where it waits, jobs
//! with the same limits are served in the order in which they came, and a job holds up nobody who needs other limits.
//!
//! A job that different limits refuse in turn would never find all of them free at once. Such a job may insist: it then
//! waits at every limit that has refused it, and later jobs wait behind it at each of them.
//!
//! At most one job is attempted at a time per limit, because two under way could overtake each other. Refuses to know
//! the ledger, the clock, and what amounts mean.

use std::collections::{BTreeMap, VecDeque};

use ahash::{AHashMap, AHashSet};
use smallvec::{SmallVec, smallvec};

use super::place::{JobId, LimitId};

/// What a job needs of each of its limits.
pub(super) type Amounts = SmallVec<[(LimitId, u64); 4]>;

#[derive(Debug, Default)]
pub(super) struct Order {
    /// Only limits at which a job waits or is being attempted.
    lines: AHashMap<LimitId, LimitQueue>,
    jobs: AHashMap<JobId, Job>,
    /// Limits that may have something for the job that is first there.
    ready: VecDeque<LimitId>,
    /// The number of the job that came last.
    came: u64,
    /// Limits at which somebody else may be first now, or something else may be needed.
    changed: AHashSet<LimitId>,
}

#[derive(Debug, Default)]
struct LimitQueue {
    /// In the order in which they came, with what each needs.
    waiting: BTreeMap<u64, (JobId, u64)>,
    /// What they need together. A `u128` has place for any number of jobs.
    demand: u128,
    /// For each of them when it came, and what those before it need. Made when somebody asks, dropped by every change.
    ranks: Option<Vec<(u64, u64)>>,
    attempting: Option<JobId>,
    is_ready: bool,
    /// Something came back while a job was being attempted: if that job is refused, it is worth another attempt.
    freed_meanwhile: bool,
}

#[derive(Debug)]
struct Job {
    came: u64,
    needs: Amounts,
    /// The limits that it waits at; none while it is being attempted. Its position is the one at the last of them.
    waits_at: SmallVec<[LimitId; 2]>,
    /// In the order of their last refusals.
    refused_by: SmallVec<[LimitId; 2]>,
    insists: bool,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    /// The limit that it waits at.
    pub(super) limit: LimitId,
    /// How many jobs are before it there.
    pub(super) jobs_before: u64,
    /// What they need of that limit together; a job that is being attempted counts too.
    pub(super) amount_before: u64,
    /// What it needs itself.
    pub(super) own: u64,
}

impl Order {
    /// How many jobs wait or are being attempted.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// How many jobs wait at a limit.
    pub(super) fn waiting_at(&self, limit: LimitId) -> usize {
        self.lines.get(&limit).map_or(0, |line| line.waiting.len())
    }

    /// How many jobs wait at each limit, and what they need of it together.
    pub(super) fn lines(&self) -> impl Iterator<Item = (LimitId, usize, u64)> {
        let waiting = self.lines.iter().filter(|(_, line)| !line.waiting.is_empty());
        waiting
            .map(|(&limit, line)| (limit, line.waiting.len(), u64::try_from(line.demand).unwrap_or(u64::MAX)))
    }

    /// The job that is next at a limit, and what it needs of it.
    pub(super) fn first_at(&self, limit: LimitId) -> Option<(JobId, u64)> {
        self.lines.get(&limit)?.waiting.first_key_value().map(|(_, first)| *first)
    }

    /// Adds a job behind all others. It has its turn as soon as no job is before it. `refused_by` is the limit that it
    /// could not have, if it was attempted before. True if jobs wait before it and none of them has a turn now, so that
    /// its position is known already.
    pub(super) fn join(&mut self, id: JobId, needs: Amounts, refused_by: Option<LimitId>) -> bool {
        self.came += 1;
        let in_the_way = self.first_in_the_way(&needs, self.came, None);
        let limit = in_the_way.or(refused_by).unwrap_or(needs[0].0);
        let (mut nobody_before, mut stands_still) = (true, false);
        if let Some(line) = self.lines.get(&limit) {
            nobody_before = line.waiting.is_empty();
            stands_still = !nobody_before && !line.is_ready && line.attempting.is_none();
        }
        let refused_by = refused_by.into_iter().collect();
        let job = Job { came: self.came, needs, waits_at: SmallVec::new(), refused_by, insists: false };
        self.jobs.insert(id, job);
        self.stand(id, smallvec![limit]);
        if nobody_before {
            self.make_ready(limit);
        }
        stands_still
    }

    /// Something of a limit came back.
    pub(super) fn freed(&mut self, limit: LimitId) {
        if self.lines.contains_key(&limit) {
            self.make_ready(limit);
        }
    }

    /// Something of every limit may have come back.
    pub(super) fn freed_all(&mut self) {
        let limits: Vec<LimitId> = self.lines.keys().copied().collect();
        limits.into_iter().for_each(|limit| self.make_ready(limit));
    }

    /// The job whose turn it is. From here on it is being attempted.
    pub(super) fn next_turn(&mut self) -> Option<JobId> {
        while let Some(limit) = self.ready.pop_front() {
            let Some(line) = self.lines.get_mut(&limit) else { continue };
            line.is_ready = false;
            if line.attempting.is_some() {
                line.freed_meanwhile = true;
                continue;
            }
            let Some((&came, &(id, _))) = line.waiting.first_key_value() else { continue };
            let job = &self.jobs[&id];
            if let Some(other) = self.first_in_the_way(&job.needs, came, Some(limit)) {
                self.go_behind(id, other, limit);
                continue;
            }
            self.step_out(id);
            for (limit, _) in self.needs(id) {
                self.lines.entry(limit).or_default().attempting = Some(id);
            }
            return Some(id);
        }
        None
    }

    /// A job that was attempted did not get this limit: it goes back to where it stood there.
    pub(super) fn refused(&mut self, id: JobId, limit: LimitId) {
        // If the job waits, it was not attempted: then this refusal is that of an earlier job with the same name.
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.waits_at.is_empty()) else { return };
        debug_assert!(job.needs.iter().any(|(there, _)| *there == limit));
        job.refused_by.retain(|there| *there != limit);
        job.refused_by.push(limit);
        let waits_at = if job.insists { job.refused_by.clone() } else { smallvec![limit] };
        let freed = self.lines.get(&limit).is_some_and(|line| line.freed_meanwhile);
        self.stand(id, waits_at);
        self.end_attempt(id, Some(limit));
        if freed {
            self.make_ready(limit);
        }
    }

    /// From now on it waits at every limit that has refused it.
    pub(super) fn insist(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.insists = true;
        if let Some(&here) = job.waits_at.last() {
            let others = job.refused_by.iter().copied().filter(|limit| *limit != here);
            let waits_at = others.chain([here]).collect();
            self.step_out(id);
            self.stand(id, waits_at);
        }
    }

    /// From now on it waits at one limit again.
    pub(super) fn relent(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.insists = false;
        let Some(last) = job.waits_at.last().copied() else { return };
        let left = job.waits_at.clone();
        self.step_out(id);
        self.stand(id, smallvec![last]);
        for limit in left.into_iter().filter(|limit| *limit != last) {
            self.make_ready(limit);
            self.tidy(limit);
        }
    }

    /// Takes a job out because it was served or left: those behind it move up. What it needed, if it was there.
    pub(super) fn remove(&mut self, id: JobId) -> Option<Amounts> {
        self.end_attempt(id, None);
        let waits_at = self.jobs.get(&id)?.waits_at.clone();
        self.step_out(id);
        let job = self.jobs.remove(&id)?;
        for limit in waits_at {
            self.make_ready(limit);
            self.tidy(limit);
        }
        Some(job.needs)
    }

    /// Where a job stands; the front while it is being attempted.
    pub(super) fn position(&mut self, id: JobId) -> Option<Position> {
        let job = self.jobs.get(&id)?;
        let Some(&limit) = job.waits_at.last() else {
            let (limit, own) = job.needs[0];
            return Some(Position { limit, jobs_before: 0, amount_before: 0, own });
        };
        let (came, own) = (job.came, job.needs_of(limit));
        let attempted = self.lines.get(&limit)?.attempting.and_then(|id| self.jobs.get(&id));
        let attempted = attempted.map(|job| job.needs_of(limit));
        let ranks = self.lines.get_mut(&limit)?.ranks();
        let rank = ranks.binary_search_by_key(&came, |(came, _)| *came).ok()?;
        let jobs_before = rank as u64 + u64::from(attempted.is_some());
        let amount_before = ranks[rank].1.saturating_add(attempted.unwrap_or(0));
        Some(Position { limit, jobs_before, amount_before, own })
    }

    /// What all jobs that wait at a limit, or are being attempted, need of it together.
    pub(super) fn demand_at(&self, limit: LimitId) -> u64 {
        let Some(line) = self.lines.get(&limit) else { return 0 };
        let attempted = line.attempting.and_then(|id| self.jobs.get(&id));
        let attempted = attempted.map_or(0, |job| u128::from(job.needs_of(limit)));
        u64::try_from(line.demand + attempted).unwrap_or(u64::MAX)
    }

    /// The limits at which something has changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> AHashSet<LimitId> {
        std::mem::take(&mut self.changed)
    }

    /// A job that needs this limit is being attempted.
    pub(super) fn is_attempting(&self, limit: LimitId) -> bool {
        self.lines.get(&limit).is_some_and(|line| line.attempting.is_some())
    }

    /// What a job needs that waits or is being attempted.
    pub(super) fn needs(&self, id: JobId) -> Amounts {
        self.jobs.get(&id).map(|job| job.needs.clone()).unwrap_or_default()
    }

    /// No job waits at a limit or is being attempted there.
    pub(super) fn is_idle(&self, limit: LimitId) -> bool {
        !self.lines.contains_key(&limit)
    }

    /// The jobs that wait at a limit, in order.
    pub(super) fn at(&self, limit: LimitId) -> impl Iterator<Item = JobId> {
        self.lines.get(&limit).into_iter().flat_map(|line| line.waiting.values().map(|(id, _)| *id))
    }

    /// The first of a job's limits at which an earlier job waits, or any job is being attempted.
    fn first_in_the_way(&self, needs: &Amounts, came: u64, except: Option<LimitId>) -> Option<LimitId> {
        let in_the_way = |limit: &LimitId| {
            self.lines.get(limit).is_some_and(|line| {
                let waits = line.waiting.first_key_value().is_some_and(|(&first, _)| first < came);
                waits || line.attempting.is_some()
            })
        };
        needs.iter().map(|(limit, _)| *limit).filter(|limit| Some(*limit) != except).find(in_the_way)
    }

    /// The job that is first at `limit` has another before it at `other`: it waits there instead, or there too if it insists.
    fn go_behind(&mut self, id: JobId, other: LimitId, limit: LimitId) {
        let job = self.jobs.get_mut(&id).expect("a job that waits must be known");
        if job.insists {
            if !job.waits_at.contains(&other) {
                let waits_at = job.waits_at.iter().copied().chain([other]).collect();
                self.step_out(id);
                self.stand(id, waits_at);
            }
            return;
        }
        self.step_out(id);
        self.stand(id, smallvec![other]);
        self.make_ready(limit);
        self.tidy(limit);
    }

    /// Lets a job wait at these limits.
    fn stand(&mut self, id: JobId, waits_at: SmallVec<[LimitId; 2]>) {
        let job = self.jobs.get_mut(&id).expect("a job that waits must be known");
        for limit in &waits_at {
            let line = self.lines.entry(*limit).or_default();
            line.waiting.insert(job.came, (id, job.needs_of(*limit)));
            line.demand += u128::from(job.needs_of(*limit));
            line.ranks = None;
            self.changed.insert(*limit);
        }
        job.waits_at = waits_at;
    }

    /// Takes a job out of all lines. Those behind it are not given a turn by that.
    fn step_out(&mut self, id: JobId) {
        let job = self.jobs.get_mut(&id).expect("a job that waits must be known");
        for limit in std::mem::take(&mut job.waits_at) {
            if let Some(line) = self.lines.get_mut(&limit) {
                if let Some((_, amount)) = line.waiting.remove(&job.came) {
                    line.demand -= u128::from(amount);
                }
                line.ranks = None;
                self.changed.insert(limit);
            }
        }
    }

    /// Others may have a turn at its limits again, except at the one that refused it.
    fn end_attempt(&mut self, id: JobId, refused_at: Option<LimitId>) {
        for (limit, _) in self.needs(id) {
            let Some(line) = self.lines.get_mut(&limit).filter(|line| line.attempting == Some(id)) else {
                continue;
            };
            line.attempting = None;
            line.freed_meanwhile = false;
            self.changed.insert(limit);
            // Where it waits itself, nobody else has a turn.
            let stands_here = self.jobs.get(&id).is_some_and(|job| job.waits_at.contains(&limit));
            if Some(limit) != refused_at && !stands_here {
                self.make_ready(limit);
            }
            self.tidy(limit);
        }
    }

    fn make_ready(&mut self, limit: LimitId) {
        if let Some(line) = self.lines.get_mut(&limit)
            && !std::mem::replace(&mut line.is_ready, true)
        {
            self.ready.push_back(limit);
        }
    }

    fn tidy(&mut self, limit: LimitId) {
        if self.lines.get(&limit).is_some_and(|line| line.waiting.is_empty() && line.attempting.is_none()) {
            self.lines.remove(&limit);
        }
    }
}

impl LimitQueue {
    fn ranks(&mut self) -> &[(u64, u64)] {
        let waiting = &self.waiting;
        self.ranks.get_or_insert_with(|| {
            let rank = |before: &mut u64, (&came, &(_, amount)): (&u64, &(JobId, u64))| {
                let rank = (came, *before);
                *before = before.saturating_add(amount);
                Some(rank)
            };
            waiting.iter().scan(0, rank).collect()
        })
    }
}

impl Job {
    fn needs_of(&self, limit: LimitId) -> u64 {
        self.needs.iter().find(|(there, _)| *there == limit).map_or(0, |(_, amount)| *amount)
    }
}

#[cfg(test)]
mod tests;

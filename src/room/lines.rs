//! Who waits for which limit, in what order, and whose turn it is. Pure.
//!
//! A job waits at one of its limits: the one that refused it, or one at which somebody who came earlier waits. A limit
//! that got something back is offered to whoever has waited at it longest, and to the next only when that one was served
//! or found that another of its limits refuses it. So nobody is overtaken at a limit that he waits for, jobs with the
//! same limits are served in the order in which they came, and a job holds up no one who doesn't need what it needs.
//!
//! A job that different limits refuse in turn would never find all of them free at once. Such a one may insist: it
//! waits at every limit that has refused it, and those who came later wait behind it at each.
//!
//! At most one job is tried at a time per limit: two under way could overtake each other. Knows no amounts' meaning, no
//! ledger and no time.

use std::collections::{BTreeMap, VecDeque};

use ahash::AHashMap;
use smallvec::{SmallVec, smallvec};

/// A job, by the bits of its ticket.
pub type JobId = u128;
pub use crate::limit::LimitId;

/// What a job needs of each of its limits.
pub type Needs = SmallVec<[(LimitId, u64); 4]>;

#[derive(Debug, Default)]
pub struct Lines {
    /// Only limits at which somebody waits or is being tried.
    lines: AHashMap<LimitId, Line>,
    jobs: AHashMap<JobId, Job>,
    /// Limits that may have something for whoever is first.
    ready: VecDeque<LimitId>,
    came: u64,
}

#[derive(Debug, Default)]
struct Line {
    /// In the order in which they came, with what each needs.
    waiting: BTreeMap<u64, (JobId, u64)>,
    /// For each of them when it came and what is needed before it; made when somebody asks, gone with the next change.
    ranks: Option<Vec<(u64, u64)>>,
    trying: Option<JobId>,
    is_ready: bool,
    /// Something came back while a job was being tried: if that one is refused, it may not be any more.
    freed_meanwhile: bool,
}

#[derive(Debug)]
struct Job {
    came: u64,
    needs: Needs,
    /// Where it waits, the last one foremost; nowhere while it is being tried.
    spots: SmallVec<[LimitId; 2]>,
    /// In the order of their last refusals.
    refused_by: SmallVec<[LimitId; 2]>,
    insists: bool,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The limit that it waits at.
    pub limit: LimitId,
    /// How many are before it there.
    pub position: u64,
    /// What they need of that limit together, those being tried included.
    pub ahead: u64,
    /// What it needs itself.
    pub own: u64,
}

impl Lines {
    /// Jobs that wait or are being tried.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// How many wait at a limit.
    pub fn waiting_at(&self, limit: LimitId) -> usize {
        self.lines.get(&limit).map_or(0, |line| line.waiting.len())
    }

    /// The one who is next at a limit, and what it needs of it.
    pub fn first_at(&self, limit: LimitId) -> Option<(JobId, u64)> {
        self.lines.get(&limit)?.waiting.first_key_value().map(|(_, first)| *first)
    }

    /// Takes a place behind all who are there, and is tried as soon as nobody is before it. `refused_by` is the limit
    /// that it could not have, if it asked. True if nobody is tried at that place now.
    pub fn join(&mut self, id: JobId, needs: Needs, refused_by: Option<LimitId>) -> bool {
        self.came += 1;
        let in_the_way = self.first_in_the_way(&needs, self.came, None);
        let limit = in_the_way.or(refused_by).unwrap_or(needs[0].0);
        let (mut nobody_before, mut stands_still) = (true, false);
        if let Some(line) = self.lines.get(&limit) {
            nobody_before = line.waiting.is_empty();
            stands_still = !nobody_before && !line.is_ready && line.trying.is_none();
        }
        let refused_by = refused_by.into_iter().collect();
        let job = Job { came: self.came, needs, spots: SmallVec::new(), refused_by, insists: false };
        self.jobs.insert(id, job);
        self.stand(id, smallvec![limit]);
        if nobody_before {
            self.make_ready(limit);
        }
        stands_still
    }

    /// Something of a limit came back.
    pub fn freed(&mut self, limit: LimitId) {
        if self.lines.contains_key(&limit) {
            self.make_ready(limit);
        }
    }

    /// Everything may have changed.
    pub fn freed_all(&mut self) {
        let limits: Vec<LimitId> = self.lines.keys().copied().collect();
        limits.into_iter().for_each(|limit| self.make_ready(limit));
    }

    /// Whose turn it is. From here on it is being tried.
    pub fn next_turn(&mut self) -> Option<JobId> {
        while let Some(limit) = self.ready.pop_front() {
            let Some(line) = self.lines.get_mut(&limit) else { continue };
            line.is_ready = false;
            if line.trying.is_some() {
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
                self.lines.entry(limit).or_default().trying = Some(id);
            }
            return Some(id);
        }
        None
    }

    /// A job that was tried did not get this limit: it goes back to its place there.
    pub fn refused(&mut self, id: JobId, limit: LimitId) {
        // One that stands somewhere isn't being tried: this is about another that had its name.
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.spots.is_empty()) else { return };
        debug_assert!(job.needs.iter().any(|(there, _)| *there == limit));
        job.refused_by.retain(|there| *there != limit);
        job.refused_by.push(limit);
        let spots = if job.insists { job.refused_by.clone() } else { smallvec![limit] };
        let freed = self.lines.get(&limit).is_some_and(|line| line.freed_meanwhile);
        self.stand(id, spots);
        self.end_trying(id, Some(limit));
        if freed {
            self.make_ready(limit);
        }
    }

    /// From now on it waits at every limit that has refused it.
    pub fn insist(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.insists = true;
        if let Some(&here) = job.spots.last() {
            let others = job.refused_by.iter().copied().filter(|limit| *limit != here);
            let spots = others.chain([here]).collect();
            self.step_out(id);
            self.stand(id, spots);
        }
    }

    /// From now on it waits at one limit again.
    pub fn relent(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.insists = false;
        let Some(last) = job.spots.last().copied() else { return };
        let left = job.spots.clone();
        self.step_out(id);
        self.stand(id, smallvec![last]);
        for limit in left.into_iter().filter(|limit| *limit != last) {
            self.make_ready(limit);
            self.tidy(limit);
        }
    }

    /// A job is served, or leaves: those behind it move up. What it needed, if it was there.
    pub fn remove(&mut self, id: JobId) -> Option<Needs> {
        self.end_trying(id, None);
        let spots = self.jobs.get(&id)?.spots.clone();
        self.step_out(id);
        let job = self.jobs.remove(&id)?;
        for limit in spots {
            self.make_ready(limit);
            self.tidy(limit);
        }
        Some(job.needs)
    }

    /// Where a job stands; the front while it is being tried.
    pub fn place(&mut self, id: JobId) -> Option<Place> {
        let job = self.jobs.get(&id)?;
        let Some(&limit) = job.spots.last() else {
            let (limit, own) = job.needs[0];
            return Some(Place { limit, position: 0, ahead: 0, own });
        };
        let (came, own) = (job.came, job.needs_of(limit));
        let tried = self.lines.get(&limit)?.trying.and_then(|id| self.jobs.get(&id));
        let tried = tried.map(|job| job.needs_of(limit));
        let ranks = self.lines.get_mut(&limit)?.ranks();
        let rank = ranks.binary_search_by_key(&came, |(came, _)| *came).ok()?;
        let position = rank as u64 + u64::from(tried.is_some());
        Some(Place { limit, position, ahead: ranks[rank].1.saturating_add(tried.unwrap_or(0)), own })
    }

    /// What all who wait at a limit, or are being tried, need of it together.
    pub fn ahead_at(&self, limit: LimitId) -> u64 {
        let Some(line) = self.lines.get(&limit) else { return 0 };
        let tried = line.trying.and_then(|id| self.jobs.get(&id)).map_or(0, |job| job.needs_of(limit));
        line.waiting.values().fold(tried, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    /// What a job that is in line needs.
    pub fn needs(&self, id: JobId) -> Needs {
        self.jobs.get(&id).map(|job| job.needs.clone()).unwrap_or_default()
    }

    /// Where a job waits.
    pub fn spots(&self, id: JobId) -> impl Iterator<Item = LimitId> {
        self.jobs.get(&id).into_iter().flat_map(|job| job.spots.iter().copied())
    }

    /// Nobody waits at a limit, or is being tried.
    pub fn is_idle(&self, limit: LimitId) -> bool {
        !self.lines.contains_key(&limit)
    }

    /// Those who wait at a limit, in order.
    pub fn at(&self, limit: LimitId) -> impl Iterator<Item = JobId> {
        self.lines.get(&limit).into_iter().flat_map(|line| line.waiting.values().map(|(id, _)| *id))
    }

    /// The first of the limits at which a job that came then has somebody before it.
    fn first_in_the_way(&self, needs: &Needs, came: u64, except: Option<LimitId>) -> Option<LimitId> {
        let in_the_way = |limit: &LimitId| {
            self.lines.get(limit).is_some_and(|line| {
                let waits = line.waiting.first_key_value().is_some_and(|(&first, _)| first < came);
                waits || line.trying.is_some()
            })
        };
        needs.iter().map(|(limit, _)| *limit).filter(|limit| Some(*limit) != except).find(in_the_way)
    }

    /// The first at `limit` finds somebody before it at `other`. It waits there instead; one who insists there too.
    fn go_behind(&mut self, id: JobId, other: LimitId, limit: LimitId) {
        let job = self.jobs.get_mut(&id).expect("who waits must be known");
        if job.insists {
            if !job.spots.contains(&other) {
                let spots = job.spots.iter().copied().chain([other]).collect();
                self.step_out(id);
                self.stand(id, spots);
            }
            return;
        }
        self.step_out(id);
        self.stand(id, smallvec![other]);
        self.make_ready(limit);
        self.tidy(limit);
    }

    /// Takes its place in the lines of these limits.
    fn stand(&mut self, id: JobId, spots: SmallVec<[LimitId; 2]>) {
        let job = self.jobs.get_mut(&id).expect("who waits must be known");
        for limit in &spots {
            let line = self.lines.entry(*limit).or_default();
            line.waiting.insert(job.came, (id, job.needs_of(*limit)));
            line.ranks = None;
        }
        job.spots = spots;
    }

    /// Leaves its places, without a word to those behind.
    fn step_out(&mut self, id: JobId) {
        let job = self.jobs.get_mut(&id).expect("who waits must be known");
        for limit in std::mem::take(&mut job.spots) {
            if let Some(line) = self.lines.get_mut(&limit) {
                line.waiting.remove(&job.came);
                line.ranks = None;
            }
        }
    }

    /// Others may be tried at its limits, except at the one that refused it.
    fn end_trying(&mut self, id: JobId, refused_at: Option<LimitId>) {
        for (limit, _) in self.needs(id) {
            let Some(line) = self.lines.get_mut(&limit).filter(|line| line.trying == Some(id)) else {
                continue;
            };
            line.trying = None;
            line.freed_meanwhile = false;
            // Where it stands first itself, nobody else has a turn.
            let stands_here = self.jobs.get(&id).is_some_and(|job| job.spots.contains(&limit));
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
        if self.lines.get(&limit).is_some_and(|line| line.waiting.is_empty() && line.trying.is_none()) {
            self.lines.remove(&limit);
        }
    }
}

impl Line {
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

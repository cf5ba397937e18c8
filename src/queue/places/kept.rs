//! How much memory places take, and which of them are forgotten when they are over.
//!
//! A place that was picked up or has ended is kept for those who ask for it, within a bound of places and of bytes.

use std::collections::VecDeque;

use super::super::place::{JobId, Place, PlaceState, Wants};
use super::Places;
use crate::limit::LeaseId;
use crate::retry::policy::Queue as Policy;

/// Places kept after their end, or while their lease is used.
const KEPT_MAX: usize = 10_000;

/// What a place takes on average at most; one with long keys takes the part of several.
const BYTES_PER_PLACE: usize = 1024;

/// So what is kept takes 10 MB at most.
const KEPT_BYTES_MAX: usize = KEPT_MAX * BYTES_PER_PLACE;

/// The largest place: 32 keys of 4 KiB, and some names. At least one such can wait, however few places there are.
const LARGEST_PLACE_BYTES: usize = 32 * (4096 + KEY_BYTES + SPEC_BYTES) + PLACE_BYTES + 1024;

/// What the tables of the queue need for a place, and for each of its keys.
const PLACE_BYTES: usize = 512;
const KEY_BYTES: usize = 64;

/// A limit of another instance's job, which no file here has, and what is held of it.
const SPEC_BYTES: usize = 256;

/// Places that are over, the oldest first, with their bytes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    places: VecDeque<(JobId, usize)>,
    bytes: usize,
}

/// What a place takes.
pub(super) fn bytes_of(id: &LeaseId, job_id: &str, wants: &Wants, is_of_another: bool) -> usize {
    let key_bytes = KEY_BYTES + if is_of_another { SPEC_BYTES } else { 0 };
    let id = match id {
        LeaseId::Ulid(_) => 0,
        LeaseId::Name(name) => name.len(),
    };
    let keys: usize = wants.iter().map(|(key, _)| key.len() + key_bytes).sum();
    PLACE_BYTES + id + job_id.len() + keys
}

/// What the places of all jobs may take that wait, or hold what nobody has picked up.
pub(super) fn open_bytes_max(policy: &Policy) -> usize {
    let places = usize::try_from(policy.places_max).unwrap_or(usize::MAX);
    places.saturating_mul(BYTES_PER_PLACE).max(LARGEST_PLACE_BYTES)
}

impl Places {
    /// A place was picked up or has ended: it is kept until later ones need its room.
    pub(super) fn keep(&mut self, id: JobId) {
        let Some(&Place { bytes, .. }) = self.places.get(&id) else { return };
        self.open_bytes -= bytes;
        self.kept.places.push_back((id, bytes));
        self.kept.bytes += bytes;
        while self.kept.places.len() > KEPT_MAX || self.kept.bytes > KEPT_BYTES_MAX {
            let Some((oldest, bytes)) = self.kept.places.pop_front() else { return };
            self.kept.bytes -= bytes;
            self.forget(oldest);
        }
    }

    fn forget(&mut self, id: JobId) {
        // A place that was forgotten may have been taken again under the same name, and not be over.
        if self.places.get(&id).is_some_and(Place::is_over)
            && let Some(Place { state: PlaceState::Reserved(reserved), .. }) = self.places.remove(&id)
        {
            self.by_lease.remove(&reserved.lease.bits());
        }
    }
}

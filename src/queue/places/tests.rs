//! Places are bounded by count and by bytes, while they wait and after.

use std::num::NonZeroU32;

use super::*;
use crate::limit::{Charge, Kind, LimitKey, Origin, Overage};
use crate::retry::policy::RetryPolicy;

fn need() -> Need {
    let kind = Kind::Concurrency { timeout_seconds: NonZeroU32::new(300).unwrap() };
    let (unit, description, origin) = (String::new(), String::new(), Origin::Api);
    let spec = LimitSpec {
        kind,
        capacity: 1,
        overage: Overage::Deny,
        is_exact: false,
        charge: Charge::default(),
        unit,
        description,
        origin,
        metric: None,
    };
    Need { account: Arc::new(Account::new(LimitKey::new("held"))), spec: Arc::new(spec), amount: 1 }
}

/// A job with so many bytes of keys.
fn new(n: u128, need: &Need, key_bytes: usize) -> NewPlace {
    let wants = [(Arc::from("k".repeat(key_bytes)), 1)];
    let (id, needs) = (LeaseId::fresh(0, n), vec![need.clone()]);
    NewPlace { id, job_id: String::new(), wants: Arc::from(wants), needs, refused_by: None, terms: None }
}

#[test]
fn places_are_bounded_in_bytes_and_what_has_ended_is_forgotten() {
    let (need, share) = (need(), Share::default());
    let policy = Policy { places_max: 1000, places_per_key_max: 1000, ..RetryPolicy::default().queue };
    let mut places = Places::new(false);
    let mut all = Vec::new();
    for round in 0..30u128 {
        let mut here = Vec::new();
        for n in 0..1000 {
            let place = new(round * 1000 + n, &need, 100_000);
            let id = JobId::of(&place.id);
            match places.join(place, &policy, &share, 0) {
                Ok(()) => here.push(id),
                Err(full) => {
                    assert!(full.limit.is_none(), "it is not the limit that is crowded");
                    break;
                }
            }
        }
        // A thousand places of a kilobyte have the bytes of ten of these.
        assert_eq!(here.len(), 1_024_000 / 100_576, "round {round}");
        for id in &here {
            assert!(places.end(*id, PlaceState::Cancelled, 0).is_news);
        }
        all.extend(here);
    }
    assert_eq!(places.open_bytes, 0);
    let known = all.iter().filter(|id| places.get(**id).is_some()).count();
    assert_eq!(known, 10_240_000 / 100_576, "of 300 the last are known, as many as 10 MB have room for");
    assert!(places.get(all[299]).is_some() && places.get(all[0]).is_none());
    // Small ones are bounded by their number as ever.
    for n in 0..1000 {
        places.join(new(1_000_000 + n, &need, 10), &policy, &share, 0).expect("there must be a place");
    }
    assert!(places.join(new(2_000_000, &need, 10), &policy, &share, 0).is_err());
}

#[test]
fn one_large_job_finds_a_place_however_few_there_are() {
    let (need, share) = (need(), Share::default());
    let policy = Policy { places_max: 2, ..RetryPolicy::default().queue };
    let mut places = Places::new(false);
    places.join(new(1, &need, 32 * 4096), &policy, &share, 0).expect("there must be a place");
    assert!(places.join(new(2, &need, 32 * 4096), &policy, &share, 0).is_err());
}

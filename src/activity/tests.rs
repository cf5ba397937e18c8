//! What was decided comes back as counts and events, and nothing is lost between threads.

use super::*;
use crate::telemetry::Reason;

struct Limit {
    tally: Tally,
    key: LimitKey,
}

impl Tallied for Limit {
    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn key(&self) -> &LimitKey {
        &self.key
    }
}

fn limit(key: &str) -> Arc<Limit> {
    Arc::new(Limit { tally: Tally::default(), key: LimitKey::new(key) })
}

fn denial(at_ms: u64) -> LastDenial {
    LastDenial { at_ms, reason: Reason::OverLimit, retry_after_ms: Some(700) }
}

fn counted(activity: &Activity<Limit>, by: By) -> Vec<(String, String, u64)> {
    let heavy = activity.top(by, None, 10, 0);
    heavy.into_iter().map(|it| (it.key.to_string(), it.domain.to_string(), it.count)).collect()
}

fn row(key: &str, domain: &str, count: u64) -> (String, String, u64) {
    (key.to_owned(), domain.to_owned(), count)
}

#[test]
fn requests_and_units_are_counted_by_limit() {
    let (activity, api) = (Activity::default(), Arc::from("lease_api"));
    let (derived, named) = (limit("llm:tenant=a:rpm"), limit("gpus"));
    for _ in 0..3 {
        activity.admitted(&derived, &api, 5, 0);
    }
    activity.admitted(&named, &api, 1, 0);
    activity.denied(&named, &api, denial(0));
    // A derived key names its own domain.
    let (a, gpus) = ("llm:tenant=a:rpm", "gpus");
    assert_eq!(counted(&activity, By::Admitted), [row(a, "llm", 3), row(gpus, "lease_api", 1)]);
    assert_eq!(counted(&activity, By::Used), [row(a, "llm", 15), row(gpus, "lease_api", 1)]);
    assert_eq!(counted(&activity, By::Denied), [row(gpus, "lease_api", 1)]);
    activity.denied(&named, &api, denial(0));
    assert_eq!(counted(&activity, By::Denied), [row(gpus, "lease_api", 2)]);
}

#[test]
fn a_limit_is_told_of_once_a_second() {
    let (activity, domain) = (Activity::default(), Arc::from("d"));
    let (a, b) = (limit("a"), limit("b"));
    let mut listening = activity.listen();
    (0..5).for_each(|n| activity.denied(&a, &domain, denial(10_000 + n)));
    activity.denied(&b, &domain, denial(10_100));
    activity.top(By::Denied, None, 1, 10_200);
    (0..2).for_each(|n| activity.denied(&a, &domain, denial(10_300 + n)));
    activity.gather(11_000, 1_000_000);
    let mut told = || match &*listening.try_recv().expect("an event") {
        Event::Denied(it) => (it.key.to_string(), it.denials, it.time_unix_ms, it.retry_after_ms),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(), ("a".to_owned(), 7, 999_301, Some(700)));
    assert_eq!(told(), ("b".to_owned(), 1, 999_100, Some(700)));
    activity.gather(12_000, 1_001_000);
    assert!(listening.try_recv().is_err(), "nothing has happened since");
}

#[test]
fn at_most_a_hundred_a_second_are_told_and_all_are_counted() {
    let (activity, domain) = (Activity::default(), Arc::from("d"));
    let mut listening = activity.listen();
    let limits: Vec<_> = (0..PENDING_MAX + 500).map(|n| limit(&format!("k{n}"))).collect();
    limits.iter().for_each(|limit| activity.denied(limit, &domain, denial(0)));
    activity.denied(&limits[7], &domain, denial(0));
    activity.gather(0, 0);
    let mut told = 0;
    while let Ok(event) = listening.try_recv() {
        told += 1;
        if told == 1 {
            assert!(matches!(&*event, Event::Denied(it) if &*it.key == "k7"), "{event:?}");
        }
    }
    assert_eq!(told, DENIED_EVENTS_MAX);
    let all: u64 = activity.top(By::Denied, None, LIST_MAX, 0).iter().map(|it| it.count).sum();
    assert_eq!(all, limits.len() as u64 + 1, "what lost its place is the error of another");
}

#[test]
fn threads_lose_nothing() {
    let (activity, hot) = (Activity::default(), limit("hot"));
    let domain: Arc<str> = Arc::from("d");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20_000).for_each(|_| activity.admitted(&hot, &domain, 2, 0)));
        }
        scope.spawn(|| (0..2_000).for_each(|_| activity.gather(0, 0)));
    });
    assert_eq!(counted(&activity, By::Admitted), [row("hot", "d", 80_000)]);
    assert_eq!(counted(&activity, By::Used), [row("hot", "d", 160_000)]);
}

/// A decision counts nothing, and waits for nobody who looks; only the bound of the list is kept by whoever meets it.
#[test]
fn a_decision_counts_only_when_the_list_is_full() {
    let (activity, domain) = (Activity::default(), Arc::from("d"));
    let limits: Vec<_> = (0..PENDING_MAX).map(|n| limit(&format!("k{n}"))).collect();
    let (last, first) = limits.split_last().expect("there must be limits");
    let looking = activity.gathered.lock();
    for (n, limit) in first.iter().enumerate() {
        assert_eq!(activity.has_many(), n >= PENDING_MANY, "{n}");
        activity.admitted(limit, &domain, 1, 0);
    }
    assert_eq!(activity.pending.lock().len(), PENDING_MAX - 1, "nobody has waited, and nobody has counted");
    drop(looking);
    activity.admitted(last, &domain, 1, 0);
    assert_eq!(activity.pending.lock().len(), PENDING_MAX - COUNTED_MAX, "one call counts a part of it");
    activity.count_all(0);
    assert!(!activity.has_many());
    let all: u64 = activity.top(By::Admitted, None, LIST_MAX, 0).iter().map(|it| it.count).sum();
    assert_eq!(all, limits.len() as u64);
}

#[test]
fn a_long_key_is_shown_by_its_beginning_and_its_id() {
    let key = LimitKey::new(&"ü".repeat(2_000));
    let text = shown(&key);
    assert!(text.len() <= KEY_BYTES_MAX && text.starts_with("üü"), "{}", text.len());
    assert!(text.ends_with(&LimitId::of(&key).to_string()));
}

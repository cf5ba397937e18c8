//! What retry bookkeeping costs a decision.

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::{Criterion, criterion_group, criterion_main};
use sluice::limit::{Kind, LimitId};
use sluice::retry::budget::RetryBudget;
use sluice::retry::policy::RetryPolicy;
use sluice::retry::{self, Hints};

const SECOND: Kind = Kind::Rolling { window_seconds: NonZeroU32::MIN };

fn streaks(c: &mut Criterion) {
    let mut group = c.benchmark_group("streaks");
    let (policy, hints) = (RetryPolicy::default(), Hints::default());
    let allow = |hints: &Hints| retry::on_allowed([(hints, SECOND)], &policy, black_box(1));
    group.bench_function("allow, nobody was denied", |b| b.iter(|| allow(&hints)));
    group.bench_function("deny and allow", |b| {
        b.iter(|| {
            retry::on_denied([(&hints, SECOND)], &policy, black_box(1), |_| 0);
            allow(&hints);
        });
    });
    group.finish();
}

fn budget(c: &mut Criterion) {
    let mut group = c.benchmark_group("budget");
    let budget = RetryBudget::new(10);
    let policy = RetryPolicy::default().budget;
    group.bench_function("original", |b| b.iter(|| budget.record_original(black_box(12_345))));
    group.bench_function("retry, window of 10 s", |b| {
        b.iter(|| budget.admit_retry(black_box(Some(LimitId::new(7))), black_box(12_345), &policy));
    });
    group.finish();
}

fn denial(c: &mut Criterion) {
    let (policy, hints) = (RetryPolicy::default(), Hints::default());
    c.bench_function("denial with its hint", |b| {
        b.iter(|| retry::on_denied([(black_box(&hints), SECOND)], &policy, 1, |n| fastrand::u64(0..=n)));
    });
}

criterion_group!(benches, streaks, budget, denial);
criterion_main!(benches);

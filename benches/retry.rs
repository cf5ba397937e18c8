//! What retry bookkeeping costs a decision.

use std::hint::black_box;
use std::num::NonZeroU32;

use criterion::{Criterion, criterion_group, criterion_main};
use sluice::limit::Kind;
use sluice::retry::Retry;
use sluice::retry::budget::RetryBudget;
use sluice::retry::policy::RetryPolicy;
use sluice::retry::streaks::{KEYS_MAX, Streaks};

const QUIET_MS: u64 = 50_000;

fn streaks(c: &mut Criterion) {
    let mut group = c.benchmark_group("streaks");
    let empty = Streaks::new();
    let full = Streaks::new();
    for id in 0..4 * KEYS_MAX as u128 {
        full.deny(id, 0, QUIET_MS);
    }
    let mut id = 0u128;
    let mut next = move || {
        id = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
        id | 1 << 100
    };
    group.bench_function("allow, nobody was denied", |b| b.iter(|| empty.allow(next(), 1)));
    group.bench_function("allow, table full of other keys", |b| b.iter(|| full.allow(next(), 1)));
    group.bench_function("deny and allow one key", |b| {
        b.iter(|| {
            empty.deny(7, 1, QUIET_MS);
            empty.allow(7, 1);
        });
    });
    group.bench_function("deny, new keys, table full", |b| b.iter(|| full.deny(next(), 1, QUIET_MS)));
    group.finish();
}

fn budget(c: &mut Criterion) {
    let mut group = c.benchmark_group("budget");
    let budget = RetryBudget::new();
    let policy = RetryPolicy::default().budget;
    group.bench_function("original", |b| b.iter(|| budget.record_original(black_box(12_345))));
    group.bench_function("retry, window of 10 s", |b| {
        b.iter(|| budget.admit_retry(black_box(12_345), &policy));
    });
    group.finish();
}

fn denial(c: &mut Criterion) {
    let retry = Retry::default();
    let policy = RetryPolicy::default();
    let kind = Kind::Rolling { window_seconds: NonZeroU32::MIN };
    c.bench_function("denial with its hint", |b| {
        b.iter(|| retry.on_denied([(black_box(7), kind)], &policy, 1, |n| fastrand::u64(0..=n)));
    });
}

criterion_group!(benches, streaks, budget, denial);
criterion_main!(benches);

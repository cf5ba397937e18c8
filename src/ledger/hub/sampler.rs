//! Keeps what this sidecar knows of accounts up to date: what its hubs know of them, asked for in the background.
//!
//! A hub answers from what it knows itself, so that a thousand sidecars that use one limit cost its ledger one look.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::pb::answer::What as Answer;
use super::pb::ask::What as Ask;
use super::{Hub, READ_TIMEOUT, WANTS_PER_ASK, pb, wire};
use crate::clock;
use crate::ledger::{Ledger, Want};
use crate::limit::Overage;

/// How old a sample gets, unless answers tell what is left.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Every so many rounds it is looked how far limits are that are being lowered.
const LOWERING_ROUNDS: u64 = 2;

/// One round after the other. One that panics is logged, and the next one is tried.
pub(super) async fn run(hub: Hub) {
    let mut rounds = tokio::time::interval(SAMPLE_INTERVAL);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut round = 0;
    loop {
        rounds.tick().await;
        round += 1;
        let one = async {
            sample(&hub, Touched(hub.shared.take_touched())).await;
            if u64::is_multiple_of(round, LOWERING_ROUNDS) {
                look_at_lowering(&hub).await;
            }
        };
        if AssertUnwindSafe(one).catch_unwind().await.is_err() {
            tracing::error!("looking at limits behind hubs failed by a panic; they are looked at again");
        }
    }
}

/// Accounts that are being looked at. Whatever becomes of that, they may be looked at again.
struct Touched(Vec<Want>);

impl Drop for Touched {
    fn drop(&mut self) {
        self.0.iter().for_each(|want| want.account.behind_hub().sample.end_sampling());
    }
}

async fn sample(hub: &Hub, mut touched: Touched) {
    // What the answer to a chain has just told need not be asked for. Whoever uses that limit next touches it again.
    let now_ms = clock::monotonic_ms();
    touched.0.retain(|want| {
        let is_fresh = is_fresh(want, now_ms);
        if is_fresh {
            want.account.behind_hub().sample.end_sampling();
        }
        !is_fresh
    });
    // Those of one home go together.
    let home = |want: &Want| hub.shared.home(want.account.id, &[]).map(|(at, _)| at);
    touched.0.sort_by_key(home);
    let same_home = touched.0.chunk_by(|one, next| home(one) == home(next));
    let parts = same_home.flat_map(|part| part.chunks(WANTS_PER_ASK));
    let again = join_all(parts.map(|part| sample_part(hub, part))).await.concat();
    drop(touched);
    for want in again {
        hub.shared.touch_want(&want);
    }
}

/// What is owed, and what somebody watches, has to be known as early as ever.
fn is_fresh(want: &Want, now_ms: u64) -> bool {
    let (known, lifetime_ms) = (want.account.behind_hub(), u64::from(want.lifetime_seconds.get()) * 1000);
    let is_watched = want.overage == Overage::Repay || known.watched.is_so(now_ms);
    !is_watched && known.sample.is_fresh(lifetime_ms, now_ms)
}

/// Looks at some; those that are to be looked at again.
async fn sample_part(hub: &Hub, part: &[Want]) -> Vec<Want> {
    let asked_at_ms = clock::monotonic_ms();
    let what = |_| Ask::Samples(pb::Wants { wants: part.iter().map(wire::want).collect() });
    let samples = match hub.ask(part[0].account.id, what, None, READ_TIMEOUT).await {
        Ok(answered) => match answered.what {
            Answer::Samples(samples) => samples.samples,
            _ => return Vec::new(),
        },
        Err(error) => {
            tracing::debug!(%error, "could not sample balances");
            return Vec::new();
        }
    };
    let now_ms = clock::monotonic_ms();
    let mut again = Vec::new();
    for (want, sample) in part.iter().zip(samples) {
        let known = want.account.behind_hub();
        sample.available.inspect(|available| known.sample.set(*available, now_ms));
        if want.overage == Overage::Repay {
            known.owing.read(sample.owed, asked_at_ms);
            known.set_repaid(wire::read_repaid(&sample.repaid));
        }
        let is_watched = sample.available == Some(0) && known.watched.is_so(now_ms);
        if sample.available.is_none() || is_watched || sample.owed > 0 {
            again.push(want.clone());
        }
    }
    again
}

async fn look_at_lowering(hub: &Hub) {
    let wants = hub.shared.lowering.wants();
    if wants.is_empty() {
        return;
    }
    let Ok(balances) = hub.balances(wants.clone()).await else { return };
    for (want, balance) in wants.iter().zip(&balances) {
        if let Some(event) = hub.shared.lowering.saw(want, balance) {
            hub.shared.tell(event);
        }
    }
}

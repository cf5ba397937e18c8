//! Random loads that use more than they said, and what no window exceeds then.

use std::time::Duration;

use serde_json::json;
use sluice::clock;
use sluice::limit::Overage;

use super::start;
use crate::testapp::TestApp;
use crate::tigerbeetle::Server;

/// A request of the random load that was let in, in milliseconds since its start.
#[derive(Debug)]
struct LetIn {
    /// Before it was asked for, and when the answer was there.
    asked: Duration,
    answered: Duration,
    /// When the answer to its completion was there.
    ended: Duration,
    estimate: u64,
    used: u64,
}

/// Six that each ask for one thing after the other, for four windows. One in four uses far more than it said.
async fn random_load(apps: &[&TestApp], key: &str, seed: u64) -> (Vec<LetIn>, u64) {
    let started = clock::instant();
    let worker = async |n: usize| {
        let mut random = fastrand::Rng::with_seed(seed * 100 + n as u64);
        let (app, mut let_in, mut in_debt) = (apps[n % apps.len()], Vec::new(), 0);
        while started.elapsed() < Duration::from_secs(8) {
            let estimate = random.u64(1..=15);
            let used = if random.u8(..4) == 0 { random.u64(20..60) } else { random.u64(..=estimate) };
            let asked = started.elapsed();
            let reserve = json!({"requirements": [{"key": key, "amount": estimate}]}).to_string();
            let answer = app.post("/v1/reserve", &reserve).await.json();
            let answered = started.elapsed();
            tokio::time::sleep(Duration::from_millis(random.u64(..300))).await;
            if answer["allowed"] == false {
                in_debt += u64::from(answer["reason"] == "debt");
                continue;
            }
            let actuals = json!([{"key": key, "actual_amount": used}]);
            let complete = json!({"lease_token": answer["lease_token"], "actuals": actuals}).to_string();
            assert_eq!(app.post("/v1/complete", &complete).await.json()["ok"], true);
            let_in.push(LetIn { asked, answered, ended: started.elapsed(), estimate, used });
        }
        (let_in, in_debt)
    };
    let all = futures_util::future::join_all((0..6).map(worker)).await;
    let in_debt = all.iter().map(|(_, in_debt)| in_debt).sum();
    (all.into_iter().flat_map(|(let_in, _)| let_in).collect(), in_debt)
}

/// What the rules guarantee, for random loads: over any window of 2 s no more is used than 100 and what was overshot. With
/// repay only those count that were under way when the last one of the window was let in. That holds for one instance, because
/// another one hears of a debt up to a second later; the other rules hold for any number.
#[tokio::test(flavor = "multi_thread")]
async fn no_window_has_more_than_the_capacity_and_what_was_overshot() {
    let server = Server::start();
    let (one, two) = (start(&server).await, start(&server).await);
    let loads = [
        ("tenant", Overage::Repay, vec![&one]),
        ("denies", Overage::Deny, vec![&one, &two]),
        ("bills", Overage::Debt, vec![&one, &two]),
    ];
    let loads = loads.map(async |(name, overage, apps)| {
        let load = random_load(&apps, &format!("d:{name}=load:tokens"), 7).await;
        let limit = one.get(&format!("/v1/limits/d%3A{name}=load%3Atokens")).await.json();
        (load, overage, limit["debt"].as_u64().unwrap())
    });
    for ((let_in, in_debt), overage, owed) in futures_util::future::join_all(loads).await {
        let repays = overage == Overage::Repay;
        assert_eq!(in_debt > 0, repays, "{in_debt} were refused because of a debt");
        assert!(let_in.len() > 20, "only {} were let in", let_in.len());
        let overshot = |one: &LetIn| one.used.saturating_sub(one.estimate);
        let in_all: u64 = let_in.iter().map(|one| one.used).sum();
        match overage {
            Overage::Deny => assert_eq!(owed, 0),
            Overage::Debt => assert!((1..=let_in.iter().map(overshot).sum()).contains(&owed), "{owed} owed"),
            Overage::Repay => {
                // What was used and is not owed was held for a window, or for what was left of it in whole seconds.
                let slowest = let_in.iter().map(|one| one.ended - one.asked).max().unwrap();
                let held_seconds = 2u64.saturating_sub(slowest.as_secs());
                let seconds = let_in.iter().map(|one| one.ended).max().unwrap().as_secs() + 1;
                assert!((in_all - owed) * held_seconds <= 100 * (seconds + 2), "{in_all} used, {owed} owed");
            }
        }
        for first in &let_in {
            for last in let_in.iter().filter(|last| last.answered < first.asked + Duration::from_secs(2)) {
                // All of these were let in within one window: an expiry is never early.
                let window: Vec<&LetIn> = let_in
                    .iter()
                    .filter(|one| one.asked >= first.asked && one.answered <= last.answered)
                    .collect();
                let Some(last_asked) = window.iter().map(|one| one.asked).max() else { continue };
                let used: u64 = window.iter().map(|one| one.used).sum();
                let counts = |one: &&&LetIn| !repays || one.ended > last_asked;
                let beyond: u64 = window.iter().filter(counts).map(|one| overshot(one)).sum();
                assert!(used <= 100 + beyond, "{used} used, {beyond} overshot, {overage:?}, {window:?}");
            }
        }
    }
}

//! What a hub makes of messages about its line that no sidecar would send, or whose sender doesn't hear the answer.

use sluice::config::settings::value::LedgerUri;
use sluice::ledger::hub::pb;
use sluice::ledger::hub::pb::answer::What as Answer;
use sluice::ledger::hub::pb::ask::What as Ask;

use super::metric;
use crate::hub::hub_on;
use crate::hub_hostile::{Raw, failure};
use crate::wait::until;

fn join() -> pb::JoinLine {
    let need = pb::Need {
        key: "k".to_owned(),
        amount: 1,
        capacity: 1,
        kind: pb::LimitKind::Concurrency.into(),
        lifetime_seconds: 60,
        ..Default::default()
    };
    pb::JoinLine {
        lease: "a".to_owned(),
        needs: vec![need],
        deadline_seconds: 60,
        pickup_seconds: 60,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_hub_takes_no_job_that_can_not_be() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let mut raw = Raw::greeted(&hub).await;
    let rows: [(fn(&mut pb::JoinLine), &str); 14] = [
        (|it| it.lease.clear(), "join.lease: must have 1 to 128 bytes, and has 0"),
        (|it| it.lease = "x".repeat(129), "join.lease: must have 1 to 128 bytes, and has 129"),
        (|it| it.job_id = "x".repeat(257), "join.job_id: must have at most 256 bytes"),
        (|it| it.needs.clear(), "join.needs: there must be 1 to 32, not 0"),
        (|it| it.needs = vec![it.needs[0].clone(); 33], "join.needs: there must be 1 to 32, not 33"),
        (|it| it.needs = vec![it.needs[0].clone(); 2], "join.needs[1].key: is there twice"),
        (|it| it.needs[0].amount = 0, "join.needs[0].amount: must be at least 1"),
        (|it| it.needs[0].key = "x".repeat(4097), "join.needs[0].key: must have 1 to 4096 bytes"),
        (|it| it.needs[0].kind = 9, "join.needs[0].kind: 9 is none that is known here"),
        (|it| it.needs[0].overage = 9, "join.needs[0].overage: 9 is none"),
        (|it| it.needs[0].lifetime_seconds = 0, "join.needs[0].lifetime_seconds: must be at least 1"),
        (|it| it.deadline_seconds = 0, "join.deadline_seconds: must be 1 to 86400, and is 0"),
        (|it| it.pickup_seconds = u64::MAX, "join.pickup_seconds: must be 1 to 86400"),
        (|it| it.pickup_seconds = 0, "join.pickup_seconds: must be 1 to 86400, and is 0"),
    ];
    for (number, (change, expected)) in rows.into_iter().enumerate() {
        let mut bad = join();
        change(&mut bad);
        let (code, text) = failure(raw.ask(number as u64, Some(Ask::Join(bad))).await);
        assert!(code == pb::FailureCode::Invalid && text.contains(expected), "{expected}: {code:?} {text}");
    }
    let leave = pb::LeaveLine { lease: "a".to_owned(), reason: 9 };
    let (_, text) = failure(raw.ask(100, Some(Ask::Leave(leave))).await);
    assert!(text.contains("leave.reason: 9 is none"), "{text}");
    let find = pb::FindPlace { lease: "x".repeat(129), pick_up: true };
    assert!(failure(raw.ask(101, Some(Ask::Find(find))).await).1.contains("1 to 128 bytes"));
    let result = |answer: Answer| match answer {
        Answer::Line(line) => line.result(),
        other => panic!("{other:?}"),
    };
    // What never fits is told by the sidecar; a hub that is asked all the same fails it.
    let mut never = join();
    never.lease = "never".to_owned();
    never.needs[0].amount = u64::MAX;
    match raw.ask(102, Some(Ask::Join(never))).await {
        Answer::Line(line) => assert_eq!(line.place.unwrap().state(), pb::PlaceState::FailedNeverFits),
        other => panic!("{other:?}"),
    }
    assert_eq!(result(raw.ask(103, Some(Ask::Join(join()))).await), pb::LineResult::AtOnce);
    let mut waits = join();
    waits.lease = "b".to_owned();
    assert_eq!(result(raw.ask(104, Some(Ask::Join(waits.clone()))).await), pb::LineResult::Place);
    waits.needs[0].amount = 2;
    assert_eq!(result(raw.ask(105, Some(Ask::Join(waits))).await), pb::LineResult::NameUsed);
    for (reason, lease) in [(pb::LeaveReason::Left, "nobody"), (pb::LeaveReason::Unheard, "nobody")] {
        let leave = pb::LeaveLine { lease: lease.to_owned(), reason: reason.into() };
        assert_eq!(result(raw.ask(106, Some(Ask::Leave(leave))).await), pb::LineResult::Unknown);
    }
}

/// A second caller of the same name keeps the place that the first one never heard of; an answer that can't be sent leaves none.
#[tokio::test]
async fn a_place_that_nobody_has_heard_of_is_forgotten() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let mut raw = Raw::greeted(&hub).await;
    raw.ask(1, Some(Ask::Join(join()))).await;
    let waits = pb::JoinLine { lease: "b".to_owned(), ..join() };
    for number in 2..4 {
        raw.ask(number, Some(Ask::Join(waits.clone()))).await;
    }
    let unheard = pb::LeaveLine { lease: "b".to_owned(), reason: pb::LeaveReason::Unheard.into() };
    for (number, left) in [(4, 1.0), (5, 0.0), (6, 0.0)] {
        raw.ask(number, Some(Ask::Leave(unheard.clone()))).await;
        assert_eq!(metric(&hub, "sluice_queue_depth").await, left);
    }
    let mut other = Raw::greeted(&hub).await;
    other.ask(1, Some(Ask::Join(waits.clone()))).await;
    // Its stream is gone before its answer can be.
    let asks =
        vec![pb::Ask { number: 2, what: Some(Ask::Join(pb::JoinLine { lease: "c".to_owned(), ..join() })) }];
    other.say(pb::SidecarMessage { asks, ..Default::default() }).await;
    drop(other);
    until("one to be left", async || match metric(&hub, "sluice_queue_depth").await {
        1.0 => Ok(()),
        depth => Err(format!("{depth}")),
    })
    .await;
}

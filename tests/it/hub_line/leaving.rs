//! Whoever leaves, looks away or is never answered: what it had in the line goes to the next.

use std::time::Duration;

use prost::Message;
use serde_json::json;
use sluice::api::pb::lease as lease_pb;
use tokio::io::AsyncWriteExt;

use super::{depth, two};
use crate::queue::{ask, complete, look, queue, until_state};
use crate::wait::until;
use crate::wire::send_and_reset;

const QUEUE_RESERVE: &str = "/sluice.v1.LeaseService/QueueReserve";

/// Whoever leaves before it has heard of its place has none, and whoever was served then holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_leaves_nothing() {
    let (hub, a, b) = two().await;
    let held = queue(&a, &ask("held", 1)).await.json();
    let request = lease_pb::ReserveRequest {
        requirements: vec![lease_pb::Requirement { key: "d:row=1:held".to_owned(), amount: 1 }],
        ..Default::default()
    };
    // The last one is answered.
    send_and_reset(b.grpc(), QUEUE_RESERVE, &[], 50, &request.encode_to_vec()).await;
    depth(&hub, 1.0).await;
    let mut body = ask("held", 1);
    body["lease_id"] = json!("mine");
    for _ in 0..20 {
        let micros = fastrand::u64(0..5000);
        drop(tokio::time::timeout(Duration::from_micros(micros), queue(&a, &body)).await);
    }
    let said = queue(&b, &body).await;
    assert_eq!((said.status, &said.json()["position"]), (202, &json!(1)), "{said:?}");
    // Those who hung up are forgotten without taking that place with them.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(look(&a, &json!({"lease_id": "mine"})).await["position"], 1);
    complete(&a, &held).await;
    // And when there is room for all of them, what they got comes back.
    let request = lease_pb::ReserveRequest {
        requirements: vec![lease_pb::Requirement { key: "d:row=2:tokens".to_owned(), amount: 1 }],
        ..Default::default()
    };
    send_and_reset(b.grpc(), QUEUE_RESERVE, &[], 50, &request.encode_to_vec()).await;
    until("what they got to come back", async || match a.used("d:row=2:tokens").await {
        1 => Ok(()),
        used => Err(format!("{used} are used")),
    })
    .await;
}

/// Watchers whose connection is lost may miss that they were served: what they got goes to the next.
#[tokio::test(flavor = "multi_thread")]
async fn who_looks_away_when_it_is_served_may_come_back_for_it() {
    let (_hub, a, b) = two().await;
    let held = queue(&a, &ask("held", 1)).await.json();
    let waits = queue(&a, &ask("held", 1)).await.json();
    complete(&a, &held).await;
    let path = format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap());
    // Those who only look pick nothing up.
    for _ in 0..3 {
        b.send("HEAD", &path, "").await;
    }
    let served = until_state(&b, &waits, "reserved").await;
    complete(&b, &served).await;
    assert_eq!(a.used("d:row=1:held").await, 0);
}

/// An answer that picked something up and was never sent gives it back, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_never_sent_gives_back_what_it_picked_up() {
    let (_hub, a, b) = two().await;
    let mut given_back = 0;
    for n in 0..30 {
        let key = format!("d:row=n{n}:held");
        let body = json!({"queue": true, "requirements": [{"key": key, "amount": 1}]});
        let held = queue(&a, &body).await.json();
        let waits = queue(&a, &body).await.json();
        complete(&a, &held).await;
        let path = format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap());
        until("its turn", async || match b.send("HEAD", &path, "").await.status {
            200 => Ok(()),
            status => Err(status.to_string()),
        })
        .await;
        let mut stream = tokio::net::TcpStream::connect(b.app.admin).await.unwrap();
        let get = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", b.app.admin);
        stream.write_all(get.as_bytes()).await.unwrap();
        // Some before it was asked for, some while the hub answers.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
        drop(stream);
        b.get("/livez").await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        let said = look(&a, &waits).await;
        match said["state"].as_str().unwrap() {
            "timed_out" => given_back += 1,
            _ => complete(&a, &said).await,
        }
        until("nothing to be held", async || match a.used(&key).await {
            0 => Ok(()),
            used => Err(format!("{used} after {said}")),
        })
        .await;
    }
    assert!(given_back > 0, "some were picked up before it was seen that nobody reads the answer");
}

//! Mistakes in what is sent to the lease API, and what they are answered.

use serde_json::{Value, json};

use super::{start, want, wants};
use crate::lease_scenario::{Port, reserve};

#[tokio::test]
async fn what_is_wrong_with_a_reserve() {
    let app = start().await;
    let many: Vec<Value> = (0..33).map(|_| want("tokens", 1)).collect();
    let cases = [
        (json!({}), "requirements: 0 given, 1 to 32"),
        (json!({"requirements": []}), "requirements: 0 given"),
        (json!({"requirements": many}), "requirements: 33 given"),
        (json!({"requirements": [{"key": "", "amount": 1}]}), "requirements[0].key: must not be empty"),
        (json!({"requirements": [{"amount": 1}]}), "requirements[0].key: must not be empty"),
        (json!({"requirements": [{"key": "x"}]}), "requirements[0].amount: must be at least 1"),
        (json!({"requirements": [{"key": "x", "amount": -1}]}), "invalid value: integer `-1`"),
        (json!({"requirements": [{"key": "x", "amount": 1, "x": 1}]}), "unknown field `x`"),
        (json!({"requirement": []}), "unknown field `requirement`"),
        (
            json!({"requirements": [want("tokens", u64::MAX), want("tokens", 1)]}),
            "requirements[1].amount: the sum",
        ),
        (
            json!({"lease_id": "x".repeat(129), "requirements": [want("tokens", 1)]}),
            "lease_id: must have at most",
        ),
        (json!({"lease_id": "a\nb", "requirements": [want("tokens", 1)]}), "lease_id: must have at most"),
        (
            json!({"lease_id": "s1.abc", "requirements": [want("tokens", 1)]}),
            "lease_id: looks like a lease token",
        ),
        (
            json!({"job_id": "x".repeat(257), "requirements": [want("tokens", 1)]}),
            "job_id: must have at most",
        ),
        (json!("x"), "invalid type: string"),
    ];
    for (body, detail) in cases {
        let answer = app.post("/v1/reserve", &body.to_string()).await;
        let said = answer.json();
        assert_eq!((answer.status, &said["error"]), (400, &json!("invalid_request")), "{body}: {said}");
        assert_eq!(said["allowed"], false);
        assert!(said["detail"].as_str().unwrap().contains(detail), "{body}: {said}");
    }
    let answer = app.post("/v1/reserve", "{").await;
    assert_eq!((answer.status, &answer.json()["error"]), (400, &json!("invalid_request")));
    let unknown = app.post("/v1/reserve", r#"{"requirements":[{"key":"no:such","amount":1}]}"#).await;
    assert_eq!((unknown.status, &unknown.json()["error"]), (400, &json!("unknown_limit_key:no:such")));
    assert_eq!(app.used("d:row=1:tokens").await, 0);
}

#[tokio::test]
async fn what_is_wrong_with_a_complete() {
    let app = start().await;
    let lease = reserve(&app, Port::Http, wants("tokens", 10)).await;
    let (id, token) = (lease["lease_id"].as_str().unwrap(), lease["lease_token"].as_str().unwrap());
    let actual = |amount: u64| json!({"key": "d:row=1:tokens", "actual_amount": amount});
    let cases = [
        (json!({}), "lease_id or lease_token: one of them"),
        (
            json!({"lease_id": id, "actuals": [{"key": "d:row=1:tokens"}]}),
            "actuals[0].actual_amount: is needed",
        ),
        (
            json!({"lease_id": id, "actuals": [actual(1), actual(2)]}),
            "actuals[1].key: `d:row=1:tokens` is there twice",
        ),
        (json!({"lease_id": id, "actuals": [{"key": "x", "actual_amount": 1}]}), "holds nothing of `x`"),
        (json!({"lease_token": token, "actuals": [{"key": "", "actual_amount": 1}]}), "holds nothing of ``"),
        (json!({"lease_token": "nonsense"}), "the lease token is not a lease token of this version"),
        (json!({"lease_token": id}), "the lease token is not a lease token of this version"),
        (json!({"lease_token": format!("{token}A")}), "the lease token is"),
        (json!({"lease_id": &token[..token.len() - 1]}), "the lease token is"),
        (json!({"lease_id": id, "actual": []}), "unknown field `actual`"),
    ];
    for (body, detail) in cases {
        let answer = app.post("/v1/complete", &body.to_string()).await;
        let said = answer.json();
        assert_eq!((answer.status, &said["error"]), (400, &json!("invalid_request")), "{body}: {said}");
        assert_eq!(said["ok"], false);
        assert!(said["detail"].as_str().unwrap().contains(detail), "{body}: {said}");
    }
    assert_eq!(app.used("d:row=1:tokens").await, 10);
    for body in [
        json!({"lease_id": "never-heard-of", "actuals": [actual(1)]}),
        json!({"lease_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}),
        json!({"lease_id": id, "lease_token": null, "actuals": null}),
        json!({"lease_id": id, "lease_token": token}),
    ] {
        let answer = app.post("/v1/complete", &body.to_string()).await;
        let ok = json!({"ok": true, "error": null, "detail": null});
        assert_eq!((answer.status, answer.json()), (200, ok), "{body}");
    }
}

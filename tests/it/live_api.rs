//! Limits and the retry policy through the admin API: live at once, never against a file.

use std::fs;

use serde_json::json;

use crate::live::{PATH, limits, named, within};
use crate::testapp::TestApp;

const LIMIT: &str = r#"{"key": "night", "kind": "rolling", "capacity": 10, "window_seconds": 2, "unit": "requests", "description": "at 3 a.m."}"#;

async fn start() -> TestApp {
    TestApp::with_limits(&limits(10)).and_limits(&named("owned", 5)).start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_made_changed_and_removed() {
    let app = start().await;
    let made = app.send("PUT", "/v1/limits", LIMIT).await;
    let expected = json!({
        "key": "night", "kind": "rolling", "capacity": 10, "window_seconds": 2, "unit": "requests",
        "description": "at 3 a.m.", "overage": "deny", "status": "active", "pending_decrease_to": null,
        "used": 0, "available": 10, "debt": 0, "slab": null, "origin": "api",
    });
    assert_eq!((made.status, made.json()), (200, expected.clone()));
    assert_eq!((app.limit("night").await, app.version().await), (Some(expected), 2));
    let list = app.get("/v1/limits").await.json();
    let keys: Vec<&str> =
        list["limits"].as_array().unwrap().iter().map(|l| l["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["night", "owned"]);

    let again = app.send("PUT", "/v1/limits", LIMIT).await;
    assert_eq!((again.status, app.version().await), (200, 2), "the same again is no change");
    let held =
        r#"{"key": "night", "kind": "concurrency", "capacity": 20, "timeout_seconds": 5, "overage": "deny"}"#;
    let changed = app.send("PUT", "/v1/limits", held).await.json();
    assert_eq!(
        (&changed["kind"], &changed["capacity"], &changed["description"]),
        (&"concurrency".into(), &20.into(), &"".into())
    );

    assert_eq!(app.send("DELETE", "/v1/limits/night", "").await.status, 204);
    assert_eq!((app.limit("night").await, app.version().await), (None, 4));
    let gone = app.send("DELETE", "/v1/limits/night", "").await;
    assert_eq!((gone.status, &gone.json()["error"]), (404, &"unknown_limit_key:night".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_file_owns_is_changed_in_the_file() {
    let app = start().await;
    let put = async |key: &str| {
        let body = json!({"key": key, "kind": "rolling", "capacity": 1, "window_seconds": 1});
        app.send("PUT", "/v1/limits", &body.to_string()).await
    };
    let owned = put("owned").await;
    assert_eq!((owned.status, &owned.json()["error"]), (409, &"owned_by_file".into()));
    assert!(owned.json()["detail"].as_str().unwrap().contains("limits/1.yaml:3 defines it"), "{owned:?}");
    // A limit that a rule of the file makes is the file's as well, whatever else is wrong with the body.
    assert!(put(PATH).await.json()["detail"].as_str().unwrap().contains("limits/0.yaml:3 defines it"));
    let nonsense = app.send("PUT", "/v1/limits", r#"{"key": "owned", "capacity": -1}"#).await;
    assert_eq!(nonsense.status, 409);
    for path in ["/v1/limits/owned", "/v1/limits/d%3Apath%3D%2Fa%3Aminute"] {
        let refused = app.send("DELETE", path, "").await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.json()["detail"].as_str().unwrap().contains(":3 defines it"));
    }
    assert_eq!((app.capacity("owned").await, app.version().await), (Some(5), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_as_for_a_file() {
    let app = start().await;
    for (body, detail) in [
        ("{", "body: is no JSON: EOF while parsing an object at line 1 column 1"),
        (
            "[]",
            "body: must be a mapping with the keys key, kind, capacity, window_seconds, timeout_seconds, unit, description, overage, exact, charge, not a list",
        ),
        (
            r#"{"key": "k", "kind": "rolling", "capacity": "1", "window_second": 1}"#,
            "body: capacity: must be a whole number from 0 to 9223372036854775807, not the text \"1\" (half of 64 bits, so that sums and debts can't overflow); \
             body: window_second: is not a key of a named limit; did you mean `window_seconds`?; \
             body: window_seconds: is missing: whole seconds after which what was taken comes back",
        ),
        (
            r#"{"kind": "rolling", "capacity": 1, "window_seconds": 1}"#,
            "body: key: is missing: the name of the limit, such as `global:llm:openai:gpt-4o:rpm`",
        ),
        (
            r#"{"key": "later:path=/a:minute", "kind": "rolling", "capacity": 1, "window_seconds": 1}"#,
            "body: key: is written like the keys that Sluice makes for the domain `later`, and would share an account with one; begin it differently",
        ),
    ] {
        let refused = app.send("PUT", "/v1/limits", body).await;
        let expected = json!({"error": "invalid_request", "detail": detail});
        assert_eq!((refused.status, refused.json()), (400, expected), "{body}");
    }
    let long = json!({"key": "k", "description": "x".repeat(20_000)});
    let refused = app.send("PUT", "/v1/limits", &long.to_string()).await;
    assert_eq!((refused.status, &refused.json()["error"]), (413, &"too_large".into()));
    assert_eq!(app.send("POST", "/v1/limits", "").await.status, 405);
    assert_eq!(app.version().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_lowers_waits_for_room_and_one_that_raises_does_not() {
    let app = start().await;
    app.send("PUT", "/v1/limits", LIMIT).await;
    let limit = app.app.service.live.load().registry.get_named("night").cloned().unwrap();
    crate::live::take(&app, &limit, 8).await;
    let lowered = app.send("PUT", "/v1/limits", &LIMIT.replace("10", "5")).await.json();
    assert_eq!((&lowered["status"], &lowered["capacity"]), (&"decreasing".into(), &10.into()));
    assert_eq!(lowered["pending_decrease_to"], 5);
    let raised = app.send("PUT", "/v1/limits", &LIMIT.replace("10", "12")).await.json();
    assert_eq!((&raised["status"], &raised["capacity"]), (&"active".into(), &12.into()));
    app.send("PUT", "/v1/limits", &LIMIT.replace("10", "5")).await;
    app.becomes("night", Some(5)).await;
    assert_eq!(app.limit("night").await.unwrap()["status"], "active");
}

/// Limits of the API outlive reloads; one that a file defines becomes the file's, and doesn't come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_takes_over() {
    let app = start().await;
    app.send("PUT", "/v1/limits", LIMIT).await;
    let file = app.dir.path().join("limits/0.yaml");
    fs::write(&file, limits(20)).unwrap();
    app.becomes(PATH, Some(20)).await;
    assert_eq!(app.capacity("night").await, Some(10), "a reload leaves it alone");
    let new = app.dir.path().join("limits/night.yaml");
    fs::write(&new, named("night", 10)).unwrap();
    within("the file", async || {
        let limit = app.limit("night").await.unwrap();
        if limit["origin"].as_str().unwrap().ends_with("night.yaml:3") {
            Ok(())
        } else {
            Err(limit.to_string())
        }
    })
    .await;
    assert_eq!(app.send("PUT", "/v1/limits", LIMIT).await.status, 409);
    fs::remove_file(&new).unwrap();
    app.becomes("night", None).await;
    let dir = app.stop().await;
    let app = crate::testapp::Builder::in_dir(dir).start().await;
    assert_eq!(app.limit("night").await, None);
}

/// A file means the same on every machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_can_not_refer_to_a_limit_of_the_api() {
    let app = start().await;
    app.send("PUT", "/v1/limits", LIMIT).await;
    let text = "domain: x\ndescriptors: [{key: a, limits: [{ref: night}]}]\n";
    fs::write(app.dir.path().join("limits/x.yaml"), text).unwrap();
    within("a problem", async || {
        let problems = app.config().await["problems"].to_string();
        if problems.contains("no file has a limit with the key `night`") { Ok(()) } else { Err(problems) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_policy_can_be_overridden() {
    let app = start().await;
    let file = app.get("/v1/retry-policy").await.json();
    assert_eq!((&file["decreasing_ms"], &file["override"]), (&10_000.into(), &json!(null)));
    let put =
        app.send("PUT", "/v1/retry-policy", r#"{"decreasing_ms": 5, "rolling": {"jitter_ms": 0}}"#).await;
    assert_eq!(put.status, 200, "{put:?}");
    let policy = put.json();
    assert_eq!(policy["override"], json!({"decreasing_ms": 5, "rolling": {"jitter_ms": 0}}));
    assert_eq!((&policy["decreasing_ms"], &policy["rolling"]["jitter_ms"]), (&5.into(), &0.into()));
    assert_eq!(
        (&policy["rolling"]["base_ms"], app.version().await),
        (&100.into(), 2),
        "the rest is the file's"
    );
    assert_eq!(app.app.service.live.load().retry.decreasing_ms, 5, "what requests see");

    // The rest stays the file's, also when that changes.
    let path = app.dir.path().join("retry_policy.yaml");
    fs::write(&path, "retry_policy: {decreasing_ms: 7, rolling: {base_ms: 200}}").unwrap();
    within("the file", async || {
        let policy = app.get("/v1/retry-policy").await.json();
        if policy["rolling"]["base_ms"] == 200 { Ok(()) } else { Err(policy.to_string()) }
    })
    .await;
    assert_eq!(app.get("/v1/retry-policy").await.json()["decreasing_ms"], 5);

    // The next one replaces it whole.
    let next = app.send("PUT", "/v1/retry-policy", r#"{"budget": {"ratio": 0.5}}"#).await.json();
    assert_eq!((&next["decreasing_ms"], &next["budget"]["ratio"]), (&7.into(), &0.5.into()));
    let back = app.send("DELETE", "/v1/retry-policy", "").await;
    assert_eq!(
        (back.status, &back.json()["override"], &back.json()["budget"]["ratio"]),
        (200, &json!(null), &0.3.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_retry_policy_is_refused_as_in_the_file() {
    let app = start().await;
    for (body, detail) in [
        (
            r#"{"decreasing": 5}"#,
            "PUT /v1/retry-policy: decreasing: is not a key of `retry_policy`; did you mean `decreasing_ms`?",
        ),
        (
            r#"{"retry_policy": {}}"#,
            "PUT /v1/retry-policy: retry_policy: is a key of the file, not of `retry_policy`",
        ),
        (
            "3",
            "PUT /v1/retry-policy: must be a mapping with the keys concurrency, rolling, decreasing_ms, queue, budget, not a plain value",
        ),
    ] {
        let refused = app.send("PUT", "/v1/retry-policy", body).await;
        assert_eq!(
            (refused.status, refused.json()),
            (400, json!({"error": "invalid_request", "detail": detail})),
            "{body}"
        );
    }
    let refused = app.send("PUT", "/v1/retry-policy", r#"{"rolling": {"max_ms": 1}}"#).await;
    assert_eq!(refused.status, 400, "above its maximum: {refused:?}");
    assert_eq!(app.version().await, 1);
}

/// A file that an override doesn't go with is a mistake that says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_override_and_a_file_that_do_not_go_together() {
    let app = start().await;
    assert_eq!(app.send("PUT", "/v1/retry-policy", r#"{"rolling": {"max_ms": 150}}"#).await.status, 200);
    let path = app.dir.path().join("retry_policy.yaml");
    fs::write(&path, "retry_policy: {rolling: {base_ms: 200}}").unwrap();
    within("a problem", async || {
        let problems = app.config().await["problems"].clone();
        if problems[0]["file"] == "PUT /v1/retry-policy" { Ok(()) } else { Err(problems.to_string()) }
    })
    .await;
    // Without the override the file is right, and needs no other edit to go live.
    let back = app.send("DELETE", "/v1/retry-policy", "").await;
    assert_eq!(back.json()["rolling"]["base_ms"], 200);
    assert_eq!(app.config().await["problems"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_is_measured_when_somebody_looks() {
    let app = start().await;
    for _ in 0..4 {
        app.say("path=/a").await;
    }
    app.say("path=/a retry_attempt=1").await;
    assert_eq!(app.metric("sluice_retry_budget_ratio").await, 0.25);
}

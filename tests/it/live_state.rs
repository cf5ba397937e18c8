//! What Sluice itself remembers: over restarts, whole or not at all, never lost in silence.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sluice::app::StartError;

use crate::live::limits;
use crate::testapp::{Builder, TestApp};

const LIMIT: &str =
    r#"{"key": "night", "kind": "rolling", "capacity": 10, "window_seconds": 60, "overage": "debt"}"#;

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_is_made_when_it_is_needed() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    let state = app.dir.path().join("state");
    assert!(!state.exists());
    app.send("PUT", "/v1/limits", LIMIT).await;
    let expected = json!({"version": 1, "limits": [{
        "definition": {"key": "night", "kind": "rolling", "capacity": 10, "window_seconds": 60, "unit": "",
                       "description": "", "overage": "debt"},
        "status": "active", "owner": "api",
    }]});
    assert_eq!(read(&state.join("limits.json")), expected);
    let names: Vec<_> = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["limits.json"], "nothing half-written is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_survive_a_restart() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    app.send("PUT", "/v1/limits", LIMIT).await;
    app.send("PUT", "/v1/limits", &LIMIT.replace("night", "day").replace("10", "7")).await;
    let before = app.get("/v1/limits").await.json();
    let app = Builder::in_dir(app.stop().await).start().await;
    assert_eq!(app.get("/v1/limits").await.json(), before);
    app.send("DELETE", "/v1/limits/day", "").await;
    let app = Builder::in_dir(app.stop().await).start().await;
    assert_eq!((app.limit("day").await, app.capacity("night").await), (None, Some(10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_survives_a_restart() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    app.send("PUT", "/v1/retry-policy", r#"{"decreasing_ms": 5}"#).await;
    let file = app.dir.path().join("state/retry_policy.json");
    assert_eq!(read(&file), json!({"version": 1, "retry_policy": {"decreasing_ms": 5}}));
    let app = Builder::in_dir(app.stop().await).start().await;
    let policy = app.get("/v1/retry-policy").await.json();
    assert_eq!((&policy["decreasing_ms"], &policy["override"]), (&5.into(), &json!({"decreasing_ms": 5})));
    app.send("DELETE", "/v1/retry-policy", "").await;
    assert!(!file.exists());
    let app = Builder::in_dir(app.stop().await).start().await;
    assert_eq!(app.get("/v1/retry-policy").await.json()["override"], Value::Null);
}

/// A file that defines it while Sluice was down wins as it does while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_takes_over_at_start() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    app.send("PUT", "/v1/limits", LIMIT).await;
    let dir = app.stop().await;
    fs::write(dir.path().join("limits/night.yaml"), crate::live::named("night", 3)).unwrap();
    let app = Builder::in_dir(dir).start().await;
    assert_eq!(app.capacity("night").await, Some(3));
    assert_eq!(read(&app.dir.path().join("state/limits.json"))["limits"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_fails_changes_nothing() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    // No directory can be made where a file is.
    fs::write(app.dir.path().join("state"), "").unwrap();
    for (path, body) in [("/v1/limits", LIMIT), ("/v1/retry-policy", r#"{"decreasing_ms": 5}"#)] {
        let refused = app.send("PUT", path, body).await;
        assert_eq!((refused.status, &refused.json()["error"]), (500, &"not_saved".into()), "{refused:?}");
    }
    assert_eq!((app.limit("night").await, app.version().await), (None, 1));
    assert_eq!(app.get("/v1/retry-policy").await.json()["decreasing_ms"], 10_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_stops_the_start_and_is_left_alone() {
    let whole = r#"{"version": 1, "limits": [{"definition": {"key": "k", "kind": "rolling", "capacity": 1, "window_seconds": 1}, "status": "active", "owner": "api"}]}"#;
    for (name, text, what) in [
        ("limits.json", "", "is broken: EOF while parsing a value at line 1 column 0"),
        ("limits.json", &whole[..60], "is broken: EOF"),
        ("limits.json", "[]", "has no version in it"),
        ("limits.json", &whole.replace('1', "2"), "has the version 2, and this Sluice knows only 1"),
        (
            "limits.json",
            &whole.replace("rolling", "rollin"),
            "limits[0]: definition: kind: must be one of rolling, concurrency",
        ),
        (
            "limits.json",
            &whole.replace("active", "decreasing"),
            "limits[0]: k: `pending_decrease_to` goes with `decreasing`",
        ),
        ("limits.json", &whole.replace("owner", "oner"), "is broken: unknown field `oner`"),
        ("limits.json", "\u{0}\u{0}\u{0}\u{0}", "is broken"),
        ("retry_policy.json", "{", "is broken: EOF"),
        ("retry_policy.json", r#"{"version": 9}"#, "has the version 9"),
        (
            "retry_policy.json",
            r#"{"version": 1, "retry_policy": {"rolling": {"max_ms": 1}}}"#,
            "the retry policy that it makes together with the file is wrong: ",
        ),
    ] {
        let builder = TestApp::with_limits(&limits(10)).and_file(&format!("state/{name}"), text);
        let (error, dir) = builder.refused().await;
        assert!(matches!(error, StartError::State(_)), "{error:?}");
        let said = error.to_string();
        let file = dir.path().join("state").join(name);
        assert!(said.starts_with(&format!("{}: {what}", file.display())), "{said}");
        assert!(said.contains("move it away to start without it"), "{said}");
        assert_eq!(fs::read_to_string(file).unwrap(), text);
    }
}

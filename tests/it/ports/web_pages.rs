//! Web pages that would use the admin port from a browser, and callers that may only look.

use serde_json::json;
use sluice::config::settings::secret::Secret;

use super::LIMITS;
use crate::http::{self, Answer};
use crate::testapp::{Builder, TestApp};
use crate::wait::until;

fn with_token(open_reads: bool) -> Builder {
    TestApp::with_limits(LIMITS).and_settings(move |settings| {
        settings.admin.token = Some(Secret::new("secret"));
        settings.admin.open_reads = open_reads;
    })
}

async fn call(app: &TestApp, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    http::send(app.app.admin, method, path, headers, body.to_owned()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_web_page_changes_anything() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let own = format!("http://{}", app.app.admin);
    let reserve = r#"{"requirements": [{"key": "pool", "amount": 1}]}"#;
    let limit = r#"{"key": "mine", "kind": "rolling", "capacity": 1, "window_seconds": 60}"#;
    let decide = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}]}"#;
    let calls = [
        ("POST", "/v1/reserve", reserve),
        ("POST", "/json", decide),
        ("PUT", "/v1/limits", limit),
        ("DELETE", "/v1/limits/mine", ""),
        ("PUT", "/v1/retry-policy", "{}"),
        ("DELETE", "/v1/retry-policy", ""),
        ("DELETE", "/v1/leases/nobody", ""),
    ];
    for (method, path, body) in calls {
        for (headers, status, error) in [
            (&[("host", "evil.example:8080")][..], 403, "foreign_host"),
            (&[("host", "evil.example"), ("origin", "http://evil.example")], 403, "foreign_host"),
            (&[("origin", "https://evil.example")], 403, "foreign_origin"),
            (&[("origin", "null")], 403, "foreign_origin"),
        ] {
            let answer = call(&app, method, path, headers, body).await;
            assert_eq!(answer.status, status, "{method} {path} {headers:?}: {answer:?}");
            assert_eq!(answer.json()["error"], error, "{method} {path} {headers:?}");
            assert!(answer.json()["detail"].is_string());
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
            // Without a content type it is a page only if it has an origin.
            let origin = if kind.is_empty() { own.as_str() } else { "" };
            let headers = [("content-type", kind), ("origin", origin)];
            let headers: Vec<_> =
                headers.into_iter().filter(|header| !header.1.is_empty() || header.0 != "origin").collect();
            let answer = call(&app, method, path, &headers, body).await;
            let expected = if method == "DELETE" { answer.status != 415 } else { answer.status == 415 };
            assert!(expected, "{method} {path} {kind}: {answer:?}");
        }
    }
    assert_eq!((app.used("pool").await, app.used("d:a=1:hour").await), (0, 0), "nothing was carried out");
    assert_eq!(app.get("/v1/limits/mine").await.status, 404);
    // Our own page and programs may.
    for headers in [&[("origin", own.as_str())][..], &[]] {
        assert_eq!(call(&app, "POST", "/json", headers, decide).await.status, 200, "{headers:?}");
        assert_eq!(call(&app, "PUT", "/v1/limits", headers, limit).await.status, 200, "{headers:?}");
        assert_eq!(call(&app, "DELETE", "/v1/limits/mine", headers, "").await.status, 204, "{headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_says_enough() {
    let app = with_token(false).start().await;
    let decide = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}]}"#;
    let foreign =
        [("host", "sluice.default.svc:8080"), ("origin", "http://page"), ("content-type", "text/plain")];
    assert_eq!(call(&app, "POST", "/json", &foreign, decide).await.status, 403);
    assert_eq!(
        call(&app, "POST", "/json", &foreign[1..], decide).await.status,
        403,
        "a page of another site"
    );
    assert_eq!(call(&app, "POST", "/json", &foreign[2..], decide).await.status, 401);
    let with_it = [&foreign[..], &[("authorization", "Bearer secret")]].concat();
    assert_eq!(call(&app, "POST", "/json", &with_it, decide).await.status, 200);
}

/// A lease that is waiting to be picked up, and who looks at it.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_look_gets_no_lease_token_and_picks_nothing_up() {
    let with_it = [("authorization", "Bearer secret")];
    let foreign = [("host", "evil.example")];
    for (builder, full, look) in
        [(with_token(true), &with_it[..], &[][..]), (TestApp::with_limits(LIMITS), &[], &foreign)]
    {
        let policy = "retry_policy: {queue: {pickup_seconds: 2}}";
        let app = builder.and_file("retry_policy.yaml", policy).start().await;
        let body = json!({"queue": true, "requirements": [{"key": "pool", "amount": 1}]}).to_string();
        let reserve = async || call(&app, "POST", "/v1/reserve", full, &body).await.json();
        let first = reserve().await;
        let path = |lease: &serde_json::Value| format!("/v1/leases/{}", lease["lease_id"].as_str().unwrap());
        let seen = call(&app, "GET", &path(&first), look, "").await;
        assert_eq!((seen.status, seen.json()["state"].as_str()), (200, Some("reserved")), "{seen:?}");
        assert!(seen.json()["lease_token"].as_str().unwrap_or_default().is_empty(), "{seen:?}");
        let held = call(&app, "GET", &path(&first), full, "").await.json();
        assert_eq!(held["lease_token"], first["lease_token"]);

        let second = reserve().await;
        assert_eq!(second["state"], "queued");
        let complete = json!({"lease_token": first["lease_token"]}).to_string();
        assert_eq!(call(&app, "POST", "/v1/complete", full, &complete).await.status, 200);
        let mut was_reserved = false;
        // Looking all the time doesn't keep it.
        until("it is given to the next", async || {
            let said = call(&app, "GET", &path(&second), look, "").await.json();
            was_reserved |= said["state"] == "reserved";
            assert!(said["lease_token"].as_str().unwrap_or_default().is_empty(), "{said}");
            if said["state"] == "timed_out" { Ok(()) } else { Err(said.to_string()) }
        })
        .await;
        assert!(was_reserved);
        assert_eq!(call(&app, "GET", &path(&second), full, "").await.json()["state"], "timed_out");
    }
}

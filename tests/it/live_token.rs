//! The admin port beyond this machine: with the token, or not at all.

use std::fs;

use sluice::app::StartError;
use sluice::config::settings::secret::Secret;

use crate::http::{self, Answer};
use crate::live::limits;
use crate::testapp::{Builder, TestApp};

const READS: [&str; 6] =
    ["/metrics", "/rlconfig", "/v1/limits", "/v1/config", "/v1/config/limits", "/v1/retry-policy"];
const WRITES: [(&str, &str); 6] = [
    ("POST", "/json"),
    ("PUT", "/v1/limits"),
    ("DELETE", "/v1/limits/x"),
    ("PUT", "/v1/retry-policy"),
    ("DELETE", "/v1/retry-policy"),
    ("POST", "/v1/nowhere"),
];

fn with_token() -> Builder {
    TestApp::with_limits(&limits(10)).and_settings(|s| s.admin.token = Some(Secret::new("let me in")))
}

async fn call(app: &TestApp, method: &str, path: &str, authorization: &str) -> Answer {
    let headers = [("authorization", authorization)];
    let headers = if authorization.is_empty() { &headers[..0] } else { &headers[..] };
    http::send(app.app.admin, method, path, headers, "{}").await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_needs_the_token_but_health_checks() {
    let app = with_token().start().await;
    for path in ["/livez", "/readyz", "/healthcheck"] {
        assert_eq!(call(&app, "GET", path, "").await.status, 200, "{path}");
    }
    let reads = READS.map(|path| ("GET", path));
    for (method, path) in reads.iter().chain(&WRITES).chain(&[("GET", "/v1/nowhere")]) {
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer let me", "Bearer let me in!", "Basic let me in", "let me in"]
        {
            let refused = call(&app, method, path, wrong).await;
            assert_eq!(
                (refused.status, &refused.json()["error"]),
                (401, &"unauthorized".into()),
                "{method} {path} {wrong}"
            );
            assert!(refused.json()["detail"].is_string());
            assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"sluice\"");
        }
        for right in ["Bearer let me in", "bearer let me in"] {
            assert_ne!(call(&app, method, path, right).await.status, 401, "{method} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_open_on_request() {
    let app = with_token().and_settings(|settings| settings.admin.open_reads = true).start().await;
    for path in READS {
        assert_eq!(call(&app, "GET", path, "").await.status, 200, "{path}");
    }
    for (method, path) in WRITES {
        assert_eq!(call(&app, method, path, "").await.status, 401, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_it_stays_on_this_machine() {
    let everywhere =
        |settings: &mut sluice::config::Settings| settings.admin.listen = "0.0.0.0:0".parse().unwrap();
    let (error, _) = TestApp::with_limits(&limits(10)).and_settings(everywhere).refused().await;
    assert!(matches!(error, StartError::Token(_)), "{error:?}");
    assert!(error.to_string().contains("set admin.token_file or SLUICE_ADMIN_TOKEN"), "{error}");
    with_token().and_settings(everywhere).start().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let with_file = |path: std::path::PathBuf| {
        TestApp::with_limits(&limits(10)).and_settings(move |s| s.admin.token_file = Some(path))
    };
    let (error, _) = with_file(file.clone()).refused().await;
    assert!(error.to_string().contains("token: can't be read"), "{error}");
    fs::write(&file, "from a file\n").unwrap();
    let app = with_file(file).start().await;
    assert_eq!(call(&app, "GET", "/v1/config", "").await.status, 401);
    assert_eq!(call(&app, "GET", "/v1/config", "Bearer from a file").await.status, 200);
}

//! Sources of configuration beside the files: together they are one snapshot, and a mistake in one holds up only that one.

use std::fs;
use std::sync::Arc;

use sluice::config::{Content, Document, Problem};

use crate::live::{PATH, limits, named, within};
use crate::testapp::TestApp;

/// A source that is not files.
const STREAM: &str = "stream";

fn said(texts: &[&str]) -> Arc<Content> {
    let document =
        |(n, text): (usize, &&str)| Document { name: format!("stream/{n}"), text: (*text).to_owned() };
    Arc::new(Content { limits: texts.iter().enumerate().map(document).collect(), ..Content::default() })
}

fn lines(problems: &[Problem], app: &TestApp) -> Vec<String> {
    let dir = format!("{}/", app.dir.path().display());
    problems.iter().map(|problem| problem.to_string().replace(&dir, "")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_sources_are_one_snapshot() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    let control = &app.app.control;
    control.update(STREAM, said(&[&named("streamed", 3)])).await.unwrap();
    assert_eq!((app.capacity(PATH).await, app.capacity("streamed").await), (Some(10), Some(3)));
    assert_eq!(app.config().await["files"].as_array().unwrap().len(), 2);
    // The files change, and what the stream said stays.
    fs::write(app.dir.path().join("limits/0.yaml"), limits(20)).unwrap();
    app.becomes(PATH, Some(20)).await;
    assert_eq!((app.capacity("streamed").await, app.version().await), (Some(3), 3));
    // It says nothing any more.
    control.update(STREAM, said(&[])).await.unwrap();
    assert_eq!((app.capacity(PATH).await, app.capacity("streamed").await), (Some(20), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_that_two_sources_have_is_a_problem_naming_both() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    let refused =
        app.app.control.update(STREAM, said(&[&named("streamed", 3), &limits(5)])).await.unwrap_err();
    assert_eq!(
        lines(&refused, &app),
        ["stream/1:1: domain: is also the domain of limits/0.yaml:1; a domain has one file"]
    );
    let config = app.config().await;
    assert_eq!(config["problems"].as_array().unwrap().len(), 1, "{config}");
    assert_eq!((app.capacity(PATH).await, app.capacity("streamed").await), (Some(10), None));
    // The files let go of it: what was refused goes live without being said again.
    fs::write(app.dir.path().join("limits/0.yaml"), named("filed", 1)).unwrap();
    app.becomes(PATH, Some(5)).await;
    let (streamed, filed) = (app.capacity("streamed").await, app.capacity("filed").await);
    assert_eq!(
        (streamed, filed, &app.config().await["failing_since"]),
        (Some(3), Some(1), &serde_json::Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_retry_policy() {
    let policy = "retry_policy: {decreasing_ms: 5}";
    let app = TestApp::with_limits(&limits(10)).and_file("retry_policy.yaml", policy).start().await;
    let document = Document { name: "stream/policy".to_owned(), text: policy.to_owned() };
    let content = Content { retry_policy: Some(document), ..Content::default() };
    let refused = app.app.control.update(STREAM, Arc::new(content)).await.unwrap_err();
    let said = lines(&refused, &app);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("retry_policy.yaml") && said[0].contains("stream/policy"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_one_source_does_not_hold_up_another() {
    let app = TestApp::with_limits(&limits(10)).start().await;
    let file = app.dir.path().join("limits/0.yaml");
    fs::write(&file, "nonsense").unwrap();
    let failing = async |problems: usize| {
        within("problems", async || {
            let config = app.config().await;
            let count = config["problems"].as_array().unwrap().len();
            if count == problems { Ok(config) } else { Err(config.to_string()) }
        })
        .await
    };
    failing(1).await;
    app.app.control.update(STREAM, said(&[&named("streamed", 3)])).await.unwrap();
    assert_eq!((app.capacity(PATH).await, app.capacity("streamed").await), (Some(10), Some(3)));
    let config = failing(1).await;
    assert!(config["failing_since"].is_number(), "the files are still wrong: {config}");
    // Both are wrong, and both are told.
    app.app.control.update(STREAM, said(&["domain: x\nlimits: 5"])).await.unwrap_err();
    failing(2).await;
    fs::write(&file, limits(30)).unwrap();
    app.becomes(PATH, Some(30)).await;
    failing(1).await;
    assert_eq!(app.capacity("streamed").await, Some(3), "the last good one stays");
}

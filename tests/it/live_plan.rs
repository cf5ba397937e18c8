//! What a change of files is called, in the reload log and by `sluice check --against`.

use std::fs;
use std::path::Path;
use std::process::Output;

use sluice::config::{Document, load_limits};
use sluice::registry::changes::between;
use sluice::registry::outline::Outline;

use crate::live::{PATH, limits, named};
use crate::testapp::TestApp;

fn outline(descriptors: &str) -> Outline {
    let text = format!("domain: d\n{descriptors}\n");
    let file = Document { name: "f".into(), text: text.clone() };
    let loaded = load_limits(&[file], None).unwrap_or_else(|problems| panic!("{problems:?} in {text}"));
    Outline::of(&loaded.registry)
}

#[test]
fn rows() {
    const MINUTE: &str = "rate_limit: {unit: minute, requests_per_unit: 10}";
    const NAMED: &str = "limits: [{key: k, kind: rolling, capacity: 10, window_seconds: 60}]\n";
    let inline = |rest: &str| {
        format!("descriptors: [{{key: a, limits: [{{name: n, kind: rolling, capacity: 10, {rest}}}]}}]")
    };
    let node = |rest: &str| format!("descriptors: [{{key: a, {rest}}}]");
    for (old, new, expected) in [
        (node(MINUTE), node(MINUTE), ""),
        (node(MINUTE), format!("# moved\n\n{}", node(MINUTE)), ""),
        (node(MINUTE), node(&MINUTE.replace("10", "11")), "raised d:a:minute: capacity 10 -> 11"),
        (node(MINUTE), node(&MINUTE.replace("10", "0")), "lowered d:a:minute: capacity 10 -> 0"),
        (
            node(MINUTE),
            node(&MINUTE.replace("minute", "hour")),
            "added d:a:hour: capacity 10, kind rolling, unit requests, window_seconds 3600\nremoved d:a:minute",
        ),
        (node(MINUTE), String::new(), "removed d:a:minute"),
        (
            node(MINUTE),
            node(&format!("shadow_mode: true, {MINUTE}")),
            "changed d:a:minute: shadow_mode none -> true",
        ),
        (node(MINUTE), node("rate_limit: {unlimited: true}"), "added d:a -> unlimited\nremoved d:a:minute"),
        (
            inline("window_seconds: 60"),
            inline("window_seconds: 30"),
            "changed d:a:n: window_seconds 60 -> 30",
        ),
        (
            inline("window_seconds: 60"),
            inline("window_seconds: 60, overage: debt, reconcile: true"),
            "changed d:a:n: overage none -> debt, reconcile none -> true",
        ),
        (
            inline("window_seconds: 60"),
            inline("window_seconds: 60, cost: 3"),
            "changed d:a:n: cost none -> 3",
        ),
        (
            inline("window_seconds: 60"),
            inline("window_seconds: 60").replace("10", "20").replace("60", "90"),
            "raised d:a:n: capacity 10 -> 20, window_seconds 60 -> 90",
        ),
        (NAMED.to_owned(), NAMED.replace("10", "5"), "lowered k: capacity 10 -> 5"),
        (
            NAMED.to_owned(),
            NAMED.replace("key: k", "key: l"),
            "added l: capacity 10, kind rolling, window_seconds 60\nremoved k",
        ),
        (
            NAMED.to_owned(),
            format!("{NAMED}{}", node("limits: [{ref: k, cost: 2}]")),
            "added d:a -> k: cost 2",
        ),
        // A named limit that changes is named once, not for all that refer to it.
        (
            format!("{NAMED}{}", node("limits: [{ref: k}]")),
            format!("{}{}", NAMED.replace("10", "11"), node("limits: [{ref: k}]")),
            "raised k: capacity 10 -> 11",
        ),
        (
            format!("descriptors: [{{key: a, value: 'x*', {MINUTE}}}, {{key: a, value: 'xy*', {MINUTE}}}]"),
            format!("descriptors: [{{key: a, value: 'xy*', {MINUTE}}}, {{key: a, value: 'x*', {MINUTE}}}]"),
            "changed d:a: its patterns are tried in another order",
        ),
    ] {
        let changes = between(&outline(&old), &outline(&new));
        let said: Vec<String> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(said.join("\n"), expected, "from {old} to {new}");
    }
}

async fn check(config: &Path, against: String, token: &str) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("check").arg("--config-dir").arg(config).arg("--against").arg(against);
    command.env("SLUICE_ADMIN_TOKEN", token);
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_against_a_running_server() {
    let app = TestApp::with_limits(&limits(10)).and_limits(&named("shared", 5)).start().await;
    let url = format!("http://{}", app.app.admin);
    let made = r#"{"key": "night", "kind": "rolling", "capacity": 10, "window_seconds": 2}"#;
    app.send("PUT", "/v1/limits", made).await;
    app.send("PUT", "/v1/retry-policy", r#"{"decreasing_ms": 5}"#).await;
    let same = check(app.dir.path(), url.clone(), "").await;
    assert_eq!(
        text(&same.stdout),
        format!("ok: 2 files, 2 domains, 1 named limits\nagainst {url}, version 3: no changes\n")
    );
    assert!(same.status.success());

    let new = tempfile::tempdir().unwrap();
    fs::create_dir(new.path().join("limits")).unwrap();
    fs::write(new.path().join("limits/0.yaml"), limits(20)).unwrap();
    fs::write(new.path().join("limits/night.yaml"), named("night", 3)).unwrap();
    fs::write(new.path().join("retry_policy.yaml"), "retry_policy: {decreasing_ms: 7}").unwrap();
    let planned = check(new.path(), format!("{url}/"), "").await;
    let night = new.path().join("limits/night.yaml");
    let expected = format!(
        "ok: 3 files, 2 domains, 1 named limits\n\
         lowered night: capacity 10 -> 3, owner api -> {}:3\n\
         removed shared\n\
         raised d:path:minute: capacity 10 -> 20\n\
         changed retry_policy.decreasing_ms: 10000 -> 7\n\
         against {url}/, version 3: 1 removed, 1 raised, 1 lowered, 1 changed\n",
        night.display()
    );
    assert_eq!(text(&planned.stdout), expected);
    assert!(planned.status.success(), "changes are no mistake");
    assert_eq!((app.version().await, app.capacity(PATH).await), (3, Some(10)), "a plan changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_needs_a_server_and_its_token() {
    let app = TestApp::with_limits(&limits(10))
        .and_settings(|settings| {
            settings.admin.token = Some(sluice::config::settings::secret::Secret::new("secret"))
        })
        .start()
        .await;
    let url = format!("http://{}", app.app.admin);
    for (against, token, said) in [
        (url.clone(), "", "needs the admin token: set SLUICE_ADMIN_TOKEN"),
        (url.clone(), "wrong", "needs the admin token, and SLUICE_ADMIN_TOKEN is another"),
        ("https://127.0.0.1:1".to_owned(), "", "needs --ca, the authority of its certificate"),
        ("127.0.0.1:8080".to_owned(), "", "must begin with http://"),
        ("http://127.0.0.1:1".to_owned(), "", "no server at http://127.0.0.1:1"),
        (format!("http://{}", app.grpc()), "", ""),
    ] {
        let output = check(app.dir.path(), against.clone(), token).await;
        assert_eq!(output.status.code(), Some(1), "{against}");
        assert!(text(&output.stderr).contains(said), "{against}: {}", text(&output.stderr));
    }
    let output = check(app.dir.path(), url, "secret").await;
    assert!(output.status.success(), "{}", text(&output.stderr));
}

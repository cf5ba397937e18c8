//! Tokens that are not right, the secrets that sign them, and leases that have none.

use serde_json::{Value, json};
use sluice::app::StartError;
use sluice::config::settings::secret::Secret;

use super::{counted, start, want, wants};
use crate::ask::request;
use crate::lease_scenario::{LIMITS, Port, complete, lease_of, reserve};
use crate::testapp::TestApp;

async fn with_secrets(secrets: &'static [&'static str]) -> TestApp {
    let secrets = secrets.iter().map(|secret| Secret::new(secret)).collect();
    TestApp::with_limits(LIMITS).and_settings(move |settings| settings.leases.secrets = secrets).start().await
}

/// What Envoy's completion is answered never depends on its token; what it does, does.
#[tokio::test]
async fn tokens_that_are_not_right_are_refused_and_counted() {
    let app = with_secrets(&["the first secret", "an older secret"]).await;
    let stranger = with_secrets(&["a stranger's secret"]).await;
    let older = with_secrets(&["an older secret"]).await;
    let ask = json!({"requirements": [want("held", 1)]});
    let token = |answer: Value| answer["lease_token"].as_str().unwrap().to_owned();
    let good = token(reserve(&app, Port::Http, ask.clone()).await);
    let from_stranger = token(reserve(&stranger, Port::Http, ask.clone()).await);
    let from_older = token(reserve(&older, Port::Http, ask).await);

    let mut forged = vec![from_stranger, good[..good.len() - 1].to_owned(), format!("{good}A")];
    forged.extend([good.replacen("s1.", "s0.", 1), good.replacen("s1.", "s2.", 1), "s1.".to_owned()]);
    for at in 3..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        forged.push(String::from_utf8(bytes).unwrap());
    }
    for (index, token) in forged.iter().enumerate() {
        let done = format!("phase=done lease_id={token}");
        app.answers(&[&format!("{done} -> bare")]).await;
        assert_eq!(counted(&app, "forged").await, index as u64 + 1, "{token}");
    }
    assert_eq!(app.used("d:row=1:held").await, 1);
    let refused = complete(&app, Port::Http, json!({"lease_token": forged[0]})).await;
    assert_eq!((&refused["ok"], &refused["error"]), (&json!(false), &json!("invalid_request")));
    assert_eq!(counted(&app, "completed").await, 0);

    // One that the older secret signed is good, though this ledger has never seen its lease.
    app.answers(&[&format!("lease_id={from_older} -> bare")]).await;
    app.answers(&[&format!("lease_id={good} -> bare")]).await;
    assert_eq!(app.used("d:row=1:held").await, 0);
    assert_eq!(
        (counted(&app, "forged").await, counted(&app, "completed").await),
        (forged.len() as u64 + 1, 2)
    );
}

/// Without a configured secret every process has its own.
#[tokio::test]
async fn without_a_secret_nobody_else_can_read_a_token() {
    let (app, other) = (start().await, start().await);
    let lease = reserve(&app, Port::Http, wants("held", 1)).await;
    let by_token = json!({"lease_token": lease["lease_token"]});
    assert_eq!(complete(&other, Port::Http, by_token.clone()).await["ok"], false);
    assert_eq!(complete(&app, Port::Http, by_token).await["ok"], true);
    assert_eq!(app.used("d:row=1:held").await, 0);
}

#[tokio::test]
async fn secrets_are_read_from_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secrets");
    let with_file = |path: &std::path::Path| {
        let path = path.to_owned();
        TestApp::with_limits(LIMITS).and_settings(move |settings| settings.leases.secrets_file = Some(path))
    };
    let Err(StartError::Secrets(error)) = with_file(&path).try_start().await else { panic!("it started") };
    assert!(error.contains("secrets: can't be read"), "{error}");
    std::fs::write(&path, "the first secret\nan older secret\n").unwrap();
    let app = with_file(&path).start().await;
    let older = with_secrets(&["an older secret"]).await;
    let lease = reserve(&older, Port::Http, wants("held", 1)).await;
    assert_eq!(complete(&app, Port::Http, json!({"lease_token": lease["lease_token"]})).await["ok"], true);
}

/// A lease whose keys are too long for a token goes by its plain id.
#[tokio::test]
async fn long_keys_go_by_their_plain_id() {
    let app = start().await;
    let long = format!("row={} x5", "x".repeat(9000));
    let answer = app.client().should_rate_limit(request(&long)).await.unwrap().into_inner();
    let handle = lease_of(&answer).unwrap();
    assert_eq!(handle.len(), 26, "a ULID");
    let view = app.get(&format!("/v1/leases/{handle}")).await.json();
    let key = view["requirements"][2]["key"].as_str().unwrap();
    assert_eq!(app.used(key).await, 1);
    app.answers(&[&format!("lease_id={handle} -> bare")]).await;
    assert_eq!(app.used(key).await, 0);
}

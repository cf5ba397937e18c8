//! Limits from an xDS server, with a server of Envoy's own protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice::config::settings::ratelimit::Xds;
use sluice::control::xds::pb::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};

use crate::ads::{Ads, TYPE_URL, config, limit, under};
use crate::ask::{request, told};
use crate::live::{PATH, limits};
use crate::sluice::{Sluice, directory, serve};
use crate::testapp::{Builder, TestApp};
use crate::wait::until;

const MINUTE: RateLimitUnit = RateLimitUnit::Minute;
const HOUR: RateLimitUnit = RateLimitUnit::Hour;

pub fn following(ads: &Ads) -> Builder {
    at(&ads.address.to_string())
}

pub fn at(server: &str) -> Builder {
    let server = server.parse().unwrap();
    Builder::default().and_settings(move |settings| {
        let node_id = "envoy-ratelimit".to_owned();
        settings.config.xds = Some(Xds { server, node_id, tls: None, must_answer: true });
    })
}

async fn ready(app: &TestApp) {
    until("it to be ready", async || match app.get("/readyz").await {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_arrive_count_and_say_where_they_come_from() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    let first = ads.heard().await;
    assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
    assert_eq!((first.type_url.as_str(), first.resource_names.len()), (TYPE_URL, 0));
    assert_eq!(first.node.unwrap().id, "envoy-ratelimit");
    let unready = app.get("/readyz").await;
    assert_eq!(
        (unready.status, unready.body.as_str()),
        (503, "the xDS server has not sent the limits yet\n")
    );
    app.answers(&["path=/a -> bare"]).await;

    let route = under("route", "r/*", [limit("rule-0-match--1", "rule-0-match--1", 2, HOUR)]);
    let units = [
        RateLimitUnit::Second,
        RateLimitUnit::Day,
        RateLimitUnit::Week,
        RateLimitUnit::Month,
        RateLimitUnit::Year,
    ];
    let of_units = units.map(|unit| limit("unit", unit.as_str_name(), u32::MAX, unit));
    let descriptors =
        [vec![limit("path", "/a", 5, MINUTE), route, limit("off", "", 0, MINUTE)], of_units.to_vec()];
    ads.push("1", &[config("default/eg/http", descriptors.concat())]);
    let ack = ads.heard().await;
    assert_eq!((ack.version_info.as_str(), ack.response_nonce.as_str(), ack.error_detail), ("1", "0", None));
    ready(&app).await;
    app.answers(&[
        "5 times: in default/eg/http: path=/a -> ok 0/5 minute",
        "in default/eg/http: path=/a -> OVER default/eg/http:path=/a:minute; over 0/5 minute",
        "in default/eg/http: route=r/* rule-0-match--1=rule-0-match--1 -> ok 1/2 hour",
        "in default/eg/http: off=x -> NEVER default/eg/http:off=x:minute; over 0/0 minute",
        "in default/eg/http: unit=WEEK -> ok 4294967294/4294967295 week",
        "in default/eg/http: unit=YEAR -> ok 4294967294/4294967295 year",
        "in elsewhere: path=/a -> bare",
    ])
    .await;
    let shown = app.get("/v1/limits/default%2Feg%2Fhttp:path=%2Fa:minute").await.json();
    assert_eq!((&shown["origin"], &shown["charge"]), (&"xds:default/eg/http".into(), &"always".into()));
    assert_eq!(app.get("/v1/config").await.json()["files"], serde_json::json!(["xds:default/eg/http"]));
    let written = app.send("PUT", "/v1/limits", r#"{"key": "default/eg/http:path=/a:minute"}"#).await;
    assert_eq!(
        (written.status, written.json()["detail"].as_str().unwrap().contains("xds:default/eg/http")),
        (409, true)
    );

    // An empty state is one: nothing is limited any more.
    ads.accepted("2", &[]).await;
    app.answers(&["in default/eg/http: path=/a -> bare"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_answer_is_refused_with_every_problem_and_the_last_good_one_stays() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    ads.accepted("7", &[config("d", [limit("path", "/a", 5, MINUTE)])]).await;
    let unlimited = RateLimitPolicy { unlimited: true, ..Default::default() };
    let both = RateLimitPolicy { unit: MINUTE.into(), ..unlimited };
    let mut wrong = limit("path", "/b", 1, MINUTE);
    wrong.rate_limit = Some(both);
    let bad = [
        config(
            "d",
            [limit("path", "/a", 9, MINUTE), limit("path", "/a", 9, MINUTE), limit("", "", 1, MINUTE)],
        ),
        config("e", [wrong, limit("path", "/c", 1, RateLimitUnit::Unknown)]),
        config("", []),
    ];
    let refused = ads.refused("8", &bad).await;
    for problem in [
        "xds:d: descriptors[1]: has the key and value of another descriptor before it",
        "xds:d: descriptors[2].key: must not be empty",
        "xds:e: descriptors[0].rate_limit.unit: has no meaning beside `unlimited: true`",
        "xds:e: descriptors[1].rate_limit.unit: must be one of second, minute",
        "xds:: domain: must not be empty",
    ] {
        assert!(refused.contains(problem), "{problem} in {refused}");
    }
    app.answers(&["path=/a -> ok 4/5 minute"]).await;
    let shown = app.get("/v1/config").await.json();
    assert_eq!(shown["problems"].as_array().unwrap().len(), 5, "{shown}");

    // Versions say nothing about order.
    ads.accepted("1", &[config("d", [limit("path", "/a", 6, MINUTE)])]).await;
    app.answers(&["path=/a -> ok 4/6 minute"]).await;
    assert_eq!(app.get("/v1/config").await.json()["problems"], serde_json::json!([]));
}

/// What is live stays while the server is away, and a new one is heard although it counts its versions from the same number.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_and_comes_back_is_followed_again() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    ads.accepted("1", &[config("d", [limit("path", "/a", 5, MINUTE)])]).await;
    ready(&app).await;
    let address = ads.stop().await;
    app.answers(&["path=/a -> ok 4/5 minute"]).await;
    assert_eq!(app.get("/readyz").await.status, 200, "what it said holds");

    let ads = Ads::start_at(address).await;
    let first = ads.heard().await;
    assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
    ads.accepted("1", &[config("d", [limit("path", "/a", 7, MINUTE)])]).await;
    app.answers(&["path=/a -> ok 5/7 minute"]).await;
    // Its first answer may be bad.
    let address = ads.stop().await;
    let ads = Ads::start_at(address).await;
    ads.refused("1", &[config("", [])]).await;
    app.answers(&["path=/a -> ok 4/7 minute"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    let gone = Ads::start().await.stop().await;
    let app = at(&gone.to_string()).start().await;
    assert_eq!((app.get("/readyz").await.status, app.get("/livez").await.status), (503, 200));
    app.answers(&["path=/a -> bare"]).await;
    let ads = Ads::start_at(gone).await;
    ads.accepted("1", &[]).await;
    ready(&app).await;
}

/// With a file, and Go's ways to say true.
#[tokio::test(flavor = "multi_thread")]
async fn sluice_yaml_names_the_server_and_a_variable_lets_it_start_without() {
    for (force, status) in [("", 503), ("0", 503), ("1", 200), ("true", 200)] {
        let ads = Ads::start().await;
        let settings = format!("config: {{xds: {{server: '{}', node_id: mine}}}}", ads.address);
        let dir = directory(&[("config/sluice.yaml", &settings)]);
        let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.env("FORCE_START_WITHOUT_INITIAL_CONFIG", force);
        let sluice = Sluice::start(dir, command).await;
        assert_eq!(ads.heard().await.node.unwrap().id, "mine");
        assert_eq!(crate::http::get(sluice.admin, "/readyz").await.status, status, "{force}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_that_a_file_has_is_refused_naming_both() {
    let ads = Ads::start().await;
    let app = following(&ads).and_limits(&limits(10)).start().await;
    let domain = PATH.split(':').next().unwrap();
    let refused = ads.refused("1", &[config(domain, [limit("path", "/a", 5, MINUTE)])]).await;
    let file = app.dir.path().join("limits/0.yaml");
    let expected =
        format!("xds:{domain}: domain: is also the domain of {}:1; a domain has one file", file.display());
    assert_eq!(refused, expected);
    assert_eq!(app.capacity(PATH).await, Some(10));
    // Beside each other they are fine, and a mistake in the file holds up only the file.
    std::fs::write(&file, "domain: ").unwrap();
    ads.accepted("2", &[config("other", [limit("path", "/a", 5, MINUTE)])]).await;
    app.answers(&["in other: path=/a -> ok 4/5 minute"]).await;
    assert_eq!(app.capacity(PATH).await, Some(10));
}

/// Envoy Gateway's two calls: a look before the request, and what it used when the stream is done.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_is_charged_although_it_does_not_fit() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    let quota = |key: &str| RateLimitDescriptor { quota_mode: true, ..limit(key, "", 12, HOUR) };
    ads.accepted("1", &[config("d", [limit("route", "r", 21, HOUR), quota("model"), quota("service")])])
        .await;
    app.answers(&[
        "route=r x0 -> ok 21/21 hour",
        "route=r x10 -> ok 11/21 hour",
        "route=r x0 -> ok 11/21 hour",
        "route=r x10 -> ok 1/21 hour",
        "route=r x0 -> ok 1/21 hour",
        "route=r x10 -> OVER d:route=r:hour; over 0/21 hour",
        "route=r x0 -> OVER d:route=r:hour; over 0/21 hour",
        "used d:route=r:hour -> 21",
        // So is a quota that another one of the same request lets pass.
        "model=m x10 -> ok 2/12 hour",
        "model=m x10 + service=s x10 -> over 0/12 hour; ok 2/12 hour",
        "used d:model=m:hour -> 12",
        "model=m x0 + service=s x0 -> over 0/12 hour; ok 2/12 hour",
        // So are limits that come with the request.
        "user=u x10 <15/hour> -> ok 5/15 hour",
        "user=u x10 <15/hour> -> OVER…",
        "user=u x0 <15/hour> -> OVER…",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_domains_and_eight_megabytes() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    let long = "v".repeat(4000);
    let domain = |n: usize| {
        config(
            &format!("d{n}"),
            [limit("path", "/a", 5, MINUTE), limit("long", &format!("{n}{long}{long}"), 1, MINUTE)],
        )
    };
    let domains: Vec<RateLimitConfig> = (0..1000).map(domain).collect();
    ads.accepted("1", &domains).await;
    app.answers(&["in d0: path=/a -> ok 4/5 minute", "in d999: path=/a -> ok 4/5 minute"]).await;
    assert_eq!(app.get("/v1/config").await.json()["files"].as_array().unwrap().len(), 1000);
}

/// A push every 100 ms changes other limits and other domains; what stays is answered right all the while.
#[tokio::test(flavor = "multi_thread")]
async fn pushes_under_load_change_no_answer_that_they_don_t_concern() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    let unlimited = |key: &str| {
        let mut descriptor = limit(key, "", 0, MINUTE);
        descriptor.rate_limit = Some(RateLimitPolicy { unlimited: true, ..Default::default() });
        descriptor
    };
    let state = |n: u32| {
        let kept = [
            limit("blocked", "", 0, MINUTE),
            unlimited("open"),
            limit("counted", "", 1_000_000, HOUR),
            limit("moving", "", n, MINUTE),
        ];
        let others = (0..50).map(|m| config(&format!("other-{}", n * 7 + m), [limit("a", "", 1, MINUTE)]));
        [config("d", kept)].into_iter().chain(others).collect::<Vec<_>>()
    };
    ads.accepted("0", &state(0)).await;
    let done = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, done) = (app.client(), Arc::clone(&done));
            tokio::spawn(async move {
                let mut calls = 0;
                while !done.load(Ordering::Relaxed) {
                    for (asked, expected) in [
                        ("blocked=x", "NEVER d:blocked=x:minute; over 0/0 minute"),
                        ("open=x", "free"),
                        ("counted=x", "ok"),
                    ] {
                        let message = request(asked);
                        let answer = client.should_rate_limit(message.clone()).await;
                        let said = told(&message, &answer.map(tonic::Response::into_inner));
                        assert!(said.starts_with(expected), "{asked}: {said}");
                        calls += 1;
                    }
                }
                calls
            })
        })
        .collect();
    for n in 1..=20 {
        ads.push(&n.to_string(), &state(n));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    loop {
        let said = ads.heard().await;
        assert_eq!(said.error_detail, None);
        if said.version_info == "20" {
            break;
        }
    }
    done.store(true, Ordering::Relaxed);
    let mut calls = 0;
    for caller in callers {
        calls += caller.await.unwrap();
    }
    let used = app.used("d:counted=x:hour").await;
    assert_eq!(used * 3, calls, "every counted one was counted once");
    app.answers(&["moving=x -> ok 19/20 minute"]).await;
}

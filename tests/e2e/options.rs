//! What else Envoy's filter can be told, and what comes of it with Sluice: gRPC clients, headers of Envoy's own, limits
//! that the route brings along.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Endpoint;

use crate::envoy::{Envoy, FAIL_CLOSED, RATELIMIT};
use crate::sluice::Sluice;

const ONCE: &str = "domain: demo\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 1}}]";

/// Any call will do: the upstream is no gRPC server, and need not be one to be refused.
async fn call(envoy: &Envoy) -> tonic::Status {
    let channel =
        Endpoint::from_shared(format!("http://{}", envoy.address)).unwrap().connect().await.unwrap();
    let called = RateLimitServiceClient::new(channel).should_rate_limit(RateLimitRequest::default()).await;
    called.expect_err("the upstream speaks no gRPC")
}

#[tokio::test]
async fn grpc_clients_are_told_that_something_is_exhausted() {
    let mut sluice = Sluice::with_limits(ONCE).await;
    let envoy = Envoy::of(FAIL_CLOSED).start(&[sluice.grpc_port()]).await;
    let passed = call(&envoy).await;
    assert_ne!(passed.code(), tonic::Code::ResourceExhausted, "{passed:?}");
    assert_eq!(envoy.upstream.arrived(), 1);

    let denied = call(&envoy).await;
    assert_eq!(denied.code(), tonic::Code::ResourceExhausted, "{denied:?}");
    let said = |name: &str| denied.metadata().get(name).map(|value| value.to_str().unwrap().to_owned());
    let limit = "demo:path=/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit:hour";
    assert_eq!(said("x-sluice-limit").as_deref(), Some(limit));
    assert_eq!(said("x-sluice-reason").as_deref(), Some("over_limit"));
    let hint_ms: u64 = said("retry-after-ms").expect("a hint").parse().unwrap();
    assert!(hint_ms >= 5000, "{hint_ms}");
    assert_eq!(envoy.upstream.arrived(), 1);

    sluice.process.signal("TERM");
    sluice.process.exit().await;
    let failed = call(&envoy).await;
    assert_eq!(
        failed.code(),
        tonic::Code::Unavailable,
        "who may come back must not hear UNKNOWN: {failed:?}"
    );
}

#[tokio::test]
async fn x_ratelimit_headers_are_envoys_to_send_or_not() {
    let sluice = Sluice::with_limits(ONCE).await;
    let option = "enable_x_ratelimit_headers: DRAFT_VERSION_03";
    let off = "enable_x_ratelimit_headers: \"OFF\"";
    let silent = Envoy::of(RATELIMIT).changed(option, off).start(&[sluice.grpc_port()]).await;
    let telling = Envoy::asking(sluice.grpc_port()).await;
    for (envoy, path, limit) in [(&silent, "/a", ""), (&telling, "/b", "1, 1;w=3600")] {
        for (status, remaining) in [(200, "0"), (429, "0")] {
            let answer = envoy.get(path, &[]).await;
            assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (status, limit), "{answer:?}");
            let remaining = if limit.is_empty() { "" } else { remaining };
            assert_eq!(answer.header("x-ratelimit-remaining"), remaining);
        }
    }
}

/// Envoy's own retry-after is for services that send none. Sluice's wins, and is there once.
#[tokio::test]
async fn envoys_retry_after_stands_back() {
    let sluice = Sluice::with_limits(ONCE).await;
    let option = "failure_mode_deny: false";
    let indent = "\n                      ";
    let envoy = Envoy::of(RATELIMIT)
        .changed(option, &format!("{option}{indent}enable_retry_after_header: true"))
        .start(&[sluice.grpc_port()])
        .await;
    assert_eq!(envoy.get("/", &[]).await.header("retry-after"), "");
    let denied = envoy.get("/", &[]).await;
    assert_eq!(denied.status, 429);
    let hint_ms: u64 = denied.header("retry-after-ms").parse().unwrap();
    let told: Vec<_> = denied.headers.get_all("retry-after").iter().collect();
    assert_eq!(told, [hint_ms.div_ceil(1000).to_string().as_str()], "{denied:?}");
}

/// The route says what the limit is; the file needs only to know the domain.
#[tokio::test]
async fn a_limit_of_the_route_takes_the_place_of_the_files() {
    let sluice = Sluice::with_limits(ONCE).await;
    let indent = "\n                  ";
    let path = "text: request.url_path";
    let limit = "limit: {dynamic_metadata: {metadata_key: {key: plan, path: [{key: limit}]}}}";
    let filter = "- name: envoy.filters.http.ratelimit";
    let plan = format!(
        "- name: envoy.filters.http.set_metadata{indent}  typed_config:{indent}    \"@type\": \
         type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config{indent}    metadata: \
         [{{metadata_namespace: plan, value: {{limit: {{requests_per_unit: 3, unit: MINUTE}}}}}}]{indent}{filter}"
    );
    let envoy = Envoy::of(RATELIMIT)
        .changed(path, &format!("{path}{indent}        {limit}"))
        .changed(filter, &plan)
        .start(&[sluice.grpc_port()])
        .await;
    for left in ["2", "1", "0"] {
        let answer = envoy.get("/", &[]).await;
        assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, "3, 3;w=60"), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), left);
    }
    assert_eq!(envoy.get("/", &[]).await.status, 429);
}

/// How to run beside another service before moving to this one: asked, and not obeyed.
#[tokio::test]
async fn who_is_not_enforced_counts_and_denies_nothing() {
    let sluice = Sluice::with_limits(ONCE).await;
    let option = "failure_mode_deny: false";
    let indent = "\n                      ";
    let unheard = format!("{option}{indent}filter_enforced: {{default_value: {{numerator: 0}}}}");
    let envoy = Envoy::of(RATELIMIT).changed(option, &unheard).start(&[sluice.grpc_port()]).await;
    for _ in 0..3 {
        let answer = envoy.get("/", &[]).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "from the upstream"), "{answer:?}");
    }
    let metrics = crate::http::get(sluice.admin, "/metrics").await.body;
    let denied = "sluice_decisions_total{domain=\"demo\",code=\"OVER_LIMIT\",reason=\"over_limit\"} 2";
    assert!(metrics.contains(denied), "{metrics}");
}

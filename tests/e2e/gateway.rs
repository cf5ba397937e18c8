//! Envoy as Envoy Gateway sets it up for a limit on what responses cost: a look before the request, and a charge with the same
//! descriptor when the stream is done. The limits come over xDS.

use std::time::Duration;

use ::sluice::control::xds::pb::RateLimitUnit;

use crate::ads::{Ads, config, limit, under};
use crate::envoy::{Envoy, RATELIMIT};
use crate::http::get;
use crate::process::Process;
use crate::sluice::{RATELIMIT_PORTS, directory, sluice};
use crate::wait::until;

const ROUTE: &str = "httproute/default/usage/rule/0/match/0/*";
const RULE: &str = "rule-0-match--1";

/// The two rate limits of Envoy Gateway, with the same descriptor.
fn two_calls() -> String {
    let key =
        |name: &str| format!("{{generic_key: {{descriptor_key: '{name}', descriptor_value: '{name}'}}}}");
    let actions = format!("actions: [{}, {}]", key(ROUTE), key(RULE));
    let (before, after) =
        ("hits_addend: {number: 0}", "apply_on_stream_done: true, hits_addend: {number: 10}");
    format!("rate_limits: [{{{before}, {actions}}}, {{{after}, {actions}}}]\n")
}

/// Envoy Gateway's own end-to-end test of it: 21 an hour, 10 for each response.
#[tokio::test]
async fn what_responses_cost_is_charged_when_they_are_over() {
    let (ads, dir) = (Ads::start().await, directory(&[]));
    let mut command = sluice(dir.path(), &["ratelimit"]);
    command.envs(RATELIMIT_PORTS).envs([("CONFIG_TYPE", "GRPC_XDS_SOTW")]);
    command.env("CONFIG_GRPC_XDS_SERVER_URL", ads.address.to_string());
    let mut ratelimit = Process::start("ratelimit", &mut command);
    let grpc: std::net::SocketAddr = ratelimit.line("grpc listening on ").await.parse().unwrap();
    let admin = ratelimit.line("admin listening on ").await.parse().unwrap();
    ads.accepted(
        "1",
        &[config("default/eg/http", [under(ROUTE, ROUTE, [limit(RULE, RULE, 21, RateLimitUnit::Hour)])])],
    )
    .await;

    let start = RATELIMIT.find("rate_limits:").expect("envoy/ratelimit.yaml has rate limits");
    let end = start
        + RATELIMIT[start..]
            .find("                  - name: envoy.filters.http.router")
            .expect("and then the router");
    let envoy = Envoy::of(RATELIMIT)
        .changed(&RATELIMIT[start..end], &two_calls())
        .changed("domain: demo", "domain: default/eg/http")
        .start(&[grpc.port()])
        .await;
    let key = format!("default/eg/http:{ROUTE}={ROUTE}:{RULE}={RULE}:hour").replace('/', "%2F");
    let used = async || get(admin, &format!("/v1/limits/{key}")).await.json()["used"].as_u64();
    for (n, charged) in [10, 20, 21].into_iter().enumerate() {
        let answer = envoy.get("/", &[]).await;
        assert_eq!(answer.status, 200, "{n}: {answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit"), "21, 21;w=3600");
        until("the charge to be made", async || match used().await {
            Some(used) if used == charged => Ok(()),
            other => Err(format!("{other:?}, not {charged}")),
        })
        .await;
    }
    let denied = envoy.get("/", &[]).await;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, "21, 21;w=3600"), "{denied:?}");
    assert_eq!(denied.header("x-ratelimit-remaining"), "0");
    assert_eq!(envoy.upstream.arrived(), 3);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(used().await, Some(21), "what is denied takes nothing beyond");
}

//! What envoy/envoy-gateway gives to Envoy Gateway and AI Gateway: the two ways to say it are the same, and with the variables of
//! the Deployment Sluice starts, ready for its probes.

use std::net::SocketAddr;

use serde_json::Value;

use crate::ads::Ads;
use crate::http::get;
use crate::process::Process;
use crate::sluice::{directory, sluice};
use crate::wait::until;

fn documents(name: &str) -> Vec<Value> {
    let path = format!("{}/envoy/envoy-gateway/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.split("\n---\n").map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

#[test]
fn helm_values_and_the_resource_say_the_same() {
    let values = documents("values.yaml")[0]["config"]["envoyGateway"].clone();
    let resource = &documents("envoy-gateway.yaml")[0];
    for key in ["rateLimit", "provider"] {
        assert_eq!(values[key], resource[key], "{key}");
    }
    let container = &values["provider"]["kubernetes"]["rateLimitDeployment"]["container"];
    let ledger = container["env"][0]["value"].as_str().unwrap();
    assert!(ledger.parse::<::sluice::config::settings::value::LedgerUri>().is_ok(), "{ledger}");
}

/// With the variables of the Deployment, but on free ports, another ledger and another controller.
#[tokio::test]
async fn the_quota_service_of_ai_gateway_starts() {
    let (ads, dir) = (Ads::start().await, directory(&[]));
    let [service, deployment] = &documents("ai-gateway-quota.yaml")[..] else { panic!("two documents") };
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(service["spec"]["ports"][0]["port"], container["ports"][0]["containerPort"]);
    assert_eq!(container["command"], serde_json::json!(["/bin/ratelimit"]));
    let mut command = sluice(dir.path(), &["ratelimit"]);
    command.envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")]);
    command.envs([("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")]);
    for variable in container["env"].as_array().unwrap() {
        let value = variable["value"].as_str().unwrap();
        match variable["name"].as_str().unwrap() {
            "SLUICE_LEDGER" => assert!(value.starts_with("tigerbeetle:")),
            "CONFIG_GRPC_XDS_SERVER_URL" => {
                command.env("CONFIG_GRPC_XDS_SERVER_URL", ads.address.to_string());
            }
            "PROMETHEUS_ADDR" => {
                command.env("PROMETHEUS_ADDR", "127.0.0.1:0");
            }
            name => {
                command.env(name, value);
            }
        }
    }
    let mut ratelimit = Process::start("ratelimit", &mut command);
    let admin: SocketAddr = ratelimit.line("admin listening on ").await.parse().unwrap();
    let metrics: SocketAddr = ratelimit.line("metrics listening on ").await.parse().unwrap();
    assert_eq!(ads.heard().await.node.unwrap().id, "envoy-ai-gateway-ratelimit");
    ads.accepted("1", &[]).await;
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        until(&format!("{path} to be green"), async || match get(admin, path).await {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.body),
        })
        .await;
    }
    assert_eq!(get(metrics, "/metrics").await.status, 200);
}

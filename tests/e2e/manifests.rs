//! What envoy/istio and envoy/envoy-gateway put into other people's proxies: the Envoy parts are taken out, and Envoy has to
//! take them. The Deployments are ones that Sluice starts with; those with hubs are in [`hubs`].

mod hubs;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::envoy::{FAIL_CLOSED, LEASES, RATELIMIT, validate};
use crate::http;
use crate::sluice::{Sluice, directory, run, serve, sluice};

/// The documents of a manifest.
fn documents(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let parse = |part: &str| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{name}: {error}"));
    text.split("\n---\n").map(parse).collect()
}

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "envoy", name].iter().collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

/// What a manifest adds to a proxy.
#[derive(Default)]
struct Parts {
    filters: Vec<Value>,
    clusters: Vec<Value>,
}

impl Parts {
    fn of_envoy_filter(name: &str) -> Self {
        let mut parts = Self::default();
        for patch in list(&documents(name)[0]["spec"]["configPatches"]) {
            let value = patch["patch"]["value"].clone();
            match (patch["applyTo"].as_str(), patch["patch"]["operation"].as_str()) {
                (Some("HTTP_FILTER"), Some("INSERT_BEFORE")) => parts.filters.push(value),
                (Some("CLUSTER"), Some("ADD")) => parts.clusters.push(value),
                _ => panic!("{name}: {patch}"),
            }
        }
        parts
    }

    fn of_patch_policy(name: &str) -> Self {
        let mut parts = Self::default();
        for patch in list(&documents(name)[0]["spec"]["jsonPatches"]) {
            let operation = &patch["operation"];
            let value = operation["value"].clone();
            assert_eq!(operation["op"], "add", "{name}: {patch}");
            match (patch["type"].as_str().unwrap().rsplit('.').next(), operation["path"].as_str()) {
                (Some("Cluster"), Some("")) => parts.clusters.push(value),
                (Some("Listener"), Some(path)) if path.ends_with("/http_filters/0") => {
                    parts.filters.insert(0, value);
                }
                _ => panic!("{name}: {patch}"),
            }
        }
        parts
    }

    /// The smallest proxy around them.
    fn bootstrap(&self) -> Value {
        let manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let router = "envoy.extensions.filters.http.router.v3.Router";
        let typed = |name: &str| format!("type.googleapis.com/{name}");
        let mut filters = self.filters.clone();
        filters.push(json!({"name": "envoy.filters.http.router", "typed_config": {"@type": typed(router)}}));
        let manager = json!({
            "@type": typed(manager),
            "stat_prefix": "ingress",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                {"match": {"prefix": "/"}, "direct_response": {"status": 200}},
            ]}]},
            "http_filters": filters,
        });
        let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": 10000}});
        json!({"static_resources": {
            "listeners": [{
                "name": "ingress",
                "address": address,
                "filter_chains": [{"filters": [{"name": "manager", "typed_config": manager}]}],
            }],
            "clusters": self.clusters,
        }})
    }

    fn validate(&self) {
        let dir = directory(&[("bootstrap.json", &self.bootstrap().to_string())]);
        validate(&dir.path().join("bootstrap.json"));
    }

    fn rate_limit(&self) -> &Value {
        let filter = self.filters.last().expect("a filter");
        assert_eq!(filter["name"], "envoy.filters.http.ratelimit", "what it needs comes before it");
        &filter["typed_config"]
    }
}

/// The rate-limit filter of a bootstrap.
fn rate_limit(bootstrap: &str) -> Value {
    let bootstrap: Value = serde_saphyr::from_str(bootstrap).unwrap();
    let manager = &bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0];
    let filters = list(&manager["typed_config"]["http_filters"]).iter();
    let mut found = filters.filter(|filter| filter["name"] == "envoy.filters.http.ratelimit");
    found.next().expect("a rate-limit filter")["typed_config"].clone()
}

#[test]
fn the_sidecar_of_istio_does_what_the_bootstrap_does() {
    let parts = Parts::of_envoy_filter("istio/sidecar-envoyfilter.yaml");
    parts.validate();
    let mut expected = rate_limit(LEASES);
    // There is one Sluice in a pod.
    let retries = expected.pointer_mut("/rate_limit_service/grpc_service/retry_policy").unwrap();
    retries.as_object_mut().unwrap().retain(|name, _| !name.contains("host"));
    assert_eq!(parts.rate_limit(), &expected);
}

#[test]
fn the_gateway_of_istio_does_what_the_bootstrap_does() {
    let mut parts = Parts::of_envoy_filter("istio/shared-envoyfilter.yaml");
    let service = "/rate_limit_service/grpc_service/envoy_grpc";
    let envoy_grpc = parts.rate_limit().pointer(service).unwrap().clone();
    let deployed = documents("istio/shared.yaml");
    let [name, host] = [&deployed[1]["metadata"]["name"], &deployed[2]["spec"]["host"]];
    assert_eq!(host, &format!("{}.sluice.svc.cluster.local", name.as_str().unwrap()));
    let port = &deployed[1]["spec"]["ports"][0]["port"];
    let cluster = format!("outbound|{port}||{}", host.as_str().unwrap());
    assert_eq!(envoy_grpc, json!({"cluster_name": cluster, "authority": host}));
    // Istio makes this one.
    parts.clusters.push(json!({"name": cluster, "type": "STATIC"}));
    parts.validate();
    let mut expected = rate_limit(RATELIMIT);
    *expected.pointer_mut(service).unwrap() = envoy_grpc;
    assert_eq!(parts.rate_limit(), &expected);
}

#[test]
fn envoy_gateway_does_what_the_bootstrap_does() {
    let parts = Parts::of_patch_policy("envoy-gateway/envoypatchpolicy.yaml");
    parts.validate();
    assert_eq!(parts.rate_limit(), &rate_limit(LEASES));
    let service = &documents("envoy-gateway/service.yaml")[0];
    let address = parts.clusters[0].pointer("/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address");
    let host = format!("{}.sluice.svc.cluster.local", service["metadata"]["name"].as_str().unwrap());
    let expected = json!({"address": host, "port_value": service["spec"]["ports"][0]["port"]});
    assert_eq!(address.unwrap()["socket_address"], expected);
}

#[test]
fn failing_closed_differs_in_what_it_says() {
    let (mut open, closed) = (rate_limit(RATELIMIT), rate_limit(FAIL_CLOSED));
    open["failure_mode_deny"] = json!(true);
    open["status_on_error"] = json!({"code": "ServiceUnavailable"});
    assert_eq!(open, closed);
}

/// The files of a Deployment's ConfigMap, where it mounts them.
fn mounted(pod: &Value) -> Vec<(String, String)> {
    let data = &documents("istio/config.yaml")[0]["data"];
    let file = |item: &Value| {
        let text = data[item["key"].as_str().unwrap()].as_str().expect("a key of the ConfigMap");
        (format!("config/{}", item["path"].as_str().unwrap()), text.to_owned())
    };
    list(&pod["volumes"][0]["configMap"]["items"]).iter().map(file).collect()
}

/// Each Deployment mounts files where Sluice looks for them, and with them and its variables Sluice starts: here with
/// secrets in another place, on free ports, and on the embedded ledger.
#[tokio::test]
async fn the_deployments_start() {
    for (name, container) in [("istio/sidecar.yaml", "initContainers"), ("istio/shared.yaml", "containers")] {
        let pod = documents(name)[0]["spec"]["template"]["spec"].clone();
        let files = mounted(&pod);
        let dir =
            directory(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>());
        let checked = run(&mut sluice(dir.path(), &["check"]));
        assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{name}: {checked:?}");

        let settings = dir.path().join("config/sluice.yaml");
        let text = std::fs::read_to_string(&settings).unwrap();
        std::fs::write(settings, text.replace("/run/secrets/sluice", &dir.path().display().to_string()))
            .unwrap();
        std::fs::write(dir.path().join("secrets"), "0123456789abcdef0123456789abcdef\n").unwrap();
        // What the image sets.
        let mut command = serve(dir.path(), &[]);
        command.env("SLUICE_GRPC", "0.0.0.0:0").env("SLUICE_ADMIN", "127.0.0.1:0");
        for variable in list(&pod[container][0]["env"]) {
            let value = variable["value"].as_str().unwrap_or("the token");
            match variable["name"].as_str().unwrap() {
                "SLUICE_LEDGER" => {
                    let uri = value.parse::<::sluice::config::settings::value::LedgerUri>();
                    assert!(uri.is_ok(), "{name}: {value}");
                }
                variable => {
                    let free = value.replace(":8080", ":0").replace(":8081", ":0");
                    command.env(variable, free);
                }
            }
        }
        let sluice = Sluice::start(dir, command).await;
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            if let Some(path) = pod[container][0][probe]["httpGet"]["path"].as_str() {
                assert_eq!(http::get(sluice.admin, path).await.status, 200, "{name}: {path}");
            }
        }
        // Beyond loopback nobody without the token.
        let is_open = sluice.admin.ip().is_loopback();
        assert_eq!(
            http::get(sluice.admin, "/metrics").await.status,
            if is_open { 200 } else { 401 },
            "{name}"
        );
        let token = [("authorization", "Bearer the token")];
        assert_eq!(http::send(sluice.admin, "GET", "/metrics", &token, "").await.status, 200, "{name}");
    }
}

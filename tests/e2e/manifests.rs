//! What envoy/istio and envoy/envoy-gateway put into other people's proxies: the Envoy parts are taken out, and Envoy has to
//! take them, after the filters that authenticate. The chart that they refer to has tests of its own.

mod authenticated;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::envoy::{FAIL_CLOSED, LEASES, RATELIMIT, validate};
use crate::sluice::directory;

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

const ROUTER: &str = "envoy.filters.http.router";

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
                (Some("HTTP_FILTER"), Some("INSERT_BEFORE")) => {
                    let before = patch.pointer("/match/listener/filterChain/filter/subFilter/name");
                    assert_eq!(before, Some(&ROUTER.into()), "{name}: after all others, authentication too");
                    parts.filters.push(value);
                }
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
            match patch["type"].as_str().unwrap().rsplit('.').next() {
                Some("Cluster") if operation["path"] == "" => parts.clusters.push(value),
                // To add at the place of an element is to insert before it.
                Some("Listener") => {
                    let router = format!("..http_filters[?(@.name=='{ROUTER}')]");
                    assert_eq!(operation["jsonPath"], router, "{name}: after all others, authentication too");
                    parts.filters.push(value);
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
        filters.push(json!({"name": ROUTER, "typed_config": {"@type": typed(router)}}));
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
    // The Service of the chart, as it is installed above.
    let host = "sluice.sluice.svc.cluster.local";
    let cluster = format!("outbound|8081||{host}");
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
    let address = parts.clusters[0].pointer("/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address");
    // The pods of the chart.
    let expected = json!({"address": "sluice-pods.sluice.svc.cluster.local", "port_value": 8081});
    assert_eq!(address.unwrap()["socket_address"], expected);
}

#[test]
fn failing_closed_differs_in_what_it_says() {
    let (mut open, closed) = (rate_limit(RATELIMIT), rate_limit(FAIL_CLOSED));
    open["failure_mode_deny"] = json!(true);
    open["status_on_error"] = json!({"code": "ServiceUnavailable"});
    assert_eq!(open, closed);
}

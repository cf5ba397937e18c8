//! The bootstraps in envoy/ as files: Envoy takes them, and all of them treat retries alike.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::envoy::{FAIL_CLOSED, LEASES, LLM, RATELIMIT, TLS, validate};
use crate::sluice::directory;

#[test]
fn every_bootstrap_is_one_that_envoy_takes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let bootstraps: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    assert_eq!(bootstraps.len(), 5, "each must be known to the tests: {bootstraps:?}");
    for path in bootstraps {
        validate(&path);
    }
}

/// What a retry may be, on the way to the upstream and on the way to Sluice: one, to another host, and only of what was
/// never carried out. And all of it within three seconds.
#[test]
fn a_request_is_tried_twice_at_most_and_only_if_it_never_ran() {
    let bootstraps = [
        ("ratelimit", RATELIMIT),
        ("fail-closed", FAIL_CLOSED),
        ("leases", LEASES),
        ("llm", LLM),
        ("tls", TLS),
    ];
    for (name, bootstrap) in bootstraps {
        let values = |key: &str| -> Vec<&str> {
            let lines = bootstrap.lines().map(str::trim);
            lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).collect()
        };
        assert_eq!(values("connect_timeout"), ["0.35s"; 2], "{name}");
        assert_eq!(values("num_retries"), ["1"; 2], "{name}");
        assert_eq!(
            values("retry_on"),
            ["connect-failure", "connect-failure,refused-stream,unavailable"],
            "{name}"
        );
        assert_eq!(bootstrap.matches("PreviousHostsPredicate").count(), 2, "{name}");
        // A stream of tokens takes as long as it takes; everything else is over soon.
        let upstream = if ["leases", "llm"].contains(&name) { "290s" } else { "2.9s" };
        assert_eq!(values("timeout"), [upstream, "1.5s"], "{name}");
    }
}

/// What docs/llm.md says to put into envoy/llm.yaml for a provider and an issuer of one's own, put there.
#[test]
fn what_the_document_adds_to_the_gateway_is_taken_as_well() {
    let document = include_str!("../../docs/llm.md");
    let part = |place: &str| -> Value {
        let start = format!("```yaml\n# {place}\n");
        let text = document.split(&start).nth(1).unwrap_or_else(|| panic!("no part for {place}"));
        serde_saphyr::from_str(text.split("```").next().unwrap()).unwrap()
    };
    let mut bootstrap: Value = serde_saphyr::from_str(LLM).unwrap();
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let mut put = |place: &str, parts: Value| {
        let there = bootstrap.pointer_mut(place).unwrap_or_else(|| panic!("no {place}"));
        there.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    };
    let host = format!("{manager}/route_config/virtual_hosts/0");
    put(&host, part("in the virtual host"));
    for route in 0..2 {
        put(&format!("{host}/routes/{route}/route"), part("in the route"));
    }
    let provider = format!("{manager}/http_filters/1/typed_config/providers/tenants");
    put(&provider, part("in the place of local_jwks"));
    let tenants = bootstrap.pointer_mut(&provider).unwrap().as_object_mut().unwrap();
    tenants.remove("local_jwks").expect("the one that is replaced");
    let clusters = bootstrap["static_resources"]["clusters"].as_array_mut().unwrap();
    clusters[0] = part("in the place of the cluster upstream");
    clusters.push(part("one more cluster"));
    // Not every machine has its authorities in the same place.
    let dir = directory(&[("authority.pem", AUTHORITY)]);
    let (here, there) = (dir.path().join("authority.pem"), "/etc/ssl/certs/ca-certificates.crt");
    let bootstrap = bootstrap.to_string().replace(there, here.to_str().unwrap());
    std::fs::write(dir.path().join("bootstrap.json"), bootstrap).unwrap();
    validate(&dir.path().join("bootstrap.json"));
}

/// Somebody's certificate, for a hundred years.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBdjCCARugAwIBAgIUIQGsAFEDGpi7mr5v6eMLb5LLGuIwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMTYxMjE3NTFaGA8yMTI2MTAyMzEyMTc1
MVowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABAT3
0ro+4ediy4PJe1MLOrZB8aCMMYBnsEwp7f7BbImOT1gkRHNoxnu4MrE+EZ5Y4CjV
pRxwwVjBB0PJDuCmrrOjUzBRMB0GA1UdDgQWBBQ5Uw9OYiTmtrBQBOPYozDvtqc8
ojAfBgNVHSMEGDAWgBQ5Uw9OYiTmtrBQBOPYozDvtqc8ojAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQC8H6vSSA9My36Obn5bXEdA7iwMUpxaL6f7
Q09BhxnqcAIhAIUeeqCADv1gQazqRIG4oCOIpYGzU/qLdtGtfbZhHNpp
-----END CERTIFICATE-----
";

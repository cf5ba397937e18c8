//! Envoy and Sluice with TLS between them: envoy/tls.yaml as it is, but with certificates of an authority of our own.

use std::path::Path;

use crate::authority::Authority;
use crate::envoy::{Envoy, Setup, TLS};
use crate::sluice::{Sluice, directory, serve};
use crate::wait::until;

const LIMITS: &str =
    "domain: demo\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 1000}}]";

/// What Envoy shows.
const SHOWN: &str = "            tls_certificate_sds_secret_configs:
              - name: sluice_client
                sds_config: {path_config_source: {path: envoy/tls/client.yaml}, resource_api_version: V3}
";

async fn sluice(authority: &Authority, wants_clients: bool) -> Sluice {
    with_limits(authority, wants_clients, LIMITS).await
}

/// With TLS on its gRPC port.
pub async fn with_limits(authority: &Authority, wants_clients: bool, limits: &str) -> Sluice {
    let path = |name: &str| authority.path(name).display().to_string();
    let client_ca =
        if wants_clients { format!(", client_ca_file: {}", path("ca.pem")) } else { String::new() };
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let settings = format!("grpc: {{tls: {{cert_file: {certificate}, key_file: {key}{client_ca}}}}}\n");
    let dir = directory(&[("config/limits/limits.yaml", limits), ("config/sluice.yaml", &settings)]);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    Sluice::start(dir, command).await
}

/// The files beside the bootstrap, with the certificates in the directory of `authority`. They go with it.
fn files(setup: Setup, authority: &Authority, names: &[&str]) -> Setup {
    names.iter().fold(setup, |setup, name| {
        let there = format!("envoy/tls/{name}.yaml");
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&there)).unwrap();
        let certs = authority.dir.path().display().to_string();
        let text = text.replace("filename: certs/", &format!("filename: {certs}/"));
        let here = authority.path(&format!("{name}.yaml"));
        std::fs::write(&here, text.replace("path: certs}", &format!("path: {certs}}}"))).unwrap();
        setup.changed(&there, here.to_str().unwrap())
    })
}

/// Whether Sluice was asked for a request.
async fn is_limited(envoy: &Envoy) -> bool {
    let answer = envoy.get("/hello", &[]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    !answer.header("x-ratelimit-limit").is_empty()
}

/// The certificates that Envoy has.
async fn serials(envoy: &Envoy) -> Vec<String> {
    let text = envoy.admin("/certs").await;
    let lines = text.lines().filter(|line| line.contains("\"serial_number\""));
    lines.map(|line| line.trim().to_owned()).collect()
}

#[tokio::test]
async fn each_shows_the_other_a_certificate_and_a_new_one_when_it_changes() {
    let authority = Authority::new();
    authority.issue("client", |_| {});
    let sluice = sluice(&authority, true).await;
    let setup = files(Envoy::of(TLS), &authority, &["client", "authority"]);
    let envoy = setup.start(&[sluice.grpc_port()]).await;
    assert!(is_limited(&envoy).await);
    assert_eq!(envoy.stat("cluster.sluice.ssl.connection_error").await, 0);

    // Moved into place, as it is asked for.
    let before = serials(&envoy).await;
    assert_eq!(before.len(), 2, "the authority's, and its own: {before:?}");
    authority.issue("next", |_| {});
    for ending in ["key", "pem"] {
        let path = |name: &str| authority.path(&format!("{name}.{ending}"));
        std::fs::rename(path("next"), path("client")).unwrap();
    }
    until("envoy to have read it again", async || {
        let serials = serials(&envoy).await;
        if serials == before { Err(serials.join(", ")) } else { Ok(()) }
    })
    .await;
    assert!(is_limited(&envoy).await);
}

#[tokio::test]
async fn envoy_may_show_none_where_none_is_wanted() {
    let authority = Authority::new();
    let sluice = sluice(&authority, false).await;
    let setup = files(Envoy::of(TLS).changed(SHOWN, ""), &authority, &["authority"]);
    let envoy = setup.start(&[sluice.grpc_port()]).await;
    assert!(is_limited(&envoy).await);
}

#[tokio::test]
async fn neither_takes_what_it_does_not_trust() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    ours.issue("client", |_| {});
    theirs.issue("client", |_| {});
    let sluice = sluice(&ours, true).await;
    // No certificate, one of a stranger, a Sluice of a stranger, and a Sluice of another name. What can't be asked lets pass.
    let other_name =
        files(Envoy::of(TLS), &ours, &["client", "authority"]).changed("exact: localhost", "exact: other");
    for setup in [
        files(Envoy::of(TLS).changed(SHOWN, ""), &ours, &["authority"]),
        files(files(Envoy::of(TLS), &theirs, &["client"]), &ours, &["authority"]),
        files(files(Envoy::of(TLS), &ours, &["client"]), &theirs, &["authority"]),
        other_name,
    ] {
        let envoy = setup.impatient().start(&[sluice.grpc_port()]).await;
        assert!(!is_limited(&envoy).await);
    }
    let good = files(Envoy::of(TLS), &ours, &["client", "authority"]);
    assert!(is_limited(&good.start(&[sluice.grpc_port()]).await).await, "others are served");
}

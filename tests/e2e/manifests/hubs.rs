//! envoy/istio/hub*.yaml: their names agree with each other, and a hub and a sidecar that are started with their arguments,
//! files and certificates find each other.

use std::path::Path;
use std::process::Command;

use ::sluice::config::settings::value::LedgerUri;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};
use serde_json::Value;

use super::{documents, list};
use crate::authority::Authority;
use crate::http;
use crate::sluice::{Sluice, directory, run, sluice};
use crate::wait::until;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// All of hub-certificates.yaml, hub.yaml, hub-sidecar.yaml and config.yaml.
struct Manifests(Vec<Value>);

impl Manifests {
    fn read() -> Self {
        let names = ["hub-certificates", "hub", "hub-sidecar", "config"];
        Self(names.iter().flat_map(|name| documents(&format!("istio/{name}.yaml"))).collect())
    }

    fn all(&self, kind: &'static str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |document| document["kind"] == kind)
    }

    fn one(&self, kind: &'static str, name: &str) -> &Value {
        let mut found = self.all(kind).filter(|document| document["metadata"]["name"] == name);
        found.next().unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    fn hubs(&self) -> &Value {
        &self.one("StatefulSet", "sluice-hub")["spec"]
    }

    fn hub_pod(&self) -> &Value {
        &self.hubs()["template"]
    }

    fn sidecar_pod(&self) -> &Value {
        &self.one("Deployment", "chat")["spec"]["template"]
    }

    /// The certificate whose secret a pod mounts at /certs.
    fn certificate_of(&self, pod: &Value, namespace: &str) -> &Value {
        let volume = volume(pod, "certs");
        let mut found = self.all("Certificate").filter(|certificate| {
            certificate["metadata"]["namespace"] == namespace
                && certificate["spec"]["secretName"] == volume["secret"]["secretName"]
        });
        found.next().unwrap_or_else(|| panic!("nobody makes the secret of {volume} in {namespace}"))
    }
}

fn volume<'p>(pod: &'p Value, name: &str) -> &'p Value {
    let found = list(&pod["spec"]["volumes"]).iter().find(|volume| volume["name"] == name);
    found.unwrap_or_else(|| panic!("no volume {name}"))
}

/// Sluice in a pod.
fn container(pod: &Value) -> &Value {
    let parts = ["initContainers", "containers"];
    let mut all = parts.iter().filter_map(|part| pod["spec"][part].as_array()).flatten();
    all.find(|container| container["name"] == "sluice").expect("a container `sluice`")
}

/// The value of `--name=value`.
fn argument<'p>(pod: &'p Value, name: &str) -> &'p str {
    let start = format!("--{name}=");
    let mut all = list(&container(pod)["args"]).iter().filter_map(Value::as_str);
    all.find_map(|argument| argument.strip_prefix(&start)).unwrap_or_else(|| panic!("no {start}"))
}

fn port(address: &str) -> u64 {
    address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

/// Whether a selector chooses a pod.
fn selects(selector: &Value, pod: &Value) -> bool {
    let labels = selector["matchLabels"].as_object().expect("matchLabels");
    !labels.is_empty() && labels.iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value)
}

#[test]
fn the_names_of_the_hubs_agree() {
    let manifests = Manifests::read();
    let (hubs, pod) = (manifests.hubs(), manifests.hub_pod());
    let service = manifests.one("Service", hubs["serviceName"].as_str().unwrap());
    assert_eq!(service["spec"]["clusterIP"], "None", "it gives each pod a name");
    for (name, value) in service["spec"]["selector"].as_object().unwrap() {
        assert_eq!(pod["metadata"]["labels"][name], *value);
    }
    let budget = manifests.one("PodDisruptionBudget", "sluice-hub");
    for selector in [&hubs["selector"], &budget["spec"]["selector"]] {
        assert!(selects(selector, pod), "{selector}");
    }

    // What sidecars call is each pod of the set, by the name that its Service gives it, on the port where it listens.
    let port = port(argument(pod, "hub"));
    let named = |n: u64| format!("sluice-hub-{n}.sluice-hub.sluice.svc:{port}");
    let expected: Vec<String> = (0..hubs["replicas"].as_u64().unwrap()).map(named).collect();
    let sidecar = manifests.sidecar_pod();
    let uri: LedgerUri = argument(sidecar, "ledger").parse().unwrap();
    assert!(matches!(&uri, LedgerUri::Hub { addresses } if *addresses == expected), "{uri}");
    assert_eq!(service["spec"]["ports"][0]["port"], port);
    assert_eq!(container(pod)["ports"][0]["containerPort"], port);
    let excluded = &sidecar["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"];
    assert_eq!(excluded, &port.to_string());

    // And by names that the certificate has.
    let certificate = manifests.certificate_of(pod, "sluice");
    let (_, below) = expected[0].split_once('.').unwrap();
    let wildcard = format!("*.{}", below.split(':').next().unwrap());
    assert!(list(&certificate["spec"]["dnsNames"]).contains(&wildcard.into()), "{certificate}");
}

#[test]
fn hubs_and_sidecars_have_certificates_of_one_authority() {
    let manifests = Manifests::read();
    for (pod, namespace, usage) in
        [(manifests.hub_pod(), "sluice", "server auth"), (manifests.sidecar_pod(), "chat", "client auth")]
    {
        let certificate = &manifests.certificate_of(pod, namespace)["spec"];
        assert_eq!(certificate["usages"][0], usage);
        let issuer = &certificate["issuerRef"];
        assert_eq!(issuer["kind"], "ClusterIssuer", "they are in different namespaces");
        let issuer = manifests.one("ClusterIssuer", issuer["name"].as_str().unwrap());
        let mut authorities = manifests.all("Certificate").filter(|authority| {
            authority["spec"]["secretName"] == issuer["spec"]["ca"]["secretName"]
                && authority["metadata"]["namespace"] == "cert-manager"
        });
        let authority = &authorities.next().expect("a certificate of the authority")["spec"];
        assert_eq!(authority["isCA"], true);
        let root = manifests.one("ClusterIssuer", authority["issuerRef"]["name"].as_str().unwrap());
        assert!(root["spec"]["selfSigned"].is_object());
    }
}

/// Only sidecars reach the hub port, only Prometheus the admin port, and only hubs TigerBeetle.
#[test]
fn the_network_policies_are_about_these_pods() {
    let manifests = Manifests::read();
    let (hub, sidecar) = (manifests.hub_pod(), manifests.sidecar_pod());
    let policy = &manifests.one("NetworkPolicy", "sluice-hub")["spec"];
    assert!(selects(&policy["podSelector"], hub));
    let [to_hub, to_admin] = list(&policy["ingress"]) else { panic!("{policy}") };
    assert_eq!(to_hub["ports"][0]["port"], port(argument(hub, "hub")));
    assert!(selects(&to_hub["from"][0]["podSelector"], sidecar), "{to_hub}");
    assert!(!selects(&to_admin["from"][0]["podSelector"], sidecar), "{to_admin}");
    assert_eq!(to_admin["ports"][0]["port"], port(argument(hub, "admin")));

    let uri = argument(hub, "ledger").parse::<LedgerUri>();
    assert!(matches!(uri, Ok(LedgerUri::TigerBeetle { .. })), "{uri:?}");
    let to_ledger = &policy["egress"][0];
    assert_eq!(to_ledger["ports"][0]["port"], port(argument(hub, "ledger")));
    let ledger = &manifests.one("NetworkPolicy", "tigerbeetle")["spec"];
    assert_eq!(ledger["podSelector"], to_ledger["to"][0]["podSelector"]);
    assert_eq!(ledger["ingress"][0]["ports"], to_ledger["ports"]);
    let [from_hubs, from_replicas] = list(&ledger["ingress"][0]["from"]) else { panic!("{ledger}") };
    assert!(selects(&from_hubs["podSelector"], hub));
    assert_eq!(from_replicas["podSelector"], ledger["podSelector"]);
}

/// Hubs need io_uring, sidecars don't; neither needs anything else.
#[test]
fn only_hubs_are_unconfined() {
    let manifests = Manifests::read();
    for (pod, seccomp) in [(manifests.hub_pod(), "Unconfined"), (manifests.sidecar_pod(), "RuntimeDefault")] {
        let security = &container(pod)["securityContext"];
        assert_eq!(security["seccompProfile"]["type"], seccomp);
        assert_eq!(
            (&security["runAsNonRoot"], &security["readOnlyRootFilesystem"]),
            (&true.into(), &true.into())
        );
        assert!(container(pod)["resources"]["limits"]["memory"].is_string());
    }
}

/// The files of a pod's volume `config`, where it mounts them.
fn files(manifests: &Manifests, pod: &Value) -> Vec<(String, String)> {
    let config = volume(pod, "config");
    let one = [config.clone()];
    let sources = config["projected"]["sources"].as_array().map_or(&one[..], Vec::as_slice);
    let mut files = Vec::new();
    for source in sources {
        let map = manifests.one("ConfigMap", source["configMap"]["name"].as_str().unwrap());
        let data = map["data"].as_object().unwrap();
        let text = |key: &str| data[key].as_str().unwrap().to_owned();
        match source["configMap"]["items"].as_array() {
            None => files.extend(data.keys().map(|key| (format!("config/{key}"), text(key)))),
            Some(items) => files.extend(items.iter().map(|item| {
                let path = format!("config/{}", item["path"].as_str().unwrap());
                (path, text(item["key"].as_str().unwrap()))
            })),
        }
    }
    files
}

/// A directory with what the pod mounts: `config`, what a secret holds, and a certificate as the manifest wants it.
fn mounted(
    manifests: &Manifests,
    pod: &Value,
    certificate: &Value,
    authority: &Authority,
) -> tempfile::TempDir {
    let files = files(manifests, pod);
    let dir = directory(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>());
    let checked = run(&mut sluice(dir.path(), &["check"]));
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{checked:?}");

    let settings = dir.path().join("config/sluice.yaml");
    let mut text = std::fs::read_to_string(&settings).unwrap();
    for mount in list(&container(pod)["volumeMounts"]) {
        let path = mount["mountPath"].as_str().unwrap();
        text = text.replace(&format!("{path}/"), &format!("{}/", dir.path().display()));
    }
    std::fs::write(settings, text).unwrap();
    for name in ["secrets", "token"] {
        std::fs::write(dir.path().join(name), format!("{TOKEN}\n")).unwrap();
    }
    std::fs::copy(authority.path("ca.pem"), dir.path().join("ca.crt")).unwrap();
    authority.issue_as(&dir.path().join("tls.crt"), &dir.path().join("tls.key"), |params| {
        let names = certificate["dnsNames"].as_array().into_iter().flatten();
        let names: Vec<String> = names.map(|name| name.as_str().unwrap().to_owned()).collect();
        params.subject_alt_names = CertificateParams::new(names).unwrap().subject_alt_names;
        params.extended_key_usages = vec![match certificate["usages"][0].as_str() {
            Some("server auth") => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }];
    });
    dir
}

/// The arguments of a pod, on free ports and with another ledger.
fn command(dir: &Path, pod: &Value, ledger: &str) -> Command {
    let mut command = sluice(dir, &[]);
    for argument in list(&container(pod)["args"]).iter().map(|argument| argument.as_str().unwrap()) {
        match argument.split_once('=') {
            Some(("--ledger", _)) => command.arg(format!("--ledger={ledger}")),
            Some((name, address)) => command.arg(format!("{name}={}:0", address.rsplit_once(':').unwrap().0)),
            None => command.arg(argument),
        };
    }
    command
}

fn curl(authority: &Authority, url: &str, token: Option<&str>) -> (String, String) {
    let mut command = Command::new("curl");
    command
        .args(["-s", "--max-time", "10", "-w", "\n%{http_code}", "--cacert"])
        .arg(authority.path("ca.pem"));
    if let Some(token) = token {
        command.args(["-H", &format!("authorization: Bearer {token}")]);
    }
    let output = command.arg(url).output().expect("curl must be there");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').expect("a status");
    (status.to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_sidecar_of_the_manifests_uses_their_hub() {
    let (manifests, authority) = (Manifests::read(), Authority::new());
    let pod = manifests.hub_pod();
    let certificate = &manifests.certificate_of(pod, "sluice")["spec"];
    let dir = mounted(&manifests, pod, certificate, &authority);
    let started = command(dir.path(), pod, "memory");
    let mut hub = Sluice::start(dir, started).await;
    let hub_port = port(&hub.process.line("hub listening on ").await);
    for probe in ["livenessProbe", "readinessProbe"] {
        let probe = &container(pod)[probe]["httpGet"];
        assert_eq!((&probe["scheme"], &probe["port"]), (&"HTTPS".into(), &"admin".into()));
        let url = format!("https://localhost:{}{}", hub.admin.port(), probe["path"].as_str().unwrap());
        assert_eq!(curl(&authority, &url, None).0, "200", "{url}");
    }
    let peers = format!("https://localhost:{}/v1/peers", hub.admin.port());
    assert_eq!(curl(&authority, &peers, None).0, "401", "without the token");

    let pod = manifests.sidecar_pod();
    let certificate = &manifests.certificate_of(pod, "chat")["spec"];
    let dir = mounted(&manifests, pod, certificate, &authority);
    // The pod would call the hub by this name; here it is an address.
    let settings = dir.path().join("config/sluice.yaml");
    let text = std::fs::read_to_string(&settings).unwrap();
    let named = text.replace("tls: {", "tls: {server_name: sluice-hub-0.sluice-hub.sluice.svc, ");
    assert_ne!(named, text);
    std::fs::write(settings, named).unwrap();
    let mut started = command(dir.path(), pod, &format!("hub:127.0.0.1:{hub_port}"));
    started.env("SLUICE_ADMIN", "127.0.0.1:0");
    let sidecar = Sluice::start(dir, started).await;
    until("the sidecar's hub", async || {
        let answer = http::get(sidecar.admin, "/readyz").await;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;

    let asked = ["try", "--grpc", &sidecar.grpc, "llm", "tenant=acme", "model=gpt-4o"];
    let tried = run(&mut sluice(sidecar.dir.path(), &asked));
    assert_eq!(tried.code, 0, "{tried:?}");
    assert!(tried.stdout.contains("lease_id"), "a lease: {tried:?}");
    let (status, body) = curl(&authority, &peers, Some(TOKEN));
    let listed: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status} {body}"));
    assert_eq!(list(&listed["peers"]).len(), 1, "{body}");

    // The kubelet's probe, as it is typed.
    let probe = &container(pod)["livenessProbe"]["exec"]["command"];
    let words: Vec<&str> = list(probe).iter().skip(1).map(|word| word.as_str().unwrap()).collect();
    let probed = run(sluice(sidecar.dir.path(), &words).env("SLUICE_GRPC", &sidecar.grpc));
    assert_eq!(probed.code, 0, "{probed:?}");
}

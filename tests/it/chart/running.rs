//! The pods of the chart, started: their volumes are laid out as the kubelet would, `sluice check` is content with them, and with the
//! arguments of the pod Sluice serves, answers its probes and finds its hub.

use ::sluice::config::settings::value::LedgerUri;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};

use super::*;
use crate::authority::Authority;
use crate::live::config_map;
use crate::sluice::{Sluice, run, sluice};
use crate::wait::until;

/// A container `sluice` of a pod, and what it mounts, in a directory that stands for its root.
struct Laid<'r> {
    rendered: &'r Rendered,
    pod: Value,
    namespace: &'static str,
    dir: tempfile::TempDir,
}

impl<'r> Laid<'r> {
    fn out(rendered: &'r Rendered, pod: Value, namespace: &'static str, authority: &Authority) -> Self {
        let laid = Self { rendered, pod, namespace, dir: tempfile::tempdir().unwrap() };
        for mount in list(&laid.container()["volumeMounts"]) {
            let volume =
                list(&laid.pod["spec"]["volumes"]).iter().find(|volume| volume["name"] == mount["name"]);
            let at = laid.path(string(&mount["mountPath"]));
            std::fs::create_dir_all(&at).unwrap();
            laid.fill(volume.expect("a volume"), &at, authority);
        }
        laid
    }

    fn container(&self) -> &Value {
        containers(&self.pod).find(|container| container["name"] == "sluice").expect("a container `sluice`")
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.dir.path().join(inside.trim_start_matches('/'))
    }

    /// An object of this pod's namespace; those of the release's have none written down.
    fn object(&self, kind: &str, name: &Value) -> Option<&Value> {
        let here = |found: &&Value| {
            let namespace = found["metadata"]["namespace"].as_str().unwrap_or("sluice");
            found["metadata"]["name"] == *name && namespace == self.namespace
        };
        self.rendered.all(kind).find(here)
    }

    fn fill(&self, volume: &Value, at: &Path, authority: &Authority) {
        let projected = volume["projected"]["sources"].as_array().into_iter().flatten();
        let mut files = Vec::new();
        for source in [volume].into_iter().chain(projected) {
            let map = &source["configMap"]["name"];
            let data = self.object("ConfigMap", map).map(|map| map["data"].as_object().unwrap());
            let optional = map.is_null() || source["configMap"]["optional"] == true;
            assert!(data.is_some() || optional, "{map}");
            for (name, text) in data.into_iter().flatten() {
                files.push((name.as_str(), self.moved(string(text))));
            }
        }
        if !files.is_empty() {
            config_map(at, 1, &files);
        }
        if let Some(name) = volume.get("secret").map(|secret| &secret["secretName"]) {
            match self.rendered.all("Certificate").find(|made| made["spec"]["secretName"] == *name) {
                Some(certificate) => issue(authority, &certificate["spec"], at),
                None => {
                    let secret = self.object("Secret", name).unwrap_or_else(|| panic!("no Secret {name}"));
                    for (key, value) in secret["data"].as_object().unwrap() {
                        std::fs::write(at.join(key), base64(string(value))).unwrap();
                    }
                }
            }
        }
    }

    /// Paths of the container, seen from outside.
    fn moved(&self, text: &str) -> String {
        ["/run/", "/certs/", "/etc/", "/var/"].iter().fold(text.to_owned(), |text, start| {
            text.replace(start, &format!("{}{start}", self.dir.path().display()))
        })
    }

    /// The arguments of the pod, on free ports and with another ledger.
    fn arguments(&self, ledger: &str) -> Vec<String> {
        let mut arguments = Vec::new();
        for argument in list(&self.container()["args"]).iter().map(string) {
            arguments.push(match argument.split_once('=') {
                Some(("--ledger", _)) => format!("--ledger={ledger}"),
                Some((name @ ("--grpc" | "--admin" | "--hub"), address)) => {
                    format!("{name}={}:0", address.rsplit_once(':').unwrap().0)
                }
                _ => self.moved(argument),
            });
        }
        arguments
    }

    fn ledger(&self) -> LedgerUri {
        let mut arguments = list(&self.container()["args"]).iter().map(string);
        let uri = arguments.find_map(|argument| argument.strip_prefix("--ledger=")).expect("a ledger");
        uri.parse().unwrap_or_else(|error| panic!("{uri}: {error}"))
    }

    /// `sluice check` with the directories of the pod.
    fn check(&self) {
        let arguments = self.arguments("memory");
        let directories = arguments
            .iter()
            .filter(|argument| argument.starts_with("--config-dir") || argument.starts_with("--limits-dir"));
        let checked = run(sluice(self.dir.path(), &["check"]).args(directories));
        assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{checked:?}");
        assert!(!checked.stdout.contains("warning") || self.namespace == "sluice", "{checked:?}");
    }

    async fn start(self, ledger: &str) -> (Sluice, Value) {
        self.check();
        let mut command = sluice(self.dir.path(), &[]);
        command.args(self.arguments(ledger));
        let container = self.container().clone();
        (Sluice::start(self.dir, command).await, container)
    }
}

fn base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

/// What cert-manager would put into the secret.
fn issue(authority: &Authority, certificate: &Value, at: &Path) {
    std::fs::copy(authority.path("ca.pem"), at.join("ca.crt")).unwrap();
    authority.issue_as(&at.join("tls.crt"), &at.join("tls.key"), |params| {
        let names =
            list(&certificate["dnsNames"]).iter().map(|name| string(name).to_owned()).collect::<Vec<_>>();
        params.subject_alt_names = CertificateParams::new(names).unwrap().subject_alt_names;
        params.extended_key_usages = list(&certificate["usages"])
            .iter()
            .map(|usage| match string(usage) {
                "server auth" => ExtendedKeyUsagePurpose::ServerAuth,
                "client auth" => ExtendedKeyUsagePurpose::ClientAuth,
                other => panic!("{other}"),
            })
            .collect();
    });
}

/// The status and the body of an answer, with the authority's certificate and perhaps a token.
fn curl(
    authority: &Authority,
    scheme: &str,
    sluice: &Sluice,
    path: &str,
    token: Option<&str>,
) -> (String, String) {
    let mut command = Command::new("curl");
    command
        .args(["-s", "--max-time", "10", "-w", "\n%{http_code}", "--cacert"])
        .arg(authority.path("ca.pem"));
    if let Some(token) = token {
        command.args(["-H", &format!("authorization: Bearer {token}")]);
    }
    let url = format!("{}://localhost:{}{path}", scheme.to_lowercase(), sluice.admin.port());
    let output = command.arg(url).output().expect("curl must be there");
    let text = text(output.stdout);
    let (body, status) = text.rsplit_once('\n').expect("a status");
    (status.to_owned(), body.to_owned())
}

/// Asks as the kubelet does.
fn probed(authority: &Authority, sluice: &Sluice, container: &Value) {
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let Some(get) = container[probe].get("httpGet") else { continue };
        let answer = curl(authority, string(&get["scheme"]), sluice, string(&get["path"]), None);
        assert_eq!(answer.0, "200", "{probe}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_answers_and_takes_new_files_without_a_restart() {
    let authority = Authority::new();
    for name in ["memory", "service, all of it"] {
        let rendered = shape(name);
        let laid = Laid::out(rendered, rendered.pod("sluice").clone(), "sluice", &authority);
        match (name, laid.ledger()) {
            ("memory", LedgerUri::Memory) => {}
            (_, LedgerUri::TigerBeetle { .. }) => {
                let uri = laid.ledger().to_string();
                let services = rendered.all("Service").filter(|service| {
                    uri.contains(&format!("{}.sluice.svc:3000", string(&service["metadata"]["name"])))
                });
                assert_eq!((uri.split('@').next(), services.count()), (Some("tigerbeetle:1"), 5), "{uri}");
            }
            (_, other) => panic!("{name}: {other}"),
        }
        let limits = laid.path("/etc/sluice-limits");
        let token = std::fs::read_to_string(laid.path("/run/secrets/sluice-admin/token")).unwrap();
        let (served, container) = laid.start("memory").await;
        probed(&authority, &served, &container);
        let scheme = string(&container["livenessProbe"]["httpGet"]["scheme"]).to_owned();
        let metrics = |token| curl(&authority, &scheme, &served, "/metrics", token).0;
        assert_eq!((metrics(None), metrics(Some(&token))), ("401".to_owned(), "200".to_owned()), "{name}");

        // Somebody adds a file to the ConfigMap, and the kubelet swaps the directory.
        let shop =
            "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1}}]";
        let demo = rendered.one("ConfigMap", "sluice-limits")["data"]["demo.yaml"].as_str().unwrap();
        config_map(&limits, 2, &[("demo.yaml", demo.to_owned()), ("shop.yaml", shop.to_owned())]);
        until("the new file to be live", async || {
            let (_, config) = curl(&authority, &scheme, &served, "/v1/config", Some(&token));
            if config.contains("shop.yaml") { Ok(()) } else { Err(config) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_uses_its_hub() {
    let (authority, rendered) = (Authority::new(), shape("hubs"));
    let laid = Laid::out(rendered, rendered.pod("sluice-hub").clone(), "sluice", &authority);
    assert!(matches!(laid.ledger(), LedgerUri::TigerBeetle { .. }), "{}", laid.ledger());
    let token = std::fs::read_to_string(laid.path("/run/secrets/sluice-admin/token")).unwrap();
    let (mut hub, container) = laid.start("memory").await;
    let hub_port = hub.process.line("hub listening on ").await.rsplit_once(':').unwrap().1.to_owned();
    probed(&authority, &hub, &container);

    let laid = Laid::out(rendered, patched(rendered), "chat", &authority);
    // What sidecars call is each pod of the set, by the name that its Service gives it.
    let expected: Vec<String> =
        (0..2).map(|n| format!("sluice-hub-{n}.sluice-hub.sluice.svc:8082")).collect();
    assert!(
        matches!(laid.ledger(), LedgerUri::Hub { addresses } if addresses == expected),
        "{}",
        laid.ledger()
    );
    // Here the name is an address.
    let settings = laid.path("/etc/sluice/sluice.yaml");
    let text = std::fs::read_to_string(&settings).unwrap();
    let named = text.replace(
        "ledger:\n  tls:\n",
        "ledger:\n  tls:\n    server_name: sluice-hub-0.sluice-hub.sluice.svc\n",
    );
    assert_ne!(named, text);
    std::fs::write(std::fs::canonicalize(settings).unwrap(), named).unwrap();
    let own_token = std::fs::read_to_string(laid.path("/run/secrets/sluice-admin/token")).unwrap();
    assert_eq!(own_token, token, "one for all namespaces");
    let (sidecar, container) = laid.start(&format!("hub:127.0.0.1:{hub_port}")).await;
    until("the sidecar's hub", async || match curl(&authority, "HTTPS", &sidecar, "/readyz", None) {
        (status, _) if status == "200" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    probed(&authority, &sidecar, &container);
    assert_eq!(
        curl(&authority, "HTTPS", &sidecar, "/metrics", Some(&token)).0,
        "200",
        "Prometheus has the token"
    );

    let asked = ["try", "--grpc", &sidecar.grpc, "demo", "path=/hello"];
    assert_eq!(run(&mut sluice(sidecar.dir.path(), &asked)).code, 0);
    let (_, peers) = curl(&authority, "HTTPS", &hub, "/v1/peers", Some(&token));
    let peers: Value = serde_json::from_str(&peers).unwrap_or_else(|error| panic!("{error}: {peers}"));
    assert_eq!(list(&peers["peers"]).len(), 1, "{peers}");
}

/// While a cluster is replaced the old one stays, the new one is another release, and both are reached.
#[test]
fn a_cluster_can_be_replaced() {
    let manual = std::fs::read_to_string(root().join("docs/operating.md")).unwrap();
    let both = manual
        .split("```yaml\n")
        .find(|part| part.starts_with("ledgers:\n"))
        .expect("the values of the manual");
    let both = both.split("```").next().unwrap();
    let rendered = Rendered::of(&format!("shape: service\n{both}"));
    let arguments = list(&rendered.pod("sluice")["spec"]["containers"][0]["args"]).iter().map(string);
    let uris: Vec<&str> = arguments.filter_map(|argument| argument.strip_prefix("--ledger=")).collect();
    assert!(uris.iter().all(|uri| uri.parse::<LedgerUri>().is_ok()), "{uris:?}");
    let plain = shape("service").pod("sluice")["spec"]["containers"][0]["args"].to_string();
    assert!(uris.len() == 2 && plain.contains(uris[0]), "the old one first: {uris:?}");
    assert!(rendered.find("StatefulSet", "sluice-tigerbeetle").is_some(), "the old one stays");
    let named = |release: &str, number: u32| format!("{release}-tigerbeetle-{number}.sluice.svc:3000");
    assert!((0..3).all(|number| uris[1].contains(&named("next-sluice", number))), "{uris:?}");
}

/// Prometheus asks by names that the certificates have.
#[test]
fn monitors_ask_by_names_of_the_certificates() {
    for (shape_name, kind, endpoints) in [
        ("service, all of it", "ServiceMonitor", "endpoints"),
        ("hubs, all of it", "ServiceMonitor", "endpoints"),
        ("hubs, all of it", "PodMonitor", "podMetricsEndpoints"),
    ] {
        let rendered = shape(shape_name);
        let monitor = rendered.all(kind).next().expect(kind);
        let endpoint = &monitor["spec"][endpoints][0];
        let tls = &endpoint["tlsConfig"];
        let mut certificates = rendered.all("Certificate");
        let certificate = certificates.find(|made| made["spec"]["secretName"] == tls["ca"]["secret"]["name"]);
        let names = &certificate.expect("a certificate")["spec"]["dnsNames"];
        assert!(list(names).contains(&tls["serverName"]), "{tls} {names}");
        assert_eq!(endpoint["relabelings"][0]["replacement"], "sluice", "the alerts ask for this job");
    }
}

//! The Helm chart in deploy/chart: every shape is rendered by the real Helm and looked at as what Kubernetes would be given.
//! `SLUICE_TEST_KUBERNETES` names a directory with Helm and the others; without it these tests fail.

mod checked;
mod kept;
mod placed;
mod running;
mod schemas;
mod tigerbeetle;
mod values;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

use crate::sluice::directory;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `make tools` made for tests of manifests.
fn tools() -> PathBuf {
    let dir = std::env::var_os("SLUICE_TEST_KUBERNETES");
    let dir = dir
        .expect("SLUICE_TEST_KUBERNETES must name a directory with Helm: run `make test`, which builds it");
    PathBuf::from(dir)
}

fn helm(arguments: &[&str]) -> Command {
    let mut command = Command::new(tools().join("helm"));
    command.current_dir(root()).args(arguments).env("HELM_REGISTRY_CONFIG", "/dev/null");
    command
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// The shapes, each plain and with all that can be turned on.
const SHAPES: [(&str, &str); 8] = [
    ("memory", "{}"),
    ("memory, all of it", "{istio: {enabled: true}, monitoring: *all}"),
    ("service", "{shape: service}"),
    (
        "service, all of it",
        "{shape: service, certificates: {enabled: true, envoyNamespaces: [istio-system]}, monitoring: *all,
          limitsFrom: [team-a], sluice: {replicas: 16}, imagePullSecrets: [{name: mine}], podLabels: {team: edge}, podAnnotations: {owner: edge}, tigerbeetle: {replicas: 5, antiAffinity: preferred},
          networkPolicy: {operators: [{podSelector: {matchLabels: {app: bastion}}}], ledgerClients: [{podSelector: {}}]}}",
    ),
    ("hubs", "{shape: hubs, sidecars: {namespaces: [chat, shop]}}"),
    (
        "hubs, all of it",
        "{shape: hubs, sidecars: {namespaces: [chat]}, certificates: {issuerRef: {name: mesh, kind: ClusterIssuer}}, monitoring: *all,
          seccomp: {install: false}, secrets: {leases: mine, admin: mine-too}, limitsFrom: [team-a]}",
    ),
    (
        "hubs without cert-manager",
        "{shape: hubs, sidecars: {namespaces: [chat], grpcPort: 18081}, certificates: {certManager: false}, monitoring: *all,
          imagePullSecrets: [{name: mine}], podLabels: {team: edge}, podAnnotations: {owner: edge},
          image: {digest: *digest}, tigerbeetle: {image: {digest: *digest}}}",
    ),
    ("ledger", "{shape: ledger, tigerbeetle: {replicas: 1}}"),
];

const MONITORING: &str =
    "{serviceMonitor: true, rules: true, dashboard: true, labels: {release: prometheus}}";

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The values of a shape as a file.
fn values(yaml: &str) -> tempfile::TempDir {
    directory(&[("values.yaml", &yaml.replace("*all", MONITORING).replace("*digest", DIGEST))])
}

/// `helm template` with these values, as one file of documents; what Helm says if it refuses.
fn template(yaml: &str) -> Result<String, String> {
    let dir = values(yaml);
    let file = dir.path().join("values.yaml");
    let mut command = helm(&["template", "sluice", "deploy/chart", "--namespace", "sluice", "--values"]);
    let Output { status, stdout, stderr } = command.arg(file).output().expect("Helm must run");
    if status.success() { Ok(text(stdout)) } else { Err(text(stderr)) }
}

/// All that a shape consists of.
struct Rendered {
    name: &'static str,
    text: String,
    documents: Vec<Value>,
}

impl Rendered {
    fn of(yaml: &str) -> Self {
        Self::named("", yaml)
    }

    fn named(name: &'static str, yaml: &str) -> Self {
        let text = template(yaml).unwrap_or_else(|error| panic!("{name}: {error}"));
        let documents = documents(&text);
        assert!(!documents.is_empty(), "{name}");
        Self { name, text, documents }
    }

    fn all<'r, 'k>(&'r self, kind: &'k str) -> impl Iterator<Item = &'r Value> + use<'r, 'k> {
        self.documents.iter().filter(move |document| document["kind"] == kind)
    }

    fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.all(kind).find(|document| document["metadata"]["name"] == name)
    }

    fn one(&self, kind: &str, name: &str) -> &Value {
        self.find(kind, name).unwrap_or_else(|| panic!("{}: no {kind} {name}", self.name))
    }

    /// The pods that the shape makes: the name of their owner, and the template.
    fn pods(&self) -> impl Iterator<Item = (&str, &Value)> {
        let owners =
            self.documents.iter().filter(|document| document["spec"]["template"]["spec"].is_object());
        owners.map(|owner| (owner["metadata"]["name"].as_str().unwrap(), &owner["spec"]["template"]))
    }

    fn pod(&self, name: &str) -> &Value {
        self.pods().find(|(owner, _)| *owner == name).unwrap_or_else(|| panic!("{}: no {name}", self.name)).1
    }
}

/// Each shape, rendered once for all tests.
fn shapes() -> &'static [Rendered] {
    static RENDERED: OnceLock<Vec<Rendered>> = OnceLock::new();
    RENDERED.get_or_init(|| SHAPES.map(|(name, yaml)| Rendered::named(name, yaml)).into())
}

fn shape(name: &str) -> &'static Rendered {
    shapes().iter().find(|rendered| rendered.name == name).unwrap_or_else(|| panic!("no shape {name}"))
}

fn documents(text: &str) -> Vec<Value> {
    let parse = |part: &str| -> Value {
        serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{error}\n{part}"))
    };
    let parts = format!("\n{text}");
    let parts = parts.split("\n---").filter(|part| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    parts.map(parse).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not text: {value}"))
}

/// The containers of a pod, those that start first included.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let of = |key: &str| pod["spec"][key].as_array().into_iter().flatten();
    of("initContainers").chain(of("containers"))
}

/// Whether a label selector fits a pod or a namespace with these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let named = selector["matchLabels"].as_object().into_iter().flatten();
    let fits = named.into_iter().all(|(name, value)| labels[name] == *value);
    fits && selector["matchExpressions"].as_array().into_iter().flatten().all(|expression| {
        assert_eq!(expression["operator"], "In", "{expression}");
        list(&expression["values"]).contains(&labels[string(&expression["key"])])
    })
}

/// What a sidecar adds to a pod of the namespace `chat`, as it would be after `kubectl patch`.
fn patched(rendered: &Rendered) -> Value {
    let maps = rendered.all("ConfigMap").filter(|map| map["metadata"]["namespace"] == "chat");
    let mut maps = maps.filter(|map| map["metadata"]["name"] == "sluice-sidecar-patch");
    let patch = string(&maps.next().expect("a patch")["data"]["patch.yaml"]);
    let mut pod: Value = serde_saphyr::from_str::<Value>(patch).unwrap()["spec"]["template"].take();
    pod["spec"]["containers"] = serde_json::json!([{"name": "chat", "image": "chat:1.0.0"}]);
    pod["metadata"]["labels"]["app"] = "chat".into();
    pod
}

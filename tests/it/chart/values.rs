//! What the chart says about values: Helm's own lint, mistakes that are named, versions, and what it tells people to do next.

use super::*;

#[test]
fn helm_finds_nothing_to_complain_about() {
    for (name, yaml) in SHAPES {
        let dir = values(yaml);
        let file = dir.path().join("values.yaml");
        let linted = helm(&["lint", "--strict", "deploy/chart", "--values"]).arg(file).output().unwrap();
        assert!(linted.status.success(), "{name}: {}", text(linted.stdout));
    }
}

#[test]
fn mistakes_are_named() {
    for (yaml, words) in [
        ("{shape: cluster}", &["shape", "memory", "hubs"][..]),
        ("{sluice: {replicas: 17}}", &["sluice.replicas", "16"]),
        ("{sluice: {replicaz: 2}}", &["replicaz"]),
        ("{shape: hubs}", &["sidecars.namespaces"]),
        ("{shape: service, tigerbeetle: {enabled: false}}", &["ledgers", "at least 1"]),
        ("{tigerbeetle: {replicas: 2}}", &["tigerbeetle.replicas"]),
        ("{tigerbeetle: {cluster: 0}}", &["tigerbeetle.cluster", "1"]),
        ("{limits: {demo.json: x}}", &["limits", "demo.json"]),
        ("{limits: {demo.yaml: {domain: demo}}}", &["limits.demo.yaml", "string"]),
        ("{settings: {ledgr: {}}}", &["settings", "ledgr"]),
        ("{sluice: {resources: {limits: {cpu: 1}}}}", &["sluice.resources"]),
        ("{ledgers: [redis:6379]}", &["ledgers.0"]),
        ("{networkPolicy: {envoys: [{}]}}", &["networkPolicy.envoys.0"]),
        ("{image: {digest: 0123}}", &["image.digest"]),
        ("{certificates: {issuerRef: {kind: ClusterIssuer}}}", &["certificates.issuerRef", "name"]),
        (
            "{istio: {enabled: true}, certificates: {enabled: true}}",
            &["istio.enabled and certificates.enabled"],
        ),
    ] {
        // `null` takes a default away, so that what is missing is missing.
        let yaml = yaml.replace("{limits: {cpu: 1}}", "{limits: {cpu: 1, memory: null}}");
        let error = template(&yaml).expect_err(&yaml);
        for word in words {
            assert!(error.contains(word), "no `{word}` for {yaml}: {error}");
        }
    }
}

#[test]
fn versions_are_those_of_the_repository() {
    let chart: Value = serde_saphyr::from_str(&read("deploy/chart/Chart.yaml")).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let values: Value = serde_saphyr::from_str(&read("deploy/chart/values.yaml")).unwrap();
    let lock = read("Cargo.lock");
    let client = lock.split("name = \"tigerbeetle-unofficial-sys\"\nversion = \"").nth(1).unwrap();
    let client = client.split('"').next().unwrap().rsplit('+').next().unwrap();
    assert_eq!(values["tigerbeetle"]["image"]["tag"], client, "the server must be the client's");
    let service = &shape("service");
    assert_eq!(containers(service.pod("sluice")).next().unwrap()["image"], "ghcr.io/example/sluice:0.1.0");
}

/// The longest name that Helm takes for a release: names of objects, and the labels that controllers make of them, are at most 63 characters.
#[test]
fn a_long_name_fits() {
    let release = "a-release-with-a-name-as-long-as-helm-will-take-it-53";
    assert_eq!(release.len(), 53);
    for (name, yaml) in SHAPES {
        let dir = values(yaml);
        let mut command = helm(&["template", release, "deploy/chart", "--namespace", "sluice", "--values"]);
        let output = command.arg(dir.path().join("values.yaml")).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(output.stderr));
        for object in documents(&text(output.stdout)) {
            let named = string(&object["metadata"]["name"]);
            // A StatefulSet's pods are labelled with its name, a dash and a hash of ten.
            let longest = if object["kind"] == "StatefulSet" { 52 } else { 63 };
            let of_cert_manager = string(&object["apiVersion"]).starts_with("cert-manager.io");
            assert!(named.len() <= longest || of_cert_manager, "{name}: {named}");
            let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
            assert!(labels.into_iter().all(|(_, value)| string(value).len() <= 63), "{name}: {object}");
        }
    }
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The values that the manual begins with: they render, and what is in production is what they say.
#[test]
fn the_values_of_the_manual_are_right() {
    let manual = read("docs/deploying.md");
    let yaml = manual.split("```yaml\n").find(|part| part.starts_with("shape: service\n")).expect("values");
    let rendered = Rendered::of(yaml.split("```").next().unwrap());
    let limits = rendered.one("ConfigMap", "sluice-limits")["data"].as_object().unwrap();
    assert_eq!(limits.keys().collect::<Vec<_>>(), ["shop.yaml"], "the example is gone");
    assert!(rendered.pod("sluice").to_string().contains("team-a-limits"));
}

/// The dashboard and the alerts are those of the demo, which have tests of their own.
#[test]
fn the_dashboard_and_the_alerts_are_whole() {
    let rendered = shape("service, all of it");
    let dashboard = string(&rendered.one("ConfigMap", "sluice-dashboard")["data"]["sluice.json"]);
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(json(dashboard), json(&read("demo/grafana/sluice.json")));
    let rules = &rendered.one("PrometheusRule", "sluice")["spec"];
    assert_eq!(*rules, serde_saphyr::from_str::<Value>(&read("demo/prometheus/alerts.yaml")).unwrap());
}

/// What the chart prints at the end, with these values. `helm install` would want a cluster, so a copy has the notes as a template.
fn notes(yaml: &str) -> String {
    let dir = values(yaml);
    let copy = dir.path().join("chart");
    let copied = Command::new("cp").arg("-rL").arg(root().join("deploy/chart")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let template = "notes: | {{- include (print $.Template.BasePath \"/NOTES.txt\") . | nindent 2 }}\n";
    std::fs::write(copy.join("templates/notes.yaml"), template).unwrap();
    let mut command =
        helm(&["template", "sluice", "--namespace", "sluice", "--show-only", "templates/notes.yaml"]);
    let output = command.arg(copy).arg("--values").arg(dir.path().join("values.yaml")).output().unwrap();
    assert!(output.status.success(), "{}", text(output.stderr));
    string(&documents(&text(output.stdout))[0]["notes"]).to_owned()
}

/// The notes name files that are there, and objects that were made.
#[test]
fn the_notes_lead_somewhere() {
    let kinds = [
        ("deployment", "Deployment"),
        ("statefulset", "StatefulSet"),
        ("daemonset", "DaemonSet"),
        ("certificate", "Certificate"),
    ];
    for (name, yaml) in SHAPES {
        let notes = notes(yaml);
        let words = notes.split(|c: char| c.is_whitespace() || ",:`'\"()".contains(c));
        for word in words.map(|word| word.trim_end_matches('.')) {
            let path = ["docs/", "envoy/"].iter().any(|start| word.starts_with(start));
            assert!(!path || root().join(word).exists(), "{name}: {word}");
            let Some((kind, object)) = word.split_once('/') else { continue };
            if let Some((_, kind)) = kinds.iter().find(|(short, _)| *short == kind) {
                assert!(shape(name).find(kind, object).is_some(), "{name}: {word}");
            }
        }
        assert!(name.starts_with("memory") || notes.contains("seccomp"), "{name}: {notes}");
        assert!(name.starts_with("ledger") || notes.contains("SluiceFailsOpen"), "{name}: {notes}");
    }
}

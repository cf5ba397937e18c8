//! Every manifest that is rendered or shipped, as the tools of others see it: kubeconform with the schemas of Kubernetes, Istio, Gateway
//! API, Envoy Gateway, cert-manager and the Prometheus operator; kube-score; Compose's reader.

use super::*;

/// What kubeconform says about some files: whether it took all of them.
fn validated(dir: &Path) -> (bool, String) {
    let mut command = Command::new(tools().join("kubeconform"));
    let schemas = schemas::directory().join("{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json");
    command.arg("-strict").arg("-schema-location").arg(schemas).arg(dir);
    let Output { status, stdout, stderr } = command.output().expect("kubeconform must run");
    (status.success(), text(stdout) + &text(stderr))
}

/// Manifests for people to apply: all but the settings and values that other programs read.
fn shipped() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for dir in ["envoy/istio", "envoy/envoy-gateway"] {
        for entry in std::fs::read_dir(root().join(dir)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !["values.yaml", "envoy-gateway.yaml"].contains(&name.as_str()) {
                files.push((
                    format!("{}-{name}", dir.replace('/', "-")),
                    std::fs::read_to_string(&path).unwrap(),
                ));
            }
        }
    }
    assert!(files.len() > 5, "{files:?}");
    files
}

#[test]
fn every_manifest_fits_the_schemas() {
    let mut files = shipped();
    for (number, rendered) in shapes().iter().enumerate() {
        files.push((format!("shape-{number}.yaml"), rendered.text.clone()));
        if rendered.name.starts_with("hubs") {
            let application = serde_json::json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat", "namespace": "chat"},
                "spec": {"selector": {"matchLabels": {"app": "chat"}}, "template": patched(rendered)},
            });
            files.push((format!("patched-{number}.yaml"), application.to_string()));
        }
    }
    let dir = directory(&files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>());
    let (is_good, said) = validated(dir.path());
    assert!(is_good, "{said}");
}

/// Of each project something that is not in its schema, so that what passed above was really looked at.
#[test]
fn mistakes_don_t_fit_the_schemas() {
    for (kind, from, to) in [
        ("StatefulSet", "minReadySeconds:", "minReadySecondz:"),
        ("NetworkPolicy", "policyTypes:", "policyTypez:"),
        ("AuthorizationPolicy", "principals:", "principalz:"),
        ("Certificate", "rotationPolicy: Always", "rotationPolicy: Sometimes"),
        ("ServiceMonitor", "credentials:", "credentialz:"),
    ] {
        let parts = shapes().iter().flat_map(|rendered| rendered.text.split("\n---"));
        let mut parts = parts.filter(|part| part.contains(&format!("kind: {kind}\n")));
        let part = parts.find(|part| part.contains(from)).unwrap_or_else(|| panic!("no {from} in a {kind}"));
        let dir = directory(&[("one.yaml", &part.replace(from, to))]);
        let (is_good, said) = validated(dir.path());
        assert!(!is_good, "{to}: {said}");
    }
    for (name, from, to) in [
        ("envoy-istio-sidecar-envoyfilter.yaml", "operation: INSERT_BEFORE", "operation: INSERT_ABOVE"),
        ("envoy-envoy-gateway-envoypatchpolicy.yaml", "op: add", "op: insert"),
        ("envoy-envoy-gateway-authentication.yaml", "protocol: HTTP,", "protokol: HTTP,"),
    ] {
        let (_, good) = shipped().into_iter().find(|(shipped, _)| shipped == name).expect(name);
        let bad = good.replace(from, to);
        assert_ne!(good, bad);
        let (is_good, said) = validated(directory(&[("one.yaml", &bad)]).path());
        assert!(!is_good, "{to}: {said}");
    }
}

/// What kube-score would have otherwise, and why it doesn't get it.
const IGNORED: [&str; 3] = [
    // Without a limit answers come at once; with one, every caller waits for the next period of the scheduler.
    "--ignore-container-cpu-limit",
    // Nothing is written to the root file system, and volumes have limits of their own.
    "--ignore-test=container-ephemeral-storage-request-and-limit",
    // The images have versions. Pulling them anew each time would make a start depend on a registry.
    "--ignore-test=container-image-pull-policy",
];

/// What it says about single objects, and why that is so.
const EXPECTED: [(&str, &str); 3] = [
    // It writes to a directory of the node, which belongs to root.
    ("sluice-seccomp apps/v1/DaemonSet: (install)", "low user ID"),
    ("sluice-seccomp apps/v1/DaemonSet: (install)", "low group ID"),
    // The label of a single pod is put on by the controller.
    ("sluice-tigerbeetle-", "The services selector does not match any pods"),
];

#[test]
fn kube_score_has_nothing_critical_to_say() {
    for rendered in shapes() {
        let dir = directory(&[("all.yaml", &rendered.text)]);
        let mut command = Command::new(tools().join("kube-score"));
        command.args(["score", "--output-format", "ci", "--kubernetes-version", "v1.29"]).args(IGNORED);
        let output = command.arg(dir.path().join("all.yaml")).output().expect("kube-score must run");
        let said = text(output.stdout);
        assert!(said.lines().count() > 10, "{said}");
        let expected =
            |line: &str| EXPECTED.iter().any(|(what, why)| line.contains(what) && line.contains(why));
        let critical: Vec<&str> =
            said.lines().filter(|line| line.starts_with("[CRITICAL]") && !expected(line)).collect();
        assert_eq!(critical, [""; 0], "{}: {}", rendered.name, text(output.stderr));
    }
}

#[test]
fn compose_takes_the_compose_file() {
    let compose = |file: &Path| {
        let mut command = Command::new(tools().join("compose-spec"));
        command.current_dir(root()).arg(file).output().expect("Compose's reader must run")
    };
    let file = root().join("docker-compose.yaml");
    let output = compose(&file);
    assert!(output.status.success(), "{}", text(output.stderr));
    // And it does look.
    let broken = std::fs::read_to_string(file).unwrap().replace("    depends_on:", "    depends_upon:");
    let dir = directory(&[("docker-compose.yaml", &broken)]);
    assert!(!compose(&dir.path().join("docker-compose.yaml")).status.success());
}

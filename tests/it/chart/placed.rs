//! Who reaches whom, what may be taken down at a time, and what a pod may do: as the rendered objects say it.

use super::*;

/// A pod somewhere: its namespace and its labels.
struct Somebody<'a> {
    namespace: &'a str,
    labels: &'a Value,
}

/// Whether the policies let `from` reach `to` on a port. As Kubernetes has it: a pod that no policy selects is open, and policies of a
/// pod add up.
fn reaches(rendered: &Rendered, from: &Somebody, to: &Somebody, port: u64) -> bool {
    let about = |somebody: &Somebody, direction: &str| -> Vec<&Value> {
        let policies = rendered.all("NetworkPolicy").map(|policy| &policy["spec"]);
        let here = somebody.namespace == "sluice";
        let here = policies.filter(|policy| here && selects(&policy["podSelector"], somebody.labels));
        here.filter(|policy| list(&policy["policyTypes"]).contains(&direction.into())).collect()
    };
    let passes = |policies: Vec<&Value>, direction: &str, peers: &str, other: &Somebody| {
        policies.is_empty()
            || policies.iter().flat_map(|policy| policy[direction].as_array().into_iter().flatten()).any(
                |rule| {
                    let ports = rule["ports"].as_array();
                    let port_fits = ports.is_none_or(|ports| ports.iter().any(|open| open["port"] == port));
                    let peers = rule[peers].as_array();
                    port_fits && peers.is_none_or(|peers| peers.iter().any(|peer| is_peer(peer, other)))
                },
            )
    };
    passes(about(to, "Ingress"), "ingress", "from", from) && passes(about(from, "Egress"), "egress", "to", to)
}

fn is_peer(peer: &Value, somebody: &Somebody) -> bool {
    let names = serde_json::json!({"kubernetes.io/metadata.name": somebody.namespace});
    let in_namespace = match &peer["namespaceSelector"] {
        Value::Null => somebody.namespace == "sluice",
        selector => selects(selector, &names),
    };
    in_namespace && (peer["podSelector"].is_null() || selects(&peer["podSelector"], somebody.labels))
}

#[test]
fn only_those_who_should_reach_a_port() {
    let none = serde_json::json!({});
    let prometheus = serde_json::json!({"app.kubernetes.io/name": "prometheus"});
    let bastion = serde_json::json!({"app": "bastion"});
    let service = shape("service, all of it");
    let hubs = shape("hubs");
    let sidecar = patched(hubs);
    for (rendered, rows) in [
        (
            service,
            &[
                ("istio-system", &none, "sluice", 8081, true),
                ("istio-system", &none, "sluice", 8080, false),
                ("monitoring", &prometheus, "sluice", 8080, true),
                ("monitoring", &none, "sluice", 8080, false),
                ("monitoring", &prometheus, "sluice", 8081, false),
                ("sluice", &bastion, "sluice", 8080, true),
                ("chat", &none, "sluice", 8081, false),
                ("chat", &none, "sluice-tigerbeetle", 3000, false),
                ("monitoring", &prometheus, "sluice-tigerbeetle", 3000, false),
            ][..],
        ),
        (
            hubs,
            &[
                ("chat", &sidecar["metadata"]["labels"], "sluice-hub", 8082, true),
                ("chat", &none, "sluice-hub", 8082, false),
                ("elsewhere", &sidecar["metadata"]["labels"], "sluice-hub", 8082, false),
                ("chat", &sidecar["metadata"]["labels"], "sluice-hub", 8080, false),
                ("monitoring", &prometheus, "sluice-hub", 8080, true),
                ("chat", &sidecar["metadata"]["labels"], "sluice-tigerbeetle", 3000, false),
                ("istio-system", &none, "sluice-tigerbeetle", 3000, false),
            ],
        ),
    ] {
        for (namespace, labels, to, port, expected) in rows {
            let from = Somebody { namespace, labels };
            let to_pod = Somebody { namespace: "sluice", labels: &rendered.pod(to)["metadata"]["labels"] };
            let found = reaches(rendered, &from, &to_pod, *port);
            assert_eq!(found, *expected, "{}: from {namespace} {labels} to {to}:{port}", rendered.name);
        }
    }
    // Those with the ledger reach TigerBeetle, its replicas each other, and nobody gets out.
    for (rendered, with_ledger) in [(shape("service"), "sluice"), (hubs, "sluice-hub")] {
        let pod = |name| Somebody { namespace: "sluice", labels: &rendered.pod(name)["metadata"]["labels"] };
        let outside = Somebody { namespace: "internet", labels: &none };
        for (from, to, port, expected) in [
            (pod(with_ledger), pod("sluice-tigerbeetle"), 3000, true),
            (pod("sluice-tigerbeetle"), pod("sluice-tigerbeetle"), 3000, true),
            (pod("sluice-seccomp"), pod("sluice-tigerbeetle"), 3000, false),
            (pod("sluice-tigerbeetle"), pod(with_ledger), 8080, false),
            (pod(with_ledger), outside, 443, false),
        ] {
            assert_eq!(reaches(rendered, &from, &to, port), expected, "{} to {}", from.labels, to.labels);
        }
    }
}

/// What the files for Envoy tell people to install can be installed, and lets in who will call.
#[test]
fn what_the_manifests_have_installed_lets_their_envoys_in() {
    let rendered = |file: &str| -> Rendered {
        let manifest = std::fs::read_to_string(root().join(file)).unwrap();
        let (_, line) = manifest.split_once("#   helm install sluice deploy/chart").expect(file);
        let lines = line.lines().scan(true, |goes_on, line| {
            let part = goes_on.then(|| line.trim_start_matches('#').trim_end_matches('\\'));
            *goes_on = line.ends_with('\\');
            part
        });
        let arguments: String = lines.collect();
        let script = format!("exec \"$HELM\" template sluice deploy/chart {arguments}");
        let mut command = Command::new("sh");
        command.current_dir(root()).args(["-c", &script]).env("HELM", tools().join("helm"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{file}: {}", text(output.stderr));
        let text = text(output.stdout);
        Rendered { name: "", documents: documents(&text), text }
    };
    for (file, namespace, to, port) in [
        ("envoy/istio/shared-envoyfilter.yaml", "istio-system", "sluice", 8081),
        ("envoy/istio/sidecar-envoyfilter.yaml", "chat", "sluice-hub", 8082),
        ("envoy/envoy-gateway/envoypatchpolicy.yaml", "envoy-gateway-system", "sluice", 8081),
        ("envoy/envoy-gateway/values.yaml", "envoy-gateway-system", "sluice-tigerbeetle", 3000),
    ] {
        let rendered = rendered(file);
        let labels = serde_json::json!({"sluice": "sidecar"});
        let to = Somebody { namespace: "sluice", labels: &rendered.pod(to)["metadata"]["labels"] };
        assert!(reaches(&rendered, &Somebody { namespace, labels: &labels }, &to, port), "{file}");
    }
}

/// A drained node takes one of a kind at a time: what is left of TigerBeetle is a quorum, and somebody is left to answer.
#[test]
fn what_is_left_of_a_disruption_is_enough() {
    for rendered in shapes() {
        for (name, pod) in rendered.pods() {
            let labels = &pod["metadata"]["labels"];
            let owner = rendered.documents.iter().find(|owner| owner["spec"]["template"] == *pod).unwrap();
            let Some(replicas) = owner["spec"]["replicas"].as_u64().filter(|replicas| *replicas > 1) else {
                continue;
            };
            let mut budgets = rendered.all("PodDisruptionBudget");
            let budgets = budgets.by_ref().filter(|budget| selects(&budget["spec"]["selector"], labels));
            let [budget] = budgets.collect::<Vec<_>>()[..] else {
                panic!("{}: {name} needs one", rendered.name)
            };
            let left = replicas - budget["spec"]["maxUnavailable"].as_u64().unwrap();
            let needed = if name.ends_with("tigerbeetle") { replicas / 2 + 1 } else { 1 };
            assert!(left >= needed, "{}: {left} of {replicas} {name}", rendered.name);
            let spread = &pod["spec"]["affinity"]["podAntiAffinity"];
            assert!(spread.to_string().contains("kubernetes.io/hostname"), "{}: {name}", rendered.name);
        }
    }
    let tigerbeetle = shape("service").pod("sluice-tigerbeetle");
    let apart =
        &tigerbeetle["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert!(selects(&apart[0]["labelSelector"], &tigerbeetle["metadata"]["labels"]), "never two on a node");
}

/// No pod has more than it needs: no root, nothing to write to, no privileges; io_uring only for those that start TigerBeetle or its
/// client; bounds on memory. What installs the profile is the exception: it is root on a directory of the node.
#[test]
fn pods_may_do_what_they_need_and_no_more() {
    for rendered in shapes() {
        assert!(!rendered.text.contains("Unconfined"), "{}", rendered.name);
        let sidecar = rendered.name.starts_with("hubs").then(|| patched(rendered));
        let pods = rendered.pods().chain(sidecar.as_ref().map(|pod| ("sidecar", pod)));
        for (name, pod) in pods {
            for container in containers(pod).filter(|container| container["name"] != "chat") {
                let (place, security) = (format!("{}: {name}", rendered.name), &container["securityContext"]);
                assert_eq!(security["readOnlyRootFilesystem"], true, "{place}");
                assert_eq!(security["allowPrivilegeEscalation"], false, "{place}");
                assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]), "{place}");
                let installs = container["name"] == "install";
                assert_eq!(security["runAsUser"], if installs { 0 } else { 65534 }, "{place}");
                let has_io_uring = name.ends_with("tigerbeetle")
                    || name.ends_with("hub")
                    || name == "sluice" && !rendered.name.starts_with("memory");
                let expected = if has_io_uring { "Localhost" } else { "RuntimeDefault" };
                assert_eq!(security["seccompProfile"]["type"], expected, "{place}");
                assert!(container["resources"]["limits"]["memory"].is_string(), "{place}");
                assert!(container["resources"]["requests"]["cpu"].is_string(), "{place}");
            }
            let token = &pod["spec"]["automountServiceAccountToken"];
            assert!(name == "sidecar" || *token == false, "{}: {name}", rendered.name);
        }
    }
}

/// Images by digest and with the secrets of their registry, and what the cluster wants on pods, in every pod; and where no cert-manager is,
/// nothing of it.
#[test]
fn what_holds_for_every_pod_is_in_every_pod() {
    let rendered = shape("hubs without cert-manager");
    let sidecar = patched(rendered);
    for (name, pod) in rendered.pods().chain([("sidecar", &sidecar)]) {
        assert_eq!(pod["spec"]["imagePullSecrets"], serde_json::json!([{"name": "mine"}]), "{name}");
        for container in containers(pod)
            .filter(|container| ["sluice", "tigerbeetle"].contains(&string(&container["name"])))
        {
            assert!(string(&container["image"]).ends_with(&format!("@{DIGEST}")), "{name}: {container}");
        }
    }
    assert!(!rendered.text.contains("cert-manager.io"));
    for (name, pod) in rendered.pods().chain(shape("service, all of it").pods()) {
        let (labels, annotations) = (&pod["metadata"]["labels"], &pod["metadata"]["annotations"]);
        assert_eq!((&labels["team"], &annotations["owner"]), (&"edge".into(), &"edge".into()), "{name}");
    }
    assert!(list(&containers(&sidecar).next().unwrap()["args"]).contains(&"--grpc=127.0.0.1:18081".into()));
}

/// An upgrade of Sluice doesn't restart TigerBeetle.
#[test]
fn nothing_of_sluice_s_version_is_in_tigerbeetle_s_pods() {
    let pod = shape("service").pod("sluice-tigerbeetle").to_string();
    assert!(
        !pod.contains(&format!("sluice-{}", env!("CARGO_PKG_VERSION")))
            && !pod.contains("app.kubernetes.io/version"),
        "{pod}"
    );
}

/// Restart and wait are told apart: no liveness probe depends on a ledger.
#[test]
fn only_what_a_restart_mends_is_restarted() {
    for rendered in shapes() {
        for (name, pod) in rendered.pods().filter(|(name, _)| !name.ends_with("seccomp")) {
            let container = &pod["spec"]["containers"][0];
            let [liveness, readiness] = ["livenessProbe", "readinessProbe"].map(|probe| &container[probe]);
            match name.ends_with("tigerbeetle") {
                true => assert!(liveness.is_null() && readiness["tcpSocket"].is_object(), "{name}"),
                false => {
                    assert_eq!(
                        (&liveness["httpGet"]["path"], &readiness["httpGet"]["path"]),
                        (&"/livez".into(), &"/readyz".into())
                    );
                }
            }
        }
    }
    let local = Rendered::of("{shape: service, settings: {ledger: {on_failure: local}}}");
    let readiness = &local.pod("sluice")["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"];
    assert_eq!(readiness, "/livez", "it answers without its ledger, and must be asked to");
}

/// Every Secret, ConfigMap, Service and account that is referred to is made, or was named by who installs it.
#[test]
fn what_is_referred_to_is_there() {
    for rendered in shapes() {
        let here = |kind: &str, name: &Value| rendered.find(kind, string(name)).is_some();
        let of_certificates: Vec<&Value> =
            rendered.all("Certificate").map(|made| &made["spec"]["secretName"]).collect();
        let brought = ["sluice-hub-tls", "sluice-sidecar-tls"].map(Value::from);
        let brought: &[Value] = if rendered.name == "hubs without cert-manager" { &brought } else { &[] };
        let named = [&["mine", "mine-too", "team-a"].map(Value::from)[..], brought].concat();
        let sidecar = rendered.name.starts_with("hubs").then(|| patched(rendered));
        for pod in rendered.pods().map(|(_, pod)| pod).chain(sidecar.as_ref()) {
            for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
                let projected = volume["projected"]["sources"].as_array().into_iter().flatten();
                for source in [volume].into_iter().chain(projected) {
                    let map = &source["configMap"]["name"];
                    assert!(
                        map.is_null() || named.contains(map) || here("ConfigMap", map),
                        "{}: {map}",
                        rendered.name
                    );
                }
                let secret = &volume["secret"]["secretName"];
                let there = secret.is_null() || named.contains(secret) || of_certificates.contains(&secret);
                assert!(there || here("Secret", secret), "{}: {secret}", rendered.name);
            }
            let account = &pod["spec"]["serviceAccountName"];
            assert!(account.is_null() || here("ServiceAccount", account), "{}: {account}", rendered.name);
        }
        for service in rendered.all("Service") {
            let selected = rendered.pods().any(|(owner, pod)| {
                // What the StatefulSet controller adds.
                let mut labels = pod["metadata"]["labels"].clone();
                labels["statefulset.kubernetes.io/pod-name"] = service["metadata"]["name"].clone();
                let ports = list(&service["spec"]["ports"]).iter().all(|port| {
                    containers(pod).any(|container| {
                        let open = container["ports"].as_array().into_iter().flatten();
                        open.into_iter().any(|open| open["name"] == port["targetPort"])
                    })
                });
                selects(&serde_json::json!({"matchLabels": service["spec"]["selector"]}), &labels)
                    && ports
                    && !owner.is_empty()
            });
            assert!(selected, "{}: {}", rendered.name, service["metadata"]["name"]);
        }
    }
}

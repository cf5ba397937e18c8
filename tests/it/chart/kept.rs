//! What an upgrade finds in the cluster and keeps: secrets, and how TigerBeetle was begun. Helm asks an API server for it, of which there
//! is here as much as it asks.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::json;

use super::*;

/// Objects of the namespace `sluice`, by their path: `secrets/sluice-admin`.
type There = &'static [(&'static str, &'static str)];

const KINDS: [(&str, &str); 3] =
    [("secrets", "Secret"), ("configmaps", "ConfigMap"), ("persistentvolumeclaims", "PersistentVolumeClaim")];

/// Serves these objects until the test ends.
fn api_server(there: There) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(&stream.unwrap(), there);
        }
    });
    address
}

fn answer(mut stream: &TcpStream, there: There) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let Some(first) = lines.next() else { return };
    lines.for_each(drop);
    let path = first.split([' ', '?']).nth(1).unwrap().to_owned();
    let object = path.strip_prefix("/api/v1/namespaces/sluice/").unwrap_or_default();
    let (status, body) = if path == "/api/v1" {
        let kinds = KINDS
            .map(|(name, kind)| json!({"name": name, "kind": kind, "namespaced": true, "verbs": ["get"]}));
        (
            "200 OK",
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": kinds}),
        )
    } else if let Some((_, data)) = there.iter().find(|(name, _)| *name == object) {
        let (_, kind) = KINDS.iter().find(|(kind, _)| object.starts_with(kind)).unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        ("200 OK", json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": object}, "data": data}))
    } else {
        (
            "404 Not Found",
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}),
        )
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close",
        body.len()
    );
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
}

/// `helm upgrade` as it would be in a cluster where this is there.
fn upgraded(there: There, yaml: &str) -> Result<Vec<Value>, String> {
    let dir = values(yaml);
    let mut command = helm(&["template", "sluice", "deploy/chart", "--namespace", "sluice", "--is-upgrade"]);
    command.arg("--dry-run=server").arg("--values").arg(dir.path().join("values.yaml"));
    command.env("HELM_KUBEAPISERVER", format!("http://{}", api_server(there))).env("KUBECONFIG", "/dev/null");
    let Output { status, stdout, stderr } = command.output().expect("Helm must run");
    if status.success() { Ok(documents(&text(stdout))) } else { Err(text(stderr)) }
}

/// All values of one key of the data of objects with this name, in whichever namespaces.
fn data<'d>(documents: &'d [Value], name: &str, key: &str) -> Vec<&'d str> {
    let named =
        documents.iter().filter(|found| found["metadata"]["name"] == name && found["data"][key].is_string());
    named.map(|found| string(&found["data"][key])).collect()
}

const HUBS: &str = "{shape: hubs, sidecars: {namespaces: [chat, shop]}}";

#[test]
fn secrets_are_kept_and_new_namespaces_get_the_same() {
    let there: There = &[
        ("secrets/sluice-leases", r#"{"secrets": "b2xk"}"#),
        ("secrets/sluice-admin", r#"{"token": "dG9rZW4="}"#),
    ];
    let kept = upgraded(there, HUBS).unwrap();
    assert_eq!(data(&kept, "sluice-leases", "secrets"), ["b2xk"; 3]);
    assert_eq!(data(&kept, "sluice-admin", "token"), ["dG9rZW4="; 3]);
    let made = upgraded(&[], HUBS).unwrap();
    let tokens = data(&made, "sluice-admin", "token");
    assert!(
        tokens.len() == 3 && tokens.iter().all(|token| token.len() > 60 && *token == tokens[0]),
        "{tokens:?}"
    );
    assert_ne!(tokens[0], data(&made, "sluice-leases", "secrets")[0]);
}

/// A first start is a first start, also when it comes with an upgrade, from `memory` for instance. Whatever comes later changes nothing about it,
/// and where some volumes are left of an earlier one nothing is formatted.
#[test]
fn data_files_are_made_once() {
    let until = |there| -> u64 {
        let rendered = upgraded(there, "{shape: service}").unwrap();
        data(&rendered, "sluice-tigerbeetle", "format-until")[0].parse().unwrap()
    };
    let now = ::sluice::clock::unix_ms() / 1000;
    let first = |until: u64| (now + 3000..now + 4200).contains(&until);
    assert!(first(until(&[])));
    let begun: There =
        &[("configmaps/sluice-tigerbeetle", r#"{"format-until": "17", "cluster": "1", "replicas": "3"}"#)];
    assert_eq!(until(begun), 17);
    let lost: There = &[
        ("persistentvolumeclaims/data-sluice-tigerbeetle-0", "{}"),
        ("persistentvolumeclaims/data-sluice-tigerbeetle-2", "{}"),
    ];
    assert_eq!(until(lost), 0, "the file of 1 was lost");
    let all: There = &[
        ("persistentvolumeclaims/data-sluice-tigerbeetle-0", "{}"),
        ("persistentvolumeclaims/data-sluice-tigerbeetle-1", "{}"),
        ("persistentvolumeclaims/data-sluice-tigerbeetle-2", "{}"),
    ];
    assert!(first(until(all)), "what an install that went wrong has left can be used");
}

#[test]
fn what_a_cluster_was_begun_with_can_t_be_changed() {
    let begun: There =
        &[("configmaps/sluice-tigerbeetle", r#"{"format-until": "17", "cluster": "1", "replicas": "3"}"#)];
    for (change, said) in [
        ("replicas: 5", "tigerbeetle.replicas is 3 and can't be changed to 5"),
        ("replicas: 1", "tigerbeetle.replicas is 3 and can't be changed to 1"),
        ("cluster: 2", "tigerbeetle.cluster is 1 and can't be changed to 2"),
    ] {
        let error = upgraded(begun, &format!("{{shape: service, tigerbeetle: {{{change}}}}}")).unwrap_err();
        assert!(error.contains(said), "{change}: {error}");
    }
}

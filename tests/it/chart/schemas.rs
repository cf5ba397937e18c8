//! Other projects' schemas, in the form that kubeconform reads: of Kubernetes' OpenAPI documents and of CustomResourceDefinitions, a JSON
//! schema for each kind. What a schema doesn't list is a mistake, as it would be for `kubectl apply --validate=strict`.

use serde_json::{Map, json};

use super::*;

/// A directory with `<group>/<kind>_<version>.json` for all kinds that are known.
pub(super) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIRECTORY.get_or_init(write).path()
}

fn write() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(tools().join("schemas")).expect("schemas must be there: run `make test`") {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let schemas = match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") => documents(&text).iter().flat_map(of_definition).collect(),
            _ => of_openapi(&serde_json::from_str(&text).unwrap()),
        };
        for (name, schema) in schemas {
            let file = dir.path().join(name.to_lowercase());
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, schema.to_string()).unwrap();
            count += 1;
        }
    }
    assert!(count > 40, "{count} kinds");
    dir
}

/// As kubeconform asks: what comes first in apiVersion is the group, also where it is the version.
fn named(group: &str, kind: &str, version: &str) -> String {
    let group = if group.is_empty() { version } else { group };
    format!("{group}/{kind}_{version}.json")
}

/// Each version of a CustomResourceDefinition.
fn of_definition(definition: &Value) -> Vec<(String, Value)> {
    let spec = &definition["spec"];
    let versions = spec["versions"].as_array().into_iter().flatten();
    let schema = |version: &Value| {
        let name = named(string(&spec["group"]), string(&spec["names"]["kind"]), string(&version["name"]));
        let mut schema = strict(&version["schema"]["openAPIV3Schema"]);
        for common in ["apiVersion", "kind", "metadata"] {
            schema["properties"].as_object_mut().unwrap().entry(common).or_insert(json!({}));
        }
        schema["$schema"] = DIALECT.into();
        (name, schema)
    };
    versions.map(schema).collect()
}

/// Each kind of an OpenAPI document.
fn of_openapi(document: &Value) -> Vec<(String, Value)> {
    let Some(components) = document["components"]["schemas"].as_object() else { return Vec::new() };
    let components: Map<String, Value> =
        components.iter().map(|(name, schema)| (name.clone(), strict(schema))).collect();
    let mut schemas = Vec::new();
    for (name, schema) in &components {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
        for kind in kinds.filter(|kind| KINDS.contains(&string(&kind["kind"]))) {
            let file = named(string(&kind["group"]), string(&kind["kind"]), string(&kind["version"]));
            let reference = format!("#/components/schemas/{name}");
            schemas.push((
                file,
                json!({"$schema": DIALECT, "$ref": reference, "components": {"schemas": components}}),
            ));
        }
    }
    schemas
}

/// Those of Kubernetes' own kinds that we use. Each has all that it refers to in its file.
const KINDS: [&str; 9] = [
    "ConfigMap",
    "DaemonSet",
    "Deployment",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Secret",
    "Service",
    "ServiceAccount",
    "StatefulSet",
];

/// OpenAPI's is the fourth, in which bounds are excluded by `true`.
const DIALECT: &str = "http://json-schema.org/draft-04/schema#";

/// With every object closed that lists its fields, and in the words of JSON schema.
fn strict(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        return match schema {
            Value::Array(items) => items.iter().map(strict).collect(),
            other => other.clone(),
        };
    };
    let mut closed: Map<String, Value> = fields
        .iter()
        .map(|(name, value)| {
            (name.clone(), if name == "default" || name == "enum" { value.clone() } else { strict(value) })
        })
        .collect();
    let is_open = fields.contains_key("additionalProperties")
        || fields.contains_key("x-kubernetes-preserve-unknown-fields");
    if fields.get("properties").is_some_and(Value::is_object) && fields.contains_key("type") && !is_open {
        closed.insert("additionalProperties".to_owned(), false.into());
    }
    if fields.get("nullable") == Some(&true.into()) {
        closed.insert("type".to_owned(), json!([fields["type"], "null"]));
    }
    Value::Object(closed)
}

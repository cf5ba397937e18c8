//! The dynamic metadata of an answer: where a lease is to be found, and, if the settings say so, what envoyproxy/ratelimit tells
//! there: what was asked, which quotas are over, and what the files say about the limits that passed.

use std::collections::HashMap;

use super::pb;
use crate::limit::COMPLETION_ENTRY;
use crate::service::check::ToldDescriptor;

type Fields = HashMap<String, pb::Value>;

/// `None` if there is nothing to tell.
pub(crate) fn of(
    lease: Option<String>,
    told: Option<&[ToldDescriptor]>,
    message: &pb::RateLimitRequest,
) -> Option<pb::Struct> {
    let mut fields = Fields::new();
    if let Some(told) = told {
        tell(&mut fields, told, message);
    }
    // A string, or Envoy would take it as absent.
    fields.extend(lease.map(|lease| (COMPLETION_ENTRY.to_owned(), text(lease))));
    (!fields.is_empty()).then_some(pb::Struct { fields })
}

fn tell(fields: &mut Fields, told: &[ToldDescriptor], message: &pb::RateLimitRequest) {
    let mut set = |name: &str, value| fields.insert(name.to_owned(), value);
    set("domain", text(message.domain.clone()));
    set("descriptors", list(message.descriptors.iter().map(descriptor)));
    if message.hits_addend != 0 {
        set("hitsAddend", number(f64::from(message.hits_addend)));
    }
    set("quotaModeEnabled", kind(pb::value::Kind::BoolValue(told.iter().any(|told| told.is_quota))));
    let over = told.iter().enumerate().filter(|(_, told)| told.is_quota && told.is_over);
    let over: Vec<pb::Value> = over.map(|(index, _)| number(index as f64)).collect();
    if !over.is_empty() {
        set("quotaModeViolations", list(over.into_iter()));
    }
    let mut merged = serde_json::Map::new();
    for metadata in told.iter().filter(|told| !told.is_over).filter_map(|told| told.metadata.as_ref()) {
        merge(&mut merged, metadata);
    }
    if !merged.is_empty() {
        set("metadata", object(&merged));
    }
}

/// What is there stays; mappings are merged, as deep as they go.
fn merge(
    into: &mut serde_json::Map<String, serde_json::Value>,
    from: &serde_json::Map<String, serde_json::Value>,
) {
    for (key, new) in from {
        match (into.get_mut(key), new) {
            (None, _) => drop(into.insert(key.clone(), new.clone())),
            (Some(serde_json::Value::Object(there)), serde_json::Value::Object(new)) => merge(there, new),
            (Some(_), _) => {}
        }
    }
}

fn descriptor(descriptor: &pb::RateLimitDescriptor) -> pb::Value {
    let mut fields = Fields::new();
    let entries = descriptor.entries.iter().map(|entry| text(format!("{}={}", entry.key, entry.value)));
    fields.insert("entries".to_owned(), list(entries));
    if let Some(limit) = &descriptor.limit {
        // As Go prints the message.
        let unit = pb::Unit::try_from(limit.unit).map_or("", |unit| unit.as_str_name());
        let printed = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        fields.insert("limit".to_owned(), text(printed));
    }
    if let Some(hits) = &descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), number(hits.value as f64));
    }
    kind(pb::value::Kind::StructValue(pb::Struct { fields }))
}

fn of_json(json: &serde_json::Value) -> pb::Value {
    match json {
        serde_json::Value::Null => kind(pb::value::Kind::NullValue(0)),
        serde_json::Value::Bool(flag) => kind(pb::value::Kind::BoolValue(*flag)),
        serde_json::Value::Number(value) => number(value.as_f64().unwrap_or_default()),
        serde_json::Value::String(value) => text(value.clone()),
        serde_json::Value::Array(items) => list(items.iter().map(of_json)),
        serde_json::Value::Object(map) => object(map),
    }
}

fn object(map: &serde_json::Map<String, serde_json::Value>) -> pb::Value {
    let fields = map.iter().map(|(key, value)| (key.clone(), of_json(value))).collect();
    kind(pb::value::Kind::StructValue(pb::Struct { fields }))
}

fn kind(kind: pb::value::Kind) -> pb::Value {
    pb::Value { kind: Some(kind) }
}

fn text(text: String) -> pb::Value {
    kind(pb::value::Kind::StringValue(text))
}

fn number(number: f64) -> pb::Value {
    kind(pb::value::Kind::NumberValue(number))
}

fn list(values: impl Iterator<Item = pb::Value>) -> pb::Value {
    kind(pb::value::Kind::ListValue(pb::ListValue { values: values.collect() }))
}

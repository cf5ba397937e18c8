//! The resources of an xDS answer as the configuration they stand for: each becomes what a limits file would say.
//!
//! Pure. What is wrong inside a resource is found by whoever reads limits files; here only what is no RateLimitConfig at all.

use prost::Message;
use serde_json::{Map, Value, json};

use super::pb::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use crate::config::{Content, Problem, Resource};
use crate::protos::google::protobuf::value::Kind;
use crate::protos::google::protobuf::{Any, Struct, Value as PbValue};

pub(crate) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// In front of the name of a resource, where others have the path of a file.
const PREFIX: &str = "xds:";

/// All that an answer says. Resources come in no fixed order, and are put in one, so that equal answers are equal.
pub(super) fn content(resources: &[Any]) -> Content {
    let mut content = Content::default();
    for (index, any) in resources.iter().enumerate() {
        match decode(any) {
            Ok(config) => content.resources.push(resource(&config)),
            Err(why) => {
                content.problems.push(Problem::of_file(&format!("{PREFIX}resources[{index}]"), why));
            }
        }
    }
    content.resources.sort_by(|a, b| a.name.cmp(&b.name));
    content
}

fn decode(any: &Any) -> Result<RateLimitConfig, String> {
    if any.type_url != TYPE_URL {
        return Err(format!("is a {}, not a {TYPE_URL}", any.type_url));
    }
    RateLimitConfig::decode(any.value.as_slice()).map_err(|error| format!("can't be decoded: {error}"))
}

fn resource(config: &RateLimitConfig) -> Resource {
    let name = if config.name.is_empty() { &config.domain } else { &config.name };
    let descriptors: Vec<Value> = config.descriptors.iter().map(descriptor).collect();
    let config = json!({"domain": config.domain, "descriptors": descriptors});
    Resource { name: format!("{PREFIX}{name}"), config }
}

/// As deep as the message, which its decoder has bounded.
fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let mut fields = Map::new();
    fields.insert("key".to_owned(), descriptor.key.as_str().into());
    if !descriptor.value.is_empty() {
        fields.insert("value".to_owned(), descriptor.value.as_str().into());
    }
    let flags = [
        ("shadow_mode", descriptor.shadow_mode),
        ("detailed_metric", descriptor.detailed_metric),
        ("quota_mode", descriptor.quota_mode),
    ];
    for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
        fields.insert(name.to_owned(), true.into());
    }
    if let Some(policy) = &descriptor.rate_limit {
        fields.insert("rate_limit".to_owned(), rate_limit(policy));
    }
    if let Some(metadata) = &descriptor.metadata {
        fields.insert("metadata".to_owned(), object(metadata));
    }
    if !descriptor.descriptors.is_empty() {
        let below = descriptor.descriptors.iter().map(self::descriptor).collect();
        fields.insert("descriptors".to_owned(), Value::Array(below));
    }
    Value::Object(fields)
}

/// Envoy Gateway tells of what a stream has used in a second call, after the fact: so every limit is charged always.
fn rate_limit(policy: &RateLimitPolicy) -> Value {
    let mut fields = Map::new();
    let replaces: Vec<Value> = policy.replaces.iter().map(|it| json!({"name": it.name})).collect();
    fields.insert("replaces".to_owned(), replaces.into());
    if !policy.name.is_empty() {
        fields.insert("name".to_owned(), policy.name.as_str().into());
    }
    let has_unit = policy.unit != RateLimitUnit::Unknown as i32;
    if policy.unlimited {
        fields.insert("unlimited".to_owned(), true.into());
    } else {
        fields.insert("requests_per_unit".to_owned(), policy.requests_per_unit.into());
        fields.insert("charge".to_owned(), "always".into());
    }
    if has_unit || !policy.unlimited {
        fields.insert("unit".to_owned(), unit(policy.unit).into());
    }
    Value::Object(fields)
}

fn unit(number: i32) -> String {
    match RateLimitUnit::try_from(number) {
        Ok(unit) => unit.as_str_name().to_ascii_lowercase(),
        Err(_) => number.to_string(),
    }
}

fn object(fields: &Struct) -> Value {
    Value::Object(fields.fields.iter().map(|(key, item)| (key.clone(), value(item))).collect())
}

fn value(value: &PbValue) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(self::value).collect()),
        Some(Kind::StructValue(fields)) => object(fields),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pb::RateLimitReplace;
    use super::*;
    use crate::config::load_hot;

    fn any(config: &RateLimitConfig) -> Any {
        Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
    }

    fn problems(resources: &[Any]) -> Vec<String> {
        let content = content(resources);
        match load_hot(&[&content], None) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    fn limit(unit: i32) -> RateLimitPolicy {
        RateLimitPolicy { unit, requests_per_unit: 5, ..Default::default() }
    }

    fn one(key: &str, value: &str, rate_limit: Option<RateLimitPolicy>) -> RateLimitDescriptor {
        RateLimitDescriptor { key: key.into(), value: value.into(), rate_limit, ..Default::default() }
    }

    fn config(name: &str, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
        RateLimitConfig { name: name.into(), domain: domain.into(), descriptors }
    }

    #[test]
    fn every_field_arrives() {
        let number = PbValue { kind: Some(Kind::NumberValue(3.0)) };
        let deepest = RateLimitDescriptor {
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
            metadata: Some(Struct { fields: [("weight".to_owned(), number)].into() }),
            ..one("b", "", Some(RateLimitPolicy { name: "n".into(), ..limit(7) }))
        };
        let replaces = vec![RateLimitReplace { name: "n".into() }];
        let unlimited = RateLimitPolicy { unlimited: true, replaces, ..Default::default() };
        let top = RateLimitDescriptor { descriptors: vec![deepest], ..one("a", "x", None) };
        let resource = resource(&config("", "d/e", vec![top, one("a", "y", Some(unlimited))]));
        assert_eq!(resource.name, "xds:d/e");
        assert_eq!(
            resource.config,
            json!({"domain": "d/e", "descriptors": [
                {"key": "a", "value": "x", "descriptors": [{
                    "key": "b", "shadow_mode": true, "detailed_metric": true, "quota_mode": true,
                    "metadata": {"weight": 3.0},
                    "rate_limit": {"name": "n", "unit": "week", "requests_per_unit": 5, "charge": "always", "replaces": []},
                }]},
                {"key": "a", "value": "y", "rate_limit": {"unlimited": true, "replaces": [{"name": "n"}]}},
            ]})
        );
        assert_eq!(problems(&[any(&config("r", "d", vec![one("a", "", Some(limit(1)))]))]), [""; 0]);
    }

    #[test]
    fn every_problem_is_named_with_its_resource() {
        let broken = Any { type_url: TYPE_URL.to_owned(), value: vec![0xff] };
        let foreign = Any { type_url: "type.googleapis.com/a.B".to_owned(), value: Vec::new() };
        let twice = vec![one("k", "v", Some(limit(1))), one("k", "v", None), one("", "", Some(limit(0)))];
        let unlimited = RateLimitPolicy { unlimited: true, ..limit(9) };
        let unknown = any(&config("second", "d", vec![one("k", "", Some(unlimited))]));
        assert_eq!(
            problems(&[broken, foreign, any(&config("first", "d", twice)), unknown]),
            [
                "xds:first: descriptors[1]: has the key and value of another descriptor before it",
                "xds:first: descriptors[2].key: must not be empty",
                "xds:first: descriptors[2].rate_limit.unit: must be one of second, minute, hour, day, week, month, year, not \
                 `unknown`",
                "xds:resources[0]: can't be decoded: failed to decode Protobuf message: invalid varint",
                "xds:resources[1]: is a type.googleapis.com/a.B, not a \
                 type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig",
                "xds:second: descriptors[0].rate_limit.unit: has no meaning beside `unlimited: true`; leave one of them out",
                "xds:second: descriptors[0].rate_limit.unit: must be one of second, minute, hour, day, week, month, year, not \
                 `9`",
                "xds:second: domain: is also the domain of xds:first; a domain has one place",
            ]
        );
    }

    #[test]
    fn an_empty_answer_is_an_empty_configuration() {
        assert_eq!(content(&[]), Content::default());
        assert_eq!(problems(&[]), [""; 0]);
    }
}

//! proto/ states names and numbers that the Rust types of `envoy-types` must agree with, in both directions.

use std::sync::LazyLock;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MapKey, MessageDescriptor, ReflectMessage, Value};
use sluice::api::pb;

/// One pool: messages of two are never equal.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| DescriptorPool::decode(pb::DESCRIPTORS).unwrap());

fn descriptor(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(&format!("envoy.service.ratelimit.v3.{name}")).unwrap()
}

/// Panics at a field that proto/ doesn't know.
fn all_known(message: &DynamicMessage) {
    let unknown: Vec<_> = message.unknown_fields().collect();
    assert!(unknown.is_empty(), "{}: {unknown:?}", message.descriptor().full_name());
    for (_, value) in message.fields() {
        match value {
            Value::Message(inner) => all_known(inner),
            Value::List(items) => items.iter().filter_map(Value::as_message).for_each(all_known),
            Value::Map(items) => items.values().filter_map(Value::as_message).for_each(all_known),
            _ => {}
        }
    }
}

/// From Rust types to proto/ and back.
fn agrees<M: Message + Default + PartialEq + std::fmt::Debug>(name: &str, message: &M) {
    let dynamic = DynamicMessage::decode(descriptor(name), message.encode_to_vec().as_slice()).unwrap();
    all_known(&dynamic);
    assert_eq!(&M::decode(dynamic.encode_to_vec().as_slice()).unwrap(), message);
}

/// Every field of a message, set to something that is not its default.
fn filled(descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        // A Struct may hold Structs.
        if depth > 4 || (field.containing_oneof().is_some() && field.number() != 3) {
            continue;
        }
        let one = || match field.kind() {
            Kind::String => Value::String(field.name().to_owned()),
            Kind::Bytes => Value::Bytes(field.name().to_owned().into()),
            Kind::Bool => Value::Bool(true),
            Kind::Uint32 => Value::U32(field.number()),
            Kind::Uint64 => Value::U64(u64::from(field.number()) << 40),
            Kind::Int32 => Value::I32(7),
            Kind::Int64 => Value::I64(1 << 40),
            Kind::Double => Value::F64(1.5),
            Kind::Enum(kind) => Value::EnumNumber(kind.values().last().unwrap().number()),
            Kind::Message(kind) => Value::Message(filled(&kind, depth + 1)),
            other => panic!("{other:?}: teach this test"),
        };
        let value = if field.is_map() {
            let Kind::Message(entry) = field.kind() else { panic!("a map has entries") };
            let Kind::Message(kind) = entry.map_entry_value_field().kind() else { panic!("of messages") };
            let inner = Value::Message(filled(&kind, depth + 1));
            Value::Map([(MapKey::String("key".to_owned()), inner)].into())
        } else if field.is_list() {
            Value::List(vec![one(), one()])
        } else {
            one()
        };
        message.set_field(&field, value);
    }
    message
}

/// From proto/ to Rust types and back: nothing is lost on the way.
fn survives<M: Message + Default>(name: &str) {
    let message = filled(&descriptor(name), 0);
    let through = M::decode(message.encode_to_vec().as_slice()).unwrap().encode_to_vec();
    assert_eq!(DynamicMessage::decode(descriptor(name), through.as_slice()).unwrap(), message);
}

#[test]
fn requests() {
    let descriptor = pb::RateLimitDescriptor {
        entries: vec![Entry { key: "k".into(), value: "v".into() }; 2],
        limit: Some(RateLimitOverride { requests_per_unit: 5, unit: 6 }),
        hits_addend: Some(pb::UInt64Value { value: u64::MAX }),
        is_negative_hits: true,
    };
    let request =
        pb::RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor; 2], hits_addend: u32::MAX };
    agrees("RateLimitRequest", &request);
    survives::<pb::RateLimitRequest>("RateLimitRequest");
}

#[test]
fn responses() {
    let header = pb::HeaderValue { key: "k".into(), value: "v".into(), raw_value: vec![1, 2] };
    let status = pb::DescriptorStatus {
        code: pb::Code::OverLimit as i32,
        current_limit: Some(pb::RateLimit {
            name: "n".into(),
            requests_per_unit: 5,
            unit: pb::Unit::Week as i32,
        }),
        limit_remaining: 3,
        duration_until_reset: Some(pb::Duration { seconds: 4, nanos: 5 }),
        ..Default::default()
    };
    let text = pb::Value { kind: Some(pb::value::Kind::StringValue("token".into())) };
    let response = pb::RateLimitResponse {
        overall_code: pb::Code::OverLimit as i32,
        statuses: vec![status; 2],
        response_headers_to_add: vec![header.clone(); 2],
        request_headers_to_add: vec![header],
        raw_body: b"body".to_vec(),
        dynamic_metadata: Some(pb::Struct { fields: [("lease_id".to_owned(), text)].into() }),
        ..Default::default()
    };
    agrees("RateLimitResponse", &response);
    survives::<pb::RateLimitResponse>("RateLimitResponse");
}

#[test]
fn units_have_the_numbers_that_envoy_sends() {
    for name in ["envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit", "envoy.type.v3.RateLimitUnit"]
    {
        let unit = POOL.get_enum_by_name(name).unwrap();
        for value in unit.values() {
            let ours = pb::Unit::try_from(value.number()).unwrap();
            assert_eq!(ours.as_str_name(), value.name(), "{name}");
        }
    }
}

//! `POST /json`: ShouldRateLimit for people and scripts, in proto3 JSON.

use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};

use super::error::ApiError;
use super::traced::{JSON, traced};
use crate::api::error::{INVALID, WireError};
use crate::api::{check, delivery, pb};
use crate::service::Service;

struct Descriptors {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

static DESCRIPTORS: LazyLock<Descriptors> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(pb::DESCRIPTORS)
        .expect("the descriptors that build.rs wrote must be readable");
    let message = |name: &str| {
        let name = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&name).expect("proto/ must have the message")
    };
    Descriptors { request: message("RateLimitRequest"), response: message("RateLimitResponse") }
});

pub(crate) async fn post(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    traced(&service, &JSON, &headers, answer(&service, body)).await
}

async fn answer(service: &Arc<Service>, body: Result<Bytes, BytesRejection>) -> Result<Response, ApiError> {
    let request = parse(&body?)?;
    let mut parsed = check::parse(&request, None)?;
    let checked = service.check(&mut parsed).await.map_err(WireError::from)?;
    let (response, unsent) = check::response(checked, &request, &service.tells);
    let status = match response.overall_code() {
        pb::Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    };
    let body =
        print(&response).map_err(|error| ApiError::internal("the answer could not be written", &error))?;
    let mut answer = (status, headers(&response), body).into_response();
    delivery::carry(answer.extensions_mut(), unsent);
    Ok(answer)
}

pub(super) fn parse(body: &[u8]) -> Result<pb::RateLimitRequest, ApiError> {
    let bad = |error: &dyn std::fmt::Display| {
        ApiError::bad_request(INVALID, format!("not a RateLimitRequest in proto3 JSON: {error}"))
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let message = DynamicMessage::deserialize(DESCRIPTORS.request.clone(), &mut json).map_err(|e| bad(&e))?;
    json.end().map_err(|error| bad(&error))?;
    pb::RateLimitRequest::decode(message.encode_to_vec().as_slice()).map_err(|error| bad(&error))
}

fn print(response: &pb::RateLimitResponse) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let bytes = response.encode_to_vec();
    let message = DynamicMessage::decode(DESCRIPTORS.response.clone(), bytes.as_slice())?;
    Ok(serde_json::to_vec(&message)?)
}

/// The answer for a person's scripts: fields are named as in the .proto, and those that are zero are there.
pub(crate) fn in_proto_names(response: &pb::RateLimitResponse) -> Option<serde_json::Value> {
    let bytes = response.encode_to_vec();
    let message = DynamicMessage::decode(DESCRIPTORS.response.clone(), bytes.as_slice()).ok()?;
    let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false);
    message.serialize_with_options(serde_json::value::Serializer, &options).ok()
}

/// What Envoy would add to the response.
fn headers(response: &pb::RateLimitResponse) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for added in &response.response_headers_to_add {
        let name = HeaderName::from_bytes(added.key.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(added.value.as_bytes())) {
            headers.insert(name, value);
        }
    }
    headers
}

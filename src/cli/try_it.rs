//! `sluice try`: one call to a running server, printed as it came.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::{DENIED, TryArgs, complain, connect, print_json};
use crate::admin::json::in_proto_names;
use crate::api::pb;
use crate::limit::COMPLETION_ENTRY;
use crate::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

/// Nobody waits longer for one answer.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn run(args: &TryArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime");
    match runtime.and_then(|runtime| runtime.block_on(ask(args))) {
        Ok(response) => {
            if args.json {
                print_json(&as_json(&response));
            } else {
                print(&response);
                if is_unmatched(args, &response) {
                    println!("no limit matches");
                }
            }
            if response.overall_code() == pb::Code::OverLimit {
                ExitCode::from(DENIED)
            } else {
                ExitCode::SUCCESS
            }
        }
        Err(error) => complain(&error),
    }
}

/// Whether no limit applies: the status says neither a limit nor that there is none. A completion asks for none.
fn is_unmatched(args: &TryArgs, response: &pb::RateLimitResponse) -> bool {
    let is_bare = |status: &pb::DescriptorStatus| {
        status.code() == pb::Code::Ok && status.current_limit.is_none() && status.limit_remaining == 0
    };
    let is_completion = args.request.entries.iter().any(|(key, _)| key == COMPLETION_ENTRY);
    !is_completion && response.statuses.iter().all(is_bare)
}

async fn ask(args: &TryArgs) -> anyhow::Result<pb::RateLimitResponse> {
    let channel = connect::grpc(&args.grpc, &args.tls).await?;
    let mut request =
        tonic::Request::new(request(&args.request.domain, &args.request.entries, args.request.hits));
    request.set_timeout(TIMEOUT);
    let answer = RateLimitServiceClient::new(channel).should_rate_limit(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| connect::failure(&status, &args.tls))
}

/// A request of one descriptor.
pub(super) fn request(domain: &str, entries: &[(String, String)], hits: u64) -> pb::RateLimitRequest {
    let entries =
        entries.iter().map(|(key, value)| Entry { key: key.clone(), value: value.clone() }).collect();
    let hits_addend = Some(pb::UInt64Value { value: hits });
    let descriptor = pb::RateLimitDescriptor { entries, hits_addend, ..Default::default() };
    pb::RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// The statuses as on the wire, the headers by their names.
fn as_json(response: &pb::RateLimitResponse) -> Value {
    let headers = response.response_headers_to_add.iter();
    let headers: Map<String, Value> =
        headers.map(|header| (header.key.clone(), Value::from(header.value.as_str()))).collect();
    let statuses = in_proto_names(response).map(|mut json| json["statuses"].take()).unwrap_or_default();
    json!({"overall_code": response.overall_code().as_str_name(), "statuses": statuses, "headers": headers})
}

fn print(response: &pb::RateLimitResponse) {
    println!("overall_code: {}", response.overall_code().as_str_name());
    for (index, status) in response.statuses.iter().enumerate() {
        print!("statuses[{index}]: {}", status.code().as_str_name());
        if let Some(limit) = &status.current_limit {
            print!(" limit={}/{}", limit.requests_per_unit, limit.unit().as_str_name());
            if !limit.name.is_empty() {
                print!(" name={}", limit.name);
            }
            print!(" remaining={}", status.limit_remaining);
        }
        if let Some(reset) = &status.duration_until_reset {
            print!(" reset={}.{:03}s", reset.seconds, reset.nanos / 1_000_000);
        }
        println!();
    }
    for header in &response.response_headers_to_add {
        println!("{}: {}", header.key, header.value);
    }
    let metadata = response.dynamic_metadata.iter().flat_map(|metadata| &metadata.fields);
    for (key, value) in metadata {
        if let Some(pb::value::Kind::StringValue(text)) = &value.kind {
            println!("dynamic_metadata.{key}: {text}");
        }
    }
}

//! The variables that OpenTelemetry's programs have, as far as they are about traces by OTLP. They win over `sluice.yaml`.
//!
//! The other variables are read only if there is an endpoint, so that a mistake in what is meant for other programs stops nobody.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::env::{Bad, Env};
use crate::tls::{ClientFiles, PairFiles};
use crate::trace::options::{Endpoint, Otlp, Protocol, Sampler, Share};

/// Every variable that is looked at.
pub(super) const NAMES: [&str; 20] = [
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
];

pub(super) fn put_over(otlp: &mut Option<Otlp>, env: &Env) -> Result<(), Bad> {
    let said = either(env, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT");
    if otlp.is_none() && said.is_none() {
        return Ok(());
    }
    if is_off(env)? {
        *otlp = None;
        return Ok(());
    }
    if let Some(text) = env.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
        let endpoint = Endpoint::exact(text);
        aim(otlp, endpoint.map_err(|why| Bad::new("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", why))?);
    } else if let Some(endpoint) = env.parsed::<Endpoint>("OTEL_EXPORTER_OTLP_ENDPOINT")? {
        aim(otlp, endpoint);
    }
    otlp.as_mut().map_or(Ok(()), |otlp| detail(otlp, env))
}

/// Whether traces are turned off.
pub(super) fn is_off(env: &Env) -> Result<bool, Bad> {
    let exporter = env.text("OTEL_TRACES_EXPORTER");
    Ok(env.flag("OTEL_SDK_DISABLED", false)? || exporter == Some("none"))
}

/// What the file says beside the endpoint stays.
fn aim(otlp: &mut Option<Otlp>, endpoint: Endpoint) {
    match otlp {
        Some(otlp) => otlp.endpoint = endpoint,
        None => *otlp = Some(Otlp::to(endpoint)),
    }
}

/// A variable for traces, or else the one for everything.
fn either<'e>(env: &'e Env, traces: &'static str, all: &'static str) -> Option<(&'static str, &'e str)> {
    [traces, all].into_iter().find_map(|name| Some((name, env.text(name)?)))
}

fn detail(otlp: &mut Otlp, env: &Env) -> Result<(), Bad> {
    if let Some((name, text)) =
        either(env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    {
        let protocol = text.parse::<Protocol>().map_err(|why| Bad::new(name, why))?;
        otlp.protocol = Some(protocol);
    }
    if let Some((name, text)) = either(env, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    {
        let wrong = || Bad::new(name, "must be a whole number of milliseconds, from 1 to 600000");
        let ms = text.parse().ok().filter(|ms| (1..=600_000).contains(ms)).ok_or_else(wrong)?;
        otlp.timeout = Duration::from_millis(ms);
    }
    if let Some((name, text)) = either(env, "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
    {
        otlp.headers = headers(text).ok_or_else(|| {
            // What was written is never repeated in a complaint: it may be a secret.
            Bad::new(name, "must be headers, as in api-key=secret,tenant=one, with %20 for what is special")
        })?;
    }
    tls(otlp, env)?;
    sampler(&mut otlp.sampler, env)?;
    if let Some(text) = env.text("OTEL_RESOURCE_ATTRIBUTES") {
        let wrong = || Bad::new("OTEL_RESOURCE_ATTRIBUTES", "must be as in key=value,another=one");
        for (name, value) in pairs(text).ok_or_else(wrong)? {
            otlp.describe(&name, &value);
        }
    }
    if let Some(name) = env.text("OTEL_SERVICE_NAME") {
        otlp.describe("service.name", name);
    }
    Ok(())
}

fn tls(otlp: &mut Otlp, env: &Env) -> Result<(), Bad> {
    let file = |traces, all| either(env, traces, all).map(|(_, path)| PathBuf::from(path));
    let ca = file("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE");
    let cert = file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE");
    let key = file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY");
    let pair = match (cert, key) {
        (Some(cert_file), Some(key_file)) => Some(PairFiles { cert_file, key_file }),
        (None, None) => None,
        (Some(_), None) => return Err(Bad::new("OTEL_EXPORTER_OTLP_CLIENT_KEY", NEEDS_BOTH)),
        (None, Some(_)) => return Err(Bad::new("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", NEEDS_BOTH)),
    };
    match (ca, pair) {
        (None, None) => {}
        (Some(ca_file), pair) => otlp.tls = Some(ClientFiles { ca_file, pair, server_name: None }),
        (None, Some(_)) => {
            let why = "is needed where there is a client certificate: the authorities of the collector's";
            return Err(Bad::new("OTEL_EXPORTER_OTLP_CERTIFICATE", why));
        }
    }
    Ok(())
}

const NEEDS_BOTH: &str = "is missing: a certificate and its key are needed together";

fn sampler(sampler: &mut Sampler, env: &Env) -> Result<(), Bad> {
    let Some(name) = env.text("OTEL_TRACES_SAMPLER") else { return Ok(()) };
    let share = env.parsed::<Share>("OTEL_TRACES_SAMPLER_ARG");
    let (heeds_parent, share) = match name {
        "always_on" => (false, Share::ALL),
        "always_off" => (false, Share::NOTHING),
        "traceidratio" => (false, share?.unwrap_or(Share::ALL)),
        "parentbased_always_on" => (true, Share::ALL),
        "parentbased_always_off" => (true, Share::NOTHING),
        "parentbased_traceidratio" => (true, share?.unwrap_or(Share::ALL)),
        _ => {
            let why = "must be always_on, always_off, traceidratio, or one of these after parentbased_";
            return Err(Bad::new("OTEL_TRACES_SAMPLER", format!("{why}, not `{name}`")));
        }
    };
    *sampler = Sampler { heeds_parent, share };
    Ok(())
}

fn headers(text: &str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let header = |(name, value): (String, String)| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    };
    pairs(text)?.into_iter().map(header).collect()
}

/// `key=value,key=value`, with %-escapes in the values.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let pair = |member: &str| {
        let (name, value) = member.split_once('=')?;
        Some((name.trim().to_owned(), unescaped(value.trim())?)).filter(|(name, _)| !name.is_empty())
    };
    members.map(pair).collect()
}

fn unescaped(text: &str) -> Option<String> {
    let (first, rest) = text.split_once('%').unwrap_or((text, ""));
    let mut bytes = first.as_bytes().to_vec();
    for part in rest.split('%').filter(|_| first.len() < text.len()) {
        let (digits, plain) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(plain.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Otlp>, String> {
        let (env, mut otlp): (Env, _) = (variables.iter().copied().collect(), None);
        put_over(&mut otlp, &env).map(|()| otlp).map_err(|bad| bad.to_string())
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    #[test]
    fn without_an_endpoint_there_are_no_traces_and_no_complaints() {
        assert_eq!(read(&[("OTEL_TRACES_SAMPLER", "nonsense"), ("OTEL_SDK_DISABLED", "nonsense")]), Ok(None));
        assert_eq!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(read(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        let default = Otlp::to("http://collector:4317".parse().unwrap());
        assert_eq!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")]), Ok(Some(default)));
    }

    #[test]
    fn a_variable_for_traces_wins_over_the_one_for_all() {
        let otlp = read(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other:9/x"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "no=no"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Basic%20eDp5, x-tenant = one "),
        ])
        .unwrap()
        .unwrap();
        assert_eq!(otlp.endpoint, Endpoint::exact("http://other:9/x").unwrap());
        assert_eq!((otlp.protocol, otlp.timeout), (Some(Protocol::Http), Duration::from_millis(2500)));
        let headers: Vec<_> =
            otlp.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("authorization", "Basic eDp5"), ("x-tenant", "one")]);
        assert!(!format!("{otlp:?}").contains("Basic"), "{otlp:?}");
    }

    #[test]
    fn samplers_and_names() {
        let sampled = |name, arg| {
            read(&[ENDPOINT, ("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", arg)])
                .unwrap()
                .unwrap()
                .sampler
        };
        let sampler = |heeds_parent, share: &str| Sampler { heeds_parent, share: share.parse().unwrap() };
        assert_eq!(sampled("always_off", ""), sampler(false, "0"));
        assert_eq!(sampled("traceidratio", "0.5"), sampler(false, "0.5"));
        assert_eq!(sampled("parentbased_traceidratio", "0.25"), sampler(true, "0.25"));
        assert_eq!(sampled("parentbased_always_on", "nonsense that means nothing here"), sampler(true, "1"));
        let otlp = read(&[
            ENDPOINT,
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=one,deployment.environment=a%20b"),
            ("OTEL_SERVICE_NAME", "two"),
        ]);
        let resource = otlp.unwrap().unwrap().resource;
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(resource, [pair("deployment.environment", "a b"), pair("service.name", "two")]);
    }

    #[test]
    fn mistakes_name_their_variable() {
        for (name, value) in [
            ("OTEL_SDK_DISABLED", "perhaps"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=hunter2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=hunter2%0a"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=hunter2%+1"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ] {
            let complaint = read(&[ENDPOINT, (name, value)]).unwrap_err();
            assert!(complaint.starts_with(&format!("{name}: ")), "{complaint}");
            assert!(!complaint.contains("hunter2"), "{complaint}");
        }
        let alone = read(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key")]).unwrap_err();
        assert!(alone.starts_with("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: is missing"), "{alone}");
    }
}

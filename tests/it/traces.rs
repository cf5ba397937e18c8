//! Traces as a collector receives them: decisions with their limits and codes, in the trace of whoever asked; and what happens
//! to answers when nobody takes them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sluice::clock;
use sluice::tls::ClientFiles;
use sluice::trace::options::{Otlp, Sampler, Share};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::metadata::MetadataValue;

use crate::ask::request;
use crate::authority::Authority;
use crate::collector::{Collector, said};
use crate::http;
use crate::sluice::{RATELIMIT_PORTS, Sluice, directory, serve, sluice};
use crate::testapp::{Builder, TestApp};
use crate::wait::until;

const LIMITS: &str = "
domain: d
limits:
  - {key: gpus, kind: rolling, capacity: 2, window_seconds: 3600}
descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 2}
";

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn traced(url: &str, change: impl FnOnce(&mut Otlp) + 'static) -> Builder {
    let mut otlp = Otlp::to(url.parse().unwrap());
    change(&mut otlp);
    TestApp::with_limits(LIMITS).and_settings(move |settings| settings.telemetry.otlp = Some(otlp))
}

/// One ShouldRateLimit with these headers; whether it was answered.
async fn ask(app: &TestApp, asked: &str, headers: &[(&'static str, &[u8])]) -> Result<(), tonic::Status> {
    let mut call = tonic::Request::new(request(asked));
    for (name, value) in headers {
        let value = MetadataValue::try_from(*value).expect("HTTP must allow it");
        call.metadata_mut().append(*name, value);
    }
    app.client().should_rate_limit(call).await.map(drop)
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn code(span: &Span) -> String {
    said(&span.attributes, "sluice.code")
}

#[tokio::test]
async fn a_decision_is_a_span_in_the_trace_of_its_caller() {
    let collector = Collector::by_grpc().await;
    let app = traced(&collector.url(), |_| {}).start().await;
    let sampled = traceparent("01");
    let headers: [(&str, &[u8]); 3] =
        [("traceparent", sampled.as_bytes()), ("tracestate", b"a=1"), ("tracestate", b"b=2")];
    ask(&app, "path=/a", &headers).await.unwrap();
    ask(&app, "path=/a x2", &headers[..1]).await.unwrap();
    ask(&app, "path=/a", &[("traceparent", traceparent("00").as_bytes())]).await.unwrap();
    ask(&app, "path=/b", &[]).await.unwrap();
    ask(&app, "=", &headers[..1]).await.unwrap_err();
    let spans = collector.until(4, |_| true).await;
    assert_eq!(spans.len(), 4, "one was not sampled by its caller: {spans:#?}");
    for span in &spans {
        assert_eq!(span.name, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        assert_eq!(span.kind(), SpanKind::Server);
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert!(clock::unix_ms().abs_diff(span.start_time_unix_nano / 1_000_000) < 60_000);
    }
    let [allowed, denied, root, wrong] = &spans[..] else { unreachable!() };
    for span in [allowed, denied, wrong] {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    }
    assert_eq!(allowed.trace_state, "a=1,b=2");
    assert_eq!(
        (code(allowed), said(&allowed.attributes, "rpc.grpc.status_code")),
        ("OK".to_owned(), "0".to_owned())
    );
    assert_eq!(said(&allowed.attributes, "sluice.limits"), "d:path=/a:hour");
    assert_eq!(said(&allowed.attributes, "sluice.domain"), "d");
    assert_eq!(
        (code(denied), said(&denied.attributes, "sluice.reason")),
        ("OVER_LIMIT".to_owned(), "over_limit".to_owned())
    );
    assert_eq!(said(&denied.attributes, "sluice.limit"), "d:path=/a:hour");
    assert!(said(&denied.attributes, "sluice.retry_after_ms").parse::<u64>().unwrap() > 0);
    assert_ne!(denied.span_id, allowed.span_id);
    assert!(root.parent_span_id.is_empty() && hex(&root.trace_id) != TRACE, "{root:#?}");
    assert_eq!(said(&wrong.attributes, "rpc.grpc.status_code"), "3");
    assert_eq!(
        wrong.status.clone().unwrap_or_default().code(),
        StatusCode::Unset,
        "that is the caller's mistake"
    );
    let resource = collector.exports()[0].request.resource_spans[0].resource.clone().unwrap().attributes;
    assert_eq!(said(&resource, "service.name"), "sluice");
    assert_eq!(said(&resource, "service.version"), env!("CARGO_PKG_VERSION"));
    assert!(!said(&resource, "service.instance.id").is_empty());
    until("them to be counted", async || {
        let metrics = app.get("/metrics").await.body;
        let is_there = metrics.contains("sluice_trace_spans_total{result=\"sent\"} 4\n");
        if is_there { Ok(()) } else { Err(metrics) }
    })
    .await;
}

/// Whatever a caller writes there, it is answered, and has a trace of its own or none.
#[tokio::test]
async fn a_traceparent_may_be_anything() {
    let collector = Collector::by_grpc().await;
    let app = traced(&collector.url(), |_| {}).start().await;
    let long = traceparent("01").repeat(100);
    let hostile: [&[u8]; 8] = [
        b"",
        b"00",
        b"\xff\xfe\xfd",
        long.as_bytes(),
        b"00-00000000000000000000000000000000-0000000000000000-01",
        b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        b"' OR 1=1; --",
    ];
    for value in hostile {
        ask(&app, "path=/a x0", &[("traceparent", value)]).await.unwrap();
    }
    let twice = traceparent("00");
    ask(&app, "path=/a x0", &[("traceparent", twice.as_bytes()), ("traceparent", twice.as_bytes())])
        .await
        .unwrap();
    let spans = collector.until(hostile.len() + 1, |_| true).await;
    assert!(
        spans.iter().all(|span| span.parent_span_id.is_empty() && hex(&span.trace_id) != TRACE),
        "{spans:#?}"
    );
    let good = traceparent("01");
    let broken = "x".repeat(600);
    ask(&app, "path=/a x0", &[("traceparent", good.as_bytes()), ("tracestate", broken.as_bytes())])
        .await
        .unwrap();
    let continued = collector.until(1, |span| hex(&span.trace_id) == TRACE).await;
    assert_eq!(continued[0].trace_state, "");
}

/// Only the endpoint is said: what doesn't speak gRPC is sent HTTP.
#[tokio::test]
async fn by_http_and_of_the_admin_port() {
    let collector = Collector::by_http().await;
    let app = traced(&collector.url(), |_| {}).start().await;
    let parent = traceparent("01");
    let headers = [("traceparent", parent.as_str())];
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "path", "value": "/a"}], "hitsAddend": "3"}]}"#;
    assert_eq!(http::send(app.app.admin, "POST", "/json", &headers, body).await.status, 429);
    let body = r#"{"requirements": [{"key": "gpus", "amount": 2}]}"#;
    assert_eq!(
        http::send(app.app.admin, "POST", "/v1/reserve", &headers, body).await.json()["allowed"],
        true
    );
    let body = format!(r#"{{"requests": [{body}, {body}]}}"#);
    assert_eq!(http::send(app.app.admin, "POST", "/v1/reserve/batch", &headers, body).await.status, 200);
    let spans = collector.until(3, |_| true).await;
    let mut seen: Vec<_> = spans
        .iter()
        .map(|span| {
            assert_eq!(
                (hex(&span.trace_id), hex(&span.parent_span_id)),
                (TRACE.to_owned(), PARENT.to_owned())
            );
            let said = |key| said(&span.attributes, key);
            (span.name.as_str(), said("http.response.status_code"), said("sluice.limits"), code(span))
        })
        .collect();
    seen.sort();
    let row = |name, status: &str, limits: &str, code: &str| {
        (name, status.to_owned(), limits.to_owned(), code.to_owned())
    };
    assert_eq!(
        seen,
        [
            row("POST /json", "429", "d:path=/a:hour", "OVER_LIMIT"),
            row("POST /v1/reserve", "200", "gpus", "OK"),
            row("POST /v1/reserve/batch", "200", "gpus gpus", "OVER_LIMIT"),
        ]
    );
}

#[tokio::test]
async fn a_share_of_nothing_leaves_those_that_their_caller_samples() {
    let collector = Collector::by_grpc().await;
    let nothing = Sampler { share: Share::NOTHING, ..Sampler::default() };
    let app = traced(&collector.url(), move |otlp| otlp.sampler = nothing).start().await;
    for flags in ["00", "01"] {
        ask(&app, "path=/a x0", &[]).await.unwrap();
        ask(&app, "path=/a x0", &[("traceparent", traceparent(flags).as_bytes())]).await.unwrap();
    }
    collector.until(1, |_| true).await;
    app.stop().await;
    let spans = collector.spans();
    assert_eq!(spans.len(), 1, "{spans:#?}");
    assert_eq!(hex(&spans[0].trace_id), TRACE);
}

/// One that takes connections and says nothing, and one that nobody listens at.
#[tokio::test]
async fn a_dead_endpoint_harms_no_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    for address in [silent.local_addr().unwrap(), gone] {
        let app = traced(&format!("http://{address}"), |_| {}).start().await;
        for _ in 0..200 {
            let begun = clock::instant();
            ask(&app, "path=/a x0", &[]).await.unwrap();
            assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        }
        let begun = clock::instant();
        let metrics = app.get("/metrics").await.body;
        assert!(metrics.contains("sluice_trace_spans_total{result=\"sent\"} 0\n"), "{metrics}");
        app.stop().await;
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    }
}

/// TLS in front of a collector, with this authority's certificate for localhost.
async fn with_tls(collector: &Collector, authority: &Authority, tasks: &mut JoinSet<()>) -> SocketAddr {
    let certificate = CertificateDer::from_pem_file(authority.path("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(authority.path("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, plain) = (listener.local_addr().unwrap(), collector.address);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, acceptor) = (listener.accept().await.unwrap().0, acceptor.clone());
            connections.spawn(async move {
                let mut secured = acceptor.accept(stream).await.unwrap();
                let mut stream = TcpStream::connect(plain).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut secured, &mut stream).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn with_tls_by_either_protocol() {
    let (authority, mut tasks) = (Authority::new(), JoinSet::new());
    for collector in [Collector::by_grpc().await, Collector::by_http().await] {
        let address = with_tls(&collector, &authority, &mut tasks).await;
        let files = ClientFiles { ca_file: authority.path("ca.pem"), pair: None, server_name: None };
        let app = traced(&format!("https://{address}"), |otlp| otlp.tls = Some(files)).start().await;
        ask(&app, "path=/a", &[]).await.unwrap();
        collector.until(1, |span| code(span) == "OK").await;
    }
}

/// A decision of the last moment is sent before the process ends.
#[tokio::test]
async fn the_rest_is_sent_at_the_end() {
    let collector = Collector::by_http().await;
    let dir = directory(&[
        ("config/limits/limits.yaml", LIMITS),
        ("config/sluice.yaml", "telemetry: {otlp: {endpoint: 'http://127.0.0.1:9', sampling: 1.0}}\n"),
    ]);
    let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url());
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b");
    command.env("OTEL_SERVICE_NAME", "gate");
    command.env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test");
    let mut server = Sluice::start(dir, command).await;
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "path", "value": "/a"}]}]}"#;
    assert_eq!(http::post(server.admin, "/json", body).await.status, 200);
    server.process.signal("TERM");
    assert!(server.process.exit().await.success());
    let spans = collector.spans();
    assert_eq!(spans.len(), 1, "{}", server.process.stderr());
    let export = &collector.exports()[0];
    assert_eq!(export.headers["x-tenant"], "a b");
    let resource = export.request.resource_spans[0].resource.clone().unwrap().attributes;
    assert_eq!(said(&resource, "service.name"), "gate");
    assert_eq!(said(&resource, "deployment.environment"), "test");
}

/// As Envoy Gateway sets it up.
#[tokio::test]
async fn in_the_place_of_ratelimit() {
    let collector = Collector::by_grpc().await;
    let dir = directory(&[("config/d.yaml", LIMITS)]);
    let mut command = sluice(dir.path(), &["ratelimit"]);
    command.envs(RATELIMIT_PORTS).env("RUNTIME_ROOT", dir.path()).envs([
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
        ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-7d9f"),
        ("TRACING_SAMPLING_RATE", "1.0"),
    ]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url());
    let mut server = Sluice::start(dir, command).await;
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "path", "value": "/a"}]}]}"#;
    assert_eq!(http::post(server.admin, "/json", body).await.status, 200);
    server.process.signal("TERM");
    assert!(server.process.exit().await.success());
    assert!(!server.process.stderr().contains("TRACING_"), "{}", server.process.stderr());
    let exports = collector.exports();
    let resource = exports[0].request.resource_spans[0].resource.clone().unwrap().attributes;
    assert_eq!(said(&resource, "service.name"), "envoy-ratelimit");
    assert_eq!(said(&resource, "service.namespace"), "envoy-gateway-system");
    assert_eq!(said(&resource, "service.instance.id"), "envoy-ratelimit-7d9f");
}

/// The batch says which decisions were in it, and each of them in which batch it was.
fn assert_linked(decision: &Span, batch: &Span, ledger: &str) {
    assert_eq!((batch.name.as_str(), batch.kind()), ("ledger batch", SpanKind::Client));
    assert_eq!(said(&batch.attributes, "sluice.ledger"), ledger);
    assert!(said(&batch.attributes, "sluice.events").parse::<u64>().unwrap() >= 1);
    let ids = |span: &Span| (span.trace_id.clone(), span.span_id.clone());
    assert!(
        batch.links.iter().any(|link| (link.trace_id.clone(), link.span_id.clone()) == ids(decision)),
        "{batch:#?}"
    );
    assert!(
        decision.links.iter().any(|link| (link.trace_id.clone(), link.span_id.clone()) == ids(batch)),
        "{decision:#?}"
    );
    assert!(batch.start_time_unix_nano >= decision.start_time_unix_nano);
}

async fn decision_and_batch(collector: &Collector) -> (Span, Span) {
    let mut decisions = collector.until(1, |span| span.kind() == SpanKind::Server).await;
    let mut batches = collector.until(1, |span| span.kind() == SpanKind::Client).await;
    (decisions.remove(0), batches.remove(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_hub_is_linked() {
    use sluice::config::settings::value::LedgerUri;
    let collector = Collector::by_grpc().await;
    let hub = crate::hub::hub_on(LedgerUri::Memory).start().await;
    let otlp = Otlp::to(collector.url().parse().unwrap());
    let sidecar = crate::hub::sidecar(LIMITS, &[&hub]);
    let sidecar = sidecar.and_settings(move |settings| settings.telemetry.otlp = Some(otlp)).start().await;
    sidecar.readiness(200).await;
    ask(&sidecar, "path=/a", &[]).await.unwrap();
    let (decision, batch) = decision_and_batch(&collector).await;
    assert_linked(&decision, &batch, "hub");
}

#[cfg(feature = "tigerbeetle")]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_tigerbeetle_is_linked() {
    use sluice::config::settings::value::LedgerUri;
    let (collector, server) = (Collector::by_http().await, crate::tigerbeetle::Server::start());
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let app = traced(&collector.url(), |_| {}).and_settings(move |settings| {
        settings.ledger.uri = uri;
        settings.ledger.timeout_ms = 10_000;
    });
    let app = app.start().await;
    app.readiness(200).await;
    ask(&app, "path=/a", &[]).await.unwrap();
    let (decision, batch) = decision_and_batch(&collector).await;
    assert_linked(&decision, &batch, "tigerbeetle");
    app.stop().await;
}

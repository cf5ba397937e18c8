//! A real Envoy that traces: the decision of Sluice is in the trace of the request, below Envoy's own span of the call.

use opentelemetry_proto::tonic::trace::v1::Span;

use crate::collector::{Collector, said};
use crate::envoy::{Envoy, RATELIMIT};
use crate::sluice::{Sluice, directory, serve};

const LIMITS: &str =
    "domain: demo\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 1}}]";

const TRACING: &str = "                stat_prefix: ingress
                tracing:
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      service_name: envoy
                      grpc_service: {envoy_grpc: {cluster_name: collector}, timeout: 5s}
";

/// Spans are sent one by one, so that nobody waits for more of them.
const AT_ONCE: &str = "layered_runtime:
  layers: [{name: here, static_layer: {tracing.opentelemetry.min_flush_spans: 1}}]
admin:
";

fn cluster(port: u16) -> String {
    format!(
        "  clusters:
    - name: collector
      type: STATIC
      connect_timeout: 5s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{http2_protocol_options: {{}}}}
      load_assignment:
        cluster_name: collector
        endpoints:
          - lb_endpoints:
              - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}
"
    )
}

#[tokio::test]
async fn a_decision_is_in_the_trace_of_its_request() {
    let collector = Collector::by_grpc().await;
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    // Only what Envoy samples.
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())
        .env("OTEL_TRACES_SAMPLER", "parentbased_always_off");
    let sluice = Sluice::start(dir, command).await;
    let setup = Envoy::of(RATELIMIT).changed("                stat_prefix: ingress\n", TRACING);
    let setup =
        setup.changed("admin:\n", AT_ONCE).changed("  clusters:\n", &cluster(collector.address.port()));
    let envoy = setup.start(&[sluice.grpc_port()]).await;
    assert_eq!(envoy.get("/a", &[]).await.status, 200);
    assert_eq!(envoy.get("/a", &[]).await.status, 429);
    let is_ours = |span: &Span| !said(&span.attributes, "sluice.code").is_empty();
    let ours = collector.until(2, is_ours).await;
    let codes: Vec<String> = ours.iter().map(|span| said(&span.attributes, "sluice.code")).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT"]);
    for span in &ours {
        let is_parent = |other: &Span| other.span_id == span.parent_span_id;
        let parent = collector.until(1, is_parent).await.remove(0);
        assert_eq!(parent.trace_id, span.trace_id);
        assert!(parent.start_time_unix_nano <= span.end_time_unix_nano);
    }
    assert_ne!(ours[0].trace_id, ours[1].trace_id, "two requests");
}

//! The environment of envoyproxy/ratelimit, and what becomes of it.

use super::*;

fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
    let env: Env = variables.iter().copied().collect();
    let mut settings = Settings::default();
    put_over(&mut settings, &env).map(|()| settings).map_err(|bad| bad.to_string())
}

#[test]
fn without_any_variable_it_listens_where_that_program_does() {
    let settings = settings(&[]).unwrap();
    assert_eq!(settings.grpc.listen.to_string(), "0.0.0.0:8081");
    assert_eq!(settings.admin.listen.to_string(), "0.0.0.0:8080");
    let in_place = settings.in_place.unwrap();
    assert_eq!((in_place.debug.to_string().as_str(), in_place.metrics), ("0.0.0.0:6070", None));
    assert_eq!((settings.log.level, settings.log.format), (LogLevel::Warn, LogFormat::Text));
    assert!(settings.metrics.ratelimit_names);
    assert_eq!((settings.config.xds, settings.grpc.limit_headers), (None, None));
}

/// What Envoy Gateway sets.
#[test]
fn envoy_gateways_environment() {
    let settings = settings(&[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
        ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis.example:6379"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ])
    .unwrap();
    let xds = settings.config.xds.unwrap();
    assert_eq!((xds.server.as_str(), xds.node_id.as_str()), ("envoy-gateway:18001", "envoy-ratelimit"));
    assert!(!xds.must_answer);
    let pair = || PairFiles { cert_file: "/certs/tls.crt".into(), key_file: "/certs/tls.key".into() };
    let (ca_file, server_name) = ("/certs/ca.crt".into(), None);
    assert_eq!(xds.tls, Some(ClientFiles { ca_file, pair: Some(pair()), server_name }));
    let PairFiles { cert_file, key_file } = pair();
    let tls = ServerFiles { cert_file, key_file, client_ca_file: None };
    assert_eq!(
        settings.grpc.tls,
        Some(tls),
        "Envoy Gateway's variable for the authority is not that program's"
    );
    let metrics = settings.in_place.unwrap().metrics.unwrap();
    assert_eq!((metrics.0.to_string().as_str(), metrics.1.as_str()), ("0.0.0.0:19001", "/metrics"));
    assert_eq!(settings.log.level, LogLevel::Info);
}

#[test]
fn what_can_t_be_understood_names_its_variable() {
    for (variable, value, expected) in [
        ("PORT", "http", "must be a port, from 0 to 65535, not `http`"),
        ("GRPC_PORT", "70000", "must be a port, from 0 to 65535, not `70000`"),
        (
            "DEBUG_HOST",
            "no such host",
            "must be an IP address or a name that leads to one, not `no such host`",
        ),
        ("CONFIG_TYPE", "XDS", "must be FILE or GRPC_XDS_SOTW, not `XDS`"),
        ("LOG_LEVEL", "loud", "must be one of off, error, warn, info, debug, trace, not `loud`"),
        ("LOG_FORMAT", "xml", "must be one of text, json, not `xml`"),
        ("PROMETHEUS_ADDR", "19001", "must be an address and a port, as in :19001, not `19001`"),
        ("RESPONSE_DYNAMIC_METADATA", "yes", "must be true or false, not `yes`"),
        ("LIMIT_LIMIT_HEADER", "a b", "must be the name of a header, not `a b`"),
        ("GRPC_MAX_CONNECTION_AGE", "1 day", "must be a time, as in 24h or 30m, not `1 day`"),
        ("GRPC_MAX_CONNECTION_AGE", "-1h", "must be a time, as in 24h or 30m, not `-1h`"),
        ("GRPC_MAX_CONNECTION_AGE", "24", "must be a time, as in 24h or 30m, not `24`"),
        // Go knows no time that long, and a tenth more of it would be beyond any clock.
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "5000000000000000h", "must be a time, as in 24h or 30m, not"),
        ("NEAR_LIMIT_RATIO", "80", "must be a number from 0 to 1, not `80`"),
        ("GRPC_SERVER_USE_TLS", "true", "is needed for TLS: the path of a file"),
        ("SLUICE_LEDGER", "redis", "must be memory, tigerbeetle:"),
    ] {
        let refused = settings(&[(variable, value)]).unwrap_err();
        let variable = if variable == "GRPC_SERVER_USE_TLS" { "GRPC_SERVER_TLS_CERT" } else { variable };
        assert!(refused.starts_with(&format!("{variable}: {expected}")), "{refused}");
    }
    let tls = [("GRPC_SERVER_USE_TLS", "1"), ("GRPC_SERVER_TLS_CERT", "c"), ("GRPC_SERVER_TLS_KEY", "k")];
    let clients = [&tls[..], &[("GRPC_CLIENT_TLS_CACERT", "ca")]].concat();
    assert_eq!(settings(&clients).unwrap().grpc.tls.unwrap().client_ca_file, Some("ca".into()));
    let xds = settings(&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")]);
    let tls = xds.unwrap().config.xds.unwrap().tls;
    assert_eq!(tls, Some(ClientFiles::of_this_machine()), "whom the machine trusts");
    let refused = settings(&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_URL", "a")]);
    assert_eq!(
        refused.unwrap_err(),
        "CONFIG_GRPC_XDS_SERVER_URL: must be a host and a port, as in xds:18000, not `a`"
    );
}

#[test]
fn times_are_written_as_in_go() {
    for (text, ms) in
        [("24h", 86_400_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("250ms", 250), ("1m0.5s", 60_500)]
    {
        let settings = settings(&[("GRPC_MAX_CONNECTION_AGE", text)]).unwrap();
        assert_eq!(settings.grpc.connection_age.unwrap().max, Duration::from_millis(ms), "{text}");
    }
    for text in ["0", "0s", "0h0m"] {
        let endless =
            settings(&[("GRPC_MAX_CONNECTION_AGE", text), ("GRPC_MAX_CONNECTION_AGE_GRACE", text)]).unwrap();
        let age = endless.grpc.connection_age.unwrap();
        let century = Duration::from_secs(100 * 365 * 86_400);
        assert!(age.max.mul_f64(1.1) > century && age.grace > century, "{text}: {age:?}");
    }
}

#[test]
fn levels_and_formats_are_read_in_any_case() {
    let log = settings(&[("LOG_LEVEL", "WARNING"), ("LOG_FORMAT", "JSON")]).unwrap().log;
    assert_eq!((log.level, log.format), (LogLevel::Warn, LogFormat::Json));
}

#[test]
fn what_has_no_effect_is_named_and_what_has_is_not() {
    let env: Env =
        [("REDIS_URL", "x"), ("SHADOW_MODE", "true"), ("PORT", "1"), ("HOME", "/"), ("MEMCACHE_SRV", "")]
            .into_iter()
            .collect();
    assert_eq!(names::unused(&env), ["REDIS_URL", "SHADOW_MODE"]);
}

#[test]
fn files_are_looked_for_where_that_program_looks() {
    let of = |variables: &[(&str, &str)]| {
        let layout = layout(&variables.iter().copied().collect()).unwrap();
        let LimitsIn::Runtime(runtime) = layout.limits else { panic!("{layout:?}") };
        (runtime.root.display().to_string(), runtime.inner, runtime.dot_files)
    };
    assert_eq!(of(&[]), ("/srv/runtime_data/current".to_owned(), "config".to_owned(), true));
    let named =
        [("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "rl"), ("RUNTIME_IGNOREDOTFILES", "true")];
    assert_eq!(of(&named), ("/data/rl".to_owned(), "config".to_owned(), false));
}

#[test]
fn traces_as_that_program_has_them() {
    let traces = |variables: &[(&str, &str)]| settings(variables).map(|settings| settings.telemetry.otlp);
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
    assert_eq!(traces(&[]), Ok(None));
    assert_eq!(traces(&[endpoint, ("TRACING_ENABLED", "false")]), Ok(None));
    assert_eq!(traces(&[("TRACING_ENABLED", "true"), ("OTEL_SDK_DISABLED", "true")]), Ok(None));
    assert_eq!(traces(&[("TRACING_ENABLED", "true")]), Ok(Some(Otlp::to(COLLECTOR.parse().unwrap()))));
    let otlp = traces(&[
        endpoint,
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
        ("TRACING_SERVICE_INSTANCE_ID", "a-pod"),
        ("TRACING_SAMPLING_RATE", "0.1"),
        ("OTEL_SERVICE_NAME", "mine"),
    ])
    .unwrap()
    .unwrap();
    assert_eq!((otlp.protocol, otlp.sampler.heeds_parent), (Some(Protocol::Grpc), true));
    assert_eq!(otlp.sampler.share, "0.1".parse().unwrap());
    let resource: Vec<_> =
        otlp.resource.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        resource,
        [
            ("service.name", "mine"),
            ("service.namespace", "envoy-gateway-system"),
            ("service.instance.id", "a-pod")
        ]
    );
    for (variable, value) in [
        ("TRACING_ENABLED", "perhaps"),
        ("TRACING_EXPORTER_PROTOCOL", "udp"),
        ("TRACING_SAMPLING_RATE", "11"),
    ] {
        let complaint = traces(&[endpoint, (variable, value)]).unwrap_err();
        assert!(complaint.starts_with(&format!("{variable}: must be ")), "{complaint}");
    }
    let env: Env =
        [("OTEL_SERVICE_NAME", "x"), ("OTEL_BSP_MAX_QUEUE_SIZE", "1"), ("TRACING_ENABLED", "true")]
            .into_iter()
            .collect();
    assert_eq!(names::unused(&env), ["OTEL_BSP_MAX_QUEUE_SIZE"]);
}

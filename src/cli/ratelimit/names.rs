//! The variables of envoyproxy/ratelimit that mean nothing to Sluice, so that whoever sets one hears of it.

use crate::cli::env::Env;
use crate::cli::otel;

/// All that begin so: stores that Sluice doesn't have, and ways to send statistics.
const PREFIXES: [&str; 5] = ["REDIS_", "MEMCACHE_", "STATSD_", "USE_DOG_STATSD", "OTEL_"];

const NAMES: [&str; 25] = [
    "BACKEND_TYPE",
    "CACHE_KEY_PREFIX",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_NODE_METADATA",
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "DISABLE_STATS",
    "EXPIRATION_JITTER_MAX_SECONDS",
    "EXTRA_TAGS",
    "GRPC_CLIENT_TLS_SAN",
    "GRPC_SERVER_TLS_CA_CERT",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "MERGE_DOMAIN_CONFIG",
    "PROMETHEUS_MAPPER_YAML",
    "QUOTA_MODE",
    "SHADOW_MODE",
    "STATS_FLUSH_INTERVAL",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "USE_CALENDAR_MONTH_RATE_LIMIT",
    "USE_STATSD",
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
    "XDS_CLIENT_BACKOFF_JITTER",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
];

/// Those that are set, by name. Values may be secrets.
pub(super) fn unused(env: &Env) -> Vec<String> {
    let is_unused = |name: &&str| {
        let begins_so = PREFIXES.iter().any(|start| name.starts_with(start));
        NAMES.contains(name) || begins_so && !otel::NAMES.contains(name)
    };
    env.names().filter(is_unused).map(str::to_owned).collect()
}

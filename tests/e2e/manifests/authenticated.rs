//! The filters of the manifests behind one that authenticates, as Istio and Envoy Gateway put it there: whoever was verified is counted,
//! whatever the client's own header says.

use serde_json::json;

use super::{Parts, documents};
use crate::envoy::{Envoy, LEASES};
use crate::http;
use crate::llm::{KEY, token};
use crate::sluice::Sluice;

const LIMITS: &str = "
domain: llm
descriptors: [{key: tenant, descriptors: [{key: model, rate_limit: {unit: hour, requests_per_unit: 100000}}]}]";

/// What outputClaimToHeaders and claimToHeaders become, with a key that is known here. A request without a token passes, as Istio has it.
fn authentication() -> String {
    let keys = json!({"keys": [{"kty": "oct", "alg": "HS256", "k": crate::llm::encoded(KEY)}]});
    json!({
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {"tenants": {
                "issuer": "https://issuer.example",
                "local_jwks": {"inline_string": keys.to_string()},
                "claim_to_headers": [{"header_name": "x-tenant", "claim_name": "tenant"}],
            }},
            "rules": [{"match": {"prefix": "/"}, "requires": {
                "requires_any": {"requirements": [{"provider_name": "tenants"}, {"allow_missing": {}}]},
            }}],
        },
    })
    .to_string()
}

#[tokio::test]
async fn a_client_can_t_choose_its_tenant() {
    for parts in [
        Parts::of_envoy_filter("istio/sidecar-envoyfilter.yaml"),
        Parts::of_patch_policy("envoy-gateway/envoypatchpolicy.yaml"),
    ] {
        let sluice = Sluice::with_limits(LIMITS).await;
        // The filters of the bootstrap are those of the manifests, but for the first one.
        let first = format!(
            "http_filters:\n                  - {}\n                  - {}\n",
            authentication(),
            parts.filters[0]
        );
        let envoy = Envoy::of(LEASES).changed("http_filters:\n", &first).start(&[sluice.grpc_port()]).await;
        let bob = token(r#"{"iss":"https://issuer.example","exp":4102444800,"tenant":"bob"}"#, KEY);
        let nameless = token(r#"{"iss":"https://issuer.example","exp":4102444800}"#, KEY);
        for (authorization, tenant) in
            [(Some(bob), "bob"), (Some(nameless), "anonymous"), (None, "anonymous")]
        {
            let authorization = authorization.map(|token| format!("Bearer {token}"));
            let mut headers = vec![("x-tenant", "acme")];
            headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
            let key = format!("/v1/limits/llm%3Atenant%3D{tenant}%3Amodel%3Dgpt-4o%3Ahour");
            let used = async || http::get(sluice.admin, &key).await.json()["used"].as_u64().unwrap_or(0);
            let before = used().await;
            assert_eq!(envoy.get("/", &headers).await.status, 200);
            assert!(used().await > before, "{tenant} was not charged");
        }
        let spoofed = http::get(sluice.admin, "/v1/limits/llm%3Atenant%3Dacme%3Amodel%3Dgpt-4o%3Ahour").await;
        assert!(spoofed.status == 404 || spoofed.json()["used"] == 0, "{spoofed:?}");
    }
}

/// The headers that descriptors are made of are those that authentication writes.
#[test]
fn what_is_verified_is_what_is_counted() {
    let policies = documents("istio/authentication.yaml");
    let headers: Vec<&serde_json::Value> = policies
        .iter()
        .filter_map(|policy| policy.pointer("/spec/jwtRules/0/outputClaimToHeaders/0/header"))
        .collect();
    assert_eq!(headers, ["x-user", "x-tenant"]);
    let gateway = &documents("envoy-gateway/authentication.yaml")[0];
    let gateway = gateway.pointer("/spec/jwt/providers/0/claimToHeaders/0/header").unwrap();
    for (parts, header) in [
        (Parts::of_envoy_filter("istio/shared-envoyfilter.yaml"), headers[0]),
        (Parts::of_envoy_filter("istio/sidecar-envoyfilter.yaml"), headers[1]),
        (Parts::of_patch_policy("envoy-gateway/envoypatchpolicy.yaml"), gateway),
    ] {
        let limits = parts.rate_limit()["rate_limits"].to_string();
        assert!(limits.contains(&format!("\"header_name\":{header}")), "{limits}");
    }
}

//! A hub behind TLS: which sidecars it lets in, what the others say about it, and certificates that are replaced.

use std::net::SocketAddr;

use rcgen::CertificateParams;
use sluice::config::settings::value::LedgerUri;
use sluice::tls::{ClientFiles, PairFiles, ServerFiles};

use crate::authority::Authority;
use crate::hub::{hub_on, ready, sidecar};
use crate::testapp::TestApp;
use crate::wait::until;

const LIMITS: &str = "
domain: d
descriptors: [{key: k, limits: [{name: n, kind: rolling, capacity: 1000, window_seconds: 3600, exact: true}]}]
";

/// At this address, or at any.
async fn hub(authority: &Authority, address: Option<SocketAddr>) -> TestApp {
    let tls = ServerFiles {
        cert_file: authority.path("server.pem"),
        key_file: authority.path("server.key"),
        client_ca_file: Some(authority.path("ca.pem")),
    };
    let hub = hub_on(LedgerUri::Memory).and_settings(move |settings| {
        settings.hub.tls = Some(tls);
        settings.hub.listen = address.or(settings.hub.listen);
    });
    hub.start().await
}

/// One that trusts the first authority and shows a pair of the second.
async fn start(hub: &TestApp, trusted: &Authority, shown: Option<(&Authority, &str)>) -> TestApp {
    start_as(hub, trusted, shown, None).await
}

async fn start_as(
    hub: &TestApp,
    trusted: &Authority,
    shown: Option<(&Authority, &str)>,
    server_name: Option<&str>,
) -> TestApp {
    let pair = shown.map(|(issuer, name)| PairFiles {
        cert_file: issuer.path(&format!("{name}.pem")),
        key_file: issuer.path(&format!("{name}.key")),
    });
    let server_name = server_name.map(|name| name.to_owned().try_into().expect("a name"));
    let files = ClientFiles { ca_file: trusted.path("ca.pem"), pair, server_name };
    let app = sidecar(LIMITS, &[hub]).and_settings(move |settings| settings.ledger.tls = Some(files));
    app.start().await
}

async fn refused(app: &TestApp, expected: &str) {
    until(expected, async || {
        let answer = app.get("/readyz").await;
        let is_so = answer.status == 503 && answer.body.contains(expected);
        if is_so { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    assert!(app.say("k=v").await.starts_with("Unavailable: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_sidecars_with_a_certificate_of_the_authority_come_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    ours.issue("sidecar", |_| {});
    let expired = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    ours.issue("expired", expired);
    theirs.issue("stranger", |_| {});
    let hub = hub(&ours, None).await;
    let good = start(&hub, &ours, Some((&ours, "sidecar"))).await;
    ready(&good).await;
    assert_eq!(good.say("k=v").await, "ok 999/1000 hour n");
    refused(&start(&hub, &ours, None).await, "TLS: received fatal alert: CertificateRequired").await;
    let stranger = start(&hub, &ours, Some((&theirs, "stranger"))).await;
    refused(&stranger, "TLS: received fatal alert: UnknownCA").await;
    let expired = start(&hub, &ours, Some((&ours, "expired"))).await;
    refused(&expired, "TLS: received fatal alert: CertificateExpired").await;
    refused(&start(&hub, &theirs, Some((&ours, "sidecar"))).await, "UnknownIssuer").await;
    let elsewhere = start_as(&hub, &ours, Some((&ours, "sidecar")), Some("elsewhere.test")).await;
    refused(&elsewhere, "not valid for name \"elsewhere.test\"").await;
    let named = start_as(&hub, &ours, Some((&ours, "sidecar")), Some("localhost")).await;
    ready(&named).await;
    let plain = sidecar(LIMITS, &[&hub]).start().await;
    refused(&plain, "no hub can be used").await;
    assert_eq!(good.say("k=v").await, "ok 998/1000 hour n", "the others harm nobody");
}

/// Both sides get new certificates while the sidecar asks, and no call fails; the next stream is opened with the new ones.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_both_sides_are_replaced_while_a_sidecar_asks() {
    let authority = Authority::new();
    authority.issue("sidecar", |_| {});
    let first = hub(&authority, None).await;
    let app = start(&first, &authority, Some((&authority, "sidecar"))).await;
    ready(&app).await;
    let reloads = async |app: &TestApp| {
        let metrics = app.get("/metrics").await.body;
        let line = "sluice_tls_reloads_total{result=\"ok\"} ";
        let count = metrics.lines().find_map(|it| it.strip_prefix(line)).expect("it is counted");
        count.parse::<u64>().expect("a number")
    };
    for before in 0..3 {
        authority.issue("server", |_| {});
        authority.issue("sidecar", |_| {});
        until("both to have read them", async || {
            assert!(app.say("k=v").await.starts_with("ok "));
            match (reloads(&app).await, reloads(&first).await) {
                (here, there) if here > before && there > before => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    let address = first.app.hub;
    first.stop().await;
    refused(&app, "no hub can be used").await;
    let again = hub(&authority, address).await;
    ready(&app).await;
    assert!(app.say("k=v").await.starts_with("ok "));
    drop(again);
}

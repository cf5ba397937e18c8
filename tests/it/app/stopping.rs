//! How the server stops: calls in flight finish, those who route to it are told first, and nobody is waited for too long.

use std::sync::Arc;
use std::time::Duration;

use sluice::config::settings::value::Listen;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{LIMITS, asked};
use crate::testapp::TestApp;
use crate::wait::until;
use crate::wire::{METHOD, Wire, framed};

#[tokio::test]
async fn stopping_lets_calls_in_flight_finish_and_tells_readiness_first() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let (grpc, admin) = (app.grpc(), app.app.admin);
    let wire = Wire::connect(grpc).await;
    let half_sent = wire.open(METHOD).await;
    let service = Arc::clone(&app.app.service);
    let in_flight = service.call();
    let stopping = tokio::spawn(app.app.stop());

    until("readiness to fall", async || match crate::http::get(admin, "/readyz").await {
        answer if answer.status == 503 => {
            assert_eq!(answer.body, "draining\n");
            Ok(())
        }
        answer => Err(answer.body),
    })
    .await;
    assert_eq!(crate::http::get(admin, "/livez").await.status, 200, "it is still alive");
    until("the port to close", async || match tokio::net::TcpStream::connect(grpc).await {
        Err(_) => Ok(()),
        Ok(_) => Err("it is open".to_owned()),
    })
    .await;
    assert!(!stopping.is_finished(), "a call is in flight");
    let response = half_sent.finish(&framed(&asked("a=1"))).await.response();
    assert_eq!(response.statuses[0].limit_remaining, 2, "what had begun was answered");
    assert!(!stopping.is_finished(), "another call is in flight");

    drop(in_flight);
    tokio::time::timeout(Duration::from_secs(5), stopping).await.expect("it must stop").unwrap();
    assert!(tokio::net::TcpStream::connect(admin).await.is_err(), "the admin port goes last");
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_a_stop() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&["a=1 -> ok 2/3 hour"]).await;
    let _idle_admin = tokio::net::TcpStream::connect(app.app.admin).await.unwrap();
    let mut health = HealthClient::new(app.channel.clone());
    let mut watch =
        health.watch(HealthCheckRequest { service: "ratelimit".to_owned() }).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let stopped = tokio::time::timeout(Duration::from_secs(3), app.app.stop()).await;
    assert!(stopped.is_ok(), "nobody waits for a stream that never ends");
}

/// Whoever routes to us sees that readiness has fallen while it can still call, and connect anew.
#[tokio::test]
async fn a_stop_leaves_those_who_are_connected_time_to_go_elsewhere() {
    let app =
        TestApp::with_limits(LIMITS).and_settings(|settings| settings.drain.wait_seconds = 2).start().await;
    app.answers(&["a=1 -> ok 2/3 hour"]).await;
    let TestApp { app, channel, dir } = app;
    let Listen::Tcp(grpc) = app.grpc.clone() else { panic!("it has a port") };
    let (admin, started) = (app.admin, sluice::clock::instant());
    let stopping = tokio::spawn(app.stop());
    until("readiness to fall", async || match crate::http::get(admin, "/readyz").await {
        answer if answer.status == 503 => Ok(()),
        answer => Err(answer.body),
    })
    .await;
    let status = HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(status.into_inner().status(), ServingStatus::NotServing);
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    tokio::net::TcpStream::connect(grpc).await.expect("the port is open");
    let mut client = RateLimitServiceClient::new(channel.clone());
    client.should_rate_limit(crate::ask::request("a=1")).await.expect("a call is answered");
    assert!(!stopping.is_finished());
    // When the last one has gone there is nobody to wait for.
    drop((client, channel));
    tokio::time::timeout(Duration::from_millis(700), stopping).await.expect("it must stop").unwrap();
    assert!(started.elapsed() < Duration::from_millis(1_900), "{:?}", started.elapsed());
    drop(dir);
}

/// Those who stay are not waited for any longer than the setting says.
#[tokio::test]
async fn a_stop_waits_no_longer_than_it_may() {
    let app =
        TestApp::with_limits(LIMITS).and_settings(|settings| settings.drain.wait_seconds = 1).start().await;
    app.answers(&["a=1 -> ok 2/3 hour"]).await;
    let started = sluice::clock::instant();
    app.app.stop().await;
    let took = started.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_millis(2_500)).contains(&took), "{took:?}");
}

//! Twenty sidecars over two hubs over a cluster of three, all real processes, under load while a hub and the primary are killed.

use crate::http;
use crate::hub_process::HubProcess;
use crate::slab_fleet::instance::start_on;
use crate::slab_fleet::load::Load;
use crate::slab_fleet::oracle::most_in_a_window;
use crate::tigerbeetle::Replicas;

const LIMITS: &str = "
domain: d
limits:
- {key: five, kind: rolling, capacity: 1000, window_seconds: 5}
descriptors:
- {key: five, limits: [{ref: five}]}
";

async fn hub(replicas: &Replicas) -> HubProcess {
    HubProcess::start(&replicas.addresses, 2_000, "127.0.0.1:0", "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_sidecars_never_exceed_a_limit_whoever_is_killed() {
    let mut replicas = Replicas::start();
    let mut hubs = [hub(&replicas).await, hub(&replicas).await];
    let uri = format!("hub:{},{}", hubs[0].address, hubs[1].address);
    let sidecars = start_on(&[&uri], LIMITS, 2_000, 20).await;
    let load = Load::start(&sidecars, "five=x", 1);
    load.until_admitted(1_500, None, "before the faults").await;

    hubs[0].sluice.process.signal("KILL");
    assert!(!hubs[0].sluice.process.exit().await.success());
    load.until_admitted(1_000, None, "with one hub").await;
    for sidecar in 0..20 {
        load.until_admitted(1, Some(sidecar), "every sidecar goes on").await;
    }

    replicas.replicas[0].kill();
    load.until_admitted(1_000, None, "without the primary").await;

    let failed = load.failed();
    let admissions = load.finish().await;
    let most = most_in_a_window(&admissions, &[], 5_000_000);
    println!("{most} of 1000 in the fullest window of {} admissions, {failed} failed", admissions.len());
    assert!(most <= 1_000, "{most} of 1000 in one window");
    assert!(most >= 800, "the oracle saw no full window, so it proved nothing: {most}");
    for sidecar in &sidecars {
        let answer = http::get(sidecar.sluice.admin, "/readyz").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

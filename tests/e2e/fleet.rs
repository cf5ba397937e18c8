//! Several Envoys, several Sluices, one TigerBeetle: together they admit what one would, also while one of them drains.

use std::sync::Arc;

use crate::envoy::{Envoy, FAIL_CLOSED};
use crate::sluice::{Sluice, directory, serve};
use crate::tigerbeetle::Server;
use crate::wait::until;

/// Time for a busy machine.
const PATIENT: &str = "ledger: {timeout_ms: 20000}";

async fn sluice(ledger: &Server, capacity: usize) -> Sluice {
    let limits = format!(
        "domain: demo\ndescriptors: [{{key: path, rate_limit: {{unit: hour, requests_per_unit: {capacity}}}}}]"
    );
    let dir = directory(&[("config/limits/limits.yaml", &limits), ("config/sluice.yaml", PATIENT)]);
    let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger"]);
    command.arg(format!("tigerbeetle:0@{}", ledger.address()));
    let sluice = Sluice::start(dir, command).await;
    until("Sluice to be ready", async || match crate::http::get(sluice.admin, "/readyz").await {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    })
    .await;
    sluice
}

/// So many clients that ask one after the other, `each` times; the answers of all.
async fn crowd(envoys: &[Arc<Envoy>], clients: usize, each: usize) -> Vec<u16> {
    let mut crowd = tokio::task::JoinSet::new();
    for client in 0..clients {
        let envoy = Arc::clone(&envoys[client % envoys.len()]);
        crowd.spawn(async move {
            let mut statuses = Vec::new();
            for _ in 0..each {
                statuses.push(envoy.get("/door", &[]).await.status);
            }
            statuses
        });
    }
    crowd.join_all().await.concat()
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|it| **it == status).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_envoys_and_two_sluices_admit_what_one_would() {
    let ledger = Server::start();
    let sluices = [sluice(&ledger, 500).await, sluice(&ledger, 500).await];
    let ports = [sluices[0].grpc_port(), sluices[1].grpc_port()];
    let mut envoys = Vec::new();
    for _ in 0..2 {
        envoys.push(Arc::new(Envoy::of(FAIL_CLOSED).start(&ports).await));
    }
    let statuses = crowd(&envoys, 40, 30).await;
    assert_eq!((count(&statuses, 200), count(&statuses, 429)), (500, 700), "{statuses:?}");
    let arrived: usize = envoys.iter().map(|envoy| envoy.upstream.arrived()).sum();
    assert_eq!(arrived, 500);
}

/// A call that the draining one has is answered by it, and the next goes to the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_sluice_that_drains_under_load_loses_nothing() {
    let ledger = Server::start();
    let stays = sluice(&ledger, 500).await;
    let mut drains = sluice(&ledger, 500).await;
    let ports = [stays.grpc_port(), drains.grpc_port()];
    let envoys = [Arc::new(Envoy::of(FAIL_CLOSED).start(&ports).await)];
    let (statuses, ended) = tokio::join!(crowd(&envoys, 20, 60), async {
        let asked = async || match envoys[0].stat("http.ingress.downstream_rq_total").await {
            asked @ 200.. => Ok(asked),
            asked => Err(format!("{asked} requests")),
        };
        let asked = until("the crowd to be under way", asked).await;
        assert!(asked < 1000, "the crowd must not be through yet");
        drains.process.signal("TERM");
        drains.process.exit().await
    });
    assert_eq!(ended.code(), Some(0));
    assert_eq!((count(&statuses, 200), count(&statuses, 429)), (500, 700), "{:?}", {
        let mut other = statuses.clone();
        other.retain(|status| *status != 200 && *status != 429);
        other
    });
}

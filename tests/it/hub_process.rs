//! A hub that is a process of its own, on TigerBeetle.

use crate::http;
use crate::sluice::{Sluice, directory, serve};
use crate::wait::until;

pub struct HubProcess {
    pub sluice: Sluice,
    pub address: String,
}

impl HubProcess {
    /// `addresses` are those of the cluster; with more settings than `ledger` and `hub` in `others`.
    pub async fn start(addresses: &str, timeout_ms: u64, listen: &str, others: &str) -> Self {
        let settings = format!(
            "ledger: {{uri: 'tigerbeetle:0@{addresses}', timeout_ms: {timeout_ms}}}\nhub: {{listen: '{listen}'}}\n{others}"
        );
        let dir = directory(&[("config/sluice.yaml", &settings)]);
        let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let mut sluice = Sluice::start(dir, command).await;
        let address = sluice.process.line("hub listening on ").await;
        until("readiness", async || {
            let answer = http::get(sluice.admin, "/readyz").await;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await;
        HubProcess { sluice, address }
    }
}

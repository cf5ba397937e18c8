//! Clients of a real Envoy that leave before they are served hold nothing of a limit, and others get what is theirs.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[cfg(feature = "tigerbeetle")]
use crate::leases::SECRETS;
use crate::leases::Setup;
#[cfg(feature = "tigerbeetle")]
use crate::sluice::directory;

/// What one tenant may have under way at the same time.
const INFLIGHT: u32 = 20;

/// As in config/limits/llm.yaml, but nothing of it comes back by itself while a test runs.
const LIMITS: &str = "
domain: llm
descriptors:
- key: tenant
  descriptors:
  - key: model
    limits:
    - {name: tpm, kind: rolling, capacity: 100000000, window_seconds: 3600, reconcile: true}
    - {name: inflight, kind: concurrency, capacity: 20, timeout_seconds: 3600}
";

/// Each client stays so much longer than the one before, after it has sent its request. Envoy asks Sluice meanwhile: some
/// leave before it has asked, some before the answer is there, and with some it crosses their leaving.
const STEP: Duration = Duration::from_micros(100);

/// So many HTTP/2 requests, each reset right after it was sent, in one write.
fn requests_and_resets(count: u32) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    // In the plainest HPACK: `:method GET`, `:scheme http`, `:path /wait`, `:authority x`, `x-tenant: acme`.
    let headers =
        [&[0x82, 0x86, 0x04, 5][..], b"/wait", &[0x01, 1], b"x", &[0, 8], b"x-tenant", &[4], b"acme"];
    let headers = headers.concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    for stream in (1..2 * count).step_by(2) {
        bytes.extend(frame(1, 5, stream, &headers));
        bytes.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    bytes
}

impl Setup {
    /// All requests on one connection, and all resets, in one write.
    async fn reset_all(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.envoy.address).await.unwrap();
        stream.write_all(&requests_and_resets(INFLIGHT)).await.unwrap();
        stream
    }

    /// A connection for each request, closed soon after it was sent.
    async fn close_all(&self) {
        for n in 0..INFLIGHT {
            let stream = self.open("/wait").await;
            // The runtime's own clock knows only milliseconds.
            std::thread::sleep(STEP * n);
            drop(stream);
        }
    }

    async fn nobody_who_left_holds_anything(&self) {
        for _ in 0..5 {
            // The connection stays: it is the resets that count.
            let _stays = self.reset_all().await;
            self.is_free().await;
            self.close_all().await;
            self.is_free().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_memory() {
    Setup::limited(LIMITS, &[]).await.nobody_who_left_holds_anything().await;
}

#[cfg(feature = "tigerbeetle")]
#[tokio::test(flavor = "multi_thread")]
async fn on_tigerbeetle() {
    let server = crate::tigerbeetle::Server::start();
    let dir = directory(&[("config/limits/limits.yaml", LIMITS), ("config/sluice.yaml", SECRETS)]);
    let sluice = crate::leases::two_instances::start_in(dir, &server).await;
    Setup::with(vec![sluice], &[]).await.nobody_who_left_holds_anything().await;
}

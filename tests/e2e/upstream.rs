//! The upstream behind Envoy: answers everything with 200, as slowly and with as many tokens as it is asked to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::HeaderMap;

/// Serves until it is dropped.
pub struct Upstream {
    pub port: u16,
    arrived: Arc<AtomicUsize>,
    serving: tokio::task::JoinHandle<()>,
}

/// What a request may ask for: `/?sleep_ms=500&tokens=42`.
#[derive(serde::Deserialize)]
struct Wish {
    #[serde(default)]
    sleep_ms: u64,
    tokens: Option<String>,
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let arrived = Arc::new(AtomicUsize::new(0));
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&arrived));
        let serving =
            tokio::spawn(async move { axum::serve(listener, router).await.expect("it never ends") });
        Self { port, arrived, serving }
    }

    /// Requests that came through.
    pub fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    State(arrived): State<Arc<AtomicUsize>>,
    Query(wish): Query<Wish>,
) -> (HeaderMap, &'static str) {
    arrived.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(wish.sleep_ms)).await;
    let mut headers = HeaderMap::new();
    if let Some(tokens) = wish.tokens {
        headers.insert("x-tokens-used", tokens.parse().unwrap());
    }
    (headers, "from the upstream")
}

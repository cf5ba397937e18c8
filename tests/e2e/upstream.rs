//! The upstream behind Envoy, and how many requests reached it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Request;
use axum::middleware::{Next, from_fn};

/// Serves until it is dropped.
pub struct Upstream {
    pub port: u16,
    arrived: Arc<AtomicUsize>,
    serving: tokio::task::JoinHandle<()>,
}

impl Upstream {
    pub async fn start(router: axum::Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let arrived = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&arrived);
        let router = router.layer(from_fn(move |request: Request, next: Next| {
            count.fetch_add(1, Ordering::SeqCst);
            next.run(request)
        }));
        let serving =
            tokio::spawn(async move { axum::serve(listener, router).await.expect("it never ends") });
        Self { port, arrived, serving }
    }

    pub fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

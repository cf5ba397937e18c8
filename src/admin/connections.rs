//! The connections of the admin port: HTTP/1.1, each with a time for its next request to come, and drained at the end.
//!
//! Refuses to know routes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::peer::{LooksFirst, Peer};
use crate::api::delivery::{self, AnswerBody};

/// From the start of a connection, or the end of an answer on it, to the end of the next request's headers. Longer than
/// Prometheus leaves its connection alone; a peer that is gone, or never says what it wants, has its place no longer.
pub const HEADERS_WITHIN: Duration = Duration::from_secs(75);

/// Serves until `stop`, then lets calls in flight finish.
pub async fn serve<L: axum::serve::Listener>(
    mut listener: L,
    router: Router,
    headers_within: Duration,
    stop: CancellationToken,
) {
    let draining = GracefulShutdown::new();
    // An accept that fails is tried again by the listener, after a while.
    while let Some((stream, _)) = stop.run_until_cancelled(listener.accept()).await {
        let mut builder = http1::Builder::new();
        let builder = builder.timer(TokioTimer::new()).header_read_timeout(headers_within);
        let (router, peer) = (router.clone(), Arc::new(Peer::default()));
        let stream = TokioIo::new(LooksFirst::new(stream, Arc::clone(&peer)));
        let service = service_fn(move |request| answer(router.clone(), request, Arc::clone(&peer)));
        let connection = draining.watch(builder.serve_connection(stream, service));
        // A connection that fails is its peer's affair.
        tokio::spawn(async move { drop(connection.await) });
    }
    drop(listener);
    draining.shutdown().await;
}

/// The answer of a route, with the leases that it tells of.
async fn answer(
    router: Router,
    request: Request<Incoming>,
    peer: Arc<Peer>,
) -> Result<Response<AnswerBody<Body>>, Infallible> {
    let mut response = router.oneshot(request).await?;
    let unsent = delivery::carried(response.extensions_mut());
    if !unsent.is_empty() {
        peer.must_be_there();
    }
    Ok(response.map(|body| AnswerBody::new(body, unsent)))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// What comes back until the other side closes.
    async fn said(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await;
        read.expect("the connection must be closed").expect("what is said must be text");
        text
    }

    #[tokio::test]
    async fn who_never_says_what_it_wants_is_closed_and_who_does_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route("/", axum::routing::get(async || "here"));
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, router, Duration::from_millis(300), stop.clone()));
        for sent in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: x\r\n"] {
            let mut stream = TcpStream::connect(address).await.expect("a connection");
            stream.write_all(sent.as_bytes()).await.expect("to be heard");
            assert_eq!(said(&mut stream).await, "", "{sent}");
        }
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("to be heard");
        let answer = said(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("here"), "{answer}");
        stop.cancel();
        serving.await.expect("it must end");
    }
}

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

use super::peer::PeerStream;
use crate::api::delivery::{self, AnswerBody, TakenLeases, Way};
use crate::listen::Listener;
use crate::listen::port::{Place, Port};

/// From the start of a connection, or the end of an answer on it, to the end of the next request's headers. This is longer than
/// Prometheus pauses between two requests. A peer that is gone, or never sends a request, keeps its place no longer.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(75);

/// What is read ahead on a connection: a request's headers, or the requests behind the one that is answered.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;

/// Serves until `stop`, then lets calls in flight finish. Routes find their `Arc<Connection>` with the request.
pub(crate) async fn serve(
    listener: Listener,
    port: Arc<Port>,
    router: Router,
    headers_within: Duration,
    stop: CancellationToken,
) {
    let draining = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(headers_within).max_buf_size(READ_AHEAD_BYTES_MAX);
    let connect = |stream, place: Place| {
        let (router, taken) = (router.clone(), Arc::new(TakenLeases::default()));
        let stream = TokioIo::new(PeerStream::new(stream, Arc::clone(&taken)));
        let connection = Arc::clone(&place.connection);
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(&connection));
            answer(router.clone(), request, Arc::clone(&taken))
        });
        let served = draining.watch(http.serve_connection(stream, service));
        Arc::clone(place.connection.port()).run(place.keep(served));
    };
    listener.serve(&port, stop, connect).await;
    draining.shutdown().await;
}

/// The answer of a route, with the leases that it tells of.
async fn answer(
    router: Router,
    request: Request<Incoming>,
    taken: Arc<TakenLeases>,
) -> Result<Response<AnswerBody<Body>>, Infallible> {
    let mut response = router.oneshot(request).await?;
    let carried = delivery::carried(response.extensions_mut());
    Ok(response.map(|body| {
        let mut body = AnswerBody::new(body, carried);
        body.go(Way { taker: taken, _call: None });
        body
    }))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::telemetry::Metrics;

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
        let port = super::super::port(10, &Metrics::default());
        let within = Duration::from_millis(300);
        let serving = tokio::spawn(serve(Listener::Tcp(listener), port, router, within, stop.clone()));
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

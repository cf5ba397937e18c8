//! Traces: a span for each decision that is sampled and for each ledger batch that it was part of, sent by OTLP.
//!
//! | file | has |
//! |---|---|
//! | [`options`] | what can be set, and how it is read from text |
//! | [`context`] | what a caller says of its own span, and whether ours is sampled. Pure |
//! | [`span`] | the span of a call, and that of a batch. Whoever works for a call finds its span with [`note`] and [`link`] |
//! | [`export`] | one task that sends what has gathered, and the bounded queue to it |
//! | [`transport`] | gRPC or HTTP/protobuf |
//!
//! Without an endpoint there is no [`Tracer`], and a decision has one branch more. With one, no call ever waits for it: what
//! the queue has no room for is dropped and counted. Refuses to know what a decision is.

mod context;
mod export;
pub mod options;
mod pb;
mod span;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::export::Exporter;
use self::export::Queue;
use self::options::Sampler;
pub(crate) use self::options::{Otlp, Tls};
pub(crate) use self::span::{Batch, Call, Link, Span, link, note, within};
use crate::telemetry::Metrics;

/// Starts spans. A clone is the same.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sampler: Sampler,
    queue: Queue,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
}

impl Tracer {
    /// The tracer, and the task that sends. `instance` is what this process is called if nothing else says so.
    pub(crate) fn new(
        options: Otlp,
        tls: Option<Tls>,
        instance: &str,
        metrics: &Metrics,
    ) -> (Self, Exporter) {
        tracing::info!(endpoint = %options.endpoint, "decisions are traced");
        let (flushes, asked) = mpsc::channel(1);
        let sampler = options.sampler;
        let (queue, exporter) = Exporter::new(options, tls, instance, asked, metrics.traces.clone());
        (Self(Arc::new(Inner { sampler, queue, flushes })), exporter)
    }

    /// The span of a call with these headers; `None` if it is not sampled. It goes on with the caller's trace.
    pub(crate) fn call(&self, call: &'static Call, headers: &HeaderMap) -> Option<Box<Span>> {
        let parent = context::parent(headers);
        let trace_id = parent.map_or_else(context::fresh_trace_id, |parent| parent.trace_id);
        let is_sampled = self.0.sampler.samples(trace_id, parent.map(|parent| parent.is_sampled));
        is_sampled.then(|| {
            let state = parent.map(|_| context::state(headers)).unwrap_or_default();
            Box::new(Span::begin(self.clone(), call, trace_id, parent, state))
        })
    }

    /// Sends what has gathered. What could not be sent by then is lost.
    pub(crate) async fn flush(&self, within: Duration) {
        let (done, flushed) = oneshot::channel();
        let sent = async {
            if self.0.flushes.send(done).await.is_ok() {
                drop(flushed.await);
            }
        };
        if tokio::time::timeout(within, sent).await.is_err() {
            tracing::warn!("the last traces were not sent in time");
        }
    }
}

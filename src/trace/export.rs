//! The queue of spans that have ended, and the one task that sends them.
//!
//! Nobody waits for the queue: what it has no room for is dropped. While the collector is away what was gathered is sent again
//! and again; what it refuses is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::sync::{mpsc, oneshot};

use super::options::{Otlp, Tls};
use super::pb;
use super::span::attribute;
use super::transport::{SendError, Transport};
use crate::telemetry::TraceMetrics;

/// Spans that wait, and their bytes: 2 KiB each, and a decision that met 32 limits with the longest keys has 32 KiB.
const QUEUE_MAX: usize = 8_192;
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// What goes into one request: far below the 4 MiB that a collector takes.
const BATCH_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 1 << 20;

/// How long spans gather before they are sent.
const GATHER: Duration = Duration::from_secs(1);

/// Between two tries while the collector is away; each is twice the one before.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Where spans go that have ended.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<Ended>,
    /// Of all spans in it.
    bytes: Arc<AtomicUsize>,
    metrics: TraceMetrics,
}

#[derive(Debug)]
struct Ended {
    span: pb::Span,
    bytes: usize,
}

impl Queue {
    pub(super) fn push(&self, span: pb::Span) {
        let bytes = span.encoded_len();
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before.saturating_add(bytes) <= QUEUE_BYTES_MAX;
        if !has_room || self.spans.try_send(Ended { span, bytes }).is_err() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.metrics.dropped.inc();
        }
    }
}

/// The task.
#[derive(Debug)]
pub(crate) struct Exporter {
    spans: mpsc::Receiver<Ended>,
    bytes: Arc<AtomicUsize>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    transport: Transport,
    resource: pb::Resource,
    metrics: TraceMetrics,
    batch: Vec<pb::Span>,
    batch_bytes: usize,
    /// The last request was not answered, and that was logged.
    is_away: bool,
    retry: Duration,
}

impl Exporter {
    pub(super) fn new(
        mut options: Otlp,
        tls: Option<Tls>,
        instance: &str,
        flushes: mpsc::Receiver<oneshot::Sender<()>>,
        metrics: TraceMetrics,
    ) -> (Queue, Self) {
        let (sender, spans) = mpsc::channel(QUEUE_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        let queue = Queue { spans: sender, bytes: Arc::clone(&bytes), metrics: metrics.clone() };
        options.describe_else("service.name", "sluice");
        options.describe_else("service.version", env!("CARGO_PKG_VERSION"));
        options.describe_else("service.instance.id", instance);
        let attributes =
            options.resource.iter().map(|(name, value)| attribute(name, value.as_str())).collect();
        let exporter = Self {
            spans,
            bytes,
            flushes,
            transport: Transport::new(&options, tls),
            resource: pb::Resource { attributes },
            metrics,
            batch: Vec::new(),
            batch_bytes: 0,
            is_away: false,
            retry: RETRY_MIN,
        };
        (queue, exporter)
    }

    /// Sends until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let flush = match self.gather().await {
                Some(flush) => Some(flush),
                None => self.send_or_flush().await,
            };
            if let Some(done) = flush {
                self.flush().await;
                // Who asked may have stopped waiting.
                let _ = done.send(());
            }
        }
    }

    /// Until there is enough, or something for long enough; or until somebody wants it sent.
    async fn gather(&mut self) -> Option<oneshot::Sender<()>> {
        if self.batch.is_empty() {
            tokio::select! {
                Some(ended) = self.spans.recv() => self.take(ended),
                Some(flush) = self.flushes.recv() => return Some(flush),
                else => std::future::pending().await,
            }
        }
        let enough = tokio::time::sleep(GATHER);
        tokio::pin!(enough);
        while !self.is_full() {
            tokio::select! {
                Some(ended) = self.spans.recv() => self.take(ended),
                Some(flush) = self.flushes.recv() => return Some(flush),
                () = &mut enough => return None,
            }
        }
        None
    }

    fn take(&mut self, Ended { span, bytes }: Ended) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.batch_bytes += bytes;
        self.batch.push(span);
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_MAX || self.batch_bytes >= BATCH_BYTES_MAX
    }

    /// One try, and the wait after one that failed. Somebody who wants it sent now interrupts both.
    async fn send_or_flush(&mut self) -> Option<oneshot::Sender<()>> {
        let request = self.request();
        let sent = tokio::select! {
            sent = self.transport.send(&request) => sent,
            Some(flush) = self.flushes.recv() => return Some(flush),
        };
        if self.settle(sent) {
            return None;
        }
        let wait = self.retry;
        self.retry = (wait * 2).min(RETRY_MAX);
        tokio::select! {
            () = tokio::time::sleep(wait) => None,
            Some(flush) = self.flushes.recv() => Some(flush),
        }
    }

    /// Sends all there is, each once. If that fails, the rest is lost.
    async fn flush(&mut self) {
        loop {
            while !self.is_full()
                && let Ok(ended) = self.spans.try_recv()
            {
                self.take(ended);
            }
            if self.batch.is_empty() {
                return;
            }
            let request = self.request();
            let sent = self.transport.send(&request).await;
            if !self.settle(sent) {
                break;
            }
        }
        while let Ok(ended) = self.spans.try_recv() {
            self.take(ended);
        }
        self.metrics.failed.inc_by(self.batch.len() as u64);
        self.clear();
    }

    /// Whether the batch is done with.
    fn settle(&mut self, sent: Result<u64, SendError>) -> bool {
        let count = self.batch.len() as u64;
        match sent {
            Ok(refused) => {
                let refused = refused.min(count);
                self.metrics.sent.inc_by(count - refused);
                self.metrics.failed.inc_by(refused);
                if std::mem::take(&mut self.is_away) {
                    tracing::info!(endpoint = %self.transport.endpoint(), "traces are sent again");
                }
                self.retry = RETRY_MIN;
            }
            Err(SendError::Refused(why)) => {
                tracing::warn!(endpoint = %self.transport.endpoint(), why, "{count} spans were refused");
                self.metrics.failed.inc_by(count);
            }
            Err(SendError::Away(why)) => {
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(endpoint = %self.transport.endpoint(), why, "traces can't be sent");
                }
                return false;
            }
        }
        self.clear();
        true
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.batch_bytes = 0;
    }

    fn request(&self) -> pb::ExportTraceServiceRequest {
        let scope = pb::InstrumentationScope {
            name: "sluice".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let spans = pb::ScopeSpans { scope: Some(scope), spans: self.batch.clone() };
        let resource = pb::ResourceSpans { resource: Some(self.resource.clone()), scope_spans: vec![spans] };
        pb::ExportTraceServiceRequest { resource_spans: vec![resource] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tracer;
    use super::*;
    use crate::telemetry::Metrics;

    /// Nobody sends.
    fn tracer(metrics: &Metrics) -> (Tracer, Exporter) {
        let otlp = Otlp::to("http://127.0.0.1:9".parse().unwrap());
        Tracer::new(otlp, None, "one", metrics)
    }

    fn span(name_bytes: usize) -> pb::Span {
        pb::Span { name: "x".repeat(name_bytes), ..pb::Span::default() }
    }

    #[tokio::test]
    async fn what_the_queue_has_no_room_for_is_dropped_and_counted() {
        let metrics = Metrics::default();
        let (Tracer(inner), mut exporter) = tracer(&metrics);
        (0..QUEUE_MAX + 5).for_each(|_| inner.queue.push(span(10)));
        assert_eq!(metrics.traces.dropped.get(), 5, "too many");
        while let Ok(ended) = exporter.spans.try_recv() {
            exporter.take(ended);
        }
        assert_eq!(inner.queue.bytes.load(Ordering::Relaxed), 0);
        (0..17).for_each(|_| inner.queue.push(span(1 << 20)));
        assert_eq!(metrics.traces.dropped.get(), 7, "too large: of 16 MiB each MiB is a little more");
        let text = metrics.encode().unwrap();
        assert!(text.contains("sluice_trace_spans_total{result=\"dropped\"} 7\n"), "{text}");
    }

    #[tokio::test]
    async fn what_is_left_at_the_end_is_counted() {
        let metrics = Metrics::default();
        let (tracer, exporter) = tracer(&metrics);
        let sending = tokio::spawn(exporter.run());
        (0..BATCH_MAX + 1).for_each(|_| tracer.0.queue.push(span(10)));
        tracer.flush(Duration::from_secs(3)).await;
        assert_eq!((metrics.traces.sent.get(), metrics.traces.failed.get()), (0, BATCH_MAX as u64 + 1));
        sending.abort();
    }
}

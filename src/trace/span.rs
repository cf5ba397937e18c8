//! Open spans: that of a call, which the call's own task carries along, and that of a ledger batch with the calls in it.
//!
//! A span ends when it is dropped, so that one whose caller leaves ends too. Refuses to know what is said of a call.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::Tracer;
use super::context::{self, Parent};
use super::pb;
use super::pb::any_value::Value as AnyValue;
use super::pb::span::{Link as LinkMessage, SpanKind};
use super::pb::status::StatusCode;
use crate::clock;

/// Links of one span, and values of one list; what is beyond is left out.
const LINKS_MAX: usize = 128;
const LIST_MAX: usize = 128;

/// The flags of OTLP: sampled; and that it is known whether the parent is elsewhere, and it is.
const SAMPLED: u32 = 1;
const REMOTE_PARENT: u32 = 0x300;

tokio::task_local! {
    /// Of the call that this task works for. Carried so, because between a port and a ledger there are layers that know
    /// nothing of spans.
    static CURRENT: Box<Span>;
}

/// A kind of call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// What is true of all of them.
    pub(crate) attributes: &'static [(&'static str, &'static str)],
    /// The attribute that has its status, and the status if nothing else is noted.
    pub(crate) status: (&'static str, i64),
}

/// Which trace, and which span of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Context {
    trace_id: u128,
    span_id: u64,
}

/// A call, as a batch sees it.
#[derive(Debug, Clone)]
pub(crate) struct Link(Arc<Linked>);

#[derive(Debug)]
struct Linked {
    tracer: Tracer,
    context: Context,
    /// The batches that it was part of, nearly always one. A plain mutex: one is pushed, or all are taken.
    batches: Mutex<Vec<Context>>,
}

/// When a span began, by both clocks: that which other machines read, and that which says how long it took.
#[derive(Debug, Clone, Copy)]
struct Begun {
    unix_ns: u64,
    instant: Instant,
}

impl Begun {
    fn now() -> Self {
        Self { unix_ns: clock::unix_ns(), instant: clock::instant() }
    }

    fn ended_unix_ns(self) -> u64 {
        let took_ns = u64::try_from(self.instant.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.unix_ns.saturating_add(took_ns)
    }
}

/// The span of a call.
pub(crate) struct Span {
    link: Link,
    call: &'static Call,
    parent: Option<Parent>,
    state: String,
    begun: Begun,
    noted: RefCell<Vec<pb::KeyValue>>,
    status: Cell<i64>,
    error: RefCell<Option<String>>,
    is_answered: Cell<bool>,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({}, {:?})", self.call.name, self.link.0.context)
    }
}

impl Span {
    pub(super) fn begin(
        tracer: Tracer,
        call: &'static Call,
        trace_id: u128,
        parent: Option<Parent>,
        state: String,
    ) -> Self {
        let context = Context { trace_id, span_id: context::fresh_span_id() };
        let (noted, status) = (RefCell::default(), Cell::new(call.status.1));
        Self {
            link: Link(Arc::new(Linked { tracer, context, batches: Mutex::default() })),
            call,
            parent,
            state,
            begun: Begun::now(),
            noted,
            status,
            error: RefCell::default(),
            is_answered: Cell::new(false),
        }
    }

    /// Does `work` within it.
    pub(crate) async fn around<F: Future>(self: Box<Self>, work: Pin<Box<F>>) -> F::Output {
        let answering = async {
            let answer = work.await;
            note(|span| span.is_answered.set(true));
            answer
        };
        CURRENT.scope(self, answering).await
    }

    /// Sets an attribute; the last one that is set counts.
    pub(crate) fn set(&self, key: &'static str, value: impl Into<Attribute>) {
        let mut noted = self.noted.borrow_mut();
        noted.retain(|there| there.key != key);
        noted.push(attribute(key, value));
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.noted.borrow().iter().any(|there| there.key == key)
    }

    /// Adds to an attribute that is a list.
    pub(crate) fn add<T: Into<String>>(&self, key: &'static str, texts: impl IntoIterator<Item = T>) {
        let mut noted = self.noted.borrow_mut();
        let there = noted.iter_mut().find_map(|there| match &mut there.value {
            Some(pb::AnyValue { value: Some(AnyValue::ArrayValue(list)) }) if there.key == key => Some(list),
            _ => None,
        });
        let texts = texts.into_iter().map(|text| any(AnyValue::StringValue(text.into())));
        match there {
            Some(list) => {
                let room = LIST_MAX.saturating_sub(list.values.len());
                list.values.extend(texts.take(room));
            }
            None => {
                let values = texts.take(LIST_MAX).collect();
                let value = any(AnyValue::ArrayValue(pb::ArrayValue { values }));
                noted.push(pb::KeyValue { key: key.to_owned(), value: Some(value) });
            }
        }
    }

    /// What the call was answered, in the terms of its protocol.
    pub(crate) fn status(&self, status: i64) {
        self.status.set(status);
    }

    /// It has failed, and that is not its caller's doing.
    pub(crate) fn fail(&self, why: impl Into<String>) {
        *self.error.borrow_mut() = Some(why.into());
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Context { trace_id, span_id } = self.link.0.context;
        let mut attributes: Vec<pb::KeyValue> =
            self.call.attributes.iter().map(|(key, value)| attribute(key, *value)).collect();
        attributes.append(self.noted.get_mut());
        let mut error = self.error.take();
        if self.is_answered.get() {
            attributes.push(attribute(self.call.status.0, self.status.get()));
        } else {
            error = error.or_else(|| Some("the caller left before it was answered".to_owned()));
        }
        let parent_flags = if self.parent.is_some() { REMOTE_PARENT } else { 0 };
        let batches = std::mem::take(&mut *self.link.0.batches.lock());
        let span = pb::Span {
            trace_id: trace_id.to_be_bytes().to_vec(),
            span_id: span_id.to_be_bytes().to_vec(),
            trace_state: std::mem::take(&mut self.state),
            parent_span_id: self.parent.map_or_else(Vec::new, |parent| parent.span_id.to_be_bytes().to_vec()),
            name: self.call.name.to_owned(),
            kind: SpanKind::Server.into(),
            start_time_unix_nano: self.begun.unix_ns,
            end_time_unix_nano: self.begun.ended_unix_ns(),
            attributes,
            links: batches.into_iter().map(link_message).collect(),
            dropped_links_count: 0,
            status: error.map(failed),
            flags: SAMPLED | parent_flags,
        };
        self.link.0.tracer.0.queue.push(span);
    }
}

/// Does `work`, within its span if there is one.
pub(crate) async fn within<F: Future>(span: Option<Box<Span>>, work: Pin<Box<F>>) -> F::Output {
    match span {
        None => work.await,
        // On the heap, because few have one and all would carry the space for it.
        Some(span) => Box::pin(span.around(work)).await,
    }
}

/// Says something of the call that this task works for, if it has a span.
pub(crate) fn note(say: impl FnOnce(&Span)) {
    let _ = CURRENT.try_with(|span| say(span));
}

/// The call that this task works for, if it has a span.
pub(crate) fn link() -> Option<Link> {
    CURRENT.try_with(|span| span.link.clone()).ok()
}

/// The span of what was sent to a ledger together.
pub(crate) struct Batch {
    tracer: Tracer,
    context: Context,
    ledger: &'static str,
    events: i64,
    begun: Begun,
    links: Vec<Context>,
    left_out: usize,
    error: Option<String>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({}, {} calls)", self.ledger, self.links.len() + self.left_out)
    }
}

impl Batch {
    /// `None` if none of its calls has a span. They are linked to it, and it is to them.
    pub(crate) fn begin(ledger: &'static str, events: usize, calls: &[Link]) -> Option<Box<Self>> {
        let tracer = calls.first()?.0.tracer.clone();
        let context = Context { trace_id: context::fresh_trace_id(), span_id: context::fresh_span_id() };
        for call in calls {
            let mut batches = call.0.batches.lock();
            if batches.len() < LINKS_MAX {
                batches.push(context);
            }
        }
        Some(Box::new(Self {
            tracer,
            context,
            ledger,
            events: i64::try_from(events).unwrap_or(i64::MAX),
            begun: Begun::now(),
            links: calls.iter().take(LINKS_MAX).map(|call| call.0.context).collect(),
            left_out: calls.len().saturating_sub(LINKS_MAX),
            error: None,
        }))
    }

    #[cfg_attr(
        not(feature = "tigerbeetle"),
        allow(dead_code, reason = "only the worker of TigerBeetle knows that a whole batch has failed")
    )]
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        self.error = Some(why.into());
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let Context { trace_id, span_id } = self.context;
        let span = pb::Span {
            trace_id: trace_id.to_be_bytes().to_vec(),
            span_id: span_id.to_be_bytes().to_vec(),
            name: "ledger batch".to_owned(),
            kind: SpanKind::Client.into(),
            start_time_unix_nano: self.begun.unix_ns,
            end_time_unix_nano: self.begun.ended_unix_ns(),
            attributes: vec![
                attribute("sluice.ledger", self.ledger),
                attribute("sluice.events", self.events),
            ],
            links: self.links.drain(..).map(link_message).collect(),
            dropped_links_count: u32::try_from(self.left_out).unwrap_or(u32::MAX),
            status: self.error.take().map(failed),
            flags: SAMPLED,
            ..pb::Span::default()
        };
        self.tracer.0.queue.push(span);
    }
}

/// The value of an attribute.
#[derive(Debug)]
pub(crate) struct Attribute(AnyValue);

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self(AnyValue::StringValue(text.to_owned()))
    }
}

impl From<i64> for Attribute {
    fn from(number: i64) -> Self {
        Self(AnyValue::IntValue(number))
    }
}

pub(super) fn attribute(key: &str, value: impl Into<Attribute>) -> pb::KeyValue {
    pb::KeyValue { key: key.to_owned(), value: Some(any(value.into().0)) }
}

fn any(value: AnyValue) -> pb::AnyValue {
    pb::AnyValue { value: Some(value) }
}

fn link_message(Context { trace_id, span_id }: Context) -> LinkMessage {
    LinkMessage {
        trace_id: trace_id.to_be_bytes().to_vec(),
        span_id: span_id.to_be_bytes().to_vec(),
        trace_state: String::new(),
        flags: SAMPLED,
    }
}

fn failed(message: String) -> pb::Status {
    pb::Status { message, code: StatusCode::Error.into() }
}

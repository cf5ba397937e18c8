//! One sidecar's stream: what it asks is begun as it comes, and answered as it is done.
//!
//! One loop. What is unanswered is bounded, in number and in bytes: a stream that has too much of it is not read until some
//! is answered, so that the sidecar's own queue fills and its callers are told to come back. What all streams hold together
//! is bounded as well; an ask beyond that is answered at once.
//!
//! A stream that ends takes back nothing of what was begun: the sidecar may have sent it to another hub under the same name, and
//! may have been admitted on it there. Only what a sidecar says is left by its caller is given back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ahash::AHashMap;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

use super::line::Answered;
use super::peers::Registration;
use super::{Hub, answer};
use crate::clock;
use crate::ledger::LedgerError;
use crate::ledger::hub::pb::answer::What as Answer;
use crate::ledger::hub::{pb, wire};
use crate::listen::port::Call;
use crate::service::unsent::UnsentLease;

/// Asks of one stream that may be unanswered, and what they may hold.
const UNANSWERED_MAX: usize = 8_192;
const UNANSWERED_BYTES_MAX: usize = 2 << 20;

/// What the unanswered asks of all streams may hold: a thousand streams with some hundred asks each.
const ALL_BYTES_MAX: usize = 256 << 20;

/// What an ask holds beside what it was sent as: its accounts, its task and its answer.
const ASK_BYTES: usize = 1024;

/// Answers in one message at most.
const ANSWERS_PER_MESSAGE: usize = 1024;

/// How often it is looked whether the sidecar has said anything. It pings a hub that says nothing for a second.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// A sidecar that has said nothing at so many looks in a row, which is 30 to 40 s, is gone.
const SILENT_LOOKS: u32 = 3;

/// A sidecar that doesn't take its answers for so long is gone.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// A hub that stops ends a stream when nothing was asked on it for so long: by then all has come that the sidecar sent before it knew,
/// and what it was lent last is over, which takes half a second at most.
const LEAVING_AFTER_MS: u64 = 700;

pub(super) type Message = Result<pb::HubMessage, Status>;

pub(super) struct Conversation {
    hub: Arc<Hub>,
    registration: Registration,
    asked: Streaming<pb::SidecarMessage>,
    out: mpsc::Sender<Message>,
    call: Arc<Call>,
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Finished> + Send>>>,
    /// Ends an ask under way when the sidecar says that its caller has left.
    handles: AHashMap<u64, AbortHandle>,
    /// What the asks under way hold.
    bytes: usize,
    answers: Vec<pb::Answer>,
    /// What the answers tell of. Dropped before they are sent, it is taken back.
    unsent: Vec<UnsentLease>,
    /// What the sidecar is told of this hub.
    status: watch::Receiver<pb::HubStatus>,
    /// Looks since it last said anything.
    silent_looks: u32,
    asked_at_ms: u64,
}

struct Finished {
    number: u64,
    bytes: usize,
    /// Its caller has left.
    answer: Result<Answered, Aborted>,
}

/// What an ask holds of all that may be held.
struct Held {
    hub: Arc<Hub>,
    bytes: usize,
}

impl Held {
    fn take(hub: &Arc<Hub>, bytes: usize) -> Option<Self> {
        let held = Self { hub: Arc::clone(hub), bytes };
        (hub.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= ALL_BYTES_MAX).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hub.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Why a conversation ends.
enum End {
    /// The sidecar has gone, or doesn't listen.
    Gone,
    /// It can't be understood.
    Wrong(Status),
    /// This hub goes.
    Leaving,
}

impl Conversation {
    pub(super) fn new(
        hub: Arc<Hub>,
        registration: Registration,
        asked: Streaming<pb::SidecarMessage>,
        call: Arc<Call>,
    ) -> (Self, mpsc::Receiver<Message>) {
        let (out, answers) = mpsc::channel(1);
        let mut status = hub.status.subscribe();
        let first = pb::HubMessage {
            hello: Some(wire::hello(&hub.name)),
            status: Some(status.borrow_and_update().clone()),
            ..Default::default()
        };
        out.try_send(Ok(first)).expect("an empty channel must have room");
        let conversation = Self {
            hub,
            registration,
            asked,
            out,
            call,
            under_way: FuturesUnordered::new(),
            handles: AHashMap::new(),
            bytes: 0,
            answers: Vec::new(),
            unsent: Vec::new(),
            status,
            silent_looks: 0,
            asked_at_ms: clock::monotonic_ms(),
        };
        (conversation, answers)
    }

    pub(super) async fn run(mut self) {
        self.hub.metrics.hub_streams.inc();
        let end = self.converse().await;
        self.hub.metrics.hub_streams.dec();
        if let End::Wrong(status) = end {
            tracing::warn!(%status, "a sidecar said what it may not");
            // Whoever does not listen misses it.
            drop(self.out.try_send(Err(status)));
        }
        drop((self.out, self.asked, self.registration, self.unsent));
        // What was begun lands.
        while self.under_way.next().await.is_some() {}
    }

    async fn converse(&mut self) -> End {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_leaving = self.status.borrow().leaving && self.under_way.is_empty();
            let may_read = self.under_way.len() < UNANSWERED_MAX && self.bytes < UNANSWERED_BYTES_MAX;
            tokio::select! {
                message = self.asked.message(), if may_read => match message {
                    Ok(Some(message)) => {
                        if let Err(end) = self.hear(message).await {
                            return end;
                        }
                    }
                    Ok(None) => return End::Gone,
                    Err(status) if status.code() == tonic::Code::InvalidArgument => return End::Wrong(status),
                    Err(status) if status.code() == tonic::Code::OutOfRange => {
                        return End::Wrong(Status::invalid_argument(status.message()));
                    }
                    Err(_) => return End::Gone,
                },
                Some(finished) = self.under_way.next() => {
                    self.finish(finished);
                    while self.answers.len() < ANSWERS_PER_MESSAGE
                        && let Some(Some(finished)) = self.under_way.next().now_or_never()
                    {
                        self.finish(finished);
                    }
                    if let Err(end) = self.say(pb::HubMessage::default()).await {
                        return end;
                    }
                }
                // The hub lives longer than this.
                Ok(()) = self.status.changed() => {
                    let status = Some(self.status.borrow_and_update().clone());
                    // What the sidecar has sent before it hears that is still to come.
                    self.asked_at_ms = clock::monotonic_ms();
                    if let Err(end) = self.say(pb::HubMessage { status, ..Default::default() }).await {
                        return end;
                    }
                }
                () = until_quiet(self.asked_at_ms), if is_leaving => return End::Leaving,
                _ = looks.tick() => {
                    self.silent_looks += 1;
                    if self.silent_looks > SILENT_LOOKS {
                        return End::Gone;
                    }
                }
            }
        }
    }

    /// Begins what is asked.
    async fn hear(&mut self, message: pb::SidecarMessage) -> Result<(), End> {
        self.silent_looks = 0;
        if !message.asks.is_empty() || !message.loan_ends.is_empty() {
            self.asked_at_ms = clock::monotonic_ms();
        }
        for (what, most, count) in [
            ("asks", wire::ASKS_MAX, message.asks.len()),
            ("loan_ends", wire::LOAN_ENDS_MAX, message.loan_ends.len()),
        ] {
            if count > most {
                let text = format!("{what}: there may be {most} in a message, not {count}");
                return Err(End::Wrong(Status::invalid_argument(text)));
            }
        }
        for (n, end) in message.loan_ends.iter().enumerate() {
            let wrong = |what| End::Wrong(Status::invalid_argument(format!("loan_ends[{n}].{what}")));
            self.hub.end_loan(end).map_err(wrong)?;
        }
        let chains = message.asks.iter().filter(|ask| is_chain(ask)).count();
        self.hub.metrics.hub_chains.inc_by(chains as u64);
        self.registration.sidecar.asked(u32::try_from(chains).unwrap_or(u32::MAX), clock::monotonic_ms());
        for ask in message.asks {
            self.begin(ask)?;
        }
        if let Some(report) = message.slabs {
            self.registration.sidecar.holds(report);
        }
        for number in message.left {
            // What is answered already, the sidecar gives back itself.
            if let Some(handle) = self.handles.remove(&number) {
                handle.abort();
            }
        }
        if message.ping != 0 {
            // Not as seen: that this hub leaves is told once by itself, and the time to leave counts from then.
            let status = Some(self.status.borrow().clone());
            self.say(pb::HubMessage { pong: message.ping, status, ..Default::default() }).await?;
        } else if !self.answers.is_empty() {
            self.say(pb::HubMessage::default()).await?;
        }
        Ok(())
    }

    fn begin(&mut self, ask: pb::Ask) -> Result<(), End> {
        let number = ask.number;
        if self.handles.contains_key(&number) {
            let text = format!("asks: number {number} is used again before it was answered");
            return Err(End::Wrong(Status::invalid_argument(text)));
        }
        let bytes = ask.encoded_len() + ASK_BYTES;
        if ask.encoded_len() > wire::ASK_BYTES_MAX {
            let text = format!("an ask may have {} bytes, not {}", wire::ASK_BYTES_MAX, ask.encoded_len());
            self.answers.push(pb::Answer { number, what: Some(answer::invalid(text)) });
            return Ok(());
        }
        let Some(held) = Held::take(&self.hub, bytes) else {
            let waiting = self.under_way.len();
            let what = wire::failure(&LedgerError::QueueFull { waiting, per_second: None });
            self.answers.push(pb::Answer { number, what: Some(what) });
            return Ok(());
        };
        let (handle, registration) = AbortHandle::new_pair();
        let doing = async move {
            let held = held;
            answer::answer(&held.hub, ask.what).await
        };
        let doing = Abortable::new(doing, registration);
        self.under_way.push(Box::pin(async move { Finished { number, bytes, answer: doing.await } }));
        self.handles.insert(number, handle);
        self.bytes += bytes;
        Ok(())
    }

    fn finish(&mut self, finished: Finished) {
        let Finished { number, bytes, answer } = finished;
        self.handles.remove(&number);
        self.bytes -= bytes;
        let (what, unsent) = answer.unwrap_or((Answer::Done(pb::Done {}), None));
        self.unsent.extend(unsent);
        self.answers.push(pb::Answer { number, what: Some(what) });
    }

    /// Says it, with the answers that there are.
    async fn say(&mut self, mut message: pb::HubMessage) -> Result<(), End> {
        message.answers = std::mem::take(&mut self.answers);
        match tokio::time::timeout(TAKEN_WITHIN, self.out.send(Ok(message))).await {
            Ok(Ok(())) => {
                self.call.is_answered(false, clock::monotonic_ms());
                self.unsent.drain(..).for_each(UnsentLease::sent);
                Ok(())
            }
            Ok(Err(_)) | Err(_) => Err(End::Gone),
        }
    }
}

/// Returns when nothing was asked for so long that nothing will be.
async fn until_quiet(asked_at_ms: u64) {
    let quiet_ms = clock::monotonic_ms().saturating_sub(asked_at_ms);
    tokio::time::sleep(Duration::from_millis(LEAVING_AFTER_MS.saturating_sub(quiet_ms))).await;
}

fn is_chain(ask: &pb::Ask) -> bool {
    use crate::ledger::hub::pb::ask::What;
    matches!(ask.what, Some(What::Apply(_) | What::Complete(_) | What::GiveBack(_)))
}

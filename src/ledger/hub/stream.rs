//! The stream to one hub: opened, kept alive, and opened again when it ends.
//!
//! One loop. What has gathered while the last message was on its way goes as one, so that an idle sidecar asks at once and a
//! busy one batches by itself. Refuses to know what is asked.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::pb::ledger_service_client::LedgerServiceClient;
use super::peer::{Outgoing, Peer, PeerState};
use super::{Shared, homes, pb, wire};
use crate::clock;
use crate::ledger::LoanEnd;
use crate::retry::backoff::Backoff;
use crate::tls::Broken;
use crate::trace::{Batch, Link};

/// How often it is looked whether a hub has said anything.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A hub that has said nothing at so many looks, which is 1 s, is asked whether it is there; and at every second one after that.
const PING_LOOKS: u32 = 4;

/// A hub that has said nothing at so many looks in a row, which is 2 s, is not asked until it answers again. Looks are counted
/// instead of time, so that a sidecar that stood still itself doesn't blame the hub.
const SILENT_LOOKS: u32 = 8;

/// Each step of opening a stream.
const OPEN_WITHIN: Duration = Duration::from_secs(2);

/// What goes into one message: far below what a hub takes, so that the first answers of many don't wait for the last asks.
const ASKS_PER_MESSAGE: usize = 1024;
const BYTES_PER_MESSAGE: usize = 256 << 10;

/// A message of a hub: its answers are about as long as what was asked, and a schedule has at most 4096 steps.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Of why the ledger of a hub can't be used. Hubs that use each other would make it longer with every look.
const REASON_CHARS_MAX: usize = 400;

/// Said of a hub that is about to go.
const STOPPING: &str = "it is stopping";

/// Opens the stream again and again. One that ends by a panic has ended like any other: those who wait hear that it was lost.
pub(super) async fn run(shared: Arc<Shared>, peer: Arc<Peer>, mut queue: mpsc::Receiver<Outgoing>) {
    let mut backoff = Backoff::default();
    loop {
        let one = async {
            match open(&shared, &peer).await {
                Ok(stream) => {
                    backoff.reset();
                    stream.serve(&mut queue).await
                }
                Err(why) => why,
            }
        };
        let why = AssertUnwindSafe(one).catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!(hub = %peer.address, "the stream to a hub failed by a panic, and is opened again");
            "the stream to it failed by a panic".to_owned()
        });
        shared.note(&peer, PeerState::Away { why });
        shared.give_back_all(peer.lose_all());
        tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
    }
}

struct Stream<'s> {
    shared: &'s Arc<Shared>,
    peer: &'s Arc<Peer>,
    out: mpsc::Sender<pb::SidecarMessage>,
    from_hub: Streaming<pb::HubMessage>,
    /// Looks since it last said anything.
    silent_looks: u32,
    pings: u64,
    /// What is to be sent next.
    next: VecDeque<Outgoing>,
    is_ping_due: bool,
    /// Loans that are over and that the hub was not told of yet, and when it has to be.
    loan_ends: VecDeque<LoanEnd>,
    tell_loans_at_ms: u64,
    /// The last report of slabs that it was told.
    told: u64,
    /// The hub is about to stop.
    is_leaving: bool,
    seed: u64,
}

async fn open<'s>(shared: &'s Arc<Shared>, peer: &'s Arc<Peer>) -> Result<Stream<'s>, String> {
    let late = |what: &str| format!("{what} within {} s", OPEN_WITHIN.as_secs());
    let endpoint = Endpoint::from_shared(format!("http://{}", peer.address));
    let endpoint = endpoint.map_err(|error| error.to_string())?.tcp_nodelay(true);
    let mut broken = Broken::default();
    let connected = match &shared.options.tls {
        Some(tls) => {
            let connector = tls.connector(OPEN_WITHIN);
            broken = connector.broken();
            timeout(OPEN_WITHIN, endpoint.connect_with_connector(connector)).await
        }
        None => timeout(OPEN_WITHIN, endpoint.connect()).await,
    };
    let has_tls = shared.options.tls.is_some();
    let said = |status: tonic::Status| broken.why().unwrap_or_else(|| with_tls(said(&status), has_tls));
    let channel = connected.map_err(|_| late("no connection"))?.map_err(|error| cause(&error))?;
    let mut client = LedgerServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let (out, messages) = mpsc::channel(1);
    let hello = pb::SidecarMessage { hello: Some(wire::hello(&shared.options.name)), ..Default::default() };
    drop(out.try_send(hello));
    let mut request = tonic::Request::new(ReceiverStream::new(messages));
    if let Some(authorization) = &shared.options.authorization {
        request.metadata_mut().insert("authorization", authorization.clone());
    }
    let opened = timeout(OPEN_WITHIN, client.open(request)).await.map_err(|_| late("no answer"))?;
    let mut from_hub = opened.map_err(said)?.into_inner();
    let first = timeout(OPEN_WITHIN, from_hub.message()).await.map_err(|_| late("no hello"))?;
    let first = first.map_err(said)?.unwrap_or_default();
    let hello = first.hello.ok_or_else(|| "it did not say hello".to_owned())?;
    wire::check_hello(&hello, "hub")?;
    let seed = homes::seed(&hello.name);
    let mut stream = Stream {
        shared,
        peer,
        out,
        from_hub,
        silent_looks: 0,
        pings: 0,
        next: VecDeque::new(),
        is_ping_due: false,
        loan_ends: VecDeque::new(),
        tell_loans_at_ms: u64::MAX,
        told: 0,
        is_leaving: false,
        seed,
    };
    stream.note_status(&first.status.unwrap_or_default());
    Ok(stream)
}

impl Stream<'_> {
    /// Until it ends: why.
    async fn serve(mut self, queue: &mut mpsc::Receiver<Outgoing>) -> String {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let tell_loans_in_ms = self.tell_loans_at_ms.saturating_sub(clock::monotonic_ms());
            let has_next = self.is_ping_due || !self.next.is_empty() || tell_loans_in_ms == 0;
            tokio::select! {
                message = self.from_hub.message() => match message {
                    Ok(Some(message)) => self.hear(message),
                    Ok(None) if self.is_leaving => return STOPPING.to_owned(),
                    Ok(None) => return "it ended the stream".to_owned(),
                    Err(status) => return said(&status),
                },
                permit = self.out.clone().reserve_owned(), if has_next => {
                    let Ok(permit) = permit else { return "the stream has ended".to_owned() };
                    // What has come since goes with it.
                    while self.next.len() < ASKS_PER_MESSAGE
                        && let Ok(outgoing) = queue.try_recv()
                    {
                        self.take_in(outgoing);
                    }
                    if let Some(message) = self.message() {
                        permit.send(message);
                    }
                }
                outgoing = queue.recv(), if self.next.is_empty() => match outgoing {
                    Some(outgoing) => self.take_in(outgoing),
                    None => return "this Sluice is stopping".to_owned(),
                },
                () = tokio::time::sleep(Duration::from_millis(tell_loans_in_ms)),
                    if !has_next && !self.loan_ends.is_empty() => {}
                _ = looks.tick() => {
                    self.silent_looks += 1;
                    if self.silent_looks > SILENT_LOOKS {
                        return "it has said nothing for 2 s".to_owned();
                    }
                    self.is_ping_due |=
                        self.silent_looks >= PING_LOOKS && self.silent_looks.is_multiple_of(2);
                }
            }
        }
    }

    /// It is to be sent: a loan that is over some time later, together with something else if there is anything.
    fn take_in(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::LoanEnd(end) => {
                let within_ms = if self.is_leaving { 0 } else { end.tell_within_ms };
                let at_ms = clock::monotonic_ms() + within_ms;
                self.tell_loans_at_ms = self.tell_loans_at_ms.min(at_ms);
                self.loan_ends.push_back(end);
            }
            other => self.next.push_back(other),
        }
    }

    /// What has gathered, as far as it fits; `None` if nothing of it is worth sending any more.
    fn message(&mut self) -> Option<pb::SidecarMessage> {
        let (loan_ends, mut bytes) = self.tell_loan_ends();
        let mut message = pb::SidecarMessage { loan_ends, ..Default::default() };
        let mut traced = Vec::new();
        // What is asked goes after all loans that were over before it: whoever is answered knows that they were heard of.
        while self.loan_ends.is_empty()
            && bytes < BYTES_PER_MESSAGE
            && let Some(outgoing) = self.next.pop_front()
        {
            if !self.peer.may_send(&outgoing) {
                continue;
            }
            match outgoing {
                Outgoing::Left(number) => message.left.push(number),
                Outgoing::LoanEnd(end) => self.loan_ends.push_back(end),
                Outgoing::Ask { number, what, link } => {
                    traced.extend(link.map(|link| (number, link)));
                    let ask = pb::Ask { number, what: Some(what) };
                    bytes += ask.encoded_len();
                    message.asks.push(ask);
                }
            }
        }
        if !traced.is_empty() {
            self.trace(message.asks.len(), traced);
        }
        if std::mem::take(&mut self.is_ping_due) {
            self.pings += 1;
            message.ping = self.pings;
        }
        let is_empty = message.asks.is_empty() && message.left.is_empty() && message.loan_ends.is_empty();
        if is_empty && message.ping == 0 {
            return None;
        }
        // Not only with pings: a stream that is busy has none.
        if let Some((number, report)) = self.shared.report_after(self.told) {
            self.told = number;
            message.slabs = Some(report);
        }
        Some(message)
    }

    /// The loans that are over, as many as fit, and what they take of a message.
    fn tell_loan_ends(&mut self) -> (Vec<pb::LoanEnd>, usize) {
        let now_ms = clock::monotonic_ms();
        let (mut told, mut bytes) = (Vec::new(), 0);
        while told.len() < wire::LOAN_ENDS_MAX
            && bytes < BYTES_PER_MESSAGE
            && let Some(end) = self.loan_ends.pop_front()
        {
            let end = wire::loan_end(&end, now_ms);
            bytes += end.encoded_len();
            told.push(end);
        }
        self.tell_loans_at_ms = if self.loan_ends.is_empty() { u64::MAX } else { now_ms };
        (told, bytes)
    }

    /// A message with asks for calls that have spans has one too.
    #[cold]
    fn trace(&self, asks: usize, traced: Vec<(u64, Link)>) {
        let (numbers, links): (Vec<u64>, Vec<Link>) = traced.into_iter().unzip();
        let batch = Batch::begin("hub", asks, &links).map(Arc::<Batch>::from);
        for (number, batch) in numbers.into_iter().zip(batch.iter().cycle()) {
            self.peer.sent_in(number, batch);
        }
    }

    fn hear(&mut self, message: pb::HubMessage) {
        self.silent_looks = 0;
        if let Some(status) = &message.status {
            self.note_status(status);
        }
        for answer in message.answers {
            // An answer of a later version, which this side can't have asked for.
            let Some(what) = answer.what else { continue };
            self.shared.answered();
            let undo = self.peer.answered(answer.number, what);
            self.shared.undo(self.peer, undo);
        }
    }

    fn note_status(&mut self, status: &pb::HubStatus) {
        self.is_leaving |= status.leaving;
        let reason = status.reason.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX);
        let ready = if status.ready { Ok(()) } else { Err(format!("its {}", reason.collect::<String>())) };
        let state = if self.is_leaving {
            PeerState::Away { why: STOPPING.to_owned() }
        } else {
            PeerState::There { seed: self.seed, ready }
        };
        self.shared.note(self.peer, state);
    }
}

/// What is heard where only one side has TLS doesn't say so.
fn with_tls(why: String, has_tls: bool) -> String {
    let is_no_http = ["frame with invalid size", "broken pipe", "invalid preface"];
    if !has_tls && is_no_http.iter().any(|text| why.contains(text)) {
        return format!("{why}: this is no hub port, or the hub has TLS and `ledger.tls` is not set here");
    }
    why
}

/// What the hub said to a stream that it did not want, or why it can't be reached.
fn said(status: &tonic::Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => cause(source),
        None => format!("{:?}: {}", status.code(), status.message()),
    }
}

/// The innermost reason: the others only say that there is one.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

//! `WatchLease`: the states of a place in the queue as they come, as a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use crate::api::delivery::{self, Carried};
use crate::api::pb::lease as pb;
use crate::api::queue::{UNKNOWN_LEASE, UNKNOWN_LEASE_DETAIL, status};
use crate::limit::LeaseId;
use crate::queue::JobId;
use crate::service::Service;
use crate::service::unsent::UnsentLease;

/// How often those who watch are told that they have moved up.
const POSITION_INTERVAL: Duration = Duration::from_secs(1);

/// States that a watcher may be behind; one that is slower gets the newest.
const WATCH_BUFFER: usize = 4;

pub(super) fn unknown() -> Status {
    Status::not_found(format!("{UNKNOWN_LEASE}: {UNKNOWN_LEASE_DETAIL}"))
}

/// The states of one place. Each goes with what its holder has picked up when it has heard it.
#[derive(Debug)]
struct States {
    states: mpsc::Receiver<Result<(pb::LeaseStatus, UnsentLease), Status>>,
    carried: Carried,
}

impl Stream for States {
    type Item = Result<pb::LeaseStatus, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { states, carried } = self.get_mut();
        states.poll_recv(context).map(|state| {
            Some(state?.map(|(state, unsent)| {
                carried.add(unsent);
                state
            }))
        })
    }
}

pub(super) fn watch(
    service: &Arc<Service>,
    id: &str,
) -> Result<Response<BoxStream<pb::LeaseStatus>>, Status> {
    let id = JobId::of(&LeaseId::parse(id));
    let changes = service.place_changes(id).ok_or_else(unknown)?;
    let (sender, states) = mpsc::channel(WATCH_BUFFER);
    let service = Arc::clone(service);
    tokio::spawn(async move {
        let mut told = None;
        loop {
            let mut changed = std::pin::pin!(changes.notified());
            changed.as_mut().enable();
            // A watcher that is behind is told the newest when it has caught up.
            let Ok(permit) = sender.reserve().await else { return };
            let Some((place, unsent)) = service.follow(id) else { return permit.send(Err(unknown())) };
            let is_last = place.state.is_last();
            let news = Some((place.state.name(), place.position));
            if told != news {
                permit.send(Ok((status(&place), unsent)));
                told = news;
            } else {
                drop(permit);
            }
            if is_last {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(POSITION_INTERVAL) => {}
                () = sender.closed() => return,
            }
        }
    });
    let carried = Carried::default();
    let states: BoxStream<_> = Box::pin(States { states, carried: carried.clone() });
    Ok(delivery::stream(states, carried))
}

//! `WatchLease`: the states of a place in the queue as they come, as a stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::api::pb::lease as pb;
use crate::api::queue::{UNKNOWN_LEASE, UNKNOWN_LEASE_DETAIL, status};
use crate::limit::LeaseId;
use crate::queue::JobId;
use crate::service::Service;

/// How often those who watch are told that they have moved up.
const POSITION_INTERVAL: Duration = Duration::from_secs(1);

/// States that a watcher may be behind; one that is slower gets the newest.
const WATCH_BUFFER: usize = 4;

pub(super) fn unknown() -> Status {
    Status::not_found(format!("{UNKNOWN_LEASE}: {UNKNOWN_LEASE_DETAIL}"))
}

pub(super) fn watch(
    service: &Arc<Service>,
    id: &str,
) -> Result<ReceiverStream<Result<pb::LeaseStatus, Status>>, Status> {
    let id = JobId::of(&LeaseId::parse(id));
    let changes = service.place_changes(id).ok_or_else(unknown)?;
    let (sender, receiver) = mpsc::channel(WATCH_BUFFER);
    let service = Arc::clone(service);
    tokio::spawn(async move {
        let mut told = None;
        loop {
            let mut changed = std::pin::pin!(changes.notified());
            changed.as_mut().enable();
            // Sending must be possible before the queue is asked: whoever hears `reserved` has picked it up.
            let Ok(permit) = sender.reserve().await else { return };
            let Some(place) = service.place(id, true) else { return permit.send(Err(unknown())) };
            let is_last = place.state.is_last();
            let news = Some((place.state.name(), place.position));
            if told != news {
                permit.send(Ok(status(&place)));
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
    Ok(ReceiverStream::new(receiver))
}

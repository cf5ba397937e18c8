//! `WatchLease`: the states of a place in the queue as they come, as a stream.
//!
//! The connection asks for the next one when it can send it, so a watcher that is slow gets the newest.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use tonic::{Response, Status};

use crate::api::delivery::{self, Carried};
use crate::api::error::WireError;
use crate::api::pb::lease as pb;
use crate::api::queue::{UNKNOWN_LEASE, UNKNOWN_LEASE_DETAIL, status};
use crate::service::Service;

/// How often those who watch are told that they have moved up.
const POSITION_INTERVAL: Duration = Duration::from_secs(1);

/// How often hubs are asked for a place that one of them keeps: nobody tells this side of its changes.
const ELSEWHERE_INTERVAL: Duration = Duration::from_millis(250);

pub(super) type Watching = BoxStream<'static, Result<pb::LeaseStatus, Status>>;

pub(super) fn unknown() -> Status {
    Status::not_found(format!("{UNKNOWN_LEASE}: {UNKNOWN_LEASE_DETAIL}"))
}

pub(super) async fn watch(service: &Arc<Service>, id: String) -> Result<Response<Watching>, Status> {
    let known = service.follow(&id, false).await.map_err(|error| WireError::from(error).grpc())?;
    known.ok_or_else(unknown)?;
    let carried = Carried::default();
    let watch = Watch { service: Arc::clone(service), id, told: None, carried: carried.clone() };
    let states: Watching = Box::pin(stream::unfold(Some(watch), async |watch| watch?.next().await));
    Ok(delivery::stream(states, carried))
}

struct Watch {
    service: Arc<Service>,
    id: String,
    /// The state and the position that the watcher was told last.
    told: Option<(&'static str, Option<u64>)>,
    /// The lease that the watcher picks up by the next message, sent along with it.
    carried: Carried,
}

impl Watch {
    /// The next message, and the watch that goes on after it.
    async fn next(mut self) -> Option<(Result<pb::LeaseStatus, Status>, Option<Self>)> {
        let changes = self.service.place_changes(&self.id).unwrap_or_default();
        let interval = if self.service.is_line_elsewhere() { ELSEWHERE_INTERVAL } else { POSITION_INTERVAL };
        loop {
            let mut changed = std::pin::pin!(changes.notified());
            changed.as_mut().enable();
            // Whoever has heard `reserved` has picked it up.
            let (place, unsent) = match self.service.follow(&self.id, true).await {
                Ok(Some(followed)) => followed,
                Ok(None) => return Some((Err(unknown()), None)),
                Err(error) => return Some((Err(WireError::from(error).grpc()), None)),
            };
            let is_last = place.state.is_last();
            let news = Some((place.state.name(), place.position));
            if self.told != news {
                self.told = news;
                unsent.into_iter().for_each(|unsent| self.carried.add(unsent));
                return Some((Ok(status(&place)), (!is_last).then_some(self)));
            }
            if is_last {
                return None;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(interval) => {}
            }
        }
    }
}

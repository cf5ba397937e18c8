//! `GET /v1/peers`: the sidecars of this hub, and what each holds of which limit; none if this is no hub.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::Serialize;

use crate::hub::{Hub, Peer};

#[derive(Debug, Serialize)]
pub(crate) struct PeersView {
    peers: Vec<PeerView>,
}

#[derive(Debug, Serialize)]
struct PeerView {
    name: String,
    address: Option<String>,
    version: String,
    chains_per_second: f64,
    slabs: Vec<SlabView>,
}

#[derive(Debug, Serialize)]
struct SlabView {
    key: String,
    held: u64,
}

pub(crate) async fn get(State(hub): State<Option<Arc<Hub>>>) -> Json<PeersView> {
    let view = |peer: Peer| PeerView {
        name: peer.name,
        address: peer.address.map(|address| address.to_string()),
        version: peer.version,
        chains_per_second: peer.chains_per_second,
        slabs: peer.slabs.into_iter().map(|(key, held)| SlabView { key, held }).collect(),
    };
    let peers = hub.map(|hub| hub.peers()).unwrap_or_default();
    Json(PeersView { peers: peers.into_iter().map(view).collect() })
}

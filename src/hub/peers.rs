//! The sidecars that are connected, as `GET /v1/peers` shows them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ledger::hub::{pb, wire};
use crate::retry::window::SlidingCount;

/// Over how long chains are counted.
const RATE_MS: u64 = 10_000;
const RATE_BUCKET_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(super) struct Peers {
    /// In the order in which they came. A plain mutex: one is added or removed, or all are listed.
    all: Mutex<BTreeMap<u64, Arc<Sidecar>>>,
    next: AtomicU64,
}

/// A sidecar that is connected.
#[derive(Debug)]
pub(super) struct Sidecar {
    hello: pb::Hello,
    address: Option<SocketAddr>,
    chains: SlidingCount,
    slabs: Mutex<Vec<pb::SlabHeld>>,
}

/// A sidecar is among them until this is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    peers: Arc<Peers>,
    number: u64,
    pub sidecar: Arc<Sidecar>,
}

/// What is known of a sidecar.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) version: String,
    pub(crate) chains_per_second: f64,
    /// What its slabs hold of which limit.
    pub(crate) slabs: Vec<(String, u64)>,
}

impl Peers {
    pub(super) fn enter(self: &Arc<Self>, hello: pb::Hello, address: Option<SocketAddr>) -> Registration {
        let chains = SlidingCount::new(RATE_MS, RATE_BUCKET_MS);
        let sidecar = Arc::new(Sidecar { hello, address, chains, slabs: Mutex::default() });
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.lock().insert(number, Arc::clone(&sidecar));
        Registration { peers: Arc::clone(self), number, sidecar }
    }

    pub(super) fn list(&self, now_ms: u64) -> Vec<Peer> {
        let peer = |sidecar: &Arc<Sidecar>| Peer {
            name: sidecar.hello.name.clone(),
            address: sidecar.address,
            version: sidecar.hello.version.clone(),
            chains_per_second: sidecar.chains.sum(now_ms, RATE_MS) as f64 * 1000.0 / RATE_MS as f64,
            slabs: sidecar.slabs.lock().iter().map(|slab| (slab.key.clone(), slab.held)).collect(),
        };
        self.all.lock().values().map(peer).collect()
    }
}

impl Sidecar {
    pub(super) fn asked(&self, chains: u32, now_ms: u64) {
        self.chains.add(chains, now_ms);
    }

    /// What its slabs hold now. What is too much, or too long, is not shown.
    pub(super) fn holds(&self, report: pb::SlabReport) {
        let mut slabs = report.slabs;
        slabs.truncate(wire::SLABS_MAX);
        slabs.retain(|slab| slab.key.len() <= wire::SLAB_KEY_BYTES_MAX);
        *self.slabs.lock() = slabs;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.peers.all.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_are_listed_while_they_are_there() {
        let peers = Arc::new(Peers::default());
        let enter = |name: &str| peers.enter(wire::hello(name), None);
        let (first, second) = (enter("first"), enter("second"));
        first.sidecar.asked(30, 50_000);
        let slab = |key: &str| pb::SlabHeld { key: key.to_owned(), held: 5 };
        let mut slabs = vec![slab("a"), slab(&"x".repeat(1025))];
        slabs.extend((0..100).map(|n| slab(&n.to_string())));
        second.sidecar.holds(pb::SlabReport { slabs });
        let listed = peers.list(55_000);
        assert_eq!(listed.iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!((listed[0].chains_per_second, listed[0].slabs.len()), (3.0, 0));
        assert_eq!((&listed[1].slabs[0], listed[1].slabs.len()), (&("a".to_owned(), 5), 63));
        drop(first);
        assert_eq!(peers.list(55_000).len(), 1);
    }
}

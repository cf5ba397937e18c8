//! What the operator may choose about the TigerBeetle ledger. Known to every build, also to one without it.

use std::time::Duration;

use tokio::sync::mpsc;

use super::CapacityEvent;

/// How the ledger is set up.
#[derive(Debug, Clone)]
pub struct Options {
    pub cluster: Cluster,
    pub transfer_ids: TransferIds,
    /// Bounds every call of a caller.
    pub timeout: Duration,
    /// Chains that may wait.
    pub queue_max: usize,
    /// Reserves of the same limits go as one. False only to measure what that gains.
    pub sums: bool,
    /// Where capacity changes that take time are told.
    pub events: Option<mpsc::UnboundedSender<CapacityEvent>>,
}

/// Which cluster, where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    pub id: u128,
    /// `host:port`; hosts may be names.
    pub addresses: Vec<String>,
}

/// How transfer ids are made of their labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransferIds {
    /// The lease's milliseconds above a digest: TigerBeetle is up to three times as fast with ids that rise.
    #[default]
    TimeOrdered,
    /// The digest alone.
    Sha256,
}

//! How many connections each port may have: shares of the descriptors that this process may open.
//!
//! The soft limit is raised to the hard one first. Each port has a share of its own, so that one that is full leaves the
//! other reachable, and some are kept for files, the ledger and what the runtime needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for all that is no connection: three standard streams, the listeners, epoll and its wakers, the watched files,
/// the state file, and the ledger's sessions (three, to at most six replicas each).
const KEPT: u64 = 128;

/// An Envoy opens a connection per worker: a thousand Envoys with eight workers.
const GRPC_MAX: u64 = 8192;

/// Prometheus, health checks, people, and programs that use the lease API over HTTP.
const ADMIN_MAX: u64 = 1024;

/// A sidecar has one connection to each hub.
const HUB_MAX: u64 = 8192;

/// Connections that each port may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub grpc: usize,
    pub admin: usize,
    pub hub: usize,
}

/// Raises the soft limit and shares out what there is.
pub fn shares(has_hub: bool) -> Shares {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let open_max = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files could not be raised");
            limit.current
        }
    };
    // `None` is "as many as you like".
    split(open_max.unwrap_or(u64::MAX), has_hub)
}

fn split(open_max: u64, has_hub: bool) -> Shares {
    let rest = open_max - KEPT.min(open_max / 4);
    let admin = (rest / 4).clamp(1, ADMIN_MAX);
    let left = rest.saturating_sub(admin);
    let hub = if has_hub { (left / 2).clamp(1, HUB_MAX) } else { 0 };
    let grpc = left.saturating_sub(hub).clamp(1, GRPC_MAX);
    let count = |share: u64| usize::try_from(share).expect("a share must be at most GRPC_MAX");
    Shares { grpc: count(grpc), admin: count(admin), hub: count(hub) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_some_and_some_are_kept() {
        for (open_max, grpc, admin) in
            [(0, 1, 1), (16, 9, 3), (64, 36, 12), (512, 288, 96), (1024, 672, 224), (u64::MAX, 8192, 1024)]
        {
            assert_eq!(split(open_max, false), Shares { grpc, admin, hub: 0 }, "{open_max}");
            for has_hub in [false, true] {
                let Shares { grpc, admin, hub } = split(open_max, has_hub);
                assert_eq!(hub > 0, has_hub, "{open_max}");
                let open = (grpc + admin + hub) as u64 + KEPT.min(open_max / 4);
                assert!(open_max < 16 || open <= open_max, "{open_max}");
            }
        }
    }
}

//! What can happen in the world, and to whom.

use sluice::limit::LeaseBits;

use super::hubs::Via;
use crate::slab_simulation::ledger::{Outcome, Transfer};
use crate::slab_simulation::plan::Event;

pub enum Happening {
    Plan(Event),
    Wake {
        instance: usize,
        epoch: u32,
    },
    Deliver {
        instance: usize,
        epoch: u32,
        call: u64,
        chain: Vec<Transfer>,
        via: Option<Via>,
    },
    /// A hub gets something to apply, or what became of it.
    AtHub {
        instance: usize,
        epoch: u32,
        call: u64,
        via: Via,
        what: AtHub,
    },
    Hub {
        hub: usize,
        epoch: u32,
        what: HubHappening,
    },
    /// The ledger gets something that a hub asks for itself.
    DeliverOwn {
        hub: usize,
        epoch: u32,
        call: u64,
        chain: Vec<Transfer>,
    },
    /// An instance notices that a stream is lost, or has a new one.
    StreamLost {
        instance: usize,
        epoch: u32,
        hub: usize,
        number: u32,
    },
    StreamBack {
        instance: usize,
        epoch: u32,
        hub: usize,
    },
    Answer {
        instance: usize,
        epoch: u32,
        call: u64,
        outcome: Outcome,
        via: Option<Via>,
    },
    TimeOut {
        instance: usize,
        epoch: u32,
        call: u64,
    },
    WaitTooLong {
        instance: usize,
        epoch: u32,
    },
}

pub enum AtHub {
    /// Its one transfer may take a slab.
    Asked {
        chain: Vec<Transfer>,
        is_slab: bool,
    },
    Done(Outcome),
}

/// What happens at a hub that has nothing to do with one ask of an instance.
pub enum HubHappening {
    /// Something is due.
    Wake,
    /// The ledger has answered what the hub has asked for itself, or has not.
    Answer {
        call: u64,
        outcome: Outcome,
    },
    TimeOut {
        call: u64,
    },
    LoanEnd {
        limit: usize,
        name: LeaseBits,
        spent: u64,
        last_ago_ms: u64,
    },
}

/// The instance to which it happens; nobody if it happens to the ledger, the network or a hub.
pub fn who(event: &Event) -> Option<usize> {
    match event {
        Event::Arrive { instance, .. }
        | Event::Crash { instance }
        | Event::Start { instance }
        | Event::Drain { instance }
        | Event::Pause { instance, .. }
        | Event::PauseInside { instance, .. }
        | Event::PauseAtAsk { instance, .. }
        | Event::WallStep { instance, .. }
        | Event::Configure { instance, .. }
        | Event::Sweep { instance } => Some(*instance),
        Event::LedgerPause { .. }
        | Event::Lossy { .. }
        | Event::Slow { .. }
        | Event::HubCrash { .. }
        | Event::HubStart { .. }
        | Event::HubPause { .. }
        | Event::Cut { .. } => None,
    }
}

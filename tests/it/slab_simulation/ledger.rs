//! A model of the shared ledger: what TigerBeetle does with pending transfers, as measured, and nothing more.
//!
//! Transfers are named; a name that failed for lack of room, or because what it voids was not there, is burnt. Timeouts
//! are whole seconds from the moment of the transfer, and come late, never early.

use std::collections::{BTreeMap, HashMap};

/// Which transfer of a lease on a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    Reserve,
    Void,
    Kept,
    VoidKept,
}

#[derive(Debug, Clone)]
pub struct Transfer {
    pub lease: u128,
    pub limit: usize,
    pub action: Action,
}

#[derive(Debug, Clone, Copy)]
pub enum Action {
    Reserve { label: Label, amount: u64, capacity: u64, seconds: u32, up_to: bool },
    Void { label: Label, target: Label },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    ExceedsCredits,
    LimitDecreasing,
    IdAlreadyFailed,
    Exists,
    NotFound,
    Expired,
    AlreadyVoided,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// When, and what each reserve took.
    Done {
        at_us: u64,
        took: Vec<u64>,
    },
    /// The same, of the first sending.
    DoneBefore {
        at_us: u64,
        took: Vec<u64>,
    },
    Refused {
        index: usize,
        code: Code,
    },
    /// A hub knows that nothing is left.
    Full {
        for_ms: u64,
    },
    /// By this hub, which has not asked the ledger.
    Lent {
        hub: usize,
        units: u64,
        for_ms: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pending,
    Voided,
    Expired,
    /// A void that happened.
    Fact,
    Burnt,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    state: State,
    amount: u64,
    made_us: u64,
    expires_us: u64,
}

type Name = (u128, usize, Label);

#[derive(Debug, Default)]
pub struct Ledger {
    pub capacity: Vec<u64>,
    pub pending: Vec<u64>,
    records: HashMap<Name, Record>,
    expiries: BTreeMap<(u64, Name), ()>,
    /// Reservations that ended by their timeout, by limit.
    pub expired: Vec<u64>,
}

impl Ledger {
    pub fn new(capacity: &[u64]) -> Self {
        Self {
            capacity: capacity.to_vec(),
            pending: vec![0; capacity.len()],
            expired: vec![0; capacity.len()],
            ..Self::default()
        }
    }

    pub fn next_expiry_us(&self) -> Option<u64> {
        self.expiries.first_key_value().map(|((at_us, _), ())| *at_us)
    }

    /// Ends what has timed out. Returns whether anything did.
    pub fn expire(&mut self, now_us: u64) -> bool {
        let mut any = false;
        while self.next_expiry_us().is_some_and(|at_us| at_us <= now_us) {
            let ((_, name), ()) = self.expiries.pop_first().unwrap();
            let record = self.records.get_mut(&name).unwrap();
            record.state = State::Expired;
            self.pending[name.1] -= record.amount;
            self.expired[name.1] += u64::from(record.amount > 0);
            any = true;
        }
        any
    }

    /// All or nothing. `late_us` is how late its timeouts will be.
    pub fn apply(&mut self, chain: &[Transfer], now_us: u64, late_us: u64) -> Outcome {
        let before = (self.capacity.clone(), self.pending.clone());
        let mut written: Vec<(Name, Option<Record>)> = Vec::new();
        let mut took = Vec::new();
        for (index, transfer) in chain.iter().enumerate() {
            match self.step(transfer, now_us, late_us, &mut written) {
                Ok(amount) => took.extend(amount),
                Err(code) => {
                    for (name, record) in written.into_iter().rev() {
                        self.restore(name, record);
                    }
                    // What was raised stays raised; the amounts come back.
                    self.pending = before.1;
                    if matches!(code, Code::ExceedsCredits | Code::NotFound) {
                        let name = name_of(transfer);
                        let burnt = Record { state: State::Burnt, amount: 0, made_us: 0, expires_us: 0 };
                        self.records.insert(name, burnt);
                    }
                    if code == Code::Exists && index == 0 {
                        return self.done_before(chain);
                    }
                    return Outcome::Refused { index, code };
                }
            }
        }
        Outcome::Done { at_us: now_us, took }
    }

    fn step(
        &mut self,
        transfer: &Transfer,
        now_us: u64,
        late_us: u64,
        written: &mut Vec<(Name, Option<Record>)>,
    ) -> Result<Option<u64>, Code> {
        let name = name_of(transfer);
        match self.records.get(&name).map(|record| record.state) {
            Some(State::Burnt) => return Err(Code::IdAlreadyFailed),
            Some(_) => return Err(Code::Exists),
            None => {}
        }
        let limit = transfer.limit;
        match transfer.action {
            Action::Reserve { label, amount, capacity, seconds, up_to } => {
                // What a slab keeps is taken from what the account has, also while that is being lowered.
                let is_kept = label == Label::Kept;
                self.settle_capacity(
                    limit,
                    if is_kept { capacity.max(self.capacity[limit]) } else { capacity },
                );
                if self.capacity[limit] > capacity && !is_kept {
                    return Err(Code::LimitDecreasing);
                }
                let free = self.capacity[limit] - self.pending[limit];
                let amount = if up_to { amount.min(free) } else { amount };
                if amount > free {
                    return Err(Code::ExceedsCredits);
                }
                let expires_us = now_us + u64::from(seconds) * 1_000_000 + late_us;
                let record = Record { state: State::Pending, amount, made_us: now_us, expires_us };
                written.push((name, None));
                self.records.insert(name, record);
                self.expiries.insert((expires_us, name), ());
                self.pending[limit] += amount;
                Ok(Some(amount))
            }
            Action::Void { target, .. } => {
                let target = (name.0, limit, target);
                let Some(record) = self.records.get(&target).copied() else { return Err(Code::NotFound) };
                match record.state {
                    State::Pending => {}
                    State::Voided => return Err(Code::AlreadyVoided),
                    State::Expired => return Err(Code::Expired),
                    State::Burnt | State::Fact => return Err(Code::NotFound),
                }
                written.push((target, Some(record)));
                self.expiries.remove(&(record.expires_us, target));
                self.records.insert(target, Record { state: State::Voided, ..record });
                self.pending[limit] -= record.amount;
                written.push((name, None));
                self.records
                    .insert(name, Record { state: State::Fact, amount: 0, made_us: now_us, expires_us: 0 });
                Ok(None)
            }
        }
    }

    /// What a chain did whose first transfer exists.
    fn done_before(&self, chain: &[Transfer]) -> Outcome {
        let found = chain.iter().filter_map(|transfer| self.records.get(&name_of(transfer)));
        let at_us = found.clone().map(|record| record.made_us).next().unwrap_or(0);
        Outcome::DoneBefore { at_us, took: found.map(|record| record.amount).collect() }
    }

    fn restore(&mut self, name: Name, record: Option<Record>) {
        match record {
            Some(record) => {
                self.expiries.insert((record.expires_us, name), ());
                self.records.insert(name, record);
            }
            None => {
                if let Some(gone) = self.records.remove(&name) {
                    self.expiries.remove(&(gone.expires_us, name));
                }
            }
        }
    }

    /// Raised at once, lowered only when that much is free.
    fn settle_capacity(&mut self, limit: usize, wanted: u64) {
        if wanted > self.capacity[limit] || self.pending[limit] <= wanted {
            self.capacity[limit] = wanted;
        }
    }
}

fn name_of(transfer: &Transfer) -> Name {
    let label = match transfer.action {
        Action::Reserve { label, .. } | Action::Void { label, .. } => label,
    };
    (transfer.lease, transfer.limit, label)
}

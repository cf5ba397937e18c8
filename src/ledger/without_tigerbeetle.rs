//! Takes the place of the TigerBeetle ledger in a build without it. The type has no values, so only `start` ever runs: it says
//! what is missing.

use std::num::NonZeroU32;
use std::sync::Arc;

pub use super::options::{Cluster, Options, TransferIds};
use super::{Account, Balance, Chain, Ledger, LedgerError, Outcome, Schedule, Want};
use crate::limit::LimitSpec;
use crate::telemetry::Metrics;

#[derive(Debug, Clone)]
pub enum TigerBeetle {}

/// Nothing is known of accounts that can't be there.
#[derive(Debug, Default)]
pub struct KnownAccount;

impl TigerBeetle {
    pub fn start(_: Options, _: Arc<Metrics>) -> Result<Self, String> {
        Err("this binary was built without TigerBeetle: build it with `make build-tigerbeetle` \
             (cargo's feature `tigerbeetle`), or use --ledger memory"
            .to_owned())
    }
}

impl Ledger for TigerBeetle {
    async fn apply(&self, _: &Chain) -> Result<Outcome, LedgerError> {
        match *self {}
    }

    async fn complete(&self, _: &Chain) -> Result<Outcome, LedgerError> {
        match *self {}
    }

    fn give_back(&self, _: Chain) {
        match *self {}
    }

    fn peek(&self, _: &Account, _: &LimitSpec) -> Option<u64> {
        match *self {}
    }

    fn sample(&self, _: &Arc<Account>, _: &LimitSpec) -> Option<u64> {
        match *self {}
    }

    fn is_decreasing(&self, _: &Account, _: &LimitSpec) -> bool {
        match *self {}
    }

    async fn provision(&self, _: Vec<Want>) -> Result<(), LedgerError> {
        match *self {}
    }

    async fn balances(&self, _: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        match *self {}
    }

    async fn schedule(&self, _: &Arc<Account>, _: NonZeroU32) -> Result<Schedule, LedgerError> {
        match *self {}
    }

    fn is_used_up(&self, _: &Arc<Account>, _: &LimitSpec) -> bool {
        match *self {}
    }

    fn owed(&self, _: &Arc<Account>, _: &LimitSpec) -> u64 {
        match *self {}
    }

    fn repaid_in_ms(&self, _: &Account, _: &LimitSpec, _: u64) -> Option<u64> {
        match *self {}
    }

    async fn forgive(&self, _: Want) -> Result<(), LedgerError> {
        match *self {}
    }

    fn ready(&self) -> Result<(), String> {
        match *self {}
    }

    fn is_shared(&self) -> bool {
        match *self {}
    }

    fn sweep(&self) -> usize {
        match *self {}
    }

    async fn close(&self) {
        match *self {}
    }
}

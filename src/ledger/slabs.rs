//! Slabs: blocks of a limit's capacity that this instance has reserved in the shared ledger and hands out itself.

pub mod core;
pub mod demand;
pub mod limit;
pub mod requests;
pub mod returns;
pub mod slab;
pub mod times;

/// What limits are told apart by.
pub type LimitId = u128;

//! `sluice simulate`: what these limits would have done to that traffic, on virtual time.
//!
//! The registry, the memory ledger, the hints, the retry budget and the settling of leases are those of a server. What is here
//! stands in the place of the sockets and of the clock: traffic comes from files or from made-up clients, and what is
//! answered is counted.

pub mod report;
pub mod series;

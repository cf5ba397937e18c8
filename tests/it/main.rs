//! Tests that use the library as its users do: real sockets, real files, real ledgers.

mod ledger_model;
mod ledger_rows;
mod scenario;

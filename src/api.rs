//! What both ports say: wire messages to domain values and back, once.

pub mod queue;

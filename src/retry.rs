//! When to come back: hints for the refused, a budget for retries, one backoff for our own waits.

pub mod hint;
pub mod policy;

//! When to come back: hints for the refused, a budget for retries, one backoff for our own waits.

pub mod policy;

pub mod hint;
pub mod streaks;

pub mod eta;

pub mod budget;
mod window;

pub mod backoff;

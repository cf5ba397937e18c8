//! When to come back: the policy that the operator writes.

pub mod policy;

//! The ids of leases and limits, and the 128-bit ids that accounts and transfers get from their labels.
//!
//! Pure arithmetic over SHA-256, pinned by hand-computed values. Knows no ledger.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::key::LimitKey;

/// A lease named by a request id has no milliseconds of its own: it gets the start of the bucket it arrived in.
const REQUEST_BUCKET_MS: u64 = 1 << 16;

/// Names one limit in tables and in the ledger: SHA-256 of `acct:limit:<key>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(u128);

impl LimitId {
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    pub fn of(key: &LimitKey) -> Self {
        Self(digest_id(&["acct:limit:", key.as_str()]))
    }

    /// What an account of the ledger is called.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for LimitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LimitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LimitId({self})")
    }
}

/// A lease in tables: 128 bits that stand for its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseBits(u128);

impl LeaseBits {
    /// No lease.
    pub const NONE: Self = Self(0);

    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    pub const fn get(self) -> u128 {
        self.0
    }
}

/// Names one reserve attempt.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum LeaseId {
    /// Made here, or sent by a caller as a ULID.
    Ulid(ulid::Ulid),
    /// Sent by a caller in a form of its own.
    Name(Arc<str>),
}

impl LeaseId {
    /// A fresh id. `entropy` must not repeat for one millisecond.
    pub fn fresh(unix_ms: u64, entropy: u128) -> Self {
        Self::Ulid(ulid::Ulid::from_parts(unix_ms, entropy))
    }

    /// An id that a caller chose.
    pub fn parse(text: &str) -> Self {
        match ulid::Ulid::from_string(text) {
            // Crockford's alphabet has more than one spelling; only the canonical one is the same lease.
            Ok(ulid) if ulid.to_string() == text => Self::Ulid(ulid),
            _ => Self::Name(Arc::from(text)),
        }
    }

    /// The id of the request that Envoy named `request_id`: the same on any instance for about a minute.
    pub fn of_request(request_id: &str, unix_ms: u64) -> Self {
        let digest = sha256(&["lease:request:", request_id]);
        let mut low = [0u8; 16];
        low[..10].copy_from_slice(&digest[..10]);
        let bucket = unix_ms - unix_ms % REQUEST_BUCKET_MS;
        Self::Ulid(ulid::Ulid::from_parts(bucket, u128::from_le_bytes(low)))
    }

    /// The milliseconds inside, if it has any.
    pub fn unix_ms(&self) -> Option<u64> {
        match self {
            Self::Ulid(ulid) => Some(ulid.timestamp_ms()),
            Self::Name(_) => None,
        }
    }

    /// What stands for this id in tables; never [`LeaseBits::NONE`].
    pub fn bits(&self) -> LeaseBits {
        LeaseBits(match self {
            Self::Ulid(ulid) if ulid.0 != 0 => ulid.0,
            other => digest_id(&["lease:name:", &other.to_string()]),
        })
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ulid(ulid) => fmt::Display::fmt(ulid, f),
            Self::Name(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// SHA-256 of the label that `parts` make together: first 16 bytes, little-endian; never 0 or all ones.
pub fn digest_id(parts: &[&str]) -> u128 {
    let digest = sha256(parts);
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    usable(u128::from_le_bytes(bytes))
}

/// The same label with `unix_ms` in bits 127..80 and the first ten bytes of its digest, little-endian, below.
pub fn time_ordered_id(unix_ms: u64, parts: &[&str]) -> u128 {
    let digest = sha256(parts);
    let mut bytes = [0u8; 16];
    bytes[..10].copy_from_slice(&digest[..10]);
    usable((u128::from(unix_ms) << 80) | u128::from_le_bytes(bytes))
}

fn sha256(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// TigerBeetle refuses 0 and all ones: one bit is flipped.
fn usable(id: u128) -> u128 {
    if id == 0 || id == u128::MAX { id ^ 1 } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf 'acct:operator' | sha256sum`, the first 16 bytes read backwards.
    #[test]
    fn ids_computed_by_hand() {
        for (label, first_bytes_reversed) in crate::limit::id::golden::ACCOUNTS {
            assert_eq!(format!("{:032x}", digest_id(&[label])), *first_bytes_reversed, "{label}");
        }
        for (label, ms, id) in crate::limit::id::golden::TIME_ORDERED {
            assert_eq!(format!("{:032x}", time_ordered_id(*ms, &[label])), *id, "{label}");
        }
    }

    #[test]
    fn ids_that_the_ledger_refuses_are_moved() {
        assert_eq!(usable(0), 1);
        assert_eq!(usable(u128::MAX), u128::MAX - 1);
        assert_eq!(usable(7), 7);
    }

    #[test]
    fn a_request_id_names_one_lease_within_its_bucket() {
        let start = REQUEST_BUCKET_MS * 30_000_000;
        let first = LeaseId::of_request("abc", start);
        assert_eq!(first, LeaseId::of_request("abc", start + REQUEST_BUCKET_MS - 1));
        assert_eq!(first.unix_ms(), Some(start));
        assert_ne!(first, LeaseId::of_request("abc", start + REQUEST_BUCKET_MS));
        assert_ne!(first, LeaseId::of_request("abd", start));
    }

    #[test]
    fn only_the_canonical_spelling_is_a_ulid() {
        let text = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        assert!(matches!(LeaseId::parse(text), LeaseId::Ulid(_)));
        assert_eq!(LeaseId::parse(text).to_string(), text);
        for other in
            [&text.to_lowercase(), "01ARZ3NDEKTSV4RRFFQ69G5FA", "job-7", "", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"]
        {
            assert!(matches!(LeaseId::parse(other), LeaseId::Name(_)), "{other}");
            assert_eq!(LeaseId::parse(other).to_string(), *other);
        }
    }
}

#[cfg(test)]
mod golden {
    pub(super) const ACCOUNTS: &[(&str, &str)] = &[
        ("acct:operator", "ee06f35fb94212edc7e42a11203bfca8"),
        ("acct:limit:global:llm:openai:gpt-4o:rpm", "5d3c6e5c7ffc849315cfc5f4cb10615e"),
        ("acct:debt:global:llm:openai:gpt-4o:rpm", "60252f1a5f7dda02bb62ab3ccc0944be"),
        (
            "xfer:reserve:01ARZ3NDEKTSV4RRFFQ69G5FAV:llm:tenant=acme:model=gpt-4o:tpm",
            "1853bf7c748e0e923500499955e17a44",
        ),
    ];
    pub(super) const TIME_ORDERED: &[(&str, u64, &str)] = &[
        (
            "xfer:reserve:01ARZ3NDEKTSV4RRFFQ69G5FAV:llm:tenant=acme:model=gpt-4o:tpm",
            1_469_922_850_259,
            "01563e3ab5d30e923500499955e17a44",
        ),
        (
            "xfer:void:01ARZ3NDEKTSV4RRFFQ69G5FAV:llm:tenant=acme:model=gpt-4o:tpm",
            1_469_922_850_259,
            "01563e3ab5d3b7ca6bf88d5ca0daeb53",
        ),
    ];
}

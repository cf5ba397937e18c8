//! Lease tokens: a lease that travels with its request, so that any instance can complete it, also after a restart.
//!
//! `s1.` and, in base64 for URLs, the lease and the first half of its HMAC-SHA-256. The version is signed too. The first
//! secret signs, all verify. Refuses to know what a token is good for.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{Lease, bytes};

/// How a token of this version starts. The number goes up when the bytes change their meaning.
const PREFIX: &str = "s1.";

/// Half of the digest: 128 bits can't be guessed, and the token travels with every request.
const MAC_BYTES: usize = 16;

/// What is signed for a pseudonym begins so, and what is signed for a token with [`PREFIX`].
const PSEUDONYM: &str = "pseudonym:";
const PSEUDONYM_BYTES: usize = 8;

/// What a token carries at most: 32 limits with keys that differ in 256 bytes each. Longer keys come from long header
/// values; such a lease goes by its plain id.
const LEASE_BYTES_MAX: usize = 8 * 1024;

/// What is read at most; base64 makes four characters of three bytes.
const TOKEN_CHARS_MAX: usize = PREFIX.len() + (LEASE_BYTES_MAX + MAC_BYTES).div_ceil(3) * 4;

/// A secret that is made up when none was configured.
const MADE_UP_BYTES: usize = 32;

/// Signs tokens and reads them.
#[derive(Clone)]
pub(crate) struct Signer {
    /// At least one; the first signs.
    keys: Vec<Hmac<Sha256>>,
}

/// Why a token was refused. Who sent it learns no more than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("is not a lease token of this version of Sluice")]
    NotAToken,
    #[error("is signed with none of this instance's secrets, or was altered")]
    Signature,
}

/// Whether a text means to be a token, of any version, and not the plain id of a lease.
pub(crate) fn is_meant(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('s') else { return false };
    let version = rest.bytes().take_while(u8::is_ascii_digit).count();
    version > 0 && rest[version..].starts_with('.')
}

impl Signer {
    /// `None` without a secret.
    pub(crate) fn new<'s>(secrets: impl IntoIterator<Item = &'s [u8]>) -> Option<Self> {
        let key = |secret| Hmac::new_from_slice(secret).expect("HMAC must take a key of any length");
        let keys: Vec<_> = secrets.into_iter().map(key).collect();
        (!keys.is_empty()).then_some(Self { keys })
    }

    /// With a secret that nobody else has and that dies with the process.
    pub(crate) fn made_up() -> Result<Self, getrandom::Error> {
        let mut secret = [0; MADE_UP_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(Self::new([secret.as_slice()]).expect("one secret must be enough"))
    }

    /// The token of a lease that was written by [`super::bytes`]; `None` if that would be too long.
    pub(crate) fn sign(&self, lease: &[u8]) -> Option<String> {
        if lease.len() > LEASE_BYTES_MAX {
            return None;
        }
        let mac = mac(&self.keys[0], lease).finalize().into_bytes();
        let mut signed = Vec::with_capacity(lease.len() + MAC_BYTES);
        signed.extend(lease);
        signed.extend(&mac[..MAC_BYTES]);
        let mut token = String::with_capacity(PREFIX.len() + signed.len().div_ceil(3) * 4);
        token.push_str(PREFIX);
        URL_SAFE_NO_PAD.encode_string(signed, &mut token);
        Some(token)
    }

    /// A name for a value that nobody without the secret can tell the value from. 64 bits: among a million values two have
    /// the same name once in 30 million recordings.
    pub(crate) fn pseudonym(&self, value: &str) -> String {
        let mut mac = self.keys[0].clone();
        mac.update(PSEUDONYM.as_bytes());
        mac.update(value.as_bytes());
        let digest = mac.finalize().into_bytes();
        digest[..PSEUDONYM_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The lease of a token.
    pub(crate) fn open(&self, token: &str) -> Result<Lease, Refused> {
        let text = token.strip_prefix(PREFIX).ok_or(Refused::NotAToken)?;
        if token.len() > TOKEN_CHARS_MAX {
            return Err(Refused::NotAToken);
        }
        let signed = URL_SAFE_NO_PAD.decode(text).map_err(|_| Refused::NotAToken)?;
        let length = signed.len().checked_sub(MAC_BYTES).ok_or(Refused::NotAToken)?;
        let (mut lease, signature) = signed.split_at(length);
        // In constant time each: how long it takes tells nothing about the right signature.
        let signs = |key: &Hmac<Sha256>| mac(key, lease).verify_truncated_left(signature).is_ok();
        if !self.keys.iter().any(signs) {
            return Err(Refused::Signature);
        }
        bytes::read(&mut lease).filter(|_| lease.is_empty()).ok_or(Refused::NotAToken)
    }
}

fn mac(key: &Hmac<Sha256>, lease: &[u8]) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(PREFIX.as_bytes());
    mac.update(lease);
    mac
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({} secrets)", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::super::Held;
    use super::super::bytes::tests::{any_lease, held};
    use super::*;
    use crate::limit::{Kind, LeaseId};

    fn signer(secrets: &[&str]) -> Signer {
        Signer::new(secrets.iter().map(|secret| secret.as_bytes())).unwrap()
    }

    fn token(signer: &Signer, lease: &Lease) -> String {
        let mut bytes = Vec::new();
        bytes::write(&mut bytes, lease);
        signer.sign(&bytes).unwrap()
    }

    fn lease(held: Vec<Held>) -> Lease {
        let id = LeaseId::parse("01ARZ3NDEKTSV4RRFFQ69G5FAV");
        Lease { id, reserved_at_unix_ms: 1_760_000_000_000, held }
    }

    fn rolling(seconds: u32) -> Kind {
        Kind::Rolling { window_seconds: NonZeroU32::new(seconds).unwrap() }
    }

    fn concurrency(seconds: u32) -> Kind {
        Kind::Concurrency { timeout_seconds: NonZeroU32::new(seconds).unwrap() }
    }

    /// The sizes that docs/leases.md states.
    #[test]
    fn sizes() {
        let signer = signer(&["0123456789abcdef"]);
        let shipped = [
            held("llm:tenant=acme:model=gpt-4o:tpm", 1200, rolling(60)),
            held("llm:tenant=acme:model=gpt-4o:inflight", 1, concurrency(300)),
        ];
        assert_eq!(token(&signer, &lease(shipped.to_vec())).len(), 126);
        // Four limits that have nothing in common.
        let four = [
            held("global:llm:openai:gpt-4o:rpm", 1, rolling(60)),
            held("tenant:acme-corporation-europe:tokens-per-day", 150_000, rolling(86_400)),
            held("llm:user=5f0c1a52-3f6b-4d0e-8a4e-0a4b6a3f2e11:model=gpt-4o:tpm", 1200, rolling(60)),
            held("inflight:region=eu-central-1:upstream=openai", 1, concurrency(300)),
        ];
        assert_eq!(token(&signer, &lease(four.to_vec())).len(), 330);
        // Thirty-two that have all but a number in common, and thirty-two that differ from the start.
        let user = |n: u32| format!("5f0c1a52-3f6b-4d0e-8a4e-0a4b6a3f2e{n:02}");
        let many = |key: &dyn Fn(u32) -> String| (0..32).map(|n| held(&key(n), 1200, rolling(60))).collect();
        let alike = lease(many(&|n| format!("llm:user={}:model=gpt-4o:tpm", user(n))));
        let apart = lease(many(&|n| format!("{n:02}:user={}:model=gpt-4o:tpm", user(n))));
        assert_eq!((token(&signer, &alike).len(), token(&signer, &apart).len()), (1143, 2878));
    }

    #[test]
    fn the_longest_token_is_read_and_a_longer_lease_gets_none() {
        let signer = signer(&["0123456789abcdef"]);
        let long = |bytes: usize| {
            let mut written = Vec::new();
            let wanted = lease(vec![held(&"k".repeat(bytes), 1, rolling(60))]);
            bytes::write(&mut written, &wanted);
            (written, wanted)
        };
        let overhead = long(LEASE_BYTES_MAX).0.len() - LEASE_BYTES_MAX;
        let (written, wanted) = long(LEASE_BYTES_MAX - overhead);
        assert_eq!(signer.open(&signer.sign(&written).unwrap()).unwrap(), wanted);
        assert_eq!(signer.sign(&long(LEASE_BYTES_MAX - overhead + 1).0), None);
    }

    #[test]
    fn the_first_secret_signs_and_all_verify() {
        let lease = lease(vec![held("k", 1, rolling(1))]);
        let old = signer(&["old"]);
        let both = signer(&["new", "old"]);
        let new = signer(&["new"]);
        assert_eq!(both.open(&token(&old, &lease)).unwrap(), lease);
        assert_eq!(new.open(&token(&both, &lease)).unwrap(), lease);
        assert_eq!(old.open(&token(&both, &lease)).unwrap_err(), Refused::Signature);
        let (a, b) = (Signer::made_up().unwrap(), Signer::made_up().unwrap());
        assert_eq!(b.open(&token(&a, &lease)).unwrap_err(), Refused::Signature);
    }

    #[test]
    fn other_versions_and_what_is_no_token_are_refused() {
        let signer = signer(&["secret"]);
        let token = token(&signer, &lease(vec![held("k", 1, rolling(1))]));
        let body = &token[PREFIX.len()..];
        for text in ["", "s", "s1", "s1.", "s1.AAAA", "s1.====", "s1.é", "01ARZ3NDEKTSV4RRFFQ69G5FAV"] {
            assert_eq!(signer.open(text).unwrap_err(), Refused::NotAToken, "{text}");
        }
        for text in [format!("s0.{body}"), format!("s2.{body}"), format!("s01.{body}"), body.to_owned()] {
            assert_eq!(signer.open(&text).unwrap_err(), Refused::NotAToken, "{text}");
        }
        assert_eq!(signer.open(&format!("s1.{}", "A".repeat(1 << 20))).unwrap_err(), Refused::NotAToken);
    }

    #[test]
    fn a_token_is_told_from_a_plain_id() {
        for text in ["s1.", "s1.abc", "s0.x", "s12.x"] {
            assert!(is_meant(text), "{text}");
        }
        for text in ["", "s", "s.", "s1", "sa.", "t1.x", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "job-7", "S1.x"] {
            assert!(!is_meant(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_was_signed_is_read(lease in any_lease()) {
            let signer = signer(&["secret"]);
            prop_assert_eq!(signer.open(&token(&signer, &lease)).unwrap(), lease);
        }

        /// Whichever character is changed to whatever other one.
        #[test]
        fn an_altered_token_is_refused(lease in any_lease(), at in any::<prop::sample::Index>(), to in any::<char>()) {
            let signer = signer(&["secret"]);
            let token = token(&signer, &lease);
            let mut altered: Vec<char> = token.chars().collect();
            let at = at.index(altered.len());
            prop_assume!(altered[at] != to);
            altered[at] = to;
            let altered: String = altered.into_iter().collect();
            prop_assert!(signer.open(&altered).is_err());
        }

        #[test]
        fn a_cut_token_is_refused(lease in any_lease(), keep in any::<prop::sample::Index>()) {
            let signer = signer(&["secret"]);
            let token = token(&signer, &lease);
            prop_assert!(signer.open(&token[..keep.index(token.len())]).is_err());
            let longer = token + "A";
            prop_assert!(signer.open(&longer).is_err());
        }

        #[test]
        fn any_text_is_refused(text in ".{0,300}", tail in "[A-Za-z0-9_-]{0,300}") {
            let signer = signer(&["secret"]);
            prop_assert!(signer.open(&text).is_err());
            let forged = format!("s1.{}", tail);
            prop_assert!(signer.open(&forged).is_err());
        }
    }
}

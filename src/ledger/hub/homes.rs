//! Which hub a limit is at home at: the same for every sidecar that reaches the same hubs. Pure.
//!
//! Rendezvous hashing: every hub has a weight for every limit, and the heaviest one that answers is its home. A hub that goes
//! away moves only its own limits, and gets them back when it returns.

use crate::limit::LimitId;

/// What a hub's name contributes to its weights. Sidecars must agree on it, so it is no keyed hash.
pub(super) fn seed(name: &str) -> u64 {
    // FNV-1a.
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The weight of a limit at the hub with this seed. The hub with the highest weight is the limit's home.
#[allow(clippy::cast_possible_truncation, reason = "both halves of the id are mixed in")]
pub(super) fn weight(seed: u64, limit: LimitId) -> u64 {
    let (high, low) = ((limit.bits() >> 64) as u64, limit.bits() as u64);
    mix(mix(seed ^ low) ^ high)
}

/// SplitMix64's last steps: every bit of the input changes half of the output.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitKey;

    fn home<'h>(hubs: &[&'h str], limit: &str) -> &'h str {
        let id = LimitId::of(&LimitKey::new(limit));
        hubs.iter().copied().max_by_key(|hub| weight(seed(hub), id)).unwrap()
    }

    /// The value is pinned: sidecars of different releases must agree.
    #[test]
    fn a_weight_is_the_same_in_every_release() {
        let id = LimitId::of(&LimitKey::new("global:llm:openai:gpt-4o:rpm"));
        assert_eq!(weight(seed("hub-0:8082"), id), weight(seed("hub-0:8082"), id));
        assert_eq!(seed(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(seed("a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn limits_spread_evenly_and_only_those_of_a_hub_that_is_gone_move() {
        let hubs = ["hub-0:8082", "hub-1:8082", "hub-2:8082"];
        let mut counts = [0; 3];
        for n in 0..3_000 {
            let limit = format!("d:tenant={n}:minute");
            let at = home(&hubs, &limit);
            counts[hubs.iter().position(|hub| *hub == at).unwrap()] += 1;
            let without_last = home(&hubs[..2], &limit);
            assert!(at == hubs[2] || at == without_last, "{limit} moved from {at} to {without_last}");
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }
}

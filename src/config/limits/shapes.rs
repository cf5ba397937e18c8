//! The keys of a limits file. The order of the family decides where a misplaced key is said to belong.

use crate::config::shape::Shape;

static FAMILY: &[&Shape] = &[&ROOT, &DESCRIPTOR, &RATE_LIMIT, &INLINE, &NAMED, &REFERENCE];

pub(crate) static ROOT: Shape =
    Shape { name: "a limits file", keys: &["domain", "limits", "descriptors"], family: FAMILY };

pub(crate) static DESCRIPTOR: Shape = Shape {
    name: "a descriptor",
    keys: &[
        "key",
        "value",
        "rate_limit",
        "limits",
        "descriptors",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
    ],
    family: FAMILY,
};

pub(crate) static RATE_LIMIT: Shape = Shape {
    name: "a `rate_limit`",
    keys: &["unit", "requests_per_unit", "unlimited", "name", "replaces", "exact", "charge"],
    family: FAMILY,
};

pub(crate) static REPLACED: Shape = Shape { name: "an entry of `replaces`", keys: &["name"], family: FAMILY };

/// The keys of a limit, wherever it is written: what it is called, what all have, and what only this one has.
macro_rules! keys_of_limit {
    ($name:literal $(, $more:literal)*) => {
        &[
            $name,
            "kind",
            "capacity",
            "window_seconds",
            "timeout_seconds",
            "unit",
            "description",
            "overage",
            "exact",
            "charge",
            $($more,)*
        ]
    };
}

/// A limit that one descriptor has for itself.
pub(crate) static INLINE: Shape = Shape {
    name: "a limit of a descriptor",
    keys: keys_of_limit!("name", "cost", "reconcile"),
    family: FAMILY,
};

/// A limit under the top-level `limits`.
pub(crate) static NAMED: Shape = Shape { name: "a named limit", keys: keys_of_limit!("key"), family: FAMILY };

pub(crate) static REFERENCE: Shape =
    Shape { name: "a reference to a named limit", keys: &["ref", "cost", "reconcile"], family: FAMILY };

//! The named lengths of time that envoyproxy/ratelimit's files and Envoy's messages use.

use std::num::NonZeroU32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    pub const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    pub fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    pub fn seconds(self) -> NonZeroU32 {
        const DAY: u32 = 24 * 60 * 60;
        let seconds = match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 60 * 60,
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        };
        NonZeroU32::new(seconds).expect("a unit must last at least a second")
    }

    /// In any case, as the reference reads it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(text))
    }

    /// The unit that is exactly this long.
    pub fn of_seconds(seconds: NonZeroU32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.seconds() == seconds)
    }
}

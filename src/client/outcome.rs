//! What became of one attempt, read from its answer.
//!
//! Only what the rules ask about: the status, the hint, and whether waiting can help at all.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

/// What became of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Answered {
        status: u16,
        hint: Option<Duration>,
        /// The limit is smaller than the request: no wait will help.
        never_fits: bool,
    },
    /// It never left: refused, unreachable, name or TLS trouble while connecting.
    NotSent,
    /// It left and no answer came: a reset, a deadline. It may have run.
    Lost,
}

impl Outcome {
    pub const fn answered(status: u16, hint: Option<Duration>) -> Self {
        Self::Answered { status, hint, never_fits: false }
    }

    pub fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let never_fits = headers.get_all("x-sluice-reason").iter().any(|reason| reason == "never_fits");
        Self::Answered { status: status.as_u16(), hint: hint(headers), never_fits }
    }
}

/// `retry-after-ms`, which is exact, else `retry-after` in seconds. A date is no hint here: it would need a clock that
/// agrees with the server's.
fn hint(headers: &HeaderMap) -> Option<Duration> {
    let ms = largest(headers, "retry-after-ms").map(Duration::from_millis);
    ms.or_else(|| largest(headers, "retry-after").map(Duration::from_secs))
}

/// Proxies append: of several values the largest is safe for all who sent one.
fn largest(headers: &HeaderMap, name: &str) -> Option<u64> {
    let number = |value: &http::HeaderValue| value.to_str().ok()?.trim().parse().ok();
    headers.get_all(name).iter().filter_map(number).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn hints_as_they_are_sent() {
        type Row = (&'static [(&'static str, &'static str)], Option<u64>);
        let rows: [Row; 10] = [
            (&[], None),
            (&[("retry-after", "2")], Some(2000)),
            (&[("retry-after-ms", "157")], Some(157)),
            (&[("retry-after", "1"), ("retry-after-ms", "157")], Some(157)),
            (&[("retry-after", "1"), ("retry-after", "3")], Some(3000)),
            (&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")], None),
            (&[("retry-after", "soon"), ("retry-after", "4")], Some(4000)),
            (&[("retry-after", "5"), ("retry-after-ms", "-1")], Some(5000)),
            (&[("retry-after", "0")], Some(0)),
            (&[("retry-after", "99999999999999999999999")], None),
        ];
        for (pairs, expected) in rows {
            assert_eq!(hint(&headers(pairs)), expected.map(Duration::from_millis), "{pairs:?}");
        }
    }

    #[test]
    fn what_never_fits_is_recognised() {
        let outcome =
            Outcome::of(StatusCode::TOO_MANY_REQUESTS, &headers(&[("x-sluice-reason", "never_fits")]));
        assert_eq!(outcome, Outcome::Answered { status: 429, hint: None, never_fits: true });
        let outcome =
            Outcome::of(StatusCode::TOO_MANY_REQUESTS, &headers(&[("x-sluice-reason", "over_limit")]));
        assert_eq!(outcome, Outcome::answered(429, None));
    }
}

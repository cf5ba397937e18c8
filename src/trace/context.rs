//! The trace context of W3C: what a caller says of its span in `traceparent` and `tracestate`. Pure.
//!
//! Both come from anybody. What is not exactly as the specification has it is as if it were not there.

use http::{HeaderMap, HeaderName, HeaderValue};

// Made once: a name that is looked up as text is parsed first.
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// `00-<trace id>-<span id>-<flags>`. Later versions may go on after another hyphen.
const TRACEPARENT_BYTES: usize = 55;

/// What the specification asks us to pass on at least, and here at most.
const STATE_BYTES_MAX: usize = 512;
const STATE_MEMBERS_MAX: usize = 32;

const SAMPLED: u64 = 1;

/// The caller's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) is_sampled: bool,
}

/// The caller's span, if it says one.
pub(super) fn parent(headers: &HeaderMap) -> Option<Parent> {
    let mut values = headers.get_all(&TRACEPARENT).iter();
    let (only, None) = (values.next()?, values.next()) else { return None };
    parse(only.as_bytes())
}

fn parse(text: &[u8]) -> Option<Parent> {
    let (known, rest) = text.split_at_checked(TRACEPARENT_BYTES)?;
    let &[v1, v2, b'-', ref ids @ ..] = known else { return None };
    let (trace_id, ids) = ids.split_at_checked(32)?;
    let (b'-', ids) = ids.split_first()? else { return None };
    let (span_id, flags) = ids.split_at_checked(16)?;
    let (b'-', flags) = flags.split_first()? else { return None };
    let is_known_length = match hex(&[v1, v2])? {
        0xff => false,
        0 => rest.is_empty(),
        _ => rest.first().is_none_or(|first| *first == b'-'),
    };
    let parent = Parent {
        trace_id: hex(trace_id)?,
        span_id: u64::try_from(hex(span_id)?).ok()?,
        is_sampled: u64::try_from(hex(flags)?).ok()? & SAMPLED != 0,
    };
    (is_known_length && parent.trace_id != 0 && parent.span_id != 0).then_some(parent)
}

/// Lower case only, as the specification has it.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// What vendors say beside it, as it came; empty if it is not as it should be.
pub(super) fn state(headers: &HeaderMap) -> String {
    let all: Result<Vec<&str>, _> = headers.get_all(&TRACESTATE).iter().map(HeaderValue::to_str).collect();
    let text = all.map(|all| all.join(",")).unwrap_or_default();
    let mut members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let is_right = text.len() <= STATE_BYTES_MAX
        && members.clone().count() <= STATE_MEMBERS_MAX
        && members.all(|member| {
            member.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty())
        });
    if is_right { text } else { String::new() }
}

/// Anything but zero, which would mean that there is none.
pub(super) fn fresh_trace_id() -> u128 {
    fastrand::u128(1..)
}

pub(super) fn fresh_span_id() -> u64 {
    fastrand::u64(1..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: u128 = 0x0af7651916cd43dd8448eb211c80319c;
    const SPAN: u64 = 0xb7ad6b7169203331;

    #[test]
    fn a_traceparent_is_read_as_it_is_specified() {
        let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        for (text, is_sampled) in [
            (format!("00-{ids}-01"), true),
            (format!("00-{ids}-00"), false),
            (format!("00-{ids}-03"), true),
            (format!("00-{ids}-02"), false),
            (format!("01-{ids}-01"), true),
            (format!("cc-{ids}-01-what-comes-later"), true),
        ] {
            let right = Parent { trace_id: TRACE, span_id: SPAN, is_sampled };
            assert_eq!(parse(text.as_bytes()), Some(right), "{text}");
        }
        for wrong in [
            String::new(),
            "00".to_owned(),
            "-".repeat(55),
            "0".repeat(55),
            "\u{0}".repeat(55),
            "é".repeat(28),
            format!("ff-{ids}-01"),
            format!("00-{ids}-01-"),
            format!("00-{ids}-01 "),
            format!("01-{ids}-010"),
            format!("00-{ids}-1"),
            format!("00-{ids}-0x"),
            format!("00-{}-01", ids.to_uppercase()),
            format!("00_{ids}_01"),
            format!(" 00-{ids}-01"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01".to_owned(),
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01".to_owned(),
            "00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01".to_owned(),
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
            format!("00-{ids}-01").repeat(1_000),
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    fn headers(name: &HeaderName, values: &[&'static str]) -> HeaderMap {
        let values = values.iter().map(|value| (name.clone(), HeaderValue::from_static(value)));
        values.fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
    }

    #[test]
    fn one_traceparent_is_enough_and_two_are_none() {
        let one = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(parent(&headers(&TRACEPARENT, &[one])).is_some());
        assert_eq!(parent(&headers(&TRACEPARENT, &[one, one])), None);
        assert_eq!(parent(&HeaderMap::new()), None);
    }

    #[test]
    fn a_tracestate_is_passed_on_unless_it_is_broken() {
        let read = |values: &[&'static str]| state(&headers(&TRACESTATE, values));
        assert_eq!(
            read(&["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"]),
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
        );
        assert_eq!(read(&["a=1", "b=2"]), "a=1,b=2");
        assert_eq!(read(&[]), "");
        assert_eq!(read(&["a"]), "");
        assert_eq!(read(&["=a"]), "");
        let long: &'static str = Box::leak(format!("a={}", "x".repeat(511)).into_boxed_str());
        assert_eq!(read(&[long]), "");
        let many: &'static str = Box::leak("a=1,".repeat(33).into_boxed_str());
        assert_eq!(read(&[many]), "");
        let bytes = HeaderValue::from_bytes(b"a=\xff").unwrap();
        assert_eq!(state(&HeaderMap::from_iter([(TRACESTATE.clone(), bytes)])), "");
    }
}

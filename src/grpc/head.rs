//! The headers of a call, as far as they matter before its body is read.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::api;

// Made once: a name that is used as text is parsed first.
static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
static ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static REQUEST_ID: HeaderName = HeaderName::from_static(api::REQUEST_ID);

/// What there is to know of the headers of a call. They are gone through once, because looking up a name costs more.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// As HTTP/2 counts them.
    pub(super) bytes: usize,
    has_timeout: bool,
    has_request_id: bool,
    pub(super) is_encoded: bool,
}

impl Head {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut head = Self::default();
        for (name, value) in headers {
            head.bytes += name.as_str().len() + value.len() + 32;
            head.has_timeout |= *name == TIMEOUT;
            head.has_request_id |= *name == REQUEST_ID;
            head.is_encoded |= *name == ENCODING;
        }
        head
    }

    /// How long the caller waits, as it wrote it. What can't be read is no limit.
    pub(super) fn timeout(&self, headers: &HeaderMap) -> Option<Duration> {
        self.has_timeout.then(|| headers.get(&TIMEOUT)).flatten().and_then(duration)
    }

    pub(super) fn request_id<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        self.has_request_id.then(|| headers.get(&REQUEST_ID)).flatten()?.to_str().ok()
    }
}

fn duration(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // At most eight digits, says gRPC; so nothing here overflows.
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(TIMEOUT.clone(), HeaderValue::from_static(text))]);
            Head::of(&headers).timeout(&headers)
        };
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(read("1500000u"), Some(Duration::from_millis(1500)));
        for wrong in ["", "m", "20", "20x", "123456789m", "-1m", "2 m"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn headers_are_counted_as_http2_does() {
        let headers = [(REQUEST_ID.clone(), "abc"), (ENCODING.clone(), "gzip")];
        let headers =
            HeaderMap::from_iter(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
        let head = Head::of(&headers);
        assert_eq!(head.bytes, (19 + 3 + 32) + (13 + 4 + 32));
        assert_eq!((head.is_encoded, head.timeout(&headers)), (true, None));
        assert_eq!(head.request_id(&headers), Some("abc"));
    }
}

//! When a certificate ends. Reads only as much of its DER as leads there.
//!
//! Refuses to say whether that matters.

use crate::clock::calendar;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The last second of its life, since 1970; `None` if it does not say.
pub(super) fn not_after(certificate: &[u8]) -> Option<u64> {
    let (_, certificate, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut signed, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    if signed.first() == Some(&VERSION) {
        signed = element(signed)?.2;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        signed = element(signed)?.2;
    }
    let (_, validity, _) = element(signed).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (tag, text, _) = element(element(validity)?.2)?;
    time(tag, text)
}

/// The first element: its tag, what is in it, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if length >= 0x80 {
        let digits = rest.get(..length - 0x80).filter(|digits| digits.len() <= 4)?;
        rest = &rest[digits.len()..];
        length = digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit));
    }
    Some((*tag, rest.get(..length)?, &rest[length..]))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, as seconds since 1970.
fn time(tag: u8, text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |part: &[u8]| part.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = calendar::days_until(year, month, day);
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate() {
        for (year, month, day, unix_days) in [(1970, 1, 1, 0), (2000, 2, 29, 11_016), (2049, 12, 31, 29_219)]
        {
            let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(1970, 1, 1);
            params.not_after = rcgen::date_time_ymd(year, month, day);
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(not_after(certificate.der()), Some(unix_days * 86_400), "{year}-{month}-{day}");
        }
        assert_eq!(time(GENERALIZED_TIME, b"22000101000000Z"), Some(7_258_118_400));
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let key = rcgen::KeyPair::generate().unwrap();
        let whole = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&key).unwrap();
        for length in 0..120 {
            assert_eq!(not_after(&whole.der()[..length]), None);
        }
        for bytes in [&b"\x30\x84\xff\xff\xff\xff"[..], &b"\x30\xff"[..], &b"\x30\x80"[..]] {
            assert_eq!(not_after(bytes), None);
        }
    }
}

//! LimitKey: the name of one limit, written so that no value can name another's.
//!
//! A derived key is `<domain>:<key>=<value>:…:<name>`. In every part `%`, `:`, `=` and control
//! characters are percent-encoded in capitals, so the text splits back into exactly the parts it was made of.
//! Refuses to know what the parts mean.

use std::fmt;
use std::sync::Arc;

/// The name of one limit. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitKey(Arc<str>);

/// One `key=value` pair of a descriptor, as the client sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub key: &'a str,
    pub value: &'a str,
}

/// A derived key taken apart again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyParts {
    pub domain: String,
    pub entries: Vec<(String, String)>,
    pub name: String,
}

impl LimitKey {
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// The key of the limit `name` at the end of `entries`, for programs that name limits themselves.
    pub fn derived(domain: &str, entries: &[Entry<'_>], name: &str) -> Self {
        let mut text = String::with_capacity(64);
        write_prefix(&mut text, domain, entries.iter().copied());
        write_name(&mut text, name);
        Self::new(&text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same text, shared.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// The domain of a derived key; `None` if it is none.
    pub(crate) fn domain(&self) -> Option<String> {
        self.parts().map(|parts| parts.domain)
    }

    /// The parts of a derived key, or `None` if it isn't written as [`write_prefix`] and
    /// [`write_name`] write it.
    pub fn parts(&self) -> Option<KeyParts> {
        let (prefix, name) = self.0.rsplit_once(':')?;
        let name = decode(name)?;
        let (domain, entries) = prefix_parts(prefix)?;
        Some(KeyParts { domain, entries, name })
    }

    /// The domain and the entries that lead to a limit: of a derived key, and of an override.
    pub(crate) fn path(&self) -> Option<(String, Vec<(String, String)>)> {
        prefix_parts(self.0.rsplit_once(':')?.0)
    }
}

/// What [`write_prefix`] wrote, if it has entries.
fn prefix_parts(prefix: &str) -> Option<(String, Vec<(String, String)>)> {
    let mut segments = prefix.split(':');
    let domain = decode(segments.next()?)?;
    let entries = segments
        .map(|segment| {
            let (key, value) = segment.split_once('=')?;
            Some((decode(key)?, decode(value)?))
        })
        .collect::<Option<Vec<_>>>()?;
    (!entries.is_empty()).then_some((domain, entries))
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl std::borrow::Borrow<str> for LimitKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Writes `<domain>:<key>=<value>:…` to the end of `out`: the part that all limits at the end of `entries` share.
pub(crate) fn write_prefix<'e>(out: &mut String, domain: &str, entries: impl IntoIterator<Item = Entry<'e>>) {
    encode(out, domain);
    for entry in entries {
        write_entry(out, entry.key, Some(entry.value));
    }
}

/// Writes `:<key>=<value>`, or `:<key>` for any value.
#[inline]
pub(crate) fn write_entry(out: &mut String, key: &str, value: Option<&str>) {
    out.push(':');
    encode(out, key);
    if let Some(value) = value {
        out.push('=');
        encode(out, value);
    }
}

/// Writes `:<name>` after a prefix: the part that is the limit's own.
pub(crate) fn write_name(out: &mut String, name: &str) {
    out.push(':');
    encode(out, name);
}

/// The key of an override that came with a descriptor. Its last part has a bare `=`, which no name has.
pub(crate) fn write_override(
    out: &mut String,
    domain: &str,
    entries: &[Entry<'_>],
    capacity: u64,
    unit: &str,
) {
    write_prefix(out, domain, entries.iter().copied());
    fmt::Write::write_fmt(out, format_args!(":override={capacity}/{unit}")).expect("a String must take text");
}

/// Bytes that are never part of what is encoded. A table, because this is asked for every byte of every key.
const PLAIN: [bool; 256] = {
    let mut plain = [true; 256];
    let mut control = 0;
    while control < 0x20 {
        plain[control] = false;
        control += 1;
    }
    // 0xC2 opens the two-byte forms of U+0080..U+009F, which are control characters too.
    let others = [b'%', b':', b'=', 0x7f, 0xC2];
    let mut n = 0;
    while n < others.len() {
        plain[others[n] as usize] = false;
        n += 1;
    }
    plain
};

/// Percent-encodes `%`, `:`, `=` and control characters.
pub(crate) fn encode(out: &mut String, part: &str) {
    if part.bytes().all(|byte| PLAIN[usize::from(byte)]) {
        out.push_str(part);
        return;
    }
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for c in part.chars() {
        if matches!(c, '%' | ':' | '=') || c.is_control() {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                out.push('%');
                out.push(HEX[usize::from(byte >> 4)] as char);
                out.push(HEX[usize::from(byte & 15)] as char);
            }
        } else {
            out.push(c);
        }
    }
}

/// Undoes [`encode`]; `None` for anything that `encode` would not have written.
fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    let mut again = String::with_capacity(part.len());
    encode(&mut again, &text);
    (again == part).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(domain: &str, entries: &[(&str, &str)], name: &str) -> LimitKey {
        let mut text = String::new();
        write_prefix(&mut text, domain, entries.iter().map(|&(key, value)| Entry { key, value }));
        write_name(&mut text, name);
        LimitKey::new(&text)
    }

    #[test]
    fn written_as_the_contract_says() {
        assert_eq!(
            key("llm", &[("tenant", "acme"), ("model", "gpt-4o")], "tpm").as_str(),
            "llm:tenant=acme:model=gpt-4o:tpm"
        );
        assert_eq!(key("d", &[("k", "a:b=c%\n\u{7f}")], "minute").as_str(), "d:k=a%3Ab%3Dc%25%0A%7F:minute");
        assert_eq!(key("d", &[("k", "\u{85}é")], "minute").as_str(), "d:k=%C2%85é:minute");
        assert_eq!(key("d", &[("k", "")], "minute").as_str(), "d:k=:minute");
    }

    #[test]
    fn only_what_encode_writes_is_taken_apart() {
        for text in
            ["d", "d:minute", "d:k:minute", "d:k=%3a:minute", "d:k=%41:minute", "d:k=%:m", "d:k=%zz:m"]
        {
            assert_eq!(LimitKey::new(text).parts(), None, "{text}");
        }
        let mut text = String::new();
        write_override(&mut text, "d", &[Entry { key: "k", value: "v" }], 42, "hour");
        assert_eq!(text, "d:k=v:override=42/hour");
        assert_eq!(LimitKey::new(&text).parts(), None, "an override is not a configured limit");
        let path = ("d".to_owned(), vec![("k".to_owned(), "v".to_owned())]);
        assert_eq!(LimitKey::new(&text).path(), Some(path));
    }

    #[test]
    fn long_values_are_kept_whole() {
        let long = "x:".repeat(5 * 1024);
        let parts = key("d", &[("k", &long)], "m").parts().unwrap();
        assert_eq!(parts.entries[0].1, long);
    }

    proptest! {
        /// Writing is injective: whatever the parts hold, they come back, so two different limits never share a key.
        #[test]
        fn what_is_written_comes_back(
            domain in ".{0,12}",
            entries in prop::collection::vec(("[a-z:=%\\x00-\\x1f]{0,6}", "(?s).{0,12}"), 1..4),
            name in ".{0,8}",
        ) {
            let borrowed: Vec<(&str, &str)> = entries.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let parts = key(&domain, &borrowed, &name).parts().expect("a derived key must come apart");
            prop_assert_eq!(parts.domain, domain);
            prop_assert_eq!(parts.entries, entries);
            prop_assert_eq!(parts.name, name);
        }
    }
}

//! Envoy's format string: what a line of a text log looks like, and what its fields say.
//!
//! A field ends where the text that follows it in the format begins for the first time. Refuses to know what a field means.

use smallvec::SmallVec;

use super::Wrong;
use super::scalar::Scalar;

/// Parts of a line, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// What the line begins with.
    start: String,
    /// Each field, and the text that follows it: empty only after the last.
    fields: Vec<(String, String)>,
}

impl Format {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text.trim_end_matches(['\n', '\r']);
        let mut format = Self { start: String::new(), fields: Vec::new() };
        while let Some(at) = rest.find('%') {
            format.literal(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                format.literal("%");
                rest = after;
                continue;
            }
            let end = operator_end(rest).ok_or_else(|| {
                let shown: String = rest.chars().take(40).collect();
                format!("`%{shown}` is not closed by another `%`")
            })?;
            if let Some((name, after)) = format.fields.last()
                && after.is_empty()
            {
                return Err(format!(
                    "there is nothing between `%{name}%` and `%{}%`, so nobody can tell them apart",
                    &rest[..end]
                ));
            }
            format.fields.push((rest[..end].to_owned(), String::new()));
            rest = &rest[end + 1..];
        }
        format.literal(rest);
        match format.fields.is_empty() {
            true => {
                Err("must be `json`, or Envoy's format string with fields such as %START_TIME%".to_owned())
            }
            false => Ok(format),
        }
    }

    fn literal(&mut self, text: &str) {
        match self.fields.last_mut() {
            Some((_, after)) => after.push_str(text),
            None => self.start.push_str(text),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// The place of the field that is called so: as it is written in the format, or the same without a length, in any case.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let name = name.strip_prefix('%').and_then(|name| name.strip_suffix('%')).unwrap_or(name);
        let exact = self.names().position(|there| there == name);
        exact.or_else(|| self.names().position(|there| plain(there).eq_ignore_ascii_case(plain(name))))
    }

    /// The values of a line, in the order of the fields.
    pub(super) fn read<'l>(&self, line: &'l str) -> Result<SmallVec<[Scalar<'l>; 16]>, Wrong> {
        let differs = |what: &str| Wrong::line(format!("does not look like the format: {what}"));
        let Some(mut rest) = line.strip_prefix(self.start.as_str()) else {
            return Err(differs(&format!("it does not begin with `{}`", self.start)));
        };
        let mut values = SmallVec::new();
        let last = self.fields.len() - 1;
        for (place, (name, after)) in self.fields.iter().enumerate() {
            let end = match (after.is_empty(), place == last) {
                (true, _) => Some(rest.len()),
                (false, true) if rest.ends_with(after.as_str()) => Some(rest.len() - after.len()),
                (false, true) => None,
                (false, false) => rest.find(after.as_str()),
            };
            let end = end.ok_or_else(|| differs(&format!("there is no `{after}` after %{name}%")))?;
            values.push(Scalar::of_text(&rest[..end]));
            rest = &rest[end + after.len()..];
        }
        Ok(values)
    }
}

/// Where the operator that `rest` begins with ends: at a `%` that is in no parentheses.
fn operator_end(rest: &str) -> Option<usize> {
    let mut depth = 0u32;
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '%' if depth == 0 && at > 0 => return Some(at),
            '%' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Without the length that cuts it: `REQ(X-TENANT):20`.
fn plain(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((before, length)) if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) => {
            before
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
        %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
        %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \
        \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"\n";

    #[test]
    fn a_line_of_the_default_format() {
        let format = Format::parse(DEFAULT).unwrap();
        let line = "[2026-11-16T04:58:04.123Z] \"GET /a?b=[c HTTP/1.1\" 429 RL 0 0 3 - \"10.0.0.1\" \
            \"curl/8.5 (x; y)\" \"-\" \"shop.example\" \"-\"";
        let values = format.read(line).unwrap();
        let value = |name: &str| values[format.find(name).unwrap()].text().unwrap().map(|it| it.into_owned());
        for (name, expected) in [
            ("START_TIME", Some("2026-11-16T04:58:04.123Z")),
            ("%START_TIME%", Some("2026-11-16T04:58:04.123Z")),
            ("REQ(:METHOD)", Some("GET")),
            ("REQ(X-ENVOY-ORIGINAL-PATH?:PATH)", Some("/a?b=[c")),
            ("RESPONSE_CODE", Some("429")),
            ("DURATION", Some("3")),
            ("RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)", None),
            ("req(user-agent)", Some("curl/8.5 (x; y)")),
            ("UPSTREAM_HOST", None),
        ] {
            assert_eq!(value(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn percent_signs_in_parentheses_and_doubled_ones_end_nothing() {
        let format = Format::parse("%START_TIME(%s.%3f)% 100%% %REQ(A):5%").unwrap();
        assert_eq!(format.names().collect::<Vec<_>>(), ["START_TIME(%s.%3f)", "REQ(A):5"]);
        assert_eq!(format.find("REQ(A)"), Some(1));
        let values = format.read("12.5 100% abc").unwrap();
        assert_eq!(values[0].time_ms(), Ok(12_500));
        assert_eq!(values[1].text().unwrap().as_deref(), Some("abc"));
    }

    #[test]
    fn what_is_no_format_is_refused_in_words() {
        for (text, expected) in [
            ("no fields", "must be `json`, or Envoy's format string with fields such as %START_TIME%"),
            ("%A", "`%A` is not closed by another `%`"),
            ("%REQ(A%", "`%REQ(A%` is not closed by another `%`"),
            ("%A%%B%", "there is nothing between `%A%` and `%B%`, so nobody can tell them apart"),
        ] {
            assert_eq!(Format::parse(text).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn a_line_that_looks_different_is_named() {
        let format = Format::parse("[%A%] %B%;").unwrap();
        for (line, expected) in [
            ("x", "does not look like the format: it does not begin with `[`"),
            ("[x", "does not look like the format: there is no `] ` after %A%"),
            ("[x] y", "does not look like the format: there is no `;` after %B%"),
        ] {
            assert_eq!(format.read(line).unwrap_err().message, expected, "{line}");
        }
        assert!(format.read("[x] y;z;").is_ok(), "the last field goes to the end");
    }
}

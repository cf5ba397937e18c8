//! What Limitador's conditions and variables speak of: an entry of a descriptor, as CEL or as it was written before that.

/// An entry, and which descriptor of the request it is in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) descriptor: u64,
    pub(super) key: String,
    pub(super) value: Option<String>,
}

/// Reads a word; the error says why it can't be said.
pub(super) type Read = fn(&str) -> Result<Term, String>;

/// `descriptors[0]['method'] == 'GET'`, `descriptors[0].method == "GET"`, or, as it was, `method == GET`.
pub(super) fn condition(text: &str) -> Result<Term, String> {
    let unsaid = || "is more than one entry that equals one text".to_owned();
    let (left, right) = text.split_once("==").ok_or_else(unsaid)?;
    let term = variable(left).map_err(|_| unsaid())?;
    let value = value(right.trim()).ok_or_else(unsaid)?;
    if value.is_empty() {
        return Err("compares with an empty text, which stands for any value here".to_owned());
    }
    if value.contains('*') {
        return Err("compares with a text that has a `*` in it, which stands for anything here".to_owned());
    }
    Ok(Term { value: Some(value.to_owned()), ..term })
}

/// `descriptors[0]['user']`, `descriptors[0].user`, or, as it was, `user`.
pub(super) fn variable(text: &str) -> Result<Term, String> {
    let unsaid = || "is not an entry of a descriptor".to_owned();
    let text = text.trim();
    let (descriptor, key) = match text.strip_prefix("descriptors[") {
        None => (0, text),
        Some(rest) => {
            let (index, rest) = rest.split_once(']').ok_or_else(unsaid)?;
            let bracket = rest.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let key = match bracket {
                Some(quoted) => unquoted(quoted.trim()).ok_or_else(unsaid)?,
                None => rest.strip_prefix('.').ok_or_else(unsaid)?,
            };
            (index.trim().parse().map_err(|_| unsaid())?, key)
        }
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | ':' | '/');
    match !key.is_empty() && key.chars().all(is_name) {
        true => Ok(Term { descriptor, key: key.to_owned(), value: None }),
        false => Err(unsaid()),
    }
}

/// A text in quotes, or one word.
fn value(text: &str) -> Option<&str> {
    if let Some(inside) = unquoted(text) {
        return Some(inside);
    }
    let is_word =
        !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '/'));
    is_word.then_some(text)
}

/// What is between quotes that have none between them, and nothing that CEL would read as something else.
fn unquoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inside = text.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inside.contains([quote, '\\'])).then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_said() {
        for (text, descriptor, key, value) in [
            ("descriptors[0]['req.method'] == 'GET'", 0, "req.method", "GET"),
            ("descriptors[1].path == \"/a b\"", 1, "path", "/a b"),
            ("descriptors[0][\"x\"]=='y'", 0, "x", "y"),
            ("req.method == GET", 0, "req.method", "GET"),
            ("user == 'it''s'", 0, "", ""),
        ] {
            let expected = Term { descriptor, key: key.to_owned(), value: Some(value.to_owned()) };
            assert_eq!(condition(text).ok(), (!key.is_empty()).then_some(expected), "{text}");
        }
        assert_eq!(variable("descriptors[0].user").unwrap().key, "user");
        assert_eq!(
            variable("user_id").unwrap(),
            Term { descriptor: 0, key: "user_id".to_owned(), value: None }
        );
    }

    #[test]
    fn what_can_t_be_said() {
        for text in [
            "descriptors[0].method != 'GET'",
            "descriptors[0].method == 'GET' && descriptors[0].path == '/'",
            "descriptors[0].path.startsWith('/a')",
            "size(descriptors[0].path) == 3",
            "'GET' == descriptors[0].method",
            "descriptors[0].path == descriptors[0].other",
            "descriptors[0].path == ''",
            "descriptors[0].path == '/a*'",
            "descriptors[x].path == 'a'",
            "",
        ] {
            assert!(condition(text).is_err(), "{text}");
        }
        for text in ["", "int(descriptors[0].n)", "descriptors[0]", "descriptors[0].a + 'b'"] {
            assert!(variable(text).is_err(), "{text}");
        }
    }
}

//! A configuration as a tree of words with line numbers, the same for YAML and JSON.
//!
//! Scalars stay the text they were written as: whoever reads a field decides whether `404` is a number or a name.
//! Refuses to know any key.

use std::borrow::Cow;

use super::scalar;

/// One value and the line it starts on, from 1; 0 if there are no lines.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value<'t> {
    pub(crate) line: u32,
    pub(crate) data: Data<'t>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Data<'t> {
    Scalar {
        text: Cow<'t, str>,
        /// Written without quotes, so that it may be a number, a bool or null.
        plain: bool,
    },
    List(Vec<Value<'t>>),
    /// In the order of the file, keys that are there twice included.
    Map(Vec<MappingEntry<'t>>),
}

/// One `key: value` of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MappingEntry<'t> {
    pub(crate) key: Cow<'t, str>,
    /// The line of the key.
    pub(crate) line: u32,
    pub(crate) value: Value<'t>,
}

impl<'t> Value<'t> {
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.data, Data::Scalar { text, plain: true }
            if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// What it is, for error messages.
    pub(crate) fn sort(&self) -> &'static str {
        match &self.data {
            _ if self.is_null() => "nothing",
            Data::Scalar { .. } => "a plain value",
            Data::List(_) => "a list",
            Data::Map(_) => "a mapping",
        }
    }

    /// The same tree from JSON, which has no lines. As deep as the value, which its parser has bounded.
    pub(crate) fn from_json(json: &'t serde_json::Value) -> Self {
        let plain = |text| Data::Scalar { text, plain: true };
        let data = match json {
            serde_json::Value::Null => plain("null".into()),
            serde_json::Value::Bool(true) => plain("true".into()),
            serde_json::Value::Bool(false) => plain("false".into()),
            serde_json::Value::Number(number) => plain(number.to_string().into()),
            serde_json::Value::String(text) => Data::Scalar { text: text.into(), plain: false },
            serde_json::Value::Array(items) => Data::List(items.iter().map(Self::from_json).collect()),
            serde_json::Value::Object(map) => Data::Map(map.iter().map(MappingEntry::from_json).collect()),
        };
        Self { line: 0, data }
    }

    /// The same as JSON, where a plain word that could be a number or a bool is one.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.data {
            _ if self.is_null() => serde_json::Value::Null,
            Data::Scalar { text, plain: true } => {
                let number = || scalar::number(text, true).ok().map(serde_json::Value::from);
                let flag = scalar::flag(text, true).ok().map(serde_json::Value::from);
                flag.or_else(number).unwrap_or_else(|| serde_json::Value::from(&**text))
            }
            Data::Scalar { text, .. } => serde_json::Value::from(&**text),
            Data::List(items) => items.iter().map(Value::to_json).collect(),
            Data::Map(entries) => {
                let fields = entries.iter().map(|entry| (entry.key.to_string(), entry.value.to_json()));
                serde_json::Value::Object(fields.collect())
            }
        }
    }

    /// The line of `path` (`a.b[2].c`), or of the nearest thing above it that is there.
    pub(crate) fn line_of(&self, path: &str) -> u32 {
        let mut here = self;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match &here.data {
                Data::Map(entries) => {
                    entries.iter().find(|entry| entry.key == step).map(|entry| &entry.value)
                }
                Data::List(items) => {
                    step.trim_end_matches(']').parse().ok().and_then(|n: usize| items.get(n))
                }
                Data::Scalar { .. } => None,
            };
            match next {
                Some(value) => here = value,
                None => break,
            }
        }
        here.line
    }
}

impl<'t> MappingEntry<'t> {
    fn from_json((key, value): (&'t String, &'t serde_json::Value)) -> Self {
        Self { key: key.into(), line: 0, value: Value::from_json(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::yaml;

    #[test]
    fn json_and_yaml_are_one_tree() {
        let text = r#"{"a": [1, 2.5, "x", true, null], "b": {"c": -3}}"#;
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut read = yaml::parse(text).unwrap().unwrap();
        fn without_lines(value: &mut Value<'_>) {
            value.line = 0;
            match &mut value.data {
                Data::Scalar { .. } => {}
                Data::List(items) => items.iter_mut().for_each(without_lines),
                Data::Map(entries) => entries.iter_mut().for_each(|entry| {
                    entry.line = 0;
                    without_lines(&mut entry.value);
                }),
            }
        }
        without_lines(&mut read);
        assert_eq!(read, Value::from_json(&json));
    }

    #[test]
    fn a_path_leads_to_its_line_or_as_near_as_it_can() {
        let tree = yaml::parse("a:\n  b:\n  - c: 1\n  - c: 2\n    d: 3\n").unwrap().unwrap();
        for (path, line) in [("", 1), ("a.b", 3), ("a.b[1].d", 5), ("a.b[1].e", 4), ("a.b[9]", 3), ("z", 1)] {
            assert_eq!(tree.line_of(path), line, "{path}");
        }
    }
}

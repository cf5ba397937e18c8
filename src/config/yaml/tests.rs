//! Good, bad and hostile YAML.

use super::*;
use proptest::prelude::*;

/// A tree in one line: quotes around what is not plain, `@` and the line.
fn show(value: &Value<'_>) -> String {
    let line = value.line;
    match &value.data {
        Data::Scalar { text, plain: true } => format!("{text}@{line}"),
        Data::Scalar { text, plain: false } => format!("{text:?}@{line}"),
        Data::List(items) => format!("[{}]@{line}", items.iter().map(show).collect::<Vec<_>>().join(" ")),
        Data::Map(entries) => {
            let entry =
                |entry: &MappingEntry<'_>| format!("{}@{}={}", entry.key, entry.line, show(&entry.value));
            format!("{{{}}}@{line}", entries.iter().map(entry).collect::<Vec<_>>().join(" "))
        }
    }
}

fn read(text: &str) -> String {
    match parse(text) {
        Ok(None) => "nothing".into(),
        Ok(Some(value)) => show(&value),
        Err(fault) => format!("{}: {}", fault.line, fault.message),
    }
}

#[test]
fn words_stay_as_they_were_written() {
    for (text, expected) in [
        ("a: 404", "{a@1=404@1}@1"),
        ("a: 0x10\nb: 1e3\nc: 1.10\nd: 007", "{a@1=0x10@1 b@2=1e3@2 c@3=1.10@3 d@4=007@4}@1"),
        ("a: true\nb: 'true'", "{a@1=true@1 b@2=\"true\"@2}@1"),
        ("a:\nb: ~\nc: null", "{a@1=@1 b@2=~@2 c@3=null@3}@1"),
        ("a: !!str 1\nb: ! 2\nc: !!str", "{a@1=\"1\"@1 b@2=\"2\"@2 c@3=\"\"@3}@1"),
        ("a: b#c # d", "{a@1=b#c@1}@1"),
        ("a: >\n  b\n  c\n", "{a@1=\"b c\\n\"@2}@1"),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn documents() {
    for (text, expected) in [
        ("", "nothing"),
        ("# only a comment\n", "nothing"),
        ("---\n", "nothing"),
        ("\u{feff}a: 1", "{a@1=1@1}@1"),
        ("---\na: 1\n...\n", "{a@2=1@2}@2"),
        ("a: 1\n---\n", "{a@1=1@1}@1"),
        ("a: 1\n---\nb: 2\n", "3: is in a second document after `---`; one file holds one"),
        ("a: 1\r\nb: 2\r\n", "{a@1=1@1 b@2=2@2}@1"),
    ] {
        assert_eq!(read(text), expected, "{text:?}");
    }
}

#[test]
fn aliases_and_merges() {
    for (text, expected) in [
        ("a: &x 1\nb: *x", "{a@1=1@1 b@2=1@1}@1"),
        ("a: &x {k: 1, l: 2}\nb:\n  <<: *x\n  k: 3", "{a@1={k@1=1@1 l@1=2@1}@1 b@2={k@4=3@4 l@1=2@1}@3}@1"),
        (
            "- &x {k: 1}\n- &y {k: 2, l: 2}\n- <<: [*x, *y]",
            "[{k@1=1@1}@1 {k@2=2@2 l@2=2@2}@2 {k@1=1@1 l@2=2@2}@3]@1",
        ),
        ("a: {<<: 1}", "1: is merged with `<<` but is no mapping"),
        ("a: {'<<': 1}", "{a@1={<<@1=1@1}@1}@1"),
        ("a: *x", "1: is not YAML: while parsing node, found unknown anchor (column 4)"),
        ("a: &x [*x]", "1: is an alias inside of what it stands for"),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn mistakes_name_their_line() {
    for (text, expected) in [
        ("a: 1\nb: [", "2: is not YAML: unclosed bracket '[' (column 4)"),
        ("a: 1\nb: c: d", "2: is not YAML: mapping values are not allowed in this context (column 5)"),
        ("a: b\n\tc: d", "2: is not YAML: indent with spaces, not with tabs"),
        ("a:\n\tb: c", "2: is not YAML: indent with spaces, not with tabs"),
        ("a: !include b", "1: has the tag `!include`, which means nothing here"),
        ("? [a]\n: b", "1: is a key that is no plain word"),
        (
            "a:\n  b: 1\n c: 2",
            "3: is not YAML: while parsing a block mapping, did not find expected key (column 2)",
        ),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn hostile_files_are_refused() {
    let laughs = (1..12).fold("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, n| {
        let before = format!("*a{}", n - 1);
        text + &format!("a{n}: &a{n} [{}]\n", vec![before; 10].join(", "))
    });
    let long_copies = format!("a: &a \"\\t{}\"\nb: [{}]", "x".repeat(1 << 18), "*a,".repeat(1_000));
    let towers =
        (1..300).fold("a0: &a0 [x]\n".to_owned(), |text, n| text + &format!("a{n}: &a{n} [*a{}]\n", n - 1));
    for (name, text, expected) in [
        ("laughs", laughs, "grows too large"),
        ("long copies", long_copies, "grows too large"),
        ("towers of aliases", towers, "nested too deep"),
        ("flow depth", "[".repeat(10_000), "too deep"),
        ("flow depth of mappings", "{a: ".repeat(10_000), "too deep"),
        ("block depth", (0..10_000).map(|n| format!("{}a:\n", " ".repeat(n.min(200)))).collect(), "too deep"),
        ("block depth on one line", "- ".repeat(10_000), "too deep"),
        ("length", "#".repeat(FILE_BYTES_MAX + 1), "bytes long"),
    ] {
        let read = read(&text);
        assert!(read.contains(expected) && read.len() < 200, "{name}: {}", &read[..read.len().min(200)]);
    }
}

#[test]
fn one_long_word_is_only_long() {
    let text = format!("a: {}", "x".repeat(2 << 20));
    assert!(parse(&text).unwrap().is_some());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(?s).{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn anything_that_looks_like_yaml_is_read_or_refused(text in "[-\\[\\]{}:,&*#?|>'\"!%@~<ab0 \n\t]{0,80}") {
        let _ = parse(&text);
    }
}

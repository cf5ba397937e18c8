//! Whole directories: what is read, what is ignored, and the files that Sluice ships.

use std::fs;

use proptest::prelude::*;

use super::*;

/// A directory with these files.
fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// What is said about a directory, with paths as seen from it.
fn refused(dir: &Path) -> String {
    match load(Some(dir)) {
        Ok(_) => "fine".to_owned(),
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            lines.join("\n").replace(&format!("{}/", dir.display()), "")
        }
    }
}

fn names(files: &Files) -> Vec<&str> {
    files.content.limits.iter().filter_map(|file| file.name.rsplit('/').next()).collect()
}

#[test]
fn the_files_that_sluice_ships_are_fine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let loaded = load(Some(&root)).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.hot.warnings, []);
    let mut policy = RetryPolicy::default();
    policy.rolling.informed = true;
    assert_eq!(loaded.hot.retry_policy, policy);
    let mut domains: Vec<&str> = loaded.hot.registry.domain_names().collect();
    domains.sort_unstable();
    assert_eq!(domains, ["demo", "llm"]);
}

#[test]
fn an_empty_directory_is_all_defaults() {
    let dir = dir(&[]);
    let loaded = load(Some(dir.path())).unwrap();
    assert_eq!((loaded.settings, loaded.hot.retry_policy), (Settings::default(), RetryPolicy::default()));
    assert_eq!((loaded.hot.registry.domain_names().count(), loaded.hot.files.len()), (0, 0));
}

#[test]
fn only_yaml_directly_in_limits_is_read_by_name() {
    let dir = dir(&[
        ("limits/b.yaml", "domain: b"),
        ("limits/a.yml", "domain: a"),
        ("limits/.hidden.yaml", "nonsense: ["),
        ("limits/README.md", "nonsense: ["),
        ("limits/c.yaml.bak", "nonsense: ["),
        ("limits/deeper/d.yaml", "nonsense: ["),
        ("limits/e.yaml/f.yaml", "nonsense: ["),
        ("limits/.git/config", "nonsense: ["),
        ("limits/b.yaml~", "nonsense: ["),
        ("limits/#b.yaml#", "nonsense: ["),
        ("limits/lost+found/#1", "nonsense: ["),
        ("other.yaml", "nonsense: ["),
        ("retry_policy.yaml", "retry_policy: {decreasing_ms: 5}"),
    ]);
    let files = Files::read(dir.path());
    assert_eq!((names(&files), files.content.problems.len()), (vec!["a.yml", "b.yaml"], 0));
    let loaded = load(Some(dir.path())).unwrap();
    assert_eq!(loaded.hot.files.len(), 3);
    assert_eq!(loaded.hot.retry_policy.decreasing_ms, 5);
    let warnings: Vec<String> = loaded.hot.warnings.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(warnings.join("\n").replace(&format!("{}/", dir.path().display()), ""), @r"
    limits/README.md: is not read: the name of a limits file ends in .yaml or .yml
    limits/c.yaml.bak: is not read: the name of a limits file ends in .yaml or .yml
    limits/deeper: is a directory, and is not read: limits files lie directly in limits/
    limits/e.yaml: is a directory, and is not read: limits files lie directly in limits/
    ");
}

/// So that the instances of a fleet can be compared, wherever each has its files.
#[test]
fn equal_files_have_equal_hashes_and_others_have_not() {
    let hash = |files: &[(&str, &str)]| load(Some(dir(files).path())).unwrap().hot.hash;
    let (a, b) = (("limits/a.yaml", "domain: a"), ("limits/b.yaml", "domain: b"));
    let both = hash(&[a, b]);
    assert_eq!(both.len(), 16);
    assert_eq!(hash(&[("limits/2.yml", "domain: a"), ("limits/1.yml", "domain: b")]), both);
    assert_eq!(hash(&[a, b, ("limits/ignored", "domain: c"), ("sluice.yaml", "log: {level: warn}")]), both);
    let others = [
        hash(&[]),
        hash(&[a]),
        hash(&[a, ("limits/b.yaml", "domain: b ")]),
        hash(&[a, b, ("retry_policy.yaml", "retry_policy: {decreasing_ms: 5}")]),
    ];
    assert!(!others.contains(&both), "{others:?}");
}

#[cfg(unix)]
#[test]
fn a_config_map_is_read_through_its_links() {
    use std::os::unix::fs::symlink;
    let dir = dir(&[("limits/..2024/a.yaml", "domain: first"), ("limits/..2025/a.yaml", "domain: second")]);
    let limits = dir.path().join("limits");
    symlink("..2024", limits.join("..data")).unwrap();
    symlink("..data/a.yaml", limits.join("a.yaml")).unwrap();
    let before = Files::read(dir.path());
    assert_eq!((names(&before), &*before.content.limits[0].text), (vec!["a.yaml"], "domain: first"));
    assert_eq!(Files::read(dir.path()), before);
    symlink("..2025", limits.join("..tmp")).unwrap();
    fs::rename(limits.join("..tmp"), limits.join("..data")).unwrap();
    assert_eq!(Files::read(dir.path()).content.limits[0].text, "domain: second");
    fs::remove_file(limits.join("..data")).unwrap();
    assert!(refused(dir.path()).starts_with("limits/a.yaml: can't be read: "));
}

#[test]
fn problems_of_all_files_come_together() {
    let dir = dir(&[
        ("sluice.yaml", "log: {level: loud}"),
        ("limits/a.yaml", "domain: d\ndescriptors: 5"),
        ("limits/b.yaml", "\ndomain: d"),
        ("limits/c.yaml", ""),
        ("retry_policy.yaml", "retry_policy:\n  factor: 1"),
    ]);
    fs::write(dir.path().join("limits/d.yaml"), b"domain: d\n\nx: \xff\n").unwrap();
    insta::assert_snapshot!(refused(dir.path()), @r"
    limits/a.yaml:2: descriptors: must be a list, not a plain value
    limits/b.yaml:2: domain: is also the domain of limits/a.yaml:1; a domain has one file
    limits/c.yaml:1: is empty: a limits file has at least a `domain`
    limits/d.yaml:3: is not UTF-8 text
    retry_policy.yaml:2: retry_policy.factor: is a key of `concurrency`, not of `retry_policy`
    sluice.yaml:1: log.level: must be one of off, error, warn, info, debug, trace, not `loud`
    ");
}

#[test]
fn a_directory_that_is_named_has_to_be_one() {
    let dir = dir(&[("file", ""), ("nested/limits", "")]);
    assert!(refused(&dir.path().join("nowhere")).contains("nowhere: is no directory that can be read"));
    assert!(refused(&dir.path().join("file")).contains("file: is no directory"));
    assert_eq!(refused(&dir.path().join("nested")), "limits: must be a directory of limits files");
}

#[test]
fn a_file_that_is_too_long_is_not_read() {
    let dir = dir(&[]);
    fs::create_dir(dir.path().join("limits")).unwrap();
    let file = fs::File::create(dir.path().join("limits/a.yaml")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(refused(dir.path()), "limits/a.yaml: is longer than 16777216 bytes");
}

proptest! {
    #[test]
    fn any_text_is_loaded_or_refused(
        text in "((grpc|admin|ledger|leases|retry_policy|rolling|queue|elapsed|uri|secrets)|[-:,{}\\[\\] \n0-9.'~]){0,40}",
    ) {
        let file = Document { name: "f".into(), text };
        let _ = load_settings(Some(&file));
        let _ = load_retry_policy(Some(&file));
    }
}

//! What a release consists of, made by `scripts/release.sh` from a small repository of its own: everything but the build and the
//! list of what is inside, which take minutes. Helm is that of `SLUICE_TEST_KUBERNETES`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const FILES: [&str; 8] = [
    "Cargo.toml",
    "Dockerfile",
    "LICENSE",
    "README.md",
    "scripts/release.sh",
    "config/sluice.yaml",
    "config/retry_policy.yaml",
    "config/limits/demo.yaml",
];

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Before, in and after the section of the version.
fn changelog() -> String {
    format!(
        "# Changelog\n\n## Unreleased\n\n- not yet\n\n## {VERSION}\n\n### Added\n- this one\n\n## 0.0.1\n\n- long ago\n"
    )
}

/// A repository with one commit, which is tagged.
fn tagged() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in FILES {
        let to = dir.path().join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), to).unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::create_dir(dir.path().join("deploy")).unwrap();
    let mut copy = Command::new("cp");
    // What is linked into the chart from outside is not here.
    let copied =
        copy.arg("-rL").arg(root.join("deploy/chart")).arg(dir.path().join("deploy")).status().unwrap();
    assert!(copied.success());
    let tools = std::env::var_os("SLUICE_TEST_KUBERNETES");
    let tools = tools
        .expect("SLUICE_TEST_KUBERNETES must name a directory with Helm: run `make test`, which builds it");
    fs::create_dir(dir.path().join(".tools")).unwrap();
    std::os::unix::fs::symlink(tools, dir.path().join(".tools/kubernetes")).unwrap();
    fs::write(dir.path().join("CHANGELOG.md"), changelog()).unwrap();
    fs::write(dir.path().join(".gitignore"), "/target/\n/.tools/\n").unwrap();
    git(dir.path(), &["init", "--quiet"]);
    commit(dir.path());
    git(dir.path(), &["tag", &format!("v{VERSION}")]);
    dir
}

fn git(dir: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(dir).args(["-c", "user.name=a", "-c", "user.email=a@example.org"]).args(arguments);
    let output = command.env("GIT_CONFIG_GLOBAL", "/dev/null").output().expect("git must run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn commit(dir: &Path) {
    git(dir, &["add", "."]);
    git(dir, &["commit", "--quiet", "--message", "all"]);
}

/// What the script says, and whether it was content.
fn release(dir: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("scripts/release.sh").current_dir(dir).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn an_archive_the_notes_and_checksums_that_are_the_same_again() {
    let tag = format!("v{VERSION}");
    let make = || {
        let dir = tagged();
        let out = dir.path().join(format!("target/release-{tag}"));
        fs::create_dir_all(&out).unwrap();
        let program = out.join("sluice");
        fs::write(&program, "#!/bin/sh\necho released\n").unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let (made, said) = release(dir.path(), &[&tag, "check", "chart", "archive", "notes", "sums"]);
        assert!(made, "{said}");
        (dir, out, said)
    };
    let (_dir, out, sums) = make();
    assert_eq!(
        fs::read_to_string(out.join("NOTES.md")).unwrap(),
        format!("# Sluice {VERSION}\n\n### Added\n- this one\n")
    );
    let checked =
        Command::new("sha256sum").current_dir(&out).args(["--check", "SHA256SUMS"]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let name = format!("sluice-{VERSION}-{}-linux-gnu", std::env::consts::ARCH);
    assert!(sums.contains(&format!("  {name}.tar.gz\n")) && sums.contains("  NOTES.md\n"), "{sums}");

    let unpacked = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(out.join(format!("{name}.tar.gz"))).arg("-C").arg(unpacked.path());
    assert!(tar.status().unwrap().success());
    let dir = unpacked.path().join(&name);
    for file in ["LICENSE", "README.md", "CHANGELOG.md", "config/limits/demo.yaml"] {
        assert!(dir.join(file).is_file(), "{file}");
    }
    let ran = Command::new(dir.join("ratelimit")).output().unwrap();
    assert_eq!(ran.stdout, b"released\n");

    let chart = out.join(format!("sluice-{VERSION}.tgz"));
    let helm = _dir.path().join(".tools/kubernetes/helm");
    let mut rendered = Command::new(helm);
    let rendered =
        rendered.arg("template").arg(&chart).args(["--set", "monitoring.rules=true"]).output().unwrap();
    assert!(
        rendered.status.success() && String::from_utf8_lossy(&rendered.stdout).contains("SluiceFailsOpen"),
        "{rendered:?}"
    );

    // The commit of another day is another release, so that only what is in the archives is compared. Helm counts in seconds.
    let archives = [out.join(format!("{name}.tar.gz")), chart];
    let read = || archives.each_ref().map(|archive| fs::read(archive).unwrap());
    let first = read();
    archives.iter().for_each(|archive| fs::remove_file(archive).unwrap());
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let (made, said) = release(_dir.path(), &[&tag, "archive", "chart"]);
    assert!(made && first == read(), "{said}");
}

#[test]
fn what_does_not_fit_the_tag_is_refused() {
    let dir = tagged();
    let tag = format!("v{VERSION}");
    let refused = |arguments: &[&str], why: &str| {
        let (made, said) = release(dir.path(), arguments);
        assert!(!made && said.contains(why), "{arguments:?}: {said}");
    };
    refused(&[], "the tag must be a version, as in v0.1.0, not ''");
    refused(&["1.2.3"], "the tag must be a version, as in v0.1.0, not '1.2.3'");
    refused(&["v9.9.9"], "there is no tag v9.9.9");
    refused(&[&tag, "publish"], "there is no step 'publish'");
    refused(&[&tag, "archive"], "build it first");
    git(dir.path(), &["tag", "v9.9.9"]);
    refused(&["v9.9.9", "check"], &format!("Cargo.toml has the version {VERSION}, not 9.9.9"));
    fs::write(dir.path().join("CHANGELOG.md"), "# Changelog\n\n## Unreleased\n").unwrap();
    refused(&[&tag, "check"], "there are changes");
    commit(dir.path());
    refused(&[&tag, "check"], "is not what is checked out");
    git(dir.path(), &["tag", "--force", &tag]);
    refused(&[&tag, "check"], &format!("CHANGELOG.md has no section \"## {VERSION}\""));
}

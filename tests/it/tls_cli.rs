//! `try`, `bench`, `explain`, `top` and `check --against` at ports with TLS.

use crate::authority::Authority;
use crate::sluice::{Ran, Sluice, run, sluice};
use crate::tls::{port, start};

struct World {
    authority: Authority,
    sluice: Sluice,
}

impl World {
    /// Both ports have TLS; the gRPC port wants to see certificates too.
    async fn start() -> Self {
        let authority = Authority::new();
        authority.issue("client", |_| {});
        let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
        let grpc = port("grpc", &certificate, &key, Some(&authority.path("ca.pem")));
        let sluice = start(&(grpc + &port("admin", &certificate, &key, None))).await;
        Self { authority, sluice }
    }

    /// In the directory of the authority, so that its files have short names.
    fn run(&self, arguments: &[&str]) -> Ran {
        run(&mut sluice(self.authority.dir.path(), arguments))
    }
}

const PAIR: [&str; 6] = ["--ca", "ca.pem", "--cert", "client.pem", "--key", "client.key"];

#[tokio::test(flavor = "multi_thread")]
async fn try_and_bench_speak_tls() {
    let world = World::start().await;
    let grpc = world.sluice.grpc.as_str();
    let by_name = format!("localhost:{}", world.sluice.grpc_port());
    for address in [grpc, &by_name] {
        let ran = world.run(&[&["try", "--grpc", address][..], &PAIR, &["d", "a=1"]].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
        assert!(ran.stdout.starts_with("overall_code: OK\n"), "{ran:?}");
    }
    let ran = world.run(&[&["bench", "--grpc", grpc, "--seconds", "1"][..], &PAIR, &["d", "a=1"]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("\ncodes       OK "), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_is_told_why() {
    let world = World::start().await;
    let stranger = Authority::new();
    std::fs::copy(stranger.path("ca.pem"), world.authority.path("other-ca.pem")).unwrap();
    let grpc = world.sluice.grpc.as_str();
    let rows: [(&[&str], &str); 8] = [
        (&[], "if this port has TLS, --ca is needed"),
        (&["--ca", "ca.pem"], "CertificateRequired"),
        (&["--ca", "other-ca.pem"], "UnknownIssuer"),
        (&["--ca", "nowhere.pem"], "nowhere.pem: can't be read: No such file"),
        (&["--ca", "client.key"], "client.key: has no certificate in it"),
        (&["--ca", "ca.pem", "--cert", "client.pem"], "--key <FILE>"),
        (&["--cert", "client.pem", "--key", "client.key"], "--ca <FILE>"),
        (
            &["--ca", "ca.pem", "--cert", "client.pem", "--key", "server.key"],
            "server.key: is not the key of the certificate in client.pem",
        ),
    ];
    for (flags, expected) in rows {
        let ran = world.run(&[&["try", "--grpc", grpc][..], flags, &["d", "a=1"]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{flags:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{flags:?}: {ran:?}");
    }
    let ran = world.run(&["bench", "--grpc", "unix:/run/sluice.sock", "--ca", "ca.pem", "d", "a=1"]);
    assert!(ran.stderr.contains("is a Unix socket, which has no TLS"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_asks_an_admin_port_with_tls() {
    let world = World::start().await;
    let config = world.sluice.dir.path().join("config").display().to_string();
    let admin = world.sluice.admin;
    let check = |url: &str, flags: &[&str]| {
        world.run(&[&["check", "--config-dir", &config, "--against", url][..], flags].concat())
    };
    // --ca means TLS, whatever the URL says.
    for scheme in ["https", "http"] {
        let ran = check(&format!("{scheme}://{admin}"), &["--ca", "ca.pem"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
        assert!(ran.stdout.ends_with("no changes\n"), "{ran:?}");
    }
    for (url, flags, expected) in [
        (format!("https://{admin}"), &[][..], "needs --ca, the authority of its certificate"),
        (format!("http://{admin}"), &[], "if this port has TLS, --ca is needed"),
        (format!("ftp://{admin}"), &[], "must begin with http:// or https://"),
        (format!("https://{admin}"), &["--ca", "server.key"], "server.key: has no certificate in it"),
    ] {
        let ran = check(&url, flags);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.contains(expected), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_and_top_speak_tls() {
    let world = World::start().await;
    let admin = world.sluice.admin.to_string();
    let by_name = format!("localhost:{}", world.sluice.admin.port());
    for address in [&admin, &by_name] {
        let ran = world.run(&["explain", "--admin", address, "--ca", "ca.pem", "d", "a=1"]);
        assert!(ran.code == 0 && ran.stdout.starts_with("overall_code: OK\n"), "{ran:?}");
        let ran = world.run(&["top", "--admin", address, "--ca", "ca.pem"]);
        assert!(ran.code == 0 && ran.stdout.starts_with("Requests denied in the last 300 s\n"), "{ran:?}");
    }
    for command in [&["explain", "--admin", &admin, "d", "a=1"][..], &["top", "--admin", &admin]] {
        let ran = world.run(command);
        assert!(ran.code == 1 && ran.stderr.contains("if this port has TLS, --ca is needed"), "{ran:?}");
    }
}

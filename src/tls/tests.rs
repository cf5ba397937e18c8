//! What is refused and how it is said, what is accepted, and what happens when files change.

#[path = "../../tests/support/authority.rs"]
mod authority;

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use http::Uri;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub(crate) use self::authority::Authority;
use super::*;
use crate::clock;
use crate::telemetry::Metrics;

impl Authority {
    pub(crate) fn server(&self, name: &str, client_ca: Option<&str>) -> ServerFiles {
        ServerFiles {
            cert_file: self.path(&format!("{name}.pem")),
            key_file: self.path(&format!("{name}.key")),
            client_ca_file: client_ca.map(|ca| self.path(ca)),
        }
    }

    fn client(&self, pair: Option<&str>) -> ClientFiles {
        let pair = pair.map(|name| PairFiles {
            cert_file: self.path(&format!("{name}.pem")),
            key_file: self.path(&format!("{name}.key")),
        });
        ClientFiles { ca_file: self.path("ca.pem"), pair, server_name: None }
    }
}

fn certificates() -> Arc<Certificates> {
    Certificates::new(Arc::new(Metrics::default()))
}

fn refusal(files: &ServerFiles) -> String {
    let error = certificates().server(files, Alpn::Http2).expect_err("it must be refused");
    format!("{}: {}", error.file.file_name().unwrap().display(), error.message)
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let authority = Authority::new();
    let key = fs::read_to_string(authority.path("server.key")).unwrap();
    let certificate = fs::read_to_string(authority.path("server.pem")).unwrap();
    let other = KeyPair::generate().unwrap().serialize_pem();
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let no_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (certificate, key, expected) in [
        ("", &*key, "c.pem: is empty"),
        ("hello", &key, "c.pem: is not PEM: it has no line `-----BEGIN …-----`"),
        (&key, &key, "c.pem: has no certificate in it (`-----BEGIN CERTIFICATE-----`), but a private key"),
        (&certificate[..200], &key, "c.pem: is cut off: a line `-----END …-----` is missing"),
        (
            "-----BEGIN X",
            &key,
            "c.pem: is not PEM: a line begins with `-----BEGIN ` and does not end with `-----`",
        ),
        (
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
            &key,
            "c.pem: is not PEM: what is between its lines is not base64",
        ),
        (no_der, &key, "c.pem: its certificate can't be read: invalid peer certificate: BadEncoding"),
        (
            &certificate,
            &certificate,
            "c.key: has no private key in it (PKCS#8, PKCS#1 or SEC1), but a certificate",
        ),
        (&certificate, &format!("{key}{key}"), "c.key: has 2 private keys in it, and must have one"),
        (&certificate, encrypted, "c.key: has an encrypted key in it: it must be one without a passphrase"),
        (
            &certificate,
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "c.key: has a key in it that can't be used: it must be one of RSA of 2048 to 8192 bits, ECDSA P-256 or \
             P-384, Ed25519",
        ),
        (&certificate, &other, "c.key: is not the key of the certificate in DIR/c.pem"),
    ] {
        fs::write(authority.path("c.pem"), certificate).unwrap();
        fs::write(authority.path("c.key"), key).unwrap();
        let expected = expected.replace("DIR", &authority.dir.path().display().to_string());
        assert_eq!(refusal(&authority.server("c", None)), expected);
    }
    let said = refusal(&authority.server("nowhere", None));
    assert!(said.starts_with("nowhere.pem: can't be read: No such file"), "{said}");
    fs::write(authority.path("empty.pem"), key).unwrap();
    assert_eq!(
        refusal(&authority.server("server", Some("empty.pem"))),
        "empty.pem: has no certificate in it (`-----BEGIN CERTIFICATE-----`), but a private key"
    );
    fs::write(authority.path("empty.pem"), no_der).unwrap();
    let said = refusal(&authority.server("server", Some("empty.pem")));
    assert!(said.starts_with("empty.pem: its certificate number 1 can't be read: "), "{said}");
}

#[test]
fn an_elliptic_key_may_be_sec1() {
    let authority = Authority::new();
    let key = authority.issue("old", |_| {});
    // PKCS#8 is a header of 29 bytes around it.
    let sec1 = base64::engine::general_purpose::STANDARD.encode(&key.serialize_der()[29..]);
    let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{sec1}\n-----END EC PRIVATE KEY-----\n");
    fs::write(authority.path("old.key"), pem).unwrap();
    certificates().server(&authority.server("old", None), Alpn::Http2).expect("it must be taken");
}

/// Serves one connection: what it says of its client, or the error.
async fn greet(
    server: &ServerTls,
    client: &Arc<ClientTls>,
) -> (Result<String, String>, Option<CertificateDer<'static>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = server.config();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(config).accept(stream).await.map_err(|error| error.to_string())?;
        let alpn = stream.get_ref().1.alpn_protocol().unwrap_or_default().to_vec();
        stream.write_all(b"hi").await.map_err(|error| error.to_string())?;
        // The client may still say that it refuses.
        stream.read(&mut [0]).await.map_err(|error| error.to_string())?;
        Ok(String::from_utf8(alpn).unwrap())
    });
    let uri: Uri = format!("http://127.0.0.1:{port}").parse().unwrap();
    let connected = client.connector(Duration::from_secs(5)).connect(&uri).await;
    let shown = match connected {
        Ok(mut stream) => {
            let shown = stream.get_ref().1.peer_certificates().map(|chain| chain[0].clone().into_owned());
            drop(stream.read_exact(&mut [0; 2]).await);
            drop(stream.shutdown().await);
            shown
        }
        Err(_) => None,
    };
    (serving.await.unwrap(), shown)
}

/// What the server says of a client with these files.
async fn answer(server: &ServerTls, files: &ClientFiles) -> Result<String, String> {
    greet(server, &ClientTls::load(files, Alpn::Http2).unwrap()).await.0
}

#[tokio::test]
async fn who_is_let_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let all = certificates();
    let open = all.server(&ours.server("server", None), Alpn::Http2).unwrap();
    assert_eq!(answer(&open, &ours.client(None)).await, Ok("h2".to_owned()));
    let said = answer(&open, &theirs.client(None)).await.unwrap_err();
    assert!(said.contains("UnknownCA"), "{said}");

    ours.issue("client", |_| {});
    ours.issue("expired", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    ours.issue("for_servers", |params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth));
    theirs.issue("stranger", |_| {});
    let stranger = ClientFiles { ca_file: ours.path("ca.pem"), ..theirs.client(Some("stranger")) };
    let closed = all.server(&ours.server("server", Some("ca.pem")), Alpn::Http2).unwrap();
    assert_eq!(answer(&closed, &ours.client(Some("client"))).await, Ok("h2".to_owned()));
    for (files, expected) in [
        (ours.client(None), "peer sent no certificates"),
        (ours.client(Some("expired")), "certificate expired"),
        (ours.client(Some("for_servers")), "extended key usage"),
        (stranger, "UnknownIssuer"),
    ] {
        let said = answer(&closed, &files).await.unwrap_err();
        assert!(said.contains(expected), "{said}");
    }
}

#[tokio::test]
async fn a_name_can_stand_for_the_address() {
    let authority = Authority::new();
    authority
        .issue("named", |params| *params = CertificateParams::new(vec!["*.hubs.mesh".to_owned()]).unwrap());
    let server = certificates().server(&authority.server("named", None), Alpn::Http2).unwrap();
    let mut files = authority.client(None);
    let said = answer(&server, &files).await.unwrap_err();
    assert!(said.contains("BadCertificate"), "{said}");
    files.server_name = Some(ServerName::try_from("a.hubs.mesh").unwrap());
    assert_eq!(answer(&server, &files).await, Ok("h2".to_owned()));

    // A wildcard of which one label is the rest might stand for a whole top-level domain.
    authority.issue("wide", |params| *params = CertificateParams::new(vec!["*.mesh".to_owned()]).unwrap());
    let server = certificates().server(&authority.server("wide", None), Alpn::Http2).unwrap();
    files.server_name = Some(ServerName::try_from("a.mesh").unwrap());
    let said = answer(&server, &files).await.unwrap_err();
    assert!(said.contains("BadCertificate"), "{said}");
}

/// Copies a pair, or half of it, over another.
fn copy(authority: &Authority, from: &str, to: &str, endings: &[&str]) {
    for ending in endings {
        let (from, to) =
            (authority.path(&format!("{from}.{ending}")), authority.path(&format!("{to}.{ending}")));
        fs::copy(from, to).unwrap();
    }
}

fn complaints(all: &Certificates) -> Vec<String> {
    let name = |path: &Path| path.file_name().unwrap().display().to_string();
    all.problems().iter().map(|problem| name(&problem.error.file)).collect()
}

#[tokio::test]
async fn files_are_followed_and_the_last_good_pair_stays() {
    let authority = Authority::new();
    authority.issue("first", |_| {});
    authority.issue("second", |_| {});
    copy(&authority, "first", "server", &["pem", "key"]);
    let metrics = Arc::new(Metrics::default());
    let all = Certificates::new(Arc::clone(&metrics));
    let server = all.server(&authority.server("server", None), Alpn::Http2).unwrap();
    // The same files once more: one problem, not two.
    let _admin = all.server(&authority.server("server", None), Alpn::Http1).unwrap();
    let client = all.client(&authority.client(None), Alpn::Http2).unwrap();
    let der = |name: &str| {
        use rustls::pki_types::pem::PemObject;
        CertificateDer::from_pem_file(authority.path(&format!("{name}.pem"))).ok()
    };
    let (first, second) = (der("first"), der("second"));

    copy(&authority, "second", "server", &["pem"]);
    all.look(clock::unix_ms());
    assert_eq!(complaints(&all), [""; 0], "it may be half written");
    all.look(clock::unix_ms());
    assert_eq!(complaints(&all), ["server.key"]);
    let since = all.problems()[0].since_unix_ms;
    assert_eq!(greet(&server, &client).await.1, first, "the last good one stays");
    fs::write(authority.path("server.key"), "nonsense").unwrap();
    all.look(clock::unix_ms());
    assert!(all.problems()[0].error.message.starts_with("is not PEM"), "a new mistake is told at once");
    assert_eq!(all.problems()[0].since_unix_ms, since);

    copy(&authority, "second", "server", &["key"]);
    all.look(clock::unix_ms());
    assert_eq!(complaints(&all), [""; 0]);
    assert_eq!(greet(&server, &client).await.1, second);

    fs::remove_file(authority.path("server.key")).unwrap();
    all.look(clock::unix_ms());
    all.look(clock::unix_ms());
    assert_eq!(complaints(&all), ["server.key"]);
    copy(&authority, "second", "server", &["key"]);
    all.look(clock::unix_ms());
    assert_eq!(complaints(&all), [""; 0], "what is in use is there again");
    let text = metrics.encode().unwrap();
    for line in ["sluice_tls_reloads_total{result=\"error\"} 6", "sluice_tls_reloads_total{result=\"ok\"} 4"]
    {
        assert!(text.contains(line), "{text}");
    }

    // A client's authorities too.
    let stranger = Authority::new();
    fs::copy(stranger.path("ca.pem"), authority.path("ca.pem")).unwrap();
    all.look(clock::unix_ms());
    assert!(greet(&server, &client).await.0.unwrap_err().contains("UnknownCA"));
}

#[test]
fn the_end_of_a_certificate_is_shown() {
    let authority = Authority::new();
    authority.issue("server", |params| params.not_after = rcgen::date_time_ymd(2040, 1, 1));
    let metrics = Arc::new(Metrics::default());
    let all = Certificates::new(Arc::clone(&metrics));
    let _server = all.server(&authority.server("server", None), Alpn::Http2).unwrap();
    let shown = || {
        let text = metrics.encode().unwrap();
        let line =
            text.lines().find(|line| line.starts_with("sluice_tls_certificate_expiry_seconds{")).unwrap();
        line.split_whitespace().next_back().unwrap().to_owned()
    };
    assert_eq!(shown(), "2208988800");
    authority.issue("server", |params| params.not_after = rcgen::date_time_ymd(2041, 1, 1));
    all.look(clock::unix_ms());
    assert_eq!(shown(), "2240611200");
    // One that does not fit is not in use.
    authority.issue("other", |params| params.not_after = rcgen::date_time_ymd(2042, 1, 1));
    copy(&authority, "other", "server", &["pem"]);
    all.look(clock::unix_ms());
    all.look(clock::unix_ms());
    assert_eq!(shown(), "2240611200");
}

//! Ports with TLS, as real processes: who is served, who is not, and that nobody who is not does any harm.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion, version};
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluice::tls::{Alpn, ClientFiles, ClientTls, PairFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use crate::ask;
use crate::authority::Authority;
use crate::http;
use crate::sluice::{Sluice, directory, serve};
use crate::wait::until;

pub const LIMITS: &str = "
domain: d
descriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1000000}}]
";

/// A RateLimitRequest: domain `d`, one descriptor with the entry `a=1`.
const ASK: &[u8] = b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01a\x12\x011";

/// Above what a handshake may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A port's `tls`, as the file says it.
pub fn port(name: &str, cert_file: &Path, key_file: &Path, client_ca_file: Option<&Path>) -> String {
    let client_ca = client_ca_file.map(|file| format!(", client_ca_file: {}", file.display()));
    format!(
        "{name}: {{tls: {{cert_file: {}, key_file: {}{}}}}}\n",
        cert_file.display(),
        key_file.display(),
        client_ca.unwrap_or_default()
    )
}

/// A server with these settings.
pub async fn start(settings: &str) -> Sluice {
    let dir = directory(&[("config/limits/limits.yaml", LIMITS), ("config/sluice.yaml", settings)]);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    Sluice::start(dir, command).await
}

/// The pair `server` on the gRPC port.
pub async fn start_grpc(authority: &Authority, wants_clients: bool) -> Sluice {
    let ca = authority.path("ca.pem");
    let client_ca = wants_clients.then_some(ca.as_path());
    start(&port("grpc", &authority.path("server.pem"), &authority.path("server.key"), client_ca)).await
}

pub fn files(authority: &Authority, shown: Option<(&Authority, &str)>) -> ClientFiles {
    let pair = shown.map(|(issuer, name)| PairFiles {
        cert_file: issuer.path(&format!("{name}.pem")),
        key_file: issuer.path(&format!("{name}.key")),
    });
    ClientFiles { ca_file: authority.path("ca.pem"), pair, server_name: None }
}

pub async fn connect(address: &str, files: &ClientFiles) -> Result<Channel, String> {
    let client = ClientTls::load(files, Alpn::Http2).unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connected = endpoint.connect_with_connector(client.connector(PATIENCE)).await;
    connected.map_err(|error| format!("{error:?}"))
}

/// One call.
pub async fn ask_on(channel: &Channel) -> Result<(), String> {
    let request = ask::request("a=1");
    let answer = RateLimitServiceClient::new(channel.clone()).should_rate_limit(request).await;
    answer.map(drop).map_err(|status| format!("{status:?}"))
}

/// One call on a connection of its own.
pub async fn ask_anew(address: &str, files: &ClientFiles) -> Result<(), String> {
    ask_on(&connect(address, files).await?).await
}

#[tokio::test]
async fn who_is_served_where_certificates_are_wanted() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    ours.issue("client", |_| {});
    ours.issue("usual", |params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth));
    ours.issue("expired", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    ours.issue("early", |params| params.not_before = rcgen::date_time_ymd(2090, 1, 1));
    ours.issue("other_use", |params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth));
    theirs.issue("stranger", |_| {});
    let sluice = start_grpc(&ours, true).await;
    let good = files(&ours, Some((&ours, "client")));
    let before = connect(&sluice.grpc, &good).await.unwrap();
    ask_on(&before).await.unwrap();
    ask_anew(&sluice.grpc, &files(&ours, Some((&ours, "usual")))).await.unwrap();

    let refused = [
        (files(&ours, None), "CertificateRequired"),
        (files(&ours, Some((&ours, "expired"))), "CertificateExpired"),
        (files(&ours, Some((&ours, "early"))), "CertificateExpired"),
        (files(&ours, Some((&ours, "other_use"))), "UnsupportedCertificate"),
        (files(&ours, Some((&theirs, "stranger"))), "UnknownCA"),
        // This one refuses the server.
        (files(&theirs, Some((&ours, "client"))), "UnknownIssuer"),
    ];
    for (files, expected) in &refused {
        let said = ask_anew(&sluice.grpc, files).await.unwrap_err();
        assert!(said.contains(expected), "{expected}: {said}");
        ask_anew(&sluice.grpc, &good).await.expect("others must be served");
    }
    ask_on(&before).await.expect("who was connected must stay so");
    let metrics = http::get(sluice.admin, "/metrics").await.body;
    let closed = "sluice_connections_closed_total{port=\"grpc\",reason=\"tls_handshake\"} ";
    let closed = metrics.lines().find_map(|line| line.strip_prefix(closed)).unwrap();
    assert_eq!(closed, refused.len().to_string(), "{metrics}");
    drop(before);
    until("all connections to be over", async || {
        let metrics = http::get(sluice.admin, "/metrics").await.body;
        let open =
            metrics.lines().find(|line| line.starts_with("sluice_connections{port=\"grpc\"}")).unwrap();
        open.ends_with(" 0").then_some(()).ok_or_else(|| open.to_owned())
    })
    .await;
}

/// A client of its own making.
async fn handshake(
    address: SocketAddr,
    authority: &Authority,
    versions: &[&'static SupportedProtocolVersion],
    has_sni: bool,
) -> TlsStream<TcpStream> {
    use rustls::pki_types::pem::PemObject;
    let mut roots = RootCertStore::empty();
    let ca = rustls::pki_types::CertificateDer::from_pem_file(authority.path("ca.pem")).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.enable_sni = has_sni;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn two_versions_are_spoken_and_no_name_is_needed() {
    let authority = Authority::new();
    let sluice = start_grpc(&authority, false).await;
    let address: SocketAddr = sluice.grpc.parse().unwrap();
    for (version, expected) in
        [(&version::TLS12, ProtocolVersion::TLSv1_2), (&version::TLS13, ProtocolVersion::TLSv1_3)]
    {
        for has_sni in [true, false] {
            let stream = handshake(address, &authority, &[version], has_sni).await;
            let session = stream.get_ref().1;
            assert_eq!(session.protocol_version(), Some(expected));
            assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
            let reply = crate::wire::Wire::over(stream).await.should_rate_limit(ASK).await;
            assert_eq!(reply.code, tonic::Code::Ok, "{reply:?}");
        }
    }
    // 3.1 is TLS 1.0, 3.2 is TLS 1.1, and 3.3 is TLS 1.2: nothing else differs.
    for minor in [1, 2] {
        assert_eq!(answer_to(address, &hello(minor)).await, PROTOCOL_VERSION);
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&hello(3)).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 0x16, "the handshake goes on");
}

/// An alert that ends it.
const PROTOCOL_VERSION: &[u8] = &[0x15, 3, 3, 0, 2, 2, 70];

/// A client's greeting: one cipher, one signature, one curve.
fn hello(minor: u8) -> Vec<u8> {
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    let (curves, points) = ([0, 10, 0, 4, 0, 2, 0, 23], [0, 11, 0, 2, 1, 0]);
    let extensions = [&[0, 22][..], &signatures, &curves, &points].concat();
    let hello = [&[3, minor][..], &[7; 32], &[0, 0, 2, 0xc0, 0x2b, 1, 0], &extensions].concat();
    let message = [&[1, 0, 0, u8::try_from(hello.len()).unwrap()][..], &hello].concat();
    [&[0x16, 3, 1, 0, u8::try_from(message.len()).unwrap()][..], &message].concat()
}

/// All that a port says to these bytes until it ends the connection.
async fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It may end before it has heard all.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    // A reset is an end as well.
    let _ = ended.expect("it must end the connection");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_closed_and_the_rest_is_served() {
    let authority = Authority::new();
    let sluice = start_grpc(&authority, false).await;
    let address: SocketAddr = sluice.grpc.parse().unwrap();
    let good = files(&authority, None);
    let mut silent = tokio::task::JoinSet::new();
    for n in 0..50_usize {
        // Nothing, or the beginning of a greeting.
        let said = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..n % 10].to_vec();
        silent.spawn(async move { answer_to(address, &said).await });
    }
    let mut random = fastrand::Rng::with_seed(17);
    for n in 0..200_usize {
        let noise: Vec<u8> = (0..random.usize(1..2000)).map(|_| random.u8(..)).collect();
        let said = match n % 4 {
            0 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            1 => b"GET / HTTP/1.1\r\nhost: sluice\r\n\r\n".to_vec(),
            // A record of the length that it says, and of each kind.
            2 => [&[20 + (n / 4 % 6) as u8, 3, 1][..], &(noise.len() as u16).to_be_bytes(), &noise].concat(),
            _ => [&[0xff], &noise[..]].concat(),
        };
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(&said).await;
        if n % 4 != 2 {
            let mut answer = Vec::new();
            let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end");
            assert!(answer.is_empty() || answer[0] == 0x15, "no more than an alert: {answer:?}");
        }
        if n % 20 == 0 {
            ask_anew(&sluice.grpc, &good).await.expect("others must be served");
        }
    }
    // The silent ones are closed when their time is over.
    for answer in silent.join_all().await {
        assert!(answer.is_empty(), "{answer:?}");
    }
    ask_anew(&sluice.grpc, &good).await.unwrap();
    assert!(!sluice.process.stderr().contains("panic"), "{}", sluice.process.stderr());
}

#[tokio::test]
async fn tls_at_a_plain_port_ends_cleanly() {
    let authority = Authority::new();
    let sluice = start("").await;
    let said = connect(&sluice.grpc, &files(&authority, None)).await.unwrap_err();
    assert!(said.contains("ConnectError(Tls("), "{said}");
    let admin = sluice.admin.to_string();
    let said = connect(&admin, &files(&authority, None)).await.unwrap_err();
    assert!(said.contains("ConnectError(Tls("), "{said}");
    assert_eq!(http::get(sluice.admin, "/readyz").await.status, 200);
    let plain = Endpoint::from_shared(format!("http://{}", sluice.grpc)).unwrap().connect().await.unwrap();
    ask_on(&plain).await.unwrap();
}

#[tokio::test]
async fn the_admin_port_has_the_same() {
    let authority = Authority::new();
    let pair = (authority.path("server.pem"), authority.path("server.key"));
    let sluice = start(&port("admin", &pair.0, &pair.1, None)).await;
    for version in [&version::TLS12, &version::TLS13] {
        let mut stream = handshake(sluice.admin, &authority, &[version], true).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it must say goodbye");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    let plain = answer_to(sluice.admin, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(plain[0], 0x15, "an alert: {plain:?}");
}

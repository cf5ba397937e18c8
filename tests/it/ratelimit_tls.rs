//! Envoy Gateway's certificates: one authority for all, client certificates required towards its xDS port, and an Envoy that
//! calls the gRPC port without saying the name it wants.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sluice::control::xds::pb::RateLimitUnit;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::Endpoint;
use tonic::transport::server::Connected;

use crate::ads::{Ads, config, limit};
use crate::ask::{request, told};
use crate::http::get;
use crate::process::Process;
use crate::sluice::{RATELIMIT_PORTS, directory, sluice};

/// Where Envoy calls.
const SERVICE: &str = "envoy-ratelimit.envoy-gateway-system.svc";

/// An authority with a certificate for each part, none of which says what it may be used for.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca: CertificateDer<'static>,
    ca_pem: String,
}

pub struct Signed {
    pem: String,
    key_pem: String,
    der: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "envoy-gateway");
        let certificate = params.self_signed(&key).unwrap();
        let (ca, ca_pem) = (certificate.der().clone(), certificate.pem());
        Self { issuer: Issuer::new(params, key), ca, ca_pem }
    }

    fn sign(&self, name: &str) -> Signed {
        // The second one only because the client of this test checks names, and takes no wildcard so short. Envoy doesn't.
        let names = vec![name.to_owned(), SERVICE.to_owned()];
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key_pem = key.serialize_pem();
        let der = certificate.der().clone();
        Signed { pem: certificate.pem(), key_pem, der, key: PrivateKeyDer::Pkcs8(key.serialize_der().into()) }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.clone()).unwrap();
        roots
    }

    /// The certificates of a part, where Envoy Gateway mounts them.
    pub fn mount(&self, dir: &Path, name: &str) {
        let Signed { pem, key_pem, .. } = self.sign(name);
        for (file, text) in [("tls.crt", &pem), ("tls.key", &key_pem), ("ca.crt", &self.ca_pem)] {
            std::fs::write(dir.join(file), text).unwrap();
        }
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Envoy Gateway's xDS port: TLS 1.3 only, and nobody gets in without a certificate of the same authority.
pub async fn xds_port(authority: &Authority, name: &str, address: SocketAddr) -> Ads {
    let Signed { der, key, .. } = authority.sign(name);
    let roots = Arc::new(authority.roots());
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().unwrap();
    let mut tls = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![der], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, incoming) = tokio::sync::mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await
                && accepted.send(Ok::<_, std::io::Error>(Secure(stream))).await.is_err()
            {
                return;
            }
        }
    });
    Ads::serve(address, tokio_stream::wrappers::ReceiverStream::new(incoming))
}

/// A stream that tonic can serve.
struct Secure(TlsStream<TcpStream>);

impl Connected for Secure {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Secure {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, to)
    }
}

impl AsyncWrite for Secure {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// What Envoy says through a connection that names no server; with a certificate of its own, or without.
pub async fn ask(
    authority: &Authority,
    grpc: &str,
    asked: &str,
    shows: Option<Signed>,
) -> Result<String, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authority.roots());
    let mut tls = match shows {
        Some(Signed { der, key, .. }) => builder.with_client_auth_cert(vec![der], key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    tls.enable_sni = false;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let (connector, grpc) = (TlsConnector::from(Arc::new(tls)), grpc.to_owned());
    let open = tower::service_fn(move |_: http::Uri| {
        let (connector, grpc) = (connector.clone(), grpc.clone());
        async move {
            let name = ServerName::try_from(SERVICE).unwrap();
            let stream = connector.connect(name, TcpStream::connect(grpc).await?).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://envoy-ratelimit");
    let channel = endpoint.connect_with_connector(open).await.map_err(|error| format!("{error:?}"))?;
    let message = request(asked);
    let answer = RateLimitServiceClient::new(channel).should_rate_limit(message.clone()).await;
    let answer = answer.map_err(|status| format!("{status:?}"))?;
    Ok(told(&message, &Ok(answer.into_inner())))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_envoy_gateways_certificates() {
    let authority = Authority::new();
    let ads = xds_port(&authority, "localhost", SocketAddr::from(([127, 0, 0, 1], 0))).await;
    let dir = directory(&[]);
    authority.mount(dir.path(), "*.envoy-gateway-system");
    let mut command = sluice(dir.path(), &["ratelimit"]);
    command.envs(RATELIMIT_PORTS).envs([
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "tls.key"),
        ("GRPC_SERVER_TLS_CA_CERT", "ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "ca.crt"),
    ]);
    command.env("CONFIG_GRPC_XDS_SERVER_URL", format!("localhost:{}", ads.address.port()));
    let mut with_clients = sluice(dir.path(), &["ratelimit"]);
    with_clients.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    with_clients.env("GRPC_CLIENT_TLS_CACERT", "ca.crt");

    let mut process = Process::start("ratelimit", &mut command);
    let grpc = process.line("grpc listening on ").await;
    ads.accepted("1", &[config("d", [limit("path", "", 5, RateLimitUnit::Minute)])]).await;
    assert_eq!(ask(&authority, &grpc, "path=/a", None).await.unwrap(), "ok 4/5 minute");
    let envoy = authority.sign("envoy");
    assert_eq!(ask(&authority, &grpc, "path=/a", Some(envoy)).await.unwrap(), "ok 3/5 minute");
    let admin = process.line("admin listening on ").await.parse().unwrap();
    assert_eq!(get(admin, "/healthcheck").await.status, 200, "in the clear");

    // With that program's own variable, clients need a certificate.
    let mut process = Process::start("ratelimit", &mut with_clients);
    let grpc = process.line("grpc listening on ").await;
    assert!(ask(&authority, &grpc, "path=/a", None).await.is_err());
    let stranger = Authority::new().sign("envoy");
    assert!(ask(&authority, &grpc, "path=/a", Some(stranger)).await.is_err());
    let envoy = authority.sign("envoy");
    let said = ask(&authority, &grpc, "path=/a", Some(envoy)).await.unwrap();
    assert!(said == "bare" || said == "ok 4/5 minute", "{said}");
}

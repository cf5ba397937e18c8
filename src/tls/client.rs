//! The TLS of connections that we open: a configuration that is current at each, and what opens them for tonic.
//!
//! Refuses to know whom it calls, and when its files have changed.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificates::Reload;
use super::contents::Contents;
use super::noted::{Broken, Noted};
use super::{Alpn, ClientFiles, FileError, pem, provider};

/// The port of an address that names none.
const PORT: u16 = 443;

/// The TLS towards one peer, or a group of them.
#[derive(Debug)]
pub struct ClientTls {
    files: ClientFiles,
    alpn: Alpn,
    current: ArcSwap<ClientConfig>,
}

impl ClientTls {
    pub(super) fn new(files: &ClientFiles, alpn: Alpn, contents: &Contents) -> Result<Self, FileError> {
        let current = ArcSwap::from_pointee(config(files, alpn, contents)?);
        Ok(Self { files: files.clone(), alpn, current })
    }

    /// For a program that soon ends: the files are read once.
    pub fn load(files: &ClientFiles, alpn: Alpn) -> Result<Arc<Self>, FileError> {
        Self::new(files, alpn, &Contents::read(paths(files))).map(Arc::new)
    }

    /// Opens connections; TCP and TLS together take at most so long.
    pub fn connector(self: &Arc<Self>, within: Duration) -> Connector {
        Connector { client: Arc::clone(self), within, broken: Broken::default() }
    }

    /// TLS on a connection to `host`, unless the settings say what the peer is called.
    async fn secure(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, ConnectError> {
        let name = match &self.files.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| ConnectError::Host(host.to_owned()))?,
        };
        let connector = TlsConnector::from(self.current.load_full());
        connector.connect(name, stream).await.map_err(ConnectError::Tls)
    }
}

impl Reload for ClientTls {
    fn paths(&self) -> Vec<PathBuf> {
        paths(&self.files)
    }

    fn certificate(&self) -> Option<&Path> {
        self.files.pair.as_ref().map(|pair| pair.cert_file.as_path())
    }

    fn reload(&self, contents: &Contents) -> Result<(), FileError> {
        self.current.store(Arc::new(config(&self.files, self.alpn, contents)?));
        Ok(())
    }
}

pub(super) fn paths(files: &ClientFiles) -> Vec<PathBuf> {
    let pair = files.pair.iter().flat_map(|pair| [&pair.cert_file, &pair.key_file]);
    [&files.ca_file].into_iter().chain(pair).cloned().collect()
}

fn config(files: &ClientFiles, alpn: Alpn, contents: &Contents) -> Result<ClientConfig, FileError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring must have ciphers for both versions")
        .with_root_certificates(pem::authorities(&files.ca_file, contents)?);
    let mut config = match &files.pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let pair = SingleCertAndKey::from(pem::pair(pair, contents)?);
            builder.with_client_cert_resolver(Arc::new(pair))
        }
    };
    config.alpn_protocols = alpn.protocols();
    Ok(config)
}

/// Opens connections for tonic: `Endpoint::connect_with_connector`, with an `http://` address, because the scheme `https`
/// would make tonic look for a TLS of its own.
#[derive(Debug, Clone)]
pub struct Connector {
    client: Arc<ClientTls>,
    within: Duration,
    broken: Broken,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("`{0}` is neither a name nor an IP address")]
    Host(String),
    #[error("can't connect to {0}: {1}")]
    Tcp(String, std::io::Error),
    #[error("TLS: {0}")]
    Tls(std::io::Error),
    #[error("no connection within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

impl Connector {
    /// What broke the last connection that was opened for tonic.
    pub(crate) fn broken(&self) -> Broken {
        self.broken.clone()
    }

    /// A connection to the host and the port of `uri`.
    pub async fn connect(&self, uri: &Uri) -> Result<TlsStream<TcpStream>, ConnectError> {
        let connected = tokio::time::timeout(self.within, self.open(uri)).await;
        connected.unwrap_or(Err(ConnectError::TimedOut(self.within)))
    }

    async fn open(&self, uri: &Uri) -> Result<TlsStream<TcpStream>, ConnectError> {
        let host = uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(PORT);
        let cannot = |error| ConnectError::Tcp(format!("{host}:{port}"), error);
        let stream = TcpStream::connect((bare, port)).await.map_err(cannot)?;
        stream.set_nodelay(true).map_err(cannot)?;
        self.client.secure(bare, stream).await
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Noted<TlsStream<TcpStream>>>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let stream = connector.connect(&uri).await?;
            Ok(TokioIo::new(Noted::new(stream, connector.broken)))
        })
    }
}

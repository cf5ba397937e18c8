//! The way from a command to a running server: over TCP or a Unix socket, with TLS or without.
//!
//! Refuses to know what is asked there.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use crate::config::settings::value::is_host_and_port;
use crate::tls::{self, Alpn, ClientFiles, PairFiles};

/// Nobody waits longer for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// What is added to an error that a TLS port makes of plain bytes.
const IS_IT_TLS: &str = "if this port has TLS, --ca is needed";

/// TLS towards the server that is asked.
#[derive(Debug, Clone, Args)]
pub(super) struct TlsArgs {
    /// Speak TLS, with a server whose certificate is of an authority in this file (PEM)
    #[arg(long, env = "SLUICE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate to show, for a server that wants one (PEM); with --ca and --key
    #[arg(long, env = "SLUICE_CERT", value_name = "FILE", requires_all = ["ca", "key"])]
    cert: Option<PathBuf>,
    /// The key of --cert (PEM)
    #[arg(long, env = "SLUICE_KEY", value_name = "FILE", requires_all = ["ca", "cert"])]
    key: Option<PathBuf>,
}

impl TlsArgs {
    fn client(&self, alpn: Alpn) -> anyhow::Result<Option<Arc<tls::ClientTls>>> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let pair = self.cert.clone().zip(self.key.clone());
        let pair = pair.map(|(cert_file, key_file)| PairFiles { cert_file, key_file });
        let files = ClientFiles { ca_file: ca.clone(), pair, server_name: None };
        Ok(Some(tls::ClientTls::load(&files, alpn)?))
    }

    pub(super) fn is_none(&self) -> bool {
        self.ca.is_none()
    }
}

/// Where a server is that we call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// `host:port`.
    Tcp(String),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("must have a path after `unix:`, as in unix:/run/sluice.sock".to_owned()),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None if is_host_and_port(text) => Ok(Self::Tcp(text.to_owned())),
            None => Err("must be host:port, as in 127.0.0.1:8081, or unix:/path".to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A gRPC connection.
pub(super) async fn grpc(address: &Address, tls: &TlsArgs) -> anyhow::Result<Channel> {
    let tls = tls.client(Alpn::Http2)?;
    let no_server = || format!("no server at {address}");
    let uri = match address {
        Address::Tcp(address) => format!("http://{address}"),
        Address::Unix(_) if tls.is_some() => {
            bail!("{address} is a Unix socket, which has no TLS: leave out --ca")
        }
        Address::Unix(path) => format!("unix://{}", path.display()),
    };
    let endpoint = Endpoint::from_shared(uri).with_context(no_server)?.connect_timeout(CONNECT_WITHIN);
    let channel = match tls {
        None => endpoint.connect().await,
        Some(tls) => endpoint.connect_with_connector(tls.connector(CONNECT_WITHIN)).await,
    };
    channel.with_context(no_server)
}

/// Why a call has failed: what the server said, or what became of the connection.
pub(super) fn failure(status: &tonic::Status, tls: &TlsArgs) -> anyhow::Error {
    let Some(source) = status.source() else {
        return anyhow::anyhow!("the server answered {:?}: {}", status.code(), status.message());
    };
    let mut last = source;
    while let Some(deeper) = last.source() {
        last = deeper;
    }
    let hint = if tls.is_none() { format!("; {IS_IT_TLS}") } else { String::new() };
    anyhow::anyhow!("the connection broke: {last}{hint}")
}

/// Asks a server once over HTTP/1.1. The tasks of the connection end with `tasks`.
pub(super) async fn send(
    request: Request<Full<Bytes>>,
    tls: &TlsArgs,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Response<Incoming>> {
    let uri = request.uri().clone();
    let no_server = || format!("no server at {}://{}", uri.scheme_str().unwrap_or_default(), authority(&uri));
    match tls.client(Alpn::Http1)? {
        Some(tls) => {
            let stream = tls.connector(CONNECT_WITHIN).connect(&uri).await.with_context(no_server)?;
            exchange(TokioIo::new(stream), request, tasks).await
        }
        None => {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await;
            let stream = stream.with_context(no_server)?;
            exchange(TokioIo::new(stream), request, tasks).await.context(IS_IT_TLS)
        }
    }
}

async fn exchange(
    stream: impl Read + Write + Unpin + Send + 'static,
    mut request: Request<Full<Bytes>>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Response<Incoming>> {
    let host = authority(request.uri()).parse().context("the host can't be sent")?;
    request.headers_mut().insert(http::header::HOST, host);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse();
    *request.uri_mut() = path.context("the path can't be sent")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    // How it ends is what the request is told.
    tasks.spawn(async { drop(connection.await) });
    Ok(sender.send_request(request).await?)
}

fn authority(uri: &Uri) -> &str {
    uri.authority().map_or("", http::uri::Authority::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_name_or_an_address() {
        for text in ["127.0.0.1:8081", "[::1]:8081", "sluice.mesh:8081", "unix:/run/sluice.sock"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "sluice", "sluice:", "::1:80", "unix:", "http://sluice:80", "a b:1", "sluice:0"] {
            text.parse::<Address>().unwrap_err();
        }
    }
}

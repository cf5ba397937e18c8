//! TLS: certificates and keys from files, read again when they change, for the ports that we serve and the peers that we call.
//!
//! | type | is |
//! |---|---|
//! | [`ServerFiles`], [`ClientFiles`] | which files; settings are read into these |
//! | [`ServerTls`] | gives the configuration for the next connection that is accepted |
//! | [`ClientTls`], [`Connector`] | the same for connections that we open, and what opens them for tonic |
//! | [`Certificates`] | loads both, keeps them current, and knows what is wrong with their files |
//!
//! A pair that doesn't fit is refused at start. Later the last good one stays, and [`Certificates::problems`] says why.
//! Refuses to know what is said inside a connection, and where settings come from.

mod certificates;
mod client;
mod contents;
mod expiry;
mod noted;
mod pem;
mod server;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
pub use rustls::pki_types::ServerName;

pub use self::certificates::{Certificates, FileProblem};
pub use self::client::{ClientTls, ConnectError, Connector};
pub(crate) use self::noted::Broken;
pub use self::server::{Alpn, ServerTls};

/// What a port shows, and whom it lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, and those between it and the authority.
    pub cert_file: PathBuf,
    /// Its key: PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub key_file: PathBuf,
    /// With it, clients need a certificate of one of these authorities.
    pub client_ca_file: Option<PathBuf>,
}

/// Whom a client trusts, and what it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities that may have signed the server's certificate.
    pub ca_file: PathBuf,
    /// Our own certificate and its key, if the server wants one.
    pub pair: Option<PairFiles>,
    /// The name that the server's certificate must have; without it, the host that is called.
    pub server_name: Option<ServerName<'static>>,
}

/// Where distributions keep the authorities that a machine trusts; the first is Debian's and Alpine's.
const MACHINE_CA_FILES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

impl ClientFiles {
    /// Trusts whom this machine trusts.
    pub(crate) fn of_this_machine() -> Self {
        let said = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let mut usual = MACHINE_CA_FILES.into_iter().map(PathBuf::from);
        let first = usual.next().expect("there must be one");
        let there = usual.find(|path| !first.exists() && path.exists());
        Self { ca_file: said.or(there).unwrap_or(first), pair: None, server_name: None }
    }
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairFiles {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", file.display())]
pub struct FileError {
    pub file: PathBuf,
    pub message: String,
}

impl FileError {
    fn new(file: &Path, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), message: message.into() }
    }
}

/// The arithmetic: ring, because it needs nothing but a C compiler.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

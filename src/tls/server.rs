//! The TLS of a port: a configuration that is current whenever a connection is accepted.
//!
//! Refuses to know sockets, and when its files have changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use super::certificates::Reload;
use super::contents::Contents;
use super::{FileError, PairFiles, ServerFiles, pem, provider};

/// What is spoken inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    Http1,
    Http2,
}

impl Alpn {
    pub(super) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http1 => vec![b"http/1.1".to_vec()],
            Self::Http2 => vec![b"h2".to_vec()],
        }
    }
}

/// The TLS of one port.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerFiles,
    alpn: Alpn,
    current: ArcSwap<ServerConfig>,
}

impl ServerTls {
    pub(super) fn new(files: &ServerFiles, alpn: Alpn, contents: &Contents) -> Result<Self, FileError> {
        let current = ArcSwap::from_pointee(config(files, alpn, contents)?);
        Ok(Self { files: files.clone(), alpn, current })
    }

    /// For the next connection.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }
}

impl Reload for ServerTls {
    fn paths(&self) -> Vec<PathBuf> {
        paths(&self.files)
    }

    fn certificate(&self) -> Option<&Path> {
        Some(&self.files.cert_file)
    }

    fn reload(&self, contents: &Contents) -> Result<(), FileError> {
        self.current.store(Arc::new(config(&self.files, self.alpn, contents)?));
        Ok(())
    }
}

pub(super) fn paths(files: &ServerFiles) -> Vec<PathBuf> {
    let ServerFiles { cert_file, key_file, client_ca_file } = files;
    [Some(cert_file), Some(key_file), client_ca_file.as_ref()].into_iter().flatten().cloned().collect()
}

/// TLS 1.2 and 1.3. The one certificate is shown whatever name the client asks for, also to one that asks for none.
fn config(files: &ServerFiles, alpn: Alpn, contents: &Contents) -> Result<ServerConfig, FileError> {
    let ServerFiles { cert_file, key_file, client_ca_file } = files;
    let pair = PairFiles { cert_file: cert_file.clone(), key_file: key_file.clone() };
    let pair = Arc::new(SingleCertAndKey::from(pem::pair(&pair, contents)?));
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring must have ciphers for both versions");
    let mut config = match client_ca_file {
        None => builder.with_no_client_auth().with_cert_resolver(pair),
        Some(file) => {
            let authorities = pem::authorities(file, contents)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider())
                .build()
                .map_err(|error| FileError::new(file, format!("can't be used: {error}")))?;
            builder.with_client_cert_verifier(verifier).with_cert_resolver(pair)
        }
    };
    if client_ca_file.is_some() {
        // A session that is resumed does not show its certificate again, which may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = alpn.protocols();
    Ok(config)
}

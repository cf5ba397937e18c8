//! Certificates and keys out of PEM, and whether they fit together. Each error names the file and what would be right.
//!
//! Refuses to know which port or peer they are for.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};

use super::contents::Contents;
use super::{FileError, PairFiles, expiry, provider};

/// What a file that ought to be PEM has in it.
#[derive(Debug, Default)]
struct Sections {
    certificates: Vec<CertificateDer<'static>>,
    keys: Vec<PrivateKeyDer<'static>>,
}

fn sections(file: &Path, bytes: &[u8]) -> Result<Sections, FileError> {
    let mut found = Sections::default();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes) {
        let (kind, der) = section.map_err(|error| FileError::new(file, broken(&error)))?;
        match kind {
            SectionKind::Certificate => found.certificates.push(der.into()),
            SectionKind::PrivateKey => found.keys.push(PrivateKeyDer::Pkcs8(der.into())),
            SectionKind::RsaPrivateKey => found.keys.push(PrivateKeyDer::Pkcs1(der.into())),
            SectionKind::EcPrivateKey => found.keys.push(PrivateKeyDer::Sec1(der.into())),
            _ => {}
        }
    }
    if found.certificates.is_empty() && found.keys.is_empty() && !contains(bytes, b"-----BEGIN ") {
        let is =
            if bytes.is_empty() { "is empty" } else { "is not PEM: it has no line `-----BEGIN …-----`" };
        return Err(FileError::new(file, is));
    }
    Ok(found)
}

/// In our words: the library's show bytes as numbers, and might show some of a key.
fn broken(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "is cut off: a line `-----END …-----` is missing".to_owned(),
        pem::Error::IllegalSectionStart { .. } => {
            "is not PEM: a line begins with `-----BEGIN ` and does not end with `-----`".to_owned()
        }
        pem::Error::Base64Decode(_) => "is not PEM: what is between its lines is not base64".to_owned(),
        _ => "is not PEM".to_owned(),
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The certificates of a file; at least one.
fn certificates(file: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found = sections(file, bytes)?;
    if !found.certificates.is_empty() {
        return Ok(found.certificates);
    }
    let but = if found.keys.is_empty() { "" } else { ", but a private key" };
    Err(FileError::new(file, format!("has no certificate in it (`-----BEGIN CERTIFICATE-----`){but}")))
}

/// The one key of a file.
fn key(file: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    let mut found = sections(file, bytes)?;
    match (found.keys.pop(), found.keys.len()) {
        (Some(key), 0) => Ok(key),
        (Some(_), more) => {
            Err(FileError::new(file, format!("has {} private keys in it, and must have one", more + 1)))
        }
        (None, _) if contains(bytes, b"-----BEGIN ENCRYPTED PRIVATE KEY-----") => {
            Err(FileError::new(file, "has an encrypted key in it: it must be one without a passphrase"))
        }
        (None, _) => {
            let but = if found.certificates.is_empty() { "" } else { ", but a certificate" };
            Err(FileError::new(file, format!("has no private key in it (PKCS#8, PKCS#1 or SEC1){but}")))
        }
    }
}

/// A certificate and the key that belongs to it. One that has expired is taken: its peer decides.
pub(super) fn pair(files: &PairFiles, contents: &Contents) -> Result<Arc<CertifiedKey>, FileError> {
    let PairFiles { cert_file, key_file } = files;
    let certificates = certificates(cert_file, contents.of(cert_file)?)?;
    let key = key(key_file, contents.of(key_file)?)?;
    let key = provider().key_provider.load_private_key(key).map_err(|_| {
        let kinds = "RSA of 2048 to 8192 bits, ECDSA P-256 or P-384, Ed25519";
        FileError::new(key_file, format!("has a key in it that can't be used: it must be one of {kinds}"))
    })?;
    let pair = CertifiedKey::new(certificates, key);
    match pair.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => {
            let message = format!("is not the key of the certificate in {}", cert_file.display());
            return Err(FileError::new(key_file, message));
        }
        Err(error) => {
            return Err(FileError::new(cert_file, format!("its certificate can't be read: {error}")));
        }
    }
    Ok(Arc::new(pair))
}

/// When the first certificate of those in a file ends. Peers refuse the whole chain from then on.
pub(super) fn expiry(file: &Path, contents: &Contents) -> Option<u64> {
    let chain = certificates(file, contents.of(file).ok()?).ok()?;
    chain.iter().filter_map(|certificate| expiry::not_after(certificate)).min()
}

/// The authorities of a file.
pub(super) fn authorities(file: &Path, contents: &Contents) -> Result<Arc<RootCertStore>, FileError> {
    let mut store = RootCertStore::empty();
    for (at, certificate) in certificates(file, contents.of(file)?)?.into_iter().enumerate() {
        store.add(certificate).map_err(|error| {
            FileError::new(file, format!("its certificate number {} can't be read: {error}", at + 1))
        })?;
    }
    Ok(Arc::new(store))
}

//! A certificate authority in a directory of its own, and the certificates that it signs. Knows nothing of who uses them.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// An authority, and files that it signed.
pub(crate) struct Authority {
    pub(crate) dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// With `ca.pem`, and the pair `server`.
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of its own, or a certificate of another authority would be one with a bad signature.
        let name = format!("{:?}", key.public_key_raw());
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        let authority = Self { dir, issuer: Issuer::new(params, key) };
        authority.issue("server", |_| {});
        authority
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes `name.pem` and `name.key`.
    pub(crate) fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> KeyPair {
        self.issue_as(&self.path(&format!("{name}.pem")), &self.path(&format!("{name}.key")), change)
    }

    /// A certificate for localhost, without an extended key usage, unless it is changed.
    pub(crate) fn issue_as(
        &self,
        cert_file: &Path,
        key_file: &Path,
        change: impl FnOnce(&mut CertificateParams),
    ) -> KeyPair {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(cert_file, certificate.pem()).unwrap();
        fs::write(key_file, key.serialize_pem()).unwrap();
        key
    }
}

//! Secrets and tokens: kept out of logs, read from files of their own, and demanded where a port is exposed.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// 128 bits. A shorter secret is taken, with a warning.
pub(crate) const BYTES_MIN: usize = 16;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The secrets of a file, one a line; at least one.
pub(crate) fn read_secrets(path: &Path) -> Result<Vec<Secret>, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("{}: can't be read: {error}", path.display()))?;
    let secrets: Vec<Secret> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Secret::new).collect();
    match secrets.is_empty() {
        true => Err(format!("{}: has no secret in it", path.display())),
        false => Ok(secrets),
    }
}

/// The token of a file: its only line.
pub(crate) fn read_token(path: &Path) -> Result<Secret, String> {
    match read_secrets(path)?.as_slice() {
        [token] => Ok(token.clone()),
        _ => Err(format!("{}: must have one line, the token", path.display())),
    }
}

/// The admin port can change limits, so that it is open beyond this machine only to those who have a token.
pub(crate) fn check_admin_exposure(listen: SocketAddr, has_token: bool) -> Result<(), String> {
    if has_token || listen.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "the admin address {listen} can be reached from other machines: set admin.token_file or SLUICE_ADMIN_TOKEN, or \
         listen on 127.0.0.1"
    ))
}

/// Whoever reaches the hub port can take from every limit and give it back, so that it is open beyond this machine only to
/// those who prove who they are.
pub(crate) fn check_hub_exposure(listen: SocketAddr, is_guarded: bool) -> Result<(), String> {
    if is_guarded || listen.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "the hub address {listen} can be reached from other machines: set hub.tls.client_ca_file, or hub.token_file or \
         SLUICE_HUB_TOKEN, or listen on 127.0.0.1"
    ))
}

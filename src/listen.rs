//! Sockets: bound before anything is promised, with the address they really have.

use std::path::PathBuf;

use tokio::net::{TcpListener, UnixListener};

use crate::config::settings::value::Listen;

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub async fn bind(address: &Listen) -> std::io::Result<Self> {
        match address {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => {
                remove_stale(path)?;
                UnixListener::bind(path).map(Self::Unix)
            }
        }
    }

    /// The address it really has: port 0 was only a wish.
    pub fn address(&self) -> std::io::Result<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                Ok(Listen::Unix(address.as_pathname().map(PathBuf::from).unwrap_or_default()))
            }
        }
    }
}

/// A socket file that nobody listens on is left over from a crash.
fn remove_stale(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::metadata(path).is_ok_and(|there| there.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

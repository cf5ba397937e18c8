//! `tls` under a port, and under whatever calls a peer: which files, nothing of what is in them.

use super::super::decode::Fields;
use super::super::scalar::shown;
use super::super::shape::Shape;
use super::{FAMILY, path};
use crate::tls::{ClientFiles, PairFiles, ServerFiles, ServerName};

pub(super) static SERVER: Shape =
    Shape { name: "a port's `tls`", keys: &["cert_file", "key_file", "client_ca_file"], family: FAMILY };
pub(super) static CLIENT: Shape = Shape {
    name: "a client's `tls`",
    keys: &["ca_file", "cert_file", "key_file", "server_name"],
    family: FAMILY,
};

/// The `tls` of a port.
pub(super) fn server(port: &Fields<'_>) -> Option<ServerFiles> {
    let fields = port.map("tls", &SERVER)?;
    let client_ca_file = path(&fields, "client_ca_file");
    let PairFiles { cert_file, key_file } = pair(&fields)?;
    Some(ServerFiles { cert_file, key_file, client_ca_file })
}

/// The `tls` of what calls a peer.
pub(super) fn client(caller: &Fields<'_>) -> Option<ClientFiles> {
    let fields = caller.map("tls", &CLIENT)?;
    let wants_pair = fields.has("cert_file") || fields.has("key_file");
    let pair = if wants_pair { pair(&fields) } else { None };
    let server_name = fields.scalar("server_name", |text, _| {
        ServerName::try_from(text.to_owned())
            .map_err(|_| format!("must be a DNS name or an IP address, not `{}`", shown(text)))
    });
    fields.need("ca_file", "the certificates of the authorities that the server's may be from");
    Some(ClientFiles { ca_file: path(&fields, "ca_file")?, pair, server_name })
}

fn pair(fields: &Fields<'_>) -> Option<PairFiles> {
    fields.need("cert_file", "a certificate and its key are needed together");
    fields.need("key_file", "a certificate and its key are needed together");
    Some(PairFiles { cert_file: path(fields, "cert_file")?, key_file: path(fields, "key_file")? })
}

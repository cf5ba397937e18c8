//! Where a cluster is: the addresses behind its host names, and whether somebody listens there. Knows no session.
//!
//! A name may stand for all replicas at once, as a headless Service does, so all of its addresses count. They are sorted,
//! because resolvers shuffle their answers and a new order must not look like a new place. Any order works: a replica
//! passes on what is meant for another.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Cluster;
use super::session::SessionError;

/// TigerBeetle's client takes no more.
const ADDRESSES_MAX: usize = 6;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// A server with a free connection takes one at its next tick, 10 ms later.
const TAKE_TIMEOUT: Duration = Duration::from_millis(500);

/// All addresses of a cluster, in a stable order.
pub(super) async fn resolve(cluster: &Cluster) -> Result<Vec<SocketAddr>, SessionError> {
    let mut found = Vec::new();
    for name in &cluster.addresses {
        found.push(resolve_one(name).await?);
    }
    in_order(found).map_err(|count| SessionError::TooManyAddresses { count, most: ADDRESSES_MAX })
}

async fn resolve_one(name: &str) -> Result<Vec<SocketAddr>, SessionError> {
    let failed = |reason: String| SessionError::Resolve { address: name.to_owned(), reason };
    let found = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host(name)).await;
    let found = found.map_err(|_| failed("the resolver does not answer".to_owned()))?;
    let found: Vec<SocketAddr> = found.map_err(|error| failed(error.to_string()))?.collect();
    if found.is_empty() { Err(failed("no address".to_owned())) } else { Ok(found) }
}

/// The addresses of all names, each once. How many there are if that is too many.
fn in_order(found: Vec<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, usize> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for mut addresses in found {
        // The IPv4 and IPv6 addresses of a name lead to the same replica, and one client must not connect to it twice.
        if addresses.iter().any(SocketAddr::is_ipv4) {
            addresses.retain(SocketAddr::is_ipv4);
        }
        addresses.sort_unstable();
        for address in addresses {
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    if all.len() <= ADDRESSES_MAX { Ok(all) } else { Err(all.len()) }
}

/// What is found at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum AddressState {
    /// Nobody listens.
    #[default]
    Closed,
    /// Nothing was heard. A server that takes no connections looks so too, once enough wait for it.
    Unknown,
    /// The kernel has connected us, and the server did not take the connection.
    NotTaken,
    /// The server has taken the connection.
    Open,
}

/// What is found at each of the addresses.
pub(super) async fn states(addresses: &[SocketAddr]) -> Vec<AddressState> {
    join_all(addresses.iter().map(|address| state(*address))).await
}

async fn state(address: SocketAddr) -> AddressState {
    let connecting = tokio::net::TcpStream::connect(address);
    let mut stream = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) => return AddressState::Closed,
        Err(_) => return AddressState::Unknown,
    };
    // A server that has the connection sees that we are done with it, and closes it.
    let closing = async {
        let is_shut = stream.shutdown().await.is_ok();
        is_shut && matches!(stream.read(&mut [0]).await, Ok(0) | Err(_))
    };
    match tokio::time::timeout(TAKE_TIMEOUT, closing).await {
        Ok(_) => AddressState::Open,
        Err(_) => AddressState::NotTaken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(names: &[&[&str]]) -> Result<Vec<String>, usize> {
        let parse = |text: &&str| text.parse().unwrap();
        let found = names.iter().map(|addresses| addresses.iter().map(parse).collect()).collect();
        in_order(found).map(|all| all.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_name_stands_for_all_of_its_addresses_in_an_order_that_stays() {
        let (one, two, three) = ("10.0.0.1:3000", "10.0.0.2:3000", "10.0.0.3:3000");
        let expected = Ok(vec![one.to_owned(), two.to_owned(), three.to_owned()]);
        assert_eq!(ordered(&[&[three, one, two]]), expected);
        assert_eq!(ordered(&[&[two, three, one]]), expected);
        assert_eq!(ordered(&[&[one], &[two], &[three]]), expected);
        assert_eq!(ordered(&[&[one, two], &[two, three]]), expected, "each once");
        let reversed = Ok(vec![three.to_owned(), one.to_owned()]);
        assert_eq!(ordered(&[&[three], &[one]]), reversed, "names stay in the order that they were given in");
    }

    #[test]
    fn one_family_of_a_name_is_enough() {
        assert_eq!(ordered(&[&["[::1]:3000", "127.0.0.1:3000"]]), Ok(vec!["127.0.0.1:3000".to_owned()]));
        assert_eq!(ordered(&[&["[::1]:3000"]]), Ok(vec!["[::1]:3000".to_owned()]));
    }

    #[test]
    fn more_than_the_client_takes_is_an_error() {
        let all: Vec<String> = (1..=7).map(|n| format!("10.0.0.{n}:3000")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(ordered(&[&all[..6]]).map(|all| all.len()), Ok(6));
        assert_eq!(ordered(&[&all]), Err(7));
    }
}

//! The value types of settings. Each is read from text in one way, whether from a file, a variable or a flag, and its
//! error teaches what would be right.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::config::scalar::{self, shown};
use crate::config::shape::one_of;
pub use crate::ledger::{OnFailure, TransferIds};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
            Some(_) => Err("must have a path after `unix:`, as in unix:/run/sluice.sock".to_owned()),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!(
                    "must be an IP address and a port, as in 127.0.0.1:8081, or unix:/path, not `{}`",
                    shown(text)
                )
            }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Where a server listens that only speaks TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpListen(pub SocketAddr);

impl FromStr for TcpListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!("must be an IP address and a port, as in 127.0.0.1:8080, not `{}`", shown(text))
        })
    }
}

/// Where another server listens. The name is looked up when it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort(String);

impl HostPort {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // As gRPC in Go writes it.
        let address = text.strip_prefix("dns:///").unwrap_or(text);
        match is_host_and_port(address) {
            true => Ok(Self(address.to_owned())),
            false => Err(format!("must be a host and a port, as in xds:18000, not `{}`", shown(text))),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replicas of a cluster at most.
const ADDRESSES_MAX: usize = 6;

/// Hubs of one sidecar at most: each has a stream, and any of them can stand in for any other.
const HUBS_MAX: usize = 16;

/// Which ledger holds the balances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerUri {
    /// In this process; gone when it ends.
    Memory,
    /// Addresses are `host:port`; names are allowed.
    TigerBeetle { cluster: u128, addresses: Vec<String> },
    /// Other Sluices that reach it; the same for the addresses.
    Hub { addresses: Vec<String> },
}

impl FromStr for LedgerUri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let wrong = |what: &str| {
            format!(
                "must be memory, tigerbeetle:<cluster>@<host:port>[,<host:port>…] or hub:<host:port>[,<host:port>…]; `{}` \
                 {what}",
                shown(text)
            )
        };
        let addresses_of = |text: &str| -> Result<Vec<String>, String> {
            let addresses: Vec<String> = text.split(',').map(|address| address.trim().to_owned()).collect();
            match addresses.iter().find(|address| !is_host_and_port(address)) {
                Some(address) => Err(wrong(&format!("has `{}` where a host:port belongs", shown(address)))),
                None => Ok(addresses),
            }
        };
        if let Some(rest) = text.strip_prefix("hub:") {
            let addresses = addresses_of(rest)?;
            let is_again = |(n, address): &(usize, &String)| addresses[..*n].contains(address);
            if let Some((_, address)) = addresses.iter().enumerate().find(is_again) {
                return Err(wrong(&format!("has the hub {} twice", shown(address))));
            }
            return match addresses.len() {
                ..=HUBS_MAX => Ok(Self::Hub { addresses }),
                count => Err(wrong(&format!("has {count} hubs; one sidecar can use {HUBS_MAX}"))),
            };
        }
        let rest = text.strip_prefix("tigerbeetle:").ok_or_else(|| wrong("is none of these"))?;
        let (cluster, addresses) = rest.split_once('@').ok_or_else(|| wrong("has no @"))?;
        let cluster = cluster.parse().map_err(|_| wrong("has a cluster that is no whole number"))?;
        if addresses.split(',').count() > ADDRESSES_MAX {
            return Err(wrong("there are more than 6 addresses, which is all a cluster has"));
        }
        Ok(Self::TigerBeetle { cluster, addresses: addresses_of(addresses)? })
    }
}

pub(crate) fn is_host_and_port(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let bare = !host.contains([':', '[', ']', '/', '@']) && !host.contains(char::is_whitespace);
    let named = !host.is_empty() && (bare || address.parse::<SocketAddr>().is_ok());
    named && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl fmt::Display for LedgerUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::TigerBeetle { cluster, addresses } => {
                write!(f, "tigerbeetle:{cluster}@{}", addresses.join(","))
            }
            Self::Hub { addresses } => write!(f, "hub:{}", addresses.join(",")),
        }
    }
}

/// The ledger to use, and the one that comes to replace it if there are two.
pub(crate) fn old_and_new(uris: Vec<LedgerUri>) -> Result<(LedgerUri, Option<LedgerUri>), String> {
    match &uris[..] {
        [one] => Ok((one.clone(), None)),
        // Two of them in one process share nothing.
        [old, new] if old != new || *old == LedgerUri::Memory => Ok((old.clone(), Some(new.clone()))),
        [old, _] => {
            Err(format!("must be two different ledgers, the old one and the new one, not {old} twice"))
        }
        all => {
            Err(format!("must be one ledger, or two while the second replaces the first, not {}", all.len()))
        }
    }
}

/// A part of something: more than 0, at most 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(f64);

impl Share {
    pub const DEFAULT: Share = Share(0.1);

    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        scalar::number(text, true)
            .ok()
            .filter(|share| *share > 0.0 && *share <= 1.0)
            .map(Self)
            .ok_or_else(|| format!("must be a number above 0 and at most 1, not `{}`", shown(text)))
    }
}

/// A choice between words: the type and its words.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum $name { $($(#[$item_doc])* $item,)* }

        words! { $name { $($item = $word,)* } }
    };
}

/// The words of a choice, and reading and writing them.
macro_rules! words {
    ($name:ident { $($item:ident = $word:literal,)* }) => {
        impl $name {
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$item => $word,)* }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$item),)*
                    _ => Err(one_of(text, Self::WORDS)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

words! { OnFailure { Error = "error", Allow = "allow", Deny = "deny", Local = "local", } }

choice! {
    /// Whether hot limits are answered from slabs.
    Slabs {
        #[default]
        On = "on",
        Off = "off",
    }
}

words! { TransferIds { TimeOrdered = "time_ordered", Sha256 = "sha256", } }

choice! {
    /// How log lines look.
    LogFormat {
        #[default]
        Text = "text",
        Json = "json",
    }
}

choice! {
    /// How much is logged.
    LogLevel {
        Off = "off",
        Error = "error",
        Warn = "warn",
        #[default]
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }
}

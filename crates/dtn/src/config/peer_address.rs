//! Where a peer listens, as the configuration says it.

use std::fmt;
use std::net::SocketAddr;

use serde::Deserialize;

/// The longest name, characters (RFC 1035 §2.3.4, as text).
const MAX_NAME: usize = 253;
/// The longest label of a name (RFC 1035 §2.3.4).
const MAX_LABEL: usize = 63;

/// An address with a port, or a name with a port that is looked up at each attempt to connect.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum PeerAddress {
    /// `192.0.2.2:4556` or `[2001:db8::2]:4556`.
    Ip(SocketAddr),
    /// `gs2.example.net:4556`.
    Name {
        /// The name, in lower case and without a dot at its end.
        host: String,
        /// The port.
        port: u16,
    },
}

impl PeerAddress {
    /// The name, if it is one.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Ip(_) => None,
            Self::Name { host, .. } => Some(host),
        }
    }
}

impl TryFrom<String> for PeerAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let wrong = || {
            format!(
                "\"{text}\" is neither an address nor a name with a port; write for example \"192.0.2.2:4556\", \
                 \"[2001:db8::2]:4556\" or \"gs2.example.net:4556\""
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if is_name(&host) { Ok(Self::Name { host, port }) } else { Err(wrong()) }
    }
}

/// Whether it is the name of a host (RFC 1123 §2.1); underscores occur, too.
fn is_name(host: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // What ends with a number was meant as an address.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    host.len() <= MAX_NAME
        && host.split('.').all(is_label)
        && host.rsplit('.').next().is_some_and(|last| !is_number(last))
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<PeerAddress, String> {
        PeerAddress::try_from(text.to_owned())
    }

    #[test]
    fn addresses_stay_addresses_and_names_are_names() {
        for text in ["192.0.2.2:4556", "[2001:db8::2]:4556", "[fe80::1%2]:4556"] {
            assert!(matches!(read(text), Ok(PeerAddress::Ip(_))), "{text}");
        }
        for (text, host) in [
            ("gs2.example.net:4556", "gs2.example.net"),
            ("GS2.Example.NET.:4556", "gs2.example.net"),
            ("gs2:1", "gs2"),
            ("4.gs-2:1", "4.gs-2"),
        ] {
            assert_eq!(read(text).unwrap().host(), Some(host), "{text}");
        }
    }

    #[test]
    fn what_is_neither_is_refused_with_an_example() {
        let long = format!("{}:1", "a.".repeat(127) + "aa");
        let label = format!("{}.net:1", "a".repeat(64));
        for text in [
            "",
            ":4556",
            "gs2",
            "gs2:",
            "gs2:0",
            "gs2:65536",
            "gs2:tcp",
            "192.0.2.300:4556",
            "192.0.2:4556",
            "2001:db8::2",
            "-gs2:1",
            "gs2-.net:1",
            "gs2..net:1",
            "gs 2:1",
            "gs2/x:1",
            "gs²:1",
            "user@gs2:1",
            &long,
            &label,
        ] {
            assert!(read(text).is_err_and(|error| error.contains("gs2.example.net:4556")), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_so_that_it_is_read_back(text in "[a-z0-9.:_-]{0,40}|.{0,20}:[0-9]{1,5}") {
            if let Ok(address) = read(&text) {
                prop_assert_eq!(read(&address.to_string()), Ok(address));
            }
        }
    }
}

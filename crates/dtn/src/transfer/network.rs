//! The networks that PUTs may go to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// A network, `10.2.0.0/16` or `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no network; networks are written 10.2.0.0/16, 2001:db8::/32 or 192.0.2.1, with no bits behind the prefix"
)]
pub struct NetworkError(String);

impl Network {
    /// Whether the address is one of this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(own.to_bits().into(), other.to_bits().into(), 32 - self.prefix)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128 - self.prefix),
            _ => false,
        }
    }
}

/// Whether a PUT may go to this address: one of the networks has it, and if it is an address of this host alone, of the local wire,
/// or of many, then a network that lies among such addresses itself. So `0.0.0.0/0` is not this host.
pub(super) fn allows(networks: &[Network], address: IpAddr) -> bool {
    // ::ffff:127.0.0.1 is 127.0.0.1.
    let address = address.to_canonical();
    // connect(2) takes it for this host.
    if address.is_unspecified() {
        return false;
    }
    let allows = |network: &Network| {
        network.contains(address) && (!is_special(address) || is_special(network.address))
    };
    networks.iter().any(allows)
}

/// What is no other host's address for all (RFC 6890): unspecified, loopback, link-local, multicast, broadcast.
fn is_special(address: IpAddr) -> bool {
    match address {
        // 0.0.0.0/8 is "this network", but what begins at 0.0.0.0 may be all of them.
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
                || (v4.octets()[0] == 0 && !v4.is_unspecified())
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast(),
    }
}

/// Whether two numbers are alike but for their last bits.
fn same(one: u128, other: u128, last: u8) -> bool {
    (one ^ other).checked_shr(last.into()).unwrap_or_default() == 0
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = || NetworkError(text.chars().take(80).collect());
        let (address, prefix) =
            text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let longest: u8 = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) if prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
                prefix.parse().map_err(|_| error())?
            }
            Some(_) => return Err(error()),
            None => longest,
        };
        let bits = match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let host_bits = u32::from(longest.checked_sub(prefix).ok_or_else(error)?);
        let is_clean = bits == 0 || bits.trailing_zeros() >= host_bits;
        is_clean.then_some(Self { address, prefix }).ok_or_else(error)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(networks: &[&str], address: &str) -> bool {
        let networks: Vec<Network> = networks.iter().map(|text| text.parse().unwrap()).collect();
        allows(&networks, address.parse().unwrap())
    }

    #[test]
    fn an_address_is_allowed_by_the_network_that_it_is_of() {
        assert!(allowed(&["10.2.0.0/16"], "10.2.255.1") && !allowed(&["10.2.0.0/16"], "10.3.0.1"));
        assert!(allowed(&["10.3.0.0/16", "192.0.2.1"], "192.0.2.1") && !allowed(&["192.0.2.1"], "192.0.2.2"));
        assert!(allowed(&["2001:db8::/32"], "2001:db8:1::1") && !allowed(&["2001:db8::/32"], "2001:db9::1"));
        assert!(allowed(&["0.0.0.0/0"], "8.8.8.8") && allowed(&["::/0"], "2001:db8::1"));
        assert!(!allowed(&["0.0.0.0/0"], "2001:db8::1") && !allowed(&[], "10.0.0.1"));
    }

    #[test]
    fn what_is_this_hosts_or_the_wires_own_has_to_be_said() {
        for address in
            ["127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "ff02::1"]
        {
            assert!(!allowed(&["0.0.0.0/0", "::/0", "0.0.0.0/1", "128.0.0.0/1"], address), "{address}");
        }
        for address in ["0.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"] {
            assert!(!allowed(&["0.0.0.0/0", "::/0"], address), "{address}");
        }
        assert!(allowed(&["127.0.0.0/8"], "127.0.0.1") && allowed(&["::1"], "::1"));
    }

    #[test]
    fn what_is_no_network_says_what_would_be_one() {
        for text in [
            "",
            "10.2.0.0/33",
            "10.2.0.1/16",
            "10.2.0.0/",
            "10.2.0.0/+8",
            "example.org",
            "::1/64",
            "10.2.0.0/8",
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains("10.2.0.0/16"), "{text}: {error}");
        }
        assert_eq!("::/0".parse::<Network>().unwrap().to_string(), "::/0");
    }
}

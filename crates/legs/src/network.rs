//! Networks as CIDR writes them (RFC 4632 §3.1, RFC 4291 §2.3).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;

/// An IPv4 or IPv6 network, or a single address. No bit is set behind the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Its first address.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether its addresses are IPv4's.
    pub const fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether it is all of its family.
    pub const fn is_everything(&self) -> bool {
        self.prefix == 0
    }

    /// Whether the address belongs to it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.is_ipv4() == address.is_ipv4() && first(address, self.prefix) == self.address
    }

    /// Whether every address of the other belongs to it.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (address, prefix) = split(&text).ok_or_else(|| {
            format!(
                "\"{}\" is not a network; write for example \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.1\"",
                text.escape_debug()
            )
        })?;
        let network = Self { address: first(address, prefix), prefix };
        if network.address == address {
            Ok(network)
        } else {
            Err(format!("\"{text}\" has bits set behind its prefix; write \"{network}\""))
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, prefix } = self;
        if *prefix == bits(*address) { write!(f, "{address}") } else { write!(f, "{address}/{prefix}") }
    }
}

/// Address and prefix length; a single address has all of its bits in the prefix.
fn split(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let prefix = match prefix {
        Some(prefix) if prefix.bytes().all(|byte| byte.is_ascii_digit()) => prefix.parse().ok()?,
        Some(_) => return None,
        None => bits(address),
    };
    (prefix <= bits(address)).then_some((address, prefix))
}

/// The first address of the network of this length that the address belongs to.
fn first(address: IpAddr, prefix: u8) -> IpAddr {
    let behind = u32::from(bits(address).saturating_sub(prefix));
    match address {
        IpAddr::V4(address) => {
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & u32::MAX.checked_shl(behind).unwrap_or(0)))
        }
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX.checked_shl(behind).unwrap_or(0)))
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn network(text: &str) -> Network {
        Network::try_from(text.to_owned()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn error(text: &str) -> String {
        Network::try_from(text.to_owned()).unwrap_err()
    }

    #[test]
    fn networks_and_addresses_are_read() {
        for text in ["10.0.0.0/8", "2001:db8::/32", "192.0.2.1", "::1", "0.0.0.0/0", "::/0"] {
            assert_eq!(network(text).to_string(), text);
        }
        assert_eq!(network("192.0.2.1/32"), network("192.0.2.1"));
    }

    #[test]
    fn bits_behind_the_prefix_are_refused_with_the_network_that_was_meant() {
        assert!(error("10.1.2.3/8").contains("write \"10.0.0.0/8\""), "{}", error("10.1.2.3/8"));
        assert!(error("2001:db8::1/64").contains("write \"2001:db8::/64\""));
    }

    #[test]
    fn an_invalid_network_is_refused() {
        for text in
            ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10/8", "fe80::1%eth0", "example.org"]
        {
            assert!(error(text).contains("is not a network"), "{text}");
        }
    }

    #[test]
    fn a_network_covers_its_parts_and_nothing_of_the_other_family() {
        assert!(network("10.0.0.0/8").covers(&network("10.1.0.0/16")));
        assert!(!network("10.1.0.0/16").covers(&network("10.0.0.0/8")));
        assert!(!network("::/0").covers(&network("10.0.0.0/8")));
        assert!(network("0.0.0.0/0").contains(IpAddr::V4(Ipv4Addr::BROADCAST)));
    }

    proptest! {
        #[test]
        fn an_address_is_in_each_network_made_of_its_first_bits(bits: u128, prefix in 0u8..=128, flipped in 0u32..128) {
            let address = IpAddr::V6(Ipv6Addr::from_bits(bits));
            let network = Network { address: first(address, prefix), prefix };
            prop_assert!(network.contains(address));
            // The bit that is flipped counts from the left.
            let other = IpAddr::V6(Ipv6Addr::from_bits(bits ^ (1 << (127 - flipped))));
            prop_assert_eq!(network.contains(other), flipped >= u32::from(prefix));
        }
    }
}

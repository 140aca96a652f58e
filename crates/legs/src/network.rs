//! Networks as CIDR writes them (RFC 4632 §3.1, RFC 4291 §2.3).

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

/// An IPv4 or IPv6 network, or a single address. No bit is set behind the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

impl Network {
    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// Whether its addresses are IPv4's.
    pub const fn is_ipv4(&self) -> bool {
        matches!(self.0, IpNet::V4(_))
    }

    /// Whether it is all of its family.
    pub fn is_everything(&self) -> bool {
        self.0.prefix_len() == 0
    }

    /// Whether the address belongs to it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Whether every address of the other belongs to it.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| {
            format!(
                "\"{}\" is not a network; write for example \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.1\"",
                text.escape_debug()
            )
        })?;
        if network == network.trunc() {
            Ok(Self(network))
        } else {
            Err(format!("\"{text}\" has bits set behind its prefix; write \"{}\"", network.trunc()))
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(network) = self;
        match network.prefix_len() == network.max_prefix_len() {
            true => write!(f, "{}", network.addr()),
            false => write!(f, "{network}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

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
            let network = Network(IpNet::new(address, prefix).unwrap().trunc());
            prop_assert!(network.contains(address));
            // The bit that is flipped counts from the left.
            let other = IpAddr::V6(Ipv6Addr::from_bits(bits ^ (1 << (127 - flipped))));
            prop_assert_eq!(network.contains(other), flipped >= u32::from(prefix));
        }
    }
}

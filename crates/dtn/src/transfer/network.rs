//! The networks that PUTs may go to.

use std::net::IpAddr;

use bentpipe_legs::Network;

/// Whether a PUT may go to this address: one of the networks contains it. Loopback, link-local and multicast
/// addresses need a network that is itself in such a range, so `0.0.0.0/0` does not include this host.
pub(super) fn allows(networks: &[Network], address: IpAddr) -> bool {
    // ::ffff:127.0.0.1 is 127.0.0.1.
    let address = address.to_canonical();
    // connect(2) would connect to this host.
    if address.is_unspecified() {
        return false;
    }
    let allows = |network: &Network| {
        network.contains(address) && (!is_special(address) || is_special(network.address()))
    };
    networks.iter().any(allows)
}

/// Whether an address is unspecified, loopback, link-local, multicast or broadcast (RFC 6890).
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

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(networks: &[&str], address: &str) -> bool {
        let networks: Vec<Network> =
            networks.iter().map(|text| Network::try_from((*text).to_owned()).unwrap()).collect();
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
    fn host_and_link_local_headers_are_set_explicitly() {
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
}

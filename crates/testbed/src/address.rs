use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Namespace, Result};

/// The addresses of the two ends of one link, for both families.
///
/// Link `n` has 10.98.`n`.0/30 and fd62:656e:7470:`n`::/64; the left end is `.1` and `::1`, the right end
/// `.2` and `::2`. The namespaces are isolated, so these need not be free on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    number: u8,
}

impl Subnet {
    /// The addresses of link number `number` of a topology.
    pub const fn new(number: u8) -> Self {
        Self { number }
    }

    /// IPv4 address of the left end.
    pub const fn left4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 98, self.number, 1)
    }

    /// IPv4 address of the right end.
    pub const fn right4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 98, self.number, 2)
    }

    /// IPv6 address of the left end.
    pub const fn left6(self) -> Ipv6Addr {
        self.host6(1)
    }

    /// IPv6 address of the right end.
    pub const fn right6(self) -> Ipv6Addr {
        self.host6(2)
    }

    /// Gives the addresses to the two ends of a link: `left_if` in `left`, `right_if` in `right`.
    ///
    /// IPv6 is left out where the kernel has none.
    ///
    /// # Errors
    /// [`Error::Tool`](crate::Error::Tool) with what `ip` said, for example that there is no such device.
    pub fn assign(self, left: &Namespace, left_if: &str, right: &Namespace, right_if: &str) -> Result<()> {
        add_addresses(left, left_if, self.left4(), self.left6())?;
        add_addresses(right, right_if, self.right4(), self.right6())
    }

    const fn host6(self, host: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd62, 0x656e, 0x7470, self.number as u16, 0, 0, 0, host)
    }
}

/// Connects two namespaces by a virtual Ethernet cable, both ends up.
///
/// # Errors
/// [`Error::Tool`](crate::Error::Tool) with what `ip` said, for example that a name is taken.
pub fn veth(a: &Namespace, a_name: &str, b: &Namespace, b_name: &str) -> Result<()> {
    a.ip_with(&format!("link add {a_name} type veth peer name {b_name} netns {{}}"), b)?;
    a.ip(&format!("link set dev {a_name} up"))?;
    b.ip(&format!("link set dev {b_name} up"))
}

/// Makes `gateway`, of either family, the default route of `namespace`.
///
/// # Errors
/// [`Error::Tool`](crate::Error::Tool) with what `ip` said, for example that the gateway is not on any link.
pub fn default_route(namespace: &Namespace, gateway: impl Into<IpAddr>) -> Result<()> {
    match gateway.into() {
        IpAddr::V4(gateway) => namespace.ip(&format!("-4 route replace default via {gateway}")),
        IpAddr::V6(gateway) if namespace.has_ipv6() => {
            namespace.ip(&format!("-6 route replace default via {gateway}"))
        }
        IpAddr::V6(_) => Ok(()),
    }
}

/// Makes `namespace` a router for both families.
///
/// # Errors
/// [`Error::Sysctl`](crate::Error::Sysctl) if the kernel refuses.
pub fn forwarding(namespace: &Namespace) -> Result<()> {
    namespace.sysctl("net.ipv4.ip_forward", "1")?;
    if namespace.has_ipv6() {
        namespace.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    }
    Ok(())
}

/// `nodad`: the address is usable at once; no other host on the link can have it.
fn add_addresses(namespace: &Namespace, interface: &str, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<()> {
    namespace.ip(&format!("addr add {v4}/30 dev {interface}"))?;
    if namespace.has_ipv6() {
        namespace.ip(&format!("addr add {v6}/64 dev {interface} nodad"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ends_of_a_link_differ_and_so_do_two_links() {
        let subnet = Subnet::new(7);
        assert_eq!(subnet.left4().to_string(), "10.98.7.1");
        assert_eq!(subnet.right6().to_string(), "fd62:656e:7470:7::2");
        assert_ne!(subnet.left6(), Subnet::new(8).left6());
    }
}

//! The far end's connection to the network of the caller.
//!
//! A virtual cable joins the caller's namespace and the far end's; both masquerade what comes from behind.
//! The cable ends with the far end's namespace and the rules with a socket of this process, so that the
//! kernel removes both when this process ends, however it ends. No setting of the caller is changed.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::process::Command;

use bentpipe_kernel::nftables::HeldTable;

use super::resolver::Resolver;
use crate::{Error, Namespace, Result, Subnet, default_route, veth};

/// The cable's interface at the far end.
const FAR_INTERFACE: &str = "outside0";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// The variable with the outermost host's address, which is known to a link inside another one.
const BASE: &str = "BENTPIPE_BASE";

#[derive(Debug)]
pub(super) struct Outside {
    caller: Namespace,
    interface: String,
    link: Subnet,
    base: Ipv4Addr,
    resolver: Option<Resolver>,
    /// The caller's and the far end's.
    _masquerades: [HeldTable; 2],
}

impl Outside {
    /// Connects the far end to the namespace of the calling thread.
    pub(super) fn connect(far: &Namespace) -> Result<Self> {
        if std::fs::read_to_string(FORWARDING).is_ok_and(|value| value.trim() == "0") {
            return Err(Error::NoForwarding);
        }
        let caller = Namespace::host()?;
        let [link, cable] = free_subnets(&caller)?;
        let process = std::process::id();
        let interface = format!("bplink{process}");
        veth(&caller, &interface, far, FAR_INTERFACE)?;
        cable.assign(&caller, &interface, far, FAR_INTERFACE)?;
        default_route(far, cable.left4())?;
        let masquerade = |name: &str, source| HeldTable::masquerade(name, source);
        let outer = masquerade(&format!("bentpipe_link_{process}"), cable.right4());
        let inner = far.run(|| masquerade("bentpipe_link", link.right4()))?;
        let failed =
            |source| Error::Outside { step: "masquerade with nftables (Linux 5.12 or later)", source };
        let masquerades = [outer.map_err(failed)?, inner.map_err(failed)?];
        let inherited = std::env::var(BASE).ok().and_then(|base| base.parse().ok());
        let base = inherited.unwrap_or(cable.left4());
        let resolver = Resolver::start(far, link.left4())?;
        Ok(Self { caller, interface, link, base, resolver, _masquerades: masquerades })
    }

    /// Addresses for the link that no network of the caller has.
    pub(super) fn link_subnet(&self) -> Subnet {
        self.link
    }

    /// The outermost host that can be reached.
    pub(super) fn base(&self) -> Ipv4Addr {
        self.base
    }

    /// Lets the command ask a name server that it can reach.
    pub(super) fn resolve_names(&self, command: &mut Command) {
        if let Some(resolver) = &self.resolver {
            resolver.configure(command);
        }
    }
}

impl Drop for Outside {
    /// The kernel would do it as well, a moment after the end of the far namespace.
    fn drop(&mut self) {
        let _ = self.caller.ip(&format!("link del {}", self.interface));
    }
}

/// Subnets for the link and the cable. Free is what the caller has no address and no route for, and what the
/// links around this one have not told it.
fn free_subnets(caller: &Namespace) -> Result<[Subnet; 2]> {
    let mut known = caller.ip_output("-4 -o addr show")?;
    known += &caller.ip_output("-4 route show table all")?;
    for variable in [BASE, "BENTPIPE_FAR"] {
        known += &format!(" {}", std::env::var(variable).unwrap_or_default());
    }
    let mut taken = numbers(&known);
    let link = free(&taken, 0);
    taken.extend(link);
    // Two that start at the same moment do not see each other's: they begin to look at different places.
    let cable = free(&taken, 64 + (std::process::id() % 128) as u8);
    match (link, cable) {
        (Some(link), Some(cable)) => Ok([Subnet::new(link), Subnet::new(cable)]),
        _ => Err(Error::Outside {
            step: "find free addresses in 10.98.0.0/16",
            source: std::io::Error::from(std::io::ErrorKind::AddrInUse),
        }),
    }
}

/// The numbers of the subnets that are named in a text.
fn numbers(text: &str) -> BTreeSet<u8> {
    let words = text.split_whitespace();
    words.filter_map(|word| word.strip_prefix("10.98.")?.split('.').next()?.parse().ok()).collect()
}

fn free(taken: &BTreeSet<u8>, from: u8) -> Option<u8> {
    (0..=u8::MAX).map(|step| from.wrapping_add(step)).find(|number| !taken.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_from_addresses_routes_and_variables() {
        let text =
            "3: sat0    inet 10.98.0.2/30 scope global sat0\ndefault via 10.98.7.1 dev x\n 10.98.100.1";
        assert_eq!(numbers(text), [0, 7, 100].into());
        assert_eq!(numbers("inet 10.9.8.1/8, 192.10.98.4"), BTreeSet::new());
    }

    #[test]
    fn the_search_for_a_free_number_goes_round() {
        assert_eq!(free(&[254, 255, 0].into(), 254), Some(1));
        assert_eq!(free(&(0..=u8::MAX).collect(), 3), None);
    }
}

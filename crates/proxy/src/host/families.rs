//! Which families of addresses this host uses, and whether it forwards them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use bentpipe_kernel::host::{Check, ipv4_forwarding, ipv6_forwarding};

/// The scope of an address that other networks can reach, in /proc/net/if_inet6 (`IPV6_ADDR_SCOPE_GLOBAL`).
const GLOBAL: &str = "00";

/// Whether packets of the families that this network namespace uses are forwarded.
pub(super) fn forwarding() -> Vec<Check> {
    let (ipv4, ipv6) = in_use();
    ipv4.then(ipv4_forwarding).into_iter().chain(ipv6.then(ipv6_forwarding)).collect()
}

/// What keeps every connection from the daemon, if something does: only packets that the host forwards are
/// split, and it forwards none of the families that it uses.
pub(super) fn forwards_nothing() -> Option<String> {
    let off: Vec<Check> = forwarding().into_iter().filter(|check| !check.ok).collect();
    let (ipv4, ipv6) = in_use();
    let is_on = |used: bool, family: &str| used && forwards_somewhere(family);
    (!is_on(ipv4, "ipv4") && !is_on(ipv6, "ipv6"))
        .then(|| off.iter().map(Check::to_string).collect::<Vec<_>>().join("; "))
}

/// Whether any interface forwards what it receives: all do where the setting of all of them says so.
fn forwards_somewhere(family: &str) -> bool {
    let folder = format!("/proc/sys/net/{family}/conf");
    let is_on = |interface: &OsStr| {
        fs::read(Path::new(&folder).join(interface).join("forwarding"))
            .is_ok_and(|value| value.starts_with(b"1"))
    };
    let each = || fs::read_dir(&folder).into_iter().flatten().flatten();
    is_on("all".as_ref()) || each().any(|entry| entry.file_name() != "default" && is_on(&entry.file_name()))
}

/// Whether this network namespace may use IPv4, and IPv6: before it has any address, both.
fn in_use() -> (bool, bool) {
    let used = found();
    if used == (false, false) { (true, true) } else { used }
}

/// Whether this network namespace uses IPv4, and IPv6.
pub(super) fn found() -> (bool, bool) {
    // Unlike /proc/net, this shows the namespace of the calling thread.
    let table = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    (has_ipv4_routes(&table("route")), has_global_ipv6(&table("if_inet6")))
}

/// Each address has a route to its network: two lines of them and more are there, the first a heading.
fn has_ipv4_routes(table: &str) -> bool {
    table.lines().skip(1).any(|line| line.split_whitespace().next().is_some_and(|name| name != "lo"))
}

/// Lines of an address, the interface's index, the prefix, the scope, flags, and the interface.
fn has_global_ipv6(table: &str) -> bool {
    table.lines().any(|line| line.split_whitespace().nth(3) == Some(GLOBAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_used_where_an_address_of_it_leads_somewhere() {
        let heading = "Iface\tDestination\tGateway\n";
        assert!(!has_ipv4_routes(heading));
        assert!(has_ipv4_routes(&format!("{heading}eth0\t00000000\t010200C0\n")));
        let local = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe80000000000000fc00000000000001 02 40 20 80     eth0\n";
        assert!(!has_global_ipv6(local));
        assert!(has_global_ipv6(&format!("{local}20010db8000000000000000000000001 02 40 00 80     eth0\n")));
    }
}

//! Interception: the nftables rules that hand connections to the listeners, and the policy routing behind them.
//!
//! A SYN that crosses a satellite leg is given to its path's listener by `tproxy`; the later packets of both sockets
//! belong to a transparent socket, which `socket transparent` finds. Both kinds are marked, and marked packets are
//! routed to this host. So are the ICMP errors that quote a packet of such a socket, an unreachable server or a smaller
//! path MTU: they are addressed to the client or the server in whose name it was sent.
//!
//! A `tproxy` statement whose port nobody listens on does not match, so that the connection of a gateway whose daemon is
//! dead is forwarded, unsplit, by the rules that the daemon left.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use crate::config::Interface;
use crate::error::Error;
use crate::listener::TTL;
use crate::path::{LegId, Path};

/// Where this host itself finds that a server's address does not answer, its ICMP error would leave for the client in
/// whose name we connect. It is ours if the packet that it quotes has never been forwarded: its time to live is still
/// [`TTL`], as one number with the protocol beside it, TCP (RFC 791 §3.1, RFC 8200 §3). The packet of a client next door
/// that this host refuses before it forwards it, without a route or by a rule, is quoted alike; but then the code is not
/// that of an address which does not answer, and the error is the client's.
const QUOTED_IPV4: u32 = TTL << 8 | 6;
const QUOTED_IPV6: u32 = 6 << 8 | TTL;

/// The names under which the daemon's rules and routes are found, and removed, again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The nftables table, in the family `inet`.
    pub table: String,
    /// The mark of intercepted packets.
    pub mark: u32,
    /// The routing table that brings marked packets to this host.
    pub route_table: u32,
    /// The preference of the policy rule that leads there; the main table has 32766.
    pub preference: u32,
}

impl Default for Names {
    fn default() -> Self {
        Self { table: "bentpipe".into(), mark: 0x6270, route_table: 25200, preference: 7600 }
    }
}

/// The rules as text for `nft -f -`. They replace the table of the same name in one transaction.
pub fn ruleset(names: &Names, interfaces: &[Interface], paths: &[Path]) -> String {
    let Names { table, mark, .. } = names;
    let mut text = format!(
        "table inet {table}\n\
         delete table inet {table}\n\
         table inet {table} {{\n\
         \tchain prerouting {{\n\
         \t\ttype filter hook prerouting priority mangle; policy accept;\n\
         \t\tiifname \"lo\" return\n\
         \t\tmeta l4proto != {{ tcp, icmp, icmpv6 }} return\n\
         \t\ttcp flags & (fin | syn | rst | ack) == syn jump split\n\
         \t\tsocket transparent 1 meta mark set {mark:#x} accept\n\
         \t}}\n\
         \tchain output {{\n\
         \t\ttype route hook output priority mangle; policy accept;\n\
         \t\ticmp type destination-unreachable icmp code host-unreachable @th,128,16 {QUOTED_IPV4:#06x} meta mark set {mark:#x}\n\
         \t\ticmpv6 type destination-unreachable icmpv6 code addr-unreachable @th,112,16 {QUOTED_IPV6:#06x} meta mark set {mark:#x}\n\
         \t}}\n\
         \tchain split {{\n\
         \t\tfib daddr type != unicast return\n\
         \t\tfib daddr oif missing return\n"
    );
    for path in paths {
        let from = interface_match(path.client, interfaces);
        let to = interface_match(path.server, interfaces);
        for (family, protocol, host) in [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")] {
            let _ = writeln!(
                text,
                "\t\tiifname {from} fib daddr oifname {to} meta nfproto {family} meta l4proto tcp tproxy {protocol} to {host}:{} \
                 meta mark set {mark:#x} accept",
                path.port
            );
        }
    }
    text.push_str("\t}\n}\n");
    text
}

/// The rules and routes of a running daemon; they are removed with it.
#[derive(Debug)]
pub(crate) struct Interception {
    names: Names,
    families: Vec<Family>,
}

/// An address family as `ip` calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Interception {
    /// Sets up routes first and rules last: the first connection to be intercepted finds everything in place.
    pub(crate) fn install(
        names: Names,
        interfaces: &[Interface],
        paths: &[Path],
        families: Vec<Family>,
    ) -> Result<Self, Error> {
        if clear(&names) {
            tracing::warn!(
                table = names.table,
                "cleared the rules and routes of a run that did not end in order"
            );
        }
        let interception = Self { names, families };
        for &family in &interception.families {
            interception.add_routes(family)?;
        }
        load_rules(&ruleset(&interception.names, interfaces, paths))?;
        Ok(interception)
    }

    fn add_routes(&self, family: Family) -> Result<(), Error> {
        let Names { mark, route_table, preference, .. } = &self.names;
        let family = family.flag();
        ip(&format!("{family} route add local default dev lo table {route_table}"))?;
        ip(&format!("{family} rule add pref {preference} fwmark {mark:#x} lookup {route_table}"))
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        clear(&self.names);
    }
}

impl Family {
    fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }
}

/// Removes everything that goes by these names; true if there was anything. The rules go first, so that no connection
/// is taken that could not be routed to this host any more.
fn clear(names: &Names) -> bool {
    let Names { table, mark, route_table, preference } = names;
    let mut found = succeeds(&mut arguments("nft", &format!("delete table inet {table}")));
    for family in ["-4", "-6"] {
        let rule = format!("{family} rule del pref {preference} fwmark {mark:#x} lookup {route_table}");
        while succeeds(&mut arguments("ip", &rule)) {
            found = true;
        }
        let route = format!("{family} route del local default dev lo table {route_table}");
        found |= succeeds(&mut arguments("ip", &route));
    }
    found
}

fn interface_match(leg: LegId, interfaces: &[Interface]) -> String {
    match leg {
        LegId::Satellite(index) => format!("\"{}\"", interfaces[index]),
        LegId::Terrestrial => {
            let names: Vec<String> = interfaces.iter().map(|name| format!("\"{name}\"")).collect();
            format!("!= {{ {} }}", names.join(", "))
        }
    }
}

fn load_rules(text: &str) -> Result<(), Error> {
    let action = "load the interception rules";
    let mut command = arguments("nft", "-f -");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|mut child| {
        child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes()))?;
        child.wait_with_output()
    });
    check(action, "nft -f -", "install the package nftables", output)
}

fn ip(line: &str) -> Result<(), Error> {
    let output = arguments("ip", line).stdin(Stdio::null()).output();
    check(
        "route intercepted packets to this host",
        &format!("ip {line}"),
        "install the package iproute2",
        output,
    )
}

fn check(
    action: &'static str,
    command: &str,
    package: &str,
    output: std::io::Result<Output>,
) -> Result<(), Error> {
    let reason = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a word").to_owned()
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{error}; {package}"),
        Err(error) => error.to_string(),
    };
    Err(Error::Tool { action, command: command.to_owned(), reason })
}

fn arguments(program: &str, line: &str) -> Command {
    let mut command = Command::new(program);
    command.args(line.split(' '));
    command
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::paths;

    fn text(interfaces: &[&str]) -> String {
        let interfaces: Vec<Interface> =
            interfaces.iter().map(|name| Interface::try_from((*name).to_owned()).unwrap()).collect();
        ruleset(&Names::default(), &interfaces, &paths(interfaces.len(), 7600))
    }

    #[test]
    fn a_syn_towards_the_satellite_goes_to_its_paths_listener_in_both_families() {
        let rules = text(&["sat0"]);
        let from_ground = "iifname != { \"sat0\" } fib daddr oifname \"sat0\"";
        for rule in [
            format!(
                "{from_ground} meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:7602 meta mark set 0x6270 accept"
            ),
            format!(
                "{from_ground} meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:7602 meta mark set 0x6270 accept"
            ),
        ] {
            assert!(rules.contains(&rule), "{rules}");
        }
    }

    #[test]
    fn ground_to_ground_is_left_alone() {
        let ground = "!= { \"sat0\", \"sat1\" }";
        assert!(!text(&["sat0", "sat1"]).contains(&format!("iifname {ground} fib daddr oifname {ground}")));
    }

    #[test]
    fn each_path_has_one_rule_for_each_family() {
        for interfaces in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
            let count = text(interfaces).matches("tproxy").count();
            assert_eq!(count, 2 * crate::path::path_count(interfaces.len()));
        }
    }

    #[test]
    fn loopback_and_this_hosts_own_addresses_are_passed_before_any_tproxy() {
        let rules = text(&["sat0"]);
        let first = rules.find("tproxy").unwrap();
        for guard in
            ["iifname \"lo\" return", "fib daddr type != unicast return", "fib daddr oif missing return"]
        {
            assert!(rules.find(guard).unwrap() < first, "{guard}");
        }
    }

    #[test]
    fn this_hosts_own_verdict_of_unreachable_comes_back_to_it() {
        let rules = text(&["sat0"]);
        assert!(
            rules.contains("icmp type destination-unreachable icmp code host-unreachable @th,128,16 0x4006 meta mark set 0x6270"),
            "{rules}"
        );
        assert!(
            rules.contains("icmpv6 type destination-unreachable icmpv6 code addr-unreachable @th,112,16 0x0640 meta mark set 0x6270"),
            "{rules}"
        );
    }

    #[test]
    fn the_whole_rule_set_for_one_leg_reads_like_this() {
        let expected =
            "table inet bentpipe\ndelete table inet bentpipe\ntable inet bentpipe {\n\tchain prerouting {\n";
        let rules = text(&["sat0"]);
        assert!(rules.starts_with(expected), "{rules}");
        assert_eq!(rules.matches('{').count(), rules.matches('}').count());
    }
}

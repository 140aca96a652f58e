//! A copy of the gateway in a network namespace, with a client on one side and a server on the other.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path as FilePath;
use std::process::{Output, Stdio};

use anyhow::{Context, bail, ensure};
use bentpipe_testbed::{Namespace, find_tool, veth};
use serde::Deserialize;

use super::ours;
use super::topology::{Family, Path, Plan};

/// The interface of the client and of the server.
const UP: &str = "up0";
/// Words of a route's listing that are no part of its description (ip-route(8)).
const STATES: [&str; 4] = ["linkdown", "dead", "offload", "rt_trap"];
/// The same, each followed by a number.
const NUMBERS: [&str; 2] = ["expires", "error"];

/// The copy. It vanishes with this value.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) gateway: Namespace,
    pub(super) client: Namespace,
    pub(super) server: Namespace,
    /// The other ends of the interfaces that a probe has no part in.
    _elsewhere: Namespace,
}

/// An answer of `ip -j route get`.
#[derive(Debug, Deserialize)]
struct Hop {
    dev: Option<String>,
    gateway: Option<IpAddr>,
}

impl Gateway {
    pub(super) fn new(plan: &Plan, path: &Path) -> anyhow::Result<Self> {
        let [gateway, client, server, elsewhere] = ["gateway", "client", "server", "elsewhere"]
            .map(|name| Namespace::new(&format!("probe's {name}")));
        let copy = Self { gateway: gateway?, client: client?, server: server?, _elsewhere: elsewhere? };
        copy.devices(plan, path)?;
        copy.settings(plan);
        copy.addresses(plan)?;
        copy.routing(plan)?;
        copy.firewall(plan)?;
        copy.ends(path)?;
        Ok(copy)
    }

    fn devices(&self, plan: &Plan, path: &Path) -> anyhow::Result<()> {
        for (number, device) in plan.devices().enumerate() {
            let name = &device.ifname;
            // Such as `sit0`, which the kernel makes in every namespace.
            if self.gateway.ip(&format!("link show dev {name}")).is_ok() {
                continue;
            }
            let (peer, at) = match name {
                name if *name == path.lan => (&self.client, UP.to_owned()),
                name if *name == path.leg => (&self.server, UP.to_owned()),
                _ => (&self._elsewhere, format!("peer{number}")),
            };
            if !device.is_bridge() {
                veth(&self.gateway, name, peer, &at)?;
                continue;
            }
            let port = format!("probe{number}");
            veth(&self.gateway, &port, peer, &at)?;
            self.gateway.ip(&format!("link add {name} type bridge"))?;
            self.gateway.ip(&format!("link set {port} master {name}"))?;
            self.gateway.ip(&format!("link set {name} up"))?;
        }
        Ok(())
    }

    /// Those that the kernel refuses are not per namespace, or not to be written.
    fn settings(&self, plan: &Plan) {
        // These change others when they are written, so they come first.
        let first = ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/all/disable_ipv6"];
        let early = first.into_iter().filter_map(|key| Some((key, plan.settings.get(key)?)));
        let rest = plan.settings.iter().map(|(key, value)| (key.as_str(), value));
        let all: Vec<_> = early.chain(rest).collect();
        let written =
            self.gateway.run(|| all.into_iter().filter(|(key, value)| write(key, value).is_ok()).count());
        tracing::debug!(?written, "settings");
    }

    /// Gives a setting below `/proc/sys/net` a value, if it has another.
    pub(super) fn write_setting(&self, key: &str, value: &str) -> anyhow::Result<()> {
        self.gateway.run(|| write(key, value))?.with_context(|| format!("cannot set {key} to {value}"))
    }

    fn addresses(&self, plan: &Plan) -> anyhow::Result<()> {
        for device in plan.devices() {
            for address in &device.addr_info {
                let (Some(local), bits) = (address.local, address.prefixlen) else { continue };
                let place = match address.address {
                    Some(peer) => format!("{local} peer {peer}/{bits}"),
                    None => format!("{local}/{bits}"),
                };
                let nodad = if local.is_ipv6() { "nodad" } else { "" };
                // The kernel has made the link-local address itself.
                let _ = self.gateway.ip(&format!("addr replace {place} dev {} {nodad}", device.ifname));
            }
        }
        Ok(())
    }

    fn routing(&self, plan: &Plan) -> anyhow::Result<()> {
        for family in Family::BOTH {
            let routes = plan.routes[family as usize].lines().filter_map(route);
            let routes: String = routes.map(|route| format!("route replace {route}\n")).collect();
            // Those that cannot be made are of interfaces that are down, or made by the kernel. One may be
            // listed before the one by which its next hop is reached.
            for _ in 0..2 {
                self.batch(family, &routes)?;
            }
            let rules: Vec<String> = plan.rules[family as usize].lines().filter_map(rule).collect();
            self.gateway.ip(&format!("{} rule flush", family.flag()))?;
            self.batch(family, &rules.iter().map(|rule| format!("rule add {rule}\n")).collect::<String>())?;
        }
        Ok(())
    }

    /// Runs lines of `ip`, as many as can be.
    fn batch(&self, family: Family, lines: &str) -> anyhow::Result<Output> {
        self.feed("ip", &[family.flag(), "-force", "-batch", "-"], lines)
    }

    fn firewall(&self, plan: &Plan) -> anyhow::Result<()> {
        for (name, table) in &plan.firewall.tables {
            self.load_table(name, table)?;
        }
        self.load_iptables(plan)
    }

    pub(super) fn load_iptables(&self, plan: &Plan) -> anyhow::Result<()> {
        for (text, program) in plan.firewall.iptables.iter().zip(["iptables-restore", "ip6tables-restore"]) {
            if text.is_empty() {
                continue;
            }
            let output = self.feed(program, &[], text)?;
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            ensure!(output.status.success(), "cannot copy what iptables has: {program}: {said}");
        }
        Ok(())
    }

    pub(super) fn load_table(&self, name: &str, table: &str) -> anyhow::Result<()> {
        self.gateway.nft(table).with_context(|| format!("cannot copy the table {name}"))
    }

    /// Gives the client and the server their addresses, and the server's a route if it has none by the leg.
    fn ends(&self, path: &Path) -> anyhow::Result<()> {
        let inside = path.gateway_inside.local.context("the LAN's interface has no address")?;
        let outside = path.gateway_outside.local.context("the leg has no address")?;
        let family = path.family.flag();
        let end = |namespace: &Namespace, addresses: &[String], gateway: IpAddr| -> anyhow::Result<()> {
            for address in addresses {
                let nodad = if gateway.is_ipv6() { "nodad" } else { "" };
                namespace.ip(&format!("{family} addr replace {address} dev {UP} {nodad}"))?;
            }
            namespace.ip(&format!("{family} route replace default via {gateway} dev {UP} onlink"))?;
            Ok(())
        };
        end(&self.client, &[format!("{}/{}", path.client, path.gateway_inside.prefixlen)], inside)?;
        let beyond =
            path.gateway_outside.neighbour().context("the leg's network has no room for a server")?;
        if self.next_hop(path)?.dev.as_deref() != Some(&path.leg) {
            let onlink =
                format!("{family} route replace {} via {beyond} dev {} onlink", path.server, path.leg);
            self.gateway.ip(&onlink)?;
        }
        let hop = self.next_hop(path)?;
        // Without a route, as on a gateway that does not forward, the connections show what is wrong.
        if let Some(dev) = hop.dev.filter(|dev| *dev != path.leg) {
            bail!("the gateway routes {} to {dev}, not to {}", path.server, path.leg);
        }
        let bits = path.gateway_outside.prefixlen;
        let router = format!("{}/{bits}", hop.gateway.unwrap_or(beyond));
        end(&self.server, &[router, path.server.to_string()], outside)
    }

    /// Where the gateway sends what the client sends to the server.
    fn next_hop(&self, path: &Path) -> anyhow::Result<Hop> {
        let line = format!("-j route get {} from {} iif {}", path.server, path.client, path.lan);
        let output = self.gateway.command(find_tool("ip")).args(line.split(' ')).output()?;
        let hops: Vec<Hop> = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ok(hops.into_iter().next().unwrap_or(Hop { dev: None, gateway: None }))
    }

    fn feed(&self, program: &str, arguments: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut command = self.gateway.command(find_tool(program));
        command.args(arguments).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
        let stdin = child.stdin.take();
        std::thread::scope(|scope| {
            // It may say more than a pipe holds before it has read everything.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
            Ok(child.wait_with_output()?)
        })
    }
}

/// Gives a setting of this thread's network a value, if it has another.
fn write(key: &str, value: &str) -> io::Result<()> {
    let path = FilePath::new("/proc/sys/net").join(key);
    match fs::read_to_string(&path) {
        Ok(now) if now.trim() == value => Ok(()),
        _ => fs::write(&path, value),
    }
}

/// A line of `ip -o route show table all` as it can be given back; `None` for what the kernel makes itself.
fn route(line: &str) -> Option<String> {
    let line = line.replace('\\', " ");
    let words: Vec<&str> = line.split_whitespace().collect();
    let made = ["local", "broadcast", "multicast", "anycast"].contains(words.first()?);
    if made && words.windows(2).any(|pair| pair == ["table", "local"]) || ours::is_route_or_rule(&words) {
        return None;
    }
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if NUMBERS.contains(&word) {
            words.next();
        } else if !STATES.contains(&word) {
            kept.push(word);
        }
    }
    Some(kept.join(" "))
}

/// A line of `ip rule show` as it can be given back, `None` for the first, which cannot be removed, and ours.
pub(super) fn rule(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with('[')).collect();
    let [preference, rest @ ..] = words.as_slice() else { return None };
    let preference = preference.strip_suffix(':')?;
    let stays = preference != "0" && !ours::is_route_or_rule(&words);
    stays.then(|| format!("pref {preference} {}", rest.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_given_back_without_their_state() {
        let line = "default via 10.0.0.1 dev eth0 table 100 proto static metric 5 linkdown";
        assert_eq!(route(line).unwrap(), "default via 10.0.0.1 dev eth0 table 100 proto static metric 5");
        let line = "default via fe80::1 dev eth0 proto ra metric 100 expires 1796sec hoplimit 64 pref medium";
        assert_eq!(
            route(line).unwrap(),
            "default via fe80::1 dev eth0 proto ra metric 100 hoplimit 64 pref medium"
        );
        assert_eq!(route("local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1"), None);
        assert_eq!(route("local default dev lo table 25200 scope host"), None);
        let several =
            "default proto static \\\tnexthop via 10.0.0.1 dev a weight 1 \\\tnexthop via 10.1.0.1 dev b";
        assert!(route(several).unwrap().contains("static nexthop via 10.0.0.1 dev a weight 1 nexthop"));
    }

    #[test]
    fn rules_are_given_back_at_their_place() {
        assert_eq!(rule("0:\tfrom all lookup local"), None);
        assert_eq!(
            rule("51:\tnot from all fwmark 0xca6c lookup 51820").unwrap(),
            "pref 51 not from all fwmark 0xca6c lookup 51820"
        );
        assert_eq!(
            rule("60:\tfrom all iif wan [detached] lookup 7").unwrap(),
            "pref 60 from all iif wan lookup 7"
        );
        assert_eq!(rule("67:\tfrom all fwmark 0x10000000/0x70000000 lookup 25200"), None);
        assert_eq!(rule("69:\tfrom all nop"), None);
    }
}

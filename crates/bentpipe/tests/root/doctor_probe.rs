//! `bentpipe doctor --probe` on a gateway that is a network namespace.

use std::fs;
use std::process::{Output, Stdio};

use bentpipe_testbed::{Namespace, Need, require, veth};
use serde_json::Value;

/// A gateway between two hosts that say nothing: the probe brings its own.
struct Gateway {
    namespace: Namespace,
    _hosts: [Namespace; 2],
    folder: tempfile::TempDir,
}

impl Gateway {
    fn new() -> Option<Self> {
        if let Err(missing) = require(&[Need::Privileges, Need::Namespaces]) {
            println!("skipped: needs root: {missing}");
            return None;
        }
        let namespace = Namespace::new("gateway").unwrap();
        let hosts = ["client", "server"].map(|name| Namespace::new(name).unwrap());
        for (number, (interface, host)) in ["lan0", "sat0"].into_iter().zip(&hosts).enumerate() {
            veth(&namespace, interface, host, "up0").unwrap();
            let network = number + 1;
            namespace.ip(&format!("addr add 10.78.{network}.1/24 dev {interface}")).unwrap();
            namespace.ip(&format!("addr add fd78:{network}::1/64 dev {interface} nodad")).unwrap();
        }
        for route in ["-4 route add default via 10.78.2.2", "-6 route add default via fd78:2::2"] {
            namespace.ip(route).unwrap();
        }
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            namespace.sysctl(key, "1").unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("bentpipe.toml"), "[legs.satellite]\ninterface = \"sat0\"\n").unwrap();
        Some(Self { namespace, _hosts: hosts, folder })
    }

    fn doctor(&self, arguments: &[&str]) -> Output {
        let mut command = self.namespace.command(env!("CARGO_BIN_EXE_bentpipe"));
        command.args(["doctor", "--probe", "--config"]).arg(self.folder.path().join("bentpipe.toml"));
        command.args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// The results of the probe by name: whether each is good, what was found and what helps.
    fn probe(&self) -> Vec<(String, bool, String)> {
        let output = self.doctor(&["--json"]);
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
        let checks = document["checks"].as_array().unwrap().iter();
        let probes = checks.filter(|check| text(check, "name").starts_with("probe"));
        probes
            .map(|check| {
                let said = format!("{} → {}", text(check, "found"), text(check, "fix"));
                (text(check, "name"), check["ok"].as_bool().unwrap(), said)
            })
            .collect()
    }

    /// Every connection is split, or the probe names one of these as the reason.
    fn expect_split_or_named(&self, names: &[&str]) {
        for (name, ok, said) in self.probe() {
            assert!(ok || names.iter().any(|part| said.contains(part)), "{name}: {said}");
        }
    }

    fn state(&self) -> String {
        let list = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let output = self.namespace.command(words[0]).args(&words[1..]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        ["nft list ruleset", "ip rule", "ip -6 rule", "ip -br address", "ip route show table all"].map(list).concat()
    }
}

#[test]
fn on_a_plain_gateway_a_connection_of_each_family_comes_through_and_is_split() {
    let Some(gateway) = Gateway::new() else { return };
    let before = gateway.state();
    let probe = gateway.probe();
    let names: Vec<&str> = probe.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["probe, IPv4 unsplit", "probe, IPv4 split", "probe, IPv6 unsplit", "probe, IPv6 split"]);
    for (name, ok, said) in &probe {
        assert!(ok, "{name}: {said}");
    }
    assert_eq!(gateway.state(), before, "the gateway is as it was");
}

#[test]
fn a_chain_that_drops_is_named() {
    let Some(gateway) = Gateway::new() else { return };
    let rules = "table inet firewall {\nchain outwards {\n type filter hook forward priority filter; policy accept;\n \
                 meta nfproto ipv4 tcp dport 443 drop\n}\n}\n";
    gateway.namespace.nft(rules).unwrap();
    let probe = gateway.probe();
    let [(name, ok, said), rest @ ..] = probe.as_slice() else { panic!("{probe:?}") };
    assert!(name == "probe, IPv4 unsplit" && !ok, "{probe:?}");
    assert!(said.contains("chain outwards of the table inet firewall by the rule"), "{said}");
    assert!(said.contains("nft -a list chain inet firewall outwards"), "{said}");
    assert!(rest.iter().all(|(name, ok, _)| name.contains("IPv6") && *ok), "IPv6 is not concerned: {rest:?}");
}

#[test]
fn a_table_of_iptables_that_drops_is_named() {
    let Some(gateway) = Gateway::new() else { return };
    let set = gateway.namespace.command("iptables").args(["-P", "FORWARD", "DROP"]).output();
    if !set.is_ok_and(|output| output.status.success()) {
        return println!("skipped: needs iptables: scripts/setup-peers neighbours");
    }
    let (name, ok, said) = gateway.probe().remove(0);
    assert!(name == "probe, IPv4 unsplit" && !ok, "{name}: {said}");
    assert!(said.contains("chain FORWARD of the table ip filter by its policy"), "{said}");
}

#[test]
fn a_gateway_that_does_not_forward_is_told_the_setting() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.namespace.sysctl("net.ipv4.ip_forward", "0").unwrap();
    let (name, ok, said) = gateway.probe().remove(0);
    assert!(name == "probe, IPv4 unsplit" && !ok, "{name}: {said}");
    assert!(said.contains("sysctl -w net.ipv4.ip_forward=1"), "{said}");
}

#[test]
fn each_setting_that_is_known_to_harm_is_named_or_does_none() {
    for key in [
        "net.ipv4.conf.all.src_valid_mark",
        "net.ipv4.conf.lan0.src_valid_mark",
        "net.ipv4.tcp_fwmark_accept",
        "net.ipv4.fwmark_reflect",
        "net.ipv6.fwmark_reflect",
        "net.ipv4.conf.all.rp_filter",
    ] {
        let Some(gateway) = Gateway::new() else { return };
        gateway.namespace.sysctl(key, "1").unwrap();
        gateway.expect_split_or_named(&[key]);
    }
}

#[test]
fn a_routing_rule_before_ours_is_named_or_does_no_harm() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.namespace.ip("route add default via 10.78.2.2 table 77").unwrap();
    gateway.namespace.ip("rule add pref 50 iif lan0 lookup 77").unwrap();
    gateway.expect_split_or_named(&["pref 50 from all iif lan0 lookup 77"]);
}

#[test]
fn a_filter_of_sources_is_named_or_does_no_harm() {
    let Some(gateway) = Gateway::new() else { return };
    let rules = "table inet sources {\nchain c {\n type filter hook prerouting priority mangle + 10;\n \
                 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n \
                 fib saddr . mark . iif oif missing drop\n}\n}\n";
    gateway.namespace.nft(rules).unwrap();
    gateway.expect_split_or_named(&["table inet sources"]);
}

#[test]
fn without_a_lan_the_probe_says_what_it_needs() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.namespace.ip("link del lan0").unwrap();
    let (_, ok, said) = gateway.probe().remove(0);
    assert!(!ok && said.contains("--from INTERFACE"), "{said}");
}

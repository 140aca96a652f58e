//! `bentpipe doctor -c` on a gateway that is a network namespace: what breaks traffic is found, and what the
//! configuration does not use is not spoken of.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;

use bentpipe_testbed::{Namespace, Need, require, veth};
use serde_json::Value;

/// A gateway with an interface to the LAN and one to the satellite.
struct Gateway {
    namespace: Namespace,
    _hosts: [Namespace; 2],
    folder: tempfile::TempDir,
}

/// The checks of a run.
struct Checks(Vec<Value>);

impl Gateway {
    /// With these addresses at the LAN and at the satellite, and no route but to their networks.
    fn new(addresses: [&str; 2]) -> Option<Self> {
        if let Err(missing) = require(&[Need::Privileges, Need::Namespaces]) {
            println!("skipped: needs root: {missing}");
            return None;
        }
        let namespace = Namespace::new("gateway").unwrap();
        let hosts = ["client", "server"].map(|name| Namespace::new(name).unwrap());
        for ((interface, host), address) in ["lan0", "sat0"].into_iter().zip(&hosts).zip(addresses) {
            veth(&namespace, interface, host, "up0").unwrap();
            let nodad = if address.contains("::") { " nodad" } else { "" };
            namespace.ip(&format!("addr add {address} dev {interface}{nodad}")).unwrap();
        }
        Some(Self { namespace, _hosts: hosts, folder: tempfile::tempdir().unwrap() })
    }

    fn ipv4() -> Option<Self> {
        Self::new(["10.79.1.1/24", "10.79.2.1/24"])
    }

    fn nft(&self, rules: &str) {
        let file = self.folder.path().join("rules.nft");
        fs::write(&file, rules).unwrap();
        assert!(self.namespace.command("nft").arg("-f").arg(file).status().unwrap().success());
    }

    fn doctor(&self, legs: &str) -> Checks {
        self.doctor_behind(&[], legs)
    }

    /// The program is started by these words, of which the first is a program.
    fn doctor_behind(&self, starter: &[&str], legs: &str) -> Checks {
        let sockets = self.folder.path().join("sockets");
        let file = self.folder.path().join("bentpipe.toml");
        fs::write(&file, format!("[admin]\nfolder = {sockets:?}\nlisten = \"off\"\n{legs}")).unwrap();
        let words: Vec<&str> = starter
            .iter()
            .copied()
            .chain([env!("CARGO_BIN_EXE_bentpipe"), "doctor", "--json", "-c"])
            .collect();
        let mut command = self.namespace.command(words[0]);
        let output = command.args(&words[1..]).arg(file).stdin(Stdio::null()).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        Checks(document["checks"].as_array().unwrap().clone())
    }
}

const LEG: &str = "[legs.geo]\ninterface = \"sat0\"\ncongestion = \"reno\"\n";

impl Checks {
    fn find(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|check| check["name"] == name)
    }

    /// The check is `ok`, `WARN` or `LACK`, and its finding and its remedy say this.
    fn expect(&self, name: &str, mark: &str, says: &str) {
        let check = self.find(name).unwrap_or_else(|| panic!("no {name} in {:#?}", self.0));
        let found = match (check["ok"].as_bool(), check["warning"].as_bool()) {
            (Some(false), _) => "LACK",
            (_, Some(true)) => "WARN",
            _ => "ok",
        };
        assert_eq!(found, mark, "{check}");
        let text = format!("{} → {}", check["found"].as_str().unwrap(), check["fix"].as_str().unwrap_or("-"));
        assert!(text.contains(says), "{text}");
    }

    fn expect_nothing_of(&self, word: &str) {
        assert!(
            self.0.iter().all(|check| !check["name"].as_str().unwrap().contains(word)),
            "{word}: {:#?}",
            self.0
        );
    }
}

#[test]
fn routes_that_are_missing_are_found_and_those_that_are_there_too() {
    let Some(gateway) = Gateway::ipv4() else { return };
    let before = gateway.doctor(LEG);
    before.expect("routes, leg geo", "WARN", "only 10.79.2.0/24 is reached over sat0");
    before.expect("IPv4 default route", "WARN", "ip route add default via");
    gateway.namespace.ip("route add default via 10.79.2.2").unwrap();
    let after = gateway.doctor(LEG);
    after.expect("routes, leg geo", "ok", "default over sat0");
    after.expect("IPv4 default route", "ok", "there is one");
    after.expect("interface, leg geo", "ok", "sat0 is up");
    gateway.namespace.ip("addr flush dev sat0").unwrap();
    gateway.doctor(LEG).expect("routes, leg geo", "LACK", "no route leads over sat0");
}

#[test]
fn a_family_that_the_gateway_does_not_use_is_not_spoken_of() {
    let Some(gateway) = Gateway::new(["fd79:1::1/64", "fd79:2::1/64"]) else { return };
    let checks = gateway.doctor(LEG);
    checks.expect("IPv6 forwarding", "LACK", "sysctl -w net.ipv6.conf.all.forwarding=1");
    for absent in ["IPv4", "XCP", "explicit", "Hybla", "testbed", "firewall, "] {
        checks.expect_nothing_of(absent);
    }
    let Some(gateway) = Gateway::ipv4() else { return };
    let checks = gateway.doctor(LEG);
    checks.expect("IPv4 forwarding", "LACK", "sysctl -w net.ipv4.ip_forward=1");
    checks.expect_nothing_of("IPv6");
}

#[test]
fn without_ebpf_the_ceilings_in_its_place_and_their_cost_are_named() {
    let Some(gateway) = Gateway::ipv4() else { return };
    let leg = |congestion: &str| {
        format!("[legs.geo]\ninterface = \"sat0\"\nrate = \"10Mbit/s\"\ncongestion = \"{congestion}\"\n")
    };
    let without_rights = ["setpriv", "--bounding-set", "-sys_admin,-perfmon,-bpf"];
    let checks = gateway.doctor_behind(&without_rights, &leg("explicit"));
    checks.expect("eBPF explicit rates", "LACK", "96% of the limit instead of 100% at PER 1%");
    checks.expect("congestion control, leg geo", "LACK", "it would use paced (above ");
    checks.expect("congestion control, leg geo", "LACK", "congestion = \"paced\"");
    let checks = gateway.doctor_behind(&without_rights, &leg("paced"));
    checks.expect_nothing_of("eBPF");
    let has_bbr = bentpipe_kernel::congestion::available().iter().any(|name| name == "bbr");
    checks.expect("congestion control, leg geo", if has_bbr { "ok" } else { "LACK" }, "paced (above ");
}

#[test]
fn an_input_chain_that_drops_is_lacking_until_it_accepts_what_the_daemon_needs() {
    let Some(gateway) = Gateway::ipv4() else { return };
    gateway.doctor(LEG).expect("firewall", "ok", "no chain of the hook input drops");
    gateway.nft("table inet filter { chain input { type filter hook input priority filter; policy drop; tcp dport 22 accept; }; }");
    let checks = gateway.doctor(LEG);
    let name = "firewall, inet filter input";
    let found: Vec<&Value> = checks.0.iter().filter(|check| check["name"] == name).collect();
    assert_eq!(found.len(), 2, "{found:#?}");
    // The remedies are lines that work.
    for check in found {
        let line = check["fix"].as_str().unwrap().split(", if ").next().unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        assert!(gateway.namespace.command(words[0]).args(&words[1..]).status().unwrap().success(), "{line}");
    }
    gateway.doctor(LEG).expect("firewall", "ok", "no chain of the hook input drops");
}

#[test]
fn translated_addresses_are_told_of_as_what_works() {
    let Some(gateway) = Gateway::ipv4() else { return };
    gateway.doctor(LEG).expect_nothing_of("NAT");
    gateway.nft("table ip nat { chain post { type nat hook postrouting priority srcnat; oifname \"sat0\" masquerade; }; }");
    gateway.doctor(LEG).expect("NAT", "ok", "split connections too");
}

#[test]
fn an_interface_that_cannot_be_a_leg_yet_or_at_all_is_told_of() {
    let Some(gateway) = Gateway::ipv4() else { return };
    let missing = LEG.replace("sat0", "sta0");
    gateway.doctor(&missing).expect("interface, leg geo", "WARN", "there is no sta0 (did you mean sat0?)");
    gateway.namespace.ip("link set sat0 down").unwrap();
    gateway.doctor(LEG).expect("interface, leg geo", "WARN", "ip link set sat0 up");
    gateway.namespace.ip("link add br0 type bridge").unwrap();
    gateway.namespace.ip("link set sat0 master br0").unwrap();
    gateway.doctor(LEG).expect("interface, leg geo", "LACK", "interface = \"br0\"");
}

#[test]
fn what_a_start_would_refuse_is_lacking() {
    let Some(gateway) = Gateway::ipv4() else { return };
    let snoop = "rate = \"10Mbit/s\"\n[[rules]]\naction = \"snoop\"\n";
    gateway.namespace.sysctl("net.ipv4.conf.all.rp_filter", "1").unwrap();
    let taken = gateway.namespace.run(|| TcpListener::bind("127.0.0.1:7600").unwrap()).unwrap();
    let checks = gateway.doctor(&format!("{LEG}{snoop}"));
    checks.expect("net.ipv4.conf.all.rp_filter", "LACK", "sysctl -w net.ipv4.conf.all.rp_filter=2");
    checks.expect("ports", "LACK", "127.0.0.1:7600");
    checks.expect("other daemons", "ok", "none splits connections");
    drop(taken);
    gateway.namespace.sysctl("net.ipv4.conf.all.rp_filter", "0").unwrap();
    let checks = gateway.doctor(&format!("{LEG}{snoop}"));
    checks.expect("net.ipv4.conf.all.rp_filter", "ok", "not 1");
    checks.expect("ports", "ok", "are free");
}

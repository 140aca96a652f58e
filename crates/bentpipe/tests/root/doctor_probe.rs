//! `bentpipe doctor --probe` on a gateway that is a network namespace.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bentpipe_testbed::{Child, Namespace, Need, require, veth};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const BENTPIPE: &str = env!("CARGO_BIN_EXE_bentpipe");
/// Long enough for everything here, on a machine that does other things as well.
const PATIENCE: Duration = Duration::from_secs(30);

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

    fn doctor(&self) -> Command {
        let mut command = self.namespace.command(BENTPIPE);
        command
            .args(["doctor", "--json", "--probe", "--config"])
            .arg(self.folder.path().join("bentpipe.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The results of the probe by name: whether each is good, what was found and what helps.
    fn probe(&self) -> Vec<(String, bool, String)> {
        results(&self.doctor().output().unwrap())
    }

    /// Connections of IPv4 come through unsplit, and this is said of split ones.
    fn expect_unsplit_only(&self, said: &[&str]) {
        let all = self.probe();
        let result = |name: &str| {
            all.iter().find(|(of, ..)| of == name).unwrap_or_else(|| panic!("{name} in {all:?}"))
        };
        let (_, unsplit, _) = result("probe, IPv4 unsplit");
        let (_, split, found) = result("probe, IPv4 split");
        assert!(*unsplit && !split && said.iter().all(|part| found.contains(part)), "{all:?}");
    }

    /// Everything is split.
    fn expect_split(&self, beside: &str) {
        let all = self.probe();
        assert_eq!(all.len(), 4, "{all:?}");
        for (name, ok, said) in all {
            assert!(ok, "{beside}: {name}: {said}");
        }
    }

    /// A daemon on the gateway itself, which is ready.
    fn daemon(&self) -> Child {
        let file = self.folder.path().join("daemon.toml");
        let folder = self.folder.path().join("sockets");
        let text = format!(
            "[admin]\nfolder = {folder:?}\nlisten = \"off\"\n[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\n"
        );
        fs::write(&file, text).unwrap();
        let mut command = self.namespace.command(BENTPIPE);
        command.args(["run", "--config"]).arg(file).stdin(Stdio::null()).stderr(Stdio::null());
        let daemon = Child::spawn(command).unwrap();
        wait_until("the daemon is ready", || self.state().contains("table inet bentpipe {"));
        daemon
    }

    fn state(&self) -> String {
        let list = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let output = self.namespace.command(words[0]).args(&words[1..]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            // The kernel adds these routes a moment after the addresses.
            let is_late = |line: &&str| line.starts_with("local fe80:") || line.starts_with("anycast fe80:");
            text.lines().filter(|line| !is_late(line)).collect::<Vec<_>>().join("\n")
        };
        ["nft -s -t list ruleset", "ip rule", "ip -6 rule", "ip -br address", "ip route show table all"]
            .map(list)
            .concat()
    }
}

/// What the probe found, from what the doctor printed.
fn results(output: &Output) -> Vec<(String, bool, String)> {
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

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn on_a_plain_gateway_a_connection_of_each_family_comes_through_and_is_split() {
    let Some(gateway) = Gateway::new() else { return };
    let before = gateway.state();
    let probe = gateway.probe();
    let names: Vec<&str> = probe.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(
        names,
        ["probe, IPv4 unsplit", "probe, IPv4 split", "probe, IPv6 unsplit", "probe, IPv6 split"]
    );
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
fn settings_that_concern_marks_and_sources_do_no_harm() {
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
        gateway.expect_split(key);
    }
}

#[test]
fn a_filter_of_sources_does_no_harm() {
    let Some(gateway) = Gateway::new() else { return };
    let rules = "table inet sources {\nchain c {\n type filter hook prerouting priority mangle + 10;\n \
                 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n \
                 fib saddr . mark . iif oif missing drop\n}\n}\n";
    gateway.namespace.nft(rules).unwrap();
    gateway.expect_split("a filter of sources");
}

/// A gateway with these rules forwards, and does not split; the probe says why.
fn expect_named(rules: &str, named: &str) {
    let Some(gateway) = Gateway::new() else { return };
    gateway.namespace.nft(rules).unwrap();
    gateway.expect_unsplit_only(&[named]);
}

#[test]
fn a_chain_of_input_that_drops_what_comes_in_by_loopback_is_named() {
    expect_named(
        "table inet firewall {\nchain locally {\n type filter hook input priority filter; policy drop;\n \
         ct state established,related accept\n icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n}\n}\n",
        "chain locally of the table inet firewall by its policy",
    );
}

#[test]
fn a_rule_against_foreign_sources_on_loopback_is_named() {
    expect_named(
        "table ip sources {\nchain c {\n type filter hook prerouting priority raw;\n \
         iif lo ip saddr != 127.0.0.0/8 drop\n}\n}\n",
        "chain c of the table ip sources by the rule `iif \"lo\" ip saddr != 127.0.0.0/8 drop`",
    );
}

#[test]
fn a_table_that_takes_our_marks_away_is_named() {
    expect_named(
        "table inet marks {\nchain c {\n type filter hook prerouting priority 1100;\n meta mark set 0\n}\n}\n",
        "without the table inet marks it works",
    );
}

#[test]
fn a_routing_rule_before_ours_is_named() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.namespace.ip("route add default via 10.78.2.2 table 77").unwrap();
    // There is no room for ours before it.
    gateway.namespace.ip("rule add pref 5 iif lan0 lookup 77").unwrap();
    gateway.expect_unsplit_only(&["pref 5 from all iif lan0 lookup 77", "ip -4 rule del pref 5"]);
}

#[test]
fn a_daemon_that_runs_on_the_gateway_is_neither_copied_nor_disturbed() {
    let Some(gateway) = Gateway::new() else { return };
    let mut daemon = gateway.daemon();
    let before = gateway.state();
    gateway.expect_split("a daemon");
    assert_eq!(gateway.state(), before, "the gateway is as it was");
    assert!(daemon.wait_timeout(Duration::ZERO).unwrap().is_none(), "the daemon runs");
    daemon.signal(Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}

/// Whether the daemon of a probe's copy lives, by the path that it was started by.
fn has_a_daemon(doctor: u32) -> bool {
    let path = format!("/proc/{doctor}/exe\0run");
    let mut entries = fs::read_dir("/proc").unwrap().flatten();
    entries.any(|entry| {
        let line = fs::read_to_string(entry.path().join("cmdline"));
        line.is_ok_and(|line| line.starts_with(&path))
    })
}

#[test]
fn a_probe_that_is_interrupted_or_killed_leaves_nothing() {
    let Some(gateway) = Gateway::new() else { return };
    let before = gateway.state();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut doctor = gateway.doctor().spawn().unwrap();
        wait_until("the copy has a daemon", || has_a_daemon(doctor.id()));
        kill_process(Pid::from_child(&doctor), signal).unwrap();
        assert!(!doctor.wait().unwrap().success());
        wait_until("the copy's daemon has ended", || !has_a_daemon(doctor.id()));
        assert_eq!(gateway.state(), before, "the gateway is as it was");
    }
}

#[test]
fn without_nft_the_probe_names_the_package() {
    let Some(gateway) = Gateway::new() else { return };
    let nft = bentpipe_testbed::find_tool("nft");
    let mut doctor = gateway.namespace.command("unshare");
    let script = "mount --bind /dev/null \"$0\" && exec \"$@\"";
    doctor
        .args(["--mount", "sh", "-c", script])
        .arg(nft)
        .arg(BENTPIPE)
        .args(["doctor", "--json", "--probe", "--config"]);
    let output = doctor.arg(gateway.folder.path().join("bentpipe.toml")).output().unwrap();
    let (_, ok, said) = results(&output).remove(0);
    assert!(!ok && said.contains("`nft` is not installed") && said.contains("nftables"), "{said}");
}

#[test]
fn without_a_lan_the_probe_says_what_it_needs() {
    let Some(gateway) = Gateway::new() else { return };
    gateway.namespace.ip("link del lan0").unwrap();
    let (_, ok, said) = gateway.probe().remove(0);
    assert!(!ok && said.contains("--from INTERFACE"), "{said}");
}

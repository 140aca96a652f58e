//! The legs' interfaces, as `ip -details link` describes them.

use std::process::Command;

use bentpipe_config::unknown;
use bentpipe_kernel::host::{Check, Step};
use serde::Deserialize;

use crate::config::Config;

/// Kinds of interfaces whose ports carry nothing of their own: packets leave by the master.
const MASTERS: [&str; 3] = ["bridge", "bond", "team"];

#[derive(Debug, Deserialize)]
struct Link {
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
    master: Option<String>,
    #[serde(default)]
    linkinfo: LinkInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LinkInfo {
    info_kind: String,
}

/// One for each leg, and one for bridges that filter.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    match ip_json::<Link>(&["-details", "link", "show"]) {
        Ok(links) => {
            let legs = config.legs.iter().map(|(name, leg)| check(name, leg.interface.as_str(), &links));
            legs.chain(bridge_filter(&links)).collect()
        }
        Err(error) => vec![Check::warn("interfaces", error, "apt-get install -y iproute2")],
    }
}

fn check(leg: &str, interface: &str, links: &[Link]) -> Check {
    let name = format!("interface, leg {leg}");
    let Some(link) = links.iter().find(|link| link.ifname == interface) else {
        let names: Vec<&str> =
            links.iter().map(|link| link.ifname.as_str()).filter(|name| *name != "lo").collect();
        let found = format!("{}: the daemon waits for it", unknown(interface, &names));
        return Check::warn(
            name,
            found,
            "set it up (ip link), or write the name of the interface towards the satellite",
        );
    };
    if let Some(master) = master(link, links) {
        let found = format!("{interface} is a port of {}, which packets leave by", master.ifname);
        return Check::fail(name, found, format!("interface = \"{}\"", master.ifname));
    }
    match link.flags.iter().any(|flag| flag == "UP") {
        true => Check::pass(name, format!("{interface} is up")),
        false => Check {
            steps: vec![Step::run(&format!("ip link set {interface} up"))],
            ..Check::warn(name, format!("{interface} is down"), format!("ip link set {interface} up"))
        },
    }
}

fn master<'a>(link: &Link, links: &'a [Link]) -> Option<&'a Link> {
    let name = link.master.as_ref()?;
    let master = links.iter().find(|link| link.ifname == *name)?;
    MASTERS.contains(&master.linkinfo.info_kind.as_str()).then_some(master)
}

/// For information: connections over a bridge are split with it and without.
fn bridge_filter(links: &[Link]) -> Option<Check> {
    let bridge = links.iter().find(|link| link.linkinfo.info_kind == "bridge")?;
    let is_on = |key: &str| {
        let value = std::fs::read_to_string(format!("/proc/sys/net/bridge/{key}"));
        value.is_ok_and(|value| value.trim() != "0")
    };
    let on = is_on("bridge-nf-call-iptables") || is_on("bridge-nf-call-ip6tables");
    let found = format!(
        "packets between ports of {} meet this host's firewall too (br_netfilter); what it accepts is split as without",
        bridge.ifname
    );
    on.then(|| Check::pass("bridge", found))
}

/// What `ip -json` prints.
pub(super) fn ip_json<T: for<'de> Deserialize<'de>>(arguments: &[&str]) -> Result<Vec<T>, String> {
    let line = || format!("ip -json {}", arguments.join(" "));
    let output = Command::new("ip").arg("-json").args(arguments).env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("cannot run {}: {error}", line()))?;
    if !output.status.success() {
        return Err(format!("{}: {}", line(), String::from_utf8_lossy(&output.stderr).trim()));
    }
    // Nothing at all is printed where there is nothing.
    let text = String::from_utf8_lossy(&output.stdout);
    let text = if text.trim().is_empty() { "[]" } else { text.trim() };
    serde_json::from_str(text).map_err(|error| format!("cannot read what {} says: {error}", line()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> Vec<Link> {
        serde_json::from_str(
            r#"[{"ifname":"lo","flags":["LOOPBACK","UP"]},
                {"ifname":"sat0","flags":["BROADCAST","UP"]},
                {"ifname":"sat1","flags":["BROADCAST"]},
                {"ifname":"br0","flags":["UP"],"linkinfo":{"info_kind":"bridge"}},
                {"ifname":"port0","flags":["UP"],"master":"br0","linkinfo":{"info_kind":"veth"}}]"#,
        )
        .unwrap()
    }

    #[test]
    fn a_legs_interface_is_there_up_and_no_port_of_another() {
        let links = links();
        assert!(check("geo", "sat0", &links).ok);
        let missing = check("geo", "sta0", &links);
        assert!(missing.ok && missing.warning, "the daemon waits for it");
        assert!(
            missing.found.starts_with("there is no sta0 (did you mean sat0?); there is sat0, sat1"),
            "{missing}"
        );
        let down = check("geo", "sat1", &links);
        assert!(down.warning && down.fix.as_deref() == Some("ip link set sat1 up"), "{down}");
        let port = check("geo", "port0", &links);
        assert!(!port.ok && port.fix.as_deref() == Some("interface = \"br0\""), "{port}");
    }
}

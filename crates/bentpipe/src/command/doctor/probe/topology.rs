//! What the gateway has that decides about connections, as text of the programs that list it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::net::IpAddr;
use std::path::Path as FilePath;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use bentpipe_proxy::Config;
use bentpipe_testbed::find_tool;
use serde::Deserialize;

use super::ours;

/// Where the kernel keeps settings that are copied: below `/proc/sys/net`, with everything in it.
const SETTINGS: [&str; 4] = ["ipv4", "ipv6", "bridge", "netfilter"];
/// Addresses of documentation ranges for the server (RFC 5737, RFC 3849).
const SERVERS: [&str; 2] = ["192.0.2.77", "2001:db8:6270::77"];
/// Settings that are secrets, and decide nothing here.
const SECRETS: [&str; 2] = ["tcp_fastopen_key", "stable_secret"];
/// Flags of a table that belongs to a program.
const OWNED: [&str; 2] = ["owner", "persist"];
/// Tables that iptables keeps in nftables. What it puts there nft can list but not always read again.
const IPTABLES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// The gateway.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) interfaces: Vec<Interface>,
    /// Of all tables, one route a line, for each family.
    pub(super) routes: [String; 2],
    /// One rule a line, for each family.
    pub(super) rules: [String; 2],
    pub(super) settings: BTreeMap<String, String>,
    pub(super) firewall: Firewall,
    /// What is not copied.
    pub(super) notes: Vec<String>,
    lan: String,
    legs: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Firewall {
    /// Tables of nftables by name, `inet filter`, as text.
    pub(super) tables: BTreeMap<String, String>,
    /// What `iptables-save` and `ip6tables-save` say.
    pub(super) iptables: [String; 2],
}

/// An interface as `ip -j address` describes it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Interface {
    pub(super) ifname: String,
    #[serde(default)]
    pub(super) linkinfo: LinkInfo,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    master: Option<String>,
    #[serde(default)]
    pub(super) addr_info: Vec<Address>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct LinkInfo {
    #[serde(default)]
    pub(super) info_kind: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Address {
    pub(super) local: Option<IpAddr>,
    /// The other end of a point-to-point link.
    pub(super) address: Option<IpAddr>,
    pub(super) prefixlen: u8,
    #[serde(default)]
    scope: String,
}

/// The way of a probe's connection.
#[derive(Debug, Clone)]
pub(super) struct Path {
    pub(super) family: Family,
    pub(super) lan: String,
    pub(super) leg: String,
    pub(super) gateway_inside: Address,
    pub(super) gateway_outside: Address,
    pub(super) client: IpAddr,
    pub(super) server: IpAddr,
}

impl Family {
    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn flag(self) -> &'static str {
        ["-4", "-6"][self as usize]
    }
}

/// Reads the gateway that this process runs on.
pub(super) fn read(config: &Config, from: Option<&str>) -> anyhow::Result<Plan> {
    let interfaces = interfaces()?;
    let legs: Vec<String> = config.legs.values().map(|leg| leg.interface.as_str().to_owned()).collect();
    for leg in &legs {
        ensure!(
            find(&interfaces, leg).is_some(),
            "this host has no interface {leg}, which the configuration names"
        );
    }
    let lan = lan(&interfaces, &legs, from)?;
    let list = |what: &str| -> anyhow::Result<[String; 2]> {
        Ok([run("ip", &words(&format!("-4 {what}")))?, run("ip", &words(&format!("-6 {what}")))?])
    };
    let mut notes = Vec::new();
    let vrfs = interfaces.iter().filter(|interface| interface.linkinfo.info_kind == "vrf");
    notes.extend(vrfs.map(|vrf| format!("{} is a VRF, which is not copied", vrf.ifname)));
    Ok(Plan {
        routes: list("-o route show table all")?,
        rules: list("rule show")?,
        settings: settings(),
        firewall: Firewall::read(&mut notes)?,
        notes,
        interfaces,
        lan,
        legs,
    })
}

impl Plan {
    /// Interfaces without the loopback interface.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| interface.ifname != "lo")
    }

    /// The way of a connection of this family, or why there is none.
    pub(super) fn path(&self, family: Family) -> Result<Path, String> {
        let address = |name: &str| {
            let interface = find(&self.interfaces, name).ok_or_else(|| format!("there is no {name}"))?;
            interface.address(family).ok_or_else(|| format!("{name} has no {family} address"))
        };
        let gateway_inside = address(&self.lan)?;
        let outside = self.legs.iter().find_map(|leg| Some((leg, address(leg).ok()?)));
        let (leg, gateway_outside) = outside.ok_or_else(|| format!("no leg has an {family} address"))?;
        let client =
            gateway_inside.neighbour().ok_or_else(|| format!("{} has no room for a client", self.lan))?;
        let server = SERVERS[family as usize].parse().expect("it is an address");
        let (lan, leg) = (self.lan.clone(), leg.clone());
        Ok(Path { family, lan, leg, gateway_inside, gateway_outside, client, server })
    }
}

impl Interface {
    fn address(&self, family: Family) -> Option<Address> {
        let is_of = |address: &&Address| {
            let local = address.local.is_some_and(|local| local.is_ipv4() == (family == Family::V4));
            local && address.scope != "link" && address.scope != "host"
        };
        self.addr_info.iter().find(is_of).cloned()
    }

    pub(super) fn is_bridge(&self) -> bool {
        self.linkinfo.info_kind == "bridge"
    }

    fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }
}

impl Address {
    /// Another address of the same network, the peer of a point-to-point link.
    pub(super) fn neighbour(&self) -> Option<IpAddr> {
        if self.address.is_some() {
            return self.address;
        }
        let flipped = |bits: u32| if bits >= 2 { 0b11 } else { 0b1 };
        let other = match self.local? {
            IpAddr::V4(local) => {
                let bits = 32 - u32::from(self.prefixlen);
                let other = u32::from(local) ^ flipped(bits);
                let host =
                    |address: u32| address & (u32::MAX.checked_shl(bits).map_or(u32::MAX, |mask| !mask));
                // Neither the network's own address nor its broadcast address.
                let is_host = bits < 2 || (host(other) != 0 && host(other) != host(u32::MAX));
                IpAddr::V4(if is_host { other } else { u32::from(local) ^ 0b1 }.into())
            }
            IpAddr::V6(local) => {
                let bits = 128 - u32::from(self.prefixlen);
                IpAddr::V6((u128::from(local) ^ u128::from(flipped(bits))).into())
            }
        };
        let bits = if other.is_ipv4() { 32 } else { 128 } - self.prefixlen;
        (bits > 0).then_some(other)
    }
}

impl Firewall {
    fn read(notes: &mut Vec<String>) -> anyhow::Result<Self> {
        let mut firewall = Self::default();
        for (at, program) in ["iptables-save", "ip6tables-save"].into_iter().enumerate() {
            // Without the program there is nothing of it.
            firewall.iptables[at] = run(program, &[]).unwrap_or_default();
        }
        let is_legacy = |text: &String| text.contains("# Generated by") && !text.contains("(nf_tables)");
        if has_legacy_rules() && !firewall.iptables.iter().any(is_legacy) {
            notes.push(
                "the rules of iptables-legacy are not copied: iptables-save does not show them".to_owned(),
            );
        }
        for line in run("nft", &["list", "tables"])?.lines() {
            let Some(name) = line.strip_prefix("table ") else { continue };
            let Some((family, short)) = name.split_once(' ') else { continue };
            let at = usize::from(family == "ip6");
            let is_saved = firewall.iptables[at].lines().any(|line| line == format!("*{short}"));
            let of_iptables = ["ip", "ip6"].contains(&family) && IPTABLES.contains(&short) && is_saved;
            if ours::is_table(name) || of_iptables {
                continue;
            }
            let text = run("nft", &["-s", "list", "table", family, short])?;
            firewall.tables.insert(name.to_owned(), without_owner(&text));
        }
        Ok(firewall)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["IPv4", "IPv6"][*self as usize])
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} to {} behind {}", self.client, self.lan, self.server, self.leg)
    }
}

fn interfaces() -> anyhow::Result<Vec<Interface>> {
    let text = run("ip", &["-j", "-d", "address", "show"])?;
    serde_json::from_str(&text).context("cannot read what `ip -j -d address show` says")
}

fn find<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    interfaces.iter().find(|interface| interface.ifname == name)
}

/// The LAN's interface: the one that is asked for, or the first that could be.
fn lan(interfaces: &[Interface], legs: &[String], from: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = from {
        ensure!(find(interfaces, name).is_some(), "this host has no interface {name}");
        ensure!(legs.iter().all(|leg| leg != name), "{name} is a satellite leg, not the LAN's interface");
        return Ok(name.to_owned());
    }
    let has_address =
        |interface: &&Interface| Family::BOTH.iter().any(|family| interface.address(*family).is_some());
    let candidate = |interface: &&Interface| {
        let is_ours = interface.ifname == "lo" || legs.contains(&interface.ifname);
        !is_ours && interface.is_up() && interface.master.is_none() && has_address(interface)
    };
    match interfaces.iter().find(candidate) {
        Some(interface) => Ok(interface.ifname.clone()),
        None => bail!("no interface besides the legs has an address; name the LAN's by --from INTERFACE"),
    }
}

/// All settings by their path below `/proc/sys/net`.
fn settings() -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for folder in SETTINGS {
        collect(FilePath::new("/proc/sys/net").join(folder).as_path(), &mut settings);
    }
    settings
}

fn collect(folder: &FilePath, settings: &mut BTreeMap<String, String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            // Neighbours and their timers decide nothing about connections.
            if path.file_name().is_some_and(|name| name != "neigh") {
                collect(&path, settings);
            }
        } else if !path.file_name().is_some_and(is_secret)
            && let Ok(value) = std::fs::read_to_string(&path)
        {
            let key = path.strip_prefix("/proc/sys/net").unwrap_or(&path);
            settings.insert(key.to_string_lossy().into_owned(), value.trim().to_owned());
        }
    }
}

fn is_secret(name: &OsStr) -> bool {
    SECRETS.iter().any(|secret| name == *secret)
}

/// Whether tables of the older iptables are loaded, which nft does not list.
fn has_legacy_rules() -> bool {
    let names = |file| std::fs::read_to_string(file).is_ok_and(|names| !names.trim().is_empty());
    names("/proc/net/ip_tables_names") || names("/proc/net/ip6_tables_names")
}

/// A table's text without the flags that bind it to the program that made it.
fn without_owner(table: &str) -> String {
    let line = |line: &str| match line.strip_prefix("\tflags ") {
        Some(flags) => {
            let flags: Vec<&str> =
                flags.split(',').map(str::trim).filter(|flag| !OWNED.contains(flag)).collect();
            if flags.is_empty() { String::new() } else { format!("\tflags {}\n", flags.join(", ")) }
        }
        None => format!("{line}\n"),
    };
    table.lines().map(line).collect()
}

pub(super) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// What a program prints, which must succeed.
fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(find_tool(program))
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let line = || format!("{program} {}", arguments.join(" "));
    ensure!(output.status.success(), "{}: {}", line(), String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(local: &str, prefixlen: u8) -> Option<String> {
        let address = Address { local: local.parse().ok(), address: None, prefixlen, scope: "global".into() };
        address.neighbour().map(|neighbour| neighbour.to_string())
    }

    #[test]
    fn a_client_gets_another_address_of_the_lan_that_is_neither_its_first_nor_its_last() {
        assert_eq!(neighbour("10.0.0.1", 24).unwrap(), "10.0.0.2");
        assert_eq!(neighbour("10.0.0.254", 24).unwrap(), "10.0.0.253");
        assert_eq!(neighbour("10.0.0.3", 24).unwrap(), "10.0.0.2");
        assert_eq!(neighbour("10.0.0.253", 30).unwrap(), "10.0.0.254");
        assert_eq!(neighbour("10.0.0.4", 31).unwrap(), "10.0.0.5");
        assert_eq!(neighbour("10.0.0.4", 32), None);
        assert_eq!(neighbour("fd00::1", 64).unwrap(), "fd00::2");
        assert_eq!(neighbour("fd00::1", 128), None);
    }

    #[test]
    fn a_table_that_belongs_to_a_program_is_copied_as_anybodys() {
        let table =
            "table inet f { # progname x\n\tflags owner,persist\n\tset s {\n\t\tflags timeout\n\t}\n}\n";
        assert_eq!(
            without_owner(table),
            "table inet f { # progname x\n\tset s {\n\t\tflags timeout\n\t}\n}\n"
        );
        assert_eq!(without_owner("\tflags dormant,owner\n"), "\tflags dormant\n");
    }

    #[test]
    fn no_secret_is_among_the_settings() {
        let settings = settings();
        assert!(settings.contains_key("ipv4/ip_forward"), "{settings:?}");
        assert!(settings.keys().all(|key| !SECRETS.iter().any(|secret| key.ends_with(secret))));
    }

    #[test]
    fn an_interface_is_read_as_ip_describes_it() {
        let text = r#"[{"ifindex":2,"ifname":"lan0","flags":["BROADCAST","UP"],"linkinfo":{"info_kind":"bridge"},
            "addr_info":[{"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"},
            {"family":"inet6","local":"fd00::1","prefixlen":64,"scope":"global"},
            {"family":"inet","local":"10.0.0.1","prefixlen":24,"scope":"global"}]}]"#;
        let interfaces: Vec<Interface> = serde_json::from_str(text).unwrap();
        let interface = &interfaces[0];
        assert!(interface.is_bridge() && interface.is_up());
        let address = |family| interface.address(family).unwrap().local.unwrap().to_string();
        assert_eq!(Family::BOTH.map(address), ["10.0.0.1", "fd00::1"]);
        assert_eq!(lan(&interfaces, &[], None).unwrap(), "lan0");
        assert!(lan(&interfaces, &["lan0".into()], None).is_err());
    }
}

//! Checks of the host: what it must have, and settings that would break intercepted connections.

use std::fs;

use bentpipe_kernel::congestion;
use bentpipe_kernel::feature::Feature;
use bentpipe_kernel::host::{self as kernel, Check, Step};
use bentpipe_kernel::nftables::NfTables;

use crate::config::{Config, SatelliteLeg};
use crate::connect::listener;
use crate::error::Error;
use crate::intercept;
use crate::types::leg_pair::leg_pairs;

mod families;
mod firewall;
mod interfaces;
mod routes;

/// A sysctl, its harmful value, and the effect.
struct Trap {
    key: &'static str,
    harmful: &'static str,
    effect: &'static str,
    mend: &'static str,
}

/// What harms packets that come back by a device of ours, which does not lead to their source. The effective
/// filter is the stricter one of `all` and the device's own.
const TUN_DIVERT_TRAP: Trap = Trap {
    key: "net.ipv4.conf.all.rp_filter",
    harmful: "1",
    effect: "the reverse path filter drops packets of snooped flows when they come back from the daemon",
    mend: "2",
};

/// Fails if this host cannot serve the configuration as it is set.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    let lacking: Vec<String> =
        requirements(config).iter().filter(|check| !check.ok).map(Check::to_string).collect();
    if lacking.is_empty() { Ok(()) } else { Err(Error::Refused(lacking.join("; "))) }
}

/// What keeps every connection from the daemon although the daemon works: a setting of this host, and the
/// remedy.
pub fn obstacle() -> Option<String> {
    families::forwards_nothing()
}

/// The names of the interfaces in this network namespace, on one line.
fn interface_list() -> String {
    // Unlike /sys/class/net, this shows the namespace of the caller, not that of the mount.
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    interfaces_in(&table).join(", ")
}

/// A line for each leg whose interface does not exist: it is taken up when it comes.
pub(crate) fn waiting_legs(config: &Config) -> Vec<String> {
    let existing = interface_list();
    let is_missing = |interface: &str| existing.split(", ").all(|name| name != interface);
    let missing = config.legs.iter().filter(|(_, leg)| is_missing(leg.interface.as_str()));
    missing.map(|(name, leg)| waiting_leg(name, leg.interface.as_str())).collect()
}

/// Says that the interface of this leg does not exist, and which do.
pub(crate) fn waiting_leg(leg: &str, interface: &str) -> String {
    format!("leg {leg}: waiting for interface {interface}; this host has {}", interface_list())
}

/// Whether this host tracks connections in the calling thread's network namespace: because a rule asks for
/// their state, or translates addresses. Rules of ours do not count.
pub(crate) fn tracks_connections() -> bool {
    has_tracked_connections() || NfTables::open().is_ok_and(|mut tables| has_tracking_rules(&mut tables))
}

/// Whether connections are tracked already, whoever wants it.
pub(crate) fn has_tracked_connections() -> bool {
    let count = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
    count.is_ok_and(|count| count.trim() != "0")
}

/// Whether somebody's rules will have connections tracked from the first one on.
pub(crate) fn has_tracking_rules(tables: &mut NfTables) -> bool {
    tables.has_tracking_rules(intercept::TABLE).unwrap_or(false)
}

/// One line for each setting that harms. Nothing is changed: the host belongs to its operator.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    settings(config).iter().filter(|check| !check.ok || check.warning).map(Check::to_string).collect()
}

/// What a start needs of the host, and refuses without.
pub fn requirements(config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    if config.wants_snoop() {
        checks.push(TUN_DIVERT_TRAP.check());
    }
    checks
}

/// Whether the ports of the listeners are free. A start refuses otherwise; while a daemon runs, they are its.
pub fn ports(config: &Config) -> Check {
    let pairs = leg_pairs(config.legs.len(), &config.weights(), config.proxy.port.get());
    let addresses = pairs
        .iter()
        .flat_map(|pair| listener::families().into_iter().map(|family| listener::address(family, pair.port)));
    let taken = addresses.into_iter().find_map(|address| listener::check_free(address).err());
    match (taken, pairs.first().zip(pairs.last())) {
        (Some(error), _) => {
            let said = error.to_string();
            let (found, fix) = said.split_once("; ").unwrap_or((&said, "choose another proxy.port"));
            Check::fail("ports", found, fix)
        }
        (None, Some((first, last))) => {
            Check::pass("ports", format!("{} to {} are free", first.port, last.port))
        }
        (None, None) => Check::pass("ports", "none is needed"),
    }
}

/// Settings of the host without which what the configuration asks for does not work. A start warns of them.
pub fn settings(config: &Config) -> Vec<Check> {
    let mut checks = families::forwarding();
    checks.extend(config.legs.values().any(|leg| leg.fast_open || leg.far_box).then(kernel::fast_open));
    checks.extend(weights(config));
    checks
}

/// What else of the host decides whether traffic flows: interfaces, routes, and the rules of others. To look
/// at it takes time, and so a start does not.
pub fn surroundings(config: &Config) -> Vec<Check> {
    let mut checks = interfaces::checks(config);
    checks.extend(routes::checks(config));
    checks.extend(firewall::checks());
    checks
}

/// Whether the legs have the congestion controls that they are to have. A start warns where one does not.
pub fn congestion_controls(config: &Config) -> Vec<Check> {
    let satellites = config.legs.iter().map(|(name, leg)| (name.as_str(), leg.congestion(), leg.rate));
    let terrestrial = config.terrestrial.congestion.as_ref().map(|name| ("terrestrial", name.as_str(), None));
    let all = satellites.chain(terrestrial);
    all.map(|(leg, wanted, rate)| kernel::congestion_control(wanted, leg, rate)).collect()
}

/// The features that the configuration uses.
pub fn features(config: &Config) -> Vec<Feature> {
    let terrestrial = config.terrestrial.congestion.as_ref().map(|name| name.as_str());
    let used: Vec<&str> = config.legs.values().map(SatelliteLeg::congestion).chain(terrestrial).collect();
    let uses = |names: &[&str]| used.iter().any(|name| names.contains(name));
    let (xcp, hybla) = (uses(&[congestion::XCP, congestion::P_XCP]), uses(&[congestion::HYBLA]));
    let patient = config.legs.values().map(|leg| leg.restart_within);
    let is_patient = patient.chain([config.terrestrial.restart_within]).any(|time| time.is_some());
    [
        // XCP's sockets have it where the other end does not take XCP.
        (Feature::Hybla, hybla || xcp),
        (Feature::Explicit, uses(&[congestion::EXPLICIT])),
        (Feature::Xcp, xcp),
        (Feature::XcpOptions, xcp),
        (Feature::XcpRouter, xcp),
        (Feature::RoomInAcks, xcp),
        (Feature::RtoMax, is_patient),
        (Feature::Divert, config.wants_protect()),
    ]
    .into_iter()
    .filter_map(|(feature, is_used)| is_used.then_some(feature))
    .collect()
}

/// Weights are for legs that share their capacity out.
fn weights(config: &Config) -> Option<Check> {
    let shares = |leg: &SatelliteLeg| [congestion::EXPLICIT, congestion::PACED].contains(&leg.congestion());
    let shares = config.legs.values().any(shares);
    let given = !config.weights().is_empty();
    (given && !shares).then(|| {
        Check::warn(
            "weights",
            "rules give weights, but no leg shares its capacity out by them",
            "set congestion = \"explicit\" for a leg, or leave the weights out",
        )
    })
}

impl Trap {
    fn check(&self) -> Check {
        let Self { key, harmful, effect, mend } = self;
        match is_set(self) {
            true => {
                Check::mendable(*key, format!("{key} = {harmful}: {effect}"), vec![Step::sysctl(*key, mend)])
            }
            false => Check::pass(*key, format!("not {harmful}")),
        }
    }
}

fn is_set(trap: &Trap) -> bool {
    let path = format!("/proc/sys/{}", trap.key.replace('.', "/"));
    fs::read_to_string(path).is_ok_and(|value| value.trim() == trap.harmful)
}

/// The names in a table such as /proc/net/dev: two lines of heading, then `name: numbers`.
fn interfaces_in(table: &str) -> Vec<&str> {
    table.lines().skip(2).filter_map(|line| line.rsplit_once(':')).map(|(name, _)| name.trim()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_from_the_kernels_table() {
        let table = "Inter-| Receive\n face |bytes\n    lo: 1 2 3\n eth0.5: 4 5 6\n";
        assert_eq!(interfaces_in(table), ["lo", "eth0.5"]);
    }

    #[test]
    fn a_missing_interface_is_named_with_those_that_exist() {
        let legs = "[legs.geo]\ninterface = \"nosuch0\"\n";
        let waiting = waiting_legs(&Config::parse("x", legs).unwrap());
        assert!(
            waiting.len() == 1
                && waiting[0].starts_with("leg geo: waiting for interface nosuch0; this host has ")
                && waiting[0].contains("lo"),
            "{waiting:?}"
        );
    }

    #[test]
    fn weights_that_no_leg_shares_by_are_told() {
        let found = |congestion: &str, action: &str| {
            let leg = format!(
                "[legs.geo]\ninterface = \"sat0\"\nrate = \"1Mbit/s\"\ncongestion = \"{congestion}\"\n"
            );
            weights(&Config::parse("x", &format!("{leg}[[rules]]\n{action}\n")).unwrap())
        };
        let check = found("hybla", "action = \"split\"\nweight = 4").unwrap();
        assert!(check.warning && check.to_string().contains("congestion = \"explicit\""), "{check}");
        assert!(found("p-xcp", "action = \"split\"\nweight = 4").is_some(), "XCP shares evenly");
        assert_eq!(found("explicit", "action = \"split\"\nweight = 4"), None);
        assert_eq!(found("paced", "action = \"split\"\nweight = 4"), None);
        assert_eq!(found("hybla", "action = \"split\"\nport = 80"), None);
    }

    #[test]
    fn only_the_features_of_the_legs_are_used() {
        let of = |lines: &str| {
            features(&Config::parse("x", &format!("[legs.geo]\ninterface = \"sat0\"\n{lines}\n")).unwrap())
        };
        assert_eq!(of(""), [Feature::Explicit]);
        assert_eq!(of("congestion = \"hybla\""), [Feature::Hybla]);
        assert_eq!(of("rate = \"1M\"\nrestart_within = \"1s\""), [Feature::Explicit, Feature::RtoMax]);
        assert_eq!(of("congestion = \"bbr\""), []);
        assert!(of("rate = \"1M\"\ncongestion = \"xcp\"").contains(&Feature::XcpRouter));
    }
}

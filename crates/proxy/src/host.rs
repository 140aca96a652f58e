//! Checks of the host: what it must have, and settings that would break intercepted connections.

use std::fs;

use bentpipe_kernel::congestion;
use bentpipe_kernel::nftables::NfTables;

use crate::config::Config;
use crate::error::Error;
use crate::intercept;

/// A sysctl, its harmful value, and the effect.
struct Trap {
    key: &'static str,
    harmful: &'static str,
    effect: &'static str,
    mend: &'static str,
}

const TRAPS: [Trap; 2] = [
    Trap {
        key: "net.ipv4.ip_forward",
        harmful: "0",
        effect: "IPv4 packets that are not split TCP are not forwarded, nor is anything when this daemon is dead",
        mend: "1",
    },
    Trap {
        key: "net.ipv6.conf.all.forwarding",
        harmful: "0",
        effect: "IPv6 packets that are not split TCP are not forwarded, nor is anything when this daemon is dead",
        mend: "1",
    },
];

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
    check_interfaces(config)?;
    // Each connection would fail.
    if config.wants_snoop() && is_set(&TUN_DIVERT_TRAP) {
        return Err(Error::Refused(TUN_DIVERT_TRAP.warning()));
    }
    Ok(())
}

/// Fails unless each leg's interface exists in this network namespace; the error lists those that do.
fn check_interfaces(config: &Config) -> Result<(), Error> {
    // Unlike /sys/class/net, this shows the namespace of the caller, not that of the mount.
    let table =
        fs::read_to_string("/proc/thread-self/net/dev").map_err(Error::system("list the interfaces"))?;
    let existing = interfaces_in(&table);
    for (name, leg) in &config.legs {
        if !existing.contains(&leg.interface.as_str()) {
            return Err(Error::Refused(format!(
                "leg {name}: there is no network interface \"{}\"; this host has {}",
                leg.interface,
                existing.join(", ")
            )));
        }
    }
    Ok(())
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
    let traps = TRAPS.iter().filter(|trap| is_set(trap)).map(Trap::warning);
    traps.chain(fast_open_warning(config)).chain(weights_warning(config)).collect()
}

/// A leg with Fast Open needs both of its roles.
fn fast_open_warning(config: &Config) -> Option<String> {
    let (name, _) = config.legs.iter().find(|(_, leg)| leg.fast_open)?;
    let check = bentpipe_kernel::host::fast_open();
    check.fix.map(|fix| format!("{}, but leg {name} has fast_open; set it with: {fix}", check.found))
}

/// Weights are for legs that share their capacity out.
fn weights_warning(config: &Config) -> Option<String> {
    let shares = config.legs.values().any(|leg| leg.congestion() == congestion::EXPLICIT);
    let given = !config.weights().is_empty();
    (given && !shares).then(|| {
        "rules give weights, but no leg shares its capacity out by them; set congestion = \"explicit\" for a leg, or leave \
         the weights out"
            .to_owned()
    })
}

impl Trap {
    fn warning(&self) -> String {
        let Self { key, harmful, effect, mend } = self;
        format!("{key} = {harmful}: {effect}; set it with: sysctl -w {key}={mend}")
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
        let config = Config::parse("x", "[legs.geo]\ninterface = \"nosuch0\"").unwrap();
        let error = check_interfaces(&config).unwrap_err().to_string();
        assert!(
            error.starts_with("leg geo: there is no network interface \"nosuch0\"; this host has "),
            "{error}"
        );
        assert!(error.contains("lo"), "{error}");
    }

    #[test]
    fn weights_that_no_leg_shares_by_are_told() {
        let warning = |congestion: &str, action: &str| {
            let leg = format!(
                "[legs.geo]\ninterface = \"lo\"\nrate = \"1Mbit/s\"\ncongestion = \"{congestion}\"\n"
            );
            weights_warning(&Config::parse("x", &format!("{leg}[[rules]]\n{action}\n")).unwrap())
        };
        assert!(
            warning("hybla", "action = \"split\"\nweight = 4").unwrap().contains("congestion = \"explicit\"")
        );
        assert!(warning("p-xcp", "action = \"split\"\nweight = 4").is_some(), "XCP shares evenly");
        assert_eq!(warning("explicit", "action = \"split\"\nweight = 4"), None);
        assert_eq!(warning("hybla", "action = \"split\"\nport = 80"), None);
    }

    #[test]
    fn a_warning_ends_with_the_line_that_mends_it() {
        for trap in TRAPS.iter().chain([&TUN_DIVERT_TRAP]) {
            let line = format!("sysctl -w {}={}", trap.key, trap.mend);
            assert!(trap.warning().ends_with(&line));
        }
    }
}

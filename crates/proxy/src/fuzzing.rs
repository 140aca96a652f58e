//! The bodies of the fuzz targets `syn`, `snapshot` and `config`; see `fuzz/README.md`.

use std::os::fd::{AsFd, OwnedFd};

use crate::config::Config;
use crate::deferred_accept::{Syn, is_between_hosts};
use crate::flow::{FlowState, RouteNames};
use crate::intercept::ruleset;
use crate::telemetry::CounterSnapshot;
use crate::types::Draining;
use crate::types::leg_pair::leg_pairs;
use crate::upgrade;
use crate::worker::Listener;
use crate::{daemon, snapshot};

/// A packet whose copy the rules give to deferred accept.
///
/// # Panics
/// What is taken for a SYN is none between two hosts.
pub fn syn(data: &[u8]) {
    let is_between_hosts = is_between_hosts(data);
    if let Some(syn) = Syn::parse(data) {
        assert!(is_between_hosts && data.len() >= 40);
        assert!(syn.client.port() != 0 && syn.server.port() != 0 && syn.dscp < 64);
        assert_eq!(syn.client.is_ipv4(), syn.server.is_ipv4());
    }
}

/// The file of a snapshot, as a predecessor sends it, with some descriptors beside it.
///
/// # Panics
/// Only if reading it does.
pub fn snapshot(data: &[u8]) {
    let null = || std::fs::File::open("/dev/null").map(OwnedFd::from);
    let descriptors = null().and_then(|one| Ok(vec![one.as_fd().try_clone_to_owned()?, one]));
    let Some(mut snapshot) = upgrade::read_bytes(data, descriptors.unwrap_or_default()) else { return };
    let names: Vec<String> = snapshot.sections().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let Some(section) = snapshot.remove(&name) else { continue };
        let _ = match &*name {
            "flows" => section.read::<Vec<(RouteNames, FlowState)>>().map(drop),
            "listeners" => section.read::<Vec<(usize, Listener<RouteNames>)>>().map(drop),
            "counters" => section.read::<CounterSnapshot>().map(drop),
            "draining" => section.read::<Option<Draining>>().map(drop),
            "program" => section.read::<(Vec<(String, snapshot::Fd)>, serde_json::Value)>().map(drop),
            _ => section.read::<snapshot::Section>().map(drop),
        };
    }
}

/// A configuration, and the rules that come of one that is accepted.
///
/// # Panics
/// The rules are no text that `nft` could read as they were meant: a quote or a brace that is open, a control
/// character, or something outside of quotes that no rule has.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse("x", text) {
        Err(error) => assert!(error.to_string().lines().all(|line| line.starts_with('x')), "{error}"),
        Ok(config) => {
            let interfaces = config.interfaces();
            let pairs = leg_pairs(config.legs.len(), &config.weights(), config.proxy.port.get());
            let protected = config.protected_interfaces();
            check_rules(&ruleset(&daemon::plan(&config, &interfaces, &pairs, &[], &protected)));
        }
    }
}

fn check_rules(rules: &str) {
    let mut depth = 0i32;
    for line in rules.lines() {
        let mut parts = line.split('"');
        let outside = parts.clone().step_by(2);
        for c in outside.flat_map(str::chars) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                c => assert!(
                    c.is_ascii_alphanumeric() || "\t .,:;/@!=&|()[]<>_-+*".contains(c),
                    "{c:?} in {line}"
                ),
            }
            assert!(depth >= 0, "{line}");
        }
        assert!(parts.clone().count() % 2 == 1, "a quote is open: {line}");
        assert!(parts.all(|part| !part.contains(|c: char| c.is_control() && c != '\t')), "{line}");
    }
    assert_eq!(depth, 0, "{rules}");
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_corpora_break_nothing() {
        replay::replay("syn", syn);
        replay::replay("snapshot", super::snapshot);
        replay::replay("config", config);
    }

    #[test]
    #[should_panic = "a quote is open"]
    fn rules_with_an_open_quote_are_found() {
        check_rules("chain x {\n\tiifname \"sat0 accept\n}\n");
    }
}

//! What the limits of a configuration come to on this host.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::config::{Config, Count, Limits};
use crate::flow::Patience;
use crate::gate::Ceilings;
use crate::pool;
use crate::worker::Allowance;

/// A connection's descriptors: one for each side.
const DESCRIPTORS_EACH: usize = 2;
/// Descriptors for listeners, rules, programs that are run, and log files.
const RESERVED: usize = 64;
/// Where the memory's size cannot be read.
const SOME_MEMORY: u64 = 1 << 30;

/// The gate's numbers for this configuration.
pub(crate) fn ceilings(config: &Config) -> Ceilings {
    let Limits { connections, connections_per_client, buffered, at_limit, .. } = config.limits;
    let descriptors = connections_for(descriptor_limit(), config.proxy.workers.get());
    Ceilings {
        // Below the most that there are descriptors for, so that those already answered can be served.
        connections: connections.map_or(descriptors - descriptors / 16, Count::get),
        per_client: connections_per_client.map(Count::get),
        connecting: config.limits.connecting(),
        buffered: buffered.map_or_else(|| memory() / 4, |bytes| bytes.get()),
        descriptors,
        at_limit,
    }
}

/// What a flow may take under this configuration.
pub(crate) fn allowance(config: &Config) -> Allowance {
    let (limits, outage) = (&config.limits, config.longest_outage());
    Allowance {
        patience: Patience { idle: limits.idle(outage), half_closed: limits.half_closed(outage) },
        held: limits.share().map_or(usize::MAX, |share| usize::try_from(share.get()).unwrap_or(usize::MAX)),
    }
}

/// Connections that a process with this many descriptors can hold; the workers' idle pipes need some as well, and where
/// there are few of those they do without.
fn connections_for(descriptors: usize, workers: usize) -> usize {
    let pipes = 2 * pool::KEPT * workers;
    let reserved = (RESERVED + pipes).min(descriptors / 4);
    ((descriptors - reserved) / DESCRIPTORS_EACH).max(1)
}

/// `RLIMIT_NOFILE` of this process.
fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX >> 1, |limit| usize::try_from(limit).unwrap_or(usize::MAX >> 1))
}

/// The machine's memory, bytes.
fn memory() -> u64 {
    total_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).unwrap_or(SOME_MEMORY)
}

/// `MemTotal` of a text such as /proc/meminfo (proc(5)), bytes.
fn total_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_descriptors_make_a_connection_and_some_are_kept_back() {
        assert_eq!(connections_for(20_000, 2), (20_000 - 64 - 256) / 2);
        assert_eq!(connections_for(1024, 4), 384, "a quarter at most is kept back");
        assert_eq!(connections_for(3, 1), 1);
    }

    #[test]
    fn the_machines_memory_is_read_from_the_kernels_table() {
        assert_eq!(total_of("MemTotal:       24689104 kB\nMemFree: 1 kB\n"), Some(24_689_104 * 1024));
        assert_eq!(total_of("nothing"), None);
    }

    #[test]
    fn without_a_limit_there_is_room_for_latecomers_below_the_descriptors() {
        let config = Config::parse("x", "[legs.a]\ninterface = \"sat0\"").unwrap();
        let ceilings = ceilings(&config);
        let Ceilings { connections, descriptors, .. } = ceilings;
        assert!(connections < descriptors && connections > descriptors / 10 * 9, "{ceilings:?}");
    }
}

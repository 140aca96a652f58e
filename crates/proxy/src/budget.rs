//! The limits of a configuration on this host.

use std::fs;

use bentpipe_kernel::limits;
use rustix::param::page_size;

use crate::admission::AdmissionLimits;
use crate::config::{Config, Count, Limits};
use crate::flow::Patience;
use crate::relay::pool;
use crate::worker::FlowLimits;

/// A connection's descriptors: one for each side.
const DESCRIPTORS_EACH: usize = 2;
/// Descriptors for listeners, rules, programs that are run, and log files.
const RESERVED: usize = 64;
/// Where the memory's size cannot be read.
const SOME_MEMORY: u64 = 1 << 30;

/// Connections that a process with this many descriptors can hold; the workers' idle pipes need some as well,
/// and where there are few of those they do without.
pub fn connections_for(descriptors: usize, workers: usize) -> usize {
    let reserved = reserved(workers).min(descriptors / 4);
    ((descriptors - reserved) / DESCRIPTORS_EACH).max(1)
}

/// Descriptors that a process needs to hold this many connections.
pub fn descriptors_for(connections: usize, workers: usize) -> usize {
    let sockets = connections.saturating_mul(DESCRIPTORS_EACH);
    sockets.saturating_add(reserved(workers).min(sockets.div_ceil(3)))
}

/// `limits.connections` where it is left out: below the most that there are descriptors for, so that
/// connections that were answered before the rules knew of the limit can be served.
pub fn default_connections(descriptors: usize, workers: usize) -> usize {
    let most = connections_for(descriptors, workers);
    most - most / 16
}

/// `limits.buffered` where it is left out, bytes: a quarter of the machine's memory, or where the kernel's
/// TCP begins to squeeze all sockets if that is less, because a limit above it would never be reached.
pub fn default_buffered() -> u64 {
    let quarter = memory() / 4;
    tcp_pressure().map_or(quarter, |pressure| quarter.min(pressure))
}

/// The machine's memory, bytes.
pub fn memory() -> u64 {
    total_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).unwrap_or(SOME_MEMORY)
}

/// Where the kernel's TCP begins to squeeze all sockets, bytes: the second number of `net.ipv4.tcp_mem`
/// (ip-sysctl).
pub fn tcp_pressure() -> Option<u64> {
    let pages = pressure_of(&fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?)?;
    Some(pages.saturating_mul(page_size() as u64))
}

/// The limits of admission control for this configuration.
pub(crate) fn admission_limits(config: &Config) -> AdmissionLimits {
    let Limits { connections, connections_per_client, buffered, at_limit, .. } = config.limits;
    let (available, workers) = (descriptor_limit(), config.proxy.workers.get());
    AdmissionLimits {
        connections: connections.map_or_else(|| default_connections(available, workers), Count::get),
        per_client: connections_per_client.map(Count::get),
        connecting: config.limits.connecting(),
        buffered: buffered.map_or_else(default_buffered, |bytes| bytes.get()),
        descriptors: connections_for(available, workers),
        at_limit,
    }
}

/// The limits of a flow under this configuration.
pub(crate) fn flow_limits(config: &Config) -> FlowLimits {
    let (limits, outage) = (&config.limits, config.longest_outage());
    FlowLimits {
        patience: Patience { idle: limits.idle(outage), half_closed: limits.half_closed(outage) },
        held: limits.share().map_or(usize::MAX, |share| usize::try_from(share.get()).unwrap_or(usize::MAX)),
    }
}

/// Descriptors that are no connection's.
fn reserved(workers: usize) -> usize {
    RESERVED + 2 * pool::KEPT * workers
}

/// `RLIMIT_NOFILE` of this process.
fn descriptor_limit() -> usize {
    usize::try_from(limits::descriptor_limit().soft).unwrap_or(usize::MAX)
}

/// `MemTotal` of a text such as /proc/meminfo (proc(5)), bytes.
fn total_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// The second of the three numbers of `net.ipv4.tcp_mem`, pages.
fn pressure_of(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_descriptors_make_a_connection_and_some_are_kept_back() {
        assert_eq!(connections_for(20_000, 2), (20_000 - 64 - 256) / 2);
        assert_eq!(connections_for(1024, 4), 384, "a quarter at most is kept back");
        assert_eq!(connections_for(3, 1), 1);
    }

    #[test]
    fn by_default_twenty_thousand_descriptors_let_nine_thousand_connections_through() {
        // The default has at most four workers.
        for workers in 1..=4 {
            assert!(default_connections(20_000, workers) >= 9_000, "{workers} workers");
        }
    }

    #[test]
    fn by_default_buffers_stay_below_where_the_kernel_squeezes_them() {
        assert_eq!(pressure_of("287901\t383869\t575802\n"), Some(383_869));
        assert_eq!(pressure_of(""), None);
        let config = Config::parse("x", "[legs.a]\ninterface = \"sat0\"").unwrap();
        assert!(admission_limits(&config).buffered <= tcp_pressure().unwrap().min(memory() / 4));
    }

    #[test]
    fn the_machines_memory_is_read_from_the_kernels_table() {
        assert_eq!(total_of("MemTotal:       24689104 kB\nMemFree: 1 kB\n"), Some(24_689_104 * 1024));
        assert_eq!(total_of("nothing"), None);
    }

    #[test]
    fn without_a_limit_there_are_descriptors_for_accept_queue_slack() {
        let config = Config::parse("x", "[legs.a]\ninterface = \"sat0\"").unwrap();
        let admission_limits = admission_limits(&config);
        let AdmissionLimits { connections, descriptors, .. } = admission_limits;
        assert!(connections < descriptors && connections > descriptors / 10 * 9, "{admission_limits:?}");
    }
    proptest! {
        #[test]
        fn the_descriptors_needed_are_just_enough(connections in 1usize..10_000_000, workers in 1usize..=256) {
            let needed = descriptors_for(connections, workers);
            prop_assert!(connections_for(needed, workers) >= connections);
            // One is left over where the number is odd, and rounding may leave another.
            prop_assert!(connections == 1 || connections_for(needed - 3, workers) < connections);
        }
    }
}

//! Checks whether this host can provide what `[limits]` allows: descriptors, memory, and buffers for the
//! fastest leg.

use std::fs;

use bentpipe_kernel::host::Check;
use bentpipe_kernel::limits::descriptor_limit;
use bentpipe_proxy::budget::{self, connections_for, default_connections, descriptors_for};
use bentpipe_proxy::config::{Limits, RelayKind};
use bentpipe_proxy::{Config, config::SatelliteLeg};
use bentpipe_units::{ByteCount, human};

/// The pipes of an ordinary account share this many pages (pipe(7)); 0 is no limit.
const PIPE_PAGES: &str = "/proc/sys/fs/pipe-user-pages-soft";
/// Pages of 4 KiB in a pipe of the relay, 512 KiB.
const PAGES_OF_A_PIPE: u64 = 128;
/// A buffer holds a window on its way and one that waits behind a hole, and about as much again for the
/// kernel's own bookkeeping: in bandwidth-delay products, as for a leg's fixed buffers.
const PRODUCTS: u64 = 4;

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let host = Host::read();
    [
        Some(connections(config, host)),
        Some(buffered(config.limits.buffered, host)),
        buffered_per_connection(config),
        pipes(config, host),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The resources of this host.
#[derive(Debug, Clone, Copy)]
struct Host {
    /// The most descriptors that this process may have.
    descriptors: u64,
    /// Bytes.
    memory: u64,
    /// Where TCP begins to squeeze all sockets, bytes.
    tcp_pressure: Option<u64>,
    /// Pages that the pipes of an ordinary account share; 0 is no limit.
    pipe_pages: u64,
}

impl Host {
    fn read() -> Self {
        let pages = fs::read_to_string(PIPE_PAGES).unwrap_or_default();
        Self {
            descriptors: descriptor_limit().hard,
            memory: budget::memory(),
            tcp_pressure: budget::tcp_pressure(),
            pipe_pages: pages.trim().parse().unwrap_or(0),
        }
    }
}

/// The hard limit counts: the daemon raises the soft one to it.
fn connections(config: &Config, host: Host) -> Check {
    let name = "connections at a time";
    let workers = config.proxy.workers.get();
    let available = usize::try_from(host.descriptors).unwrap_or(usize::MAX >> 1).min(usize::MAX >> 1);
    let Some(wanted) = config.limits.connections else {
        let most = default_connections(available, workers);
        return Check::pass(name, format!("{most}, as {available} descriptors allow"));
    };
    let needed = descriptors_for(wanted.get(), workers);
    let found =
        format!("limits.connections = {} takes {needed} descriptors, of {available} here", wanted.get());
    if needed <= available {
        return Check::pass(name, found);
    }
    let most = connections_for(available, workers);
    Check::fail(
        name,
        found,
        format!(
            "LimitNOFILE={needed} in the daemon's service, ulimit -Hn {needed} in a shell; or connections = \
             {most}"
        ),
    )
}

fn buffered(wanted: Option<ByteCount>, host: Host) -> Check {
    let name = "memory for buffers";
    let Some(wanted) = wanted else {
        return Check::pass(name, format!("{}, by default", human::bytes(budget::default_buffered())));
    };
    let memory = ByteCount::new(host.memory);
    if wanted > memory {
        return Check::fail(
            name,
            format!("limits.buffered = \"{wanted}\" is more than the machine has, {memory}"),
            "leave buffered out",
        );
    }
    match host.tcp_pressure.map(ByteCount::new).filter(|&pressure| wanted > pressure) {
        Some(pressure) => Check::fail(
            name,
            format!("limits.buffered = \"{wanted}\"; the kernel squeezes TCP's buffers from {pressure} on"),
            format!("buffered = \"{pressure}\" at the most, or raise net.ipv4.tcp_mem"),
        ),
        None => Check::pass(name, format!("limits.buffered = \"{wanted}\" of {memory}")),
    }
}

/// A connection alone on the fastest leg must be able to fill it.
fn buffered_per_connection(config: &Config) -> Option<Check> {
    let (limit, share) = (config.limits.buffered_per_connection?, config.limits.share()?);
    let takes = |leg: &SatelliteLeg| Some(leg.rate?.bytes_in(leg.rtt.get()).saturating_mul(PRODUCTS));
    let (most, leg) = config.legs.iter().filter_map(|(name, leg)| Some((takes(leg)?, name))).max()?;
    let (name, most) = ("memory of a connection", ByteCount::new(most));
    let found = format!("a buffer's share of \"{limit}\" is {share}; leg {leg} takes {most}");
    if share >= most {
        return Some(Check::pass(name, found));
    }
    let needed = ByteCount::new(most.get().saturating_mul(Limits::SHARES));
    Some(Check::fail(name, found, format!("buffered_per_connection = \"{needed}\", or leave it out")))
}

/// This is advice only: without it pipes are small, and that matters only while many connections have data
/// waiting.
fn pipes(config: &Config, host: Host) -> Option<Check> {
    let ordinary = config.proxy.user.as_deref().is_none_or(|user| user.split(':').next() != Some("root"));
    if config.proxy.relay != RelayKind::Splice || !ordinary || host.pipe_pages == 0 {
        return None;
    }
    let pipes = host.pipe_pages / PAGES_OF_A_PIPE;
    let found = format!(
        "fs.pipe-user-pages-soft = {}: an ordinary account's pipes beyond {pipes} at a time are small",
        host.pipe_pages
    );
    let fix = "sysctl -w fs.pipe-user-pages-soft=0 where many connections are busy at a time".to_owned();
    Some(Check { fix: Some(fix), ..Check::pass("pipes of the relay", found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Host = Host {
        descriptors: 20_000,
        memory: 24_000_000_000,
        tcp_pressure: Some(1_500_000_000),
        pipe_pages: 16_384,
    };

    fn config(lines: &str) -> Config {
        let legs = "[legs.geo]\ninterface = \"sat0\"\nrate = \"10Mbit/s\"\n\
                    [legs.fast]\ninterface = \"sat1\"\nrate = \"100Mbit/s\"\n";
        Config::parse("x", &format!("[proxy]\nworkers = 2\n{legs}{lines}")).unwrap()
    }

    fn limits(lines: &str) -> Config {
        config(&format!("[limits]\n{lines}"))
    }

    #[test]
    fn more_connections_than_there_are_descriptors_for_are_lacking() {
        assert!(connections(&limits(""), HOST).ok);
        assert!(connections(&limits("connections = 9840"), HOST).ok);
        let check = connections(&limits("connections = 9841"), HOST);
        assert!(!check.ok);
        let fix = check.fix.unwrap();
        assert!(fix.contains("LimitNOFILE=20002 ") && fix.ends_with("or connections = 9840"), "{fix}");
        assert!(connections(&limits("connections = 9841"), Host { descriptors: u64::MAX, ..HOST }).ok);
    }

    #[test]
    fn the_advised_descriptors_and_connections_are_enough() {
        let many = limits("connections = 100000");
        let fix = connections(&many, HOST).fix.unwrap();
        let number = |after: &str| -> u64 {
            let (_, text) = fix.split_once(after).unwrap();
            text.split([' ', ',']).next().unwrap().parse().unwrap()
        };
        let descriptors = number("LimitNOFILE=");
        assert!(connections(&many, Host { descriptors, ..HOST }).ok);
        assert!(!connections(&many, Host { descriptors: descriptors - 1, ..HOST }).ok);
        assert!(connections(&limits(&format!("connections = {}", number("connections = "))), HOST).ok);
    }

    #[test]
    fn buffers_that_the_machine_does_not_have_are_lacking() {
        let of = |text: &str| buffered(Some(text.parse().unwrap()), HOST);
        assert!(buffered(None, HOST).ok && of("1.5GB").ok);
        let squeezed = of("2GB");
        assert!(!squeezed.ok && squeezed.fix.unwrap().contains("net.ipv4.tcp_mem"));
        let beyond = of("25GB");
        assert!(!beyond.ok && beyond.found.contains("more than the machine has"), "{beyond:?}");
    }

    #[test]
    fn a_connections_memory_is_judged_by_the_fastest_leg() {
        assert!(buffered_per_connection(&limits("")).is_none());
        // 100 Mbit/s · 600 ms = 7.5 MB, four of them for each of six buffers.
        let check = buffered_per_connection(&limits("buffered_per_connection = \"179MB\"")).unwrap();
        assert!(!check.ok && check.found.contains("leg fast takes 30MB"), "{check:?}");
        assert_eq!(check.fix.unwrap(), "buffered_per_connection = \"180MB\", or leave it out");
        assert!(buffered_per_connection(&limits("buffered_per_connection = \"180MB\"")).unwrap().ok);
    }

    #[test]
    fn small_pipes_are_told_of_where_an_ordinary_account_splices() {
        let check = pipes(&config(""), HOST).unwrap();
        assert!(check.ok && check.found.contains("beyond 128 at a time"), "{check:?}");
        assert!(pipes(&config(""), Host { pipe_pages: 0, ..HOST }).is_none());
        let of = |line: &str| {
            let text = format!("[proxy]\n{line}\n[legs.a]\ninterface = \"sat0\"\n");
            pipes(&Config::parse("x", &text).unwrap(), HOST)
        };
        assert!(of("relay = \"copy\"").is_none() && of("user = \"root\"").is_none());
        assert!(of("user = \"bentpipe:root\"").is_some());
    }
}

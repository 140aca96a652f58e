//! Which path's listener a connection goes to, by counters in the daemon's own rules.

use std::collections::BTreeMap;

use super::Host;

/// The SYNs that each path has been given, by the port of its listener.
pub struct Census<'a> {
    pub gateway: &'a Host,
}

impl<'a> Census<'a> {
    /// Begins to count. The counters stand in the rules until a reload replaces these.
    pub fn begin(gateway: &'a Host) -> Self {
        let census = Self { gateway };
        let insert = |port: u16| format!("insert rule inet bentpipe split_{port} counter\n");
        gateway.rules(&census.ports().into_iter().map(insert).collect::<String>());
        census
    }

    /// The ports that the rules hand connections to, in ascending order.
    pub fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.rules().lines().filter_map(port_of).collect();
        ports.sort_unstable();
        ports
    }

    /// What `work` brings about, and the one port that was given something meanwhile, if it was one.
    pub fn port_of<T>(&self, work: impl FnOnce() -> T) -> (T, Option<u16>) {
        let before = self.count();
        let outcome = work();
        let given: Vec<u16> = self
            .count()
            .into_iter()
            .filter(|(port, count)| before[port] != *count)
            .map(|(port, _)| port)
            .collect();
        assert!(given.len() <= 1, "one connection went to {given:?}");
        (outcome, given.first().copied())
    }

    fn count(&self) -> BTreeMap<u16, u64> {
        let (rules, mut counts, mut port) = (self.rules(), BTreeMap::new(), None);
        for line in rules.lines() {
            port = port_of(line).or(port.filter(|_| line != "\t}"));
            if let (Some(port), Some(packets)) = (port, line.trim().strip_prefix("counter packets ")) {
                counts.insert(port, packets.split(' ').next().unwrap().parse().unwrap());
            }
        }
        counts
    }

    fn rules(&self) -> String {
        self.gateway.output("nft -t list table inet bentpipe")
    }
}

fn port_of(line: &str) -> Option<u16> {
    line.strip_prefix("\tchain split_")?.strip_suffix(" {")?.parse().ok()
}

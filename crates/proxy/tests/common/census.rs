//! Which path's listener a connection goes to, by counters in the daemon's own rules.

use std::collections::BTreeMap;

use super::Host;

/// The SYNs that each path has been given, by the port of its listener.
pub struct Census<'a> {
    pub gateway: &'a Host,
}

impl<'a> Census<'a> {
    /// Begins to count, in a table of its own before the daemon's rules.
    pub fn begin(gateway: &'a Host) -> Self {
        let census = Self { gateway };
        let count = |port: u16| format!("\tchain port_{port} {{\n\t\tcounter\n\t}}\n");
        let jump = |port: u16| format!("\t\tiif lo tcp urgptr {port} jump port_{port}\n");
        let ports = census.ports();
        let chains: String = ports.iter().map(|&port| count(port)).collect();
        let jumps: String = ports.iter().map(|&port| jump(port)).collect();
        gateway.rules(&format!(
            "table inet census\ndelete table inet census\ntable inet census {{\n{chains}\tchain each {{\n\
             \t\ttype filter hook prerouting priority 999;\n{jumps}\t}}\n}}\n"
        ));
        census
    }

    /// Counts no more, and leaves nothing on the gateway.
    pub fn end(self) {
        self.gateway.run("nft delete table inet census");
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
        let rules = self.gateway.output("nft -t list table inet census");
        let (mut counts, mut port) = (BTreeMap::new(), None);
        for line in rules.lines() {
            port = number(line, "\tchain port_").or(port.filter(|_| line != "\t}"));
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
    // Listeners that others have replaced have a chain, but none is taken for them.
    number(line, "\tchain early_")
}

fn number(line: &str, prefix: &str) -> Option<u16> {
    line.strip_prefix(prefix)?.strip_suffix(" {")?.parse().ok()
}

//! The TCP counters that the kernel keeps for a whole host (RFC 4022; proc(5), `/proc/net/snmp` and `/proc/net/netstat`).

use bentpipe_testbed::Namespace;

use crate::Error;

/// The counters of all TCP connections of a host since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Segments sent, retransmissions not included (`tcpOutSegs`).
    pub segments_out: u64,
    /// Segments retransmitted (`tcpRetransSegs`).
    pub retransmitted: u64,
    /// Expiries of a retransmission timer (`TCPTimeouts`).
    pub timeouts: u64,
}

impl TcpCounters {
    /// Reads the counters of a host of the testbed.
    pub fn read(host: &Namespace) -> Result<Self, Error> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let text =
            host.run(|| read("/proc/thread-self/net/snmp") + &read("/proc/thread-self/net/netstat"))?;
        Ok(Self {
            segments_out: value(&text, "Tcp:", "OutSegs"),
            retransmitted: value(&text, "Tcp:", "RetransSegs"),
            timeouts: value(&text, "TcpExt:", "TCPTimeouts"),
        })
    }
}

/// The files have lines in pairs: names, then values.
fn value(text: &str, prefix: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(prefix));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let at = names.split_whitespace().position(|known| known == name);
    at.and_then(|at| values.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_name_in_the_pair_of_lines() {
        let text = "Ip: A B\nIp: 1 2\nTcp: OutSegs RetransSegs\nTcp: 10 3\n";
        assert_eq!(value(text, "Tcp:", "RetransSegs"), 3);
        assert_eq!(value(text, "Tcp:", "NoSuch"), 0);
        assert_eq!(value(text, "TcpExt:", "TCPTimeouts"), 0);
    }
}

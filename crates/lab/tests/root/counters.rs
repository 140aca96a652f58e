//! The TCP counters that the kernel keeps for a whole host (RFC 4022; proc(5), `/proc/net/netstat`).

use bentpipe_testbed::Namespace;

/// Expiries of retransmission timers in all TCP connections of a host since its start.
pub(crate) fn timeouts(host: &Namespace) -> u64 {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat")).unwrap();
    value(&text.unwrap(), "TcpExt:", "TCPTimeouts")
}

/// The files have lines in pairs: names, then values.
fn value(text: &str, prefix: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(prefix));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let at = names.split_whitespace().position(|known| known == name);
    at.and_then(|at| values.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_counter_is_found_by_name_in_the_pair_of_lines() {
    let text = "Ip: A B\nIp: 1 2\nTcp: OutSegs RetransSegs\nTcp: 10 3\n";
    assert_eq!(value(text, "Tcp:", "RetransSegs"), 3);
    assert_eq!(value(text, "Tcp:", "NoSuch"), 0);
    assert_eq!(value(text, "TcpExt:", "TCPTimeouts"), 0);
}

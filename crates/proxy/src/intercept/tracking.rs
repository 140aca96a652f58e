//! Connection tracking and split connections.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;

use bentpipe_kernel::conntrack::Conntrack;
use bentpipe_kernel::sock_diag::SockDiag;

use super::TABLE;
use super::ruleset::UNTRACKED;

/// The directions of connections that are split.
#[derive(Debug)]
pub(super) struct SplitConnections {
    directions: Vec<(SocketAddr, SocketAddr)>,
}

impl SplitConnections {
    /// A split connection is known by its two sockets, each of which has the ends of the other in the other
    /// order.
    pub(super) fn list() -> io::Result<Self> {
        let all: HashSet<(SocketAddr, SocketAddr)> = SockDiag::open()?.connections()?.into_iter().collect();
        let directions = all.iter().filter(|(local, remote)| all.contains(&(*remote, *local))).copied();
        Ok(Self { directions: directions.collect() })
    }

    /// What lets rules leave them untracked, to be loaded with the rules.
    pub(super) fn untracked(&self) -> String {
        let mut text = String::new();
        for (is_ipv4, set) in [true, false].into_iter().zip(UNTRACKED) {
            let of_family = self.directions.iter().filter(|(from, _)| from.is_ipv4() == is_ipv4);
            let elements: Vec<String> = of_family
                .map(|(from, to)| format!("{} . {} . {} . {}", from.ip(), from.port(), to.ip(), to.port()))
                .collect();
            if !elements.is_empty() {
                let _ = writeln!(text, "add element inet {TABLE} {set} {{ {} }}", elements.join(", "));
            }
        }
        text
    }

    /// Removes what has been tracked of them so far: both halves were taken for one connection, and so their
    /// packets for INVALID.
    pub(super) fn forget(&self) -> io::Result<()> {
        let mut tracked = Conntrack::open()?;
        self.directions.iter().try_for_each(|&(from, to)| tracked.forget(from, to).map(drop))
    }
}

/// Forgets a connection of this host to a server, so that its client's own can be tracked.
pub(crate) fn forget(client: SocketAddr, server: SocketAddr) -> io::Result<bool> {
    // What comes from the server lies in no zone.
    Conntrack::open()?.forget(server, client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directions_of_a_family_are_elements_of_its_set() {
        let [client, server]: [SocketAddr; 2] =
            ["10.0.0.1:5000", "192.0.2.1:80"].map(|end| end.parse().unwrap());
        let split = SplitConnections { directions: vec![(client, server), (server, client)] };
        let expected = "add element inet bentpipe untracked4 { 10.0.0.1 . 5000 . 192.0.2.1 . 80, \
                        192.0.2.1 . 80 . 10.0.0.1 . 5000 }\n";
        assert_eq!(split.untracked(), expected);
        assert_eq!(SplitConnections { directions: Vec::new() }.untracked(), "");
    }
}

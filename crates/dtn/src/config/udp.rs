//! `[udp]` and `[peers.udp]`: nodes that are reached by UDP, a bundle in each datagram.

use std::net::SocketAddr;

use bentpipe_config::Problem;
use bentpipe_units::{ByteCount, Rate};
use serde::Deserialize;

use super::{NodeConfig, PeerSettings, datagram_problem};

/// `[udp]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpSettings {
    /// The address and the port; that of bundles over UDP is 4556.
    pub address: SocketAddr,
}

/// `[peers.udp]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerUdpSettings {
    /// Where it listens.
    pub address: SocketAddr,
    /// How fast is sent, with the headers of IP and UDP; by default the leg's rate, or that of the contact.
    pub rate: Option<Rate>,
    /// The longest datagram, without the headers of IP and UDP: longer bundles go in fragments.
    #[serde(default = "super::default_datagram")]
    pub datagram: ByteCount,
}

impl NodeConfig {
    /// Checks `[peers.udp]`.
    pub(super) fn check_peer_udp(&self, peer: &PeerSettings) -> Result<(), Problem> {
        let Some(settings) = &peer.udp else { return Ok(()) };
        if self.udp.is_none() {
            let message = "this node has no socket for it; write [udp] with address = \"0.0.0.0:4556\"";
            return Err(Problem::new(message));
        }
        self.check_uses_datagrams(peer, settings.rate)?;
        datagram_problem(settings.datagram)
    }
}

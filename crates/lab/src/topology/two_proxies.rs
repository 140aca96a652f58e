//! A proxy at each side of the satellite: four network namespaces.
//!
//! ```text
//! client ──lan0── terminal ──sat0── satellite link ──sat0── gateway ──lan0── server
//! ```

use std::net::{IpAddr, SocketAddr};

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::LinkEndConfig;
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet, default_route, forwarding, veth};

use super::{MTU, SATELLITE, SATELLITE_SUBNET, TERRESTRIAL, TERRESTRIAL_SUBNET};
use super::{open_receive_window, open_send_buffer};
use crate::Error;

const CLIENT_SUBNET: Subnet = Subnet::new(3);

/// The four hosts and the satellite link between the two in the middle. Everything is removed when this value is dropped.
#[derive(Debug)]
pub struct TwoProxies {
    /// The emulated satellite link; its forward direction leads to the terminal.
    pub link: SatelliteLink,
    /// The host that opens connections, on a LAN behind the terminal.
    pub client: Namespace,
    /// The host of the proxy at the client's side.
    pub terminal: Namespace,
    /// The host of the proxy at the server's side.
    pub gateway: Namespace,
    /// The terrestrial host.
    pub server: Namespace,
}

impl TwoProxies {
    /// Builds the hosts, starts the link with agents and ARQs at its ends, the gateway's and the terminal's, and sets addresses
    /// and routes of IPv4 and IPv6.
    pub fn build(config: &LinkConfig, stations: &[LinkEndConfig; 2], seed: u64) -> Result<Self, Error> {
        let [client, terminal, gateway, server] =
            ["client", "terminal", "gateway", "server"].map(Namespace::new);
        let (client, terminal, gateway, server) = (client?, terminal?, gateway?, server?);
        let ends = ((&gateway, SATELLITE), (&terminal, SATELLITE));
        let link = SatelliteLink::start_with_agents(ends.0, ends.1, config, stations, seed, MTU)?;
        SATELLITE_SUBNET.assign(&gateway, SATELLITE, &terminal, SATELLITE)?;
        for (host, far, subnet) in
            [(&gateway, &server, TERRESTRIAL_SUBNET), (&terminal, &client, CLIENT_SUBNET)]
        {
            veth(host, TERRESTRIAL, far, TERRESTRIAL)?;
            subnet.assign(host, TERRESTRIAL, far, TERRESTRIAL)?;
            default_route(far, subnet.left4())?;
            default_route(far, subnet.left6())?;
            forwarding(host)?;
            open_receive_window(host, config)?;
            open_send_buffer(host, config)?;
        }
        default_route(&gateway, SATELLITE_SUBNET.right4())?;
        default_route(&gateway, SATELLITE_SUBNET.right6())?;
        default_route(&terminal, SATELLITE_SUBNET.left4())?;
        default_route(&terminal, SATELLITE_SUBNET.left6())?;
        Ok(Self { link, client, terminal, gateway, server })
    }

    /// The gateway's end of the satellite link.
    pub fn gateway_address(&self) -> IpAddr {
        SATELLITE_SUBNET.left4().into()
    }

    /// The address of a server on this port.
    pub fn server_address(&self, port: u16) -> SocketAddr {
        (TERRESTRIAL_SUBNET.right4(), port).into()
    }
}

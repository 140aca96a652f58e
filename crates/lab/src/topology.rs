//! A client behind a satellite, a gateway and a server: three network namespaces.
//!
//! ```text
//! client ──sat0── satellite link ──sat0── gateway ──lan0── server
//! ```

mod two_proxies;

use std::net::{IpAddr, SocketAddr};

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::LinkEndConfig;
use bentpipe_proxy::{Config, Daemon};
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet, default_route, forwarding, veth};

use crate::Error;

pub use two_proxies::TwoProxies;

/// The satellite interface, on the gateway and on the client.
pub const SATELLITE: &str = "sat0";
/// The terrestrial interface, on the gateway and on the server.
pub const TERRESTRIAL: &str = "lan0";
/// The maximum transmission unit of both links, bytes.
pub const MTU: u32 = 1500;
/// The payload share of a full-size packet: its 1500 bytes less the headers of IPv4 and TCP and the timestamps option.
pub(crate) const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// The client's receive buffer in bandwidth-delay products: one window in flight and one that waits behind a lost segment; the
/// kernel's bookkeeping doubles both. From the default of 64 kB, the receiver would need four round trips to open its window,
/// whatever the sender does.
const CLIENT_BUFFER_BDPS: u64 = 4;
/// The gateway's send buffer in bandwidth-delay products, as `bentpipe doctor` advises.
const GATEWAY_BUFFER_BDPS: u64 = 4;
/// The kernel's default maximum of a send buffer, bytes.
const DEFAULT_SEND_BUFFER: u64 = 4_194_304;
/// The kernel's default maximum of a receive buffer, bytes.
const DEFAULT_RECEIVE_BUFFER: u64 = 33_554_432;
const SATELLITE_SUBNET: Subnet = Subnet::new(1);
const TERRESTRIAL_SUBNET: Subnet = Subnet::new(2);

/// The three hosts and the satellite link. Everything is removed when this value is dropped.
#[derive(Debug)]
pub struct Topology {
    /// The emulated satellite link; its forward direction leads to the client.
    pub link: SatelliteLink,
    /// The host behind the satellite.
    pub client: Namespace,
    /// The host for a proxy.
    pub gateway: Namespace,
    /// The terrestrial host.
    pub server: Namespace,
}

impl Topology {
    /// Builds the hosts, starts the link, and sets addresses and routes of IPv4 and IPv6.
    pub fn build(config: &LinkConfig, seed: u64) -> Result<Self, Error> {
        Self::build_with_stations(config, &Default::default(), seed)
    }

    /// The same with agents and ARQs at the link's ends: the gateway's and the client's.
    pub fn build_with_stations(
        config: &LinkConfig,
        stations: &[LinkEndConfig; 2],
        seed: u64,
    ) -> Result<Self, Error> {
        let [client, gateway, server] = ["client", "gateway", "server"].map(Namespace::new);
        let (client, gateway, server) = (client?, gateway?, server?);
        let ends = ((&gateway, SATELLITE), (&client, SATELLITE));
        let link = SatelliteLink::start_with_agents(ends.0, ends.1, config, stations, seed, MTU)?;
        SATELLITE_SUBNET.assign(&gateway, SATELLITE, &client, SATELLITE)?;
        veth(&gateway, TERRESTRIAL, &server, TERRESTRIAL)?;
        TERRESTRIAL_SUBNET.assign(&gateway, TERRESTRIAL, &server, TERRESTRIAL)?;
        for gateway4_or_6 in [IpAddr::from(SATELLITE_SUBNET.left4()), SATELLITE_SUBNET.left6().into()] {
            default_route(&client, gateway4_or_6)?;
        }
        for gateway4_or_6 in [IpAddr::from(TERRESTRIAL_SUBNET.left4()), TERRESTRIAL_SUBNET.left6().into()] {
            default_route(&server, gateway4_or_6)?;
        }
        forwarding(&gateway)?;
        open_receive_window(&client, config)?;
        open_send_buffer(&gateway, config)?;
        Ok(Self { link, client, gateway, server })
    }

    /// The gateway's end of the satellite link.
    pub fn gateway_address(&self) -> IpAddr {
        SATELLITE_SUBNET.left4().into()
    }

    /// The address of a server on this port.
    pub fn server_address(&self, port: u16) -> SocketAddr {
        (TERRESTRIAL_SUBNET.right4(), port).into()
    }

    /// The same over IPv6.
    pub fn server_address_v6(&self, port: u16) -> SocketAddr {
        (TERRESTRIAL_SUBNET.right6(), port).into()
    }
}

/// Raises the maximum of the gateway's send buffers to what its link needs.
fn open_send_buffer(gateway: &Namespace, config: &LinkConfig) -> Result<(), Error> {
    if let Some(bdp) = config.forward.bdp() {
        let most = (GATEWAY_BUFFER_BDPS * bdp.get()).max(DEFAULT_SEND_BUFFER);
        gateway.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {most}"))?;
    }
    Ok(())
}

/// Gives the client the receive buffer that its link needs, as `bentpipe doctor` advises.
fn open_receive_window(client: &Namespace, config: &LinkConfig) -> Result<(), Error> {
    if let Some(bdp) = config.forward.bdp() {
        let initial = (CLIENT_BUFFER_BDPS * bdp.get()).max(131_072);
        let most = initial.max(DEFAULT_RECEIVE_BUFFER);
        client.sysctl("net.ipv4.tcp_rmem", &format!("4096 {initial} {most}"))?;
    }
    Ok(())
}

/// Starts the daemon in the topology's gateway.
///
/// # Errors
/// [`Error::Proxy`] if it does not start.
pub fn start_proxy(topology: &Topology, config: &Config) -> Result<Daemon, Error> {
    topology.gateway.run(|| Daemon::start(config))?.map_err(|error| Error::Proxy(error.to_string()))
}

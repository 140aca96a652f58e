//! A client behind a satellite, a gateway and a server: three network namespaces.
//!
//! ```text
//! client ──sat0── satellite link ──sat0── gateway ──lan0── server
//! ```

mod two_boxes;

use std::net::{IpAddr, SocketAddr};

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::LinkEndConfig;
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet, default_route, forwarding, veth};

use crate::Error;

pub use two_boxes::TwoBoxes;

/// The satellite interface, on the gateway and on the client.
pub const SATELLITE: &str = "sat0";
/// The terrestrial interface, on the gateway and on the server.
pub const TERRESTRIAL: &str = "lan0";
/// The maximum transmission unit of both links, bytes.
pub const MTU: u32 = 1500;
/// The client's receive buffer in bandwidth-delay products: a window on its way and one that waits behind a hole, and the
/// kernel's bookkeeping doubles it. With the usual start at 64 kB the receiver needs four round trips to open up, whatever
/// the sender does.
const CLIENT_BUFFER_BDPS: u64 = 4;
/// The gateway's send buffer in the same, as `bentpipe doctor` advises.
const GATEWAY_BUFFER_BDPS: u64 = 4;
/// The most that the kernel's default lets a send buffer grow to, bytes.
const USUAL_SEND_BUFFER: u64 = 4_194_304;
/// The most that the kernel's default lets a receive buffer grow to, bytes.
const USUAL_BUFFER: u64 = 33_554_432;
const SATELLITE_SUBNET: Subnet = Subnet::new(1);
const TERRESTRIAL_SUBNET: Subnet = Subnet::new(2);

/// The three hosts and the link between two of them. All of it goes when this value is dropped.
#[derive(Debug)]
pub struct Scene {
    /// The emulated satellite link; its forward direction leads to the client.
    pub link: SatelliteLink,
    /// The terminal's side.
    pub client: Namespace,
    /// Where a proxy would stand.
    pub gateway: Namespace,
    /// The terrestrial side.
    pub server: Namespace,
}

impl Scene {
    /// Builds the hosts, starts the link and sets addresses and routes of both families.
    pub fn build(config: &LinkConfig, seed: u64) -> Result<Self, Error> {
        Self::build_with_stations(config, &Default::default(), seed)
    }

    /// The same with stations at the link's ends: the gateway's and the client's.
    pub fn build_with_stations(
        config: &LinkConfig,
        stations: &[LinkEndConfig; 2],
        seed: u64,
    ) -> Result<Self, Error> {
        let [client, gateway, server] = ["client", "gateway", "server"].map(Namespace::new);
        let (client, gateway, server) = (client?, gateway?, server?);
        let ends = ((&gateway, SATELLITE), (&client, SATELLITE));
        let link = SatelliteLink::start_with_stations(ends.0, ends.1, config, stations, seed, MTU)?;
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

    /// Where a server of this scene listens.
    pub fn server_address(&self, port: u16) -> SocketAddr {
        (TERRESTRIAL_SUBNET.right4(), port).into()
    }

    /// The same over IPv6.
    pub fn server_address_v6(&self, port: u16) -> SocketAddr {
        (TERRESTRIAL_SUBNET.right6(), port).into()
    }
}

/// Lets the gateway's send buffers grow to what its link needs.
fn open_send_buffer(gateway: &Namespace, config: &LinkConfig) -> Result<(), Error> {
    if let Some(bdp) = config.forward.bdp() {
        let most = (GATEWAY_BUFFER_BDPS * bdp.get()).max(USUAL_SEND_BUFFER);
        gateway.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {most}"))?;
    }
    Ok(())
}

/// Gives the client the receive buffer that its link needs, as `bentpipe doctor` advises.
fn open_receive_window(client: &Namespace, config: &LinkConfig) -> Result<(), Error> {
    if let Some(bdp) = config.forward.bdp() {
        let initial = (CLIENT_BUFFER_BDPS * bdp.get()).max(131_072);
        let most = initial.max(USUAL_BUFFER);
        client.sysctl("net.ipv4.tcp_rmem", &format!("4096 {initial} {most}"))?;
    }
    Ok(())
}

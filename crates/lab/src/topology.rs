//! A client behind a satellite, a gateway and a server, in network namespaces:
//!
//! ```text
//! client ──sat0── satellite link ──sat0── gateway ──lan0── server
//! ```
//!
//! With a second proxy the client is on a LAN behind a terminal:
//!
//! ```text
//! client ──lan0── terminal ──sat0── satellite link ──sat0── gateway ──lan0── server
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::time::Duration;

use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_proxy::{Config, Daemon};
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet, default_route, forwarding, veth};
use bentpipe_units::{Probability, Rate};

use crate::Error;
use crate::download::{Download, Progress, Request, Server, download};

/// The satellite interface, on the gateway and on the client or its terminal.
pub const SATELLITE: &str = "sat0";
/// The terrestrial interface, on both ends of a LAN.
pub const TERRESTRIAL: &str = "lan0";
/// The maximum transmission unit of all links, bytes.
pub const MTU: u32 = 1500;
/// The port of the server.
const PORT: u16 = 80;
/// The payload share of a full-size packet: its 1500 bytes less the headers of IPv4 and TCP and the
/// timestamps option.
pub(crate) const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// The client's receive buffer in bandwidth-delay products: one window in flight and one that waits behind a
/// lost segment; the kernel's bookkeeping doubles both. From the default of 64 kB, the receiver would need
/// four round trips to open its window, whatever the sender does.
const CLIENT_BUFFER_BDPS: u64 = 4;
/// The gateway's send buffer in bandwidth-delay products, as `bentpipe doctor` advises.
const GATEWAY_BUFFER_BDPS: u64 = 4;
/// The kernel's default maximum of a send buffer, bytes.
const DEFAULT_SEND_BUFFER: u64 = 4_194_304;
/// The kernel's default maximum of a receive buffer, bytes.
const DEFAULT_RECEIVE_BUFFER: u64 = 33_554_432;
const SATELLITE_SUBNET: Subnet = Subnet::new(1);
const TERRESTRIAL_SUBNET: Subnet = Subnet::new(2);
const CLIENT_SUBNET: Subnet = Subnet::new(3);

/// The hosts and the satellite link. Everything is removed when this value is dropped.
#[derive(Debug)]
pub struct Topology {
    /// The emulated satellite link; its forward direction leads to the client.
    pub link: SatelliteLink,
    /// The host that opens connections.
    pub client: Namespace,
    /// The host for a proxy at the client's side; `None`: the client itself is at the satellite link.
    pub terminal: Option<Namespace>,
    /// The host for a proxy at the server's side.
    pub gateway: Namespace,
    /// The terrestrial host.
    pub server: Namespace,
}

/// A link that is the same both ways, with a round-trip time of the empty link and a packet error rate.
pub fn symmetric(rate: Rate, rtt: Duration, per: Probability) -> LinkConfig {
    LinkConfig::symmetric(DirectionConfig { rate: Some(rate), delay: rtt / 2, per, ..Default::default() })
}

impl Topology {
    /// Builds client, gateway and server, starts the link, and sets addresses and routes of IPv4 and IPv6.
    pub fn build(config: &LinkConfig, seed: u64) -> Result<Self, Error> {
        Self::build_with(config, &Default::default(), seed, false)
    }

    /// The same with agents and ARQs at the link's ends, the gateway's and the far one; and, if wanted, with
    /// a terminal.
    pub fn build_with(
        config: &LinkConfig,
        link_ends: &[LinkEndConfig; 2],
        seed: u64,
        with_terminal: bool,
    ) -> Result<Self, Error> {
        let [client, gateway, server] = ["client", "gateway", "server"].map(Namespace::new);
        let (client, gateway, server) = (client?, gateway?, server?);
        let terminal = with_terminal.then(|| Namespace::new("terminal")).transpose()?;
        let far = terminal.as_ref().unwrap_or(&client);
        let ends = ((&gateway, SATELLITE), (far, SATELLITE));
        let link = SatelliteLink::start_with_agents(ends.0, ends.1, config, link_ends, seed, MTU)?;
        SATELLITE_SUBNET.assign(&gateway, SATELLITE, far, SATELLITE)?;
        default_route(far, SATELLITE_SUBNET.left4())?;
        default_route(far, SATELLITE_SUBNET.left6())?;
        lan(&gateway, &server, TERRESTRIAL_SUBNET)?;
        open_receive_window(far, config)?;
        open_send_buffer(&gateway, config)?;
        if let Some(terminal) = &terminal {
            lan(terminal, &client, CLIENT_SUBNET)?;
            default_route(&gateway, SATELLITE_SUBNET.right4())?;
            default_route(&gateway, SATELLITE_SUBNET.right6())?;
            open_receive_window(&gateway, config)?;
            open_send_buffer(terminal, config)?;
        }
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

    /// Starts a [`Server`] on the server's host.
    ///
    /// # Errors
    /// Those of the namespace and of the server.
    pub fn serve(&self, congestion: Option<&str>, interval: Duration) -> io::Result<Server> {
        let address = self.server_address(PORT);
        self.server.run(|| Server::start(address, congestion, interval)).map_err(io::Error::other)?
    }

    /// The client's [`download`] from that server.
    ///
    /// # Errors
    /// Those of the namespace and of the download.
    pub fn download(&self, request: Request, progress: &Progress) -> io::Result<Download> {
        let address = self.server_address(PORT);
        self.client.run(|| download(address, request, progress)).map_err(io::Error::other)?
    }
}

/// A running daemon and its host.
#[derive(Debug)]
pub struct Proxy {
    host: Namespace,
    daemon: Option<Daemon>,
}

impl Proxy {
    /// Starts the daemon on a host.
    ///
    /// # Errors
    /// [`Error::Proxy`] if it does not start.
    pub fn start(host: &Namespace, config: &Config) -> Result<Self, Error> {
        let daemon = host.run(|| Daemon::start(config))?.map_err(|error| Error::Proxy(error.to_string()))?;
        Ok(Self { host: host.clone(), daemon: Some(daemon) })
    }
}

impl Deref for Proxy {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        self.daemon.as_ref().expect("it runs until it is dropped")
    }
}

impl Drop for Proxy {
    /// Drops the daemon in its own namespace, because it removes its rules there.
    fn drop(&mut self) {
        let daemon = self.daemon.take();
        // On an error nothing is left behind either, because the namespace is removed with everything in it.
        let _ = self.host.run(|| drop(daemon));
    }
}

/// Joins a router and a host, which has its default route there.
fn lan(router: &Namespace, host: &Namespace, subnet: Subnet) -> Result<(), Error> {
    veth(router, TERRESTRIAL, host, TERRESTRIAL)?;
    subnet.assign(router, TERRESTRIAL, host, TERRESTRIAL)?;
    default_route(host, subnet.left4())?;
    default_route(host, subnet.left6())?;
    Ok(forwarding(router)?)
}

/// Raises the maximum of a host's send buffers to what its link needs.
fn open_send_buffer(host: &Namespace, config: &LinkConfig) -> Result<(), Error> {
    if let Some(bdp) = config.forward.bdp() {
        let most = (GATEWAY_BUFFER_BDPS * bdp.get()).max(DEFAULT_SEND_BUFFER);
        host.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {most}"))?;
    }
    Ok(())
}

/// Gives a host the receive buffer that its link needs, as `bentpipe doctor` advises.
fn open_receive_window(host: &Namespace, config: &LinkConfig) -> Result<(), Error> {
    if let Some(bdp) = config.forward.bdp() {
        let initial = (CLIENT_BUFFER_BDPS * bdp.get()).max(131_072);
        let most = initial.max(DEFAULT_RECEIVE_BUFFER);
        host.sysctl("net.ipv4.tcp_rmem", &format!("4096 {initial} {most}"))?;
    }
    Ok(())
}

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
use bentpipe_units::{ByteCount, Probability, Rate};

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
/// An opened receive buffer in bandwidth-delay products: one window in flight and one that waits behind a
/// lost segment; the kernel's bookkeeping doubles both. From the default of 64 kB, the receiver would need
/// four round trips to open its window, whatever the sender does.
const RECEIVE_BUFFER_BDPS: u64 = 4;
/// The gateway's send buffer in bandwidth-delay products, as `bentpipe doctor` advises.
const GATEWAY_BUFFER_BDPS: u64 = 4;
/// The kernel's default maximum of a send buffer, bytes.
const DEFAULT_SEND_BUFFER: u64 = 4_194_304;
/// The kernel's default initial receive buffer, half of which is the first window, and maximum, bytes.
const DEFAULT_RECEIVE_BUFFER: (u64, u64) = (131_072, 33_554_432);
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

/// The host at the far end of the satellite link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FarEnd {
    /// The client. Its receive buffer is as large as the link needs, so that what is measured is the sender.
    #[default]
    Client,
    /// The client, with the receive buffer that its kernel has by itself.
    StockClient,
    /// A terminal for a second proxy, whose receive buffer is as large as the link needs. The client is behind
    /// it and has its kernel's own.
    Terminal,
    /// A terminal that ends no connection. The client is behind it and has the receive buffer that the link
    /// needs.
    ForwardingTerminal,
}

/// A link that is the same both ways, with a round-trip time of the empty link and a packet error rate.
pub fn symmetric(rate: Rate, rtt: Duration, per: Probability) -> LinkConfig {
    LinkConfig::symmetric(DirectionConfig { rate: Some(rate), delay: rtt / 2, per, ..Default::default() })
}

/// The keys of a leg of both boxes that know of each other.
pub fn far_box(config: &LinkConfig) -> String {
    let buffer = config.forward.bdp().map_or(0, |bdp| RECEIVE_BUFFER_BDPS * bdp.get());
    format!("far_box = true\nreceive_buffer = \"{}\"\n", ByteCount::new(buffer.max(DEFAULT_RECEIVE_BUFFER.0)))
}

impl Topology {
    /// Builds client, gateway and server, starts the link, and sets addresses and routes of IPv4 and IPv6.
    pub fn build(config: &LinkConfig, seed: u64) -> Result<Self, Error> {
        Self::build_with(config, &Default::default(), seed, FarEnd::Client)
    }

    /// The same with agents and ARQs at the link's ends, the gateway's and the far one, and with another host
    /// there.
    pub fn build_with(
        config: &LinkConfig,
        link_ends: &[LinkEndConfig; 2],
        seed: u64,
        far_end: FarEnd,
    ) -> Result<Self, Error> {
        let [client, gateway, server] = ["client", "gateway", "server"].map(Namespace::new);
        let (client, gateway, server) = (client?, gateway?, server?);
        let has_terminal = matches!(far_end, FarEnd::Terminal | FarEnd::ForwardingTerminal);
        let terminal = has_terminal.then(|| Namespace::new("terminal")).transpose()?;
        let far = terminal.as_ref().unwrap_or(&client);
        let ends = ((&gateway, SATELLITE), (far, SATELLITE));
        let link = SatelliteLink::start_with_agents(ends.0, ends.1, config, link_ends, seed, MTU)?;
        SATELLITE_SUBNET.assign(&gateway, SATELLITE, far, SATELLITE)?;
        default_route(far, SATELLITE_SUBNET.left4())?;
        default_route(far, SATELLITE_SUBNET.left6())?;
        lan(&gateway, &server, TERRESTRIAL_SUBNET)?;
        match far_end {
            FarEnd::StockClient => stock_receive_window(&client)?,
            FarEnd::Client | FarEnd::Terminal | FarEnd::ForwardingTerminal => {
                open_receive_window(far, config)?
            }
        }
        open_send_buffer(&gateway, config)?;
        if let Some(terminal) = &terminal {
            match far_end {
                FarEnd::ForwardingTerminal => open_receive_window(&client, config)?,
                _ => stock_receive_window(&client)?,
            }
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

    /// The far end of the satellite link: the terminal's or, without one, the client's.
    pub fn far_address(&self) -> IpAddr {
        SATELLITE_SUBNET.right4().into()
    }

    /// The client's address on its only link.
    pub fn client_address(&self) -> IpAddr {
        let subnet = if self.terminal.is_some() { CLIENT_SUBNET } else { SATELLITE_SUBNET };
        subnet.right4().into()
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
        self.serve_at(PORT, congestion, interval)
    }

    /// The same on another port.
    ///
    /// # Errors
    /// Those of the namespace and of the server.
    pub fn serve_at(&self, port: u16, congestion: Option<&str>, interval: Duration) -> io::Result<Server> {
        let address = self.server_address(port);
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
        let (initial, most) = DEFAULT_RECEIVE_BUFFER;
        let initial = (RECEIVE_BUFFER_BDPS * bdp.get()).max(initial);
        set_receive_buffer(host, initial, initial.max(most))?;
    }
    Ok(())
}

/// A new namespace has what the host has, which its operator may have changed.
fn stock_receive_window(host: &Namespace) -> Result<(), Error> {
    let (initial, most) = DEFAULT_RECEIVE_BUFFER;
    set_receive_buffer(host, initial, most)
}

fn set_receive_buffer(host: &Namespace, initial: u64, most: u64) -> Result<(), Error> {
    Ok(host.sysctl("net.ipv4.tcp_rmem", &format!("4096 {initial} {most}"))?)
}

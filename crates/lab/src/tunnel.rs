//! TCP that is not split on its way across a link: inside an encrypted tunnel between the server and the
//! client, or bare, because it is to stay end to end.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use bentpipe_testbed::Namespace;

use crate::Error;
use crate::download::{self, Progress, Request, SAMPLE_INTERVAL, Server};
use crate::esp::Esp;
use crate::topology::Topology;
use crate::unsplit::{Crossing, Measured};
use crate::wireguard::WireGuard;

/// The addresses inside, the server's and the client's.
const INSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 97, 0, 1), Ipv4Addr::new(10, 97, 0, 2)];
/// The longest packet inside, bytes. WireGuard adds 60 to it over IPv4 and ESP up to 57, so that what crosses
/// the link fits into a protected leg, whose MTU is 1436, as well as into one that is not.
pub const MTU: u32 = 1360;
/// The server's port.
const PORT: u16 = 80;
/// The server's congestion control.
const CONGESTION: &str = "cubic";

/// A kind of tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// None: TCP itself, end to end.
    Bare,
    /// WireGuard, over UDP.
    WireGuard,
    /// ESP in tunnel mode, over IP.
    Esp,
}

/// A tunnel that is up.
enum Running {
    Bare,
    WireGuard(WireGuard),
    Esp(Esp),
}

impl Tunnel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bare, Self::WireGuard, Self::Esp];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "no tunnel",
            Self::WireGuard => "WireGuard",
            Self::Esp => "ESP",
        }
    }

    /// What carries it, as rules name it.
    fn protocol(self) -> &'static str {
        match self {
            Self::Bare => "tcp",
            Self::WireGuard => "udp",
            Self::Esp => "esp",
        }
    }

    fn start(self, topology: &Topology) -> Result<Running, Error> {
        let running = match self {
            Self::Bare => return Ok(Running::Bare),
            Self::WireGuard => Running::WireGuard(WireGuard::start(topology)?),
            Self::Esp => Running::Esp(Esp::start(topology)?),
        };
        let interfaces = running.interfaces();
        let hosts = [&topology.server, &topology.client];
        for ((host, interface), address) in hosts.into_iter().zip(interfaces).zip(INSIDE) {
            bring_up(host, interface, address)?;
        }
        Ok(running)
    }

    /// Where the client finds the server.
    fn address(self, topology: &Topology) -> SocketAddr {
        match self {
            Self::Bare => topology.server_address(PORT),
            Self::WireGuard | Self::Esp => (INSIDE[0], PORT).into(),
        }
    }

    /// One download by TCP with CUBIC through the tunnel, from the server to the client across a link.
    ///
    /// # Errors
    /// The link, a box, the tunnel or the connection failed.
    pub fn cross(self, crossing: &Crossing) -> Result<Measured, Error> {
        let fail = |source| Error::Transfer { run: format!("TCP in {}", self.name()), source };
        let (topology, _boxes) = crossing.set_up(self.protocol())?;
        let _tunnel = self.start(&topology)?;
        let address = self.address(&topology);
        let server = topology.server.run(|| Server::start(address, Some(CONGESTION), SAMPLE_INTERVAL));
        let _server = server?.map_err(fail)?;
        // More than the link can carry.
        let request = Request { seed: crossing.seed, bytes: crossing.rate.bytes_in(crossing.lasts) };
        let client = |progress: &Progress| {
            let download = || download::download(address, request, progress);
            Ok(topology.client.run(download).map_err(io::Error::other)??.intact)
        };
        crossing.watch(&topology, client).map_err(fail)
    }
}

impl FromStr for Tunnel {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut tunnels = Self::ALL.into_iter();
        let found = tunnels.find(|tunnel| tunnel.name().replace(' ', "-").eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("there is no tunnel \"{name}\": choose no-tunnel, wireguard or esp"))
    }
}

impl Running {
    /// The server's and the client's.
    fn interfaces(&self) -> Vec<&str> {
        match self {
            Self::Bare => Vec::new(),
            Self::WireGuard(tunnel) => tunnel.interfaces().into(),
            Self::Esp(tunnel) => tunnel.interfaces().into(),
        }
    }
}

fn bring_up(host: &Namespace, interface: &str, address: Ipv4Addr) -> Result<(), Error> {
    host.ip(&format!("addr add {address}/30 dev {interface}"))?;
    Ok(host.ip(&format!("link set {interface} mtu {MTU} up"))?)
}

//! Peers that are reached by LTP: a socket for all of them, and a task for each with its
//! [`Engine`](bentpipe_ltp::Engine).
//!
//! ```text
//! socket ── datagrams by their source address ──► task of the peer ── blocks ──► node
//!        ◄── datagrams, paced ─────────────────── its engine       ◄── outcomes, bundles
//! ```

mod connection;
mod settings;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;

use bentpipe_kernel::sockopt;
use bentpipe_legs::{Legs, Senders};
use bentpipe_units::{ByteCount, Time};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::NodeConfig;
use crate::node::{Node, NodeError};

use connection::{Connection, Ends};
use settings::PeerLink;

/// Datagrams that wait for the node, or for the interface: more than 100 ms at 200 Mbit/s.
const BUFFER: ByteCount = ByteCount::new(4 << 20);
/// Datagrams that wait for the task of their peer, which may be waiting for the disk. Those beyond are lost.
const WAITING: usize = 8192;
/// The longest datagram of UDP.
const LONGEST: usize = 65_535;

/// The socket of all engines of this node. It has to be made before privileges are dropped.
pub(super) fn bind(address: SocketAddr) -> Result<StdSocket, NodeError> {
    let open = || -> io::Result<StdSocket> {
        let socket =
            Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // What an MTU does not hold is cut by this host and not lost.
        sockopt::set_fragmentation(&socket, address.is_ipv6())?;
        sockopt::set_send_buffer(&socket, BUFFER)?;
        sockopt::set_receive_buffer(&socket, BUFFER)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    open().map_err(NodeError::system(format!("listen for LTP at UDP address {address}")))
}

/// Starts the tasks. Senders have the leg's controller allot their rates.
pub(super) fn start(
    node: &Node,
    config: &NodeConfig,
    legs: &Legs,
    senders: &Senders,
    socket: StdSocket,
    stop: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<SocketAddr, NodeError> {
    let listen = || NodeError::system("listen for LTP".into());
    let address = socket.local_addr().map_err(listen())?;
    let socket = Arc::new(UdpSocket::from_std(socket).map_err(listen())?);
    let mut inputs = HashMap::<IpAddr, Vec<Input>>::new();
    for peer in node.peers() {
        let Some(ltp) = &peer.settings.ltp else { continue };
        let link = PeerLink::of(node, config, legs, peer)?;
        if let Some(rated) = link.leg.as_ref().and_then(|leg| legs.leg(leg)).and_then(|leg| leg.rated()) {
            let action = "tell LTP from cross traffic".to_owned();
            rated.join(std::os::fd::AsFd::as_fd(&*socket)).map_err(NodeError::system(action))?;
        }
        let sender = link.is_rated.then(|| senders.register(link.leg.as_deref().unwrap_or_default()));
        let (input, datagrams) = mpsc::channel(WAITING);
        inputs.entry(ltp.address.ip()).or_default().push(Input { address: ltp.address, datagrams: input });
        let ends = Ends { socket: socket.clone(), datagrams, sender };
        if let Some(connection) = Connection::open(node, peer, link, ends)? {
            tasks.spawn(connection.run(stop.clone()));
        }
    }
    tracing::info!("listening for LTP at {address}");
    tasks.spawn(listen_at(socket, inputs, stop.clone()));
    Ok(address)
}

/// Where datagrams of a peer go.
struct Input {
    address: SocketAddr,
    datagrams: mpsc::Sender<Vec<u8>>,
}

/// Hands datagrams to the tasks of their peers, which are known by their addresses; their ports may be others
/// than those at which they listen.
async fn listen_at(
    socket: Arc<UdpSocket>,
    inputs: HashMap<IpAddr, Vec<Input>>,
    mut stop: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; LONGEST];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            _ = stop.wait_for(|stopped| *stopped) => return,
        };
        match received {
            Ok((len, from)) => {
                let of_host = inputs.get(&from.ip().to_canonical()).map_or(&[][..], Vec::as_slice);
                let by_port = of_host.iter().find(|input| input.address.port() == from.port());
                match by_port.or(of_host.first()) {
                    Some(input) => drop(input.datagrams.try_send(buffer[..len].to_vec())),
                    None => {
                        tracing::debug!("a datagram for LTP came from {from}, which is no peer's address")
                    }
                }
            }
            // An ICMP error for what was sent before: the peer's host may not be up yet.
            Err(error) => tracing::debug!("LTP: {error}"),
        }
    }
}

/// The time of the leg's controllers, too.
fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

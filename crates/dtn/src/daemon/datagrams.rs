//! The UDP sockets of LTP and of bundles in datagrams: one for all peers, and a queue for each.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;

use bentpipe_kernel::sockopt;
use bentpipe_units::{ByteCount, Time};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};

use crate::node::Node;

/// Datagrams that wait for the node, or for the interface: more than 100 ms at 200 Mbit/s.
const BUFFER: ByteCount = ByteCount::new(4 << 20);
/// Datagrams that wait for the task of their peer, which may be waiting for the disk. Those beyond are lost.
const WAITING: usize = 8192;
/// The most strangers that are named in the log. The source of a datagram can be forged.
const STRANGERS: usize = 64;
/// The longest datagram of UDP.
const LONGEST: usize = 65_535;

/// Headers of IP and UDP around a datagram to this address, bytes.
pub(super) fn headers(address: SocketAddr) -> u64 {
    8 + if address.is_ipv6() { 40 } else { 20 }
}

/// A socket. It has to be made before privileges are dropped.
pub(super) fn bind(address: SocketAddr) -> io::Result<StdSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // What an MTU does not hold is cut by this host and not lost.
    sockopt::set_fragmentation(&socket, address.is_ipv6())?;
    sockopt::set_send_buffer(&socket, BUFFER)?;
    sockopt::set_receive_buffer(&socket, BUFFER)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Where datagrams of the peers go.
#[derive(Default)]
pub(super) struct Inputs(HashMap<IpAddr, Vec<Input>>);

struct Input {
    address: SocketAddr,
    datagrams: mpsc::Sender<Vec<u8>>,
}

impl Inputs {
    /// The datagrams of the peer with this address from now on.
    pub(super) fn of(&mut self, address: SocketAddr) -> mpsc::Receiver<Vec<u8>> {
        let (datagrams, receiver) = mpsc::channel(WAITING);
        self.0.entry(address.ip()).or_default().push(Input { address, datagrams });
        receiver
    }

    /// Hands datagrams to the tasks of their peers, which are known by their addresses; their ports may be
    /// others than those at which they listen. Those of strangers are counted. Until the node stops.
    pub(super) async fn listen(
        self,
        layer: &'static str,
        node: Node,
        socket: Arc<UdpSocket>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut buffer = vec![0; LONGEST];
        let (counters, mut strangers) = (node.counters(), Strangers { layer, known: HashSet::new() });
        loop {
            let received = tokio::select! {
                received = socket.recv_from(&mut buffer) => received,
                _ = stop.wait_for(|stopped| *stopped) => return,
            };
            match received {
                Ok((len, from)) => {
                    let of_host = self.0.get(&from.ip().to_canonical()).map_or(&[][..], Vec::as_slice);
                    let by_port = of_host.iter().find(|input| input.address.port() == from.port());
                    match by_port.or(of_host.first()) {
                        Some(input) => {
                            if input.datagrams.try_send(buffer[..len].to_vec()).is_err() {
                                counters.overrun.add(1);
                            }
                        }
                        None => {
                            counters.strangers.add(1);
                            strangers.came(from.ip().to_canonical());
                        }
                    }
                }
                // An ICMP error for what was sent before: the peer's host may not be up yet.
                Err(error) => tracing::debug!("{layer}: {error}"),
            }
        }
    }
}

/// Hosts that are no peers and have sent something.
struct Strangers {
    layer: &'static str,
    known: HashSet<IpAddr>,
}

impl Strangers {
    /// Says it the first time; later datagrams are only counted.
    fn came(&mut self, from: IpAddr) {
        let layer = self.layer;
        if self.known.len() == STRANGERS || !self.known.insert(from) {
            return;
        }
        tracing::info!(
            "{layer}: datagrams from {from} are ignored, because no peer has this address; if it is a peer's, \
             write it in [[peers]]"
        );
        if self.known.len() == STRANGERS {
            tracing::info!(
                "{layer}: {STRANGERS} strangers have sent datagrams; more of them are only counted"
            );
        }
    }
}

/// The time of the leg's controllers, too.
pub(super) fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

//! Peers that are reached by LTP: a socket for all of them, and a task for each with its
//! [`Engine`](bentpipe_ltp::Engine).
//!
//! ```text
//! socket ── datagrams by their source address ──► task of the peer ── blocks ──► node
//!        ◄── datagrams, paced ─────────────────── its engine       ◄── outcomes, bundles
//! ```

mod connection;
mod keys;
mod settings;

use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::os::fd::AsFd;
use std::sync::Arc;

use bentpipe_legs::{Legs, Senders};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::NodeConfig;
use crate::node::{Node, NodeError};

use super::datagrams::{self, Inputs};
use connection::{Connection, Ends};
pub(super) use keys::Keys;
use settings::PeerLink;

/// The socket of all engines of this node. It has to be made before privileges are dropped.
pub(super) fn bind(address: SocketAddr) -> Result<StdSocket, NodeError> {
    datagrams::bind(address).map_err(NodeError::system(format!("listen for LTP at UDP address {address}")))
}

/// Starts the tasks. Senders have the leg's controller allot their rates.
pub(super) fn start(
    node: &Node,
    config: &NodeConfig,
    legs: &Legs,
    senders: &Senders,
    (socket, keys): (StdSocket, &Keys),
    stop: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<SocketAddr, NodeError> {
    let listen = || NodeError::system("listen for LTP".into());
    let address = socket.local_addr().map_err(listen())?;
    let socket = Arc::new(UdpSocket::from_std(socket).map_err(listen())?);
    let mut inputs = Inputs::default();
    for peer in node.peers() {
        let Some(settings) = &peer.settings.ltp else { continue };
        let id = &peer.settings.id;
        let link = PeerLink::of(node, config, legs, &peer.settings, settings)?;
        if let Some(rated) = link.leg.as_ref().and_then(|leg| legs.leg(leg)).and_then(|leg| leg.rated()) {
            let action = "tell LTP from cross traffic".to_owned();
            rated.join(socket.as_fd()).map_err(NodeError::system(action))?;
        }
        let sender = link.is_rated.then(|| senders.register(link.leg.as_deref().unwrap_or_default()));
        let authentication = keys.of(id);
        let ends =
            Ends { socket: socket.clone(), datagrams: inputs.of(link.address), sender, authentication };
        tasks.spawn(Connection::open(node, id, link, ends)?.run(stop.clone()));
    }
    tracing::info!("listening for LTP at {address}");
    tasks.spawn(inputs.listen("LTP", node.clone(), socket, stop.clone()));
    Ok(address)
}

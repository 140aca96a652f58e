//! Peers that are reached by UDP, a bundle in each datagram (RFC 7122 §3.3; draft-ietf-dtn-udpcl for BPv7).
//! Nothing is acknowledged: a bundle that was sent is forgotten.

use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;
use std::time::Duration;

use bentpipe_ltp::Pacer;
use bentpipe_units::Rate;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::Eid;
use crate::config::{NodeConfig, PeerUdpSettings};
use crate::convergence::{BundleAgent, Outcome, blocking};
use crate::node::session::PeerSession;
use crate::node::{Node, NodeError};

use super::datagrams::{self, Inputs, headers, now};

/// How this layer is called in the log.
const LAYER: &str = "bundles over UDP";
/// What a bundle of BPv7 begins with: a CBOR array without a length (RFC 9171 §4.1). Other datagrams are of other
/// kinds: padding and keepalives of zeros, DTLS, BPv6.
const BUNDLE: u8 = 0x9f;
/// The longest sleep: contacts begin and end.
const TICK: Duration = Duration::from_millis(100);
/// Datagrams that are taken together, and that are sent before the input is looked at again.
const BATCH: usize = 64;

/// The socket for all peers. It has to be made before privileges are dropped.
pub(super) fn bind(address: SocketAddr) -> Result<StdSocket, NodeError> {
    datagrams::bind(address)
        .map_err(NodeError::system(format!("listen for bundles at UDP address {address}")))
}

/// Starts a task for each peer.
pub(super) fn start(
    node: &Node,
    config: &NodeConfig,
    socket: StdSocket,
    stop: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<(), NodeError> {
    let socket =
        UdpSocket::from_std(socket).map_err(NodeError::system("listen for bundles by UDP".into()))?;
    let (socket, mut inputs) = (Arc::new(socket), Inputs::default());
    for peer in node.peers() {
        let Some(settings) = &peer.settings.udp else { continue };
        let id = peer.settings.id.clone();
        let agent = PeerSession::by_datagrams(node.clone(), settings.address);
        agent.admit(&id, None).map_err(|why| NodeError::Service(format!("{LAYER} with {id}: {why}")))?;
        let leg = peer.settings.leg.as_ref().and_then(|leg| config.legs.get(leg));
        let exchange = Exchange {
            node: node.clone(),
            id,
            settings: settings.clone(),
            rate: settings.rate.or_else(|| leg.and_then(|leg| leg.rate)),
            agent: Arc::new(agent),
            socket: socket.clone(),
            datagrams: inputs.of(settings.address),
            pacer: Pacer::new(0.0, now()),
        };
        tasks.spawn(exchange.run(stop.clone()));
    }
    tasks.spawn(inputs.listen(LAYER, node.clone(), socket, stop.clone()));
    Ok(())
}

/// The exchange with a peer.
struct Exchange {
    node: Node,
    id: Eid,
    settings: PeerUdpSettings,
    /// The rate that was configured, for it or its leg.
    rate: Option<Rate>,
    agent: Arc<PeerSession>,
    socket: Arc<UdpSocket>,
    datagrams: mpsc::Receiver<Vec<u8>>,
    pacer: Pacer,
}

impl Exchange {
    /// Until the node stops.
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let wait = blocking(|| self.step(&mut batch));
            let agent = self.agent.clone();
            tokio::select! {
                got = self.datagrams.recv_many(&mut batch, BATCH) => if got == 0 { return },
                () = agent.ready(&self.id), if wait == TICK => {}
                () = tokio::time::sleep(wait) => {}
                _ = stop.wait_for(|stopped| *stopped) => return,
            }
        }
    }

    /// Does what can be done now; returns for how long nothing else can.
    fn step(&mut self, batch: &mut Vec<Vec<u8>>) -> Duration {
        batch.drain(..).for_each(|datagram| self.take(&datagram));
        let state = self.node.link_to(&self.id);
        let rate = self.rate.or(state.rate).map_or(0.0, |rate| rate.bps() as f64 / 8.0);
        self.pacer.set_rate(rate);
        if !state.sends {
            return TICK;
        }
        for _ in 0..BATCH {
            let (Some(next), now) = (self.pacer.next(), now()) else { return TICK };
            if next > now {
                return next.since(now).min(TICK);
            }
            if !self.send() {
                return TICK;
            }
        }
        Duration::ZERO
    }

    /// Sends the next bundle. `false` if there is none.
    fn send(&mut self) -> bool {
        let Some(mut outgoing) = self.agent.next(&self.id, self.settings.datagram.get()) else {
            return false;
        };
        let handle = outgoing.handle();
        match outgoing.read_all() {
            Ok(datagram) => {
                // What is not sent here is lost as what is lost on the link.
                if let Err(error) = self.socket.try_send_to(&datagram, self.settings.address) {
                    tracing::debug!("a bundle for {} was not sent: {error}", self.id);
                }
                let bytes = datagram.len() as u64 + headers(self.settings.address);
                self.pacer.sent(now(), bytes);
                self.agent.sent(&self.id, handle);
            }
            // The node has postponed it.
            Err(error) => tracing::error!("a bundle for {} could not be read: {error}", self.id),
        }
        true
    }

    fn take(&self, datagram: &[u8]) {
        if datagram.first() != Some(&BUNDLE) {
            let first = datagram.first();
            return tracing::debug!(
                "{} sent a datagram without a bundle, which begins with {first:02x?}",
                self.id
            );
        }
        let incoming = self.agent.receive(&self.id, Some(datagram.len() as u64));
        let written = incoming.and_then(|mut incoming| incoming.write(datagram).map(|()| incoming));
        // The sender does not hear what has become of it; the node has counted it.
        if let Ok(incoming) = written {
            incoming.finish(Outcome::new(|_| {}));
        }
    }
}

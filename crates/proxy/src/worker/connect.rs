//! From an accepted socket to a flow: who it is, whether there is room, and the connection to its server.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use bentpipe_kernel::Weight;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::sockopt;
use bentpipe_kernel::tcp_info::{State, tcp_info};
use bentpipe_legs::Legs;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, getsockname};

use super::Worker;
use crate::access_log::Ending;
use crate::admission::Limit;
use crate::config::Handshake;
use crate::connect::early_data::{Accepted, EarlyData};
use crate::connect::upstream::{self, Endpoints, Upstream};
use crate::deferred_accept::{Claim, Connected};
use crate::flow::{Flow, Route, Side};
use crate::relay::RelaySocket;
use crate::types::leg_pair::LegPair;
use crate::types::slab::{Key, Token};

impl Worker {
    pub(super) fn begin(
        &mut self,
        client: OwnedFd,
        peer: Option<SocketAddrAny>,
        pair: LegPair,
        legs: &Arc<Legs>,
    ) {
        // Without its addresses the connection is already gone.
        let Ok(ends) = ends_of(&client, peer) else { return };
        self.shared.liveness.note_accepted(ends.client.is_ipv4());
        if ends.server.ip().is_loopback() {
            tracing::debug!(client = %ends.client, "reset a connection to the proxy's own port {}", ends.server);
            return self.counters.own_port.add(1);
        }
        let claim = self.pending.claim(ends.client, ends.server);
        if !matches!(claim, Claim::Nothing) {
            return self.join(client, ends, Route { pair, legs: legs.clone() }, claim);
        }
        let permit = match self.shared.admission.admit(ends.client.ip()) {
            Ok(permit) => permit,
            Err(limit) => return self.refuse(&ends, Route { pair, legs: legs.clone() }, limit),
        };
        self.counters.flows_total.add(1);
        let accepted = Accepted { client, ends, pair, legs: legs.clone(), permit };
        if !legs.get(pair.server).fast_open() {
            self.open(accepted);
        } else if let Some(accepted) = self.awaiting_data.keep(&self.epoll, accepted, Instant::now()) {
            self.open(accepted);
        }
    }

    pub(super) fn open(&mut self, accepted: Accepted) {
        let (ends, route) = (accepted.ends, Route { pair: accepted.pair, legs: accepted.legs.clone() });
        let fast_open = accepted.legs.get(accepted.pair.server).fast_open();
        let early_data = match fast_open.then(|| EarlyData::peek(&accepted.client)).transpose() {
            Ok(early_data) => early_data,
            Err(error) => {
                tracing::debug!(client = %ends.client, server = %ends.server, %error, "the client is gone");
                self.log_unserved(&ends, route, Handshake::Early, Ending::of(Side::Client, &error));
                return self.counters.flows_reset.add(1);
            }
        };
        if let Err(error) = self.connect(accepted, early_data) {
            self.fail(&ends, route, Handshake::Early, &error);
        }
    }

    /// Deferred accept has contacted the server before the client was answered.
    pub(super) fn join(&mut self, client: OwnedFd, ends: Endpoints, route: Route, claim: Claim) {
        self.counters.flows_total.add(1);
        self.counters.held_claimed.add(1);
        let to = route.clone();
        let outcome = match claim {
            Claim::Connected(server) => self.relay_between(client, ends, to, server, Flow::connected),
            Claim::Asked(server) => self.relay_between(client, ends, to, server, |flow| flow),
            // The server had answered, and has reset the connection: so is the client's, which is closed
            // here.
            Claim::Nothing | Claim::Reset => Err(Errno::CONNRESET.into()),
        };
        if let Err(error) = outcome {
            self.fail(&ends, route, Handshake::Faithful, &error);
        }
    }

    pub(super) fn fail(&mut self, ends: &Endpoints, route: Route, handshake: Handshake, error: &io::Error) {
        self.counters.connects_failed.add(1);
        self.log_unserved(ends, route, handshake, Ending::of(Side::Server, error));
        tracing::debug!(client = %ends.client, server = %ends.server, %error, "cannot connect to the server");
        if let Some(error) = out_of_descriptors(error) {
            self.pause_accepting(error);
        }
    }

    pub(super) fn relay_between(
        &mut self,
        client: OwnedFd,
        ends: Endpoints,
        route: Route,
        server: Connected,
        come_so_far: impl FnOnce(Flow) -> Flow,
    ) -> io::Result<()> {
        let Connected { socket, other_port, permit } = server;
        if ends.dscp != 0 {
            sockopt::set_dscp(&client, &ends.client, ends.dscp)?;
        }
        self.note_port(&ends, other_port);
        let (client, server) = (RelaySocket::new(client), RelaySocket::new(socket));
        let pair = route.pair;
        let mut flow = come_so_far(Flow::new(ends, route, client, server, 0, permit)).faithful();
        tracing::debug!(%flow, ?pair, "new flow, started by deferred accept");
        flow.join(&self.shared.leg_stats);
        self.register(flow).map(drop)
    }

    pub(super) fn note_port(&self, ends: &Endpoints, other_port: bool) {
        if other_port {
            self.counters.other_port.add(1);
            tracing::debug!(client = %ends.client, server = %ends.server, "the client's port is taken here; using another");
        }
    }

    /// The connection was answered before the rules knew that there is no room for it.
    pub(super) fn refuse(&self, ends: &Endpoints, route: Route, limit: Limit) {
        self.counters.flows_refused.add(1);
        self.log_unserved(ends, route, Handshake::Early, Ending::AtLimit(limit));
        tracing::debug!(client = %ends.client, server = %ends.server, %limit, "reset a connection beyond a limit");
    }

    pub(super) fn connect(&mut self, accepted: Accepted, early_data: Option<EarlyData>) -> io::Result<()> {
        let Accepted { client, ends, pair, legs, permit } = accepted;
        if ends.dscp != 0 {
            sockopt::set_dscp(&client, &ends.client, ends.dscp)?;
        }
        let from = legs.get(pair.client);
        let fast_open = from.fast_open();
        if let Some(window) = from.far_window() {
            assume_far_window(&client, window)?;
        }
        let upstream = self.start_upstream(&ends, legs.get(pair.server), pair.weight, early_data.as_ref())?;
        if let Some(word) = early_data {
            word.consume(&client, upstream.sent)?;
            self.counters.bytes_up.add(upstream.sent as u64);
        }
        self.note_port(&ends, upstream.other_port);
        let (client, server) = (RelaySocket::new(client), RelaySocket::new(upstream.socket));
        let mut flow = Flow::new(ends, Route { pair, legs }, client, server, upstream.sent as u64, permit);
        tracing::debug!(%flow, ?pair, "new flow");
        flow.join(&self.shared.leg_stats);
        let key = self.register(flow)?;
        if fast_open {
            self.answer_early(key);
        }
        Ok(())
    }

    pub(super) fn start_upstream(
        &mut self,
        ends: &Endpoints,
        leg: &Leg,
        weight: Weight,
        early_data: Option<&EarlyData>,
    ) -> io::Result<Upstream> {
        let mark = self.pending.mark_of(ends.client, ends.server);
        match upstream::start(ends, mark, leg, weight, early_data) {
            Err(error) if out_of_descriptors(&error).is_some() && self.spare.take().is_some() => {
                upstream::start(ends, mark, leg, weight, early_data)
            }
            outcome => outcome,
        }
    }

    /// Both sockets are registered once, for everything, and stay so until they are closed.
    /// The legs know of the flow already.
    pub(super) fn register(&mut self, flow: Flow) -> io::Result<Key> {
        let interest =
            EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI | EventFlags::ET;
        let key = self.flows.insert(flow);
        let Some(flow) = self.flows.get_mut(key) else { return Ok(key) };
        for side in [Side::Client, Side::Server] {
            let data = EventData::new_u64(Token::Flow(key, side).encode());
            if let Err(error) = epoll::add(&self.epoll, &flow.endpoint(side).socket, data, interest) {
                self.flows.remove(key);
                return Err(error.into());
            }
        }
        if self.rejoin_until.is_some_and(|until| Instant::now() < until) {
            self.to_rejoin.push_back(key);
        }
        Ok(key)
    }
}

/// The client has sent its request with the SYN, and the other box's receive buffer is known: an answer need not
/// wait for the acknowledgement that tells of it.
fn assume_far_window(client: &OwnedFd, window: u32) -> io::Result<()> {
    if tcp_info(client)?.state == State::SynReceived {
        sockopt::assume_send_window(client, window)?;
    }
    Ok(())
}

/// The client as the socket's peer, the server as the address that the client meant: with `tproxy` it is the
/// socket's own.
fn ends_of(socket: &OwnedFd, peer: Option<SocketAddrAny>) -> io::Result<Endpoints> {
    let client = SocketAddr::try_from(peer.ok_or(Errno::NOTCONN)?)?;
    let server = SocketAddr::try_from(getsockname(socket)?)?;
    let dscp = sockopt::dscp_of_syn(socket, &server)?;
    Ok(Endpoints { client, server, dscp })
}

/// The error if it says that this process, or the system, has no descriptor left.
fn out_of_descriptors(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error).filter(|errno| matches!(*errno, Errno::MFILE | Errno::NFILE))
}

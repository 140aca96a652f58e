//! From an accepted socket to a flow: who it is, whether there is room, and the connection to its server.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use bentpipe_kernel::Weight;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::sockopt;
use bentpipe_legs::Legs;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, getsockname};

use super::Worker;
use crate::connect::{self, Ends, Upstream};
use crate::fast_open::{FirstWord, Opening};
use crate::flow::{Flow, Side, Way};
use crate::gate::Limit;
use crate::greeter::{Claim, Connected};
use crate::path::Path;
use crate::relay::Endpoint;
use crate::slab::{Key, Token};

impl Worker {
    pub(super) fn begin(
        &mut self,
        client: OwnedFd,
        peer: Option<SocketAddrAny>,
        path: Path,
        legs: &Arc<Legs>,
    ) {
        // Without its addresses the connection is already gone.
        let Ok(ends) = ends_of(&client, peer) else { return };
        if ends.server.ip().is_loopback() {
            tracing::debug!(client = %ends.client, "reset a connection to the proxy's own port {}", ends.server);
            return self.counters.own_port.add(1);
        }
        let claim = self.shared.book.claim(ends.client, ends.server);
        if !matches!(claim, Claim::Nothing) {
            return self.join(client, ends, Way { path, legs: legs.clone() }, claim);
        }
        let ticket = match self.shared.gate.admit(ends.client.ip()) {
            Ok(ticket) => ticket,
            Err(limit) => return self.refuse(&ends, limit),
        };
        self.counters.flows_total.add(1);
        let opening = Opening { client, ends, path, legs: legs.clone(), ticket };
        if !legs.get(path.server).fast_open() {
            self.open(opening);
        } else if let Some(opening) = self.listening.keep(&self.epoll, opening, Instant::now()) {
            self.open(opening);
        }
    }

    pub(super) fn open(&mut self, opening: Opening) {
        let ends = opening.ends;
        let fast_open = opening.legs.get(opening.path.server).fast_open();
        let first_word = match fast_open.then(|| FirstWord::peek(&opening.client)).transpose() {
            Ok(first_word) => first_word,
            Err(error) => {
                tracing::debug!(client = %ends.client, server = %ends.server, %error, "the client is gone");
                return self.counters.flows_reset.add(1);
            }
        };
        if let Err(error) = self.connect(opening, first_word) {
            self.fail(&ends, &error);
        }
    }

    /// The greeter has asked the server before the client was answered.
    pub(super) fn join(&mut self, client: OwnedFd, ends: Ends, way: Way, claim: Claim) {
        self.counters.flows_total.add(1);
        self.counters.held_claimed.add(1);
        let outcome = match claim {
            Claim::Connected(server) => self.relay_between(client, ends, way, server, Flow::connected),
            Claim::Asked(server) => self.relay_between(client, ends, way, server, |flow| flow),
            // The server had answered, and has reset the connection: so is the client's, which is closed here.
            Claim::Nothing | Claim::Reset => Err(Errno::CONNRESET.into()),
        };
        if let Err(error) = outcome {
            self.fail(&ends, &error);
        }
    }

    pub(super) fn fail(&mut self, ends: &Ends, error: &io::Error) {
        self.counters.connects_failed.add(1);
        tracing::debug!(client = %ends.client, server = %ends.server, %error, "cannot connect to the server");
        if let Some(error) = out_of_descriptors(error) {
            self.pause_accepting(error);
        }
    }

    pub(super) fn relay_between(
        &mut self,
        client: OwnedFd,
        ends: Ends,
        way: Way,
        server: Connected,
        come_so_far: impl FnOnce(Flow) -> Flow,
    ) -> io::Result<()> {
        let Connected { socket, other_port, ticket } = server;
        if ends.dscp != 0 {
            sockopt::set_dscp(&client, &ends.client, ends.dscp)?;
        }
        self.note_port(&ends, other_port);
        let (client, server) = (Endpoint::new(client), Endpoint::new(socket));
        let path = way.path;
        let mut flow = come_so_far(Flow::new(ends, way, client, server, 0, ticket));
        tracing::debug!(%flow, ?path, "new flow, its server has been asked before");
        flow.join(&self.shared.tally);
        self.register(flow).map(drop)
    }

    pub(super) fn note_port(&self, ends: &Ends, other_port: bool) {
        if other_port {
            self.counters.other_port.add(1);
            tracing::debug!(client = %ends.client, server = %ends.server, "the client's port is taken here; using another");
        }
    }

    /// The connection was answered before the rules knew that there is no room for it.
    pub(super) fn refuse(&self, ends: &Ends, limit: Limit) {
        self.counters.flows_refused.add(1);
        tracing::debug!(client = %ends.client, server = %ends.server, %limit, "reset a connection beyond a limit");
    }

    pub(super) fn connect(&mut self, opening: Opening, first_word: Option<FirstWord>) -> io::Result<()> {
        let Opening { client, ends, path, legs, ticket } = opening;
        if ends.dscp != 0 {
            sockopt::set_dscp(&client, &ends.client, ends.dscp)?;
        }
        let upstream = self.start_upstream(&ends, legs.get(path.server), path.weight, first_word.as_ref())?;
        if let Some(word) = first_word {
            word.consume(&client, upstream.sent)?;
            self.counters.bytes_up.add(upstream.sent as u64);
        }
        self.note_port(&ends, upstream.other_port);
        let (client, server) = (Endpoint::new(client), Endpoint::new(upstream.socket));
        let mut flow = Flow::new(ends, Way { path, legs }, client, server, upstream.sent as u64, ticket);
        tracing::debug!(%flow, ?path, "new flow");
        flow.join(&self.shared.tally);
        self.register(flow).map(drop)
    }

    pub(super) fn start_upstream(
        &mut self,
        ends: &Ends,
        leg: &Leg,
        weight: Weight,
        first_word: Option<&FirstWord>,
    ) -> io::Result<Upstream> {
        match connect::start(ends, leg, weight, first_word) {
            Err(error) if out_of_descriptors(&error).is_some() && self.spare.take().is_some() => {
                connect::start(ends, leg, weight, first_word)
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

/// The client as the socket's peer, the server as the address that the client meant: with `tproxy` it is the socket's own.
fn ends_of(socket: &OwnedFd, peer: Option<SocketAddrAny>) -> io::Result<Ends> {
    let client = SocketAddr::try_from(peer.ok_or(Errno::NOTCONN)?)?;
    let server = SocketAddr::try_from(getsockname(socket)?)?;
    let dscp = sockopt::dscp_of_syn(socket, &server)?;
    Ok(Ends { client, server, dscp })
}

/// The error if it says that this process, or the system, has no descriptor left.
fn out_of_descriptors(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error).filter(|errno| matches!(*errno, Errno::MFILE | Errno::NFILE))
}

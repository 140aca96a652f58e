//! The tasks that accept and open sessions with other nodes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bentpipe_kernel::Weight;
use bentpipe_kernel::leg::Leg;
use bentpipe_legs::Legs;
use bentpipe_units::{ByteCount, Span};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Eid;
use crate::config::{PeerAddress, PeerSettings};
use crate::node::Node;
use crate::node::peers::Peer;
use crate::node::session::PeerSession;
use crate::tcpcl::{self, PeerOverride, Role, SessionEnd, SessionSettings, Tls, TlsConfig};

use super::sockets::stream_socket;

/// The first wait after a failed connection; it doubles up to the peer's `retry_within`.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Timeout of an attempt to connect; several addresses of a name share it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The least of it that each gets.
const LEAST_TIMEOUT: Duration = Duration::from_secs(15);
/// The most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 16;
/// How long the listener waits after accept(2) fails, for instance because descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the task of an unconnected peer checks whether it may connect.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The default keepalive interval.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// What every session needs.
#[derive(Clone)]
pub(super) struct SessionContext {
    pub(super) node: Node,
    pub(super) legs: Arc<Legs>,
    pub(super) tls: Option<Arc<TlsConfig>>,
    pub(super) stop: watch::Receiver<bool>,
}

impl SessionContext {
    /// Accepts sessions until the node stops.
    pub(super) async fn listen(self, listener: TcpListener, leg: Option<String>) {
        let mut sessions = JoinSet::new();
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = sessions.join_next(), if !sessions.is_empty() => continue,
                _ = stop.wait_for(|stopped| *stopped) => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    sessions.spawn(self.clone().accepted(stream, address, leg.clone()));
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        while sessions.join_next().await.is_some() {}
    }

    async fn accepted(self, stream: TcpStream, address: SocketAddr, leg: Option<String>) {
        let settings = self.settings(None, leg.as_deref());
        let _paced = add_to_leg(&stream, find_leg(&self.legs, leg.as_deref()));
        let session = Arc::new(PeerSession::new(self.node.clone(), address));
        let end = tcpcl::run(stream, Role::Passive, settings, session, self.stop).await;
        if let Some(peer) = end.peer.as_ref().and_then(|peer| self.node.peer(peer)) {
            peer.record_error(&end.reason);
        }
        let peer = end.peer.as_ref().map_or_else(String::new, |peer| format!("{peer} at "));
        log(&format!("the session with {peer}{address}"), &end);
    }

    /// Keeps a session with a peer, if its address is known and while the contact plan allows it.
    pub(super) async fn connect(self, id: Eid) {
        let node = self.node.clone();
        let Some(peer) = node.peer(&id) else { return };
        let Some(address) = &peer.settings.address else { return };
        let mut stop = self.stop.clone();
        let mut wait = FIRST_WAIT;
        loop {
            let attempt = async {
                while peer.is_connected() || !node.has_contact(&id) {
                    let _ = tokio::time::timeout(CHECK_INTERVAL, peer.dial.notified()).await;
                }
                self.dial(peer, address).await
            };
            let dialled = tokio::select! {
                dialled = attempt => dialled,
                _ = stop.wait_for(|stopped| *stopped) => return,
            };
            match dialled {
                Ok((stream, address)) => {
                    if self.run_session(stream, peer, address).await {
                        wait = FIRST_WAIT;
                    }
                }
                Err(text) => {
                    if peer.record_error(&text) {
                        tracing::warn!("{id} at {address}: {text}; retrying until it succeeds");
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A contact has begun or ended.
                () = peer.dial.notified() => wait = FIRST_WAIT,
                _ = stop.wait_for(|stopped| *stopped) => return,
            }
            wait = (wait * 2).min(peer.settings.retry_within.get());
        }
    }

    /// Runs a session over a connection to a peer. Returns whether it was established.
    async fn run_session(&self, stream: TcpStream, peer: &Peer, address: SocketAddr) -> bool {
        let settings = self.settings(Some(peer), peer.settings.leg.as_deref());
        let _paced = add_to_leg(&stream, find_leg(&self.legs, peer.settings.leg.as_deref()));
        let session = Arc::new(PeerSession::new(self.node.clone(), address));
        let end = tcpcl::run(stream, Role::Active, settings, session.clone(), self.stop.clone()).await;
        if peer.record_error(&end.reason) {
            log(&format!("the session with {} at {address}", peer.settings.id), &end);
        }
        session.was_established()
    }

    /// Connects to the first address that answers. The error is a sentence for the log.
    async fn dial(&self, peer: &Peer, address: &PeerAddress) -> Result<(TcpStream, SocketAddr), String> {
        let addresses = resolve(address).await?;
        let share = CONNECT_TIMEOUT / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let mut errors = Vec::new();
        for address in addresses {
            peer.trying(address);
            match self.dial_address(peer, address, share.max(LEAST_TIMEOUT)).await {
                Ok(stream) => return Ok((stream, address)),
                Err(error) => errors.push((address, error)),
            }
        }
        Err(match (address, errors.as_slice()) {
            (PeerAddress::Ip(_), [(_, error)]) => format!("cannot connect: {error}"),
            _ => {
                let errors: Vec<String> =
                    errors.iter().map(|(address, error)| format!("{address}: {error}")).collect();
                format!("cannot connect: {}", errors.join("; "))
            }
        })
    }

    async fn dial_address(
        &self,
        peer: &Peer,
        address: SocketAddr,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let socket = stream_socket(address)?;
        find_leg(&self.legs, peer.settings.leg.as_deref())
            .apply_before_connect(socket.as_fd(), Weight::default())?;
        let connecting = TcpSocket::from_std_stream(socket.into()).connect(address);
        tokio::time::timeout(timeout, connecting).await.unwrap_or_else(|_| {
            let text = format!("no answer within {timeout:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }

    /// The settings of a session: with `peer` if this node connected to it.
    fn settings(&self, peer: Option<&Peer>, leg: Option<&str>) -> SessionSettings {
        let survives = find_leg(&self.legs, leg).timers().user_timeout.unwrap_or_default();
        let chosen = peer.and_then(|peer| peer.settings.keepalive);
        // TCP's timers bridge outages: keepalives must not end a session that its leg would survive.
        let keepalive = chosen.map_or(KEEPALIVE.max(survives / 2), Span::get);
        let mut settings = SessionSettings::new(self.node.id().clone());
        settings.keepalive = keepalive;
        // What could never be stored is not offered: senders fragment it.
        settings.transfer_mru = self.node.store().usage().quota.get();
        settings.tls = match (&self.tls, peer) {
            (Some(tls), Some(peer)) if peer.requires_tls => Tls::Require(tls.clone()),
            // An unknown caller: the node admits it without TLS only if the configuration allows that.
            (Some(tls), None) => Tls::Offer(tls.clone()),
            _ => Tls::Off,
        };
        settings.expected_peer = peer.map(|peer| peer.settings.id.clone());
        let peers = self.node.peers();
        settings.peers = peers.map(|peer| (peer.settings.id.clone(), overrides(&peer.settings))).collect();
        settings
    }
}

/// The addresses of a peer, in the order in which the host's resolver wants them tried (RFC 6724), at least one.
async fn resolve(address: &PeerAddress) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = match address {
        PeerAddress::Ip(address) => return Ok(vec![*address]),
        PeerAddress::Name { host, port } => (host.as_str(), *port),
    };
    let hint = "check the name, and this host's resolver (getent ahosts)";
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| format!("cannot find the address of {host}: {error}; {hint}"))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found.take(MAX_ADDRESSES) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(format!("{host} has no address; {hint}")) } else { Ok(addresses) }
}

/// The configuration has been checked, so a leg that is named exists.
pub(super) fn find_leg<'a>(legs: &'a Legs, name: Option<&str>) -> &'a Leg {
    name.and_then(|name| legs.leg(name)).unwrap_or_else(|| legs.terrestrial())
}

/// Has the leg's controller of explicit rates set the ceiling of this connection, where the leg has its rates
/// in this way, while the descriptor lives: a duplicate, because the session owns the stream.
fn add_to_leg(stream: &TcpStream, leg: &Leg) -> Option<Arc<OwnedFd>> {
    leg.rated()?;
    let duplicate = stream.as_fd().try_clone_to_owned();
    let duplicate = duplicate.inspect_err(|error| {
        let leg = leg.name();
        tracing::warn!(
            "cannot duplicate the descriptor of a session on leg {leg}: {error}; the session has no rate"
        );
    });
    let duplicate = Arc::new(duplicate.ok()?);
    leg.add(&duplicate, Weight::default()).map(|_| duplicate)
}

fn log(session: &str, end: &SessionEnd) {
    match end.in_order {
        true => tracing::info!("{session} has ended: {end}"),
        false => tracing::warn!("{session} has ended: {end}"),
    }
}

/// Configured limits that replace those that the peer announces.
fn overrides(settings: &PeerSettings) -> PeerOverride {
    PeerOverride {
        segment_mru: settings.segment_mru.map(ByteCount::get),
        transfer_mru: settings.transfer_mru.map(ByteCount::get),
        lenient: settings.lenient,
    }
}

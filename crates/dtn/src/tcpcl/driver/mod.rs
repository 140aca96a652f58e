//! A session over a socket: two tasks around one [`Session`].
//!
//! One task reads: what comes goes from its buffer of 256 KiB to the host. The other writes: messages that
//! wait, then a segment with its head, from one buffer in one write. Whatever may block on a disk runs where
//! blocking is allowed, so a slow disk of one session stops no other; and while the reader waits for the
//! disk, the writer goes on.
//!
//! What a peer can take: these two buffers, [`MAX_CONTROL`](super::session::MAX_CONTROL) bytes of answers
//! that it does not read, and a ticket for each transfer that it does not acknowledge, at most
//! [`MAX_UNACKNOWLEDGED`](super::session::MAX_UNACKNOWLEDGED). Before the session is established it can take
//! the reader's buffer, and 30 s.

mod handshake;
mod reader;
mod writer;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bentpipe_kernel::tcp_info::{State, TcpInfo, tcp_info};
use bentpipe_units::Time;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::session::Session;
use super::settings::{EndedBy, Role, SessionEnd, SessionSettings};
use super::tls::explain;
use crate::convergence::{BundleAgent, blocking};
use handshake::open;
use reader::read;
use writer::{flush_and_close, write};

/// Timeout for writing the last messages, and for the peer to close after them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the peer of a superseded session has to respond: the time of some retransmissions.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Runs a session over `stream` until it ends. When `shutdown` becomes `true`, or its sender is dropped, the
/// session ends in order: what has begun is finished. If the future is dropped, the session is gone at once;
/// in any case each unacknowledged transfer is returned to the agent.
///
/// Blocks on disks within [`tokio::task::block_in_place`], so the runtime should be one with several threads.
pub async fn run(
    stream: TcpStream,
    role: Role,
    settings: SessionSettings,
    agent: Arc<dyn BundleAgent>,
    mut shutdown: watch::Receiver<bool>,
) -> SessionEnd {
    let address = stream.peer_addr().ok();
    let place = address.map_or_else(|| "an unknown address".into(), |address| address.to_string());
    if let Err(error) = bentpipe_kernel::sockopt::set_nodelay(&stream) {
        tracing::debug!(%place, %error, "cannot set TCP_NODELAY");
    }
    let tls = settings.tls.clone();
    // TLS hides the socket, so it is duplicated.
    let socket = stream.as_fd().try_clone_to_owned().ok();
    let epoch = Instant::now();
    let session = Session::new(role, settings, place.clone(), Time::ZERO);
    let shared = Arc::new(Shared {
        session: Mutex::new(session),
        socket,
        wake: Notify::new(),
        resolved: Notify::new(),
        established: Notify::new(),
        agent,
        epoch,
        place,
    });
    let guard = Guard(shared.clone());
    let address = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
    if let Some((reader, writer)) = open(&shared, stream, role, &tls, address, &mut shutdown).await {
        tokio::select! {
            () = exchange(&shared, reader, writer, shutdown) => {}
            text = until_superseded(&shared) => shared.lock().abort(EndedBy::Network, text),
        }
    }
    drop(guard);
    let end = shared.lock().end().cloned();
    // Returning the rest ends a session that nothing else has ended.
    end.unwrap_or_else(|| SessionEnd {
        by: EndedBy::Us,
        reason: "the session was dropped".into(),
        in_order: false,
        peer: None,
    })
}

/// The state that both tasks share.
struct Shared {
    session: Mutex<Session>,
    /// For [`tcp_info`].
    socket: Option<OwnedFd>,
    /// There may be something to write.
    wake: Notify,
    /// A received transfer has an outcome.
    resolved: Notify,
    /// Notified once, when the agent has admitted the peer.
    established: Notify,
    agent: Arc<dyn BundleAgent>,
    epoch: Instant,
    place: String,
}

/// Returns the remaining transfers when the session is over, also if its future is dropped.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        let (peer, left) = {
            let mut session = self.0.lock();
            let left = session.abandon();
            (session.peer().cloned(), left)
        };
        if let Some(peer) = peer {
            blocking(|| left.into_iter().for_each(|handle| self.0.agent.returned(&peer, handle)));
        }
    }
}

impl Shared {
    /// The lock is never held across a call of the agent. A panic within leaves a session that can still end.
    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::ZERO + self.epoch.elapsed()
    }

    fn is_over(&self) -> bool {
        self.lock().end().is_some()
    }

    fn failed(&self, attempt: &str, error: &io::Error) {
        let mut session = self.lock();
        match explain(error, &self.place) {
            Some(text) => session.abort(EndedBy::Peer, text),
            None => session.connection_failed(attempt, error),
        }
    }

    fn info(&self) -> Option<TcpInfo> {
        tcp_info(self.socket.as_ref()?).ok()
    }

    /// The connection has no more input. The kernel reports a reset once, to the call that comes first: if
    /// the writer's was it, the reader sees an end like that of a peer that has closed, but the socket is
    /// closed.
    fn ended(&self) {
        match self.info() {
            Some(TcpInfo { state: State::Close, .. }) => {
                self.failed("reading", &io::ErrorKind::ConnectionReset.into());
            }
            _ => self.lock().receive_eof(),
        }
    }

    /// Waits for the next timer and runs it; returns at once if the session is over.
    async fn tick(&self) {
        let deadline = self.lock().deadline();
        // At least once a day, so that `Time::MAX` needs no special case.
        let due = deadline.since(self.now()).min(Duration::from_secs(86_400));
        tokio::time::sleep(due).await;
        self.lock().on_time(self.now());
    }
}

/// Completes, with the reason, when a newer session with the same peer exists and this one receives nothing,
/// not even TCP's acknowledgement of a keepalive: the peer's host has restarted. Otherwise this session's
/// transfers would wait for its timers, which are as long as the outages that the leg survives.
async fn until_superseded(shared: &Shared) -> String {
    shared.established.notified().await;
    shared.agent.superseded().await;
    let heard = || shared.info().map(|info| info.segments_in);
    let before = heard();
    shared.lock().probe(shared.now());
    shared.wake.notify_one();
    tokio::time::sleep(PROBE_TIMEOUT).await;
    if before.is_none() || heard() != before {
        return std::future::pending().await;
    }
    format!(
        "the peer at {} has a newer session, and nothing came in this one for {} s",
        shared.place,
        PROBE_TIMEOUT.as_secs()
    )
}

/// Runs the two tasks of an open session.
async fn exchange(
    shared: &Arc<Shared>,
    reader: Reader,
    mut writer: Writer,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    tasks.spawn(read(shared.clone(), reader));
    let written = write(shared, &mut writer, &mut shutdown).await;
    if written {
        flush_and_close(shared, &mut writer).await;
        // Waits for the peer to close; further input is dropped.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, tasks.join_next()).await;
    }
    tasks.shutdown().await;
}

/// Waits for the end of the session, and runs its timers.
async fn until_over(shared: &Shared) {
    while !shared.is_over() {
        tokio::select! {
            () = shared.tick() => {}
            () = shared.wake.notified() => {}
        }
    }
}

/// Waits until this node stops.
async fn shutdown_requested(shutdown: &mut watch::Receiver<bool>, already: bool) {
    if already {
        std::future::pending::<()>().await;
    }
    // A dropped sender is a stop, too.
    let _ = shutdown.wait_for(|end| *end).await;
}

//! The running daemon's side of an upgrade: admitting a successor and handing it the snapshot.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, SocketFlags, accept_with};

use super::message::{ControlSocket, Inventory, MAX_DESCRIPTORS, Message};
use super::{PATIENCE, PROTOCOL_VERSION, UpgradeError, memfd};
use crate::snapshot::Snapshot;

/// How long a successor may take to prepare: to read its configuration and to load programs into the kernel.
const PREPARATION: Duration = Duration::from_secs(60);

/// The process that takes over, as the running daemon sees it.
#[derive(Debug)]
pub struct Successor {
    pub(super) socket: ControlSocket,
    pub(super) pid: i32,
}

/// A process that has connected and has sent nothing yet.
#[derive(Debug)]
pub struct Caller {
    pub(super) socket: ControlSocket,
    pub(super) pid: i32,
    pub(super) is_root: bool,
}

/// Waits for a process that asks to take over, sends it the inventory, and returns when it asks for the
/// snapshot.
///
/// # Errors
/// The process has no right to ask, or disconnects. The next one may succeed.
pub fn wait_for_successor(
    listener: BorrowedFd<'_>,
    inventory: &Inventory,
) -> Result<Successor, UpgradeError> {
    loop {
        wait_for_caller(listener)?;
        if let Some(caller) = accept_caller(listener)? {
            return caller.converse(inventory);
        }
    }
}

/// Waits until a process connects, however long that takes.
///
/// # Errors
/// The socket cannot be polled.
pub fn wait_for_caller(listener: BorrowedFd<'_>) -> Result<(), UpgradeError> {
    loop {
        match poll(&mut [PollFd::new(&listener, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(accept_error(error)),
        }
    }
}

/// Accepts a process that may ask. `None` where it has disconnected, or another process has accepted it.
///
/// # Errors
/// [`UpgradeError::PermissionDenied`], of which the process has been told; or `accept(2)` fails.
pub fn accept_caller(listener: BorrowedFd<'_>) -> Result<Option<Caller>, UpgradeError> {
    let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
        outcome => outcome.map_err(accept_error)?,
    };
    let peer = socket_peercred(&socket).map_err(accept_error)?;
    let (pid, is_root) = (peer.pid.as_raw_nonzero().get(), peer.uid.is_root());
    let caller = Caller { socket: ControlSocket::new(socket), pid, is_root };
    if !is_root && peer.uid != rustix::process::geteuid() {
        caller.turn_away("this user may not");
        return Err(UpgradeError::PermissionDenied { pid, user: peer.uid.as_raw() });
    }
    Ok(Some(caller))
}

fn accept_error(error: Errno) -> UpgradeError {
    UpgradeError::Disconnected { step: "waiting for a successor", source: error.into() }
}

impl Caller {
    /// Whether it is a process of root. Others are of the daemon's own account.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Refuses.
    pub fn turn_away(&self, reason: &str) {
        let _ = self.socket.send(&Message::Refusal { reason: reason.to_owned() });
    }

    /// Sends the inventory, and returns when the process has prepared itself and asks for the snapshot.
    ///
    /// # Errors
    /// It disconnects, sends nothing for too long, or uses another version of the protocol.
    pub fn converse(self, inventory: &Inventory) -> Result<Successor, UpgradeError> {
        let Self { socket, pid, .. } = self;
        socket.begin("greeting a successor", Some(PATIENCE))?;
        match socket.recv()?.0 {
            Message::Hello { protocol: PROTOCOL_VERSION, .. } => {}
            Message::Hello { protocol: theirs, .. } => {
                let reason = format!(
                    "the running daemon uses version {PROTOCOL_VERSION} of the upgrade protocol, the new \
                     program uses version {theirs}; restart the daemon instead"
                );
                socket.send(&Message::Refusal { reason })?;
                return Err(UpgradeError::Version { theirs });
            }
            other => return Err(socket.unexpected(other)),
        }
        socket.send(&Message::Inventory(inventory.clone()))?;
        socket.begin("waiting for a successor to prepare", Some(PREPARATION))?;
        match socket.recv()?.0 {
            Message::Freeze => Ok(Successor { socket, pid }),
            other => Err(socket.unexpected(other)),
        }
    }
}

impl Successor {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it still listens, as far as this process can know.
    pub(crate) fn is_connected(&self) -> bool {
        let mut socket = [PollFd::new(&self.socket.socket, PollFlags::empty())];
        match poll(&mut socket, Some(&Timespec::default())) {
            Ok(_) => !socket[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Tells the successor that this process resumes. From then on it cannot report that it is ready. If it
    /// has, it receives this refusal, for which there is room in the socket; so a successor that is ready and
    /// receives nothing knows that this process has died.
    pub(crate) fn refuse(&self, reason: &str) {
        let _ = rustix::net::shutdown(&self.socket.socket, Shutdown::Read);
        let _ = self.socket.send(&Message::Refusal { reason: reason.to_owned() });
    }

    /// Sends the snapshot, and returns when the successor has built everything from it.
    pub(crate) fn hand_over(&self, snapshot: &Snapshot) -> Result<(), UpgradeError> {
        let socket = &self.socket;
        socket.begin("handing over the snapshot", Some(PATIENCE))?;
        let (file, others) = memfd::write(snapshot).map_err(|error| UpgradeError::Refused {
            reason: format!("cannot write the snapshot: {error}"),
        })?;
        let all: Vec<_> = [file.as_fd()].into_iter().chain(others.into_iter().map(AsFd::as_fd)).collect();
        let mut pieces = all.chunks(MAX_DESCRIPTORS);
        let first = Message::Snapshot { descriptors: all.len() };
        socket.send_with(&first, pieces.next().unwrap_or_default())?;
        for piece in pieces {
            socket.send_with(&Message::MoreDescriptors, piece)?;
        }
        match socket.recv()?.0 {
            Message::Ready => Ok(()),
            other => Err(socket.unexpected(other)),
        }
    }

    /// Commits: from now on the connections are the successor's, once it acknowledges. If it dies before, it
    /// has touched nothing.
    pub(crate) fn commit(&self) -> Result<(), UpgradeError> {
        // Without a timeout: a process that serves must know that the other one does not.
        self.socket.begin("committing", None)?;
        self.socket.send(&Message::Commit)?;
        match self.socket.recv()?.0 {
            Message::Acknowledge => Ok(()),
            other => Err(self.socket.unexpected(other)),
        }
    }
}

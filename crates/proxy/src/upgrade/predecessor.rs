//! The successor's side of an upgrade: asking the running daemon for its snapshot.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::memfd::{self, ReadError};
use super::message::{ControlSocket, Inventory, Message};
use super::ownership::{Claimant, Ownership};
use super::successor::is_trusted;
use super::{PATIENCE, PROTOCOL_VERSION, UpgradeError};
use crate::snapshot::Snapshot;

/// How long a successor waits for the snapshot: longer than the predecessor waits for its workers, so that
/// the predecessor decides.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);
/// More descriptors than any daemon has, so that a broken one cannot fill our memory.
const MAX_DESCRIPTORS: usize = 1 << 21;
/// How long a successor that serves waits until the predecessor has told the service manager of it.
const FAREWELL: Duration = Duration::from_secs(1);

/// The running daemon, as its successor sees it.
#[derive(Debug)]
pub struct Predecessor {
    pub(super) socket: ControlSocket,
    pub(super) inventory: Inventory,
    /// The word that says to whom the connections belong, once they are offered.
    pub(super) ownership: OnceCell<Ownership>,
}

impl Predecessor {
    /// Connects to the daemon that listens at `path`, and asks what it will hand over.
    ///
    /// # Errors
    /// No daemon listens there, or it refuses.
    pub fn connect(path: &Path) -> Result<Self, UpgradeError> {
        let socket =
            dial(path).map_err(|source| UpgradeError::NoDaemon { socket: path.to_owned(), source })?;
        let socket = ControlSocket::new(socket);
        socket.begin("asking for the inventory", PATIENCE)?;
        let version = env!("CARGO_PKG_VERSION").into();
        socket.send(&Message::Hello { protocol: PROTOCOL_VERSION, version })?;
        match socket.recv()?.0 {
            Message::Inventory(inventory) if inventory.protocol == PROTOCOL_VERSION => {
                Ok(Self { socket, inventory, ownership: OnceCell::new() })
            }
            Message::Inventory(inventory) => Err(UpgradeError::Version { theirs: inventory.protocol }),
            other => Err(socket.unexpected(other)),
        }
    }

    /// The services whose devices or sockets are part of the snapshot.
    pub(crate) fn services(&self) -> &[String] {
        &self.inventory.services
    }

    /// The names of the descriptors that will come as [`ExtraFds`](super::ExtraFds).
    pub fn extra_fds(&self) -> &[String] {
        &self.inventory.extra_fds
    }

    /// Freezes the predecessor, and receives its snapshot.
    pub(crate) fn take(&self) -> Result<Snapshot, UpgradeError> {
        let socket = &self.socket;
        socket.begin("receiving the snapshot", SNAPSHOT_TIMEOUT)?;
        socket.send(&Message::Freeze)?;
        let (file, descriptors) = self.receive()?;
        memfd::read(&file, descriptors).map_err(|error| match error {
            ReadError::Version(theirs) => UpgradeError::Version { theirs },
            other => socket.protocol_error(other),
        })
    }

    /// The snapshot's file and the other descriptors.
    pub(super) fn receive(&self) -> Result<(File, Vec<OwnedFd>), UpgradeError> {
        let socket = &self.socket;
        let (count, mut descriptors) = match socket.recv()? {
            (Message::Snapshot { descriptors }, first) => (descriptors, first),
            (other, _) => return Err(socket.unexpected(other)),
        };
        if count > MAX_DESCRIPTORS {
            return Err(socket.protocol_error(format!("{count} descriptors are more than a daemon can have")));
        }
        if descriptors.len() < 2 {
            return Err(socket.protocol_error("the snapshot has no memory"));
        }
        let ownership = Ownership::receive(descriptors.remove(0));
        let ownership = ownership.map_err(|error| socket.protocol_error(error))?;
        self.ownership.set(ownership).map_err(|_| socket.protocol_error("the snapshot comes twice"))?;
        while descriptors.len() + 1 < count {
            self.note_progress();
            match socket.recv()? {
                (Message::MoreDescriptors, more) if !more.is_empty() => descriptors.extend(more),
                (other, _) => return Err(socket.unexpected(other)),
            }
        }
        if descriptors.len() + 1 != count {
            let reason = format!("{} descriptors instead of {count}", descriptors.len() + 1);
            return Err(socket.protocol_error(reason));
        }
        let file = File::from(descriptors.remove(0));
        Ok((file, descriptors))
    }

    /// Shows the predecessor that this process goes on: without a sign for a second it takes the connections
    /// back.
    pub(crate) fn note_progress(&self) {
        if let Some(ownership) = self.ownership.get() {
            ownership.advance();
        }
    }

    /// Claims the connections. If it succeeds they are this process's alone, whether the predecessor lives or
    /// not; otherwise this process must not touch them.
    pub(crate) fn claim(&self) -> Result<(), UpgradeError> {
        let socket = &self.socket;
        socket.begin("claiming the connections", PATIENCE)?;
        if !self.ownership.get().is_some_and(|ownership| ownership.claim(Claimant::Successor)) {
            return Err(self.reason_of_refusal());
        }
        // If this does not arrive the predecessor has ended, or finds out a moment later.
        let _ = socket.send(&Message::Claimed);
        Ok(())
    }

    /// Why the predecessor has taken the connections back, if it says so.
    fn reason_of_refusal(&self) -> UpgradeError {
        match self.socket.recv() {
            Ok((refusal @ Message::Refusal { .. }, _)) => self.socket.unexpected(refusal),
            _ => UpgradeError::Refused { reason: "the old process has taken the connections back".into() },
        }
    }

    /// Waits until the predecessor has told the service manager that this process is the service's main one
    /// now, or has ended. Until then the manager may ignore what this process says (`NotifyAccess=main`).
    pub(crate) fn wait_for_farewell(&self) {
        let socket = &self.socket;
        let heard = socket.begin("waiting for the old process to end", FAREWELL).and_then(|()| socket.recv());
        if let Err(error) = heard {
            tracing::warn!("took over, but {error}");
        }
    }

    /// Reports a failure, so that the predecessor resumes at once.
    pub(crate) fn abort(&self, reason: &str) {
        // If this does not arrive, the end of this process does.
        let _ = self.socket.send(&Message::Failed { reason: reason.to_owned() });
    }
}

fn dial(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // This process will serve the connections that the listener gives it (unix(7): the credentials are those
    // of listen(2)).
    let user = socket_peercred(&socket)?.uid;
    if !is_trusted(user) {
        let reason = format!("user {} listens there, not root and not this program's account", user.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(socket)
}

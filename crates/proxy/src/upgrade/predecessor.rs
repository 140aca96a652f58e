//! The successor's side of an upgrade: asking the running daemon for its snapshot.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::memfd::{self, ReadError};
use super::message::{ControlSocket, Inventory, Message};
use super::{PATIENCE, PROTOCOL_VERSION, UpgradeError};
use crate::snapshot::Snapshot;

/// How long a successor waits for the snapshot: longer than the predecessor waits for its workers, so that
/// the predecessor decides.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);
/// More descriptors than any daemon has, so that a broken one cannot fill our memory.
const MAX_DESCRIPTORS: usize = 1 << 21;

/// The running daemon, as its successor sees it.
#[derive(Debug)]
pub struct Predecessor {
    pub(super) socket: ControlSocket,
    pub(super) inventory: Inventory,
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
        socket.begin("asking for the inventory", Some(PATIENCE))?;
        let version = env!("CARGO_PKG_VERSION").into();
        socket.send(&Message::Hello { protocol: PROTOCOL_VERSION, version })?;
        match socket.recv()?.0 {
            Message::Inventory(inventory) if inventory.protocol == PROTOCOL_VERSION => {
                Ok(Self { socket, inventory })
            }
            Message::Inventory(inventory) => Err(UpgradeError::Version { theirs: inventory.protocol }),
            other => Err(socket.unexpected(other)),
        }
    }

    /// The services whose devices are part of the snapshot.
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
        socket.begin("receiving the snapshot", Some(SNAPSHOT_TIMEOUT))?;
        socket.send(&Message::Freeze)?;
        let (file, descriptors) = self.receive()?;
        memfd::read(&file, descriptors).map_err(|error| match error {
            ReadError::Version(theirs) => UpgradeError::Version { theirs },
            other => socket.protocol_error(other),
        })
    }

    /// The snapshot's file and the other descriptors.
    fn receive(&self) -> Result<(File, Vec<OwnedFd>), UpgradeError> {
        let socket = &self.socket;
        let (count, mut descriptors) = match socket.recv()? {
            (Message::Snapshot { descriptors }, first) => (descriptors, first),
            (other, _) => return Err(socket.unexpected(other)),
        };
        if count > MAX_DESCRIPTORS {
            return Err(socket.protocol_error(format!("{count} descriptors are more than a daemon can have")));
        }
        while descriptors.len() < count {
            match socket.recv()? {
                (Message::MoreDescriptors, more) if !more.is_empty() => descriptors.extend(more),
                (other, _) => return Err(socket.unexpected(other)),
            }
        }
        if descriptors.len() != count || count == 0 {
            return Err(
                socket.protocol_error(format!("{} descriptors instead of {count}", descriptors.len()))
            );
        }
        let file = File::from(descriptors.remove(0));
        Ok((file, descriptors))
    }

    /// Reports that everything is ready, and waits until the connections are this process's alone: because
    /// the predecessor commits, or because it has died. If it had resumed, it would have said so, or would
    /// not have let this process report that it is ready ([`Successor::refuse`](super::Successor::refuse)).
    pub(crate) fn commit(&self) -> Result<(), UpgradeError> {
        let socket = &self.socket;
        // Without a timeout: a process that serves must know that the other one does not.
        socket.begin("waiting for the commit", None)?;
        socket.send(&Message::Ready)?;
        let answer = match socket.recv() {
            // It has not read our message; what it sent before comes next (unix(7), sock_error in the
            // kernel).
            Err(UpgradeError::Disconnected { source, .. })
                if source.kind() == io::ErrorKind::ConnectionReset =>
            {
                socket.recv()
            }
            answer => answer,
        };
        match answer {
            Ok((Message::Commit, _)) => {
                // If this does not arrive, the predecessor has died meanwhile.
                let _ = socket.send(&Message::Acknowledge);
                Ok(())
            }
            Ok((other, _)) => Err(socket.unexpected(other)),
            Err(UpgradeError::Disconnected { source, .. })
                if source.kind() == io::ErrorKind::UnexpectedEof =>
            {
                tracing::warn!("the old process died while it handed over; its connections continue here");
                Ok(())
            }
            Err(error) => Err(error),
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
    if !user.is_root() && user != rustix::process::geteuid() {
        let reason = format!("user {} listens there, not root and not this user", user.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(socket)
}

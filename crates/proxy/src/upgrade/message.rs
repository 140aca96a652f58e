//! The messages of an upgrade: JSON over a Unix socket that keeps message boundaries (`SOCK_SEQPACKET`), with
//! descriptors beside them. Everything that grows with the number of connections is in the snapshot's memfd.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::{PATIENCE, PROTOCOL_VERSION, UpgradeError};

/// The longest message, bytes.
const MAX_MESSAGE: usize = 16 * 1024;
/// Descriptors beside one message; the kernel takes 253 (unix(7), `SCM_MAX_FD`).
pub(super) const MAX_DESCRIPTORS: usize = 200;
/// How soon descriptors are sent again that the other process has to make room for.
const RETRY: Duration = Duration::from_millis(1);

/// A message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The successor's first message. This form of it, and that of a refusal, are those of every version.
    Hello {
        #[serde(rename = "form")]
        protocol: u32,
        #[serde(default)]
        version: String,
    },
    /// The predecessor goes on with everything.
    Refusal {
        reason: String,
    },
    Inventory(Inventory),
    /// Everything is to stand still.
    Freeze,
    /// The connections are offered. So many descriptors come, the first of which is the memory of
    /// [`Ownership`](super::ownership::Ownership), the second the snapshot's memfd; those of the snapshot
    /// follow.
    Snapshot {
        descriptors: usize,
    },
    /// More of the snapshot's descriptors.
    MoreDescriptors,
    /// The successor cannot take over.
    Failed {
        reason: String,
    },
    /// The successor has claimed the connections. The predecessor looks at the word then, which alone says
    /// so.
    Claimed,
    /// The predecessor has told the service manager of the successor, and ends.
    Done,
}

/// What the predecessor will hand over, sent before it does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inventory {
    #[serde(rename = "form")]
    pub(super) protocol: u32,
    /// Services whose devices or sockets are part of the snapshot, by their names.
    #[serde(default)]
    pub(crate) services: Vec<String>,
    /// The names of the descriptors of [`ExtraFds`](super::ExtraFds).
    #[serde(default)]
    pub(crate) extra_fds: Vec<String>,
}

/// One process's end of the conversation.
#[derive(Debug)]
pub(super) struct ControlSocket {
    pub(super) socket: OwnedFd,
    /// The step that errors name.
    step: Cell<&'static str>,
}

impl Inventory {
    pub(crate) fn new(services: Vec<String>, extra_fds: Vec<String>) -> Self {
        Self { protocol: PROTOCOL_VERSION, services, extra_fds }
    }
}

impl ControlSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, step: Cell::new("connecting") }
    }

    /// Begins a step of the upgrade, in which one message to or from the other process may take this long.
    pub(super) fn begin(&self, step: &'static str, timeout: Duration) -> Result<(), UpgradeError> {
        self.step.set(step);
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.socket, which, Some(timeout))
                .map_err(|error| self.disconnected(error))?;
        }
        Ok(())
    }

    /// The step that was begun last.
    pub(super) fn step(&self) -> &'static str {
        self.step.get()
    }

    pub(super) fn send(&self, message: &Message) -> Result<(), UpgradeError> {
        self.send_with(message, &[])
    }

    /// Sends a message with at most [`MAX_DESCRIPTORS`] descriptors beside it.
    pub(super) fn send_with(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), UpgradeError> {
        let until = Instant::now() + PATIENCE;
        self.send_while(message, descriptors, &mut |error| match Instant::now() < until {
            true => Ok(()),
            false => Err(self.disconnected(error)),
        })
    }

    /// The same, again and again while there is no room for it and `may_wait` allows it, which is asked after
    /// each of the step's timeouts.
    pub(super) fn send_while(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        may_wait: &mut dyn FnMut(Errno) -> Result<(), UpgradeError>,
    ) -> Result<(), UpgradeError> {
        let bytes = serde_json::to_vec(message).map_err(|error| self.protocol_error(error))?;
        if bytes.len() > MAX_MESSAGE {
            return Err(self.protocol_error("a message is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(self.protocol_error("too many descriptors for one message"));
        }
        let pieces = [IoSlice::new(&bytes)];
        loop {
            match sendmsg(&self.socket, &pieces, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => may_wait(Errno::AGAIN)?,
                // As many descriptors are in flight as a user may have (unix(7)), until the receiver takes
                // some.
                Err(Errno::TOOMANYREFS) => {
                    may_wait(Errno::TOOMANYREFS)?;
                    std::thread::sleep(RETRY);
                }
                // Stopped and continued, or a signal (signal(7)).
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.disconnected(error)),
            }
        }
    }

    /// The next message, and the descriptors beside it.
    pub(super) fn recv(&self) -> Result<(Message, Vec<OwnedFd>), UpgradeError> {
        self.recv_while(&mut |error| Err(self.disconnected(error)))
    }

    /// The same, as long as `may_wait` allows it, which is asked after each of the step's timeouts.
    pub(super) fn recv_while(
        &self,
        may_wait: &mut dyn FnMut(Errno) -> Result<(), UpgradeError>,
    ) -> Result<(Message, Vec<OwnedFd>), UpgradeError> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut pieces = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                // Stopped and continued, or a signal (signal(7)).
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => may_wait(Errno::AGAIN)?,
                outcome => break outcome.map_err(|error| self.disconnected(error))?,
            }
        };
        let descriptors = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Err(self.disconnected(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        // The kernel leaves out what this process has no room for (unix(7)).
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let reason = "this process may not have so many descriptors (ulimit -n, LimitNOFILE)";
            return Err(self.protocol_error(reason));
        }
        let message = serde_json::from_slice(&bytes[..received.bytes]);
        Ok((message.map_err(|error| self.protocol_error(error))?, descriptors))
    }

    /// For a socket that fails in this step.
    pub(super) fn disconnected(&self, error: impl Into<io::Error>) -> UpgradeError {
        let source = error.into();
        let source = match source.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "it said nothing for too long")
            }
            io::ErrorKind::UnexpectedEof => io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"),
            _ => source,
        };
        UpgradeError::Disconnected { step: self.step(), source }
    }

    /// For something that the other process should not have sent in this step.
    pub(super) fn protocol_error(&self, reason: impl ToString) -> UpgradeError {
        UpgradeError::protocol(self.step(), reason)
    }

    /// For a message that does not belong in this step.
    pub(super) fn unexpected(&self, message: Message) -> UpgradeError {
        match message {
            Message::Refusal { reason } | Message::Failed { reason } => UpgradeError::Refused { reason },
            _ => self.protocol_error("an unexpected message"),
        }
    }
}

//! The running daemon's side of an upgrade: admitting a successor and handing it the snapshot.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bentpipe_kernel::privileges::is_shared_account;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::Uid;

use super::message::{ControlSocket, Inventory, MAX_DESCRIPTORS, Message};
use super::ownership::{Claimant, Ownership};
use super::{PATIENCE, PROTOCOL_VERSION, UpgradeError, memfd};
use crate::snapshot::Snapshot;

/// How long a successor may take to prepare: to read its configuration and to load programs into the kernel.
const PREPARATION: Duration = Duration::from_secs(60);
/// How long all connections may stand still while the successor takes no step. Its longest step is to read
/// all flows of the snapshot, some microseconds for each of them.
const STALL: Duration = Duration::from_secs(1);
/// How long all connections may stand still for a successor that takes one step after another: far longer
/// than any number of flows needs, so that one that is broken ends, too.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(10);
/// How often the predecessor looks for progress.
const LOOK: Duration = Duration::from_millis(20);

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
    if !is_trusted(peer.uid) {
        caller.turn_away("this user may not; run the new program as root");
        return Err(UpgradeError::PermissionDenied { pid, user: peer.uid.as_raw() });
    }
    Ok(Some(caller))
}

/// Whether the other end of an upgrade may be a process of this user: root, or this process' own account. An
/// account that other programs use as well is nobody's own.
pub(super) fn is_trusted(user: Uid) -> bool {
    user.is_root() || user == rustix::process::geteuid() && !is_shared_account(user.as_raw())
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
        socket.begin("greeting a successor", PATIENCE)?;
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
        socket.begin("waiting for a successor to prepare", PREPARATION)?;
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

    /// Whether it lives, as far as this process can know: a successor keeps its end of the socket for as
    /// long.
    pub fn is_connected(&self) -> bool {
        let mut socket = [PollFd::new(&self.socket.socket, PollFlags::empty())];
        match poll(&mut socket, Some(&Timespec::default())) {
            Ok(_) => !socket[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Tells the successor why this process has resumed, if there is room for it. The word in shared memory
    /// has told already.
    pub(crate) fn refuse(&self, reason: &str) {
        let _ = self.send_at_once(&Message::Refusal { reason: reason.to_owned() });
    }

    /// Tells the successor that this process has told the service manager of it, and ends.
    pub(crate) fn dismiss(&self) {
        let _ = self.send_at_once(&Message::Done);
    }

    /// Offers the connections with this snapshot, and returns when the successor has claimed them: they are
    /// its own then, whatever happens to it.
    ///
    /// # Errors
    /// It failed, ended, or took no step for too long; this process has claimed the connections back.
    pub(crate) fn hand_over(&self, snapshot: &Snapshot) -> Result<(), UpgradeError> {
        let (ownership, word) = Ownership::offer().map_err(|error| UpgradeError::Refused {
            reason: format!("cannot share memory with the new process: {error}"),
        })?;
        let heard = self.offer(snapshot, &ownership, word.as_fd());
        if !ownership.claim(Claimant::Predecessor) {
            return Ok(());
        }
        heard.and_then(|()| Err(self.socket.protocol_error("it has not claimed what it said that it had")))
    }

    /// Sends everything, and waits until the successor says that it has claimed the connections.
    fn offer(
        &self,
        snapshot: &Snapshot,
        ownership: &Ownership,
        word: BorrowedFd<'_>,
    ) -> Result<(), UpgradeError> {
        let socket = &self.socket;
        let (file, others) = memfd::write(snapshot).map_err(|error| UpgradeError::Refused {
            reason: format!("cannot write the snapshot: {error}"),
        })?;
        let all: Vec<_> =
            [word, file.as_fd()].into_iter().chain(others.into_iter().map(AsFd::as_fd)).collect();
        socket.begin("handing over the snapshot", LOOK)?;
        let mut watch = ProgressWatch::new(Instant::now());
        let mut may_wait = |_: Errno| watch.check(Instant::now(), ownership.progress(), socket.step());
        let mut pieces = all.chunks(MAX_DESCRIPTORS);
        let first = Message::Snapshot { descriptors: all.len() };
        socket.send_while(&first, pieces.next().unwrap_or_default(), &mut may_wait)?;
        for piece in pieces {
            socket.send_while(&Message::MoreDescriptors, piece, &mut may_wait)?;
        }
        match socket.recv_while(&mut may_wait)?.0 {
            Message::Claimed => Ok(()),
            other => Err(socket.unexpected(other)),
        }
    }

    fn send_at_once(&self, message: &Message) -> Result<(), UpgradeError> {
        self.socket.begin("ending the conversation", LOOK)?;
        self.socket.send_while(message, &[], &mut |error| Err(self.socket.disconnected(error)))
    }
}

/// Watches whether the successor takes steps while all connections stand still.
#[derive(Debug)]
struct ProgressWatch {
    began: Instant,
    /// The steps at the last look that found more of them, and when that was.
    steps: u64,
    last: Instant,
}

impl ProgressWatch {
    fn new(now: Instant) -> Self {
        Self { began: now, steps: 0, last: now }
    }

    /// Fails if the successor has taken no step for too long, or has gone on for too long.
    fn check(&mut self, now: Instant, steps: u64, step: &'static str) -> Result<(), UpgradeError> {
        if steps != self.steps {
            (self.steps, self.last) = (steps, now);
        }
        let [silence, standstill] = [self.last, self.began].map(|since| now.saturating_duration_since(since));
        if silence >= STALL {
            return Err(UpgradeError::Stalled { step, silence: STALL });
        }
        if standstill >= LONGEST_STANDSTILL {
            return Err(UpgradeError::TooSlow { standstill: LONGEST_STANDSTILL });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a successor is waited for that takes a step each `interval`, and the outcome.
    fn wait(interval: Duration) -> (Duration, UpgradeError) {
        let start = Instant::now();
        let mut watch = ProgressWatch::new(start);
        for look in 0.. {
            let passed = LOOK * look;
            let steps = passed.as_nanos() / interval.as_nanos();
            if let Err(error) = watch.check(start + passed, steps as u64, "testing") {
                return (passed, error);
            }
        }
        unreachable!("the loop ends by its return");
    }

    #[test]
    fn a_successor_that_takes_no_step_is_waited_for_a_second() {
        let (waited, error) = wait(Duration::from_secs(3600));
        assert_eq!(waited, STALL);
        assert!(matches!(error, UpgradeError::Stalled { .. }), "{error}");
    }

    #[test]
    fn a_slow_one_is_waited_for_as_long_as_it_takes_steps_but_not_for_ever() {
        let (waited, error) = wait(Duration::from_millis(700));
        assert_eq!(waited, LONGEST_STANDSTILL);
        assert!(matches!(error, UpgradeError::TooSlow { .. }), "{error}");
    }
}

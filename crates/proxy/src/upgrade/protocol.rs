//! How predecessor and successor speak: short words over a Unix socket that keeps their bounds (`SOCK_SEQPACKET`), descriptors
//! beside them, and everything that is long in a file in memory.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect,
    recvmsg, sendmsg, socket_with,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::PATIENCE;
use super::snapshot::{Inventory, Snapshot};

/// The form of what is handed over. A successor that knows another one starts in the ordinary route.
pub(crate) const PROTOCOL_VERSION: u32 = 2;
/// The longest word. All that grows with the number of flows is in the file.
const WORD: usize = 16 * 1024;
/// Descriptors that go with one word; the kernel takes 253 (unix(7), `SCM_MAX_FD`).
const DESCRIPTORS: usize = 200;
/// The most that a predecessor is believed to have, so that a broken one cannot fill our memory.
const MOST_DESCRIPTORS: usize = 1 << 21;
/// The same of bytes in the file.
const MOST_BYTES: u64 = 16 << 30;
/// How long a successor may take to prepare: reading its configuration, loading programs into the kernel.
const PREPARATION: Duration = Duration::from_secs(60);

/// How long a successor waits for everything: longer than the predecessor waits for its workers, so that it is the predecessor who
/// decides.
const TAKING: Duration = Duration::from_secs(10);
/// How soon something is tried again that the other process has to make room for.
const MOMENT: Duration = Duration::from_millis(1);

/// Why no process took over.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Nobody is there to take over from.
    #[error("cannot take over: no daemon at {socket} ({source}); start one in the ordinary way")]
    Nobody {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The other process said no.
    #[error("the running daemon does not hand over: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// Both understand different things.
    #[error(
        "the other process hands over in form {theirs}, this program knows form {PROTOCOL_VERSION}; restart the daemon instead"
    )]
    Version {
        /// The other's form.
        theirs: u32,
    },
    /// Somebody asked who has no right to.
    #[error(
        "process {pid} of user {user} asked for this daemon's connections; only root and the daemon's own user may"
    )]
    PermissionDenied {
        /// Its process.
        pid: i32,
        /// Its user.
        user: u32,
    },
    /// The other process ended, or stayed silent for too long.
    #[error("the other process went away while {doing}: {source}")]
    Disconnected {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The other process says what cannot be understood.
    #[error("the other process says what cannot be understood while {doing}: {reason}")]
    Protocol {
        /// What was being done.
        doing: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// The words.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    Hello {
        form: u32,
        #[serde(default)]
        version: String,
    },
    Refusal {
        reason: String,
    },
    Inventory(Inventory),
    Take,
    /// So many descriptors and bytes follow; the first descriptor is the file.
    Snapshot {
        descriptors: usize,
        bytes: u64,
    },
    /// More descriptors of the snapshot.
    More,
    Ready,
    Failed {
        reason: String,
    },
    Commit,
    /// The successor has heard the last word, and begins.
    Mine,
}

/// The daemon that runs, as its successor sees it.
#[derive(Debug)]
pub struct Predecessor {
    line: ControlSocket,
    inventory: Inventory,
}

/// Who asks for everything, as the running daemon sees it.
#[derive(Debug)]
pub struct Successor {
    line: ControlSocket,
    pid: i32,
}

/// Somebody who has come and has said nothing yet.
#[derive(Debug)]
pub struct Caller {
    line: ControlSocket,
    pid: i32,
    is_root: bool,
}

#[derive(Debug)]
struct ControlSocket {
    socket: OwnedFd,
}

impl Predecessor {
    /// Asks the daemon that listens at `socket` what it has.
    ///
    /// # Errors
    /// There is none, or it refuses.
    pub fn connect(socket: &Path) -> Result<Self, UpgradeError> {
        let line = connect_to(socket)
            .map_err(|source| UpgradeError::Nobody { socket: socket.to_owned(), source })?;
        let doing = "asking what there is";
        line.wait_at_most(PATIENCE, doing)?;
        line.send(
            &Message::Hello { form: PROTOCOL_VERSION, version: env!("CARGO_PKG_VERSION").into() },
            &[],
            doing,
        )?;
        match line.recv(doing)?.0 {
            Message::Inventory(inventory) if inventory.form == PROTOCOL_VERSION => {
                Ok(Self { line, inventory })
            }
            Message::Inventory(inventory) => Err(UpgradeError::Version { theirs: inventory.form }),
            Message::Refusal { reason } => Err(UpgradeError::Refused { reason }),
            other => Err(unexpected(doing, &other)),
        }
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The names of the descriptors that will come as [`ExtraFds`](super::ExtraFds).
    pub fn extra_fds(&self) -> &[String] {
        &self.inventory.extra_fds
    }

    /// Asks for everything. From now on the flows stand still.
    pub(crate) fn take(&self) -> Result<Snapshot, UpgradeError> {
        let doing = "taking over";
        self.line.wait_at_most(TAKING, doing)?;
        self.line.send(&Message::Take, &[], doing)?;
        let (word, mut descriptors) = self.line.recv(doing)?;
        let (count, bytes) = match word {
            Message::Snapshot { descriptors, bytes } => (descriptors, bytes),
            Message::Refusal { reason } => return Err(UpgradeError::Refused { reason }),
            other => return Err(unexpected(doing, &other)),
        };
        if count > MOST_DESCRIPTORS || bytes > MOST_BYTES {
            return Err(protocol_error(
                doing,
                format!("{count} descriptors and {bytes} bytes are more than can be"),
            ));
        }
        while descriptors.len() < count {
            match self.line.recv(doing)? {
                (Message::More, more) if !more.is_empty() => descriptors.extend(more),
                (other, _) => return Err(unexpected(doing, &other)),
            }
        }
        if descriptors.len() != count || count == 0 {
            return Err(protocol_error(
                doing,
                format!("{} descriptors instead of {count}", descriptors.len()),
            ));
        }
        let file = File::from(descriptors.remove(0));
        let mut content = vec![0; usize::try_from(bytes).map_err(|error| protocol_error(doing, error))?];
        file.read_exact_at(&mut content, 0).map_err(|error| protocol_error(doing, error))?;
        Snapshot::open(content, descriptors).map_err(|reason| protocol_error(doing, reason))
    }

    /// Says that everything is ready, and waits until it is ours alone: because the predecessor says so, or because it has died. Had
    /// it gone on, it would have said so, or would not have let us say that we are ready ([`Successor::refuse`]).
    pub(crate) fn commit(&self) -> Result<(), UpgradeError> {
        let doing = "waiting for the last word";
        self.line.send(&Message::Ready, &[], doing)?;
        // For as long as it takes: whoever goes on must know that the other does not.
        self.line.wait(None, doing)?;
        let outcome = match self.line.recv(doing) {
            // It has not read our word; what it had said before comes next (unix(7), sock_error in the kernel).
            Err(UpgradeError::Disconnected { source, .. })
                if source.kind() == io::ErrorKind::ConnectionReset =>
            {
                self.line.recv(doing)
            }
            outcome => outcome,
        };
        match outcome {
            Ok((Message::Commit, _)) => {
                // If it does not arrive, the predecessor has died meanwhile.
                let _ = self.line.send(&Message::Mine, &[], doing);
                Ok(())
            }
            Ok((Message::Refusal { reason }, _)) => Err(UpgradeError::Refused { reason }),
            Ok((other, _)) => Err(unexpected(doing, &other)),
            Err(UpgradeError::Disconnected { source, .. })
                if source.kind() == io::ErrorKind::UnexpectedEof =>
            {
                tracing::warn!(
                    "the process before has died while it handed over: its connections go on here"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Says that it cannot be, so that the predecessor need not wait to find out.
    pub(crate) fn abort(&self, reason: &str) {
        // If this does not arrive, our end does.
        let _ = self.line.send(&Message::Failed { reason: reason.to_owned() }, &[], "giving up");
    }
}

/// Waits for somebody at the socket who asks for everything, tells what there is, and returns when it is to be handed over. A
/// conversation that comes to nothing is an error, and the next one may be better.
///
/// # Errors
/// Somebody asked who has no right to, or went away again.
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

/// Waits for as long as it takes until somebody is at the socket.
///
/// # Errors
/// The socket cannot be waited at.
pub fn wait_for_caller(listener: BorrowedFd<'_>) -> Result<(), UpgradeError> {
    loop {
        match poll(&mut [PollFd::new(&listener, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(disconnected("waiting for a successor")(error)),
        }
    }
}

/// Lets in whoever is at the socket and may ask. Nobody where they have gone again, or another process has let them in.
///
/// # Errors
/// [`UpgradeError::PermissionDenied`], who has been told so; or nobody can be let in.
pub fn accept_caller(listener: BorrowedFd<'_>) -> Result<Option<Caller>, UpgradeError> {
    let doing = "letting a successor in";
    let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
        outcome => outcome.map_err(disconnected(doing))?,
    };
    let line = ControlSocket { socket };
    let peer = socket_peercred(&line.socket).map_err(disconnected(doing))?;
    let caller = Caller { line, pid: peer.pid.as_raw_nonzero().get(), is_root: peer.uid.is_root() };
    if !caller.is_root && peer.uid != rustix::process::geteuid() {
        caller.turn_away("this user may not");
        return Err(UpgradeError::PermissionDenied { pid: caller.pid, user: peer.uid.as_raw() });
    }
    Ok(Some(caller))
}

impl Caller {
    /// Whether it is root's process. Others are of the daemon's own account.
    pub fn is_root(&self) -> bool {
        self.is_root
    }

    /// Says no.
    pub fn turn_away(&self, reason: &str) {
        let _ = self.line.send(&Message::Refusal { reason: reason.to_owned() }, &[], "turning somebody away");
    }

    /// Tells what there is, and returns when it is to be handed over. That may take its time.
    ///
    /// # Errors
    /// It has gone again, is silent for too long, or speaks of other things.
    pub fn converse(self, inventory: &Inventory) -> Result<Successor, UpgradeError> {
        let doing = "being asked for everything";
        let Self { line, pid, .. } = self;
        line.wait_at_most(PATIENCE, doing)?;
        match line.recv(doing)?.0 {
            Message::Hello { form: PROTOCOL_VERSION, .. } => {}
            Message::Hello { form, .. } => {
                let reason = format!(
                    "it hands over in form {PROTOCOL_VERSION}, the new program knows form {form}; restart it instead"
                );
                line.send(&Message::Refusal { reason }, &[], doing)?;
                return Err(UpgradeError::Version { theirs: form });
            }
            other => return Err(unexpected(doing, &other)),
        }
        line.send(&Message::Inventory(inventory.clone()), &[], doing)?;
        line.wait_at_most(PREPARATION, doing)?;
        match line.recv(doing)?.0 {
            Message::Take => {
                line.wait_at_most(PATIENCE, doing)?;
                Ok(Successor { line, pid })
            }
            other => Err(unexpected(doing, &other)),
        }
    }
}

impl Successor {
    /// Its process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it still listens, as far as can be known.
    pub(crate) fn is_there(&self) -> bool {
        let mut line = [PollFd::new(&self.line.socket, PollFlags::empty())];
        match poll(&mut line, Some(&Timespec::default())) {
            Ok(_) => !line[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Says that everything goes on here. From then on the successor cannot say any more that it is ready; if it had, it hears this, for there is
    /// room for it. So an successor that was ready and hears nothing knows that we have died.
    pub(crate) fn refuse(&self, reason: &str) {
        let _ = rustix::net::shutdown(&self.line.socket, Shutdown::Read);
        let _ = self.line.send(&Message::Refusal { reason: reason.to_owned() }, &[], "refusing");
    }

    /// Hands everything over, and returns when the successor has built what it needs of it.
    pub(crate) fn hand_over(
        &self,
        content: &[Vec<u8>],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), UpgradeError> {
        let doing = "handing over";
        let file = in_memory(content).map_err(disconnected(doing))?;
        let all: Vec<BorrowedFd<'_>> =
            [file.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
        let word = Message::Snapshot {
            descriptors: all.len(),
            bytes: content.iter().map(|part| part.len() as u64).sum(),
        };
        let mut pieces = all.chunks(DESCRIPTORS);
        self.line.send(&word, pieces.next().unwrap_or_default(), doing)?;
        for piece in pieces {
            self.line.send(&Message::More, piece, doing)?;
        }
        self.line.wait_at_most(PATIENCE, doing)?;
        match self.line.recv(doing)?.0 {
            Message::Ready => Ok(()),
            Message::Failed { reason } => Err(UpgradeError::Refused { reason }),
            other => Err(unexpected(doing, &other)),
        }
    }

    /// The last word: it is the successor's alone from now on, once the successor has said that it has heard it. If it dies without having said
    /// so, it has touched nothing.
    pub(crate) fn commit(&self) -> Result<(), UpgradeError> {
        let doing = "giving the last word";
        self.line.send(&Message::Commit, &[], doing)?;
        // For as long as it takes: whoever goes on must know that the other does not.
        self.line.wait(None, doing)?;
        match self.line.recv(doing)?.0 {
            Message::Mine => Ok(()),
            other => Err(unexpected(doing, &other)),
        }
    }
}

impl ControlSocket {
    fn wait_at_most(&self, time: Duration, doing: &'static str) -> Result<(), UpgradeError> {
        self.wait(Some(time), doing)
    }

    fn wait(&self, time: Option<Duration>, doing: &'static str) -> Result<(), UpgradeError> {
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.socket, which, time).map_err(disconnected(doing))?;
        }
        Ok(())
    }

    fn send(
        &self,
        word: &Message,
        descriptors: &[BorrowedFd<'_>],
        doing: &'static str,
    ) -> Result<(), UpgradeError> {
        let bytes = serde_json::to_vec(word).map_err(|error| protocol_error(doing, error))?;
        if bytes.len() > WORD {
            return Err(protocol_error(doing, "a word is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(protocol_error(doing, "too many descriptors for a word"));
        }
        let pieces = [IoSlice::new(&bytes)];
        let until = Instant::now() + PATIENCE;
        loop {
            match sendmsg(&self.socket, &pieces, &mut beside, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                // As many descriptors are on their way as a user may have (unix(7)): until the other has taken some.
                Err(Errno::TOOMANYREFS) if Instant::now() < until => std::thread::sleep(MOMENT),
                // Stopped and continued, or a signal (signal(7)).
                Err(Errno::INTR) => {}
                Err(error) => return Err(disconnected(doing)(error)),
            }
        }
    }

    fn recv(&self, doing: &'static str) -> Result<(Message, Vec<OwnedFd>), UpgradeError> {
        let mut bytes = vec![0; WORD];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            let mut pieces = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, &mut pieces, &mut beside, RecvFlags::CMSG_CLOEXEC) {
                // Stopped and continued, or a signal (signal(7)).
                Err(Errno::INTR) => {}
                outcome => break outcome.map_err(disconnected(doing))?,
            }
        };
        let descriptors: Vec<OwnedFd> = beside
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if message.bytes == 0 {
            return Err(disconnected(doing)(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        // The kernel leaves out what this process has no room for (unix(7)).
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(protocol_error(
                doing,
                "this process may not have so many descriptors (ulimit -n, LimitNOFILE)",
            ));
        }
        let word = parse(&bytes[..message.bytes]).map_err(|error| protocol_error(doing, error))?;
        Ok((word, descriptors))
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes)
}

fn connect_to(path: &Path) -> io::Result<ControlSocket> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // Whoever listens there would give us the connections that we go on with (unix(7): the credentials are those of listen(2)).
    let user = socket_peercred(&socket)?.uid;
    if !user.is_root() && user != rustix::process::geteuid() {
        let kind = io::ErrorKind::PermissionDenied;
        let who = format!("user {} listens there, who is neither root nor this one", user.as_raw());
        return Err(io::Error::new(kind, who));
    }
    Ok(ControlSocket { socket })
}

fn in_memory(content: &[Vec<u8>]) -> io::Result<File> {
    let mut file = File::from(memfd_create("bentpipe-snapshot", MemfdFlags::CLOEXEC)?);
    content.iter().try_for_each(|part| file.write_all(part))?;
    Ok(file)
}

fn disconnected<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> UpgradeError {
    move |source| {
        let source = source.into();
        let source = match source.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "it said nothing for too long")
            }
            io::ErrorKind::UnexpectedEof => io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"),
            _ => source,
        };
        UpgradeError::Disconnected { doing, source }
    }
}

fn protocol_error(doing: &'static str, reason: impl ToString) -> UpgradeError {
    UpgradeError::Protocol { doing, reason: reason.to_string() }
}

fn unexpected(doing: &'static str, word: &Message) -> UpgradeError {
    match word {
        Message::Refusal { reason } | Message::Failed { reason } => {
            UpgradeError::Refused { reason: reason.clone() }
        }
        _ => protocol_error(doing, "a word that has no place here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SocketFlags, SocketType, socketpair};

    fn pair() -> (Successor, Predecessor) {
        let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (one, other) = ends.unwrap();
        let inventory = Inventory::new(false, false, Vec::new());
        (
            Successor { line: ControlSocket { socket: one }, pid: 1 },
            Predecessor { line: ControlSocket { socket: other }, inventory },
        )
    }

    fn hear_ready(successor: &Successor) {
        assert!(matches!(successor.line.recv("").unwrap().0, Message::Ready));
    }

    #[test]
    fn both_know_when_it_is_the_heirs() {
        let (successor, predecessor) = pair();
        let taking = std::thread::spawn(move || predecessor.commit());
        hear_ready(&successor);
        successor.commit().unwrap();
        taking.join().unwrap().unwrap();
    }

    #[test]
    fn an_heir_that_dies_before_it_has_heard_the_last_word_leaves_everything() {
        let (successor, predecessor) = pair();
        let taking = std::thread::spawn(move || {
            predecessor.line.send(&Message::Ready, &[], "").unwrap();
            std::thread::sleep(Duration::from_millis(50));
        });
        hear_ready(&successor);
        successor.commit().unwrap_err();
        taking.join().unwrap();
    }

    #[test]
    fn an_heir_that_was_ready_goes_on_when_the_predecessor_dies_whether_it_was_heard_or_not() {
        for is_heard in [true, false] {
            let (successor, predecessor) = pair();
            let dying = std::thread::spawn(move || {
                if is_heard {
                    hear_ready(&successor);
                } else {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            predecessor.commit().unwrap();
            dying.join().unwrap();
        }
    }

    #[test]
    fn an_heir_that_is_too_late_does_not_begin() {
        // It is told before it is ready, and after.
        let (successor, predecessor) = pair();
        successor.refuse("too late");
        predecessor.commit().unwrap_err();
        let (successor, predecessor) = pair();
        let refusing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            successor.refuse("too late");
        });
        let error = predecessor.commit().unwrap_err();
        assert!(matches!(error, UpgradeError::Refused { .. }), "{error}");
        refusing.join().unwrap();
    }

    #[test]
    fn words_of_other_versions_are_understood_or_refused_by_name() {
        let parsed = |text: &str| parse::<Message>(text.as_bytes());
        parsed(r#"{"Hello":{"form":1,"purpose":"new"}}"#).unwrap();
        parsed(r#"{"Inventory":{"form":2,"weather":"fine"}}"#).unwrap();
        let (successor, predecessor) = pair();
        let Successor { line, pid } = successor;
        let caller = Caller { line, pid, is_root: true };
        predecessor
            .line
            .send(&Message::Hello { form: PROTOCOL_VERSION + 1, version: String::new() }, &[], "")
            .unwrap();
        let error = caller.converse(&predecessor.inventory).unwrap_err();
        assert!(matches!(error, UpgradeError::Version { .. }), "{error}");
        let Message::Refusal { reason } = predecessor.line.recv("").unwrap().0 else { panic!() };
        assert!(reason.contains(&format!("form {}", PROTOCOL_VERSION + 1)), "{reason}");
    }
}

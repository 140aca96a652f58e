//! How predecessor and successor speak: short words over a Unix socket that keeps their bounds (`SOCK_SEQPACKET`), descriptors
//! beside them, and everything that is long in a file in memory.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, recvmsg,
    sendmsg, socket_with,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::PATIENCE;
use super::estate::{Estate, Inventory};

/// The form of what is handed over. A successor that knows another one starts in the ordinary way.
pub(crate) const FORM: u32 = 1;
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

/// How soon something is tried again that the other process has to make room for.
const MOMENT: Duration = Duration::from_millis(1);

/// Why no process took over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
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
        "the running daemon hands over in form {theirs}, this program knows form {FORM}; restart it instead"
    )]
    Form {
        /// The other's form.
        theirs: u32,
    },
    /// Somebody asked who has no right to.
    #[error(
        "process {pid} of user {user} asked for this daemon's connections; only root and the daemon's own user may"
    )]
    Stranger {
        /// Its process.
        pid: i32,
        /// Its user.
        user: u32,
    },
    /// The other process ended, or stayed silent for too long.
    #[error("the other process went away while {doing}: {source}")]
    Gone {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The other process says what cannot be understood.
    #[error("the other process says what cannot be understood while {doing}: {reason}")]
    Garbled {
        /// What was being done.
        doing: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// The words.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    Hello {
        form: u32,
        version: String,
    },
    Refusal {
        reason: String,
    },
    Inventory(Inventory),
    Take,
    /// So many descriptors and bytes follow; the first descriptor is the file.
    Estate {
        descriptors: usize,
        bytes: u64,
    },
    /// More descriptors of the estate.
    More,
    Ready,
    Failed {
        reason: String,
    },
    Commit,
}

/// The daemon that runs, as its successor sees it.
#[derive(Debug)]
pub struct Predecessor {
    line: Line,
    inventory: Inventory,
}

/// Who asks for everything, as the running daemon sees it.
#[derive(Debug)]
pub struct Heir {
    line: Line,
    pid: i32,
}

#[derive(Debug)]
struct Line {
    socket: OwnedFd,
}

impl Predecessor {
    /// Asks the daemon that listens at `socket` what it has.
    ///
    /// # Errors
    /// There is none, or it refuses.
    pub fn greet(socket: &Path) -> Result<Self, HandoverError> {
        let line =
            dial(socket).map_err(|source| HandoverError::Nobody { socket: socket.to_owned(), source })?;
        let doing = "asking what there is";
        line.wait_at_most(PATIENCE, doing)?;
        line.say(&Word::Hello { form: FORM, version: env!("CARGO_PKG_VERSION").into() }, &[], doing)?;
        match line.hear(doing)?.0 {
            Word::Inventory(inventory) if inventory.form == FORM => Ok(Self { line, inventory }),
            Word::Inventory(inventory) => Err(HandoverError::Form { theirs: inventory.form }),
            Word::Refusal { reason } => Err(HandoverError::Refused { reason }),
            other => Err(unexpected(doing, &other)),
        }
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The names of the descriptors that will come as [`Belongings`](super::Belongings).
    pub fn belongings(&self) -> &[String] {
        &self.inventory.belongings
    }

    /// Asks for everything. From now on the flows stand still.
    pub(crate) fn take(&self) -> Result<Estate, HandoverError> {
        let doing = "taking over";
        self.line.wait_at_most(PATIENCE, doing)?;
        self.line.say(&Word::Take, &[], doing)?;
        let (word, mut descriptors) = self.line.hear(doing)?;
        let (count, bytes) = match word {
            Word::Estate { descriptors, bytes } => (descriptors, bytes),
            Word::Refusal { reason } => return Err(HandoverError::Refused { reason }),
            other => return Err(unexpected(doing, &other)),
        };
        if count > MOST_DESCRIPTORS || bytes > MOST_BYTES {
            return Err(garbled(
                doing,
                format!("{count} descriptors and {bytes} bytes are more than can be"),
            ));
        }
        while descriptors.len() < count {
            match self.line.hear(doing)? {
                (Word::More, more) if !more.is_empty() => descriptors.extend(more),
                (other, _) => return Err(unexpected(doing, &other)),
            }
        }
        if descriptors.len() != count || count == 0 {
            return Err(garbled(doing, format!("{} descriptors instead of {count}", descriptors.len())));
        }
        let file = File::from(descriptors.remove(0));
        let mut content = vec![0; usize::try_from(bytes).map_err(|error| garbled(doing, error))?];
        file.read_exact_at(&mut content, 0).map_err(|error| garbled(doing, error))?;
        Estate::open(content, descriptors).map_err(|reason| garbled(doing, reason))
    }

    /// Says that everything is ready, and waits until it is ours alone.
    pub(crate) fn commit(&self) -> Result<(), HandoverError> {
        let doing = "waiting for the last word";
        self.line.say(&Word::Ready, &[], doing)?;
        // For as long as it takes: whoever goes on must know that the other does not.
        self.line.wait(None, doing)?;
        match self.line.hear(doing)?.0 {
            Word::Commit => Ok(()),
            Word::Refusal { reason } => Err(HandoverError::Refused { reason }),
            other => Err(unexpected(doing, &other)),
        }
    }

    /// Says that it cannot be, so that the predecessor need not wait to find out.
    pub(crate) fn give_up(&self, reason: &str) {
        // If this does not arrive, our end does.
        let _ = self.line.say(&Word::Failed { reason: reason.to_owned() }, &[], "giving up");
    }
}

/// Waits for somebody at the socket who asks for everything, tells what there is, and returns when it is to be handed over. A
/// conversation that comes to nothing is an error, and the next one may be better.
///
/// # Errors
/// Somebody asked who has no right to, or went away again.
pub fn receive_heir(
    listener: BorrowedFd<'_>,
    inventory: impl FnOnce() -> Result<Inventory, String>,
) -> Result<Heir, HandoverError> {
    let doing = "being asked for everything";
    let socket = accept_one(listener).map_err(gone(doing))?;
    let line = Line { socket };
    let peer = socket_peercred(&line.socket).map_err(gone(doing))?;
    let (pid, user) = (peer.pid.as_raw_nonzero().get(), peer.uid);
    if !user.is_root() && user != rustix::process::geteuid() {
        let stranger = HandoverError::Stranger { pid, user: user.as_raw() };
        let _ = line.say(&Word::Refusal { reason: "this user may not".into() }, &[], doing);
        return Err(stranger);
    }
    line.wait_at_most(PATIENCE, doing)?;
    match line.hear(doing)?.0 {
        Word::Hello { .. } => {}
        other => return Err(unexpected(doing, &other)),
    }
    match inventory() {
        Ok(inventory) => line.say(&Word::Inventory(inventory), &[], doing)?,
        Err(reason) => {
            line.say(&Word::Refusal { reason: reason.clone() }, &[], doing)?;
            return Err(HandoverError::Refused { reason });
        }
    }
    line.wait_at_most(PREPARATION, doing)?;
    match line.hear(doing)?.0 {
        Word::Take => {
            line.wait_at_most(PATIENCE, doing)?;
            Ok(Heir { line, pid })
        }
        other => Err(unexpected(doing, &other)),
    }
}

impl Heir {
    /// Its process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn refuse(&self, reason: &str) {
        let _ = self.line.say(&Word::Refusal { reason: reason.to_owned() }, &[], "refusing");
    }

    /// Hands everything over, and returns when the heir has built what it needs of it.
    pub(crate) fn hand_over(
        &self,
        content: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), HandoverError> {
        let doing = "handing over";
        let file = in_memory(content).map_err(gone(doing))?;
        let all: Vec<BorrowedFd<'_>> =
            [file.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
        let word = Word::Estate { descriptors: all.len(), bytes: content.len() as u64 };
        let mut pieces = all.chunks(DESCRIPTORS);
        self.line.say(&word, pieces.next().unwrap_or_default(), doing)?;
        for piece in pieces {
            self.line.say(&Word::More, piece, doing)?;
        }
        match self.line.hear(doing)?.0 {
            Word::Ready => Ok(()),
            Word::Failed { reason } => Err(HandoverError::Refused { reason }),
            other => Err(unexpected(doing, &other)),
        }
    }

    /// The last word: it is the heir's alone from now on.
    pub(crate) fn commit(&self) -> Result<(), HandoverError> {
        self.line.say(&Word::Commit, &[], "giving the last word")
    }
}

impl Line {
    fn wait_at_most(&self, time: Duration, doing: &'static str) -> Result<(), HandoverError> {
        self.wait(Some(time), doing)
    }

    fn wait(&self, time: Option<Duration>, doing: &'static str) -> Result<(), HandoverError> {
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.socket, which, time).map_err(gone(doing))?;
        }
        Ok(())
    }

    fn say(
        &self,
        word: &Word,
        descriptors: &[BorrowedFd<'_>],
        doing: &'static str,
    ) -> Result<(), HandoverError> {
        let bytes = serde_json::to_vec(word).map_err(|error| garbled(doing, error))?;
        if bytes.len() > WORD {
            return Err(garbled(doing, "a word is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(garbled(doing, "too many descriptors for a word"));
        }
        let pieces = [IoSlice::new(&bytes)];
        let until = Instant::now() + PATIENCE;
        loop {
            match sendmsg(&self.socket, &pieces, &mut beside, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                // As many descriptors are on their way as a user may have (unix(7)): until the other has taken some.
                Err(Errno::TOOMANYREFS) if Instant::now() < until => std::thread::sleep(MOMENT),
                Err(error) => return Err(gone(doing)(error)),
            }
        }
    }

    fn hear(&self, doing: &'static str) -> Result<(Word, Vec<OwnedFd>), HandoverError> {
        let mut bytes = vec![0; WORD];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let message =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)
                .map_err(gone(doing))?;
        let descriptors: Vec<OwnedFd> = beside
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if message.bytes == 0 {
            return Err(gone(doing)(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        // The kernel leaves out what this process has no room for (unix(7)).
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(garbled(
                doing,
                "this process may not have so many descriptors (ulimit -n, LimitNOFILE)",
            ));
        }
        let word = parse(&bytes[..message.bytes]).map_err(|error| garbled(doing, error))?;
        Ok((word, descriptors))
    }
}

/// Waits for as long as it takes, whether the listener blocks or not.
fn accept_one(listener: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    loop {
        match poll(&mut [PollFd::new(&listener, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            // Who came has gone again, or another process has accepted it.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            outcome => return outcome,
        }
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes)
}

fn dial(path: &Path) -> io::Result<Line> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(Line { socket })
}

fn in_memory(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("bentpipe-estate", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    Ok(file)
}

fn gone<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> HandoverError {
    move |source| {
        let source = source.into();
        let source = match source.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "it said nothing for too long")
            }
            io::ErrorKind::UnexpectedEof => io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"),
            _ => source,
        };
        HandoverError::Gone { doing, source }
    }
}

fn garbled(doing: &'static str, reason: impl ToString) -> HandoverError {
    HandoverError::Garbled { doing, reason: reason.to_string() }
}

fn unexpected(doing: &'static str, word: &Word) -> HandoverError {
    match word {
        Word::Refusal { reason } | Word::Failed { reason } => {
            HandoverError::Refused { reason: reason.clone() }
        }
        _ => garbled(doing, "a word that has no place here"),
    }
}

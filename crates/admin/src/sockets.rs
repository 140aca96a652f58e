//! The sockets by which a daemon is reached: opened while it is root, handed on to its successor, removed at its end.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use bentpipe_kernel::privileges::Account;
use bentpipe_proxy::config::{AdminSettings, Listen};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::token::{Token, TokenError};

/// Who may pass into the folder.
const FOLDER_MODE: u32 = 0o755;
/// Who may connect: the daemon's account and its group.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o660);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// What a daemon listens at beside its traffic. Dropping it closes the sockets and leaves their files, for a
/// successor that has got them; [`Sockets::close`] takes the files away.
#[derive(Debug)]
pub struct Sockets {
    folder: PathBuf,
    listen: Listen,
    token: Option<Token>,
    unix: Option<Door>,
    handover: Option<Door>,
    tcp: Option<(OwnedFd, SocketAddr)>,
}

/// Why the sockets are not there.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another daemon lives in this folder.
    #[error(
        "another daemon uses the folder {folder}: it answers at {socket}; end it, or give this one a folder of its own \
         with admin.folder"
    )]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// The socket that answered.
        socket: PathBuf,
    },
    /// Something else has the socket's name.
    #[error("{path} is not a socket; remove it, or give the daemon another folder with admin.folder")]
    NotASocket {
        /// What is in the way.
        path: PathBuf,
    },
    /// The secret cannot be had.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The server's thread could not be started.
    #[error(
        "cannot start the thread that answers {action}: {source}; look for a limit of threads or files (ulimit -a)"
    )]
    Start {
        /// For whom it would have answered.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A Unix socket and its file.
#[derive(Debug)]
struct Door {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, by which it is known again.
    file: Option<(u64, u64)>,
}

impl Sockets {
    /// Opens what the settings say, but for those that are `coming` from a daemon that is taken over; see
    /// [`Sockets::add`]. Call it while the process may still read the token's file and write to the folder; the files
    /// go to `owner`, so that it can remove them.
    ///
    /// Where the folder cannot be written to or the address is taken, it says so and goes on: who cannot be looked at
    /// still carries traffic.
    ///
    /// # Errors
    /// [`AdminError::Occupied`], [`AdminError::NotASocket`], [`AdminError::Token`].
    pub fn open(
        settings: &AdminSettings,
        owner: Option<&Account>,
        coming: &[String],
    ) -> Result<Self, AdminError> {
        let token = settings.token_file.as_deref().map(Token::load).transpose()?;
        let mut sockets = Self {
            folder: settings.folder.clone(),
            listen: settings.listen,
            token,
            unix: None,
            handover: None,
            tcp: None,
        };
        let is_coming = |name: &Option<String>| name.as_ref().is_some_and(|name| coming.contains(name));
        // Only root can give files away.
        let owner = owner.filter(|_| rustix::process::geteuid().is_root());
        if let Err(error) = make_folder(&settings.folder, owner) {
            tracing::warn!("cannot make the folder {}: {error}", settings.folder.display());
        }
        if !is_coming(&Some(sockets.unix_name())) {
            sockets.unix =
                open_door(&settings.socket(), Type::STREAM, owner, "no command reaches this daemon")?;
        }
        if !is_coming(&Some(sockets.handover_name())) {
            let lost = "no successor can take over from this daemon";
            sockets.handover = open_door(&settings.handover_socket(), Type::SEQPACKET, owner, lost)?;
        }
        if let Listen::At(address) = settings.listen
            && !is_coming(&sockets.tcp_name())
        {
            sockets.tcp = listen_at(address);
        }
        Ok(sockets)
    }

    /// Takes a socket over. One that these settings do not have is closed, and so is its file removed.
    pub fn add(&mut self, name: &str, socket: OwnedFd) {
        if name == self.unix_name() {
            self.unix = Some(Door::taken_over(socket, name));
        } else if name == self.handover_name() {
            self.handover = Some(Door::taken_over(socket, name));
        } else if self.tcp_name().as_deref() == Some(name) {
            let address = local_address(&socket);
            self.tcp = address.map(|address| (socket, address));
        } else {
            tracing::info!("{name} is not in the configuration any more: closed");
            Door::taken_over(socket, name).remove();
        }
    }

    /// What there is to hand on, each with the name under which [`Sockets::add`] knows it: `unix:PATH`,
    /// `handover:PATH`, `tcp:ADDRESS`, as configured.
    pub fn named(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let unix = self.unix.iter().map(|door| (self.unix_name(), door.socket.as_fd()));
        let handover = self.handover.iter().map(|door| (self.handover_name(), door.socket.as_fd()));
        let tcp = self.tcp.iter().filter_map(|(socket, _)| Some((self.tcp_name()?, socket.as_fd())));
        unix.chain(handover).chain(tcp).collect()
    }

    /// The listening socket for a successor (`SOCK_SEQPACKET`): another descriptor of the one that stays here.
    pub fn take_handover(&mut self) -> Option<OwnedFd> {
        duplicate(&self.handover.as_ref()?.socket)
    }

    /// Where the TCP socket listens really, where there is one; the port is not 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|&(_, address)| address)
    }

    /// Closes them all and removes the files, as far as it may: at an orderly end, not after a handover.
    pub fn close(self) {
        for door in self.unix.into_iter().chain(self.handover) {
            door.remove();
        }
    }

    /// Another descriptor of the Unix socket that speaks HTTP.
    pub(crate) fn unix(&self) -> Option<OwnedFd> {
        duplicate(&self.unix.as_ref()?.socket)
    }

    /// Another descriptor of the TCP socket, and where it listens.
    pub(crate) fn tcp(&self) -> Option<(OwnedFd, SocketAddr)> {
        let (socket, address) = self.tcp.as_ref()?;
        Some((duplicate(socket)?, *address))
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    fn unix_name(&self) -> String {
        format!("unix:{}", bentpipe_proxy::config::admin_socket(&self.folder).display())
    }

    fn handover_name(&self) -> String {
        format!("handover:{}", self.folder.join("handover.sock").display())
    }

    fn tcp_name(&self) -> Option<String> {
        match self.listen {
            Listen::Off => None,
            Listen::At(address) => Some(format!("tcp:{address}")),
        }
    }
}

impl Door {
    fn taken_over(socket: OwnedFd, name: &str) -> Self {
        let path = PathBuf::from(name.split_once(':').map_or(name, |(_, path)| path));
        let file = socket_file(&path);
        Self { socket, path, file }
    }

    /// Removes the file if it is still the same. After privileges have been given up the folder may not let it go:
    /// the next daemon finds that nobody answers there.
    fn remove(self) {
        if self.file.is_some() && socket_file(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of a socket's file.
fn socket_file(path: &Path) -> Option<(u64, u64)> {
    let data = fs::symlink_metadata(path).ok()?;
    data.file_type().is_socket().then(|| (data.dev(), data.ino()))
}

/// A folder that was there already stays whose it is: it may be one that others use.
fn make_folder(folder: &Path, owner: Option<&Account>) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    // Whatever the umask left of it.
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(FOLDER_MODE))?;
    match owner {
        Some(owner) => std::os::unix::fs::chown(folder, Some(owner.uid()), Some(owner.gid())),
        None => Ok(()),
    }
}

fn open_door(
    path: &Path,
    kind: Type,
    owner: Option<&Account>,
    what_is_lost: &str,
) -> Result<Option<Door>, AdminError> {
    make_way(path, kind)?;
    match bind(path, kind, owner) {
        Ok(socket) => {
            let file = socket_file(path);
            Ok(Some(Door { socket, path: path.to_owned(), file }))
        }
        Err(error) => {
            tracing::warn!("cannot listen at {}: {error}; {what_is_lost}", path.display());
            Ok(None)
        }
    }
}

/// Removes the socket of a daemon that is dead. A living one, and whatever else is there, stays.
fn make_way(path: &Path, kind: Type) -> Result<(), AdminError> {
    let Ok(data) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !data.file_type().is_socket() {
        return Err(AdminError::NotASocket { path: path.to_owned() });
    }
    if is_anybody_there(path, kind) {
        let folder = path.parent().unwrap_or(path).to_owned();
        return Err(AdminError::Occupied { folder, socket: path.to_owned() });
    }
    // If it cannot be removed, bind(2) says so.
    let _ = fs::remove_file(path);
    Ok(())
}

/// Only a refusal says that nobody listens (unix(7)); one whose queue is full is alive.
fn is_anybody_there(path: &Path, kind: Type) -> bool {
    let attempt = || {
        let socket = Socket::new(Domain::UNIX, kind, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    match attempt() {
        Ok(()) => true,
        Err(error) => !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound),
    }
}

/// Nobody can connect before listen(2), and by then the file has its owner and its mode.
fn bind(path: &Path, kind: Type, owner: Option<&Account>) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, kind, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    restrict(path, owner)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Gives the file to its owner and its group. The folder may be the account's already, which might put a link in the
/// file's place while root is at work: so the file is held, found to be a socket, and changed through the descriptor.
fn restrict(path: &Path, owner: Option<&Account>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("the socket has been replaced by something else"));
    }
    // fchmod(2) does not take such a descriptor, but chmod(2) its name (open(2), O_PATH).
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), SOCKET_MODE)?;
    if let Some(owner) = owner {
        let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
        rustix::fs::chownat(&file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

fn listen_at(address: SocketAddr) -> Option<(OwnedFd, SocketAddr)> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // So that a restart need not wait for connections of the last daemon to be forgotten.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(OwnedFd::from(socket))
    };
    let opened: io::Result<OwnedFd> = open();
    match opened {
        Ok(socket) => {
            let address = local_address(&socket).unwrap_or(address);
            Some((socket, address))
        }
        Err(error) => {
            tracing::warn!(
                "cannot listen at {address}: {error}; page and metrics are on the Unix socket only; choose another \
                 address with admin.listen, or \"off\""
            );
            None
        }
    }
}

fn local_address(socket: &OwnedFd) -> Option<SocketAddr> {
    socket2::SockRef::from(socket).local_addr().ok()?.as_socket()
}

fn duplicate(socket: &OwnedFd) -> Option<OwnedFd> {
    let copy = socket.try_clone();
    copy.inspect_err(|error| tracing::warn!("cannot duplicate a socket: {error}")).ok()
}

//! The daemon's own sockets: opened while it is root, passed to its successor, removed at its end.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use bentpipe_http::unix::{self, BindError, Owner, Type};
use bentpipe_kernel::privileges::Account;
use bentpipe_proxy::config::{AdminSettings, Listen};
use socket2::{Domain, Socket};

use crate::token::{Token, TokenError};

/// Mode of the folder.
const FOLDER_MODE: u32 = 0o755;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The daemon's listening sockets, apart from its traffic. Dropping it closes them and leaves their files to
/// a successor; [`Sockets::close`] removes the files.
#[derive(Debug)]
pub struct Sockets {
    folder: PathBuf,
    listen: Listen,
    token: Option<Token>,
    unix: Option<UnixSocket>,
    handover: Option<UnixSocket>,
    tcp: Option<(OwnedFd, SocketAddr)>,
}

/// Why the sockets cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another daemon uses this folder.
    #[error(
        "another daemon uses the folder {folder}: it listens at {socket}; stop it, or give this one a folder of its own \
         with admin.folder"
    )]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// The socket that answered.
        socket: PathBuf,
    },
    /// A file that is no socket has the name.
    #[error("{path} is not a socket; remove it, or give the daemon another folder with admin.folder")]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The server's thread could not be started.
    #[error(
        "cannot start the thread that answers {action}: {source}; look for a limit of threads or files (ulimit -a)"
    )]
    Start {
        /// What it would have served.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A Unix socket and its file.
#[derive(Debug)]
struct UnixSocket {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, which identify it.
    file: Option<(u64, u64)>,
}

impl Sockets {
    /// Opens the configured sockets, except those that are `coming` from a predecessor; see [`Sockets::add`].
    /// Call it while the process may still read the token's file and write to the folder; the files go to
    /// `owner`, so that it can remove them.
    ///
    /// If the folder is not writable or the address is in use, it logs that and continues: the daemon can
    /// still carry traffic.
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
        let owner = owner.map(|account| (account.uid(), account.gid()));
        if let Err(error) = unix::make_folder(&settings.folder, FOLDER_MODE, owner) {
            tracing::warn!("cannot make the folder {}: {error}", settings.folder.display());
        }
        if !is_coming(&Some(sockets.unix_name())) {
            sockets.unix =
                listen_unix(&settings.socket(), Type::STREAM, owner, "commands cannot reach this daemon")?;
        }
        if !is_coming(&Some(sockets.handover_name())) {
            let lost = "no successor can take over from this daemon";
            sockets.handover = listen_unix(&settings.handover_socket(), Type::SEQPACKET, owner, lost)?;
        }
        if let Listen::At(address) = settings.listen
            && !is_coming(&sockets.tcp_name())
        {
            sockets.tcp = listen_at(address);
        }
        Ok(sockets)
    }

    /// Adds a socket of the predecessor. One that is no longer configured is closed and its file removed.
    pub fn add(&mut self, name: &str, socket: OwnedFd) {
        if name == self.unix_name() {
            self.unix = Some(UnixSocket::inherited(socket, name));
        } else if name == self.handover_name() {
            self.handover = Some(UnixSocket::inherited(socket, name));
        } else if self.tcp_name().as_deref() == Some(name) {
            let address = local_address(&socket);
            self.tcp = address.map(|address| (socket, address));
        } else {
            tracing::info!("{name} is not in the configuration any more: closed");
            UnixSocket::inherited(socket, name).remove();
        }
    }

    /// The sockets for a successor, each with the name under which [`Sockets::add`] knows it: `unix:PATH`,
    /// `handover:PATH`, `tcp:ADDRESS`, as configured.
    pub fn named(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let unix = self.unix.iter().map(|unix| (self.unix_name(), unix.socket.as_fd()));
        let handover = self.handover.iter().map(|unix| (self.handover_name(), unix.socket.as_fd()));
        let tcp = self.tcp.iter().filter_map(|(socket, _)| Some((self.tcp_name()?, socket.as_fd())));
        unix.chain(handover).chain(tcp).collect()
    }

    /// The listening socket for a successor (`SOCK_SEQPACKET`): another descriptor of the one that stays
    /// here.
    pub fn take_handover(&mut self) -> Option<OwnedFd> {
        duplicate(&self.handover.as_ref()?.socket)
    }

    /// The actual address of the TCP socket, if there is one; its port is not 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|&(_, address)| address)
    }

    /// Closes all sockets and removes their files, as far as permitted: at an orderly end, not after an
    /// upgrade.
    pub fn close(self) {
        for unix in self.unix.into_iter().chain(self.handover) {
            unix.remove();
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

impl UnixSocket {
    fn inherited(socket: OwnedFd, name: &str) -> Self {
        let path = PathBuf::from(name.split_once(':').map_or(name, |(_, path)| path));
        let file = socket_file(&path);
        Self { socket, path, file }
    }

    /// Removes the file if it is still the same. Without privileges this may fail; the next daemon then
    /// replaces the stale file.
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

/// Listens at a Unix socket. If that is impossible, logs why and what the daemon then lacks.
fn listen_unix(
    path: &Path,
    kind: Type,
    owner: Option<Owner>,
    consequence: &str,
) -> Result<Option<UnixSocket>, AdminError> {
    match unix::listen(path, kind, owner) {
        Ok(socket) => Ok(Some(UnixSocket { socket, path: path.to_owned(), file: socket_file(path) })),
        Err(BindError::NotASocket) => Err(AdminError::NotASocket { path: path.to_owned() }),
        Err(BindError::Occupied) => {
            let folder = path.parent().unwrap_or(path).to_owned();
            Err(AdminError::Occupied { folder, socket: path.to_owned() })
        }
        Err(BindError::Io(error)) => {
            tracing::warn!("cannot listen at {}: {error}; {consequence}", path.display());
            Ok(None)
        }
    }
}

fn listen_at(address: SocketAddr) -> Option<(OwnedFd, SocketAddr)> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // A restart need not wait for connections in TIME-WAIT.
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

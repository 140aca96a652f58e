//! The daemon's own sockets: opened while it is root, passed to its successor, removed at its end.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::bundle_node::BundleNode;
use bentpipe_http::unix::{self, BindError, Owner, Type};
use bentpipe_http::{Token, TokenError, tcp};
use bentpipe_kernel::privileges::Account;
use bentpipe_proxy::config::{AdminSettings, Listen};

const FOLDER_MODE: u32 = 0o755;
/// The key that names the token's file.
const TOKEN_KEY: &str = "admin.token_file";

/// Whether the token in a file can be used: a start refuses otherwise.
///
/// # Errors
/// [`TokenError`].
pub fn check_token(path: &Path) -> Result<(), TokenError> {
    load_token(path).map(drop)
}

fn load_token(path: &Path) -> Result<Token, TokenError> {
    Token::load(path, TOKEN_KEY)
}

/// The daemon's listening sockets, apart from its traffic. Dropping it closes them and leaves their files to
/// a successor; [`Sockets::close`] removes the files.
#[derive(Debug)]
pub struct Sockets {
    settings: AdminSettings,
    token: Option<Token>,
    open: Vec<ListeningSocket>,
}

/// Why the sockets cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another daemon uses this folder.
    #[error(
        "another daemon uses the folder {folder}: it listens at {socket}; stop it, or give this one a \
         folder of its own \
         with admin.folder"
    )]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// The socket that answered.
        socket: PathBuf,
    },
    /// A file that is no socket has the name.
    #[error("{0} is not a socket; remove it, or give the daemon another folder with admin.folder")]
    NotASocket(PathBuf),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The server's thread could not be started.
    #[error(
        "cannot start the thread that answers {action}: {source}; look for a limit of threads or files \
         (ulimit -a)"
    )]
    Start {
        /// What it would have served.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

#[derive(Debug)]
struct ListeningSocket {
    /// The name by which a successor knows it.
    name: String,
    socket: OwnedFd,
    /// The file of a Unix socket; device and inode identify it.
    file: Option<(PathBuf, (u64, u64))>,
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
        let token = settings.token_file.as_deref().map(load_token).transpose()?;
        let mut sockets = Self { settings: settings.clone(), token, open: Vec::new() };
        // Only root can give files away.
        let owner = owner.filter(|_| rustix::process::geteuid().is_root());
        let owner = owner.map(|account| (account.uid(), account.gid()));
        for folder in [Some(&settings.folder), settings.state_folder.as_ref()].into_iter().flatten() {
            if let Err(error) = unix::make_folder(folder, FOLDER_MODE, owner) {
                tracing::warn!("cannot make the folder {}: {error}", folder.display());
            }
        }
        let is_wanted = |name: &String| !coming.contains(name);
        let (lost_commands, lost_upgrades) =
            ("commands cannot reach this daemon", "no successor can take over from this daemon");
        for (name, path, kind, consequence) in [
            (sockets.unix_name(), settings.socket(), Type::STREAM, lost_commands),
            (sockets.handover_name(), settings.handover_socket(), Type::SEQPACKET, lost_upgrades),
        ] {
            if is_wanted(&name)
                && let Some(socket) = listen_unix(&path, kind, owner, consequence)?
            {
                sockets.open.push(ListeningSocket::new(name, socket));
            }
        }
        if let (Listen::At(address), Some(name)) = (settings.listen, sockets.tcp_name().filter(is_wanted)) {
            sockets.open.extend(listen_at(address).map(|socket| ListeningSocket::new(name, socket)));
        }
        Ok(sockets)
    }

    /// Adds a socket of the predecessor. One that is no longer configured is closed and its file removed.
    pub fn add(&mut self, name: &str, socket: OwnedFd) {
        let socket = ListeningSocket::new(name.to_owned(), socket);
        let configured = [Some(self.unix_name()), Some(self.handover_name()), self.tcp_name()];
        if configured.iter().flatten().any(|known| known == name) {
            self.open.push(socket);
        } else {
            tracing::info!("{name} is not in the configuration any more: closed");
            socket.remove();
        }
    }

    /// The sockets for a successor, each with the name under which [`Sockets::add`] knows it: `unix:PATH`,
    /// `handover:PATH`, `tcp:ADDRESS`, as configured.
    pub fn named(&self) -> Vec<(String, BorrowedFd<'_>)> {
        self.open.iter().map(|open| (open.name.clone(), open.socket.as_fd())).collect()
    }

    /// The listening socket for a successor (`SOCK_SEQPACKET`): another descriptor of the one that stays
    /// here.
    pub fn take_handover(&mut self) -> Option<OwnedFd> {
        duplicate(self.find(&self.handover_name())?)
    }

    /// The Unix socket that speaks HTTP.
    pub fn socket(&self) -> PathBuf {
        self.settings.socket()
    }

    /// The actual address of the TCP socket, if there is one; its port is not 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        socket2::SockRef::from(self.find(&self.tcp_name()?)?).local_addr().ok()?.as_socket()
    }

    /// Closes all sockets and removes their files, as far as permitted: at an orderly end, not after an
    /// upgrade.
    pub fn close(self) {
        self.open.into_iter().for_each(ListeningSocket::remove);
    }

    /// Another descriptor of the Unix socket that speaks HTTP.
    pub(crate) fn unix(&self) -> Option<OwnedFd> {
        duplicate(self.find(&self.unix_name())?)
    }

    /// Another descriptor of the TCP socket, and where it listens.
    pub(crate) fn tcp(&self) -> Option<(OwnedFd, SocketAddr)> {
        Some((duplicate(self.find(&self.tcp_name()?)?)?, self.tcp_address()?))
    }

    /// The bundle node of this host, if one runs.
    pub(crate) fn bundle_node(&self) -> BundleNode {
        BundleNode::new(self.settings.node_socket.clone())
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    fn find(&self, name: &str) -> Option<&OwnedFd> {
        self.open.iter().find(|open| open.name == name).map(|open| &open.socket)
    }

    fn unix_name(&self) -> String {
        format!("unix:{}", self.settings.socket().display())
    }

    fn handover_name(&self) -> String {
        format!("handover:{}", self.settings.handover_socket().display())
    }

    fn tcp_name(&self) -> Option<String> {
        match self.settings.listen {
            Listen::Off => None,
            Listen::At(address) => Some(format!("tcp:{address}")),
        }
    }
}

impl ListeningSocket {
    fn new(name: String, socket: OwnedFd) -> Self {
        let path = PathBuf::from(name.split_once(':').map_or(&*name, |(_, path)| path));
        let file = socket_file(&path).map(|file| (path, file));
        Self { name, socket, file }
    }

    /// Removes the file if it is still the same. Without privileges this may fail; the next daemon then
    /// replaces the stale file.
    fn remove(self) {
        if let Some((path, file)) = self.file
            && socket_file(&path) == Some(file)
        {
            let _ = fs::remove_file(path);
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
) -> Result<Option<OwnedFd>, AdminError> {
    match unix::listen(path, kind, owner) {
        Ok(socket) => Ok(Some(socket)),
        Err(BindError::NotASocket) => Err(AdminError::NotASocket(path.to_owned())),
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

fn listen_at(address: SocketAddr) -> Option<OwnedFd> {
    let warn = |error: &io::Error| {
        tracing::warn!(
            "cannot listen at {address}: {error}; page and metrics are on the Unix socket only; choose \
             another \
             address with admin.listen, or \"off\""
        );
    };
    tcp::listen(address).inspect_err(warn).ok()
}

fn duplicate(socket: &OwnedFd) -> Option<OwnedFd> {
    let copy = socket.try_clone();
    copy.inspect_err(|error| tracing::warn!("cannot duplicate a socket: {error}")).ok()
}

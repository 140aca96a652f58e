//! Unix sockets that servers listen at.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
pub use socket2::Type;
use socket2::{Domain, SockAddr, Socket};

/// The owner and the group may connect.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o660);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Numbers of a user and a group.
pub type Owner = (u32, u32);

/// Why a socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("another process listens there")]
    Occupied,
    /// A file that is no socket has the name.
    #[error("it exists and is not a socket")]
    NotASocket,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Listens at a path, in place of a process that has died there. The file belongs to `owner` if one is given.
/// The socket does not block.
///
/// # Errors
/// [`BindError`].
pub fn listen(path: &Path, kind: Type, owner: Option<Owner>) -> Result<OwnedFd, BindError> {
    remove_stale(path, kind)?;
    let socket = Socket::new(Domain::UNIX, kind, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Before listen(2) nobody can connect, so nobody connects before the file has its owner and mode.
    restrict(path, owner)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Makes a folder with this mode and owner. An existing one stays as it is: others may use it.
///
/// # Errors
/// Those of mkdir(2), chmod(2) and chown(2).
pub fn make_folder(folder: &Path, mode: u32, owner: Option<Owner>) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(mode).create(folder)?;
    // The umask may have taken bits away.
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))?;
    match owner {
        Some((uid, gid)) => chown(folder, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// Removes the socket that a dead process has left.
fn remove_stale(path: &Path, kind: Type) -> Result<(), BindError> {
    let Ok(data) = fs::symlink_metadata(path) else { return Ok(()) };
    if !data.file_type().is_socket() {
        return Err(BindError::NotASocket);
    }
    if is_alive(path, kind) {
        return Err(BindError::Occupied);
    }
    // If this fails, bind(2) reports it.
    let _ = fs::remove_file(path);
    Ok(())
}

/// Only a refused connection proves that nothing listens (unix(7)); a full queue belongs to a living process.
fn is_alive(path: &Path, kind: Type) -> bool {
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

/// Gives the file its mode and owner. The folder may belong to an unprivileged account, which could replace
/// the file by a link while root is at work. So the file is opened, checked to be a socket, and changed
/// through its descriptor.
fn restrict(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("the socket has been replaced by something else"));
    }
    // fchmod(2) refuses an O_PATH descriptor; chmod(2) of its name in /proc works (open(2)).
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), SOCKET_MODE)?;
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(&file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{Error, Result};

/// A host of the testbed: a network namespace with its own devices, addresses, routes, rules and sysctls.
///
/// It has no name in `/run/netns`. It exists as long as a clone of this handle, or a process or socket inside
/// it, exists; then the kernel removes it with everything in it. So a crash leaves nothing behind. Cloning is
/// cheap and gives another handle to the same namespace.
#[derive(Debug, Clone)]
pub struct Namespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    fd: OwnedFd,
}

impl Namespace {
    /// A new, empty namespace with `lo` up. The name appears in messages only.
    ///
    /// # Errors
    /// [`Error::CreateNamespace`] without CAP_SYS_ADMIN (see
    /// [`enter_user_namespace`](crate::enter_user_namespace)).
    pub fn new(name: &str) -> Result<Self> {
        let fail = |source| Error::CreateNamespace { name: name.to_owned(), source };
        let fd = thread::scope(|scope| scope.spawn(unshare_network).join().expect("only makes system calls"));
        let namespace = Self::from_fd(name, fd.map_err(fail)?);
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// [`Error::EnterNamespace`] if `/proc` is not mounted.
    pub fn host() -> Result<Self> {
        let fd =
            current_network().map_err(|source| Error::EnterNamespace { name: "host".to_owned(), source })?;
        Ok(Self::from_fd("host", fd))
    }

    /// The name that the namespace was given.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Runs `f` on a thread that has entered the namespace and returns its result: a socket made there
    /// belongs to the namespace for good. A panic in `f` goes on in the caller.
    ///
    /// # Errors
    /// [`Error::EnterNamespace`] without CAP_SYS_ADMIN.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        let outcome = thread::scope(|scope| {
            scope
                .spawn(|| {
                    enter(self.as_fd())?;
                    Ok(f())
                })
                .join()
        });
        outcome
            .unwrap_or_else(|panic| panic::resume_unwind(panic))
            .map_err(|source| Error::EnterNamespace { name: self.name().to_owned(), source })
    }

    /// A command that will run inside the namespace. Start it with [`Child::spawn`](crate::Child::spawn) if
    /// it must not outlive this process, or with the methods of [`Command`] if it is waited for on the spot.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let namespace = self.clone();
        // SAFETY: between fork and exec the closure makes one system call, setns(2), and allocates nothing.
        unsafe { command.pre_exec(move || enter(namespace.as_fd())) };
        command
    }

    /// Runs `ip` with `args`, which are separated by spaces: `ns.ip("link set lo up")`.
    ///
    /// # Errors
    /// [`Error::Tool`] with what `ip` said, [`Error::Spawn`] if it is not installed.
    pub fn ip(&self, args: &str) -> Result<()> {
        self.tool("ip", args, None, "").map(drop)
    }

    /// Feeds lines to `ip -batch -`, each as after `ip`: one process for all of them. The first line that
    /// fails is the last one.
    ///
    /// # Errors
    /// As [`ip`](Self::ip).
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        self.tool("ip", "-batch -", None, lines).map(drop)
    }

    /// Feeds a ruleset to `nft -f -`: all of it is applied, or nothing.
    ///
    /// # Errors
    /// [`Error::Tool`] with what `nft` said, [`Error::Spawn`] if it is not installed.
    pub fn nft(&self, ruleset: &str) -> Result<()> {
        self.tool("nft", "-f -", None, ruleset).map(drop)
    }

    /// Sets a kernel setting of this namespace: `ns.sysctl("net.ipv4.ip_forward", "1")`. Where an interface's
    /// name has a dot in it, write the key with slashes.
    ///
    /// # Errors
    /// [`Error::Sysctl`] if the kernel has no such setting, does not keep it per namespace, or refuses the
    /// value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = sysctl_path(key);
        self.run(|| fs::write(path, value))?.map_err(|source| Error::Sysctl {
            namespace: self.name().to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
            source,
        })
    }

    /// True if the kernel speaks IPv6 here (it may have been started with `ipv6.disable=1`).
    pub fn has_ipv6(&self) -> bool {
        self.run(|| Path::new("/proc/sys/net/ipv6").is_dir()).unwrap_or(false)
    }

    /// The same, with what `ip` prints.
    pub(crate) fn ip_output(&self, args: &str) -> Result<String> {
        let output = self.tool("ip", args, None, "")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `ip` where `other` can be named as a place for a device: `{}` in `args` becomes its path.
    pub(crate) fn ip_with(&self, args: &str, other: &Namespace) -> Result<()> {
        self.tool("ip", args, Some(other), "").map(drop)
    }

    fn from_fd(name: &str, fd: OwnedFd) -> Self {
        Self { inner: Arc::new(Inner { name: name.to_owned(), fd }) }
    }

    /// Where a child of this process finds it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.as_fd().as_raw_fd())
    }

    fn tool(&self, program: &str, args: &str, other: Option<&Namespace>, input: &str) -> Result<Output> {
        let args = args.replace("{}", &other.map(Self::path).unwrap_or_default());
        let mut command = Command::new(find_tool(program));
        command.args(args.split_whitespace()).env("LC_ALL", "C");
        // From a thread that is there already, so that the child has nothing to do before it runs the program:
        // then the kernel need not copy this process, which halts the links that it emulates.
        let output = self
            .run(|| feed(command, input))?
            .map_err(|source| Error::Spawn { program: program.to_owned(), source })?;
        if output.status.success() {
            return Ok(output);
        }
        Err(Error::Tool {
            command: format!("{program} {args}"),
            namespace: self.name().to_owned(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "),
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

/// The path of an administrator's program: in PATH, or in the folders that an ordinary user's PATH lacks.
pub fn find_tool(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| program.into())
}

fn current_network() -> io::Result<OwnedFd> {
    Ok(fs::File::open("/proc/thread-self/ns/net")?.into())
}

/// Moves the calling thread, which must end soon, into a new namespace.
fn unshare_network() -> io::Result<OwnedFd> {
    // SAFETY: NEWNET changes this thread's network only; descriptors stay shared with the other threads.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    current_network()
}

fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

fn feed(mut command: Command, input: &str) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().expect("asked for above");
    // A program that ends without reading its input says why on standard error: that is the message to give.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output()
}

fn sysctl_path(key: &str) -> PathBuf {
    let relative = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
    Path::new("/proc/sys").join(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_key_is_a_path_with_dots() {
        assert_eq!(sysctl_path("net.ipv4.tcp_rmem"), Path::new("/proc/sys/net/ipv4/tcp_rmem"));
        assert_eq!(
            sysctl_path("net/ipv4/conf/eth0.7/forwarding"),
            Path::new("/proc/sys/net/ipv4/conf/eth0.7/forwarding")
        );
    }

    #[test]
    fn a_tool_that_is_not_found_keeps_its_name_for_the_message() {
        assert_eq!(find_tool("no-such-tool"), Path::new("no-such-tool"));
    }
}

//! Least privilege: dropping root for the capabilities that the daemon still needs once it is set up.
//!
//! By then eBPF is loaded and files are open. The daemon keeps two capabilities (capabilities(7)),
//! [`DAEMON`]: `tests/root_privileges.rs` shows that it needs both, and no other. They apply to the network
//! namespaces that their user namespace owns: on a host, to all of them; inside a container's user namespace,
//! to the container's only.
//!
//! There is no seccomp filter here. The daemon starts `nft` and `ip`, which would inherit it, and a filter
//! that suits every version of both programs would allow nearly everything. Where their versions are known,
//! the service manager can filter: systemd's `SystemCallFilter=`, and `RestrictNamespaces=yes`, without which
//! a process without capabilities can still become root of a new user namespace.

use std::fmt;
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, getuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
    capability_is_in_ambient_set, capability_is_in_bounding_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

mod account;

pub use account::{Account, is_shared_account};

/// The capabilities that the daemon keeps.
pub const DAEMON: [Capability; 2] = [Capability::NetAdmin, Capability::NetBindService];

/// A capability that a process can keep (capabilities(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_NET_ADMIN`: transparent sockets, buffers beyond the host's maximum, restricted congestion
    /// controls (those in eBPF are), nftables, routes and policy rules.
    NetAdmin,
    /// `CAP_NET_BIND_SERVICE`: connections from a client's port below
    /// `net.ipv4.ip_unprivileged_port_start`, 1024.
    NetBindService,
}

/// Why privileges were not dropped. The process may have dropped a part of them: it should end.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// There is no such user.
    #[error(
        "there is no user \"{name}\" in /etc/passwd; make one with: \
         useradd --system --user-group --no-create-home --shell /usr/sbin/nologin NAME; \
         or give the numbers of one that is kept elsewhere as USER:GROUP"
    )]
    UnknownUser {
        /// The name or number that was looked for.
        name: String,
    },
    /// There is no such group, or the number has no entry that names its group.
    #[error(
        "there is no group \"{name}\" in /etc/group, nor a user of that number in /etc/passwd; \
         give USER:GROUP, as names from these files or as numbers"
    )]
    UnknownGroup {
        /// The name or number that was looked for.
        name: String,
    },
    /// The account is root's.
    #[error("\"{account}\" has root's user or group, so nothing would be dropped; name an ordinary account")]
    Root {
        /// The account as it was written.
        account: String,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The process has threads that would keep their privileges.
    #[error(
        "cannot give up privileges in a process of {threads} threads: each thread has its own; \
         do it before the first one is started"
    )]
    Threads {
        /// The number of threads.
        threads: usize,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}; {mend}")]
    System {
        /// The attempted action.
        action: &'static str,
        /// What the system said.
        source: io::Error,
        /// The advice.
        mend: &'static str,
    },
}

/// Drops all privileges but the capabilities in `keep`, for good, in this process and every program that it
/// starts.
///
/// - The permitted, effective, inheritable and ambient sets become `keep`: programs that it starts, `nft` and
///   `ip`, have the same capabilities. One that the process does not have is not given to it, which a log
///   line says.
/// - Started as root, it becomes `account` with no supplementary groups. Without an account it stays user 0:
///   then what root's files are open to is open to it. Started as an ordinary user with capabilities
///   (systemd's `User=` and `AmbientCapabilities=`), it stays that user, whatever `account` says.
/// - Started with `CAP_SETPCAP`, as root is, it empties the bounding set but for `keep` and locks
///   `SECBIT_NOROOT`, so that user 0 has no powers of its own.
/// - `no_new_privs`: no program that it starts gains anything by set-user-ID bits or file capabilities.
/// - Not dumpable: no core file with other people's data, and no debugger without root's help. The process'
///   own files in `/proc` belong to root then; it goes on reading them, `/proc/self/fd` included.
///
/// An ordinary user without capabilities has nothing to give up: this does nothing.
///
/// Call it **while the process has one thread**. capset(2), setresuid(2) and prctl(2) act on one thread, a
/// new thread inherits from the one that starts it, and there is no call that changes all of them at once.
///
/// # Errors
/// [`PrivilegeError::Threads`], [`PrivilegeError::Read`] without `/proc`, [`PrivilegeError::System`].
pub fn drop_to(account: Option<&Account>, keep: &[Capability]) -> Result<(), PrivilegeError> {
    let held = capabilities(None).map_err(failed("read this process' capabilities", FORBIDDEN))?;
    let is_root = getuid().is_root() || geteuid().is_root();
    if !is_root && held.permitted.is_empty() {
        return Ok(());
    }
    check_single_thread()?;
    let kept = available(keep, held.permitted);
    set_no_new_privs(true).map_err(failed("set no_new_privs", FORBIDDEN))?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        narrow_bounding_set(kept).map_err(failed("empty the capability bounding set", FORBIDDEN))?;
        lock_root_out().map_err(failed("take user 0's powers", FORBIDDEN))?;
    }
    if let (true, Some(account)) = (is_root, account) {
        become_account(*account).map_err(failed("become the account to run as", MORE_CAPABILITIES))?;
    }
    keep_only(kept).map_err(failed("give up capabilities", FORBIDDEN))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("forbid core files", FORBIDDEN))
}

const FORBIDDEN: &str = "look for a system call filter or a security module that forbids it";
const MORE_CAPABILITIES: &str = "start with CAP_SETUID and CAP_SETGID, or let the service manager choose the user and name no account here";

impl Capability {
    const fn bit(self) -> CapabilitySet {
        match self {
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::NetBindService => CapabilitySet::NET_BIND_SERVICE,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
        })
    }
}

fn check_single_thread() -> Result<(), PrivilegeError> {
    const TASKS: &str = "/proc/self/task";
    let tasks = fs::read_dir(TASKS).map_err(|source| PrivilegeError::Read { path: TASKS, source })?;
    match tasks.count() {
        1 => Ok(()),
        threads => Err(PrivilegeError::Threads { threads }),
    }
}

/// The capabilities of `keep` that the process has.
fn available(keep: &[Capability], permitted: CapabilitySet) -> CapabilitySet {
    let mut set = CapabilitySet::empty();
    for &capability in keep {
        if permitted.contains(capability.bit()) {
            set |= capability.bit();
        } else {
            tracing::warn!(
                "this process was started without {capability}: operations that need it will fail"
            );
        }
    }
    set
}

fn narrow_bounding_set(kept: CapabilitySet) -> io::Result<()> {
    for bit in (0..u64::BITS).map(|place| CapabilitySet::from_bits_retain(1 << place)) {
        match capability_is_in_bounding_set(bit) {
            Ok(true) if !kept.contains(bit) => remove_capability_from_bounding_set(bit)?,
            Ok(_) => {}
            // Beyond the last capability that this kernel knows (prctl(2), PR_CAPBSET_READ).
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn lock_root_out() -> io::Result<()> {
    let bits = capabilities_secure_bits()?;
    let no_root = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    Ok(set_capabilities_secure_bits(bits | no_root)?)
}

/// Groups first, while there is the right to change them. The permitted set must outlive the change of user
/// for [`keep_only`] to choose from.
fn become_account(account: Account) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(account.uid()), Gid::from_raw(account.gid()));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_keep_capabilities(true)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(set_keep_capabilities(false)?)
}

/// The ambient set can hold only what is permitted and inheritable, so it shrinks with them; it is cleared by
/// setresuid(2), so it is filled last.
fn keep_only(kept: CapabilitySet) -> io::Result<()> {
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    for capability in kept.iter() {
        if !capability_is_in_ambient_set(capability)? {
            configure_capability_in_ambient_set(capability, true)?;
        }
    }
    Ok(())
}

/// For `map_err`: the attempted action, and the advice.
fn failed<E: Into<io::Error>>(action: &'static str, mend: &'static str) -> impl FnOnce(E) -> PrivilegeError {
    move |source| PrivilegeError::System { action, source: source.into(), mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_other_threads_nothing_is_given_up() {
        let here = std::thread::spawn(check_single_thread).join().unwrap();
        assert!(matches!(here, Err(PrivilegeError::Threads { threads }) if threads > 1), "{here:?}");
    }

    #[test]
    fn capabilities_that_the_process_lacks_are_not_kept() {
        let permitted = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
        assert_eq!(available(&DAEMON, permitted), CapabilitySet::NET_ADMIN);
    }
}

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities, unshare_unsafe,
};

use crate::{Error, Result};

/// The capabilities that the testbed needs: CAP_SYS_ADMIN to enter namespaces, CAP_NET_ADMIN to set them up,
/// CAP_NET_RAW for tools that look at packets.
const NEEDED: [CapabilitySet; 3] =
    [CapabilitySet::NET_ADMIN, CapabilitySet::SYS_ADMIN, CapabilitySet::NET_RAW];

/// Whether the calling thread has the capabilities to make and configure namespaces, as root usually has.
pub fn is_privileged() -> bool {
    let wanted = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Moves this process, of an ordinary user, into a user namespace of its own, where it may make network
/// namespaces.
///
/// User and group do not change (each is mapped to itself), and the process gains no rights outside. Programs
/// that it starts inherit the capabilities, so that `ip` works; remove them from the user's own programs with
/// [`drop_capabilities`]. It cannot be undone.
///
/// Call it **before the process has a second thread**: the kernel accepts only a single-threaded process.
///
/// # Errors
/// [`Error::UserNamespace`] if the machine does not allow user namespaces to ordinary users, or other threads
/// are running.
pub fn enter_user_namespace() -> Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let attempt =
        |step, outcome: io::Result<()>| outcome.map_err(|source| Error::UserNamespace { step, source });
    attempt("unshare", unshare_user())?;
    // The kernel allows an ordinary user to map groups only after setgroups(2) is denied: user_namespaces(7).
    attempt("write /proc/self/setgroups", fs::write("/proc/self/setgroups", "deny"))?;
    attempt("write /proc/self/uid_map", fs::write("/proc/self/uid_map", format!("{user} {user} 1")))?;
    attempt("write /proc/self/gid_map", fs::write("/proc/self/gid_map", format!("{group} {group} 1")))?;
    attempt("keep the capabilities for `ip`", raise_ambient())
}

/// Makes `command` run without the capabilities that [`enter_user_namespace`] gave to this process. Without a
/// user namespace it changes nothing.
pub fn drop_capabilities(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, prctl(2), and allocates nothing.
    unsafe { command.pre_exec(|| Ok(clear_ambient_capability_set()?)) };
}

fn unshare_user() -> io::Result<()> {
    // SAFETY: NEWUSER leaves the descriptor table shared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

/// Capabilities of a user who is not root survive exec only in the ambient set, which must be part of the
/// inheritable set: capabilities(7).
fn raise_ambient() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    for capability in NEEDED {
        sets.inheritable |= capability;
    }
    set_capabilities(None, sets)?;
    for capability in NEEDED {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

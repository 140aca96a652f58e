use std::io;

use bentpipe_kernel::tun::TunError;

use crate::missing::Missing;

/// An error of the testbed: what failed, on which object, why, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a new network namespace.
    #[error(
        "cannot create the network namespace \"{name}\": {source}; run as root, or allow user namespaces \
         (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
    )]
    CreateNamespace {
        /// Its name.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A thread could not move into a namespace.
    #[error(
        "cannot enter the network namespace \"{name}\": {source}; \
         entering one needs CAP_SYS_ADMIN: run as root"
    )]
    EnterNamespace {
        /// Its name.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A program that configures the network ended with an error.
    #[error("`{command}` failed in the namespace \"{namespace}\" ({status}): {stderr}")]
    Tool {
        /// The command line.
        command: String,
        /// Where it ran.
        namespace: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// A program could not be started.
    #[error("cannot start `{program}`: {source}; is it installed, executable and in PATH?")]
    Spawn {
        /// The program.
        program: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A program that is running could not be waited for or signalled.
    #[error("cannot {attempt} `{program}` (process {pid}): {source}")]
    Child {
        /// The attempt.
        attempt: &'static str,
        /// The program.
        program: String,
        /// Its process id.
        pid: u32,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A kernel setting could not be written or read.
    #[error(
        "cannot set {key} = {value} in the namespace \"{namespace}\": {source}; \
         does this kernel have the setting, and does it accept that value?"
    )]
    Sysctl {
        /// The namespace.
        namespace: String,
        /// The setting's name.
        key: String,
        /// The value.
        value: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A TUN device could not be made.
    #[error("in the namespace \"{namespace}\": {source}")]
    Tun {
        /// The namespace.
        namespace: String,
        /// The failure and the remedy.
        source: TunError,
    },
    /// A forwarder of the link could not start, or failed.
    #[error("forwarding on the link from {from} to {to} failed: {source}; start the link again")]
    Driver {
        /// The device that packets are read from.
        from: String,
        /// The device that packets are written to.
        to: String,
        /// The cause.
        source: io::Error,
    },
    /// The process could not move into a user namespace of its own.
    #[error(
        "cannot set up a user namespace ({step}): {source}; \
         run as root, or allow user namespaces to ordinary users"
    )]
    UserNamespace {
        /// The step that failed.
        step: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A file of the link's packets could not be written.
    #[error("cannot write the packets to {}: {source}", path.display())]
    PacketFile {
        /// The file.
        path: std::path::PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The far end could not be connected to the network of the caller.
    #[error("cannot connect the far end to this machine's network: cannot {step}: {source}")]
    Outside {
        /// The step that failed.
        step: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The machine does not forward, so that nothing behind it reaches its network.
    #[error(
        "cannot connect the far end to this machine's network: it does not forward IPv4; allow it with \
         `sysctl -w net.ipv4.ip_forward=1` (until the next boot)"
    )]
    NoForwarding,
    /// Signals could not be blocked.
    #[error("cannot block the signals of this process: {source}")]
    Signals {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The machine does not meet a need; each line has the remedy.
    #[error(transparent)]
    Missing(#[from] Missing),
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

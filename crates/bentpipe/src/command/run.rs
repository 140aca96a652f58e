mod events;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_admin::Order;
use bentpipe_kernel::limits::raise_descriptor_limit;
use bentpipe_kernel::privileges::{self, drop_to};
use bentpipe_proxy::handover::{Belongings, Heir, Predecessor};
use bentpipe_proxy::{Config, Daemon, Prepared};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use self::events::{Event, Events};
use super::account;

/// What a process says on standard output when it has taken over; `bentpipe upgrade` waits for it.
pub(crate) const READY: &str = "ready";

/// Run the proxy: intercept TCP at the satellite legs, split it, and give each side what its link needs.
///
/// It ends at SIGTERM or Ctrl-C and takes its rules with it. At SIGHUP it reads its configuration again. Started by root,
/// it goes on as an ordinary account (proxy.user) once everything is set up.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/bentpipe/bentpipe.toml")]
    config: PathBuf,
    /// Take over from the daemon that runs, with its listeners and its connections; `bentpipe upgrade` does this.
    #[arg(long)]
    take_over: bool,
}

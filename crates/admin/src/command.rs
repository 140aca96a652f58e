//! Commands for the daemon.

use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use bentpipe_proxy::ReloadReport;

/// A command for the daemon's main thread, with the channel for its answer.
#[derive(Debug)]
pub enum Command {
    /// Reload the configuration, and say what changed.
    Reload(SyncSender<ReloadReport>),
    /// Accept no new connections, and end after the last one.
    Drain(DrainTimes, Answer),
    /// Accept connections again.
    StopDraining(Answer),
    /// Let new connections pass until the opposite is ordered (`true`), or accept them again.
    SetBypass(bool, Answer),
}

/// How long a daemon drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DrainTimes {
    /// When the remaining connections are reset; `None` is never.
    pub deadline: Option<Duration>,
    /// The least time before the end, in which draining can be cancelled; a sooner deadline counts.
    pub stay: Duration,
}

/// The channel for a command's outcome: `Ok`, or why it failed and what to do.
pub type Answer = SyncSender<Result<(), String>>;

/// The channel for commands. The daemon's main thread reads it.
pub type Commands = mpsc::Sender<Command>;

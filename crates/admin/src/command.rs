//! Commands for the daemon.

use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

/// A command for the daemon's main thread, with the channel for its answer.
#[derive(Debug)]
pub enum Command {
    /// Reload the configuration.
    Reload(Answer),
    /// Accept no new connections, and end after the last one or at this deadline. `None` has no deadline.
    Drain(Option<Duration>, Answer),
    /// Accept connections again.
    StopDraining(Answer),
}

/// The channel for a command's outcome: `Ok`, or why it failed and what to do.
pub type Answer = SyncSender<Result<(), String>>;

/// The channel for commands. The daemon's main thread reads it.
pub type Commands = mpsc::Sender<Command>;

//! What the daemon can be told.

use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

/// What the daemon's main thread is told, with a place for its answer.
#[derive(Debug)]
pub enum Command {
    /// Read the configuration again.
    Reload(Answer),
    /// Take no new connection, and end when the last has gone or this time is up; without a time, wait for as long as it takes.
    Drain(Option<Duration>, Answer),
    /// Take connections again.
    StopDraining(Answer),
}

/// Where an order's outcome goes: `Ok` when it has been carried out, or why it has not and what to do.
pub type Answer = SyncSender<Result<(), String>>;

/// Where orders go. The main thread of the daemon listens at the other end, to signals as well.
pub type Commands = mpsc::Sender<Command>;

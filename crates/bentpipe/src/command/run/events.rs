//! The events that the daemon's main thread waits for: signals, commands, successors, and ticks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bentpipe_admin::{Command, Commands};
use bentpipe_proxy::upgrade::{Caller, Inventory, Successor, UpgradeError, accept_caller, wait_for_caller};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

/// The interval between ticks.
const TICK: Duration = Duration::from_millis(250);
/// The pause after a failure to accept at the handover socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How many processes may prepare to take over at a time: of root's, and of others.
const MAX_CALLERS: usize = 4;
/// The least interval between log lines on callers without permission.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// An event.
#[derive(Debug)]
pub(super) enum Event {
    Signal(i32),
    Command(Command),
    /// A successor is ready to take over. Others are accepted after the sender is told to, and never if it is
    /// dropped.
    Successor(Successor, SyncSender<()>),
    Tick,
}

/// The queue of events.
pub(super) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
}

impl Events {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver }
    }

    /// The next event, or a tick.
    pub(super) fn next(&self) -> Event {
        match self.receiver.recv_timeout(TICK) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Event::Tick,
        }
    }

    /// Forwards the signals that were not handled here to the process that took over, because their senders
    /// do not know it.
    pub(super) fn forward_signals(&self, successor: i32) {
        for event in self.receiver.try_iter() {
            let Event::Signal(number) = event else { continue };
            let name = signal_name(number).unwrap_or("a signal");
            let (Some(pid), Some(signal)) = (Pid::from_raw(successor), Signal::from_named_raw(number)) else {
                continue;
            };
            match kill_process(pid, signal) {
                Ok(()) => {
                    tracing::info!(successor, "{name} was passed on to the process that has taken over")
                }
                Err(error) => {
                    tracing::error!(successor, %error, "{name} arrived in an upgrade and was not passed on; \
                        repeat it")
                }
            }
        }
    }

    /// A channel for commands, whose commands become events.
    pub(super) fn commands(&self) -> anyhow::Result<Commands> {
        let (orders, receiver) = mpsc::channel();
        let sender = self.sender.clone();
        spawn("bentpipe-orders", move || {
            for order in receiver {
                if sender.send(Event::Command(order)).is_err() {
                    return;
                }
            }
        })?;
        Ok(orders)
    }

    /// Starts to receive signals. They were registered before the first thread was started.
    pub(super) fn listen_for(&self, mut signals: Signals) -> anyhow::Result<()> {
        let sender = self.sender.clone();
        spawn("bentpipe-signals", move || {
            for signal in signals.forever() {
                if sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
    }

    /// Accepts successors and sends them the inventory. Each has a thread of its own, so that a slow or a
    /// malicious one does not keep others waiting.
    pub(super) fn accept_successors(&self, socket: OwnedFd, inventory: Inventory) -> anyhow::Result<()> {
        let listener = SuccessorListener { sender: self.sender.clone(), inventory, takeover: Arc::default() };
        spawn("bentpipe-successors", move || listener.run(&socket))
    }
}

/// Accepts successors.
#[derive(Clone)]
struct SuccessorListener {
    sender: Sender<Event>,
    inventory: Inventory,
    /// Held during a takeover. Then callers are the successor's to accept.
    takeover: Arc<Mutex<()>>,
}

/// The callers that are being served: processes of root, and those of the daemon's own account, which must
/// not keep root out.
#[derive(Default)]
struct Callers {
    roots: Arc<()>,
    others: Arc<()>,
}

impl SuccessorListener {
    fn run(&self, socket: &OwnedFd) {
        let (callers, mut next_log) = (Callers::default(), Instant::now());
        loop {
            let accepted = wait_for_caller(socket.as_fd()).and_then(|()| {
                let _takeover = self.takeover.lock().unwrap_or_else(PoisonError::into_inner);
                accept_caller(socket.as_fd())
            });
            match accepted {
                Ok(Some(caller)) => self.receive(caller, &callers),
                Ok(None) => {}
                Err(error) if Instant::now() >= next_log => {
                    tracing::warn!("{error}");
                    next_log = Instant::now() + LOG_INTERVAL;
                }
                // They have been refused.
                Err(UpgradeError::PermissionDenied { .. }) => {}
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn receive(&self, caller: Caller, callers: &Callers) {
        let of_its_kind = if caller.is_root() { &callers.roots } else { &callers.others };
        if Arc::strong_count(of_its_kind) > MAX_CALLERS {
            return caller.turn_away("too many have asked and are still preparing; try again in a minute");
        }
        let (listener, place) = (self.clone(), of_its_kind.clone());
        let work = move || {
            listener.negotiate(caller);
            drop(place);
        };
        if let Err(error) = spawn("bentpipe-successor", work) {
            tracing::error!("cannot serve a process that wants to take over: {error:#}");
        }
    }

    fn negotiate(&self, caller: Caller) {
        let successor = match caller.converse(&self.inventory) {
            Ok(successor) => successor,
            Err(error) => return tracing::info!("no process took over: {error}"),
        };
        let takeover = self.takeover.lock().unwrap_or_else(PoisonError::into_inner);
        let (resume, wait) = mpsc::sync_channel(1);
        if self.sender.send(Event::Successor(successor, resume)).is_err() || wait.recv().is_err() {
            // This process ends and accepts no more callers.
            std::mem::forget(takeover);
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread
        .map(drop)
        .with_context(|| format!("cannot start the thread {name}; raise the limit of threads (ulimit -u)"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use signal_hook::consts::SIGTERM;

    use super::*;

    #[test]
    fn a_signal_that_came_too_late_goes_on_to_the_process_that_has_taken_over() {
        let mut successor = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let events = Events::new();
        for event in [Event::Tick, Event::Signal(SIGTERM), Event::Tick] {
            events.sender.send(event).unwrap();
        }
        events.forward_signals(i32::try_from(successor.id()).unwrap());
        assert_eq!(successor.wait().unwrap().signal(), Some(SIGTERM));
    }
}

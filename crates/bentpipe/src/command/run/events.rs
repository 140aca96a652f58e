//! What the daemon's main thread waits for: signals, orders, successors, and the clock.

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

/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(250);
/// After nobody could be let in at the handover socket.
const PAUSE: Duration = Duration::from_millis(100);
/// How many may prepare to take over at a time, of root's processes and of others each.
const MOST_CALLERS: usize = 4;
/// How often the log is told of those who may not ask.
const TELL: Duration = Duration::from_secs(60);

/// What has come.
#[derive(Debug)]
pub(super) enum Event {
    Signal(i32),
    Command(Command),
    /// Somebody is ready to take over. Others are received when the sender is told so, and never where it is not.
    Successor(Successor, SyncSender<()>),
    Tick,
}

/// Where events come together.
pub(super) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
}

impl Events {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver }
    }

    /// The next one, or a tick of the clock.
    pub(super) fn next(&self) -> Event {
        match self.receiver.recv_timeout(TICK) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Event::Tick,
        }
    }

    /// Sends the signals that have come and have had no effect here on to the process that goes on: whoever sent them cannot know that it
    /// is another one.
    pub(super) fn pass_on(&self, successor: i32) {
        for event in self.receiver.try_iter() {
            let Event::Signal(number) = event else { continue };
            let name = signal_name(number).unwrap_or("a signal");
            let (Some(pid), Some(signal)) = (Pid::from_raw(successor), Signal::from_named_raw(number)) else {
                continue;
            };
            match kill_process(pid, signal) {
                Ok(()) => tracing::info!(successor, "{name} goes on to the process that has taken over"),
                Err(error) => {
                    tracing::error!(successor, %error, "{name} came while another process took over; repeat it")
                }
            }
        }
    }

    /// Where orders go.
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

    /// Takes signals in. They were asked for before the first thread was started.
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

    /// Waits for successors, and tells them what there is. Each is spoken to by a thread of its own, so that one who is slow, or who
    /// only pretends, does not keep others waiting.
    pub(super) fn await_successors(&self, socket: OwnedFd, inventory: Inventory) -> anyhow::Result<()> {
        let door = Door { sender: self.sender.clone(), inventory, turn: Arc::default() };
        spawn("bentpipe-successors", move || door.stand_open(&socket))
    }
}

/// Where successors come in.
#[derive(Clone)]
struct Door {
    sender: Sender<Event>,
    inventory: Inventory,
    /// Held while somebody takes over: whoever comes then is the successor's to receive.
    turn: Arc<Mutex<()>>,
}

/// Those who are being spoken to: root's processes, and those of the daemon's own account, which are not to keep root out.
#[derive(Default)]
struct Callers {
    roots: Arc<()>,
    others: Arc<()>,
}

impl Door {
    fn stand_open(&self, socket: &OwnedFd) {
        let (callers, mut may_tell) = (Callers::default(), Instant::now());
        loop {
            let accepted = wait_for_caller(socket.as_fd()).and_then(|()| {
                let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
                accept_caller(socket.as_fd())
            });
            match accepted {
                Ok(Some(caller)) => self.receive(caller, &callers),
                Ok(None) => {}
                Err(error) if Instant::now() >= may_tell => {
                    tracing::warn!("{error}");
                    may_tell = Instant::now() + TELL;
                }
                // They are told no, and that is all.
                Err(UpgradeError::PermissionDenied { .. }) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    fn receive(&self, caller: Caller, callers: &Callers) {
        let of_its_kind = if caller.is_root() { &callers.roots } else { &callers.others };
        if Arc::strong_count(of_its_kind) > MOST_CALLERS {
            return caller.turn_away("too many have asked and are still preparing; try again in a minute");
        }
        let (door, place) = (self.clone(), of_its_kind.clone());
        let work = move || {
            door.speak(caller);
            drop(place);
        };
        if let Err(error) = spawn("bentpipe-successor", work) {
            tracing::error!("cannot serve a process that wants to take over: {error:#}");
        }
    }

    fn speak(&self, caller: Caller) {
        let successor = match caller.converse(&self.inventory) {
            Ok(successor) => successor,
            Err(error) => return tracing::info!("no process took over: {error}"),
        };
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (go_on, wait) = mpsc::sync_channel(1);
        if self.sender.send(Event::Successor(successor, go_on)).is_err() || wait.recv().is_err() {
            // This process ends. Whoever comes is not let in any more.
            std::mem::forget(turn);
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
        events.pass_on(i32::try_from(successor.id()).unwrap());
        assert_eq!(successor.wait().unwrap().signal(), Some(SIGTERM));
    }
}

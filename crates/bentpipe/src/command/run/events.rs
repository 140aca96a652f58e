//! What the daemon's main thread waits for: signals, orders, successors, and the clock.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;

use anyhow::Context;
use bentpipe_admin::{Order, Orders};
use bentpipe_proxy::handover::{HandoverError, Heir, Inventory, receive_heir};
use signal_hook::iterator::Signals;

/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(250);
/// After somebody has come to the handover socket and gone again.
const PAUSE: Duration = Duration::from_millis(100);

/// What has come.
#[derive(Debug)]
pub(super) enum Event {
    Signal(i32),
    Order(Order),
    /// Somebody is ready to take over. Others are received when the sender is told so, and never where it is not.
    Heir(Heir, SyncSender<()>),
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

    /// Where orders go.
    pub(super) fn orders(&self) -> anyhow::Result<Orders> {
        let (orders, receiver) = mpsc::channel();
        let sender = self.sender.clone();
        spawn("bentpipe-orders", move || {
            for order in receiver {
                if sender.send(Event::Order(order)).is_err() {
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

    /// Waits for successors, and tells them what there is.
    pub(super) fn await_heirs(&self, socket: OwnedFd, inventory: Inventory) -> anyhow::Result<()> {
        use std::os::fd::AsFd;
        let sender = self.sender.clone();
        spawn("bentpipe-heirs", move || {
            loop {
                match receive_heir(socket.as_fd(), || Ok(inventory.clone())) {
                    Ok(heir) => {
                        let (go_on, wait) = mpsc::sync_channel(1);
                        // Whoever comes after the heir is the heir's to receive.
                        if sender.send(Event::Heir(heir, go_on)).is_err() || wait.recv().is_err() {
                            return;
                        }
                    }
                    Err(error @ HandoverError::Stranger { .. }) => tracing::warn!("{error}"),
                    Err(error) => {
                        tracing::info!("nobody took over: {error}");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        })
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread
        .map(drop)
        .with_context(|| format!("cannot start the thread {name}; raise the limit of threads (ulimit -u)"))
}

//! Listeners: accepting from them, pausing while descriptors are short, and retiring those that a reload has
//! replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bentpipe_legs::Legs;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use serde::{Deserialize, Serialize};

use super::Worker;
use crate::flow::Route;
use crate::snapshot::{self, Fd};
use crate::types::leg_pair::LegPair;
use crate::types::slab::Token;

/// Connections accepted from one listener before flows have their turn.
const ACCEPT_BATCH: usize = 64;
/// How long accepting pauses when descriptors have run out and no flow ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The least time between two log lines about pauses.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How long a listener is kept that gets no more SYNs: the kernel repeats an answer to a SYN for 63 s
/// (`net.ipv4.tcp_synack_retries` = 5: 1, 2, 4, 8, 16 and 32 s), and the client's acknowledgement comes to
/// this listener.
pub(crate) const RETIREMENT: Duration = Duration::from_secs(64);

/// A listener and the route of its connections. It serialises with the names of the legs, which are resolved
/// to a route in the next process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Listener<R = Route> {
    pub(crate) socket: Fd,
    pub(crate) route: R,
    /// When it is closed, if it gets no more connections.
    #[serde(with = "snapshot::optional_instant")]
    pub(crate) retires: Option<Instant>,
}

impl Listener {
    pub(crate) fn new(socket: impl Into<Fd>, pair: LegPair, legs: Arc<Legs>) -> Self {
        Self { socket: socket.into(), route: Route { pair, legs }, retires: None }
    }
}

impl Worker {
    pub(super) fn listen(&mut self, listener: Listener) {
        let number = self.next_listener;
        self.next_listener += 1;
        let flags = if self.resume_accepting.is_some() { EventFlags::empty() } else { EventFlags::IN };
        if let Err(error) = epoll::add(&self.epoll, &listener.socket, listener_data(number), flags) {
            tracing::error!(%error, port = listener.route.pair.port, "cannot serve a listener: its connections are reset");
            return;
        }
        self.listeners.insert(number, listener);
    }

    pub(super) fn accept_from(&mut self, number: usize) {
        for _ in 0..ACCEPT_BATCH {
            if let Err(error) = self.keep_spare() {
                return self.pause_accepting(error);
            }
            let Some(listener) = self.listeners.get(&number) else { return };
            match acceptfrom_with(&listener.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((socket, client)) => {
                    let Route { pair, legs } = listener.route.clone();
                    self.begin(socket, client, pair, &legs);
                }
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.pause_accepting(error);
                }
                // The listener was destroyed (ss -K). Kept, it would be reported for ever. Without any on
                // its port SYNs lead nowhere, and deferred accept lets new connections pass.
                Err(Errno::INVAL) => {
                    tracing::error!(
                        port = listener.route.pair.port,
                        "a listener was destroyed: reload or restart the daemon"
                    );
                    self.listeners.remove(&number);
                    return;
                }
                // The connection was gone before we came to it (accept(2)).
                Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
            }
            if self.resume_accepting.is_some() {
                return;
            }
        }
    }

    /// New connections wait in the kernel until a flow ends or a moment has passed.
    pub(super) fn pause_accepting(&mut self, error: Errno) {
        if self.resume_accepting.is_none() {
            self.tell_of_pause(error);
            self.counters.accept_pauses.add(1);
            self.shared.admission.set_short_of_descriptors(true);
            self.listen_for(EventFlags::empty());
        }
        self.resume_accepting = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// Accepts again if there is a descriptor to spare.
    pub(super) fn try_to_resume(&mut self, now: Instant) {
        if self.keep_spare().is_err() {
            self.resume_accepting = Some(now + ACCEPT_PAUSE);
            return;
        }
        self.resume_accepting = None;
        self.shared.admission.set_short_of_descriptors(false);
        self.listen_for(EventFlags::IN);
    }

    fn tell_of_pause(&mut self, error: Errno) {
        if self.last_pause_log.is_none_or(|last| last.elapsed() > LOG_INTERVAL) {
            self.last_pause_log = Some(Instant::now());
            tracing::warn!(%error, "accepting pauses; where descriptors are short, raise the limit (LimitNOFILE, ulimit -n)");
        }
    }

    pub(super) fn listen_for(&self, flags: EventFlags) {
        for (&number, listener) in &self.listeners {
            if let Err(error) = epoll::modify(&self.epoll, &listener.socket, listener_data(number), flags) {
                tracing::error!(%error, "cannot change what a listener waits for");
            }
        }
    }

    /// Makes sure of the spare descriptor; any descriptor will do.
    pub(super) fn keep_spare(&mut self) -> rustix::io::Result<()> {
        if self.spare.is_none() {
            self.spare = Some(rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0)?);
        }
        Ok(())
    }

    /// When the first listener is to be closed.
    pub(super) fn first_retirement(&self) -> Option<Instant> {
        self.listeners.values().filter_map(|listener| listener.retires).min()
    }

    /// Accepts the remaining connections of the listeners that are due, and closes them.
    pub(super) fn retire_listeners(&mut self, now: Instant) {
        let due = |listener: &Listener| listener.retires.is_some_and(|at| at <= now);
        let numbers: Vec<usize> =
            self.listeners.iter().filter(|(_, listener)| due(listener)).map(|(&number, _)| number).collect();
        for number in numbers {
            for _ in 0..ACCEPT_BATCH {
                self.accept_from(number);
            }
            self.listeners.remove(&number);
        }
        self.next_retirement = self.first_retirement();
    }
}

fn listener_data(number: usize) -> EventData {
    EventData::new_u64(Token::Listener(number).encode())
}

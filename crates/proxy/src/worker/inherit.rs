//! Exporting a worker's flows and listeners to another process, and importing them from one.

use std::os::fd::AsFd;
use std::sync::mpsc::{SendError, SyncSender};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::{Listener, RETIREMENT, Worker};
use crate::connect::early_data;
use crate::flow::Flow;
use crate::flow::Side;

/// Flows whose sockets are given another congestion control before the other flows have their turn.
const REJOIN_BATCH: usize = 128;

/// How long connections may wait to be accepted whose handshakes were complete before their listener had
/// other settings.
const ACCEPT_QUEUE_SLACK: Duration = Duration::from_secs(2);

/// Everything that a worker serves. No thread reads or writes the sockets.
#[derive(Debug, Default)]
pub(crate) struct WorkerState {
    pub(crate) flows: Vec<Flow>,
    pub(crate) listeners: Vec<Listener>,
    /// They come from another process: their congestion control may be a copy whose process ends.
    pub(crate) from_elsewhere: bool,
}

impl Worker {
    /// Exports everything; false if the daemon no longer waits for it, and the worker continues.
    pub(super) fn export(&mut self, successor: &SyncSender<WorkerState>) -> bool {
        // Connections that wait for their clients' first data are opened without.
        while let Some(accepted) =
            self.awaiting_data.take_overdue(&self.epoll, Instant::now() + early_data::PATIENCE)
        {
            self.open(accepted);
        }
        let mut state = WorkerState::default();
        for key in self.flows.keys(0, self.flows.places()) {
            state.flows.extend(self.flows.remove(key));
        }
        let now = Instant::now();
        let seconds = self.clock(now);
        for flow in &mut state.flows {
            flow.unlist();
            flow.stop_clock(seconds);
            flow.leave(now);
            self.pool.count_as_released(flow.buffers());
        }
        self.account(self.buffered as usize, 0);
        self.counters.relay_buffers_in_use.set(0);
        if self.resume_accepting.take().is_some() {
            self.shared.admission.set_short_of_descriptors(false);
        }
        // Last: until then a panic leaves them here, for the worker that takes this one's place.
        state.listeners = std::mem::take(&mut self.listeners).into_values().collect();
        match successor.send(state) {
            Ok(()) => true,
            Err(SendError(state)) => {
                tracing::warn!("a worker exported its connections too late: it continues with them");
                self.forget_registrations(&state);
                self.import(state);
                false
            }
        }
    }

    /// Removes exported sockets from this worker's epoll.
    fn forget_registrations(&self, state: &WorkerState) {
        let ends = |flow| [Side::Client, Side::Server].map(|side| Flow::endpoint(flow, side).socket.as_fd());
        let sockets = state.flows.iter().flat_map(ends);
        let listeners = state.listeners.iter().map(|listener| listener.socket.as_fd());
        for socket in sockets.chain(listeners) {
            if let Err(error) = epoll::delete(&self.epoll, socket) {
                tracing::debug!(%error, "a socket was not registered");
            }
        }
    }

    /// Serves what another worker, of this or another process, has exported.
    pub(super) fn import(&mut self, state: WorkerState) {
        let WorkerState { flows, listeners, from_elsewhere } = state;
        // A client may claim an answered server for as long as a retired listener lives.
        let window = if self.pending.is_empty() { ACCEPT_QUEUE_SLACK } else { RETIREMENT };
        self.rejoin_until = from_elsewhere.then(|| Instant::now() + window);
        // First: whatever happens to the flows, the listeners are this worker's.
        listeners.into_iter().for_each(|listener| self.listen(listener));
        self.next_retirement = self.first_retirement();
        let now = self.clock(Instant::now());
        for mut flow in flows {
            flow.resume_clock(now);
            flow.rejoin(&self.shared.leg_stats);
            self.pool.count_as_acquired(flow.buffers());
            self.account(0, flow.memory());
            if from_elsewhere {
                self.counters.flows_total.add(1);
            }
            match self.register(flow) {
                Ok(key) => {
                    if let Some(flow) = self.flows.get_mut(key) {
                        flow.queued = true;
                    }
                    // Epoll reports the socket's state again; flows that had more to do without an event are
                    // ready here.
                    self.ready.push_back(key);
                }
                Err(error) => {
                    self.counters.flows_reset.add(1);
                    tracing::error!(%error, "cannot continue a connection: it is reset");
                }
            }
        }
    }

    /// Gives some of the flows that have come from elsewhere this process's congestion control.
    pub(super) fn rejoin_some(&mut self) {
        for _ in 0..REJOIN_BATCH.min(self.to_rejoin.len()) {
            let Some(flow) = self.to_rejoin.pop_front().and_then(|key| self.flows.get_mut(key)) else {
                continue;
            };
            flow.rejoin_legs();
        }
    }
}

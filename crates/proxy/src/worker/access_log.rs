//! What a worker tells the access log: each connection that has ended, and why.

use std::time::{Duration, Instant, SystemTime};

use super::Worker;
use crate::access_log::{Ending, Record};
use crate::config::Handshake;
use crate::connect::early_data::PATIENCE;
use crate::connect::upstream::Endpoints;
use crate::flow::{Flow, Route};

/// How long a worker that stops waits for room, in all: it serves nobody any more.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(1);

impl Worker {
    /// A flow has ended. Its sockets are still open.
    pub(super) fn log_flow(&self, flow: &Flow, ending: Ending) {
        if self.shared.access_log.is_on() {
            self.log(flow.record(ending));
        }
    }

    /// A connection has ended before it was a flow.
    pub(super) fn log_unserved(&self, ends: &Endpoints, route: Route, handshake: Handshake, ending: Ending) {
        if self.shared.access_log.is_on() {
            self.log(unserved(ends, route, handshake, ending));
        }
    }

    /// All connections end, because the worker does.
    pub(super) fn log_the_rest(&mut self) {
        if !self.shared.access_log.is_on() {
            return;
        }
        let is_draining = self.shared.draining().is_some();
        let ending = if is_draining { Ending::Drained } else { Ending::Stopped };
        let until = Instant::now() + LAST_WAIT;
        while let Some(accepted) = self.awaiting_data.take_overdue(&self.epoll, Instant::now() + PATIENCE) {
            let route = Route { pair: accepted.pair, legs: accepted.legs };
            self.log_patiently(unserved(&accepted.ends, route, Handshake::Early, ending), until);
        }
        for key in self.flows.keys(0, self.flows.places()) {
            if let Some(record) = self.flows.get_mut(key).map(|flow| flow.record(ending)) {
                self.log_patiently(record, until);
            }
        }
    }

    fn log(&self, record: Record) {
        if self.shared.access_log.push(record).is_err() {
            self.counters.access_log_lost.add(1);
        }
    }

    fn log_patiently(&self, mut record: Record, until: Instant) {
        while let Err(refused) = self.shared.access_log.push(record) {
            if Instant::now() >= until {
                return self.counters.access_log_lost.add(1);
            }
            record = *refused;
            std::thread::sleep(RETRY);
        }
    }
}

/// A connection that has just been accepted and moved nothing.
fn unserved(ends: &Endpoints, route: Route, handshake: Handshake, ending: Ending) -> Record {
    Record {
        start: SystemTime::now(),
        duration: Duration::ZERO,
        client: ends.client,
        server: ends.server,
        dscp: ends.dscp,
        pair: route.pair,
        legs: route.legs,
        up: 0,
        down: 0,
        ending,
        retransmissions: [0; 2],
        handshake,
    }
}

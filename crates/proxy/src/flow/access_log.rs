//! What the access log says of a flow.

use std::time::{Instant, SystemTime};

use super::{Flow, FlowError, IDLE, Side};
use crate::access_log::{Ending, Record};
use crate::config::Handshake;

impl Flow {
    /// A flow whose server was asked before its client was answered.
    pub(crate) fn faithful(mut self) -> Self {
        self.state.handshake = Handshake::Faithful;
        self
    }

    /// Takes note of the end that closes its direction first.
    pub(super) fn note_first_close(&mut self) {
        let state = &mut self.state;
        if state.closed_first.is_none() {
            state.closed_first = match (state.up.is_shut(), state.down.is_shut()) {
                (true, _) => Some(Side::Client),
                (false, true) => Some(Side::Server),
                (false, false) => None,
            };
        }
    }

    /// How a flow has ended that both ends have closed in order.
    pub(crate) fn closed(&self) -> Ending {
        Ending::Closed(self.state.closed_first.unwrap_or(Side::Client))
    }

    /// The flow as one that has ended now. Its sockets are still open.
    pub(crate) fn record(&self, ending: Ending) -> Record {
        let (up, down) = self.bytes();
        let duration = Instant::now().saturating_duration_since(self.state.since);
        Record {
            start: SystemTime::now().checked_sub(duration).unwrap_or(SystemTime::UNIX_EPOCH),
            duration,
            client: self.state.ends.client,
            server: self.state.ends.server,
            dscp: self.state.ends.dscp,
            pair: self.route.pair,
            legs: self.route.legs.clone(),
            up,
            down,
            ending,
            retransmissions: self.infos().map(|info| info.map_or(0, |info| info.retransmissions)),
            handshake: self.state.handshake,
        }
    }
}

impl FlowError {
    /// How a flow ends that is reset because of it.
    pub(crate) fn ending(&self) -> Ending {
        if self.doing == IDLE { Ending::Idle } else { Ending::of(self.side, &self.error) }
    }
}

//! Propagation delay that changes with time; a constant one needs no effect.

use std::time::Duration;

use super::trace::Steps;
use super::{Effect, Transit};

/// A delay that changes with time. Packets stay in order, as link layers keep them: one that is sent over a
/// shorter way arrives with the one before it at the earliest.
#[derive(Debug)]
pub(crate) struct VaryingDelay {
    delays: Steps<Duration>,
    last_arrival: u64,
}

impl VaryingDelay {
    pub(crate) fn new(delays: Steps<Duration>) -> Self {
        Self { delays, last_arrival: 0 }
    }
}

impl Effect for VaryingDelay {
    fn apply(&mut self, packet: &mut Transit) {
        let departure = packet.departure.as_nanos();
        let delay = nanos(self.delays.at(departure));
        if packet.loss().is_some() {
            return;
        }
        let arrival = departure.saturating_add(packet.delay_nanos).saturating_add(delay);
        self.last_arrival = self.last_arrival.max(arrival);
        packet.delay_nanos = self.last_arrival - departure;
    }
}

fn nanos(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)
}

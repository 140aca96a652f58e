//! What becomes of each packet of a pipe, where an observer wants to know.

use bentpipe_link::packet_log::{Crossing, Step};
use bentpipe_link::{Arrival, Arrivals, Cause, InFlight};
use bentpipe_units::{ByteCount, Time};

/// Follows the packets of a pipe by their numbers, in a queue of their own beside the one of the packets.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    offered: u64,
    in_flight: InFlight<(u64, Crossing)>,
    /// Steps that no observer has seen yet.
    pub(crate) steps: Vec<RecordedStep>,
}

/// A step of the packet with this number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedStep {
    pub(crate) number: u64,
    pub(crate) bytes: usize,
    pub(crate) step: Step,
}

impl Recorder {
    /// A packet was offered, where this much was waiting.
    pub(crate) fn offered(
        &mut self,
        now: Time,
        bytes: usize,
        queue: ByteCount,
        arrivals: &Result<Arrivals, Cause>,
    ) {
        self.offered += 1;
        let number = self.offered;
        self.steps.push(RecordedStep { number, bytes, step: Step::Entered { queue } });
        match arrivals {
            Err(cause) => self.steps.push(RecordedStep { number, bytes, step: Step::Lost(*cause) }),
            Ok(arrivals) => {
                let crossing = |copy: Arrival, is_duplicate| Crossing {
                    entered: now,
                    departure: arrivals.departure,
                    due: copy.at,
                    is_corrupted: copy.flipped_bit.is_some(),
                    is_duplicate,
                };
                // In the order in which the pipe launches them.
                if let Some(copy) = arrivals.duplicate {
                    self.in_flight.launch(copy.at, (number, crossing(copy, true)));
                }
                self.in_flight.launch(arrivals.packet.at, (number, crossing(arrivals.packet, false)));
            }
        }
    }

    /// A packet of `bytes` has arrived.
    pub(crate) fn arrived(&mut self, now: Time, bytes: usize) {
        if let Some((_, (number, crossing))) = self.in_flight.pop_due(now) {
            self.steps.push(RecordedStep { number, bytes, step: Step::Arrived(crossing) });
        }
    }
}

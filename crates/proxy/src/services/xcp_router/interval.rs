//! The control interval of one router: when to decide, and from which of the kernel's sums. What is
//! decided, and the offer of an idle link, is the code that virtual time runs
//! ([`Controller`](bentpipe_link::agent::xcp::control::Controller)).

use std::time::{Duration, Instant};

use bentpipe_kernel::router::Router;
use bentpipe_link::agent::xcp::control::{Controller, Gains, IDLE_OFFER, Sums};
use bentpipe_units::Rate;

/// No interval is shorter, whatever a header claims.
const SHORTEST: Duration = Duration::from_millis(10);
/// How often to check for packets with a header while there are none.
const LOOK: Duration = Duration::from_millis(50);

/// The control interval of a router.
#[derive(Debug)]
pub(super) struct Interval {
    controller: Controller,
    /// The start of the interval.
    began: Instant,
    /// Packets with a header at that time, while the offer is unused.
    waits_at: Option<u64>,
    /// The sums of the packets that started the interval.
    first: Sums,
}

impl Interval {
    /// The first interval, at a link with this assumed round trip.
    pub(super) fn new(now: Instant, capacity: Rate, rtt: Duration) -> Self {
        Self {
            controller: Controller::new(
                Gains::default(),
                capacity,
                rtt,
                [SHORTEST, super::LONGEST_RTT],
                IDLE_OFFER,
            ),
            began: now,
            waits_at: Some(0),
            first: Sums::default(),
        }
    }

    pub(super) fn set_capacity(&mut self, capacity: Rate) {
        self.controller.set_capacity(capacity);
    }

    /// When there is something to do.
    pub(super) fn wake_at(&self) -> Instant {
        self.began + if self.waits_at.is_some() { LOOK } else { self.controller.mean_rtt() }
    }

    /// Decides if the interval has ended; whether it has.
    pub(super) fn advance(&mut self, now: Instant, router: &mut Router) -> bool {
        if now < self.wake_at() {
            return false;
        }
        let headers = router.counters().with_header;
        if self.waits_at.is_some_and(|before| before != headers) {
            // They came after the offer was last renewed, which is when this interval began.
            self.waits_at = None;
            self.first = router.take_sums();
            self.controller.learn_rtt(&self.first);
            return false;
        }
        let has_ended = self.waits_at.is_none();
        let left = router.positive_left();
        let sums = sum(&std::mem::take(&mut self.first), &router.take_sums());
        let shares = self.controller.decide(now - self.began, &sums, left);
        router.set_shares(&shares, self.controller.mean_rtt());
        self.waits_at = (sums.spacing == 0.0).then_some(headers);
        self.began = now;
        has_ended
    }
}

/// Both together; the queue is that of the end.
fn sum(earlier: &Sums, later: &Sums) -> Sums {
    Sums {
        bytes: earlier.bytes + later.bytes,
        spacing: earlier.spacing + later.spacing,
        rtt_spacing: earlier.rtt_spacing + later.rtt_spacing,
        asking_spacing: earlier.asking_spacing + later.asking_spacing,
        queue: later.queue,
    }
}

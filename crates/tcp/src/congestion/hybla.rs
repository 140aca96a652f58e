//! Hybla (Caini and Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks", Int. J. Satell. Commun.
//! Network 22, 2004): a connection of long round-trip time gets the rate that one of [`RTT0`] would have had.
//!
//! The same algorithm as the eBPF program that bentpipe loads into the kernel, which `docs/hybla.md` describes, part by
//! part to be switched on and off.

mod path;
#[cfg(test)]
mod tests;
mod train;

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use self::path::{DeliveryRate, Queue, RoundTrip};
use self::train::Train;
use super::new_reno::{Avoidance, after_timeout, as_window, flight_size, half_of, initial_window};
use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, MIN_SSTHRESH_SEGMENTS, NO_SSTHRESH, Parameters, SlowStart};

/// The reference round-trip time RTT₀: a connection of this length, or a shorter one, is a standard TCP.
pub const RTT0: Duration = Duration::from_millis(25);

/// Segments that a sender sends back to back at the beginning, before the pacing: Hoe's estimate is made of their ACKs.
const BURST_SEGMENTS: u64 = 10;
/// Above what the link is known to carry, the pacing and the window feel for more by this factor.
const PROBE: f64 = 9.0 / 8.0;

/// Hybla's parts, each on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Components {
    /// The growth and the initial window are multiplied as the normalised round-trip time ρ asks. Off, ρ is 1: a
    /// standard TCP's window with the other components.
    pub rho: bool,
    /// A segment leaves every RTT / W. Off, whatever the window allows leaves at once.
    pub pacing: bool,
    /// The initial ssthresh is Hoe's: capacity · RTT, the capacity from the spacing of the first burst's ACKs. Until it
    /// is known the pacing stays at the rate of the initial window, or twice what the path has delivered. Off, the
    /// first loss sets ssthresh; with ρ = 24 one ACK has opened the window by 2²⁴ segments by then.
    pub hoe: bool,
    /// The window goes on growing while losses are repaired, as that of the short connection that Hybla wants to equal
    /// would. Not in the published algorithm.
    pub recovery_growth: bool,
    /// The estimate of the capacity is kept up to date by the delivery rate and bounds the pacing, and a standing queue
    /// takes W back to what the path carries. Not in the published algorithm.
    pub queue: bool,
}

impl Components {
    /// All: what bentpipe's kernel program does.
    pub const ALL: Self = Self { rho: true, pacing: true, hoe: true, recovery_growth: true, queue: true };
    /// The complete Hybla as its authors published it, without bentpipe's two additions.
    pub const PUBLISHED: Self = Self { recovery_growth: false, queue: false, ..Self::ALL };
}

/// Hybla, complete or in parts.
#[derive(Debug)]
pub struct Hybla {
    components: Components,
    mss: u64,
    /// The standard initial window, bytes.
    initial_window: f64,
    cwnd: f64,
    ssthresh: u64,
    rho: f64,
    slow_start: SlowStart,
    avoidance: Avoidance,
    round_trip: RoundTrip,
    delivery: DeliveryRate,
    train: Train,
    /// `delivery.highest` is the link's capacity, not only a lower bound of it.
    capacity_known: bool,
    /// A queue stands, and the window has been cut to what the path carries.
    left_queue: bool,
    /// Something has been acknowledged or lost.
    started: bool,
}

impl Hybla {
    /// A controller for a new connection, with those of the `components` that are on.
    pub fn new(parameters: Parameters, components: Components) -> Self {
        let initial_window = initial_window(&parameters);
        let mut hybla = Self {
            components,
            mss: parameters.mss,
            initial_window,
            cwnd: initial_window,
            ssthresh: NO_SSTHRESH,
            rho: 1.0,
            slow_start: SlowStart::new(&parameters),
            avoidance: Avoidance::new(parameters.mss),
            round_trip: RoundTrip::default(),
            delivery: DeliveryRate::default(),
            train: Train::new(0, parameters.mss),
            capacity_known: false,
            left_queue: false,
            started: false,
        };
        hybla.expect_train();
        hybla
    }

    /// The normalised round-trip time ρ = max(RTT / [`RTT0`], 1), from the minimum RTT; 1 where it is switched off.
    pub fn rho(&self) -> f64 {
        self.rho
    }

    /// The first segments leave back to back, as many as the window allows.
    fn expect_train(&mut self) {
        let burst = (BURST_SEGMENTS * self.mss).min(self.cwnd as u64);
        self.train = Train::new(burst, self.mss);
        if !self.components.hoe {
            self.train.end();
        }
    }

    /// ρ follows the minimum RTT: the smoothed one holds queues, and is not known when the connection begins.
    fn measure(&mut self, min_rtt: Duration, sample: Option<Duration>) {
        let min_before = self.round_trip.min;
        self.round_trip.measure(min_rtt, sample);
        if self.components.rho && self.round_trip.min != min_before {
            self.rho = (min_rtt.as_nanos() as f64 / RTT0.as_nanos() as f64).max(1.0);
            self.slow_start.set_rho(self.rho);
        }
    }

    /// ρ times the standard window, bytes.
    fn initial_window(&self) -> f64 {
        (self.rho * self.initial_window).min(MAX_WINDOW)
    }

    fn follow_capacity(&mut self, ack: &Acked) {
        let round = self.delivery.on_ack(ack, self.round_trip.min);
        // With a queue in front of the link, what was known before no longer counts.
        if let (Some(rate), true) = (round, self.components.queue && self.capacity_known)
            && self.queue() == Queue::Standing
        {
            self.delivery.highest = rate;
        }
    }

    /// The capacity by Hoe's estimate; or, where the first burst told nothing, by the first standing queue.
    fn estimate_capacity(&mut self, ack: &Acked) {
        if self.capacity_known {
            return;
        }
        if let Some(rate) = self.train.on_ack(ack) {
            self.delivery.highest = self.delivery.highest.max(rate);
            self.apply_estimate(rate);
        } else if self.train.has_ended() && self.delivery.highest > 0.0 && self.queue() == Queue::Standing {
            self.apply_estimate(self.delivery.highest);
        }
    }

    /// Once, at the start: ssthresh = capacity · RTT, and a window that has already run past it comes back to it.
    fn apply_estimate(&mut self, rate: f64) {
        self.capacity_known = true;
        if !self.components.hoe || self.ssthresh != NO_SSTHRESH {
            return;
        }
        let window = (rate * self.round_trip.min).min(MAX_WINDOW) as u64;
        self.ssthresh = window.max(MIN_SSTHRESH_SEGMENTS * self.mss);
        self.cwnd = self.cwnd.min(self.ssthresh as f64);
    }

    fn queue(&self) -> Queue {
        self.round_trip.queue()
    }

    /// W += ρ² / W segments for each segment acknowledged. While a queue stands, ρ is 1.
    fn avoid(&mut self, bytes: u64) {
        let in_queue = self.components.queue && self.queue() == Queue::Standing;
        let rho = if in_queue { 1.0 } else { self.rho };
        self.cwnd = self.avoidance.grow(self.cwnd, rho * rho * bytes as f64);
    }

    /// When a queue comes to stand, the window goes back to what the path carries and an eighth; once, for where others
    /// keep the queue standing, going back again and again would leave them everything.
    fn leave_queue(&mut self) {
        if self.queue() == Queue::Empty {
            self.left_queue = false;
        }
        let stands = self.components.queue && self.queue() == Queue::Standing;
        if !stands || self.left_queue || !self.capacity_known || self.delivery.recent == 0.0 {
            return;
        }
        self.left_queue = true;
        let carried = PROBE * self.delivery.recent * self.round_trip.min;
        self.cwnd = self.cwnd.min(carried.max((MIN_SSTHRESH_SEGMENTS * self.mss) as f64));
    }

    /// A segment every RTT / W, bytes per second, by the window alone; `None` before the first measurement.
    fn window_rate(&self, srtt: Duration) -> Option<f64> {
        let rate = self.cwnd / self.round_trip.now_or(srtt)?;
        // W doubles within a round of slow start: segments of the second half must not wait for the first.
        let doubles = self.cwnd < self.ssthresh as f64 / 2.0;
        Some(if doubles { 2.0 * rate } else { rate })
    }

    /// What the pacing may reach on account of the link's capacity, bytes per second; `None` is any rate.
    fn rate_bound(&self) -> Option<f64> {
        let Components { hoe, queue, .. } = self.components;
        if self.capacity_known {
            // Not below it where a queue stands: others may keep it standing, and would get what we leave.
            let probing = if self.queue() == Queue::Empty { PROBE } else { 1.0 };
            // Two segments in a round trip at the least, as with the window. A round trip that varies, by
            // delayed acknowledgements say, looks like a queue, and each round would be slower than the one before.
            let least = (MIN_SSTHRESH_SEGMENTS * self.mss) as f64 / self.round_trip.min;
            return queue.then_some((probing * self.delivery.highest).max(least));
        }
        if !(hoe || queue) || self.round_trip.min == 0.0 {
            return None;
        }
        // No estimate yet: the rate at most doubles from one round to the next, as in any slow start.
        Some((2.0 * self.delivery.highest).max(self.initial_window() / self.round_trip.min))
    }

    /// Whether the window, not the link's capacity, sets the pace, so that more window would mean more in flight.
    fn window_sets_pace(&self, ack: &Acked) -> bool {
        let full = ack.in_flight.saturating_add(self.mss) > self.cwnd as u64;
        let bounded = self.components.pacing
            && matches!((self.window_rate(ack.srtt), self.rate_bound()), (Some(rate), Some(bound)) if rate > bound);
        full || !bounded
    }

    fn grow(&mut self, ack: &Acked) {
        if !ack.cwnd_limited {
            return;
        }
        if ack.in_recovery {
            if self.components.recovery_growth && self.window_sets_pace(ack) {
                self.avoid(ack.bytes);
            }
            return;
        }
        let window_sets_pace = self.window_sets_pace(ack);
        let grown = self.slow_start.grow(self.cwnd, self.ssthresh, ack.bytes);
        self.cwnd = grown.cwnd;
        if grown.left_over > 0 && window_sets_pace {
            self.avoid(grown.left_over);
            self.leave_queue();
        }
    }
}

impl CongestionControl for Hybla {
    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn pacing_rate(&self, srtt: Duration) -> Option<Rate> {
        if !self.components.pacing {
            return None;
        }
        let rate = self.window_rate(srtt)?.min(self.rate_bound().unwrap_or(f64::MAX));
        Rate::from_bps(((8.0 * rate) as u64).max(1))
    }

    fn on_established(&mut self, _now: Time, rtt: Option<Duration>) {
        let Some(rtt) = rtt else { return };
        self.measure(rtt, Some(rtt));
        if !self.started {
            self.cwnd = self.initial_window();
            self.expect_train();
        }
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.started = true;
        self.measure(ack.min_rtt, ack.rtt);
        self.follow_capacity(ack);
        self.grow(ack);
        self.estimate_capacity(ack);
    }

    fn on_loss(&mut self, _now: Time, in_flight: u64) {
        self.started = true;
        self.ssthresh = half_of(flight_size(in_flight, self.cwnd), self.mss);
        self.cwnd = as_window(self.ssthresh);
        self.avoidance.reset();
    }

    fn on_recovery_end(&mut self, _now: Time) {
        self.avoidance.reset();
    }

    fn on_timeout(&mut self, _now: Time, in_flight: u64, first: bool) {
        self.started = true;
        if first {
            let (of_flight, of_window) = (half_of(in_flight, self.mss), half_of(self.cwnd(), self.mss));
            self.ssthresh = after_timeout(of_flight, of_window, self.ssthresh);
        }
        self.cwnd = self.mss as f64;
        self.slow_start.on_timeout();
        self.avoidance.reset();
        self.train.end();
        self.delivery.interrupt();
    }

    fn on_idle(&mut self, _now: Time) {
        self.cwnd = self.cwnd.min(self.initial_window());
        self.delivery.interrupt();
    }
}

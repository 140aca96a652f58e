//! Hybla as its authors published it: Caini and Firrincieli 2004, with Hoe's estimate (SIGCOMM 1996).
//!
//! In bytes and floating point, beside [`Hybla`](super::Hybla) in segments and integers: the closed forms of
//! the paper are checked on it, and experiments that reproduce publications run it.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::path::{DeliveryRate, Queue, RoundTrip};
use super::train::Train;
use super::{BURST_SEGMENTS, Components, RTT0};
use crate::congestion::slow_start::MAX_WINDOW;
use crate::congestion::{Acked, CongestionControl, MIN_SSTHRESH_SEGMENTS, NO_SSTHRESH, NewReno, Parameters};

/// The published Hybla, complete or in parts.
#[derive(Debug)]
pub struct PublishedHybla {
    components: Components,
    /// The window, and what Hybla does as any other TCP.
    standard: NewReno,
    rho: f64,
    round_trip: RoundTrip,
    delivery: DeliveryRate,
    train: Train,
    /// `delivery.highest` is the link's capacity, not only a lower bound of it.
    capacity_known: bool,
    /// Something has been acknowledged or lost.
    started: bool,
}

impl PublishedHybla {
    /// A controller for a new connection, with those of the `components` that are on. Growth in recovery and
    /// the bound by the queue are bentpipe's additions, and not to be had here.
    pub fn new(parameters: Parameters, components: Components) -> Self {
        let mut hybla = Self {
            components,
            standard: NewReno::new(parameters),
            rho: 1.0,
            round_trip: RoundTrip::default(),
            delivery: DeliveryRate::default(),
            train: Train::new(0, parameters.mss),
            capacity_known: false,
            started: false,
        };
        hybla.expect_train();
        hybla
    }

    /// The normalised round-trip time ρ = max(RTT / [`RTT0`], 1), from the minimum RTT; 1 where it is
    /// switched off.
    pub fn rho(&self) -> f64 {
        self.rho
    }

    /// The first segments leave back to back, as many as the window allows.
    fn expect_train(&mut self) {
        let burst = (BURST_SEGMENTS * self.standard.mss).min(self.standard.cwnd as u64);
        self.train = Train::new(burst, self.standard.mss);
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
            self.standard.slow_start.set_rho(self.rho);
        }
    }

    /// ρ times the standard window, bytes.
    fn initial_window(&self) -> f64 {
        (self.rho * self.standard.initial_window).min(MAX_WINDOW)
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

    /// Once, at the start: ssthresh = capacity · RTT, and a window that has already run past it comes back to
    /// it.
    fn apply_estimate(&mut self, rate: f64) {
        self.capacity_known = true;
        if !self.components.hoe || self.standard.ssthresh != NO_SSTHRESH {
            return;
        }
        let window = (rate * self.round_trip.min).min(MAX_WINDOW) as u64;
        self.standard.ssthresh = window.max(MIN_SSTHRESH_SEGMENTS * self.standard.mss);
        self.standard.cwnd = self.standard.cwnd.min(self.standard.ssthresh as f64);
    }

    fn queue(&self) -> Queue {
        self.round_trip.queue()
    }

    /// W += ρ² / W segments for each segment acknowledged.
    fn avoid(&mut self, bytes: u64) {
        self.standard.cwnd =
            self.standard.avoidance.grow(self.standard.cwnd, self.rho * self.rho * bytes as f64);
    }

    /// A segment every RTT / W, bytes per second, by the window alone; `None` before the first measurement.
    fn window_rate(&self, srtt: Duration) -> Option<f64> {
        let rate = self.standard.cwnd / self.round_trip.now_or(srtt)?;
        // W doubles within a round of slow start: segments of the second half must not wait for the first.
        let doubles = self.standard.cwnd < self.standard.ssthresh as f64 / 2.0;
        Some(if doubles { 2.0 * rate } else { rate })
    }

    /// The bound of the pacing until Hoe's estimate is known, bytes per second; `None` is any rate. The rate
    /// at most doubles from one round to the next, as in any slow start.
    fn rate_bound(&self) -> Option<f64> {
        let is_bounded = self.components.hoe && !self.capacity_known && self.round_trip.min > 0.0;
        is_bounded.then(|| (2.0 * self.delivery.highest).max(self.initial_window() / self.round_trip.min))
    }

    /// Whether the window, not the bound, sets the pace, so that a larger window would mean more in flight.
    fn window_sets_pace(&self, ack: &Acked) -> bool {
        let full = ack.in_flight.saturating_add(self.standard.mss) > self.standard.cwnd as u64;
        let rates = self.window_rate(ack.srtt).zip(self.rate_bound());
        let bounded = self.components.pacing && rates.is_some_and(|(rate, bound)| rate > bound);
        full || !bounded
    }

    fn grow(&mut self, ack: &Acked) {
        if !ack.cwnd_limited || ack.in_recovery {
            return;
        }
        let window_sets_pace = self.window_sets_pace(ack);
        let grown = self.standard.slow_start.grow(self.standard.cwnd, self.standard.ssthresh, ack.bytes);
        self.standard.cwnd = grown.cwnd;
        if grown.left_over > 0 && window_sets_pace {
            self.avoid(grown.left_over);
        }
    }
}

impl CongestionControl for PublishedHybla {
    fn cwnd(&self) -> u64 {
        self.standard.cwnd as u64
    }

    fn ssthresh(&self) -> u64 {
        self.standard.ssthresh
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
            self.standard.cwnd = self.initial_window();
            self.expect_train();
        }
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.started = true;
        self.measure(ack.min_rtt, ack.rtt);
        self.delivery.on_ack(ack, self.round_trip.min);
        self.grow(ack);
        self.estimate_capacity(ack);
    }

    fn on_loss(&mut self, now: Time, in_flight: u64) {
        self.started = true;
        self.standard.on_loss(now, in_flight);
    }

    fn on_recovery_end(&mut self, _now: Time) {
        self.standard.avoidance.reset();
    }

    fn on_timeout(&mut self, now: Time, in_flight: u64, first: bool) {
        self.started = true;
        self.standard.on_timeout(now, in_flight, first);
        self.train.end();
        self.delivery.interrupt();
    }

    fn set_window(&mut self, cwnd: u64, ssthresh: u64) {
        self.standard.set_window(cwnd, ssthresh);
    }

    fn on_idle(&mut self, _now: Time) {
        self.standard.cwnd = self.standard.cwnd.min(self.initial_window());
        self.delivery.interrupt();
    }
}

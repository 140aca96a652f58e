//! The standard TCP (RFC 5681), with its window counted in acknowledged bytes (RFC 3465).

use bentpipe_units::Time;

use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, MIN_SSTHRESH_SEGMENTS, NO_SSTHRESH, Parameters, SlowStart};

/// RFC 5681: the window doubles in each round trip up to ssthresh, then grows by a segment in each, and is
/// halved by a loss.
#[derive(Debug)]
pub struct NewReno {
    pub(super) mss: u64,
    pub(super) initial_window: f64,
    pub(super) cwnd: f64,
    pub(super) ssthresh: u64,
    pub(super) slow_start: SlowStart,
    pub(super) avoidance: Avoidance,
}

impl NewReno {
    /// A controller for a new connection.
    pub fn new(parameters: Parameters) -> Self {
        let initial_window = initial_window(&parameters);
        Self {
            mss: parameters.mss,
            initial_window,
            cwnd: initial_window,
            ssthresh: NO_SSTHRESH,
            slow_start: SlowStart::new(&parameters),
            avoidance: Avoidance::new(parameters.mss),
        }
    }

    /// A controller that goes on with a window that is known to be about right: slow start is over.
    pub(super) fn beyond_slow_start(parameters: Parameters) -> Self {
        let new = Self::new(parameters);
        Self { ssthresh: new.cwnd as u64, ..new }
    }
}

impl CongestionControl for NewReno {
    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &Acked) {
        if ack.in_recovery || !ack.cwnd_limited {
            return;
        }
        let grown = self.slow_start.grow(self.cwnd, self.ssthresh, ack.bytes);
        self.cwnd = self.avoidance.grow(grown.cwnd, grown.left_over as f64);
    }

    fn on_loss(&mut self, _now: Time, in_flight: u64) {
        self.ssthresh = half_of(flight_size(in_flight, self.cwnd), self.mss);
        self.cwnd = as_window(self.ssthresh);
        self.avoidance.reset();
    }

    fn on_timeout(&mut self, _now: Time, in_flight: u64, first: bool) {
        if first {
            let (of_flight, of_window) = (half_of(in_flight, self.mss), half_of(self.cwnd(), self.mss));
            self.ssthresh = after_timeout(of_flight, of_window, self.ssthresh);
        }
        self.cwnd = self.mss as f64;
        self.slow_start.on_timeout();
        self.avoidance.reset();
    }

    fn set_window(&mut self, cwnd: u64, ssthresh: u64) {
        (self.cwnd, self.ssthresh) = (as_window(cwnd), ssthresh);
        self.avoidance.reset();
    }

    fn on_idle(&mut self, _now: Time) {
        self.cwnd = self.cwnd.min(self.initial_window);
    }
}

/// Congestion avoidance: a segment for each window of acknowledged bytes (RFC 3465 §2.1).
#[derive(Debug)]
pub(super) struct Avoidance {
    mss: f64,
    /// Bytes acknowledged that have not made a window yet.
    credit: f64,
}

impl Avoidance {
    pub(super) fn new(mss: u64) -> Self {
        Self { mss: mss as f64, credit: 0.0 }
    }

    /// The window after `bytes` more were acknowledged. Hybla counts each of them ρ² times.
    pub(super) fn grow(&mut self, cwnd: f64, bytes: f64) -> f64 {
        self.credit += bytes;
        if self.credit < cwnd {
            return cwnd;
        }
        let segments = (self.credit / cwnd).floor();
        // The bounds matter only where a credit of more than 2⁵³ bytes has been rounded.
        self.credit = (self.credit - segments * cwnd).clamp(0.0, cwnd);
        (cwnd + segments * self.mss).min(MAX_WINDOW.max(cwnd))
    }

    /// A new window begins to be counted.
    pub(super) fn reset(&mut self) {
        self.credit = 0.0;
    }
}

/// The flight size when a loss is detected, bytes: no more than the window. Data that limited transmit has
/// sent since does not count (RFC 5681 §3.2), nor data that SACK has reported while the window moved on, or a
/// loss would raise the window.
pub(super) fn flight_size(in_flight: u64, cwnd: f64) -> u64 {
    in_flight.min(cwnd as u64)
}

/// The threshold after a timeout, from what a loss would leave of the flight and of the window. In a long
/// repair the flight, with what SACK has reported, outruns the window: it must not raise the threshold. Nor
/// is a window that the repair has reduced already reduced once more.
pub(super) fn after_timeout(of_flight: u64, of_window: u64, ssthresh: u64) -> u64 {
    of_flight.min(of_window.max(ssthresh))
}

/// Half of the outstanding data, two segments at least: the threshold after a loss (RFC 5681, equation 4),
/// bytes.
pub(super) fn half_of(in_flight: u64, mss: u64) -> u64 {
    (in_flight / 2).max(MIN_SSTHRESH_SEGMENTS.saturating_mul(mss))
}

/// A threshold as the window that recovery begins with.
pub(super) fn as_window(ssthresh: u64) -> f64 {
    (ssthresh as f64).min(MAX_WINDOW)
}

/// The initial window, bytes; one segment at the least.
pub(super) fn initial_window(parameters: &Parameters) -> f64 {
    as_window(parameters.initial_window.max(parameters.mss))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MSS: u64 = 1000;

    /// A connection whose window is still the initial one, of ten segments.
    fn new_reno() -> NewReno {
        NewReno::new(Parameters {
            mss: MSS,
            initial_window: 10 * MSS,
            byte_counting_limit: None,
            hystart: false,
            linux_cubic: false,
        })
    }

    fn acked(bytes: u64) -> Acked {
        let rtt = Duration::from_millis(100);
        Acked {
            now: Time::ZERO,
            bytes,
            rtt: Some(rtt),
            srtt: rtt,
            min_rtt: rtt,
            in_flight: bytes,
            cwnd_limited: true,
            in_recovery: false,
        }
    }

    #[test]
    fn a_loss_halves_the_data_in_flight_but_not_below_two_segments() {
        for (in_flight, threshold) in [(8 * MSS, 4 * MSS), (3 * MSS, 2 * MSS), (0, 2 * MSS)] {
            let mut new_reno = new_reno();
            new_reno.on_loss(Time::ZERO, in_flight);
            assert_eq!((new_reno.cwnd(), new_reno.ssthresh()), (threshold, threshold), "{in_flight}");
        }
    }

    #[test]
    fn limited_transmit_does_not_count_as_flight() {
        let mut new_reno = new_reno();
        new_reno.on_loss(Time::ZERO, 12 * MSS);
        assert_eq!(new_reno.ssthresh(), 5 * MSS);
    }

    #[test]
    fn the_window_stays_during_recovery_and_while_application_limited() {
        let mut new_reno = new_reno();
        new_reno.on_ack(&Acked { in_recovery: true, ..acked(MSS) });
        new_reno.on_ack(&Acked { cwnd_limited: false, ..acked(MSS) });
        assert_eq!(new_reno.cwnd(), 10 * MSS);
    }

    #[test]
    fn only_the_first_of_several_timeouts_sets_the_threshold() {
        let mut new_reno = new_reno();
        new_reno.on_timeout(Time::ZERO, 20 * MSS, true);
        new_reno.on_timeout(Time::ZERO, MSS, false);
        assert_eq!((new_reno.cwnd(), new_reno.ssthresh()), (MSS, 10 * MSS));
    }

    #[test]
    fn a_timeout_in_the_middle_of_a_repair_neither_reduces_twice_nor_raises_the_threshold() {
        let mut new_reno = new_reno();
        new_reno.on_loss(Time::ZERO, 10 * MSS);
        new_reno.on_timeout(Time::ZERO, 10 * MSS, true);
        assert_eq!(new_reno.ssthresh(), 5 * MSS);
        new_reno.on_timeout(Time::ZERO, 1000 * MSS, true);
        assert_eq!(new_reno.ssthresh(), 5 * MSS);
    }

    #[test]
    fn idleness_takes_the_window_back_to_the_initial_one_and_never_raises_it() {
        let mut new_reno = new_reno();
        new_reno.on_ack(&acked(10 * MSS));
        new_reno.on_idle(Time::ZERO);
        assert_eq!(new_reno.cwnd(), 10 * MSS);
        new_reno.on_loss(Time::ZERO, 8 * MSS);
        new_reno.on_idle(Time::ZERO);
        assert_eq!(new_reno.cwnd(), 4 * MSS);
    }

    #[test]
    fn a_window_of_acknowledged_bytes_is_worth_a_segment_however_they_are_cut() {
        for cut in [1, 77, MSS, 2 * MSS, 5 * MSS] {
            let mut new_reno = new_reno();
            new_reno.on_loss(Time::ZERO, 10 * MSS);
            let mut left = 5 * MSS - 1;
            while left > 0 {
                new_reno.on_ack(&acked(cut.min(left)));
                left -= cut.min(left);
            }
            assert_eq!(new_reno.cwnd(), 5 * MSS, "in pieces of {cut}");
            new_reno.on_ack(&acked(1));
            assert_eq!(new_reno.cwnd(), 6 * MSS, "in pieces of {cut}");
        }
    }
}

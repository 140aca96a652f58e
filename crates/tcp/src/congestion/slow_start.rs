//! Slow start, the part that the algorithms share.

use super::Parameters;

/// The largest window, bytes: a thousand times the largest receive window (2³⁰, RFC 7323 §2.3), so that it
/// never holds a sender back, and far below 2⁵³, where an `f64` begins to lose bytes.
pub(super) const MAX_WINDOW: f64 = (1u64 << 40) as f64;

/// Above this exponent one acknowledged byte opens [`MAX_WINDOW`] and more; 2 to its power is still far from
/// infinity.
const MAX_EXPONENT: f64 = 64.0;

/// Slow start (RFC 5681 §3.1): the window grows by a constant factor of the acknowledged bytes, until it
/// reaches ssthresh.
///
/// The factor is 1 for a standard TCP and 2^ρ − 1 for Hybla (Caini and Firrincieli 2004, equation 7).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowStart {
    /// Bytes of window for each byte acknowledged.
    growth: f64,
    mss: u64,
    /// Segments that one acknowledgement counts for at the most (RFC 3465's L).
    limit: Option<u32>,
    /// The losses of a retransmission timeout are still being repaired.
    repairing: bool,
}

/// A step of slow start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// The new window, bytes.
    pub cwnd: f64,
    /// Bytes acknowledged that slow start had no use for, because the window had reached ssthresh: congestion
    /// avoidance goes on with them.
    pub left_over: u64,
}

impl SlowStart {
    /// A standard TCP's.
    pub fn new(parameters: &Parameters) -> Self {
        Self { growth: 1.0, mss: parameters.mss, limit: parameters.byte_counting_limit, repairing: false }
    }

    /// From now on W grows by 2^ρ − 1 segments for each one acknowledged; ρ = 1 is the standard TCP.
    pub fn set_rho(&mut self, rho: f64) {
        self.growth = libm::exp2(rho.clamp(1.0, MAX_EXPONENT)) - 1.0;
    }

    /// The retransmission timer has expired. Until the window is back at ssthresh an acknowledgement may
    /// cover segments that arrived before the timeout; where L limits anything, it is then 1 (RFC 3465 §2.3).
    pub fn on_timeout(&mut self) {
        self.repairing = true;
    }

    /// The window after `bytes` more were acknowledged. It stops exactly at `ssthresh`; a window that is
    /// there already stays, and all the bytes are left over.
    pub fn grow(&mut self, cwnd: f64, ssthresh: u64, bytes: u64) -> Growth {
        let end = (ssthresh as f64).min(MAX_WINDOW);
        if cwnd >= end {
            return Growth { cwnd, left_over: bytes };
        }
        let counted = bytes.min(self.most_per_ack());
        let gain = self.growth * counted as f64;
        if gain < end - cwnd {
            return Growth { cwnd: cwnd + gain, left_over: 0 };
        }
        self.repairing = false;
        let used = ((end - cwnd) / self.growth).ceil() as u64;
        Growth { cwnd: end, left_over: counted.saturating_sub(used) }
    }

    fn most_per_ack(&self) -> u64 {
        match self.limit {
            None => u64::MAX,
            Some(_) if self.repairing => self.mss,
            Some(segments) => self.mss.saturating_mul(u64::from(segments)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NO_SSTHRESH;
    use super::*;

    const MSS: u64 = 1000;

    fn slow_start(byte_counting_limit: Option<u32>) -> SlowStart {
        SlowStart::new(&Parameters {
            mss: MSS,
            initial_window: 10 * MSS,
            byte_counting_limit,
            hystart: false,
            linux_cubic: false,
        })
    }

    #[test]
    fn the_window_grows_by_the_acknowledged_bytes() {
        let grown = slow_start(None).grow(10_000.0, NO_SSTHRESH, 7_000);
        assert_eq!(grown, Growth { cwnd: 17_000.0, left_over: 0 });
    }

    #[test]
    fn one_acknowledgement_counts_for_no_more_than_the_limit() {
        for (limit, cwnd) in [(1, 11_000.0), (2, 12_000.0), (100, 17_000.0)] {
            assert_eq!(slow_start(Some(limit)).grow(10_000.0, NO_SSTHRESH, 7_000).cwnd, cwnd, "L = {limit}");
        }
    }

    #[test]
    fn after_a_timeout_the_limit_is_one_segment_until_ssthresh_is_reached() {
        let mut slow_start = slow_start(Some(2));
        slow_start.on_timeout();
        assert_eq!(slow_start.grow(1_000.0, 2_500, 5_000).cwnd, 2_000.0);
        assert_eq!(slow_start.grow(2_000.0, 2_500, 5_000), Growth { cwnd: 2_500.0, left_over: 500 });
        assert_eq!(slow_start.grow(1_000.0, 10_000, 5_000).cwnd, 3_000.0);
    }

    #[test]
    fn it_stops_exactly_at_ssthresh_and_leaves_the_rest_over() {
        let grown = slow_start(None).grow(9_000.0, 10_000, 3_000);
        assert_eq!(grown, Growth { cwnd: 10_000.0, left_over: 2_000 });
        assert_eq!(slow_start(None).grow(10_000.0, 10_000, 3_000).left_over, 3_000);
        // With ρ = 2 each segment is worth three.
        let mut hybla = slow_start(None);
        hybla.set_rho(2.0);
        assert_eq!(hybla.grow(7_000.0, 10_000, 3_000), Growth { cwnd: 10_000.0, left_over: 2_000 });
    }

    #[test]
    fn rho_of_one_is_exactly_the_standard_tcp() {
        let mut hybla = slow_start(None);
        hybla.set_rho(1.0);
        assert_eq!(hybla, slow_start(None));
    }

    #[test]
    fn no_rho_opens_more_than_the_largest_window() {
        for rho in [24.0, 64.0, 1e4, f64::MAX, f64::INFINITY] {
            let mut hybla = slow_start(None);
            hybla.set_rho(rho);
            assert_eq!(hybla.grow(10_000.0, NO_SSTHRESH, u64::MAX).cwnd, MAX_WINDOW, "rho {rho}");
        }
    }
}

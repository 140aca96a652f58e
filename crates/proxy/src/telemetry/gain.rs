//! An estimate of what a connection would carry unsplit.
//!
//! End to end, one congestion control would meet the round trip of both legs and the losses of the
//! satellite's. What CUBIC, which nearly all senders use, makes of these is its response function. Its
//! assumptions flatter the connection without a proxy: losses are spread evenly, no timer ever expires, and
//! no window is too small.
//!
//! The inputs are the rate at which this gateway sends into a satellite leg, and how much of that had to be
//! sent again there. Nothing is known of the losses of what comes from the satellite: those who sent it know,
//! and it is left out. Where nothing had to be sent again the estimate is the rate itself: that splitting
//! also gains a faster start is left out as well.

use std::time::Duration;

/// CUBIC's `C` and `β_cubic` (RFC 9438 §4.1.1, §4.6).
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// √(3/2): the window of a Reno sender is this over √p segments on average (RFC 9438 §4.3 with α = 1, β =
/// 0.5; Mathis et al. 1997 with one acknowledgement for each segment).
const RENO: f64 = 1.224_744_871_391_589;

/// A connection that sends into a satellite leg.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sender {
    /// The rate that the far end acknowledges, bit/s.
    pub(super) rate: f64,
    /// Round-trip times of both legs together.
    pub(super) rtt: Duration,
    /// Share of segments that is lost on the satellite leg; none where none was sent lately.
    pub(super) loss: Option<f64>,
    /// Payload of a full segment, bytes.
    pub(super) mss: u32,
}

impl Sender {
    /// Its rate end to end, bit/s: never more than its actual rate.
    pub(super) fn end_to_end(&self) -> f64 {
        match self.loss {
            Some(loss) if loss > 0.0 && !self.rtt.is_zero() => self.rate.min(cubic(self.rtt, loss, self.mss)),
            _ => self.rate,
        }
    }
}

/// CUBIC's rate at a loss, bit/s: that of the region, Reno-friendly or its own, in which its window is larger
/// (RFC 9438 §4.3).
fn cubic(rtt: Duration, loss: f64, mss: u32) -> f64 {
    let rtt = rtt.as_secs_f64();
    // RFC 9438 §5.1: 1.054 · RTT^(3/4) / p^(3/4) segments.
    let own = (C * (3.0 + BETA) / (4.0 * (1.0 - BETA))).powf(0.25) * (rtt / loss).powf(0.75);
    let reno_friendly = RENO / loss.sqrt();
    own.max(reno_friendly) * f64::from(mss) * 8.0 / rtt
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEO: Duration = Duration::from_millis(600);

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 0.01
    }

    /// RFC 9438 §5.1 has a table for an RTT of 0.1 s: windows in segments.
    #[test]
    fn the_windows_are_those_of_the_rfcs_table() {
        for (loss, window) in [(1e-2, 12.0), (1e-3, 38.7), (1e-4, 187.0), (1e-5, 1054.0), (1e-8, 187_000.0)] {
            let rtt = Duration::from_millis(100);
            let found = cubic(rtt, loss, 1000) * 0.1 / 8000.0;
            assert!((found / window - 1.0).abs() < 0.03, "p = {loss}: {found}, not {window}");
        }
    }

    #[test]
    fn one_percent_over_geo_leaves_less_than_half_a_megabit() {
        assert!(close(cubic(GEO, 0.01, 1448), 438_500.0), "{}", cubic(GEO, 0.01, 1448));
        let sender = Sender { rate: 9e6, rtt: GEO, loss: Some(0.01), mss: 1448 };
        assert!(close(sender.rate / sender.end_to_end(), 20.5));
    }

    #[test]
    fn a_short_round_trip_or_much_loss_is_the_reno_friendly_region() {
        let rtt = Duration::from_millis(10);
        assert!(close(cubic(rtt, 0.01, 1448), 12.247 * 1448.0 * 8.0 / 0.01));
    }

    #[test]
    fn the_estimate_never_exceeds_the_carried_rate() {
        for loss in [None, Some(0.0), Some(1e-12), Some(1e-300)] {
            let sender = Sender { rate: 1e6, rtt: GEO, loss, mss: 1448 };
            assert_eq!(sender.end_to_end(), 1e6, "{loss:?}");
        }
        let sender = Sender { rate: 1e6, rtt: Duration::ZERO, loss: Some(0.5), mss: 1448 };
        assert_eq!(sender.end_to_end(), 1e6, "a round trip that nobody has measured");
    }
}

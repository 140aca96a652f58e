//! Proportional rate reduction (RFC 6937, RFC 9937): what may be sent while losses are repaired.

/// Spreads the reduction of the window over the round trip of a repair: of what arrives, the part that the
/// new window is of the old flight may be sent. Without it a sender is silent until half its flight has
/// arrived, and then sends the rest at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reduction {
    mss: u64,
    /// Bytes outstanding when the repair began (RecoverFS).
    flight: u64,
    /// Bytes reported as received since then (prr_delivered).
    delivered: u64,
    /// Bytes sent since then (prr_out).
    sent: u64,
    allowance: u64,
}

impl Reduction {
    /// A repair begins with `flight` bytes outstanding.
    pub(crate) fn new(mss: u64, flight: u64) -> Self {
        Self { mss, flight: flight.max(1), delivered: 0, sent: 0, allowance: 0 }
    }

    /// An acknowledgement reports `delivered` bytes as received; `in_flight` are left, and the window is to
    /// become `target`. `safe`: it advances and reveals no further loss, so that the flight may grow back in
    /// slow start (RFC 9937 §5).
    pub(crate) fn on_ack(&mut self, delivered: u64, in_flight: u64, target: u64, safe: bool) {
        self.delivered += delivered;
        let due = if in_flight > target {
            let share = u128::from(self.delivered) * u128::from(target);
            (share.div_ceil(u128::from(self.flight)) as u64).saturating_sub(self.sent)
        } else {
            let conserved = self.delivered.saturating_sub(self.sent).max(delivered);
            let more = if safe { self.mss } else { 0 };
            (conserved + more).min(target - in_flight)
        };
        // The retransmission that begins the repair goes out at once.
        self.allowance = if self.sent == 0 { due.max(self.mss) } else { due };
    }

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.allowance = self.allowance.saturating_sub(bytes);
    }

    /// Bytes that may be sent before the next acknowledgement.
    pub(crate) fn allowance(&self) -> u64 {
        self.allowance
    }
}

/// Proportional rate reduction as RFC 9937 §6 has it, and Linux: the window follows the flight, and an
/// acknowledgement that reports nothing leaves it as it is. Losses found by a timer may so be repaired at
/// once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateReduction {
    mss: u64,
    /// The window when the repair began (RecoverFS; RFC 9937 takes the flight).
    before: u64,
    delivered: u64,
    sent: u64,
    window: u64,
}

impl RateReduction {
    /// A repair begins with a window of `before` bytes.
    pub(crate) fn new(mss: u64, before: u64) -> Self {
        Self { mss, before: before.max(1), delivered: 0, sent: 0, window: 0 }
    }

    /// An acknowledgement reports `delivered` bytes as received; `in_flight` are left, and the window is to
    /// become `target`. `is_good`: it advances and reveals no further loss; then the flight may grow back by
    /// a segment more than has arrived (slow start reduction bound), else only by as much (conservative
    /// reduction bound).
    pub(crate) fn on_ack(&mut self, delivered: u64, in_flight: u64, target: u64, is_good: bool) {
        if delivered == 0 {
            return;
        }
        self.delivered += delivered;
        let due = if in_flight > target {
            let share = u128::from(self.delivered) * u128::from(target);
            (share.div_ceil(u128::from(self.before)) as u64).saturating_sub(self.sent)
        } else {
            let conserved = self.delivered.saturating_sub(self.sent).max(delivered);
            let more = if is_good { self.mss } else { 0 };
            (conserved + more).min(target - in_flight)
        };
        // The retransmission that begins the repair goes out at once.
        let least = if self.sent == 0 { self.mss } else { 0 };
        self.window = in_flight + due.max(least);
    }

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// Bytes that may be in flight until the next acknowledgement.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 100;

    /// RFC 9937 §6's first example: 100 segments in flight, the first lost, the window halved. One segment is
    /// sent for every two that arrive, and at the end of the round trip half as many are in flight.
    #[test]
    fn one_segment_is_sent_for_every_two_that_arrive() {
        let (flight, target) = (100 * MSS, 50 * MSS);
        let mut reduction = Reduction::new(MSS, flight);
        let (mut in_flight, mut sent) = (flight - 2 * MSS, 0);
        let mut sends_at_most = 0;
        for _ in 0..98 {
            in_flight -= MSS;
            reduction.on_ack(MSS, in_flight, target, false);
            let now = reduction.allowance() / MSS;
            sends_at_most = sends_at_most.max(now);
            (0..now).for_each(|_| reduction.on_sent(MSS));
            (in_flight, sent) = (in_flight + now * MSS, sent + now);
        }
        assert_eq!(sends_at_most, 1);
        assert!((48..=50).contains(&sent), "{sent}");
        assert!((48 * MSS..=50 * MSS).contains(&in_flight), "{in_flight}");
    }

    /// With half the flight lost the flight is below the target already: what arrives is replaced, and a
    /// segment more only where the acknowledgement is a good sign.
    #[test]
    fn below_the_target_the_flight_is_kept_and_grows_only_where_that_is_safe() {
        let mut reduction = Reduction::new(MSS, 20 * MSS);
        reduction.on_ack(MSS, 5 * MSS, 10 * MSS, false);
        reduction.on_sent(MSS);
        reduction.on_ack(MSS, 5 * MSS, 10 * MSS, false);
        assert_eq!(reduction.allowance(), MSS);
        reduction.on_sent(MSS);
        reduction.on_ack(MSS, 5 * MSS, 10 * MSS, true);
        assert_eq!(reduction.allowance(), 2 * MSS);
        reduction.on_ack(4 * MSS, 9 * MSS, 10 * MSS, true);
        assert_eq!(reduction.allowance(), MSS, "never beyond the target");
    }

    #[test]
    fn the_window_follows_the_flight_down_to_the_target() {
        let (before, target) = (100 * MSS, 50 * MSS);
        let mut reduction = RateReduction::new(MSS, before);
        let (mut in_flight, mut sent) = (99 * MSS, 0);
        for _ in 0..98 {
            in_flight -= MSS;
            reduction.on_ack(MSS, in_flight, target, false);
            while in_flight + MSS <= reduction.window() {
                reduction.on_sent(MSS);
                (in_flight, sent) = (in_flight + MSS, sent + 1);
            }
        }
        assert!((48..=50).contains(&sent), "{sent}");
        assert!((48 * MSS..=50 * MSS).contains(&in_flight), "{in_flight}");
    }

    /// Losses that a timer finds leave the network without an acknowledgement: they may be replaced.
    #[test]
    fn an_acknowledgement_without_news_leaves_the_window_as_it_is() {
        let mut reduction = RateReduction::new(MSS, 20 * MSS);
        reduction.on_ack(MSS, 8 * MSS, 10 * MSS, false);
        assert_eq!(reduction.window(), 9 * MSS);
        reduction.on_sent(MSS);
        reduction.on_ack(0, 4 * MSS, 10 * MSS, true);
        assert_eq!(reduction.window(), 9 * MSS);
        reduction.on_ack(MSS, 4 * MSS, 10 * MSS, true);
        assert_eq!(reduction.window(), 6 * MSS, "what has arrived, and a segment more");
    }
}

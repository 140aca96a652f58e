//! Tail loss probes (RFC 8985 §7): the loss of the last segments of a flight is found without the timeout.

use std::time::Duration;

use bentpipe_units::Time;

/// The probe timeout before the round trip is known (RFC 8985 §7.2).
const INITIAL_PTO: Duration = Duration::from_secs(1);
/// How long the acknowledgement of a lone segment may be delayed: Linux' least retransmission timeout.
const MAX_ACK_DELAY: Duration = Duration::from_millis(200);
/// What is added where more segments are out: Linux' least timer.
const SLACK: Duration = Duration::from_millis(2);

/// The timer, and the probe that is out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TailLossProbe {
    timer: Time,
    episode: Option<Episode>,
}

/// A probe that is not answered yet.
#[derive(Debug, Clone, Copy)]
struct Episode {
    /// The next offset to be sent when it left (TLP.end_seq).
    end: u64,
    /// It was the last segment again, and not a new one.
    is_repetition: bool,
}

impl TailLossProbe {
    pub(crate) const IDLE: Self = Self { timer: Time::MAX, episode: None };

    /// When a probe is due.
    pub(crate) fn due_at(&self) -> Time {
        self.timer
    }

    pub(crate) fn cancel(&mut self) {
        self.timer = Time::MAX;
    }

    /// Something was sent or acknowledged, and a segment is out (`lone`) or more: the timer begins anew (RFC
    /// 8985 §7.2). Probes do not follow each other, and none comes later than the timeout at `rto_at` would.
    pub(crate) fn schedule(&mut self, now: Time, srtt: Duration, lone: bool, rto_at: Time) {
        if self.episode.is_some() {
            return self.cancel();
        }
        let pto = match srtt.is_zero() {
            true => INITIAL_PTO,
            false => 2 * srtt + if lone { MAX_ACK_DELAY } else { SLACK },
        };
        self.timer = (now + pto).min(rto_at);
    }

    /// A probe has left, the last segment again or a new one; `nxt` is the next offset to be sent.
    pub(crate) fn on_sent(&mut self, nxt: u64, is_repetition: bool) {
        self.timer = Time::MAX;
        self.episode = Some(Episode { end: nxt, is_repetition });
    }

    /// The retransmission timer has expired: what comes next answers that.
    pub(crate) fn on_timeout(&mut self) {
        *self = Self::IDLE;
    }

    /// Whether a D-SACK block reports the probe.
    pub(crate) fn is_reported_by(&self, block: (u64, u64)) -> bool {
        self.episode.is_some_and(|episode| episode.is_repetition && episode.end == block.1)
    }

    /// Everything before `ack` is acknowledged; true where the probe has repaired a loss (RFC 8985 §7.4.2).
    /// `reported`: a D-SACK block reports the probe; `duplicate`: the acknowledgement carries nothing new.
    pub(crate) fn on_ack(&mut self, ack: u64, reported: bool, duplicate: bool) -> bool {
        let Some(episode) = self.episode.filter(|episode| ack >= episode.end) else { return false };
        let repaired = episode.is_repetition && !reported && ack > episode.end;
        if !episode.is_repetition || reported || repaired || duplicate {
            self.episode = None;
        }
        repaired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn sent(is_repetition: bool) -> TailLossProbe {
        let mut probe = TailLossProbe::IDLE;
        probe.on_sent(1000, is_repetition);
        probe
    }

    #[test]
    fn it_is_due_after_two_round_trips_and_not_later_than_the_timeout() {
        let mut probe = TailLossProbe::IDLE;
        probe.schedule(at(0), RTT, false, at(1000));
        assert_eq!(probe.due_at(), at(202));
        probe.schedule(at(0), RTT, true, at(1000));
        assert_eq!(probe.due_at(), at(400), "a lone segment's acknowledgement may be delayed");
        probe.schedule(at(0), RTT, true, at(300));
        assert_eq!(probe.due_at(), at(300));
        probe.schedule(at(0), Duration::ZERO, true, Time::MAX);
        assert_eq!(probe.due_at(), at(1000));
    }

    #[test]
    fn no_probe_follows_an_unanswered_one() {
        let mut probe = sent(true);
        probe.schedule(at(0), RTT, false, at(1000));
        assert_eq!(probe.due_at(), Time::MAX);
    }

    #[test]
    fn a_probe_has_repaired_a_loss_if_more_is_acknowledged_and_nothing_arrived_twice() {
        assert!(sent(true).on_ack(1001, false, false));
        assert!(!sent(true).on_ack(1001, true, false), "it arrived twice");
        assert!(!sent(false).on_ack(1001, false, false), "it was new data");
        assert!(!sent(true).on_ack(999, false, false), "it says nothing of the probe");
        let mut probe = sent(true);
        assert!(!probe.on_ack(1000, false, false), "of the original or of the probe");
        assert!(probe.on_ack(1001, false, false), "and there is no second one");
        let mut probe = sent(true);
        assert!(!probe.on_ack(1000, false, true), "both have arrived");
        assert!(!probe.on_ack(1001, false, false));
    }
}

//! When the next frame may leave.

use std::time::Duration;

use bentpipe_units::Time;

/// A thread that wakes late sends at once what it could have sent meanwhile, of this time at most. It always
/// wakes somewhat late, after each frame, and on a busy host by many milliseconds now and then, in which the
/// link has sent what was queued in front of it.
const LATE: Duration = Duration::from_millis(20);
/// The same where nothing has waited: a pause is not made up for.
const SOMEWHAT_LATE: Duration = Duration::from_millis(1);

/// Frames leave at a rate.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// When the link has carried what was sent, at the rate at which it was sent.
    free_at: Time,
}

impl Pacer {
    /// Whether a frame may leave now.
    pub(super) fn is_free(&self, now: Time) -> bool {
        self.free_at <= now
    }

    /// When a frame may leave.
    pub(super) fn free_at(&self) -> Time {
        self.free_at
    }

    /// No packet waits.
    pub(super) fn rest(&mut self, now: Time) {
        self.free_at = self.free_at.max(before(now, SOMEWHAT_LATE));
    }

    /// A frame of so many bytes on the wire has left; `rate` is in bytes per second, `None` for no limit.
    pub(super) fn on_sent(&mut self, now: Time, bytes: usize, rate: Option<f64>) {
        let Some(rate) = rate.filter(|rate| *rate > 0.0) else { return };
        let takes = Duration::from_secs_f64((bytes as f64 / rate).min(1.0));
        self.free_at = self.free_at.max(before(now, LATE)) + takes;
    }
}

fn before(now: Time, span: Duration) -> Time {
    Time::from_nanos(now.as_nanos().saturating_sub(span.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What leaves in a second at 10 Mbit/s by a thread that wakes at these times.
    fn sent_in_a_second(wakes_after: impl Fn(&Pacer, Time) -> Time) -> usize {
        let mut pacer = Pacer::default();
        let (mut now, mut sent) = (Time::ZERO, 0);
        while now < Time::ZERO + Duration::from_secs(1) {
            while pacer.is_free(now) {
                pacer.on_sent(now, 1500, Some(1_250_000.0));
                sent += 1500;
            }
            now = wakes_after(&pacer, now);
        }
        sent
    }

    #[test]
    fn a_second_carries_the_rate_whenever_the_thread_wakes() {
        let now_and_then = sent_in_a_second(|_, now| now + Duration::from_micros(700));
        let late_each_time = sent_in_a_second(|pacer, _| pacer.free_at() + Duration::from_micros(70));
        let on_a_busy_host = sent_in_a_second(|pacer, _| pacer.free_at() + Duration::from_millis(14));
        for sent in [now_and_then, late_each_time] {
            assert!((1_248_000..=1_254_500).contains(&sent), "{sent}");
        }
        assert!((1_230_000..=1_254_500).contains(&on_a_busy_host), "{on_a_busy_host}");
    }

    fn sent_at_once(pacer: &mut Pacer, now: Time) -> usize {
        let mut sent = 0;
        while pacer.is_free(now) {
            pacer.on_sent(now, 1500, Some(1_250_000.0));
            sent += 1;
        }
        sent
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut pacer = Pacer::default();
        let later = Time::ZERO + Duration::from_secs(60);
        pacer.rest(later);
        assert_eq!(sent_at_once(&mut pacer, later), 1);
    }

    #[test]
    fn a_thread_that_was_kept_from_running_for_long_makes_up_for_20_ms() {
        let mut pacer = Pacer::default();
        pacer.on_sent(Time::ZERO, 1500, Some(1_250_000.0));
        assert_eq!(sent_at_once(&mut pacer, Time::ZERO + Duration::from_secs(60)), 17);
    }
}

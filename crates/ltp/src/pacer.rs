//! When the next datagram may be sent.

use std::time::Duration;

use bentpipe_units::Time;

/// Datagrams may be so late, and are then sent together: a sleeping thread wakes up late.
const LATE: Duration = Duration::from_millis(2);

/// Spaces datagrams so that their bytes are sent at a rate.
#[derive(Debug)]
pub struct Pacer {
    /// Bytes per second; zero sends nothing.
    rate: f64,
    /// When the next datagram is sent.
    next: Time,
}

impl Pacer {
    /// A pacer with a rate in bytes per second, from `now` on.
    pub fn new(rate: f64, now: Time) -> Self {
        Self { rate, next: now }
    }

    /// Changes the rate, bytes per second; zero sends nothing.
    pub fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    /// When the next datagram may be sent; `None` without a rate.
    pub fn next(&self) -> Option<Time> {
        (self.rate > 0.0).then_some(self.next)
    }

    /// A datagram has been sent with this many bytes on the wire.
    pub fn sent(&mut self, now: Time, bytes: u64) {
        let takes = Duration::try_from_secs_f64(bytes as f64 / self.rate).unwrap_or(Duration::MAX);
        let earliest = Time::ZERO + now.since(Time::ZERO).saturating_sub(LATE);
        self.next = self.next.max(earliest) + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_rate_also_when_it_is_asked_late() {
        let mut pacer = Pacer::new(1_000_000.0, Time::ZERO);
        let (mut now, mut sent) = (Time::ZERO, 0);
        while now < Time::ZERO + Duration::from_secs(1) {
            while pacer.next().is_some_and(|next| next <= now) {
                pacer.sent(now, 1000);
                sent += 1;
            }
            now += Duration::from_micros(1500);
        }
        assert!((998..=1003).contains(&sent), "{sent}");
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut pacer = Pacer::new(1_000_000.0, Time::ZERO);
        let now = Time::ZERO + Duration::from_secs(9);
        let mut sent = 0;
        while pacer.next().is_some_and(|next| next <= now) {
            pacer.sent(now, 1000);
            sent += 1;
        }
        assert_eq!(sent, 3);
    }

    #[test]
    fn without_a_rate_nothing_is_sent() {
        assert_eq!(Pacer::new(0.0, Time::ZERO).next(), None);
    }
}

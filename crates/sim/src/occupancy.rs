//! How many bytes a buffer holds over time.

use bentpipe_units::Time;

/// Bytes held over time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupancy {
    since: Time,
    at: Time,
    bytes: u64,
    most: u64,
    byte_seconds: f64,
}

impl Occupancy {
    pub(crate) fn since(since: Time) -> Self {
        Self { since, at: since, bytes: 0, most: 0, byte_seconds: 0.0 }
    }

    pub(crate) fn observe(&mut self, now: Time, bytes: u64) {
        // An empty buffer, as most are most of the time, adds nothing.
        if self.bytes > 0 {
            self.byte_seconds += self.bytes as f64 * (now - self.at).as_secs_f64();
        }
        (self.at, self.bytes, self.most) = (now, bytes, self.most.max(bytes));
    }

    pub(crate) fn now(&self) -> u64 {
        self.bytes
    }

    /// The most at any time, and the mean until `end`.
    pub(crate) fn most_and_mean(mut self, end: Time) -> (u64, f64) {
        self.observe(end, self.bytes);
        let seconds = (end - self.since).as_secs_f64();
        (self.most, if seconds > 0.0 { self.byte_seconds / seconds } else { 0.0 })
    }
}

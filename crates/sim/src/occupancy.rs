//! How many bytes a buffer holds over time.

use bentpipe_units::Time;

/// Bytes held over time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupancy {
    since: Time,
    at: Time,
    bytes: u64,
    most: u64,
    byte_nanos: u128,
}

impl Occupancy {
    pub(crate) fn since(since: Time) -> Self {
        Self { since, at: since, bytes: 0, most: 0, byte_nanos: 0 }
    }

    pub(crate) fn observe(&mut self, now: Time, bytes: u64) {
        let nanos = now.as_nanos().saturating_sub(self.at.as_nanos());
        self.byte_nanos += u128::from(self.bytes) * u128::from(nanos);
        (self.at, self.bytes, self.most) = (now, bytes, self.most.max(bytes));
    }

    pub(crate) fn now(&self) -> u64 {
        self.bytes
    }

    /// The most at any time, and the mean until `end`.
    pub(crate) fn most_and_mean(mut self, end: Time) -> (u64, f64) {
        self.observe(end, self.bytes);
        let nanos = end.as_nanos().saturating_sub(self.since.as_nanos());
        (self.most, if nanos > 0 { self.byte_nanos as f64 / nanos as f64 } else { 0.0 })
    }
}

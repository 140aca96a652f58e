//! What of a contact is booked: how many bytes, when they are ready to be sent, and how urgent they are.

use std::collections::BTreeMap;
use std::time::Duration;

use bentpipe_units::Rate;

use crate::bundle::Priority;

/// Bytes of bulk, normal and expedited bundles.
type Bytes = [u64; 3];

/// The bookings of one contact, by the interval in which the bundles are ready to be sent. The intervals of a
/// contact have the same length, which the caller knows, and are counted from its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Occupancy(BTreeMap<u64, Bytes>);

/// A contact as one bundle meets it; times are counted from the contact's beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opportunity {
    /// From here on the sender is busy with `before`, and then with this bundle.
    base: Duration,
    /// Bytes that go before it, since `base`.
    before: u64,
    /// Bytes that are ready later, and must still fit.
    after: u64,
    /// The contact's length.
    length: Duration,
    rate: Rate,
}

impl Occupancy {
    pub(super) fn book(&mut self, interval: u64, bytes: u64, priority: Priority) {
        let booked = &mut self.0.entry(interval).or_default()[priority as usize];
        *booked = booked.saturating_add(bytes);
    }

    pub(super) fn cancel(&mut self, interval: u64, bytes: u64, priority: Priority) {
        if let Some(all) = self.0.get_mut(&interval) {
            let booked = &mut all[priority as usize];
            *booked = booked.saturating_sub(bytes);
            if *all == Bytes::default() {
                self.0.remove(&interval);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All bytes, however urgent.
    pub(super) fn total(&self) -> u64 {
        self.0.values().flatten().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The bytes of each interval that are not less urgent (SABR's applicable backlog).
    fn applicable(&self, priority: Priority) -> impl Iterator<Item = (u64, u64)> {
        let bytes =
            move |all: &Bytes| all[priority as usize..].iter().fold(0, |a: u64, b| a.saturating_add(*b));
        self.0.iter().map(move |(interval, all)| (*interval, bytes(all)))
    }
}

impl Opportunity {
    /// What a bundle that is ready at `ready`, in `interval`, meets in a contact of this length. The sender has
    /// nothing to do until `idle_until`, and from then on sends in the order in which bundles are ready.
    pub(super) fn of(
        booked: Option<&Occupancy>,
        (ready, interval, width): (Duration, u64, Duration),
        idle_until: Duration,
        (length, rate): (Duration, Rate),
        priority: Priority,
    ) -> Self {
        let mut it = Self { base: idle_until, before: 0, after: 0, length, rate };
        for (booked_in, bytes) in booked.into_iter().flat_map(|booked| booked.applicable(priority)) {
            if booked_in > interval {
                it.after = it.after.saturating_add(bytes);
                continue;
            }
            let nanos = width.as_nanos().saturating_mul(u128::from(booked_in));
            it.wait(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
            it.before = it.before.saturating_add(bytes);
        }
        it.wait(ready);
        it
    }

    /// The sender is idle until then, unless it is busy for longer.
    fn wait(&mut self, until: Duration) {
        if until > self.base + self.rate.time_for(self.before) {
            (self.base, self.before) = (until, 0);
        }
    }

    fn left(&self) -> Duration {
        self.length.saturating_sub(self.base)
    }

    /// When a bundle of `len` bytes has been sent: its earliest transmission opportunity and the transmission
    /// itself. `None` if it does not fit together with all that is not less urgent.
    pub(super) fn sent(&self, len: u64) -> Option<Duration> {
        let with = self.before.saturating_add(len);
        let all = self.rate.time_for(with.saturating_add(self.after));
        // An empty bundle, too, has to be sent within the contact.
        (self.base < self.length && all <= self.left()).then(|| self.base + self.rate.time_for(with))
    }

    /// How many bytes fit.
    pub(super) fn room(&self) -> u64 {
        self.rate.bytes_in(self.left()).saturating_sub(self.before.saturating_add(self.after))
    }
}

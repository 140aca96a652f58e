use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bentpipe_units::Time;

/// Outages that are commanded while the link runs, beside those of its configuration.
///
/// The rule is that of the model: a packet is lost if the outage covers the moment when its last bit leaves
/// the transmitter. For a queued packet that moment is in the future, and an outage may be commanded before
/// it comes. Therefore the forwarder asks when the packet would arrive.
#[derive(Debug, Default)]
pub(crate) struct CommandedOutages {
    /// True once there has been one: until then no packet takes the lock.
    any: AtomicBool,
    /// Starts and ends in order; only the last may be open.
    outages: Mutex<Vec<(Time, Option<Time>)>>,
}

impl CommandedOutages {
    /// Begins an outage at `now`, or ends the present one. Repeating a command changes nothing.
    pub(crate) fn set(&self, on: bool, now: Time) {
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        match outages.last_mut() {
            Some((_, end @ None)) if !on => *end = Some(now),
            Some((_, None)) => {}
            _ if on => outages.push((now, None)),
            _ => {}
        }
        self.any.store(!outages.is_empty(), Ordering::Release);
    }

    /// True if a packet whose last bit left at `departure` is lost.
    pub(crate) fn cover(&self, departure: Time) -> bool {
        self.any.load(Ordering::Acquire)
            && self
                .outages
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .rev()
                .any(|&(start, end)| start <= departure && end.is_none_or(|end| departure < end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn an_outage_includes_its_start_and_excludes_its_end() {
        let outages = CommandedOutages::default();
        outages.set(true, at(10));
        assert!(!outages.cover(at(9)) && outages.cover(at(10)) && outages.cover(at(1000)));
        outages.set(false, at(20));
        assert!(outages.cover(at(19)) && !outages.cover(at(20)));
    }

    #[test]
    fn a_repeated_command_counts_once() {
        let outages = CommandedOutages::default();
        outages.set(false, at(1));
        outages.set(true, at(10));
        outages.set(true, at(15));
        outages.set(false, at(20));
        outages.set(false, at(30));
        assert!(outages.cover(at(12)) && !outages.cover(at(25)));
    }

    #[test]
    fn an_earlier_outage_is_remembered_for_packets_still_in_flight() {
        let outages = CommandedOutages::default();
        for (start, end) in [(10, 20), (30, 40)] {
            outages.set(true, at(start));
            outages.set(false, at(end));
        }
        assert_eq!([15, 25, 35, 45].map(|t| outages.cover(at(t))), [true, false, true, false]);
    }
}

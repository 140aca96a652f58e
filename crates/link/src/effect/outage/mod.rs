//! Outages: while the sky is obstructed, every packet that is sent is lost.

mod trace_file;

use std::time::Duration;

use bentpipe_units::Time;

use super::{Effect, Transit};
use crate::Cause;

pub use trace_file::TraceError;

/// The outages of a link, known beforehand: tunnels on a railway, eclipses, scheduled hand-overs.
///
/// Outages are sorted and apart: rows that overlap or touch are one outage, a row of length zero is none.
/// Each begins at its start and ends just before its start plus its duration. After the last one the sky
/// stays clear: a trace does not repeat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutageTrace {
    /// Starts and ends, half-open, sorted and disjoint.
    outages: Vec<(Time, Time)>,
}

impl OutageTrace {
    /// Clear sky for ever.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads a trace in seconds: a header that begins with `start_s,duration_s`, then one outage in each
    /// line.
    ///
    /// Further columns, blank lines, lines that begin with `#` and carriage returns are ignored; rows may be
    /// in any order. Numbers lie between 0 and 10⁹ seconds.
    ///
    /// # Errors
    /// A header or a number that is not as described, with its line and column.
    pub fn from_csv(text: &str) -> Result<Self, TraceError> {
        trace_file::read_times(text)
    }

    /// Reads a trace in kilometres along a line that is travelled at `speed_kmh` kilometres per hour: a
    /// header that begins with `start_km,length_km`, then as for [`from_csv`](Self::from_csv).
    ///
    /// An outage starts after 3600·`start_km`/`speed_kmh` seconds and lasts 3600·`length_km`/`speed_kmh`.
    ///
    /// # Errors
    /// A speed that is not above zero; a header or a number that is not as described, with its line and
    /// column.
    pub fn from_railway_csv(text: &str, speed_kmh: f64) -> Result<Self, TraceError> {
        trace_file::read_railway(text, speed_kmh)
    }

    /// Whether `t` lies in an outage.
    pub fn covers(&self, t: Time) -> bool {
        let next = self.outages.partition_point(|&(start, _)| start <= t);
        next > 0 && t < self.outages[next - 1].1
    }

    /// Start and duration of each outage, in order.
    pub fn outages(&self) -> impl ExactSizeIterator<Item = (Time, Duration)> + '_ {
        self.outages.iter().map(|&(start, end)| (start, end - start))
    }

    /// The time spent in outages.
    pub fn total(&self) -> Duration {
        self.outages().map(|(_, duration)| duration).sum()
    }

    /// Whether there is no outage at all.
    pub fn is_empty(&self) -> bool {
        self.outages.is_empty()
    }
}

/// The outages of a direction, whose packets leave in order: the search goes on where it ended.
#[derive(Debug)]
pub(crate) struct Outages {
    trace: OutageTrace,
    /// The first outage that had not ended when the last packet left.
    next: usize,
}

impl Outages {
    pub(crate) fn new(trace: OutageTrace) -> Self {
        Self { trace, next: 0 }
    }
}

impl Effect for Outages {
    #[inline]
    fn apply(&mut self, packet: &mut Transit) {
        let outages = &self.trace.outages;
        while outages.get(self.next).is_some_and(|&(_, end)| end <= packet.departure) {
            self.next += 1;
        }
        if outages.get(self.next).is_some_and(|&(start, _)| start <= packet.departure) {
            packet.lose(Cause::Outage);
        }
    }
}

/// Starts and durations, in any order.
impl FromIterator<(Time, Duration)> for OutageTrace {
    fn from_iter<I: IntoIterator<Item = (Time, Duration)>>(rows: I) -> Self {
        let mut rows: Vec<_> = rows.into_iter().map(|(start, duration)| (start, start + duration)).collect();
        rows.sort_unstable();
        let mut outages: Vec<(Time, Time)> = Vec::with_capacity(rows.len());
        for (start, end) in rows.into_iter().filter(|(start, end)| start < end) {
            match outages.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => outages.push((start, end)),
            }
        }
        Self { outages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(rows: &[(u64, u64)]) -> OutageTrace {
        rows.iter().map(|&(s, d)| (Time::ZERO + Duration::from_secs(s), Duration::from_secs(d))).collect()
    }

    #[test]
    fn an_outage_covers_its_start_and_not_its_end() {
        let trace = seconds(&[(10, 5)]);
        let (start, end) = (10_000_000_000, 15_000_000_000);
        let covered = [start - 1, start, end - 1, end].map(|nanos| trace.covers(Time::from_nanos(nanos)));
        assert_eq!(covered, [false, true, true, false]);
    }

    #[test]
    fn rows_that_overlap_or_touch_are_one_outage() {
        assert_eq!(seconds(&[(20, 5), (0, 10), (5, 2), (10, 3)]), seconds(&[(0, 13), (20, 5)]));
        assert_eq!(seconds(&[(20, 5), (0, 13)]).total(), Duration::from_secs(18));
    }

    #[test]
    fn clear_sky_covers_nothing() {
        assert!(OutageTrace::none().is_empty());
        assert!(!OutageTrace::none().covers(Time::ZERO));
        assert!(seconds(&[(5, 0)]).is_empty(), "a row of length zero is no outage");
        assert!(!seconds(&[(5, 1)]).covers(Time::MAX), "after the last outage the sky stays clear");
    }

    proptest! {
        #[test]
        fn a_time_is_covered_exactly_if_a_row_covers_it(rows: Vec<(u8, u8)>, t: u8) {
            let trace: OutageTrace = rows
                .iter()
                .map(|&(start, length)| (Time::from_nanos(start.into()), Duration::from_nanos(length.into())))
                .collect();
            let end = |start: u8, length: u8| u16::from(start) + u16::from(length);
            let inside = |&(start, length): &(u8, u8)| start <= t && u16::from(t) < end(start, length);
            prop_assert_eq!(trace.covers(Time::from_nanos(t.into())), rows.iter().any(inside));
        }
    }
}

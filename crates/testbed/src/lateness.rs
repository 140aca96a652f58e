use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest lateness that quantiles tell apart.
const LONGEST: Duration = Duration::from_millis(20);

/// How late packets were, recorded by a forwarder and read by any thread.
#[derive(Debug)]
pub(crate) struct Lateness(Mutex<Recorded>);

#[derive(Debug)]
struct Recorded {
    /// Microseconds, exact up to 2 ms and to one part in a thousand above.
    histogram: Histogram<u32>,
    max: Duration,
}

/// How much later than in the model packets were written, to the microsecond below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatenessSummary {
    /// Packets measured.
    pub packets: u64,
    /// Half of the packets were at most this late.
    pub p50: Duration,
    /// 99 in 100 were at most this late; saturates at 20 ms.
    pub p99: Duration,
    /// The latest of all.
    pub max: Duration,
}

impl Lateness {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, micros(LONGEST), 3).expect("the bounds are valid");
        Self(Mutex::new(Recorded { histogram, max: Duration::ZERO }))
    }

    pub(crate) fn record(&self, late: Duration) {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.histogram.saturating_record(micros(late));
        recorded.max = recorded.max.max(late);
    }

    pub(crate) fn summary(&self) -> LatenessSummary {
        let recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let quantile = |q| Duration::from_micros(recorded.histogram.value_at_quantile(q)).min(LONGEST);
        LatenessSummary {
            packets: recorded.histogram.len(),
            p50: quantile(0.50),
            p99: quantile(0.99),
            max: recorded.max,
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_recorded_values() {
        let lateness = Lateness::new();
        for micros in 1..=100 {
            lateness.record(Duration::from_micros(micros));
        }
        let summary = lateness.summary();
        assert_eq!((summary.packets, summary.p50.as_micros(), summary.p99.as_micros()), (100, 50, 99));
        assert_eq!(summary.max, Duration::from_micros(100));
    }

    #[test]
    fn the_maximum_is_exact_beyond_the_last_bucket() {
        let lateness = Lateness::new();
        lateness.record(Duration::from_millis(123));
        assert_eq!(lateness.summary().max, Duration::from_millis(123));
    }

    #[test]
    fn without_records_the_summary_is_empty() {
        assert_eq!(Lateness::new().summary(), LatenessSummary::default());
    }
}

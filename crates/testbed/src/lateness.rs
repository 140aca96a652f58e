use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of one microsecond; what is later is in the last one, and in the maximum.
const BUCKETS: usize = 20_000;

/// How late packets were, written by a driver thread without locks and read by anyone.
#[derive(Debug)]
pub(crate) struct Lateness {
    buckets: Box<[AtomicU32]>,
    max_nanos: AtomicU64,
}

/// How much later than the model said packets were written, to the microsecond below.
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
        Self { buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(), max_nanos: AtomicU64::new(0) }
    }

    pub(crate) fn record(&self, late: Duration) {
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let bucket = usize::try_from(nanos / 1000).unwrap_or(usize::MAX).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.max_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(crate) fn summary(&self) -> LatenessSummary {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Ordering::Relaxed).into()).collect();
        let packets = counts.iter().sum();
        LatenessSummary {
            packets,
            p50: quantile(&counts, packets, 50),
            p99: quantile(&counts, packets, 99),
            max: Duration::from_nanos(self.max_nanos.load(Ordering::Relaxed)),
        }
    }
}

fn quantile(counts: &[u64], packets: u64, percent: u64) -> Duration {
    let rank = (packets * percent).div_ceil(100);
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    });
    Duration::from_micros(bucket.unwrap_or(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
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
    fn nothing_recorded_is_no_lateness() {
        assert_eq!(Lateness::new().summary(), LatenessSummary::default());
    }
}

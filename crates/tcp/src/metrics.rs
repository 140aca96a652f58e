//! What is remembered of a destination from one connection to the next (Linux' `tcp_metrics`; RFC 9040).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::congestion::NO_SSTHRESH;
use crate::state::Variables;

/// Which metrics of earlier connections to the same destination a connection begins with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MetricsCache {
    /// None (`tcp_no_metrics_save` of 1).
    #[default]
    Off,
    /// The round trip, for the first timeout: what Linux does.
    RoundTrip,
    /// The slow-start threshold as well (`tcp_no_ssthresh_metrics_save` of 0).
    RoundTripAndSsthresh,
}

impl MetricsCache {
    const ALL: [MetricsCache; 3] =
        [MetricsCache::Off, MetricsCache::RoundTrip, MetricsCache::RoundTripAndSsthresh];

    fn name(self) -> &'static str {
        match self {
            MetricsCache::Off => "off",
            MetricsCache::RoundTrip => "rtt",
            MetricsCache::RoundTripAndSsthresh => "rtt-and-ssthresh",
        }
    }
}

impl fmt::Display for MetricsCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no choice has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a cache of metrics: choose off, rtt or rtt-and-ssthresh")]
pub struct UnknownMetricsCache(String);

impl FromStr for MetricsCache {
    type Err = UnknownMetricsCache;

    fn from_str(name: &str) -> Result<Self, UnknownMetricsCache> {
        let found = Self::ALL.into_iter().find(|choice| choice.name() == name);
        found.ok_or_else(|| UnknownMetricsCache(name.to_owned()))
    }
}

/// The metrics of a destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metrics {
    /// The smoothed round-trip time; `None` before the first connection.
    pub srtt: Option<Duration>,
    /// The slow-start threshold, bytes; `None` if no connection has found one.
    pub ssthresh: Option<u64>,
}

impl Metrics {
    /// A connection has ended with these variables. A longer round trip is taken over, a shorter one by an
    /// eighth.
    pub fn learn(&mut self, end: &Variables) {
        if !end.srtt.is_zero() {
            self.srtt = Some(match self.srtt {
                Some(known) if end.srtt < known => known - (known - end.srtt) / 8,
                _ => end.srtt,
            });
        }
        let is_beyond_slow_start = end.ssthresh != NO_SSTHRESH && end.cwnd > end.ssthresh;
        self.ssthresh = match self.ssthresh {
            _ if is_beyond_slow_start && !end.recovering => Some((end.cwnd / 2).max(end.ssthresh)),
            Some(known) if end.ssthresh == NO_SSTHRESH => Some(known.max(end.cwnd / 2)),
            Some(known) => Some(known.max(end.ssthresh)),
            None => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(srtt: u64, cwnd: u64, ssthresh: u64) -> Variables {
        Variables {
            cwnd,
            ssthresh,
            srtt: Duration::from_millis(srtt),
            rttvar: Duration::ZERO,
            min_rtt: Duration::ZERO,
            rto: Duration::from_secs(1),
            backoff: 0,
            in_flight: 0,
            recovering: false,
        }
    }

    #[test]
    fn a_name_reads_back_and_an_unknown_one_is_answered_with_all() {
        for choice in MetricsCache::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
            assert!("on".parse::<MetricsCache>().unwrap_err().to_string().contains(choice.name()));
        }
    }

    #[test]
    fn a_longer_round_trip_is_taken_over_and_a_shorter_one_by_an_eighth() {
        let mut metrics = Metrics::default();
        metrics.learn(&end(0, 10, NO_SSTHRESH));
        assert_eq!(metrics.srtt, None);
        for (srtt, expected) in [(100, 100), (180, 180), (100, 170)] {
            metrics.learn(&end(srtt, 10, NO_SSTHRESH));
            assert_eq!(metrics.srtt, Some(Duration::from_millis(expected)));
        }
    }

    #[test]
    fn a_threshold_is_that_of_a_connection_that_has_left_slow_start() {
        let mut metrics = Metrics::default();
        metrics.learn(&end(100, 90_000, NO_SSTHRESH));
        assert_eq!(metrics.ssthresh, None, "slow start did not end");
        metrics.learn(&end(100, 90_000, 40_000));
        assert_eq!(metrics.ssthresh, Some(45_000));
        metrics.learn(&end(100, 100_000, NO_SSTHRESH));
        assert_eq!(metrics.ssthresh, Some(50_000), "it was too small");
        metrics.learn(&end(100, 10_000, 30_000));
        assert_eq!(metrics.ssthresh, Some(50_000), "in slow start again");
        metrics.learn(&Variables { recovering: true, ..end(100, 70_000, 60_000) });
        assert_eq!(metrics.ssthresh, Some(60_000));
    }
}

//! Traces made by a program, change by change.

use std::time::Duration;

use bentpipe_units::{Probability, Time};

use super::LinkTrace;

/// Collects the changes of a direction. Times are milliseconds and never decrease within a column; what lies
/// before the beginning is where the trace begins.
///
/// Values are rounded to what their text holds without loss and no measurement resolves: the rate to 1
/// kbit/s, the delay to 1 µs, the packet error rate to 10⁻⁷.
#[derive(Debug, Clone, Default)]
pub(crate) struct TraceBuilder(LinkTrace);

impl TraceBuilder {
    /// The rate from then on, bits per second; below 1 kbit/s it is a pause.
    pub(crate) fn rate(&mut self, at_ms: i64, bps: f64) {
        // `as` saturates.
        set(&mut self.0.rates, at_ms, (bps / 1e3).round() as u64 * 1000);
    }

    /// The one-way delay from then on, seconds.
    pub(crate) fn delay(&mut self, at_ms: i64, seconds: f64) {
        set(&mut self.0.delays, at_ms, Duration::from_micros((seconds * 1e6).round() as u64));
    }

    /// The packet error rate from then on; a value beyond a probability's range is the end of the range.
    pub(crate) fn per(&mut self, at_ms: i64, per: f64) {
        let rounded = (per.clamp(0.0, 1.0) * 1e7).round() / 1e7;
        set(&mut self.0.error_rates, at_ms, Probability::new(rounded).expect("it is clamped"));
    }

    /// The trace of what has changed before `period`; it begins anew then.
    pub(crate) fn repeating(self, period: Duration) -> LinkTrace {
        let end = Time::ZERO + period;
        let LinkTrace { mut rates, mut delays, mut error_rates, .. } = self.0;
        rates.retain(|(at, _)| *at < end);
        delays.retain(|(at, _)| *at < end);
        error_rates.retain(|(at, _)| *at < end);
        LinkTrace { rates, delays, error_rates, period: Some(period) }
    }
}

fn set<T: PartialEq>(column: &mut Vec<(Time, T)>, at_ms: i64, value: T) {
    let at = Time::ZERO + Duration::from_millis(at_ms.try_into().unwrap_or(0));
    match column.last_mut() {
        Some((last, earlier)) if *last == at => *earlier = value,
        Some((_, same)) if *same == value => {}
        _ => column.push((at, value)),
    }
}

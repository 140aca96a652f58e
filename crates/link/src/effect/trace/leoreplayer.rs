//! Delays in the format of LeoReplayer.

use std::time::Duration;

use bentpipe_units::Time;

use super::{LinkTrace, LinkTraceError};

/// The time of a line.
const INTERVAL: Duration = Duration::from_millis(10);
/// The longest delay that is read, milliseconds: more is no delay of a link.
const MAX_DELAY_MS: f64 = 1e6;

pub(super) fn add_delays(trace: LinkTrace, text: &str) -> Result<LinkTrace, LinkTraceError> {
    let lines = text.trim_end().lines().enumerate();
    let delays: Vec<Duration> =
        lines.map(|(index, line)| delay(index + 1, line.trim())).collect::<Result<_, _>>()?;
    if delays.is_empty() {
        let why = "the delays are empty: their lines are delays in milliseconds, one for each 10 ms";
        return Err(LinkTraceError(why.into()));
    }
    let own = INTERVAL * u32::try_from(delays.len()).unwrap_or(u32::MAX);
    let period = trace.period.unwrap_or(own);
    let intervals = period.as_nanos().div_ceil(INTERVAL.as_nanos()) as usize;
    let mut changes: Vec<(Time, Duration)> = Vec::new();
    for (index, &delay) in delays.iter().cycle().take(intervals).enumerate() {
        if changes.last().is_none_or(|(_, before)| *before != delay) {
            let at = INTERVAL.saturating_mul(u32::try_from(index).unwrap_or(u32::MAX));
            changes.push((Time::ZERO + at, delay));
        }
    }
    Ok(LinkTrace { delays: changes, period: Some(period), ..trace })
}

fn delay(line: usize, text: &str) -> Result<Duration, LinkTraceError> {
    match text.parse::<f64>() {
        Ok(millis) if (0.0..=MAX_DELAY_MS).contains(&millis) => {
            Ok(Duration::from_micros((millis * 1e3).round() as u64))
        }
        _ => Err(LinkTraceError(format!(
            "line {line} of the delays, \"{text}\", is not a delay in milliseconds between 0 and 10^6"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn delays_at(trace: &LinkTrace, millis: &[u64]) -> Vec<u128> {
        let mut delays = trace.delays(Duration::ZERO).unwrap();
        millis.iter().map(|ms| delays.at(ms * 1_000_000).as_millis()).collect()
    }

    #[test]
    fn a_delay_holds_for_ten_milliseconds_and_all_begin_anew_with_the_rates() {
        // As its documentation describes them: 12 Mbit/s for each opportunity of a millisecond.
        let rates = LinkTrace::from_mahimahi("0\n1\n1\n1\n40\n").unwrap();
        let trace = rates.clone().with_leoreplayer_delays("24\n18\n18\n30\n99\n").unwrap();
        assert_eq!(delays_at(&trace, &[0, 9, 10, 29, 30, 39, 40, 55]), [24, 24, 18, 18, 30, 30, 24, 18]);
        assert_eq!(trace.clone().without_delays(), rates);
        let short = rates.with_leoreplayer_delays("24\n18").unwrap();
        assert_eq!(delays_at(&short, &[0, 10, 20, 30, 40]), [24, 18, 24, 18, 24]);
    }

    #[test]
    fn delays_alone_begin_anew_after_the_last_one() {
        let trace = LinkTrace::default().with_leoreplayer_delays("24\n18\n").unwrap();
        assert_eq!(delays_at(&trace, &[0, 10, 20, 35]), [24, 18, 24, 18]);
    }

    #[test]
    fn mistakes_are_named_by_line() {
        let error = |text| LinkTrace::default().with_leoreplayer_delays(text).unwrap_err().to_string();
        assert!(error("24\n\n18\n").contains("line 2"));
        assert!(error("24\nlong\n").contains("line 2 of the delays, \"long\""));
        assert!(error("-1\n").contains("line 1") && error("nan\n").contains("line 1"));
        assert!(error("\n").contains("empty"));
    }
    proptest! {
        #[test]
        fn any_text_is_delays_or_an_error(text in "\\PC*", lines in "([0-9.e-]{0,4}\n)*") {
            let _ = LinkTrace::default().with_leoreplayer_delays(&text);
            let _ = LinkTrace::default().with_leoreplayer_delays(&lines);
        }
    }
}

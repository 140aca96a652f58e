//! Outage traces as text: two columns of numbers, comments, nothing else.

use std::time::Duration;

use bentpipe_units::Time;
use csv::StringRecord;

use super::OutageTrace;
use crate::effect::csv_lines::records;

/// An outage trace that could not be read: what is wrong, in which line and column, and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TraceError(String);

/// A kind of trace: the names of its two columns, the length of one unit in seconds, and which numbers are
/// accepted.
struct Format {
    columns: [&'static str; 2],
    seconds_per_unit: f64,
    accepted: &'static str,
}

/// 31 years. No experiment takes longer, and every sum still fits a [`Time`].
const MAX_SECONDS: f64 = 1e9;

pub(super) fn read_times(text: &str) -> Result<OutageTrace, TraceError> {
    let format = Format {
        columns: ["start_s", "duration_s"],
        seconds_per_unit: 1.0,
        accepted: "a number of seconds between 0 and 10^9",
    };
    format.read(text)
}

pub(super) fn read_railway(text: &str, speed_kmh: f64) -> Result<OutageTrace, TraceError> {
    if !(speed_kmh.is_finite() && speed_kmh > 0.0) {
        return Err(TraceError(format!(
            "a train at {speed_kmh} km/h does not move along the outage trace: \
             give a speed above 0, for example 120"
        )));
    }
    let format = Format {
        columns: ["start_km", "length_km"],
        seconds_per_unit: 3600.0 / speed_kmh,
        accepted: "a number of kilometres, 0 or more, that the train travels in 10^9 seconds",
    };
    format.read(text)
}

impl Format {
    fn read(&self, text: &str) -> Result<OutageTrace, TraceError> {
        let mut records = records(text);
        let expected = self.header();
        let (line, header) = records.next().ok_or_else(|| {
            TraceError(format!("the outage trace is empty: its first line must be the header \"{expected}\""))
        })?;
        if !self.columns.iter().enumerate().all(|(index, &column)| header.get(index) == Some(column)) {
            let found = header.iter().collect::<Vec<_>>().join(",");
            return Err(TraceError(format!(
                "line {line} of the outage trace, \"{found}\", is not its header: begin with \"{expected}\""
            )));
        }
        records.map(|(line, row)| self.read_row(line, &row)).collect()
    }

    fn header(&self) -> String {
        self.columns.join(",")
    }

    fn read_row(&self, line: usize, row: &StringRecord) -> Result<(Time, Duration), TraceError> {
        let [start, duration] =
            [0, 1].map(|index| self.read_field(line, self.columns[index], row.get(index)));
        Ok((Time::ZERO + start?, duration?))
    }

    fn read_field(
        &self,
        line: usize,
        column: &'static str,
        field: Option<&str>,
    ) -> Result<Duration, TraceError> {
        let missing = || {
            let expected = self.header();
            TraceError(format!(
                "line {line} of the outage trace has no column {column}: write a line as \"{expected}\""
            ))
        };
        let field = field.ok_or_else(missing)?;
        let seconds = field.parse::<f64>().unwrap_or(f64::NAN) * self.seconds_per_unit;
        if !(0.0..=MAX_SECONDS).contains(&seconds) {
            let accepted = self.accepted;
            return Err(TraceError(format!(
                "line {line}, column {column} of the outage trace: \"{field}\" is not {accepted}"
            )));
        }
        Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIRETTISSIMA: &str = include_str!("../../../../../data/direttissima.csv");

    fn rows(trace: &OutageTrace) -> Vec<(f64, f64)> {
        trace.outages().map(|(start, duration)| (start.as_secs_f64(), duration.as_secs_f64())).collect()
    }

    fn error_of(text: &str) -> String {
        OutageTrace::from_csv(text).unwrap_err().to_string()
    }

    #[test]
    fn comments_blank_lines_carriage_returns_and_order_do_not_matter() {
        let text =
            "\u{feff}# two outages\r\n\r\nstart_s, duration_s\r\n 30,1.5 \r\n# earlier\r\n10,5\r\n\r\n";
        assert_eq!(rows(&OutageTrace::from_csv(text).unwrap()), [(10.0, 5.0), (30.0, 1.5)]);
    }

    #[test]
    fn columns_behind_the_second_are_ignored() {
        let text = "start_s,duration_s,name\n1,2,a tunnel, with a comma\n";
        assert_eq!(rows(&OutageTrace::from_csv(text).unwrap()), [(1.0, 2.0)]);
    }

    #[test]
    fn kilometres_become_seconds_at_the_speed_of_the_train() {
        let trace = OutageTrace::from_railway_csv("start_km,length_km\n41.8,18.507\n", 60.0).unwrap();
        assert_eq!(rows(&trace), [(2508.0, 1110.42)]);
    }

    #[test]
    fn the_direttissima_has_33_tunnels_over_39_percent_of_96_km() {
        let trace = OutageTrace::from_railway_csv(DIRETTISSIMA, 120.0).unwrap();
        assert_eq!(trace.outages().len(), 33);
        let tunnel_km = trace.total().as_secs_f64() * 120.0 / 3600.0;
        assert!((tunnel_km - 37.4).abs() < 0.01, "{tunnel_km} km");
        let longest = trace.outages().map(|(_, duration)| duration).max().unwrap();
        assert_eq!(longest, Duration::from_millis(555_210), "18.507 km at 120 km/h");
    }

    #[test]
    fn a_trace_without_a_header_is_refused() {
        assert!(error_of("# nothing\n").contains("is empty"));
        assert!(error_of("1,2\n").contains("line 1") && error_of("1,2\n").contains("start_s,duration_s"));
        assert!(error_of("start_s,length_s\n").contains("not its header"));
        let railway = error_of(DIRETTISSIMA);
        assert!(railway.contains("line 6") && railway.contains("start_km"), "{railway}");
    }

    #[test]
    fn a_bad_number_is_named_by_line_and_column() {
        for field in ["", "-1", "NaN", "inf", "1e10", "ten", "1;2", "\"1\""] {
            let error = error_of(&format!("start_s,duration_s\n1,2\n3,{field}\n"));
            assert!(error.contains("line 3, column duration_s"), "{error}");
            assert!(error.contains("seconds between 0 and 10^9"), "{error}");
        }
        assert!(error_of("start_s,duration_s\n-1,2\n").contains("line 2, column start_s"));
    }

    #[test]
    fn a_missing_column_is_named() {
        let error = error_of("start_s,duration_s\n5\n");
        assert!(error.contains("line 2") && error.contains("duration_s"), "{error}");
    }

    #[test]
    fn a_train_must_move() {
        for speed in [0.0, -120.0, f64::NAN, f64::INFINITY] {
            let error = OutageTrace::from_railway_csv(DIRETTISSIMA, speed).unwrap_err().to_string();
            assert!(error.contains("does not move"), "{error}");
        }
    }

    #[test]
    fn a_train_too_slow_for_the_trace_is_refused_by_its_first_tunnel() {
        let error = OutageTrace::from_railway_csv(DIRETTISSIMA, 1e-9).unwrap_err().to_string();
        assert!(error.contains("line 7, column start_km"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_trace_or_an_error(text in "\\PC*", speed: f64) {
            let _ = OutageTrace::from_csv(&text);
            let _ = OutageTrace::from_railway_csv(&text, speed);
        }

        #[test]
        fn anything_below_a_header_is_a_trace_or_an_error(
            body in "([0-9eE.,+\\-#\r\n ]|NaN|inf)*",
            speed in 1e-300..1e300,
        ) {
            let _ = OutageTrace::from_csv(&format!("start_s,duration_s\n{body}"));
            let _ = OutageTrace::from_railway_csv(&format!("start_km,length_km\n{body}"), speed);
        }

        #[test]
        fn written_values_are_read_back(rows in prop::collection::vec((0u32..1_000_000, 1u32..1_000_000), 0..50)) {
            let seconds = |ms: u32| f64::from(ms) / 1e3;
            let span = |ms: u32| Duration::from_millis(ms.into());
            let text: String = rows.iter().map(|&(s, d)| format!("{},{}\n", seconds(s), seconds(d))).collect();
            let expected: OutageTrace = rows.iter().map(|&(s, d)| (Time::ZERO + span(s), span(d))).collect();
            prop_assert_eq!(OutageTrace::from_csv(&format!("start_s,duration_s\n{text}")).unwrap(), expected);
        }
    }
}

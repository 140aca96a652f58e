//! Link traces as text.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::str::FromStr;
use std::time::Duration;

use bentpipe_units::{Probability, Rate, Span, Time};

use super::LinkTrace;
use crate::effect::csv_lines::records;

/// A link trace that could not be read: what is wrong, in which line and column, and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LinkTraceError(pub(super) String);

const HEADER: &str = "at_s,rate,delay,per";
const REPEAT: &str = "repeat";
/// 31 years.
const MAX_SECONDS: f64 = 1e9;
/// What mahimahi delivers at a time, in bits.
const OPPORTUNITY_BITS: u64 = 1500 * 8;
const MILLI: u64 = 1_000_000;

/// A column behind the first.
#[derive(Clone, Copy)]
enum Column {
    Rate,
    Delay,
    Per,
}

pub(super) fn read_csv(text: &str) -> Result<LinkTrace, LinkTraceError> {
    let mut records = records(text);
    let Some((line, header)) = records.next() else {
        return Err(LinkTraceError(format!("the link trace is empty: its first line must be \"{HEADER}\"")));
    };
    let columns = columns(line, header.iter())?;
    let mut trace = LinkTrace::default();
    let mut latest = None;
    for (line, row) in records {
        if trace.period.is_some() {
            return Err(LinkTraceError(format!(
                "line {line} of the link trace is behind its end, \"{REPEAT}\""
            )));
        }
        let at = seconds(line, row.get(0).unwrap_or_default())?;
        if latest.is_some_and(|latest| at <= latest) {
            let found = row.get(0).unwrap_or_default();
            return Err(LinkTraceError(format!(
                "line {line} of the link trace: at_s is {found}, but times must grow from line to line"
            )));
        }
        latest = Some(at);
        if row.get(1) == Some(REPEAT) {
            trace.period = Some(at.since(Time::ZERO));
            continue;
        }
        for (index, column) in columns.iter().enumerate() {
            let field = row.get(index + 1).unwrap_or_default();
            if !field.is_empty() {
                trace.add(line, at, *column, field)?;
            }
        }
    }
    let ends_with_a_pause = trace.period.is_none() && trace.rates.last().is_some_and(|&(_, rate)| rate == 0);
    let is_a_pause = !trace.rates.is_empty() && trace.rates.iter().all(|&(_, rate)| rate == 0);
    if ends_with_a_pause || is_a_pause {
        return Err(LinkTraceError(format!(
            "the link trace ends with a rate of 0, for ever: end it with another rate, or with the line \
             \"SECONDS,{REPEAT}\""
        )));
    }
    Ok(trace)
}

impl LinkTrace {
    fn add(&mut self, line: usize, at: Time, column: Column, field: &str) -> Result<(), LinkTraceError> {
        match column {
            Column::Rate if field == "0" => self.rates.push((at, 0)),
            Column::Rate => self.rates.push((at, value::<Rate>(line, "rate", field)?.bps())),
            Column::Delay => self.delays.push((at, value::<Span>(line, "delay", field)?.get())),
            Column::Per => self.error_rates.push((at, value::<Probability>(line, "per", field)?)),
        }
        Ok(())
    }
}

pub(super) fn write_csv(trace: &LinkTrace) -> String {
    let mut rows: BTreeMap<Time, [String; 3]> = BTreeMap::new();
    for &(at, rate) in &trace.rates {
        // A rate of zero is the pause.
        rows.entry(at).or_default()[0] = Rate::from_bps(rate).map_or("0".into(), |rate| rate.to_string());
    }
    for &(at, delay) in &trace.delays {
        rows.entry(at).or_default()[1] = Span::from(delay).to_string();
    }
    for &(at, per) in &trace.error_rates {
        rows.entry(at).or_default()[2] = per.to_string();
    }
    let mut text = format!("{HEADER}\n");
    for (at, fields) in rows {
        let _ = writeln!(text, "{},{}", at.as_secs_f64(), fields.join(","));
    }
    if let Some(period) = trace.period {
        let _ = writeln!(text, "{},{REPEAT}", period.as_secs_f64());
    }
    text
}

fn columns<'a>(line: usize, mut names: impl Iterator<Item = &'a str>) -> Result<Vec<Column>, LinkTraceError> {
    let wrong = |found: &str| {
        LinkTraceError(format!(
            "line {line} of the link trace, its header, has \"{found}\": write \"{HEADER}\", or leave columns \
             behind the first one out"
        ))
    };
    match names.next() {
        Some("at_s") => {}
        found => return Err(wrong(found.unwrap_or_default())),
    }
    let column = |name| match name {
        "rate" => Ok(Column::Rate),
        "delay" => Ok(Column::Delay),
        "per" => Ok(Column::Per),
        _ => Err(wrong(name)),
    };
    let columns: Vec<Column> = names.map(column).collect::<Result<_, _>>()?;
    if columns.is_empty() { Err(wrong("at_s")) } else { Ok(columns) }
}

fn seconds(line: usize, field: &str) -> Result<Time, LinkTraceError> {
    let seconds = field.parse::<f64>().unwrap_or(f64::NAN);
    if !(0.0..=MAX_SECONDS).contains(&seconds) {
        return Err(LinkTraceError(format!(
            "line {line}, column at_s of the link trace: \"{field}\" is not a number of seconds between 0 and 10^9"
        )));
    }
    Ok(Time::ZERO + Duration::from_nanos((seconds * 1e9).round() as u64))
}

fn value<T: FromStr<Err: Display>>(line: usize, column: &str, field: &str) -> Result<T, LinkTraceError> {
    field
        .parse()
        .map_err(|error| LinkTraceError(format!("line {line}, column {column} of the link trace: {error}")))
}

pub(super) fn read_mahimahi(text: &str) -> Result<LinkTrace, LinkTraceError> {
    // Opportunities of each millisecond that has some.
    let mut counts: Vec<(u64, u64)> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| {
            LinkTraceError(format!("line {} of the trace, \"{}\", {why}", number + 1, line.trim()))
        };
        let millis: u64 = line.trim().parse().map_err(|_| wrong("is not a number of milliseconds"))?;
        if millis > (MAX_SECONDS * 1e3) as u64 {
            return Err(wrong("is more than 10^9 seconds"));
        }
        // The first millisecond is the one that ends after it.
        let millis = millis.max(1);
        match counts.last_mut() {
            Some((last, _)) if *last > millis => return Err(wrong("is less than the line before it")),
            Some((last, count)) if *last == millis => *count += 1,
            _ => counts.push((millis, 1)),
        }
    }
    let Some(&(last, _)) = counts.last() else {
        return Err(LinkTraceError("the trace delivers nothing: its lines are times in milliseconds".into()));
    };
    // What is delivered at the end of a millisecond is its rate.
    let mut rates: Vec<(Time, u64)> = Vec::new();
    let mut set = |millis: u64, rate: u64| {
        if rates.last().is_none_or(|&(_, before)| before != rate) {
            rates.push((Time::from_nanos(millis * MILLI), rate));
        }
    };
    let mut free_from = 0;
    for (millis, count) in counts {
        let start = millis - 1;
        if start > free_from {
            set(free_from, 0);
        }
        set(start, count * OPPORTUNITY_BITS * 1000);
        free_from = start + 1;
    }
    Ok(LinkTrace { rates, period: Some(Duration::from_millis(last)), ..LinkTrace::default() })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use proptest::prelude::*;

    const MICROS_OF_A_DAY: u64 = 86_400_000_000;

    /// Times in microseconds, sorted, and values.
    fn column<T: Debug>(values: impl Strategy<Value = T>) -> impl Strategy<Value = BTreeMap<u64, T>> {
        prop::collection::btree_map(0..MICROS_OF_A_DAY, values, 0..8)
    }

    fn error_of(text: &str) -> String {
        LinkTrace::from_csv(text).unwrap_err().to_string()
    }

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * MILLI)
    }

    #[test]
    fn values_are_written_as_everywhere_and_empty_fields_change_nothing() {
        let text = "# rain\nat_s,rate,delay,per\n0, 50Mbit/s, 300ms,\n30,10Mbit/s,,1%\n60.5,0\n61,50M\n";
        let trace = LinkTrace::from_csv(text).unwrap();
        let rates = [(0, 50), (30_000, 10), (60_500, 0), (61_000, 50)];
        assert_eq!(trace.rates, rates.map(|(millis, mbit)| (at(millis), mbit * 1_000_000)));
        assert_eq!(trace.delays, [(at(0), Duration::from_millis(300))]);
        assert_eq!(trace.error_rates, [(at(30_000), Probability::new(0.01).unwrap())]);
        assert_eq!((trace.period, trace.highest_rate()), (None, Some(Rate::mbps(50))));
    }

    #[test]
    fn a_trace_repeats_if_it_says_so() {
        let trace = LinkTrace::from_csv("at_s,rate\n0,8M\n5,0\n15,repeat\n").unwrap();
        assert_eq!(trace.period, Some(Duration::from_secs(15)));
        // Three rounds of five seconds at a megabyte per second, the third one half.
        let bytes = trace.capacity(None, at(32_500));
        assert_eq!(bytes, Some(12_500_000));
    }

    #[test]
    fn mistakes_are_named_by_line_and_column() {
        assert!(error_of("").contains("is empty"));
        assert!(error_of("rate,at_s\n").contains("has \"rate\"") && error_of("at_s\n").contains(HEADER));
        assert!(error_of("at_s,jitter\n").contains("\"jitter\""));
        assert!(error_of("at_s,rate\n0,ten\n").contains("line 2, column rate"));
        assert!(error_of("at_s,rate\n-1,1M\n").contains("line 2, column at_s"));
        assert!(error_of("at_s,rate\n1,1M\n1,2M\n").contains("must grow"));
        assert!(error_of("at_s,rate\n0,1M\n9,repeat\n10,1M\n").contains("behind its end"));
        for pause in ["at_s,rate\n0,1M\n9,0\n", "at_s,rate\n0,0\n9,repeat\n"] {
            assert!(error_of(pause).contains("for ever"), "{pause}");
        }
    }

    #[test]
    fn opportunities_of_mahimahi_are_rates_of_their_milliseconds() {
        let trace = LinkTrace::from_mahimahi("1\n1\n2\n2\n5\n").unwrap();
        let mbit = |packets: u64| packets * 12_000_000;
        assert_eq!(trace.rates, [(at(0), mbit(2)), (at(2), 0), (at(4), mbit(1))]);
        assert_eq!(trace.period, Some(Duration::from_millis(5)));
        assert_eq!(trace.capacity(None, at(5)), Some(5 * 1500));
        assert_eq!(trace.capacity(None, at(50)), Some(50 * 1500));
        for (text, why) in [("1\nx\n", "line 2"), ("2\n1\n", "less than"), ("", "nothing")] {
            let error = LinkTrace::from_mahimahi(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_trace_or_an_error(text in "\\PC*", body in "([0-9.,%msMkbit/\n ]|repeat)*") {
            let _ = LinkTrace::from_csv(&text);
            let _ = LinkTrace::from_csv(&format!("at_s,rate,delay,per\n{body}"));
            let _ = LinkTrace::from_mahimahi(&body);
        }

        #[test]
        fn what_is_written_reads_back(
            rates in column(0u64..1_000_000_000),
            delays in column(0u64..2_000_000_000),
            error_rates in column(0u32..=1000),
            repeats: bool,
        ) {
            let nanos = |micros: u64| Time::from_nanos(1000 * micros);
            let mut rates: Vec<_> = rates.into_iter().map(|(at, rate)| (nanos(at), rate)).collect();
            rates.push((nanos(MICROS_OF_A_DAY), 1_000_000));
            let delay = |(at, delay)| (nanos(at), Duration::from_nanos(delay));
            let per = |(at, per): (u64, u32)| (nanos(at), Probability::new(f64::from(per) / 1000.0).unwrap());
            let trace = LinkTrace {
                rates,
                delays: delays.into_iter().map(delay).collect(),
                error_rates: error_rates.into_iter().map(per).collect(),
                period: repeats.then_some(Duration::from_micros(2 * MICROS_OF_A_DAY)),
            };
            prop_assert_eq!(LinkTrace::from_csv(&trace.to_csv()), Ok(trace));
        }

        #[test]
        fn mahimahi_loses_no_opportunity(gaps in prop::collection::vec(0u64..20, 1..100)) {
            let times: Vec<u64> = gaps.iter().scan(1, |at, gap| { *at += gap; Some(*at) }).collect();
            let text: String = times.iter().map(|millis| format!("{millis}\n")).collect();
            let trace = LinkTrace::from_mahimahi(&text).unwrap();
            let last = *times.last().unwrap();
            prop_assert_eq!(trace.capacity(None, at(last)), Some(1500 * times.len() as u64));
            prop_assert_eq!(trace.capacity(None, at(3 * last)), Some(3 * 1500 * times.len() as u64));
        }
    }
}

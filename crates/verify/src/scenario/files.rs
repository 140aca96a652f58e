//! The files that a scenario names: traces of rate, delay and errors, and outages.

use std::path::Path;

use toml::{Table, Value};

use crate::quantity::{bits_per_second, nanos, probability, text};
use crate::steps::Steps;

const DIRETTISSIMA: &str = include_str!("../../../../data/direttissima.csv");
const MILLI: u64 = 1_000_000;
/// What mahimahi delivers at a time, in bits.
const OPPORTUNITY: u64 = 12_000;
/// The time of a line of LeoReplayer's delays.
const LEO_INTERVAL: u64 = 10 * MILLI;

/// When what changes to which value.
#[derive(Debug, Default)]
pub(super) struct Trace {
    rates: Vec<(u64, u64)>,
    delays: Vec<(u64, u64)>,
    error_rates: Vec<(u64, f64)>,
    period: Option<u64>,
}

impl Trace {
    pub(super) fn read(value: &Value, folder: &Path) -> Result<Self, String> {
        let table = value.as_table().ok_or("trace is not a table")?;
        let content = |key: &str| table.get(key).map(|name| content(name, folder)).transpose();
        if table.contains_key("profile") {
            return Err(
                "a profile is made by the link itself. Write what changes into files, `bentpipe link \
                        --profile NAME --seed N --print-trace down` and `up`, and give them, with rate and \
                        delay, to both `bentpipe sim` and `bentpipe verify`: --set \
                        'link.LINK.trace={ file = \"down.csv\" }' --set 'link.LINK.reverse.trace={ file = \
                        \"up.csv\" }'"
                    .to_owned(),
            );
        }
        if let Some(csv) = content("file")? {
            return Self::of_csv(&csv);
        }
        let rates = content("mahimahi")?.ok_or("trace has neither file nor mahimahi")?;
        let mut trace = Self::of_mahimahi(&rates)?;
        if let Some(delays) = content("delays")? {
            trace.add_delays(&delays)?;
        }
        Ok(trace)
    }

    fn of_csv(csv: &str) -> Result<Self, String> {
        let mut rows = rows(csv);
        let header = rows.next().ok_or("the trace is empty")?;
        let mut trace = Self::default();
        for row in rows {
            let at = seconds(row[0], 1.0)?;
            if row.get(1) == Some(&"repeat") {
                trace.period = Some(at);
                break;
            }
            for (column, field) in header.iter().zip(&row).skip(1).filter(|(_, field)| !field.is_empty()) {
                match (*column, *field) {
                    ("rate", "0") => trace.rates.push((at, 0)),
                    ("rate", field) => trace.rates.push((at, bits_per_second(field)?)),
                    ("delay", field) => trace.delays.push((at, nanos(field)?)),
                    ("per", field) => trace.error_rates.push((at, probability(&Value::from(field))?)),
                    (column, _) => return Err(format!("the trace has an unknown column \"{column}\"")),
                }
            }
        }
        Ok(trace)
    }

    /// The opportunities of a millisecond are at its end.
    fn of_mahimahi(lines: &str) -> Result<Self, String> {
        let mut trace = Self::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let millis: u64 = line.parse().map_err(|_| format!("\"{line}\" is no number of milliseconds"))?;
            let (start, end) = ((millis.max(1) - 1) * MILLI, millis.max(1) * MILLI);
            match trace.period {
                Some(period) if period == end => {
                    let last = trace.rates.len() - 1;
                    trace.rates[last].1 += OPPORTUNITY * 1000;
                }
                period => {
                    let free = period.unwrap_or(0);
                    if start < free {
                        return Err(format!("the time {line} is less than the one before it"));
                    }
                    if start > free {
                        trace.rates.push((free, 0));
                    }
                    trace.rates.push((start, OPPORTUNITY * 1000));
                    trace.period = Some(end);
                }
            }
        }
        if trace.rates.is_empty() { Err("the trace delivers nothing".to_owned()) } else { Ok(trace) }
    }

    /// Delays of LeoReplayer, which begin anew if they are over before the rates.
    fn add_delays(&mut self, lines: &str) -> Result<(), String> {
        let delay = |line: &str| {
            let millis = line.trim().parse::<f64>().ok().filter(|millis| *millis >= 0.0);
            let micros = millis.map(|millis| (millis * 1e3).round() as u64);
            micros.map(|micros| micros * 1000).ok_or_else(|| format!("\"{line}\" is no delay"))
        };
        let delays = lines.trim_end().lines().map(delay).collect::<Result<Vec<_>, _>>()?;
        let period = self.period.ok_or("delays belong to rates")?;
        let starts = (0..period).step_by(LEO_INTERVAL as usize);
        self.delays = starts.zip(delays.iter().copied().cycle()).collect();
        Ok(())
    }

    pub(super) fn rates(&self, base: Option<u64>) -> Option<Steps<u64>> {
        let first = base.or_else(|| Some(self.rates.first()?.1))?;
        Some(Steps::new(first, &self.rates, self.period))
    }

    pub(super) fn delays(&self, base: u64) -> Steps<u64> {
        Steps::new(base, &self.delays, self.period)
    }

    pub(super) fn error_rates(&self, base: f64) -> Steps<f64> {
        Steps::new(base, &self.error_rates, self.period)
    }

    pub(super) fn has_error_rates(&self) -> bool {
        !self.error_rates.is_empty()
    }
}

/// The outages of rows, of a file or of the railway line: starts and ends in order, with those that touch
/// made one.
pub(super) fn outages(value: &Value, folder: &Path) -> Result<Vec<(u64, u64)>, String> {
    let mut outages = match value {
        Value::Array(rows) => rows.iter().map(outage).collect::<Result<Vec<_>, _>>()?,
        Value::Table(table) => outages_of_file(table, folder)?,
        _ => return Err("outages are neither rows nor a file".to_owned()),
    };
    outages.retain(|(start, end)| start < end);
    outages.sort_unstable();
    outages.dedup_by(|later, earlier| {
        let touches = later.0 <= earlier.1;
        if touches {
            earlier.1 = earlier.1.max(later.1);
        }
        touches
    });
    Ok(outages)
}

fn outage(row: &Value) -> Result<(u64, u64), String> {
    let given = |key: &str| {
        let value = row.get(key).ok_or_else(|| format!("an outage has no {key}"))?;
        nanos(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    let (start, duration) = (given("start")?, given("duration")?);
    Ok((start, start + duration))
}

fn outages_of_file(table: &Table, folder: &Path) -> Result<Vec<(u64, u64)>, String> {
    let text = match (table.get("file"), table.get("trace").and_then(Value::as_str)) {
        (Some(file), None) => content(file, folder)?,
        (None, Some("direttissima")) => DIRETTISSIMA.to_owned(),
        _ => return Err("outages have neither a file nor a known trace".to_owned()),
    };
    let speed = table.get("speed_kmh").map(|speed| match speed {
        Value::Integer(speed) => Ok(*speed as f64),
        Value::Float(speed) => Ok(*speed),
        other => other.as_str().and_then(|text| text.parse().ok()).ok_or("speed_kmh is no number"),
    });
    let unit = speed.transpose()?.map_or(1.0, |speed: f64| 3600.0 / speed);
    let row = |row: Vec<&str>| {
        let duration = row.get(1).ok_or("an outage has no duration")?;
        let start = seconds(row[0], unit)?;
        Ok((start, start + seconds(duration, unit)?))
    };
    rows(&text).skip(1).map(row).collect()
}

/// The fields of the lines that say something.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split(',').map(str::trim).collect())
}

/// Nanoseconds of a number of units, each so many seconds.
fn seconds(field: &str, unit: f64) -> Result<u64, String> {
    let seconds = field.parse::<f64>().unwrap_or(f64::NAN) * unit;
    if !(0.0..=1e9).contains(&seconds) {
        return Err(format!("\"{field}\" is no time of a trace"));
    }
    Ok((seconds * 1e9).round() as u64)
}

fn content(name: &Value, folder: &Path) -> Result<String, String> {
    let path = folder.join(text(name)?);
    std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_changes_what_it_names_and_repeats() {
        let trace =
            Trace::of_csv("# rain\nat_s,rate,delay,per\n0,50M,300ms,\n30,0,,1%\n60.5,repeat\n").unwrap();
        assert_eq!(trace.rates, [(0, 50_000_000), (30_000_000_000, 0)]);
        assert_eq!(trace.delays, [(0, 300_000_000)]);
        assert_eq!(trace.error_rates, [(30_000_000_000, 0.01)]);
        assert_eq!(trace.period, Some(60_500_000_000));
        assert!(Trace::of_csv("at_s,jitter\n0,1ms\n").is_err() && Trace::of_csv("").is_err());
    }

    #[test]
    fn opportunities_of_a_millisecond_are_its_rate() {
        let trace = Trace::of_mahimahi("0\n1\n2\n2\n5\n").unwrap();
        let mbit = |packets: u64| packets * 12_000_000;
        let expected = [(0, mbit(2)), (MILLI, mbit(2)), (2 * MILLI, 0), (4 * MILLI, mbit(1))];
        assert_eq!((&trace.rates[..], trace.period), (&expected[..], Some(5 * MILLI)));
        assert!(Trace::of_mahimahi("2\n1\n").is_err());
    }

    #[test]
    fn delays_of_leoreplayer_begin_anew_with_the_rates() {
        let mut trace = Trace::of_mahimahi("1\n35\n").unwrap();
        trace.add_delays("24\n18.5\n").unwrap();
        let delays = trace.delays(0);
        let at = |millis: u64| delays.at(millis * MILLI);
        assert_eq!(
            [at(0), at(10), at(29), at(34), at(35)],
            [24, 18, 24, 18, 24].map(|ms| ms * MILLI + u64::from(ms == 18) * 500_000)
        );
    }

    #[test]
    fn outages_that_touch_are_one_and_kilometres_become_seconds() {
        let table: Table =
            "o = [{ start = \"5s\", duration = \"1s\" }, { start = \"2s\", duration = \"3s\" }]"
                .parse()
                .unwrap();
        assert_eq!(outages(&table["o"], Path::new("")).unwrap(), [(2_000_000_000, 6_000_000_000)]);
        let table: Table = "o = { trace = \"direttissima\", speed_kmh = 120 }".parse().unwrap();
        let tunnels = outages(&table["o"], Path::new("")).unwrap();
        let dark: u64 = tunnels.iter().map(|(start, end)| end - start).sum();
        assert_eq!(tunnels.len(), 33);
        assert!((0.38..0.40).contains(&(dark as f64 / 2880e9)), "{dark}");
    }
}

//! Outages: rows in the scenario or in a file beside it. The link model takes rows that overlap as one outage; here they
//! are a mistake, and refused.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use bentpipe_link::{OutageTrace, TraceError};
use bentpipe_units::{Span, Time};

use super::document::unknown;
use super::error::Fault;
use super::section::Field;

/// The longest file of outages that is read, bytes.
pub const MAX_OUTAGE_FILE: u64 = 4 << 20;

const ROW_KEYS: [&str; 2] = ["start", "duration"];
const TRACE_KEYS: [&str; 3] = ["file", "trace", "speed_kmh"];
/// The traces that need no file: the railway line of PSATS09 §5, by kilometre.
const BUILT_IN: [(&str, &str); 1] = [("direttissima", include_str!("../../../../data/direttissima.csv"))];

/// A row and where it stands.
struct Row {
    at: String,
    start: Time,
    duration: Duration,
}

/// The outages in a list of rows, in the file that the table names, relative to `directory`, or in a built-in trace.
pub(crate) fn read(field: &Field<'_>, directory: &Path) -> Result<OutageTrace, Fault> {
    let rows = if field.is_table() { rows_of_trace(field, directory)? } else { rows_of_list(field)? };
    refuse_overlaps(rows).map_err(|message| field.fault(message))
}

fn rows_of_list(field: &Field<'_>) -> Result<Vec<Row>, Fault> {
    let row = |(index, element): (usize, Field<'_>)| {
        let section = element.section(&ROW_KEYS)?;
        let start = section.required("start", "\"10s\"")?.span()?;
        let duration = section.required("duration", "\"5s\"")?.span()?;
        Ok(Row { at: format!("row {}", index + 1), start: Time::ZERO + start, duration })
    };
    field.list()?.into_iter().enumerate().map(row).collect()
}

fn rows_of_trace(field: &Field<'_>, directory: &Path) -> Result<Vec<Row>, Fault> {
    let section = field.section(&TRACE_KEYS)?;
    let speed_kmh = section.read("speed_kmh", Field::positive)?;
    let (origin, name, text) = match (section.get("file"), section.get("trace")) {
        (Some(file), None) => {
            let path = directory.join(file.text()?);
            let name = path.display().to_string();
            let text = text_of(&path).map_err(|why| file.fault(format!("cannot read {name}: {why}")))?;
            (file, name, text)
        }
        (None, Some(trace)) => {
            let (name, text) = built_in(&trace)?;
            (trace, name.to_owned(), text.to_owned())
        }
        _ => return Err(field.fault("write either file = \"outages.csv\" or trace = \"direttissima\"")),
    };
    rows_of_csv(&text, speed_kmh).map_err(|error| {
        let hint = match speed_kmh {
            None if text.contains("start_km") => "; a trace in kilometres needs speed_kmh",
            _ => "",
        };
        origin.fault(format!("cannot use {name}: {error}{hint}"))
    })
}

fn built_in(field: &Field<'_>) -> Result<(&'static str, &'static str), Fault> {
    let name = field.text()?;
    let found = BUILT_IN.into_iter().find(|(known, _)| *known == name);
    found.ok_or_else(|| field.fault(unknown(name, &BUILT_IN.map(|(known, _)| known))))
}

/// Reads a regular file of bearable length: a pipe could wait for ever, a device never end.
fn text_of(path: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let length =
        file.take(MAX_OUTAGE_FILE + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if length as u64 > MAX_OUTAGE_FILE {
        return Err(format!("it is longer than {MAX_OUTAGE_FILE} bytes"));
    }
    Ok(text)
}

/// The rows one by one, each as the link model reads it: its own reader is asked about the header and a single row.
fn rows_of_csv(text: &str, speed_kmh: Option<f64>) -> Result<Vec<Row>, TraceError> {
    let read = |text: &str| match speed_kmh {
        Some(speed) => OutageTrace::from_railway_csv(text, speed),
        None => OutageTrace::from_csv(text),
    };
    read(text)?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| says_something(line));
    let header = lines.next().map_or("", |(_, line)| line);
    let mut rows = Vec::new();
    for (index, line) in lines {
        let trace = read(&format!("{header}\n{line}"))?;
        let at = format!("line {} of the outage file", index + 1);
        rows.extend(trace.outages().map(|(start, duration)| Row { at: at.clone(), start, duration }));
    }
    Ok(rows)
}

fn says_something(line: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}').trim();
    !line.is_empty() && !line.starts_with('#')
}

fn refuse_overlaps(mut rows: Vec<Row>) -> Result<OutageTrace, String> {
    rows.sort_by_key(|row| (row.start, row.duration));
    for pair in rows.windows(2) {
        let [earlier, later] = pair else { continue };
        if later.start < earlier.start + earlier.duration {
            return Err(format!(
                "{} ({}) overlaps {} ({}): an outage begins when the one before has ended, at {} or later",
                later.at,
                described(later),
                earlier.at,
                described(earlier),
                Span((earlier.start + earlier.duration).since(Time::ZERO)),
            ));
        }
    }
    Ok(rows.into_iter().map(|row| (row.start, row.duration)).collect())
}

fn described(row: &Row) -> String {
    format!("{} for {}", Span(row.start.since(Time::ZERO)), Span(row.duration))
}

//! Outages: rows in the scenario or in a file beside it. The link model takes rows that overlap as one
//! outage; here they are a mistake, and refused.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use bentpipe_config::{InTable, Plain, Positive, Problem, SpanFrom, unknown};
use bentpipe_link::{OutageTrace, TraceError};
use bentpipe_units::{Span, Time};
use serde::Deserialize;

/// The longest file of outages, or of another trace, that is read, bytes.
pub const MAX_OUTAGE_FILE: u64 = 4 << 20;

/// The traces that need no file: the railway line of PSATS09 §5, by kilometre.
const BUILT_IN: [(&str, &str); 1] = [("direttissima", include_str!("../../../../data/direttissima.csv"))];

/// `outages`: rows, or where rows are.
#[derive(Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
pub(super) enum Outages {
    List(Vec<RowKeys>),
    Table(TraceKeys),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowKeys {
    start: SpanFrom<0>,
    duration: SpanFrom<0>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TraceKeys {
    file: Option<String>,
    trace: Option<String>,
    speed_kmh: Option<Positive>,
}

/// A row and where it was written.
struct Row {
    at: String,
    start: Time,
    duration: Duration,
}

impl Outages {
    /// The outages of the rows, of the file that the table names, relative to `directory`, or of a built-in
    /// trace.
    pub(super) fn read(self, directory: &Path) -> Result<OutageTrace, Problem> {
        let rows = match self {
            Self::List(rows) => rows.into_iter().enumerate().map(|(index, row)| row.read(index)).collect(),
            Self::Table(keys) => keys.read(directory)?,
        };
        refuse_overlaps(rows).map_err(Problem::new)
    }
}

impl RowKeys {
    fn read(self, index: usize) -> Row {
        let at = format!("row {}", index + 1);
        Row { at, start: Time::ZERO + self.start.get(), duration: self.duration.get() }
    }
}

impl TraceKeys {
    fn read(self, directory: &Path) -> Result<Vec<Row>, Problem> {
        let speed_kmh = self.speed_kmh.map(Plain::get);
        match (self.file, self.trace) {
            (Some(file), None) => {
                let path = directory.join(file);
                let name = path.display().to_string();
                let text = text_of(&path).map_err(|why| Problem::new(format!("cannot read {name}: {why}")));
                text.and_then(|text| rows_of_csv(&name, &text, speed_kmh)).inside("file")
            }
            (None, Some(trace)) => match BUILT_IN.into_iter().find(|(known, _)| *known == trace) {
                Some((name, text)) => rows_of_csv(name, text, speed_kmh).inside("trace"),
                None => Err(Problem::of("trace", unknown(&trace, &BUILT_IN.map(|(known, _)| known)))),
            },
            _ => Err(Problem::new("write either file = \"outages.csv\" or trace = \"direttissima\"")),
        }
    }
}

/// Reads a regular file of limited length: a pipe could block, and a device never end.
pub(super) fn text_of(path: &Path) -> Result<String, String> {
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

fn rows_of_csv(name: &str, text: &str, speed_kmh: Option<f64>) -> Result<Vec<Row>, Problem> {
    parse_rows(text, speed_kmh).map_err(|error| {
        let hint = match speed_kmh {
            None if text.contains("start_km") => "; a trace in kilometres needs speed_kmh",
            _ => "",
        };
        Problem::new(format!("cannot use {name}: {error}{hint}"))
    })
}

/// The rows one by one, each as the link model reads it: its own reader is asked about the header and a
/// single row.
fn parse_rows(text: &str, speed_kmh: Option<f64>) -> Result<Vec<Row>, TraceError> {
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

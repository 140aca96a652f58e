//! Traces as text: columns, comments, nothing else.

use std::io::Read as _;

use csv::{ReaderBuilder, StringRecord, Terminator, Trim};

/// The records that are neither blank nor comments, with their line numbers from 1.
pub(super) fn records(text: &str) -> impl Iterator<Item = (usize, StringRecord)> {
    // Without quotes every record ends with its line, so that the reader stands at the next line then.
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .quoting(false)
        .trim(Trim::All)
        .terminator(Terminator::Any(b'\n'))
        .from_reader(text.as_bytes().chain(&b"\n"[..]));
    let numbered = std::iter::from_fn(move || {
        let mut record = StringRecord::new();
        // Reading UTF-8 from memory cannot fail.
        let found = reader.read_record(&mut record).unwrap_or(false);
        found.then(|| (reader.position().line() as usize - 1, record))
    });
    let is_blank = |record: &StringRecord| record.len() == 1 && record[0].is_empty();
    numbered.filter(move |(_, record)| !is_blank(record) && !record[0].starts_with('#'))
}

//! Traces of a link: how its rate, delay and errors change, in a file beside the scenario.

use std::path::Path;

use bentpipe_config::{InTable, Problem};
use bentpipe_link::{LinkTrace, LinkTraceError};
use serde::Deserialize;

use super::outages::text_of;

/// `trace`: where it is, and in which format.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trace {
    file: Option<String>,
    mahimahi: Option<String>,
}

impl Trace {
    /// The trace of the file that the table names, relative to `directory`.
    pub(super) fn read(self, directory: &Path) -> Result<LinkTrace, Problem> {
        match (self.file, self.mahimahi) {
            (Some(file), None) => read(&directory.join(file), LinkTrace::from_csv).inside("file"),
            (None, Some(file)) => read(&directory.join(file), LinkTrace::from_mahimahi).inside("mahimahi"),
            _ => Err(Problem::new("write either file = \"trace.csv\" or mahimahi = \"trace.down\"")),
        }
    }
}

fn read(path: &Path, parse: fn(&str) -> Result<LinkTrace, LinkTraceError>) -> Result<LinkTrace, Problem> {
    let name = path.display();
    let text = text_of(path).map_err(|why| Problem::new(format!("cannot read {name}: {why}")))?;
    parse(&text).map_err(|error| Problem::new(format!("cannot use {name}: {error}")))
}

//! The [packet log](bentpipe_link::packet_log) of a run.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use bentpipe_link::packet_log::{COLUMNS, Row, application, sums};
use bentpipe_link::{Counters, ImpairmentCounters};
use bentpipe_units::Time;

use crate::observer::{Observer, PacketStep};
use crate::trace::TraceError;
use crate::{Scenario, scenario};

/// Writes a row for each step of each packet on each link; at the end the counters of the links and, of each
/// flow that is not carried in bundles, the rows `app_written` and `app_received`, with the flow in the
/// column `link`, its bytes in `bytes`, and in `packet` 1 if it has ended well, else 0. It holds no more than
/// its buffer.
#[derive(Debug)]
pub struct PacketLog<W: Write = BufWriter<File>> {
    links: Vec<String>,
    flows: Vec<String>,
    file: W,
    failed: Option<io::Error>,
}

impl PacketLog {
    /// Starts a log in a new file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path, scenario: &Scenario) -> Result<Self, TraceError> {
        let started = File::create(path).and_then(|file| Self::new(BufWriter::new(file), scenario));
        started.map_err(|source| TraceError { path: path.to_owned(), source })
    }

    /// Ends the log and writes its buffer; `path` is what an error calls it.
    ///
    /// # Errors
    /// If the buffer, or anything before it, could not be written. The run has then been stopped.
    pub fn finish(self, path: &Path) -> Result<(), TraceError> {
        match self.into_inner().and_then(|mut file| file.flush()) {
            Ok(()) => Ok(()),
            Err(source) => Err(TraceError { path: path.to_owned(), source }),
        }
    }
}

impl<W: Write> PacketLog<W> {
    /// Starts a log that is written to anything, in many small pieces.
    ///
    /// # Errors
    /// If nothing can be written there.
    pub fn new(mut file: W, scenario: &Scenario) -> io::Result<Self> {
        writeln!(file, "{COLUMNS}")?;
        let name = |link: &scenario::LinkSpec| link.name.clone();
        Ok(Self {
            links: scenario.links.iter().map(name).collect(),
            flows: scenario.flows.iter().map(|flow| flow.name.clone()).collect(),
            file,
            failed: None,
        })
    }

    /// What it was written to.
    ///
    /// # Errors
    /// The first one, if something could not be written.
    pub fn into_inner(self) -> io::Result<W> {
        self.failed.map_or(Ok(self.file), Err)
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }
}

impl<W: Write> Observer for PacketLog<W> {
    fn progress(&mut self, _: Time) -> bool {
        self.failed.is_none()
    }

    fn follows_packets(&self) -> bool {
        true
    }

    fn step(&mut self, now: Time, step: &PacketStep) {
        let PacketStep { link, forward, number, bytes, step } = *step;
        let row =
            Row { at: now, link: &self.links[link], direction: direction(forward), number, bytes, step };
        let written = writeln!(self.file, "{row}");
        self.note(written);
    }

    fn sums(
        &mut self,
        now: Time,
        link: usize,
        forward: bool,
        counters: &Counters,
        impairments: &ImpairmentCounters,
    ) {
        let rows = sums(now, &self.links[link], direction(forward), counters, impairments);
        let written = self.file.write_all(rows.as_bytes());
        self.note(written);
    }

    fn application(&mut self, now: Time, flow: usize, [written, received]: [u64; 2], is_finished: bool) {
        let rows = application(now, &self.flows[flow], [written, received], is_finished);
        let written = self.file.write_all(rows.as_bytes());
        self.note(written);
    }
}

fn direction(forward: bool) -> &'static str {
    if forward { "forward" } else { "reverse" }
}

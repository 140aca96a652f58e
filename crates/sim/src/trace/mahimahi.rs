//! The packets of one direction of a link, in mahimahi's format.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use bentpipe_link::DirectionConfig;
use bentpipe_link::mahimahi_log::MahimahiLog;
use bentpipe_units::Time;

use super::TraceError;
use crate::observer::PacketStep;

/// The log of a direction.
#[derive(Debug)]
pub(super) struct MahimahiFile {
    path: PathBuf,
    file: BufWriter<File>,
    log: MahimahiLog,
    lines: String,
}

impl MahimahiFile {
    /// Starts the log of a direction with this name.
    pub(super) fn create(path: PathBuf, name: &str, config: &DirectionConfig) -> Result<Self, TraceError> {
        let file = match File::create(&path) {
            Ok(file) => BufWriter::new(file),
            Err(source) => return Err(TraceError { path, source }),
        };
        let mut file =
            Self { path, file, log: MahimahiLog::new(config), lines: MahimahiLog::header(name, 0) };
        let written = file.write_lines();
        file.result(written)?;
        Ok(file)
    }

    /// A packet makes a step.
    pub(super) fn step(&mut self, now: Time, step: &PacketStep) -> Result<(), TraceError> {
        self.log.step(now, step.bytes, step.step, &mut self.lines);
        let written = self.write_lines();
        self.result(written)
    }

    pub(super) fn flush(&mut self) -> Result<(), TraceError> {
        let flushed = self.file.flush();
        self.result(flushed)
    }

    fn write_lines(&mut self) -> io::Result<()> {
        let written = self.file.write_all(self.lines.as_bytes());
        self.lines.clear();
        written
    }

    fn result(&self, written: io::Result<()>) -> Result<(), TraceError> {
        written.map_err(|source| TraceError { path: self.path.clone(), source })
    }
}

//! The log on standard error: lines for people, or for the journal if standard error is a stream of it.
//!
//! The journal has a clock of its own and takes a line's priority from a leading `<N>` (sd-daemon(3)).
//! `JOURNAL_STREAM` has the device and the inode of the journal's socket (systemd.exec(5)). The variable
//! stays when standard error is redirected, so it is compared with standard error itself. A daemon that takes
//! over gets the standard error of its predecessor, and the [`stream`] that belongs to it.

use std::fmt::{self, Write};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{self, Format, FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, time::SystemTime};
use tracing_subscriber::registry::LookupSpan;

const STREAM: &str = "JOURNAL_STREAM";

/// The kind of reader: one of the three below.
static READER: AtomicU8 = AtomicU8::new(FILE);
const FILE: u8 = 0;
const TERMINAL: u8 = 1;
const JOURNAL: u8 = 2;

/// Logs to standard error, at this level unless `RUST_LOG` sets another.
pub(crate) fn to_stderr(default_level: &str) {
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default_level.into());
    follow(stream().as_deref());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A reader of the log that goes away must not take the daemon with it.
        .log_internal_errors(false)
        .event_format(Lines::default())
        .init();
}

/// The journal's stream that standard error is, `DEVICE:INODE`; `None` where it is something else.
pub(crate) fn stream() -> Option<String> {
    let found = match READER.load(Ordering::Relaxed) {
        JOURNAL => identity(),
        _ => std::env::var(STREAM).ok(),
    };
    found.filter(|stream| identity().as_ref() == Some(stream))
}

/// Adapts to a new standard error. `stream` is what [`stream`] returned in the process that it comes from.
pub(crate) fn follow(stream: Option<&str>) {
    let is_journal = stream.is_some() && identity().as_deref() == stream;
    let reader = match is_journal {
        true => JOURNAL,
        false if std::io::stderr().is_terminal() => TERMINAL,
        false => FILE,
    };
    READER.store(reader, Ordering::Relaxed);
}

/// Device and inode of standard error, as the journal writes them.
fn identity() -> Option<String> {
    let stat = rustix::fs::fstat(std::io::stderr()).ok()?;
    Some(format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// How lines are written: for each reader a way.
struct Lines {
    coloured: Format<Full, SystemTime>,
    plain: Format<Full, SystemTime>,
}

impl Default for Lines {
    fn default() -> Self {
        let format = || format::format().with_target(false);
        Self { coloured: format().with_ansi(true), plain: format().with_ansi(false) }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match READER.load(Ordering::Relaxed) {
            TERMINAL => self.coloured.format_event(context, writer, event),
            JOURNAL => {
                let mut text = String::new();
                context.format_fields(Writer::new(&mut text), event)?;
                writer.write_str(&entry(*event.metadata().level(), &text))
            }
            _ => self.plain.format_event(context, writer, event),
        }
    }
}

/// A line for the journal. A message of several lines would become several entries, and only the first would
/// have a priority.
fn entry(level: Level, text: &str) -> String {
    let mut entry = format!("<{}>", priority(level));
    for (index, line) in text.lines().enumerate() {
        let gap = if index == 0 { "" } else { " " };
        let _ = write!(entry, "{gap}{}", line.trim());
    }
    entry + "\n"
}

/// As in syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_gets_one_line_with_a_priority_that_systemd_knows() {
        assert_eq!(entry(Level::ERROR, "worker 1 failed error=x"), "<3>worker 1 failed error=x\n");
        assert_eq!(entry(Level::WARN, "a\n  b\nc"), "<4>a b c\n");
        assert_eq!(entry(Level::INFO, "ready"), "<6>ready\n");
        assert_eq!(entry(Level::DEBUG, ""), "<7>\n");
        assert_eq!(entry(Level::TRACE, "x"), "<7>x\n");
    }
}

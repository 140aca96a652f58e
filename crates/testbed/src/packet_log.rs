//! The files that are written about the packets of a link, by a thread of its own.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bentpipe_link::packet_log::{self, Crossing, Row, Step};
use bentpipe_link::{LinkConfig, pcap};
use bentpipe_units::{Rate, Time};

use crate::recorder::{Event, Heading, Recorder};
use crate::{Error, Result, signals};

/// Reports that wait to be written; with full-size packets 25 MB.
const BACKLOG: usize = 16_384;

/// What the link is called in the log.
const LINK: &str = "link";

/// Files about the packets of a link; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PacketFiles {
    /// A row for each step of each packet, both directions, and the counters at the end:
    /// [`bentpipe_link::packet_log`]. The directions are `down`, to the terminal, and `up`, the link is
    /// `link`. Where agents are at its ends, their frames are what is logged.
    ///
    /// If rows are missing because the file could not be written as fast as packets came, the last row has
    /// the event `missing`, and their number in the column `packet`.
    pub log: Option<PathBuf>,
    /// The direction to the terminal in the format of mahimahi's `--downlink-log`; times in milliseconds.
    pub down_log: Option<PathBuf>,
    /// The direction from the terminal in the format of mahimahi's `--uplink-log`.
    pub up_log: Option<PathBuf>,
    /// Packets as a capture on the terminal's interface has them (pcap): those that it sends, before the
    /// queue of the link, also if the link loses them; those that it receives, when they arrive.
    pub pcap: Option<PathBuf>,
}

/// The thread that writes the files.
#[derive(Debug)]
pub(crate) struct PacketWriter {
    thread: Option<JoinHandle<Result<()>>>,
    missed: Arc<AtomicU64>,
}

impl PacketWriter {
    /// Creates the files and starts the thread. The recorders are for the direction to the terminal and for
    /// that from it.
    ///
    /// # Errors
    /// [`Error::PacketFile`] for a file that cannot be created.
    pub(crate) fn start(files: &PacketFiles, config: &LinkConfig) -> Result<(Self, [Option<Recorder>; 2])> {
        let missed = Arc::new(AtomicU64::new(0));
        if *files == PacketFiles::default() {
            return Ok((Self { thread: None, missed }, [None, None]));
        }
        let outputs = outputs(files, config)?;
        let (events, receiver) = sync_channel(BACKLOG);
        let recorder = |heading| Recorder {
            heading,
            events: events.clone(),
            missed: Arc::clone(&missed),
            frames: files.log.is_some() || files.down_log.is_some() || files.up_log.is_some(),
            packets: files.pcap.is_some(),
        };
        let recorders = [Heading::Down, Heading::Up].map(|heading| Some(recorder(heading)));
        let missing = Arc::clone(&missed);
        let thread = thread::spawn(move || {
            signals::block_all();
            write_all(outputs, &receiver, &missing)
        });
        Ok((Self { thread: Some(thread), missed }, recorders))
    }

    /// Waits until everything is written, which needs the recorders to be gone. Returns how many reports are
    /// missing because the files could not be written as fast as packets came.
    ///
    /// # Errors
    /// [`Error::PacketFile`] for the first file that could not be written.
    pub(crate) fn finish(mut self) -> Result<u64> {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(self.missed.load(Ordering::Relaxed))
    }
}

/// A file and how events are written to it.
struct Output {
    path: PathBuf,
    file: BufWriter<File>,
    format: Format,
}

enum Format {
    Csv,
    Mahimahi { heading: Heading, opportunities: Opportunities },
    Pcap,
}

/// The milliseconds for which mahimahi's format has a line that says how much could have been sent.
struct Opportunities {
    rate: Option<Rate>,
    next_ms: u64,
}

fn outputs(files: &PacketFiles, config: &LinkConfig) -> Result<Vec<Output>> {
    let mahimahi =
        |heading, rate| Format::Mahimahi { heading, opportunities: Opportunities { rate, next_ms: 0 } };
    let wanted = [
        (&files.log, Format::Csv),
        (&files.down_log, mahimahi(Heading::Down, config.forward.rate)),
        (&files.up_log, mahimahi(Heading::Up, config.reverse.rate)),
        (&files.pcap, Format::Pcap),
    ];
    wanted.into_iter().filter_map(|(path, format)| Some(Output::create(path.as_ref()?, format))).collect()
}

fn write_all(mut outputs: Vec<Output>, events: &Receiver<Event>, missed: &AtomicU64) -> Result<()> {
    loop {
        let event = match events.try_recv() {
            Ok(event) => event,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                // A reader that follows the file sees what has happened.
                outputs.iter_mut().try_for_each(Output::flush)?;
                match events.recv() {
                    Ok(event) => event,
                    Err(_) => break,
                }
            }
        };
        outputs.iter_mut().try_for_each(|output| output.event(&event))?;
    }
    let missed = missed.load(Ordering::Relaxed);
    if missed > 0 {
        outputs.iter_mut().try_for_each(|output| output.missing(missed))?;
    }
    outputs.iter_mut().try_for_each(Output::flush)
}

impl Output {
    fn create(path: &Path, format: Format) -> Result<Self> {
        let fail = |source| Error::PacketFile { path: path.to_owned(), source };
        let file = BufWriter::new(File::create(path).map_err(fail)?);
        let mut output = Self { path: path.to_owned(), file, format };
        // At once: a file that cannot be written to is told before anything runs.
        output.header().and_then(|()| output.file.flush()).map_err(fail)?;
        Ok(output)
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.write(event).map_err(|source| Error::PacketFile { path: self.path.clone(), source })
    }

    fn missing(&mut self, rows: u64) -> Result<()> {
        let written = match self.format {
            Format::Csv => writeln!(self.file, "{}", packet_log::missing(rows)),
            Format::Mahimahi { .. } | Format::Pcap => Ok(()),
        };
        written.map_err(|source| Error::PacketFile { path: self.path.clone(), source })
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::PacketFile { path: self.path.clone(), source })
    }

    fn header(&mut self) -> io::Result<()> {
        match &self.format {
            Format::Csv => writeln!(self.file, "{}", packet_log::COLUMNS),
            Format::Pcap => self.file.write_all(&pcap::file_header()),
            Format::Mahimahi { heading, .. } => {
                let link = if *heading == Heading::Down { "downlink" } else { "uplink" };
                writeln!(self.file, "# bentpipe link ({link}), in the format of mahimahi's mm-link")?;
                writeln!(self.file, "# init timestamp: {}", since_1970(SystemTime::now()).as_millis())?;
                writeln!(self.file, "# base timestamp: 0")
            }
        }
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        match (&mut self.format, event) {
            (Format::Csv, Event::Frame { at, heading, number, bytes, step }) => {
                let direction = direction(*heading);
                let row = Row { at: *at, link: LINK, direction, number: *number, bytes: *bytes, step: *step };
                writeln!(self.file, "{row}")
            }
            (Format::Csv, Event::End { at, heading, counters, impairments }) => {
                let rows = packet_log::sums(*at, LINK, direction(*heading), counters, impairments);
                self.file.write_all(rows.as_bytes())
            }
            (
                Format::Mahimahi { heading, opportunities },
                Event::Frame { at, heading: of, bytes, step, .. },
            ) if heading == of => {
                opportunities.write(at.as_nanos() / 1_000_000, &mut self.file)?;
                write_mahimahi(*at, *bytes, *step, &mut self.file)
            }
            (Format::Pcap, Event::Packet { at, packet }) => {
                let nanos = u64::try_from(since_1970(*at).as_nanos()).unwrap_or(u64::MAX);
                self.file.write_all(&pcap::record_header(nanos, packet.len(), packet.len()))?;
                self.file.write_all(packet)
            }
            _ => Ok(()),
        }
    }
}

impl Opportunities {
    /// The milliseconds up to `now_ms`.
    fn write(&mut self, now_ms: u64, file: &mut impl Write) -> io::Result<()> {
        let Some(rate) = self.rate else { return Ok(()) };
        let before = |ms: u64| rate.bytes_in(Duration::from_millis(ms));
        while self.next_ms <= now_ms {
            // The difference of two sums: rounding does not add up.
            writeln!(file, "{} # {}", self.next_ms, before(self.next_ms + 1) - before(self.next_ms))?;
            self.next_ms += 1;
        }
        Ok(())
    }
}

/// `+` for a packet that came, `-` for one that has arrived, with its delay, `d` for one that was lost.
fn write_mahimahi(at: Time, bytes: usize, step: Step, file: &mut impl Write) -> io::Result<()> {
    let ms = at.as_nanos() / 1_000_000;
    match step {
        Step::Entered { .. } => writeln!(file, "{ms} + {bytes}"),
        Step::Lost(_) => writeln!(file, "{ms} d 1 {bytes}"),
        Step::Arrived(Crossing { is_duplicate: true, .. }) => Ok(()),
        Step::Arrived(Crossing { entered, .. }) => {
            writeln!(file, "{ms} - {bytes} {}", (at - entered).as_millis())
        }
    }
}

fn direction(heading: Heading) -> &'static str {
    if heading == Heading::Down { "down" } else { "up" }
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_link::Cause;
    use bentpipe_units::ByteCount;

    const AT: Time = Time::from_nanos(1_234_567_890);
    const ARRIVED: Step = Step::Arrived(Crossing {
        entered: Time::from_nanos(934_567_890),
        departure: AT,
        due: AT,
        is_corrupted: false,
        is_duplicate: false,
    });

    #[test]
    fn mahimahis_lines_are_in_milliseconds_with_what_each_could_have_carried() {
        let mut text = Vec::new();
        let mut opportunities = Opportunities { rate: Some(Rate::mbps(12)), next_ms: 0 };
        opportunities.write(1, &mut text).unwrap();
        opportunities.write(1, &mut text).unwrap();
        for step in [Step::Entered { queue: ByteCount::new(0) }, Step::Lost(Cause::Outage), ARRIVED] {
            write_mahimahi(AT, 1500, step, &mut text).unwrap();
        }
        let expected = "0 # 1500\n1 # 1500\n1234 + 1500\n1234 d 1 1500\n1234 - 1500 300\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_rate_below_a_byte_in_a_millisecond_adds_up_all_the_same() {
        let mut text = Vec::new();
        let mut opportunities = Opportunities { rate: "1kbit/s".parse().ok(), next_ms: 0 };
        opportunities.write(999, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let bytes = text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        assert_eq!(bytes.sum::<u64>(), 125);
    }
}

//! The files that are written about the packets of a link, by a thread of its own.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bentpipe_link::{Cause, LinkConfig, pcap};
use bentpipe_units::{Rate, Time};

use crate::recorder::{Event, Heading, Recorder, Step};
use crate::{Error, Result, signals};

/// Reports that wait to be written; with full-size packets 25 MB.
const BACKLOG: usize = 16_384;

/// The header of [`PacketFiles::log`].
const COLUMNS: &str = "time_s,direction,event,packet,bytes,queue_bytes,delay_s";

/// Files about the packets of a link; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PacketFiles {
    /// CSV, a row for each step of each packet; both directions. Where agents are at the ends of the link,
    /// their frames are what is logged.
    ///
    /// | column | meaning |
    /// |---|---|
    /// | `time_s` | seconds since the link began |
    /// | `direction` | `down`, to the terminal, or `up` |
    /// | `event` | `enter`: came to the transmitter; `arrive`; `duplicate`: arrived once more; or why it was lost: `queue_full`, `outage`, `burst_error`, `packet_error` |
    /// | `packet` | number of the packet in its direction, from 1 on |
    /// | `bytes` | of the packet |
    /// | `queue_bytes` | with `enter`: bytes that wait before it or are being sent |
    /// | `delay_s` | with `arrive` and `duplicate`: seconds since `enter` |
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
        let thread = thread::spawn(move || {
            signals::block_all();
            write_all(outputs, &receiver)
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

fn write_all(mut outputs: Vec<Output>, events: &Receiver<Event>) -> Result<()> {
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

    fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::PacketFile { path: self.path.clone(), source })
    }

    fn header(&mut self) -> io::Result<()> {
        match &self.format {
            Format::Csv => writeln!(self.file, "{COLUMNS}"),
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
                writeln!(self.file, "{}", csv_row(*at, *heading, *number, *bytes, *step))
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
        Step::Arrived { is_duplicate: true, .. } => Ok(()),
        Step::Arrived { delay, .. } => writeln!(file, "{ms} - {bytes} {}", delay.as_millis()),
    }
}

fn csv_row(at: Time, heading: Heading, number: u64, bytes: usize, step: Step) -> String {
    let direction = if heading == Heading::Down { "down" } else { "up" };
    let (event, queue, delay) = match step {
        Step::Entered { queue } => ("enter", queue.get().to_string(), String::new()),
        Step::Lost(cause) => (lost(cause), String::new(), String::new()),
        Step::Arrived { delay, is_duplicate } => {
            let event = if is_duplicate { "duplicate" } else { "arrive" };
            (event, String::new(), format!("{:.6}", delay.as_secs_f64()))
        }
    };
    format!("{:.6},{direction},{event},{number},{bytes},{queue},{delay}", at.as_secs_f64())
}

fn lost(cause: Cause) -> &'static str {
    match cause {
        Cause::QueueFull => "queue_full",
        Cause::Outage => "outage",
        Cause::BurstError => "burst_error",
        Cause::PacketError => "packet_error",
    }
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::ByteCount;

    const AT: Time = Time::from_nanos(1_234_567_890);
    const ARRIVED: Step = Step::Arrived { delay: Duration::from_millis(300), is_duplicate: false };

    #[test]
    fn a_row_has_a_field_for_each_column() {
        let queue = ByteCount::new(3000);
        for (step, expected) in [
            (Step::Entered { queue }, "1.234568,down,enter,7,1500,3000,"),
            (Step::Lost(Cause::QueueFull), "1.234568,down,queue_full,7,1500,,"),
            (ARRIVED, "1.234568,down,arrive,7,1500,,0.300000"),
        ] {
            let row = csv_row(AT, Heading::Down, 7, 1500, step);
            assert_eq!(row, expected);
            assert_eq!(row.split(',').count(), COLUMNS.split(',').count());
        }
    }

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

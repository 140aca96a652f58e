//! The files that are written about the packets of a link, by a thread of its own.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bentpipe_link::mahimahi_log::MahimahiLog;
use bentpipe_link::packet_log::{self, Row};
use bentpipe_link::{LinkConfig, pcapng};

use crate::recorder::{Event, Heading, Recorder};
use crate::{Error, Result, signals};

/// Reports that wait to be written; with full-size packets 25 MB.
const BACKLOG: usize = 16_384;

/// What the link is called in the log.
const LINK: &str = "link";

/// What the terminal's interface is called in a capture.
const DEVICE: &str = "sat0";

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
    /// Packets as a capture on the terminal's interface has them (pcapng): those that it sends, before the
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
    Mahimahi { heading: Heading, log: Box<MahimahiLog> },
    Pcapng(CapturedInterface),
}

/// The terminal's interface in a capture.
#[derive(Default)]
struct CapturedInterface {
    /// The rate of what the terminal sends, in bit/s, if that is constant.
    speed: Option<u64>,
    statistics: pcapng::Statistics,
    /// The time of its last packet.
    last_nanos: u64,
    block: Vec<u8>,
}

fn outputs(files: &PacketFiles, config: &LinkConfig) -> Result<Vec<Output>> {
    let mahimahi =
        |heading, direction| Format::Mahimahi { heading, log: Box::new(MahimahiLog::new(direction)) };
    let constant = config.reverse.trace.highest_rate().is_none();
    let speed = config.reverse.rate.filter(|_| constant).map(|rate| rate.bps());
    let wanted = [
        (&files.log, Format::Csv),
        (&files.down_log, mahimahi(Heading::Down, &config.forward)),
        (&files.up_log, mahimahi(Heading::Up, &config.reverse)),
        (&files.pcap, Format::Pcapng(CapturedInterface { speed, ..CapturedInterface::default() })),
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
    outputs.iter_mut().try_for_each(|output| output.end(missed))?;
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

    /// All has happened, and so many reports about it are missing.
    fn end(&mut self, missed: u64) -> Result<()> {
        let written = match &mut self.format {
            Format::Csv if missed > 0 => writeln!(self.file, "{}", packet_log::missing(missed)),
            Format::Csv | Format::Mahimahi { .. } => Ok(()),
            Format::Pcapng(interface) => self.file.write_all(interface.end(missed)),
        };
        written.map_err(|source| Error::PacketFile { path: self.path.clone(), source })
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::PacketFile { path: self.path.clone(), source })
    }

    fn header(&mut self) -> io::Result<()> {
        match &mut self.format {
            Format::Csv => writeln!(self.file, "{}", packet_log::COLUMNS),
            Format::Pcapng(interface) => self.file.write_all(interface.begin()),
            Format::Mahimahi { heading, .. } => {
                let link = if *heading == Heading::Down { "downlink" } else { "uplink" };
                let started = since_1970(SystemTime::now()).as_millis();
                self.file.write_all(MahimahiLog::header(link, started).as_bytes())
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
            (Format::Mahimahi { heading, log }, Event::Frame { at, heading: of, bytes, step, .. })
                if heading == of =>
            {
                let mut lines = String::new();
                log.step(*at, *bytes, *step, &mut lines);
                self.file.write_all(lines.as_bytes())
            }
            (Format::Pcapng(interface), Event::Packet { at, heading, packet }) => {
                self.file.write_all(interface.packet(*at, *heading, packet))
            }
            _ => Ok(()),
        }
    }
}

impl CapturedInterface {
    fn begin(&mut self) -> &[u8] {
        let interface = pcapng::Interface {
            link_type: pcapng::LinkType::Raw,
            name: DEVICE,
            description: "the command's end of the link; outbound is from the command",
            speed: self.speed,
        };
        self.block.clear();
        pcapng::section(&mut self.block, concat!("bentpipe ", env!("CARGO_PKG_VERSION")));
        pcapng::interface(&mut self.block, &interface);
        &self.block
    }

    fn packet(&mut self, at: SystemTime, heading: Heading, packet: &[u8]) -> &[u8] {
        let heading = match heading {
            Heading::Down => pcapng::Heading::Inbound,
            Heading::Up => pcapng::Heading::Outbound,
        };
        self.statistics.received += 1;
        self.last_nanos = u64::try_from(since_1970(at).as_nanos()).unwrap_or(u64::MAX);
        let (nanos, length) = (self.last_nanos, packet.len());
        let packet = pcapng::Packet { interface: 0, nanos, heading, bytes: packet, length, comment: "" };
        self.block.clear();
        pcapng::packet(&mut self.block, &packet);
        &self.block
    }

    fn end(&mut self, missed: u64) -> &[u8] {
        let statistics = pcapng::Statistics { missed, ..self.statistics };
        self.block.clear();
        pcapng::statistics(&mut self.block, 0, self.last_nanos, &statistics);
        &self.block
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

    /// The kind of each block, and its bytes.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let word = |bytes: &[u8], at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let (block, rest) = file.split_at(word(file, 4) as usize);
            blocks.push((word(block, 0), block));
            file = rest;
        }
        blocks
    }

    #[test]
    fn a_capture_has_the_terminals_interface_each_packet_with_its_direction_and_what_is_missing() {
        let mut interface = CapturedInterface { speed: Some(10_000_000), ..CapturedInterface::default() };
        let mut file = interface.begin().to_vec();
        let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(0x0102_0304_0506_0708);
        for heading in [Heading::Up, Heading::Down] {
            file.extend_from_slice(interface.packet(at, heading, b"hello"));
        }
        file.extend_from_slice(interface.end(3));
        let [(0x0a0d_0d0a, _), (1, described), (6, sent), (6, received), (5, counters)] = blocks(&file)[..]
        else {
            panic!("{file:?}")
        };
        let contains = |block: &[u8], bytes: &[u8]| block.windows(bytes.len()).any(|part| part == bytes);
        assert!(contains(described, b"sat0") && contains(described, &10_000_000u64.to_le_bytes()));
        // The upper half of the time, the lower one, both lengths.
        let head = [4, 3, 2, 1, 8, 7, 6, 5, 5, 0, 0, 0, 5, 0, 0, 0];
        for (block, flags) in [(sent, 2), (received, 1)] {
            assert_eq!((&block[12..28], &block[28..33]), (&head[..], &b"hello"[..]));
            assert!(contains(block, &[2, 0, 4, 0, flags, 0, 0, 0]), "epb_flags: {block:?}");
        }
        assert!(contains(counters, &2u64.to_le_bytes()) && contains(counters, &3u64.to_le_bytes()));
    }
}

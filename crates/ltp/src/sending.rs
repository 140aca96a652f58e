//! A session that sends a block.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::{Ranges, Time};

use crate::segment::{Checkpoint, Data, Ends, Part, Report};
use crate::{Color, Handle};

/// A segment that waits to be sent again has this in place of the number of its transmission.
const QUEUED: u32 = u32::MAX;

/// A block on its way to the peer.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) handle: Handle,
    pub(crate) color: Color,
    block: Box<[u8]>,
    /// Bytes of the block in a segment.
    segment: usize,
    /// The number of each segment's last transmission, from 1; 0 if there was none.
    transmissions: Vec<u32>,
    transmitted: u32,
    /// The segment that is sent first next.
    fresh: usize,
    /// What has arrived at the peer.
    arrived: Ranges,
    /// What is sent again, by the reports that asked for it.
    again: VecDeque<Again>,
    checkpoints: Vec<Sent>,
    next_serial: u64,
    reports: Vec<u64>,
}

/// Segments that are sent again; the last one is a checkpoint.
#[derive(Debug)]
struct Again {
    report: u64,
    segments: VecDeque<usize>,
}

/// A checkpoint that was sent.
#[derive(Debug)]
struct Sent {
    serial: u64,
    report: u64,
    segment: usize,
    /// What had been transmitted when it was sent first.
    transmission: u32,
    /// When that was, or `None` if it was sent again since: an answer then measures no round trip (Karn).
    at: Option<Time>,
    tries: u32,
    /// What the peer had said to have when it was sent first, and so has to say again.
    arrived: Ranges,
    is_answered: bool,
    /// It waits to be sent again.
    is_due: bool,
}

/// A report that does not claim what an earlier one did, or that speaks of bytes that were never sent: the peer
/// has been started anew, or is another one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inconsistent;

/// What a report has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of the block that have newly arrived.
    pub(crate) arrived: u64,
    /// Bytes of it that were lost.
    pub(crate) lost: u64,
    /// From the checkpoint to its report.
    pub(crate) round_trip: Option<Duration>,
    /// All has arrived.
    pub(crate) is_complete: bool,
}

/// A segment to send.
#[derive(Debug)]
pub(crate) struct Next<'a> {
    pub(crate) data: Data<'a>,
    /// The serial number, if it is a checkpoint.
    pub(crate) checkpoint: Option<u64>,
    /// It was sent before.
    pub(crate) is_repeated: bool,
}

impl Sending {
    /// A block that is cut into segments of so many bytes.
    pub(crate) fn new(handle: Handle, color: Color, block: Box<[u8]>, segment: usize, serial: u64) -> Self {
        // An empty block, too, has a segment.
        let count = block.len().div_ceil(segment).max(1);
        Self {
            handle,
            color,
            block,
            segment,
            transmissions: vec![0; count],
            transmitted: 0,
            fresh: 0,
            arrived: Ranges::default(),
            again: VecDeque::new(),
            checkpoints: Vec::new(),
            next_serial: serial,
            reports: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.block.len() as u64
    }

    /// Bytes that were never sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.len().saturating_sub((self.fresh * self.segment) as u64)
    }

    /// Whether segments have not been sent yet.
    pub(crate) fn has_fresh(&self) -> bool {
        self.fresh < self.transmissions.len()
    }

    /// Whether segments or checkpoints are to be sent again.
    pub(crate) fn has_repeats(&self) -> bool {
        !self.again.is_empty() || self.checkpoints.iter().any(|sent| sent.is_due)
    }

    /// The next segment to be sent: what was lost first.
    pub(crate) fn next(&mut self, now: Time, client: u64) -> Option<Next<'_>> {
        if let Some(index) = self.checkpoints.iter().position(|sent| sent.is_due) {
            let sent = &mut self.checkpoints[index];
            sent.is_due = false;
            sent.tries += 1;
            sent.at = None;
            let (segment, checkpoint) = (sent.segment, (sent.serial, sent.report));
            return Some(self.transmit(segment, Some(checkpoint), client, true));
        }
        if let Some(again) = self.again.front_mut() {
            let (report, segment) = (again.report, again.segments.pop_front()?);
            let checkpoint = again.segments.is_empty();
            if checkpoint {
                self.again.pop_front();
            }
            let checkpoint = checkpoint.then(|| self.checkpoint(now, segment, report));
            return Some(self.transmit(segment, checkpoint, client, true));
        }
        let segment = self.has_fresh().then_some(self.fresh)?;
        self.fresh += 1;
        let ends = segment + 1 == self.transmissions.len();
        let checkpoint = (ends && self.color == Color::Red).then(|| self.checkpoint(now, segment, 0));
        Some(self.transmit(segment, checkpoint, client, false))
    }

    fn checkpoint(&mut self, now: Time, segment: usize, report: u64) -> (u64, u64) {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.checkpoints.push(Sent {
            serial,
            report,
            segment,
            transmission: self.transmitted + 1,
            at: Some(now),
            tries: 1,
            arrived: self.arrived.clone(),
            is_answered: false,
            is_due: false,
        });
        (serial, report)
    }

    fn transmit(
        &mut self,
        segment: usize,
        checkpoint: Option<(u64, u64)>,
        client: u64,
        is_repeated: bool,
    ) -> Next<'_> {
        self.transmitted += 1;
        self.transmissions[segment] = self.transmitted;
        let from = segment * self.segment;
        let to = (from + self.segment).min(self.block.len());
        let ends_block = segment + 1 == self.transmissions.len();
        let part = match (self.color, checkpoint) {
            (Color::Green, _) => Part::Green { ends_block },
            (Color::Red, None) => Part::Red,
            (Color::Red, Some((serial, report))) => Part::Checkpoint(Checkpoint {
                serial,
                report,
                ends: if ends_block { Ends::Block } else { Ends::Nothing },
            }),
        };
        let data = Data { client, offset: from as u64, bytes: &self.block[from..to], part };
        Next { data, checkpoint: checkpoint.map(|(serial, _)| serial), is_repeated }
    }

    /// The timer of a checkpoint is over, and it is not sent again, because the peer is silent. `false` if it
    /// is answered, or if that has happened too often.
    pub(crate) fn held(&mut self, serial: u64, limit: u32) -> bool {
        let sent = self.checkpoints.iter_mut().find(|sent| sent.serial == serial && !sent.is_answered);
        sent.is_some_and(|sent| {
            sent.tries += 1;
            sent.tries <= limit
        })
    }

    /// The timer of a checkpoint is over: it is sent again. `false` if that has happened too often.
    pub(crate) fn timed_out(&mut self, serial: u64, limit: u32) -> bool {
        let Some(sent) = self.checkpoints.iter_mut().find(|sent| sent.serial == serial) else { return true };
        if !sent.is_answered {
            sent.is_due = sent.tries <= limit;
            return sent.is_due;
        }
        true
    }

    /// A report has come.
    pub(crate) fn reported(&mut self, now: Time, report: &Report) -> Result<Progress, Inconsistent> {
        if self.color == Color::Green || report.upper > self.len() {
            return Err(Inconsistent);
        }
        let mut progress = Progress::default();
        if self.reports.contains(&report.serial) {
            // Its acknowledgement was lost.
            return Ok(progress);
        }
        if self
            .checkpoints
            .iter()
            .any(|sent| sent.serial == report.checkpoint && !repeats(report, &sent.arrived))
        {
            return Err(Inconsistent);
        }
        self.reports.push(report.serial);
        let before = self.arrived.bytes();
        for &(from, to) in &report.claims {
            self.arrived.insert(from, to, |_, _| {});
        }
        progress.arrived = self.arrived.bytes() - before;
        // The last segment of an empty block has no bytes that could be claimed.
        let checkpoint = self.checkpoints.iter_mut().find(|sent| sent.serial == report.checkpoint);
        let asked = checkpoint.map(|sent| {
            if !std::mem::replace(&mut sent.is_answered, true) {
                progress.round_trip = sent.at.map(|at| now.since(at));
            }
            sent.is_due = false;
            sent.transmission
        });
        progress.is_complete = self.arrived.bytes() == self.len() && (self.len() > 0 || asked.is_some());
        if progress.is_complete {
            return Ok(progress);
        }
        if let Some(transmission) = asked {
            progress.lost = self.send_again(report.lower..report.upper, transmission, report.serial);
        }
        if self.is_stuck() {
            // A report that leaves out a part of what its checkpoint asked for: all that is missing.
            progress.lost += self.send_again(0..self.len(), self.transmitted, report.serial);
        }
        if self.is_stuck() { Err(Inconsistent) } else { Ok(progress) }
    }

    /// Whether neither anything is to be sent nor an answer to come.
    fn is_stuck(&self) -> bool {
        !self.has_fresh() && self.again.is_empty() && self.checkpoints.iter().all(|sent| sent.is_answered)
    }

    /// Queues what has not arrived of a range, though its last transmission was not after this one. Returns the
    /// bytes.
    fn send_again(&mut self, range: std::ops::Range<u64>, transmission: u32, report: u64) -> u64 {
        let mut again = Again { report, segments: VecDeque::new() };
        let (size, len) = (self.segment as u64, self.len());
        let mut bytes = 0;
        for segment in range.start / size..range.end.div_ceil(size) {
            let (from, to) = (segment * size, (segment * size + size).min(len));
            let segment = segment as usize;
            let last = self.transmissions[segment];
            let is_there = self.arrived.containing(from).is_some_and(|(_, end)| end >= to);
            if !is_there && last != 0 && last <= transmission {
                self.transmissions[segment] = QUEUED;
                again.segments.push_back(segment);
                bytes += to - from;
            }
        }
        if !again.segments.is_empty() {
            self.again.push_back(again);
        }
        bytes
    }
}

/// Whether a report claims again, within its bounds, what had been claimed before.
fn repeats(report: &Report, before: &Ranges) -> bool {
    let mut claimed = Ranges::default();
    for &(from, to) in &report.claims {
        claimed.insert(from, to, |_, _| {});
    }
    before.iter().all(|(from, to)| {
        let (from, to) = (from.max(report.lower), to.min(report.upper));
        from >= to || claimed.containing(from).is_some_and(|(_, end)| end >= to)
    })
}

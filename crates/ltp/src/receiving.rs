//! A session that receives a block.

use std::collections::BTreeMap;

use bentpipe_units::Ranges;

use crate::sdnv;
use crate::segment::{Checkpoint, Data, Ends, Part, Reason, Report};

/// The most reports of a session that were not acknowledged. A sender that acknowledges none and asks for more
/// gets no more.
const MAX_REPORTS: usize = 64;

/// A block on its way from the peer.
#[derive(Debug)]
pub(crate) struct Receiving {
    block: Vec<u8>,
    /// The length of a block that the client has, and for which it is not responsible yet.
    offered: u64,
    red: Ranges,
    green: Ranges,
    /// Where the red part ends, and the block.
    red_end: Option<u64>,
    end: Option<u64>,
    /// Reports that the sender has not acknowledged, and those that it has, by serial number.
    reports: BTreeMap<u64, Made>,
    next_serial: u64,
    /// Up to here reports on checkpoints that asked for the first time have reached.
    reported: u64,
    /// Checkpoints that are answered when the client has the block.
    waiting: Vec<Asked>,
    /// Whether the sender has been told that all is there.
    is_told: bool,
    /// Whether data have come since [`was_silent`](Self::was_silent) was asked.
    is_heard: bool,
    pub(crate) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Something is missing.
    Incomplete,
    /// The client has it, and has not said what becomes of it.
    Offered,
    /// The client is responsible for it.
    Accepted,
}

/// A report that was made.
#[derive(Debug)]
struct Made {
    checkpoint: u64,
    lower: u64,
    upper: u64,
    tries: u32,
    is_acknowledged: bool,
    is_due: bool,
}

/// A checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    serial: u64,
    lower: u64,
    upper: u64,
}

impl Receiving {
    pub(crate) fn new(serial: u64) -> Self {
        Self {
            block: Vec::new(),
            offered: 0,
            red: Ranges::default(),
            green: Ranges::default(),
            red_end: None,
            end: None,
            reports: BTreeMap::new(),
            next_serial: serial,
            reported: 0,
            waiting: Vec::new(),
            is_told: false,
            is_heard: false,
            state: State::Incomplete,
        }
    }

    /// Bytes of memory that its block takes, here or at the client.
    pub(crate) fn held(&self) -> u64 {
        self.block.len() as u64 + self.offered
    }

    /// The client is responsible for the block.
    pub(crate) fn accept(&mut self) {
        (self.state, self.offered) = (State::Accepted, 0);
    }

    /// Bytes of memory that it would take more with these data.
    pub(crate) fn would_hold(&self, data: &Data<'_>) -> u64 {
        if self.state != State::Incomplete {
            return 0;
        }
        (data.offset + data.bytes.len() as u64).saturating_sub(self.held())
    }

    /// Takes data.
    ///
    /// # Errors
    /// The session is to be cancelled.
    pub(crate) fn take(&mut self, data: &Data<'_>) -> Result<(), Reason> {
        self.is_heard = true;
        let (from, to) = (data.offset, data.offset + data.bytes.len() as u64);
        self.check_part(data.part, from, to)?;
        if let Part::Checkpoint(Checkpoint { ends: Ends::RedPart | Ends::Block, .. }) = data.part {
            self.red_end = Some(to);
        }
        if matches!(
            data.part,
            Part::Checkpoint(Checkpoint { ends: Ends::Block, .. }) | Part::Green { ends_block: true }
        ) {
            self.end = Some(to);
        }
        // Once complete, the block is the client's.
        if self.state == State::Incomplete {
            let ranges = if data.part.is_red() { &mut self.red } else { &mut self.green };
            let (block, bytes) = (&mut self.block, data.bytes);
            if block.len() < to as usize {
                block.resize(to as usize, 0);
            }
            // What has come already is not replaced.
            ranges.insert(from, to, |start, end| {
                let source = (start - from) as usize..(end - from) as usize;
                block[start as usize..end as usize].copy_from_slice(&bytes[source]);
            });
        }
        if let Part::Checkpoint(checkpoint) = data.part {
            self.asked(checkpoint, to);
        }
        Ok(())
    }

    /// Red data lie before green ones, and neither behind their part's end (RFC 5326 §6.21).
    fn check_part(&self, part: Part, from: u64, to: u64) -> Result<(), Reason> {
        let red_to = self.red_end.unwrap_or(u64::MAX);
        let green_from = self.green.iter().next().map_or(u64::MAX, |(start, _)| start);
        let red_from = self.red.end().unwrap_or(0);
        let is_possible = match part {
            Part::Green { ends_block } => {
                from >= red_from
                    && self.red_end.is_none_or(|end| from >= end)
                    && self.end.is_none_or(|end| to <= end && (!ends_block || to == end))
            }
            Part::Red => to <= red_to && to <= green_from,
            Part::Checkpoint(Checkpoint { ends, .. }) => {
                let is_end = ends != Ends::Nothing;
                let is_last = !is_end || (to >= red_from && self.red_end.is_none_or(|end| to == end));
                to <= red_to && to <= green_from && is_last
            }
        };
        is_possible.then_some(()).ok_or(Reason::Miscoloured)
    }

    fn asked(&mut self, checkpoint: Checkpoint, upper: u64) {
        // It has been sent again: its report may have been lost.
        let mut known = false;
        for made in self.reports.values_mut().filter(|made| made.checkpoint == checkpoint.serial) {
            made.is_due |= !made.is_acknowledged;
            known = true;
        }
        if known || self.waiting.iter().any(|asked| asked.serial == checkpoint.serial) {
            return;
        }
        // RFC 5326 §6.11: in answer to a report it asks for the same part, else for all since the last one.
        let bounds = match self.reports.get(&checkpoint.report) {
            Some(made) => (made.lower, made.upper),
            None => {
                let lower = self.reported.min(upper);
                self.reported = self.reported.max(upper);
                (lower, upper)
            }
        };
        if self.waiting.len() < MAX_REPORTS {
            self.waiting.push(Asked { serial: checkpoint.serial, lower: bounds.0, upper: bounds.1 });
        }
    }

    /// The block, once, when all of it is there.
    pub(crate) fn completed(&mut self) -> Option<Vec<u8>> {
        let red_end = self.red_end.unwrap_or(0);
        let is_complete = self
            .end
            .is_some_and(|end| self.red.bytes() == red_end && self.green.bytes() == end - red_end.min(end));
        if self.state != State::Incomplete || !is_complete {
            return None;
        }
        (self.state, self.offered) = (State::Offered, self.block.len() as u64);
        Some(std::mem::take(&mut self.block))
    }

    /// Makes the reports that are asked for. Those on a complete block wait until the client is responsible for
    /// it: the sender forgets it then.
    pub(crate) fn make_reports(&mut self, room: usize) {
        if self.state == State::Offered {
            return;
        }
        for Asked { serial, mut lower, mut upper } in std::mem::take(&mut self.waiting) {
            let is_accepted = self.state == State::Accepted;
            if is_accepted {
                // All of it: the sender may have asked for several parts, and has to hear it once only.
                (lower, upper) = (0, self.red_end.unwrap_or(upper));
            }
            let unacknowledged = self.reports.values().filter(|made| !made.is_acknowledged).count();
            let bounds = self.split(lower, upper, room);
            if unacknowledged + bounds.len() > MAX_REPORTS {
                // It asks again when its timer is over.
                continue;
            }
            self.is_told |= is_accepted;
            for (lower, upper) in bounds {
                let made =
                    Made { checkpoint: serial, lower, upper, tries: 0, is_acknowledged: false, is_due: true };
                self.reports.insert(self.next_serial, made);
                self.next_serial += 1;
            }
        }
    }

    /// The bounds of the reports that say what has arrived between two, each of at most so many bytes of
    /// claims.
    fn split(&self, lower: u64, upper: u64, room: usize) -> Vec<(u64, u64)> {
        let (mut bounds, mut from, mut used) = (Vec::new(), lower, 0);
        for (start, end) in self.claims(lower, upper) {
            let len = sdnv::len(start - from) + sdnv::len(end - start);
            if used + len > room && used > 0 {
                bounds.push((from, start));
                (from, used) = (start, 0);
            }
            used += len;
        }
        bounds.push((from, upper));
        bounds
    }

    fn claims(&self, lower: u64, upper: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let within = self.red.iter().map(move |(from, to)| (from.max(lower), to.min(upper)));
        within.filter(|(from, to)| from < to)
    }

    /// Whether reports are to be sent.
    pub(crate) fn has_reports(&self) -> bool {
        self.reports.values().any(|made| made.is_due)
    }

    /// The next report to send.
    pub(crate) fn next_report(&mut self) -> Option<Report> {
        let (&serial, made) = self.reports.iter_mut().find(|(_, made)| made.is_due)?;
        made.is_due = false;
        made.tries += 1;
        let Made { checkpoint, lower, upper, .. } = *made;
        Some(Report { serial, checkpoint, lower, upper, claims: self.claims(lower, upper).collect() })
    }

    /// The timer of a report is over: it is sent again. `false` if that has happened too often.
    pub(crate) fn timed_out(&mut self, serial: u64, limit: u32) -> bool {
        let Some(made) = self.reports.get_mut(&serial).filter(|made| !made.is_acknowledged) else {
            return true;
        };
        made.is_due = made.tries <= limit;
        made.is_due
    }

    /// The sender has acknowledged a report.
    pub(crate) fn acknowledged(&mut self, serial: u64) {
        if let Some(made) = self.reports.get_mut(&serial) {
            made.is_acknowledged = true;
            made.is_due = false;
        }
    }

    /// Whether nothing has come since the last call, though something should have.
    pub(crate) fn was_silent(&mut self) -> bool {
        let is_heard = std::mem::take(&mut self.is_heard);
        !is_heard && self.state != State::Offered
    }

    /// Whether the client has the block, and the sender knows it.
    pub(crate) fn is_over(&self) -> bool {
        let is_green = self.red_end.is_none() && self.red.is_empty();
        self.state == State::Accepted
            && (is_green || self.is_told)
            && self.waiting.is_empty()
            && self.reports.values().all(|made| made.is_acknowledged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(offset: u64, serial: u64, ends: Ends) -> Data<'static> {
        let part = Part::Checkpoint(Checkpoint { serial, report: 0, ends });
        Data { client: 1, offset, bytes: b"x", part }
    }

    #[test]
    fn a_session_is_not_over_before_the_sender_could_be_told() {
        let mut receiving = Receiving::new(1);
        let last = MAX_REPORTS as u64;
        for at in 0..last {
            receiving.take(&checkpoint(at, at + 1, Ends::Nothing)).unwrap();
            receiving.make_reports(100);
        }
        receiving.take(&checkpoint(last, last + 1, Ends::Block)).unwrap();
        assert!(receiving.completed().is_some());
        receiving.accept();
        // There is no room for one more report: none of those before has been acknowledged.
        receiving.make_reports(100);
        (1..=last).for_each(|serial| receiving.acknowledged(serial));
        assert!(!receiving.is_over());
        receiving.take(&checkpoint(last, last + 1, Ends::Block)).unwrap();
        receiving.make_reports(100);
        let claims = std::iter::from_fn(|| receiving.next_report()).last().unwrap().claims;
        assert_eq!(claims, [(0, last + 1)]);
        receiving.acknowledged(last + 1);
        assert!(receiving.is_over());
    }
}

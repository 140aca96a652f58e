//! The receiver of frames, which reports what has arrived.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bentpipe_units::Time;

use super::frame::MAX_RANGES;
use super::{ArqConfig, ArqFrame, Output, Packet, Report, pop_front_if};

/// Limit of the recorded gaps. A further gap is merged with the last one, and the frames between them are
/// retransmitted unnecessarily.
const MAX_GAPS: usize = 4096;

/// Which serials of one incarnation of the sender have arrived.
///
/// The link delivers in order: a serial below the highest one that has not arrived is lost.
#[derive(Debug)]
pub(super) struct Reporter {
    every: u32,
    within: Duration,
    incarnation: Option<u32>,
    /// The incarnation before, whose frames may be late on a path that reorders.
    former: Option<u32>,
    /// The serial after the highest one.
    next: u64,
    arrived_at: Time,
    /// The sender knows the fate of all serials below.
    settled: u64,
    /// Serials that have not arrived, from `settled` on, in order.
    gaps: VecDeque<Range<u64>>,
    /// Where the next report begins, if the one before did not have room for all gaps.
    resume_at: u64,
    unreported: u32,
    report_at: Time,
}

/// The origin of a frame, from the receiver's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The present incarnation of the sender.
    Known,
    /// A new incarnation.
    New,
    /// The former incarnation.
    Former,
}

impl Reporter {
    pub(super) fn new(config: &ArqConfig) -> Self {
        Self {
            every: config.report_every,
            within: config.report_within,
            incarnation: None,
            former: None,
            next: 0,
            arrived_at: Time::ZERO,
            settled: 0,
            gaps: VecDeque::new(),
            resume_at: 0,
            unreported: 0,
            report_at: Time::MAX,
        }
    }

    pub(super) fn origin(&self, incarnation: u32) -> Origin {
        match incarnation {
            known if self.incarnation == Some(known) => Origin::Known,
            former if self.former == Some(former) => Origin::Former,
            _ => Origin::New,
        }
    }

    /// Begins with another incarnation, of which this serial is the first to arrive.
    pub(super) fn begin(&mut self, incarnation: u32, serial: u64, settled: u64) {
        let settled = settled.min(serial);
        self.former = self.incarnation.replace(incarnation);
        (self.next, self.settled, self.resume_at) = (settled, settled, settled);
        self.gaps.clear();
        self.unreported = 0;
        self.report_at = Time::MAX;
    }

    pub(super) fn on_data<P: Packet>(&mut self, now: Time, serial: u64, settled: u64, out: &mut Output<P>) {
        self.settle(settled);
        let has_new_gap = serial > self.next;
        if has_new_gap {
            self.open_gap(self.next.max(self.settled)..serial);
        }
        if serial >= self.next {
            self.next = serial.saturating_add(1);
            self.arrived_at = now;
        }
        self.unreported = self.unreported.saturating_add(1);
        if has_new_gap || self.unreported >= self.every {
            self.report(now, out);
        } else {
            self.report_at = self.report_at.min(now + self.within);
        }
    }

    pub(super) fn wake_at(&self) -> Time {
        self.report_at
    }

    pub(super) fn on_timer<P: Packet>(&mut self, now: Time, out: &mut Output<P>) {
        if self.report_at <= now {
            self.report(now, out);
        }
    }

    /// Removes gaps that the sender knows of.
    fn settle(&mut self, settled: u64) {
        self.settled = self.settled.max(settled.min(self.next));
        while pop_front_if(&mut self.gaps, |gap| gap.end <= self.settled).is_some() {}
        if let Some(first) = self.gaps.front_mut() {
            first.start = first.start.max(self.settled);
        }
    }

    fn open_gap(&mut self, gap: Range<u64>) {
        let is_full = self.gaps.len() >= MAX_GAPS;
        match self.gaps.back_mut() {
            Some(last) if is_full || last.end == gap.start => last.end = gap.end,
            _ => self.gaps.push_back(gap),
        }
    }

    fn report<P: Packet>(&mut self, now: Time, out: &mut Output<P>) {
        let Some(incarnation) = self.incarnation else { return };
        let start = self.resume_at.max(self.settled);
        let first = self.gaps.partition_point(|gap| gap.end <= start);
        let mut gaps = self.gaps.range(first..);
        let missing: Vec<_> =
            gaps.by_ref().take(MAX_RANGES).map(|gap| gap.start.max(start)..gap.end).collect();
        let unlisted = gaps.next().map(|gap| gap.start);
        let end = unlisted.unwrap_or(self.next);
        let delay = unlisted.is_none().then(|| now.since(self.arrived_at));
        // The rest follows soon, even if no frame arrives.
        self.report_at = if unlisted.is_some() { now + self.within } else { Time::MAX };
        self.resume_at = unlisted.unwrap_or(0);
        self.unreported = 0;
        let report = Report { incarnation, covers: start..end, missing, delay };
        out.counters.reports_sent += 1;
        out.counters.report_bytes += report.length() as u64;
        out.frames.push_back(ArqFrame::Report(report));
    }
}

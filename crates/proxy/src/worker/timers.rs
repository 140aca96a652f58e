//! A worker's timers: silent clients, idle flows, memory, draining, retirement.

use std::time::{Duration, Instant};

use rustix::event::Timespec;

use super::Worker;
use crate::flow::{FlowError, Seconds};

/// How often draining flows are checked, should the kernel have closed one without an event.
pub(super) const SWEEP: Duration = Duration::from_secs(5);
/// How often every flow is inspected: its memory and its idle time.
const ROUND: Duration = Duration::from_secs(1);
/// The start of the worker's clock, seconds: imported flows may have been idle for as long.
const BEGINNING: u32 = 1 << 30;
/// The parts of a round, so that many flows are not inspected all at once.
const ROUND_PARTS: u32 = 8;

impl Worker {
    /// The things that are due by the clock.
    pub(super) fn run_timers(&mut self) {
        let now = Instant::now();
        while let Some(accepted) = self.awaiting_data.take_overdue(&self.epoll, now) {
            self.open(accepted);
        }
        if self.resume_accepting.is_some_and(|at| at <= now) {
            self.try_to_resume(now);
        }
        if !self.draining.is_empty() && self.next_sweep <= now {
            self.next_sweep = now + SWEEP;
            self.sweep_draining();
        }
        if self.flows.places() > 0 && self.next_inspection <= now {
            self.next_inspection = now + ROUND / ROUND_PARTS;
            self.inspect_some(now);
        }
        self.push_early_answers(now);
        self.send_probes(now);
        if self.next_retirement.is_some_and(|at| at <= now) {
            self.retire_listeners(now);
        }
    }

    /// One part of the round.
    pub(super) fn inspect_some(&mut self, now: Instant) {
        let seconds = self.clock(now);
        let count = self.flows.places().div_ceil(ROUND_PARTS as usize);
        for key in self.flows.keys(self.next_place, count) {
            let Some(flow) = self.flows.get_mut(key) else { continue };
            let found = flow.inspect(seconds, self.patience);
            let to_probe = flow.look(now);
            self.account(found.memory_before, found.memory);
            if found.expired {
                self.counters.flows_expired.add(1);
                self.reset(key, &FlowError::idle());
            } else {
                self.probe_from_now_on(key, to_probe.into_iter().flatten(), now);
            }
        }
        self.next_place =
            if self.next_place + count < self.flows.places() { self.next_place + count } else { 0 };
    }

    /// The worker's clock.
    pub(super) fn clock(&self, now: Instant) -> Seconds {
        let passed = now.saturating_duration_since(self.epoch).as_secs();
        Seconds(u32::try_from(passed).unwrap_or(u32::MAX).saturating_add(BEGINNING))
    }

    /// A flow's buffers take `after` bytes where they took `before`.
    pub(super) fn account(&mut self, before: usize, after: usize) {
        self.buffered = self.buffered.saturating_sub(before as u64) + after as u64;
        self.counters.buffered.set(self.buffered);
    }

    pub(super) fn sweep_draining(&mut self) {
        let mut keys = std::mem::take(&mut self.draining);
        keys.iter().for_each(|&key| self.poll_flow(key));
        keys.retain(|&key| self.flows.get_mut(key).is_some());
        self.draining = keys;
    }

    /// How long to wait for events: for ever, unless something is due.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        if !self.ready.is_empty() || !self.to_rejoin.is_empty() || !self.surveys.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let sweep = (!self.draining.is_empty()).then_some(self.next_sweep);
        let inspection = (self.flows.places() > 0).then_some(self.next_inspection);
        let probe = self.probes.due();
        let accepting = [self.next_retirement, self.resume_accepting, self.awaiting_data.due()];
        let due = [sweep, inspection, probe, self.early_answers.due()]
            .into_iter()
            .chain(accepting)
            .flatten()
            .min()?;
        Timespec::try_from(due.saturating_duration_since(Instant::now())).ok()
    }
}

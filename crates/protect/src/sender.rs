//! The sending half of one direction: which frame comes next.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use bentpipe_units::Time;
use serde::{Deserialize, Serialize};

use crate::compress::Compressor;
use crate::config::{ClassConfig, Config};
use crate::encoder::Encoder;
use crate::frame::{Class, Report};
use crate::loss::LossEstimate;
use crate::window::{Esi, Window};

/// A burst of traffic is over when nothing has come for so long.
const TAIL_DELAY: Duration = Duration::from_millis(4);
/// Requests of a packet that was sent again less than this share of a round trip ago are those of before.
const ANSWERED_FOR: f64 = 0.8;
/// Standard deviations of losses that the repair symbols behind a retransmission cover, and those at the end
/// of a burst of traffic; nothing else repairs the class `latency`.
const DEVIATIONS: [f64; 2] = [5.0, 3.0];

/// A frame to be sent that is no new packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// A packet once more.
    Retransmit(Class, Esi),
    /// A repair symbol.
    Repair(Class, Window),
}

/// What a sender has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SenderStats {
    /// Packets, each once.
    pub packets: u64,
    /// Their bytes.
    pub packet_bytes: u64,
    /// Bytes of their forms, in which headers may be compressed.
    pub form_bytes: u64,
    /// Repair symbols, those behind retransmissions among them.
    pub repairs: u64,
    /// Packets that were sent again.
    pub retransmissions: u64,
}

/// Encoders, redundancy and retransmissions of both classes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sender {
    classes: [ClassSender; 2],
    pub(crate) estimate: LossEstimate,
    pub(crate) compressor: Compressor,
    pub(crate) stats: SenderStats,
    max_redundancy: f64,
    /// Whether the last frame was a retransmission: they get every second frame at most.
    retransmitted: bool,
}

impl Sender {
    pub(crate) fn new(config: &Config, estimate: LossEstimate) -> Self {
        Self {
            classes: Class::ALL.map(|class| ClassSender::new(class, *config.class(class))),
            estimate,
            compressor: Compressor::new(config.contexts),
            stats: SenderStats::default(),
            max_redundancy: config.max_redundancy,
            retransmitted: false,
        }
    }

    /// The number that the next packet of each class gets.
    pub(crate) fn ends(&self) -> [Esi; 2] {
        std::array::from_fn(|index| self.classes[index].encoder.end())
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.encoder.held_bytes()).sum()
    }

    pub(crate) fn encoder(&mut self, class: Class) -> &mut Encoder {
        &mut self.classes[class.index()].encoder
    }

    /// What goes before new packets.
    pub(crate) fn urgent(&mut self, now: Time, rtt: Duration) -> Option<Job> {
        let (estimate, most) = (&self.estimate, self.max_redundancy);
        self.classes.iter_mut().for_each(|class| class.owe(now, rtt, estimate, most));
        let repair = self.classes.iter_mut().find_map(ClassSender::owed_repair);
        repair.or_else(|| {
            let yields = std::mem::take(&mut self.retransmitted);
            if yields { None } else { self.retransmission() }
        })
    }

    /// What is sent where there is no new packet.
    pub(crate) fn idle(&mut self) -> Option<Job> {
        self.retransmission().or_else(|| self.classes.iter_mut().find_map(|class| class.extra(true)))
    }

    fn retransmission(&mut self) -> Option<Job> {
        let job =
            self.classes.iter_mut().find_map(|class| class.retransmission().or_else(|| class.extra(false)));
        self.retransmitted |= job.is_some();
        job
    }

    /// Takes a new packet; its number.
    pub(crate) fn push(&mut self, class: Class, packet: Vec<u8>, now: Time, rtt: Duration) -> Esi {
        self.stats.packets += 1;
        self.stats.packet_bytes += packet.len() as u64;
        let needs_from = std::array::from_fn(|index| self.classes[index].needs_from);
        let sender = &mut self.classes[class.index()];
        let form = self.compressor.compress(packet, class.index(), sender.encoder.end(), needs_from, now);
        self.stats.form_bytes += form.len() as u64;
        sender.push(form, now, rtt, &self.estimate, self.max_redundancy)
    }

    /// Counts a frame, which moves those on that are sent a distance behind others.
    pub(crate) fn on_sent(&mut self, job: Option<&Job>) {
        match job {
            Some(Job::Repair(..)) => self.stats.repairs += 1,
            Some(Job::Retransmit(..)) => self.stats.retransmissions += 1,
            None => {}
        }
        self.classes.iter_mut().for_each(|class| class.sent += 1);
    }

    pub(crate) fn on_report(&mut self, report: &Report, now: Time, rtt: Duration) {
        self.estimate.on_report(report);
        self.compressor.on_confirmed(&report.confirmed);
        for (class, needs_from) in self.classes.iter_mut().zip(report.needs_from) {
            class.on_needs_from(needs_from);
        }
        let bulk = &mut self.classes[Class::Bulk.index()];
        bulk.on_requests(&report.requests, now, rtt, &self.estimate);
    }

    /// When [`urgent`](Self::urgent) will have something although nothing happens; now, if it has.
    pub(crate) fn wake_at(&self, rtt: Duration) -> Option<Time> {
        let classes = self.classes.iter().filter_map(|class| class.wake_at(rtt)).min();
        classes.into_iter().chain(self.compressor.wake_at(rtt)).min()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct ClassSender {
    class: Class,
    config: ClassConfig,
    encoder: Encoder,
    /// Repair symbols for each packet, as the peer's reports ask for.
    ratio: f64,
    /// Repair symbols that new packets have earned; a symbol is sent for each whole one.
    credit: f64,
    /// Repair symbols to be sent now.
    owed: u32,
    /// The first packet since the last repair symbol, and when it came.
    unprotected: Option<(Esi, Time)>,
    /// When the last packet came.
    last: Time,
    /// When packets came, once each eighth of the code's time: they tell how many come in that time.
    marks: VecDeque<(Time, Esi)>,
    /// Packets and repair symbols since traffic last paused.
    since_pause: (u64, u64),
    needs_from: Esi,
    requested: VecDeque<Esi>,
    answered: BTreeMap<Esi, Time>,
    extras: VecDeque<Extra>,
    /// Frames that have been sent.
    sent: u64,
}

/// Repair symbols behind a retransmission.
#[derive(Debug, Serialize, Deserialize)]
struct Extra {
    window: Window,
    count: u32,
    /// When so many frames have been sent: further away than a burst is long.
    after: u64,
}

impl ClassSender {
    fn new(class: Class, config: ClassConfig) -> Self {
        Self {
            class,
            config,
            encoder: Encoder::new(config.memory),
            ratio: 0.0,
            credit: 0.0,
            owed: 0,
            unprotected: None,
            last: Time::ZERO,
            marks: VecDeque::new(),
            since_pause: (0, 0),
            needs_from: 0,
            requested: VecDeque::new(),
            answered: BTreeMap::new(),
            extras: VecDeque::new(),
            sent: 0,
        }
    }

    fn push(&mut self, packet: Vec<u8>, now: Time, rtt: Duration, estimate: &LossEstimate, most: f64) -> Esi {
        let esi = self.encoder.push(packet);
        self.unprotected.get_or_insert((esi, now));
        self.last = now;
        self.since_pause.0 += 1;
        self.set_ratio(now, rtt, estimate, most);
        self.credit += self.ratio;
        if self.credit >= 1.0 {
            self.credit -= 1.0;
            self.owed += 1;
        }
        esi
    }

    /// Finds the redundancy anew, eight times in the code's time.
    fn set_ratio(&mut self, now: Time, rtt: Duration, estimate: &LossEstimate, most: f64) {
        let span = self.config.code_time(rtt);
        if self.marks.back().is_some_and(|mark| now < mark.0 + span / 8) {
            return;
        }
        self.marks.push_back((now, self.encoder.end()));
        while self.marks.len() > 2 && self.marks[1].0 + span <= now {
            self.marks.pop_front();
        }
        // As many as have come in this time; at the start, as many as the window has.
        let (since, first) = self.marks[0];
        let packets = match now - since {
            Duration::ZERO => self.config.window as f64,
            elapsed => (self.encoder.end() - first) as f64 * (span.as_secs_f64() / elapsed.as_secs_f64()),
        };
        let horizon = packets.clamp(8.0, self.config.window as f64);
        self.ratio = estimate.redundancy(horizon, packets.max(8.0) * self.config.failure).min(most);
    }

    /// Where traffic pauses, or is so slow that its credit takes too long, what has no repair symbol gets
    /// some.
    fn owe(&mut self, now: Time, rtt: Duration, estimate: &LossEstimate, most: f64) {
        if self.flush_at(rtt).is_none_or(|at| now < at) {
            return;
        }
        let pauses = self.last + TAIL_DELAY <= now;
        let unprotected = self.unprotected.take().map_or(0, |(first, _)| self.encoder.end() - first);
        let wanted = |packets: u64| {
            let packets = packets as f64;
            let repairs = estimate.repairs_for(packets, DEVIATIONS[self.class.index()]);
            libm::ceil(repairs.min(packets * most)) as u64
        };
        let mut repairs = wanted(unprotected.min(self.config.window)).max(u64::from(unprotected > 0));
        if pauses {
            // A short burst gets as many as it would need if they all came at its end.
            let (packets, sent) = std::mem::take(&mut self.since_pause);
            if packets <= self.config.window {
                repairs = repairs.max(wanted(packets).saturating_sub(sent));
            }
        }
        self.credit = (self.credit - repairs as f64).max(0.0);
        self.owed += repairs as u32;
    }

    fn flush_at(&self, rtt: Duration) -> Option<Time> {
        if self.ratio == 0.0 {
            return None;
        }
        let pause = (self.since_pause.0 > 0).then_some(self.last + TAIL_DELAY);
        let slow = self.unprotected.map(|(_, since)| since + self.config.code_time(rtt) * 3 / 4);
        pause.into_iter().chain(slow).min()
    }

    fn wake_at(&self, rtt: Duration) -> Option<Time> {
        let busy = self.owed > 0 || !self.requested.is_empty() || !self.extras.is_empty();
        if busy { Some(Time::ZERO) } else { self.flush_at(rtt) }
    }

    fn owed_repair(&mut self) -> Option<Job> {
        self.owed = self.owed.checked_sub(1)?;
        let end = self.encoder.end();
        let first = end.saturating_sub(self.config.window).max(self.needs_from).max(self.encoder.base());
        let window = Window::of(first..end);
        if window.is_none() {
            self.owed = 0;
        }
        self.unprotected = None;
        self.since_pause.1 += u64::from(self.since_pause.0 > 0);
        window.map(|window| Job::Repair(self.class, window))
    }

    fn on_needs_from(&mut self, needs_from: Esi) {
        self.needs_from = self.needs_from.max(needs_from.min(self.encoder.end()));
        self.encoder.forget_before(self.needs_from);
        self.answered = self.answered.split_off(&self.needs_from);
    }

    fn on_requests(&mut self, requests: &[Range<Esi>], now: Time, rtt: Duration, estimate: &LossEstimate) {
        let mut fresh = Vec::new();
        for range in requests {
            for esi in range.start.max(self.encoder.base())..range.end.min(self.encoder.end()) {
                let answered = self.answered.get(&esi);
                if answered.is_none_or(|at| now.since(*at) >= rtt.mul_f64(ANSWERED_FOR)) {
                    self.answered.insert(esi, now);
                    fresh.push(esi);
                }
            }
        }
        let distance = if estimate.burst() < 2.0 { 0 } else { (2.0 * estimate.burst()) as u64 };
        let after = self.sent + 2 * (self.requested.len() + fresh.len()) as u64 + distance;
        let mut rest = &fresh[..];
        while let Some(window) = Window::of(rest.iter().copied()) {
            let packets = window.count();
            rest = &rest[packets as usize..];
            let repairs = libm::ceil(estimate.repairs_for(packets as f64, DEVIATIONS[self.class.index()]));
            let count = (repairs as u64).clamp(1, packets) as u32;
            self.extras.push_back(Extra { window, count, after });
        }
        self.requested.extend(fresh);
    }

    fn retransmission(&mut self) -> Option<Job> {
        let known = |esi: &Esi| *esi >= self.encoder.base();
        let esi = std::iter::from_fn(|| self.requested.pop_front()).find(known)?;
        Some(Job::Retransmit(self.class, esi))
    }

    /// A repair symbol behind a retransmission, if it is far enough behind, or nothing else is there.
    fn extra(&mut self, idle: bool) -> Option<Job> {
        loop {
            let base = self.encoder.base();
            let extra = self.extras.front_mut()?;
            if !idle && extra.after > self.sent {
                return None;
            }
            // What the peer does not need any more is no part of it.
            let window = Window::of(extra.window.symbols().filter(|esi| *esi >= base));
            extra.count -= 1;
            if extra.count == 0 || window.is_none() {
                self.extras.pop_front();
            }
            if let Some(window) = window {
                return Some(Job::Repair(self.class, window));
            }
        }
    }
}

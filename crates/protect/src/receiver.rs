//! The receiving half of one direction: what is delivered, asked for and given up.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use bentpipe_units::Time;
use serde::{Deserialize, Serialize};

use crate::compress::{ContextId, Expander};
use crate::config::{ClassConfig, Config};
use crate::decoder::{Decoder, Outcome};
use crate::frame::{Class, MAX_REQUESTS, fits_behind};
use crate::header::Template;
use crate::window::{Esi, Window};

/// Packets that come out of order by so much are not lost yet.
const REORDERING: Duration = Duration::from_millis(5);
/// A request is repeated in the reports of this share of a round trip, as reports are lost, too.
const REPEAT: u32 = 2;
/// What an answer may take longer than a round trip, as a share of it …
const MARGIN: u32 = 4;
/// … but at least this, where the round trip is short.
const LEAST_MARGIN: Duration = Duration::from_millis(20);

/// What became of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReceiverStats {
    /// Packets that were delivered.
    pub delivered: u64,
    /// Packets that the code repaired, whether with symbols of the window or with those behind a
    /// retransmission.
    pub repaired: u64,
    /// Packets that were asked for.
    pub requested: u64,
    /// Packets of the class `bulk` that were skipped. Those that came later all the same were delivered then,
    /// too.
    pub skipped: u64,
    /// Frames that told nothing new.
    pub redundant: u64,
    /// Symbols that contradicted others: the peer is broken.
    pub contradictions: u64,
    /// Packets that were not delivered because what their headers leave out is not known any more: they were
    /// skipped, and came late. More of them come from a peer that is broken.
    pub unknown_contexts: u64,
}

/// Decoders and order of both classes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receiver {
    classes: [ClassReceiver; 2],
    arq_rounds: u32,
    pub(crate) expander: Expander,
    pub(crate) stats: ReceiverStats,
    #[serde(skip)]
    known: Vec<Esi>,
    /// The packet that is delivered.
    #[serde(skip)]
    packet: Vec<u8>,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Self {
        let class = |class| ClassReceiver::new(class, *config.class(class));
        let classes = Class::ALL.map(class);
        Self {
            classes,
            arq_rounds: config.arq_rounds,
            expander: Expander::default(),
            stats: ReceiverStats::default(),
            known: Vec::new(),
            packet: Vec::new(),
        }
    }

    /// The numbers behind the last packets heard of.
    pub(crate) fn ends(&self) -> [Esi; 2] {
        std::array::from_fn(|index| self.classes[index].decoder.end())
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.classes.iter().map(|class| class.decoder.held_bytes()).sum()
    }

    pub(crate) fn needs_from(&self) -> [Esi; 2] {
        std::array::from_fn(|index| self.classes[index].needs_from())
    }

    pub(crate) fn on_source(&mut self, class: Class, esi: Esi, packet: &[u8], now: Time) {
        self.known.clear();
        let receiver = &mut self.classes[class.index()];
        receiver.heard_of(esi, now, &mut self.stats);
        // The one in order is never missing.
        receiver.heard = receiver.heard.max(esi + 1);
        let outcome = receiver.decoder.on_source(esi, packet, &mut self.known);
        self.after(class, outcome, 1, now);
    }

    pub(crate) fn on_repair(&mut self, class: Class, key: u16, window: &Window, symbol: &[u8], now: Time) {
        self.known.clear();
        let receiver = &mut self.classes[class.index()];
        receiver.on_repair_of(window, now);
        receiver.heard_of(window.end(), now, &mut self.stats);
        let outcome = receiver.decoder.on_repair(key, window, symbol, &mut self.known);
        self.after(class, outcome, 0, now);
    }

    /// The peer says how many packets it has sent: what ends a burst of traffic may be lost.
    pub(crate) fn on_sent(&mut self, next: [Esi; 2], now: Time) {
        for (receiver, next) in self.classes.iter_mut().zip(next) {
            receiver.heard_of(next, now, &mut self.stats);
        }
    }

    fn after(&mut self, class: Class, outcome: Outcome, arrived: usize, now: Time) {
        match outcome {
            Outcome::Useful => {}
            Outcome::Redundant | Outcome::TooOld => self.stats.redundant += 1,
            Outcome::Contradiction => self.stats.contradictions += 1,
        }
        self.stats.repaired += self.known.len().saturating_sub(arrived) as u64;
        self.classes[class.index()].on_known(&self.known, now, &mut self.stats);
    }

    /// Asks for what the code will not repair in time, and gives up what does not come. Whether there is
    /// something new to ask for.
    pub(crate) fn on_timer(&mut self, now: Time, rtt: Duration) -> bool {
        let (rounds, stats) = (self.arq_rounds, &mut self.stats);
        self.classes[Class::Bulk.index()].check(now, rtt, rounds, stats)
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.classes[Class::Bulk.index()].check_at
    }

    /// What to ask for in a report that is sent now.
    pub(crate) fn requests(&self, now: Time, rtt: Duration) -> Vec<Range<Esi>> {
        self.classes[Class::Bulk.index()].requests(now, rtt)
    }

    /// The next packet to be delivered.
    pub(crate) fn next_packet(&mut self) -> Option<(Class, &[u8])> {
        loop {
            let index = self.classes.iter().position(|class| !class.ready.is_empty())?;
            let receiver = &mut self.classes[index];
            let esi = receiver.ready.pop_front()?;
            // What was forgotten since then is not delivered: the caller has not asked for too long.
            let Some(form) = receiver.decoder.packet(esi) else { continue };
            self.packet.clear();
            if self.expander.expand(form, index, esi, &mut self.packet).is_err() {
                self.stats.unknown_contexts += 1;
                continue;
            }
            self.stats.delivered += 1;
            return Some((Class::ALL[index], &self.packet));
        }
    }

    /// The peer tells what packets that follow leave out.
    pub(crate) fn on_contexts(&mut self, contexts: &[(ContextId, Template)]) {
        let needs_from = self.needs_from();
        for (id, template) in contexts {
            self.expander.on_opening(*id, *template, needs_from);
        }
    }
}

/// A packet of the class `bulk` that others have overtaken.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Missing {
    since: Time,
    requested: Option<Time>,
    rounds: u32,
    given_up: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct ClassReceiver {
    class: Class,
    config: ClassConfig,
    decoder: Decoder,
    /// To be delivered, in this order.
    ready: VecDeque<Esi>,
    /// For `bulk`: all before it are ready or given up.
    next: Esi,
    /// The number behind the last packet that was heard of.
    heard: Esi,
    missing: BTreeMap<Esi, Missing>,
    /// When to look at what is missing.
    check_at: Option<Time>,
    /// When the last symbol of the sliding window came, and the mean time between them.
    repairs: Option<(Time, Duration)>,
    /// When the last packet that was asked for became known.
    progress: Time,
}

impl ClassReceiver {
    fn new(class: Class, config: ClassConfig) -> Self {
        Self {
            class,
            decoder: Decoder::new(config.memory),
            config,
            ready: VecDeque::new(),
            next: 0,
            heard: 0,
            missing: BTreeMap::new(),
            check_at: None,
            repairs: None,
            progress: Time::ZERO,
        }
    }

    fn needs_from(&self) -> Esi {
        match self.class {
            Class::Bulk => self.next,
            Class::Latency => {
                let end = self.decoder.end();
                let mut window = end.saturating_sub(self.config.window).max(self.decoder.base())..end;
                window.find(|esi| self.decoder.packet(*esi).is_none()).unwrap_or(end)
            }
        }
    }

    /// Packets that may wait for one before them: what memory has beyond the window of the code.
    fn most_held(&self) -> Esi {
        (self.config.memory.symbols as Esi).saturating_sub(self.config.window).max(1)
    }

    /// All packets before `end` were sent: those that are not known are missing from now on.
    fn heard_of(&mut self, end: Esi, now: Time, stats: &mut ReceiverStats) {
        if self.class != Class::Bulk || end <= self.heard {
            return;
        }
        // So many wait that the first one is given up, whatever has been asked for.
        let first = end.saturating_sub(self.most_held());
        if first > self.next {
            self.skip_to(first, stats);
        }
        let missing = Missing { since: now, requested: None, rounds: 0, given_up: false };
        for esi in self.heard.max(self.next)..end {
            self.missing.insert(esi, missing);
        }
        self.heard = end;
        self.look_at(now + REORDERING);
    }

    fn skip_to(&mut self, first: Esi, stats: &mut ReceiverStats) {
        let known_from = self.next.max(self.decoder.base());
        for esi in known_from..first.min(self.decoder.end()) {
            if self.decoder.packet(esi).is_some() {
                self.ready.push_back(esi);
            }
        }
        let kept = self.missing.split_off(&first);
        stats.skipped += self.missing.len() as u64;
        self.missing = kept;
        self.next = first;
        self.heard = self.heard.max(first);
    }

    fn look_at(&mut self, at: Time) {
        self.check_at = Some(self.check_at.map_or(at, |before| before.min(at)));
    }

    /// Notes how often symbols of the sliding window come: those that reach to what was sent last.
    fn on_repair_of(&mut self, window: &Window, now: Time) {
        if window.end() + 4 < self.decoder.end() {
            return;
        }
        self.repairs = Some(match self.repairs {
            None => (now, Duration::MAX),
            Some((last, Duration::MAX)) => (now, now - last),
            Some((last, mean)) => (now, (mean * 7 + (now - last)) / 8),
        });
    }

    fn on_known(&mut self, known: &[Esi], now: Time, stats: &mut ReceiverStats) {
        if self.class == Class::Latency {
            self.ready.extend(known);
            return;
        }
        for esi in known {
            match self.missing.remove(esi) {
                Some(missing) if missing.requested.is_some() => self.progress = now,
                // Skipped before.
                None if *esi < self.next => self.ready.push_back(*esi),
                Some(_) | None => {}
            }
        }
        self.advance(stats);
        // No window of the code reaches further back.
        let oldest = self.ready.front().map_or(self.next, |esi| self.next.min(*esi));
        self.decoder.forget_before(oldest.saturating_sub(self.config.window));
        while self.decoder.held_bytes() > self.config.memory.bytes / 4 * 3 && self.ready.is_empty() {
            let first_known = (self.next..self.heard).find(|esi| self.decoder.packet(*esi).is_some());
            let Some(first_known) = first_known else { break };
            self.skip_to(first_known, stats);
            self.advance(stats);
        }
    }

    /// Delivers what no missing packet is in front of.
    fn advance(&mut self, stats: &mut ReceiverStats) {
        while let Some(entry) = self.missing.first_entry() {
            if !entry.get().given_up {
                break;
            }
            let esi = entry.remove_entry().0;
            stats.skipped += 1;
            self.deliver_before(esi);
            self.next = esi + 1;
        }
        let end = self.missing.first_key_value().map_or(self.heard, |(esi, _)| *esi);
        self.deliver_before(end);
    }

    fn deliver_before(&mut self, end: Esi) {
        if self.next < end {
            self.ready.extend(self.next..end);
            self.next = end;
        }
    }

    /// Whether the code will repair what is missing within its time, as far as one can tell.
    fn code_will_do(&self, now: Time, rtt: Duration) -> bool {
        let Some((last, mean)) = self.repairs else { return false };
        let open = self.missing.values().filter(|missing| missing.requested.is_none()).count();
        let needed = open.saturating_sub(self.decoder.equations()).max(1);
        let time = self.config.code_time(rtt);
        mean != Duration::MAX
            && mean.saturating_mul(needed as u32) <= time
            && now - last <= mean.saturating_mul(4)
    }

    fn check(&mut self, now: Time, rtt: Duration, rounds: u32, stats: &mut ReceiverStats) -> bool {
        if self.check_at.is_none_or(|at| now < at) {
            return false;
        }
        let wait = if self.code_will_do(now, rtt) { self.config.code_time(rtt) } else { REORDERING };
        let margin = (rtt / MARGIN).max(LEAST_MARGIN);
        // As long as what was asked for comes, the rest of it is on its way, too.
        let comes = self.progress + margin / 2;
        let (mut asks, mut next) = (false, None::<Time>);
        for missing in self.missing.values_mut().filter(|missing| !missing.given_up) {
            let due = match missing.requested {
                None => missing.since + wait,
                Some(at) => (at + rtt + margin).max(comes.min(at + (rtt + margin) * 2)),
            };
            let again = if due > now {
                due
            } else if missing.rounds < rounds {
                stats.requested += u64::from(missing.rounds == 0);
                missing.rounds += 1;
                missing.requested = Some(now);
                asks = true;
                now + rtt + margin
            } else {
                missing.given_up = true;
                continue;
            };
            next = Some(next.map_or(again, |before| before.min(again)));
        }
        self.check_at = next;
        self.advance(stats);
        asks
    }

    fn requests(&self, now: Time, rtt: Duration) -> Vec<Range<Esi>> {
        let mut ranges: Vec<Range<Esi>> = Vec::new();
        for (esi, missing) in &self.missing {
            let asked = missing.requested.is_some_and(|at| now - at <= (rtt / REPEAT).max(LEAST_MARGIN));
            if !asked || missing.given_up {
                continue;
            }
            let one = *esi..esi + 1;
            let full = ranges.len() == MAX_REQUESTS;
            match ranges.last_mut() {
                Some(last) if last.end == *esi && last.end - last.start < Esi::from(u16::MAX) => {
                    last.end += 1
                }
                Some(last) if !fits_behind(last.end, &one) || full => break,
                _ => ranges.push(one),
            }
        }
        ranges
    }
}

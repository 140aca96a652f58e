//! The sender of packets, which retransmits lost ones.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::time::Duration;

use bentpipe_units::Time;

use super::timer::Timer;
use super::{ArqConfig, ArqFrame, DataFrame, Output, Packet, Report, pop_front_if, span_of};

/// Outstanding packets, by their numbers, and their transmissions, by their serials.
#[derive(Debug)]
pub(super) struct Sender<P> {
    retransmissions: u32,
    buffer: u64,
    span: usize,
    incarnation: Option<u32>,
    /// Packets from number `floor` on; the first one is present.
    cached: VecDeque<Option<CachedPacket<P>>>,
    floor: u64,
    cached_bytes: u64,
    /// Transmissions from serial `settled` on.
    sent: VecDeque<Transmission>,
    settled: u64,
    /// Serials whose fate is unknown, in order; usually one range, more if a report did not have room for all
    /// gaps.
    unresolved: Vec<Range<u64>>,
    timer: Timer,
    /// The floor that was sent last, and the number after the highest abandoned one.
    sent_floor: u64,
    abandoned_to: u64,
}

#[derive(Debug)]
struct CachedPacket<P> {
    packet: P,
    /// The serial of the latest transmission, and its time.
    serial: u64,
    at: Time,
    retransmissions: u32,
}

#[derive(Debug, Clone, Copy)]
struct Transmission {
    number: u64,
    at: Time,
}

impl<P: Packet> Sender<P> {
    pub(super) fn new(config: &ArqConfig) -> Self {
        Self {
            retransmissions: config.retransmissions,
            buffer: config.buffer.get(),
            span: span_of(config),
            incarnation: None,
            cached: VecDeque::new(),
            floor: 0,
            cached_bytes: 0,
            sent: VecDeque::new(),
            settled: 0,
            unresolved: Vec::new(),
            timer: Timer::new(config),
            sent_floor: 0,
            abandoned_to: 0,
        }
    }

    pub(super) fn send(&mut self, now: Time, packet: P, out: &mut Output<P>) {
        if self.cached.is_empty() {
            self.timer.start(now);
        }
        let number = self.floor + self.cached.len() as u64;
        self.cached_bytes += packet.ip_length() as u64;
        let cached =
            CachedPacket { packet: packet.clone(), serial: self.next_serial(), at: now, retransmissions: 0 };
        self.cached.push_back(Some(cached));
        while self.cached_bytes > self.buffer || self.cached.len() > self.span {
            self.evict(self.floor, out);
        }
        out.counters.packets += 1;
        self.transmit(now, number, packet, out);
    }

    pub(super) fn on_report(&mut self, now: Time, report: &Report, out: &mut Output<P>) {
        if self.incarnation != Some(report.incarnation) {
            out.counters.stale += 1;
            return;
        }
        out.counters.reports_received += 1;
        let news = self.resolve(&report.covers);
        let Some(last) = news.last() else { return };
        self.timer.on_report(now, self.measure(now, last, report));
        let mut missing = report.missing.iter().peekable();
        for serial in news.into_iter().flatten() {
            while missing.next_if(|range| range.end <= serial).is_some() {}
            let is_missing = missing.peek().is_some_and(|range| range.contains(&serial));
            let Some(&Transmission { number, .. }) = self.transmission(serial) else { continue };
            if !is_missing {
                self.remove(number);
            } else if self.cached(number).is_some_and(|cached| cached.serial == serial)
                && self.retransmit(now, number, out)
            {
                out.counters.retransmitted += 1;
            }
        }
        let settled = self.unresolved.first().map_or(self.next_serial(), |range| range.start);
        self.sent.drain(..(settled - self.settled) as usize);
        self.settled = settled;
        self.send_floor(out);
    }

    /// The queue in front of the link had no room for this transmission. If it was the first one of a packet,
    /// the packet is dropped, as by any router: a repair would hide the overflow from the senders, which must
    /// slow down. A retransmission that was refused does not count.
    pub(super) fn on_refused(&mut self, serial: u64, out: &mut Output<P>) {
        let Some(&Transmission { number, .. }) = self.transmission(serial) else { return };
        let index = number.checked_sub(self.floor).map(|index| index as usize);
        let cached = index.and_then(|index| self.cached.get_mut(index)?.as_mut());
        let Some(cached) = cached.filter(|cached| cached.serial == serial) else { return };
        match cached.retransmissions.checked_sub(1) {
            Some(fewer) => cached.retransmissions = fewer,
            None => {
                out.counters.refused += 1;
                self.withdraw(number);
            }
        }
    }

    /// When a report is overdue; [`Time::MAX`] if none is expected.
    pub(super) fn wake_at(&self) -> Time {
        if self.cached.is_empty() { Time::MAX } else { self.timer.deadline() }
    }

    /// Retransmits the oldest packet, whose arrival makes the receiver report the fate of all others. After
    /// as many attempts in vain as a packet is allowed, the link is down, and all packets older than a round
    /// trip are abandoned.
    pub(super) fn on_timer(&mut self, now: Time, out: &mut Output<P>) {
        if now < self.wake_at() {
            return;
        }
        let overdue = self.timer.timeout();
        self.timer.on_expiry(now);
        if self.timer.expiries() > self.retransmissions {
            self.abandon_older_than(now, overdue, out);
        }
        while !self.cached.is_empty() {
            if self.retransmit(now, self.floor, out) {
                out.counters.timed_out += 1;
                break;
            }
        }
        self.send_floor(out);
    }

    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    pub(super) fn timer(&self) -> &Timer {
        &self.timer
    }

    fn next_serial(&self) -> u64 {
        self.settled + self.sent.len() as u64
    }

    fn transmission(&self, serial: u64) -> Option<&Transmission> {
        self.sent.get(usize::try_from(serial.checked_sub(self.settled)?).ok()?)
    }

    fn cached(&self, number: u64) -> Option<&CachedPacket<P>> {
        self.cached.get(usize::try_from(number.checked_sub(self.floor)?).ok()?)?.as_ref()
    }

    /// Removes the serials that a report covers from those of unknown fate, and returns them.
    fn resolve(&mut self, covered: &Range<u64>) -> Vec<Range<u64>> {
        let mut resolved = Vec::with_capacity(1);
        for range in mem::take(&mut self.unresolved) {
            let new = range.start.max(covered.start)..range.end.min(covered.end);
            if new.is_empty() {
                self.unresolved.push(range);
                continue;
            }
            let rest = [range.start..new.start, new.end..range.end];
            self.unresolved.extend(rest.into_iter().filter(|range| !range.is_empty()));
            resolved.push(new);
        }
        resolved
    }

    /// The round trip of the highest serial, if this report is the first that covers it.
    fn measure(&self, now: Time, news: &Range<u64>, report: &Report) -> Option<Duration> {
        let is_first = news.end == report.covers.end;
        let sent = self.transmission(news.end - 1).filter(|_| is_first)?;
        Some(now.since(sent.at).saturating_sub(report.delay?))
    }

    /// Retransmits a packet; false if it is abandoned instead.
    fn retransmit(&mut self, now: Time, number: u64, out: &mut Output<P>) -> bool {
        let (serial, limit) = (self.next_serial(), self.retransmissions);
        let index = (number - self.floor) as usize;
        let Some(cached) = self.cached[index].as_mut().filter(|cached| cached.retransmissions < limit) else {
            self.abandon(number, out);
            return false;
        };
        cached.retransmissions += 1;
        (cached.serial, cached.at) = (serial, now);
        let packet = cached.packet.clone();
        self.transmit(now, number, packet, out);
        true
    }

    fn transmit(&mut self, now: Time, number: u64, packet: P, out: &mut Output<P>) {
        let serial = self.next_serial();
        self.sent.push_back(Transmission { number, at: now });
        match self.unresolved.last_mut() {
            Some(range) if range.end == serial => range.end += 1,
            _ => self.unresolved.push(serial..serial + 1),
        }
        while self.sent.len() > self.span {
            self.forget_oldest_serial(out);
        }
        self.sent_floor = self.floor;
        // In units of about a microsecond; 30 bits of them last 18 minutes.
        let incarnation = *self.incarnation.get_or_insert((now.as_nanos() >> 10) as u32 & 0x3fff_ffff);
        let (floor, settled) = (self.floor, self.settled);
        out.frames.push_back(ArqFrame::Data(DataFrame {
            incarnation,
            serial,
            number,
            floor,
            settled,
            packet,
        }));
    }

    /// Removes the record of the oldest transmission, because without reports the records would grow without
    /// limit.
    fn forget_oldest_serial(&mut self, out: &mut Output<P>) {
        let Some(Transmission { number, .. }) = self.sent.pop_front() else { return };
        if self.cached(number).is_some_and(|cached| cached.serial == self.settled) {
            self.evict(number, out);
        }
        self.settled += 1;
        if let Some(first) = self.unresolved.first_mut()
            && first.start < self.settled
        {
            first.start = self.settled;
            if first.is_empty() {
                self.unresolved.remove(0);
            }
        }
    }

    fn abandon_older_than(&mut self, now: Time, age: Duration, out: &mut Output<P>) {
        let is_old = |cached: &CachedPacket<P>| now.since(cached.at) >= age;
        let numbers = (self.floor..).zip(&self.cached);
        let old = numbers.filter(|(_, cached)| cached.as_ref().is_some_and(is_old)).map(|(number, _)| number);
        for number in old.collect::<Vec<_>>() {
            self.abandon(number, out);
        }
    }

    fn abandon(&mut self, number: u64, out: &mut Output<P>) {
        out.counters.given_up += 1;
        self.abandoned_to = self.abandoned_to.max(number + 1);
        self.remove(number);
    }

    fn evict(&mut self, number: u64, out: &mut Output<P>) {
        out.counters.crowded_out += 1;
        self.remove(number);
    }

    /// Removes a packet that was never on the link. If it is the latest one, its number goes to the next
    /// packet, so that the receiver does not wait for it.
    fn withdraw(&mut self, number: u64) {
        if number + 1 == self.floor + self.cached.len() as u64 {
            let cached = self.cached.pop_back().flatten();
            self.cached_bytes -= cached.map_or(0, |cached| cached.packet.ip_length() as u64);
        } else {
            self.abandoned_to = self.abandoned_to.max(number + 1);
            self.remove(number);
        }
    }

    /// Removes a packet that has arrived or is abandoned.
    fn remove(&mut self, number: u64) {
        let index = number.checked_sub(self.floor).and_then(|index| usize::try_from(index).ok());
        if let Some(cached) = index.and_then(|index| self.cached.get_mut(index)?.take()) {
            self.cached_bytes -= cached.packet.ip_length() as u64;
        }
        while pop_front_if(&mut self.cached, |cached| cached.is_none()).is_some() {
            self.floor += 1;
        }
    }

    /// Announces an abandoned packet to the receiver, if no frame has carried the new floor yet.
    fn send_floor(&mut self, out: &mut Output<P>) {
        if let Some(incarnation) = self.incarnation
            && self.sent_floor < self.abandoned_to.min(self.floor)
        {
            self.sent_floor = self.floor;
            out.counters.floors_sent += 1;
            out.frames.push_back(ArqFrame::Floor { incarnation, floor: self.floor });
        }
    }
}

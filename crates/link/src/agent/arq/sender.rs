//! The end that sends packets, and sends them again.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::time::Duration;

use bentpipe_units::Time;

use super::timer::Timer;
use super::{ArqConfig, ArqFrame, DataFrame, Output, Packet, Report, pop_front_if, span_of};

/// Packets under way, by their numbers, and their transmissions, by their serials.
#[derive(Debug)]
pub(super) struct Sender<P> {
    retransmissions: u32,
    buffer: u64,
    span: usize,
    incarnation: Option<u32>,
    /// Packets from number `floor` on; the first is there.
    kept: VecDeque<Option<Kept<P>>>,
    floor: u64,
    kept_bytes: u64,
    /// Transmissions from serial `settled` on.
    sent: VecDeque<Transmission>,
    settled: u64,
    /// Serials of which nothing is known yet, in order; one range, but where a report did not have room for all.
    unresolved: Vec<Range<u64>>,
    timer: Timer,
    /// The floor that has been told, and the number behind the highest one given up.
    told_floor: u64,
    given_up_to: u64,
}

#[derive(Debug)]
struct Kept<P> {
    packet: P,
    /// Of the latest transmission, and its time.
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
            kept: VecDeque::new(),
            floor: 0,
            kept_bytes: 0,
            sent: VecDeque::new(),
            settled: 0,
            unresolved: Vec::new(),
            timer: Timer::new(config),
            told_floor: 0,
            given_up_to: 0,
        }
    }

    pub(super) fn send(&mut self, now: Time, packet: P, out: &mut Output<P>) {
        if self.kept.is_empty() {
            self.timer.start(now);
        }
        let number = self.floor + self.kept.len() as u64;
        self.kept_bytes += packet.ip_length() as u64;
        let kept = Kept { packet: packet.clone(), serial: self.next_serial(), at: now, retransmissions: 0 };
        self.kept.push_back(Some(kept));
        while self.kept_bytes > self.buffer || self.kept.len() > self.span {
            self.crowd_out(self.floor, out);
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
            } else if self.kept(number).is_some_and(|kept| kept.serial == serial)
                && self.repeat(now, number, out)
            {
                out.counters.retransmitted += 1;
            }
        }
        let settled = self.unresolved.first().map_or(self.next_serial(), |range| range.start);
        self.sent.drain(..(settled - self.settled) as usize);
        self.settled = settled;
        self.tell_floor(out);
    }

    /// The queue in front of the link had no room for this transmission. A packet's first is its end, as on any router:
    /// repaired here, an overflow would be hidden from who must slow down. A later one has used up none of its retries.
    pub(super) fn on_refused(&mut self, serial: u64, out: &mut Output<P>) {
        let Some(&Transmission { number, .. }) = self.transmission(serial) else { return };
        let index = number.checked_sub(self.floor).map(|index| index as usize);
        let kept = index.and_then(|index| self.kept.get_mut(index)?.as_mut());
        let Some(kept) = kept.filter(|kept| kept.serial == serial) else { return };
        match kept.retransmissions.checked_sub(1) {
            Some(fewer) => kept.retransmissions = fewer,
            None => {
                out.counters.refused += 1;
                self.withdraw(number);
            }
        }
    }

    /// When a report should have come; [`Time::MAX`] if none is waited for.
    pub(super) fn wake_at(&self) -> Time {
        if self.kept.is_empty() { Time::MAX } else { self.timer.deadline() }
    }

    /// Sends the oldest packet again, whose arrival tells what became of all others. When as many of these have been
    /// in vain as one packet is worth, the link is down, and all that is older than a round trip is given up.
    pub(super) fn on_timer(&mut self, now: Time, out: &mut Output<P>) {
        if now < self.wake_at() {
            return;
        }
        let overdue = self.timer.timeout();
        self.timer.on_expiry(now);
        if self.timer.expiries() > self.retransmissions {
            self.give_up_older_than(now, overdue, out);
        }
        while !self.kept.is_empty() {
            if self.repeat(now, self.floor, out) {
                out.counters.timed_out += 1;
                break;
            }
        }
        self.tell_floor(out);
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
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

    fn kept(&self, number: u64) -> Option<&Kept<P>> {
        self.kept.get(usize::try_from(number.checked_sub(self.floor)?).ok()?)?.as_ref()
    }

    /// Takes the serials that a report covers from those of which nothing was known, and says which they were.
    fn resolve(&mut self, covered: &Range<u64>) -> Vec<Range<u64>> {
        let mut news = Vec::with_capacity(1);
        for range in mem::take(&mut self.unresolved) {
            let new = range.start.max(covered.start)..range.end.min(covered.end);
            if new.is_empty() {
                self.unresolved.push(range);
                continue;
            }
            let rest = [range.start..new.start, new.end..range.end];
            self.unresolved.extend(rest.into_iter().filter(|range| !range.is_empty()));
            news.push(new);
        }
        news
    }

    /// The round trip of the highest serial, if the report is the first to speak of it.
    fn measure(&self, now: Time, news: &Range<u64>, report: &Report) -> Option<Duration> {
        let is_first = news.end == report.covers.end;
        let sent = self.transmission(news.end - 1).filter(|_| is_first)?;
        Some(now.since(sent.at).saturating_sub(report.delay?))
    }

    /// Sends a packet again, or gives it up: then false.
    fn repeat(&mut self, now: Time, number: u64, out: &mut Output<P>) -> bool {
        let (serial, limit) = (self.next_serial(), self.retransmissions);
        let index = (number - self.floor) as usize;
        let Some(kept) = self.kept[index].as_mut().filter(|kept| kept.retransmissions < limit) else {
            self.give_up(number, out);
            return false;
        };
        kept.retransmissions += 1;
        (kept.serial, kept.at) = (serial, now);
        let packet = kept.packet.clone();
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
        self.told_floor = self.floor;
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

    /// Nothing has been heard for so many transmissions that the record of them must not grow any more.
    fn forget_oldest_serial(&mut self, out: &mut Output<P>) {
        let Some(Transmission { number, .. }) = self.sent.pop_front() else { return };
        if self.kept(number).is_some_and(|kept| kept.serial == self.settled) {
            self.crowd_out(number, out);
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

    fn give_up_older_than(&mut self, now: Time, age: Duration, out: &mut Output<P>) {
        let is_old = |kept: &Kept<P>| now.since(kept.at) >= age;
        let numbers = (self.floor..).zip(&self.kept);
        let old = numbers.filter(|(_, kept)| kept.as_ref().is_some_and(is_old)).map(|(number, _)| number);
        for number in old.collect::<Vec<_>>() {
            self.give_up(number, out);
        }
    }

    fn give_up(&mut self, number: u64, out: &mut Output<P>) {
        out.counters.given_up += 1;
        self.given_up_to = self.given_up_to.max(number + 1);
        self.remove(number);
    }

    fn crowd_out(&mut self, number: u64, out: &mut Output<P>) {
        out.counters.crowded_out += 1;
        self.remove(number);
    }

    /// It has never been on the link. The latest packet's number goes to the next one, so that nobody waits for it.
    fn withdraw(&mut self, number: u64) {
        if number + 1 == self.floor + self.kept.len() as u64 {
            let kept = self.kept.pop_back().flatten();
            self.kept_bytes -= kept.map_or(0, |kept| kept.packet.ip_length() as u64);
        } else {
            self.given_up_to = self.given_up_to.max(number + 1);
            self.remove(number);
        }
    }

    /// It has arrived, or nobody waits for it any more.
    fn remove(&mut self, number: u64) {
        let index = number.checked_sub(self.floor).and_then(|index| usize::try_from(index).ok());
        if let Some(kept) = index.and_then(|index| self.kept.get_mut(index)?.take()) {
            self.kept_bytes -= kept.packet.ip_length() as u64;
        }
        while pop_front_if(&mut self.kept, |kept| kept.is_none()).is_some() {
            self.floor += 1;
        }
    }

    /// Lets the receiver know that a packet is given up, if no frame has said so since.
    fn tell_floor(&mut self, out: &mut Output<P>) {
        if let Some(incarnation) = self.incarnation
            && self.told_floor < self.given_up_to.min(self.floor)
        {
            self.told_floor = self.floor;
            out.counters.floors_sent += 1;
            out.frames.push_back(ArqFrame::Floor { incarnation, floor: self.floor });
        }
    }
}

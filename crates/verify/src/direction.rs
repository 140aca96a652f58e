//! The packets of one direction of a link, followed through the log.

use std::collections::{BTreeMap, VecDeque};

use crate::findings::{Check, Findings};
use crate::log::{Cause, Crossing, Event, Row};
use crate::losses::{Losses, check_impairments};
use crate::scenario::Direction;
use crate::transmitter::{Transmitter, in_bytes};

/// A packet that has not arrived in time is waited for so much longer, to tell a late one from a lost one.
const GRACE: u64 = 1_000_000_000;

/// Follows the packets of a direction.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    direction: &'a Direction,
    /// How much later than due a packet may arrive.
    late: u64,
    transmitter: Transmitter<'a>,
    losses: Losses,
    /// The last packet that came, until the next row says whether it was lost at once.
    undecided: Option<Packet>,
    /// Packets that are to arrive, in the order in which they came.
    in_flight: VecDeque<InFlight>,
    last_number: u64,
    last_enter: u64,
    last_row: u64,
    /// The number of the last packet that arrived, and of the last that was held back behind others.
    last_arrived: u64,
    /// When the last one arrives that is not held back.
    last_due: u64,
    totals: Totals,
    sums: BTreeMap<String, (u64, u64)>,
    findings: Findings,
}

/// A packet that came to the transmitter.
#[derive(Debug, Clone, Copy)]
struct Packet {
    number: u64,
    entered: u64,
    bytes: u64,
}

/// A packet on its way.
#[derive(Debug)]
struct InFlight {
    packet: Packet,
    departure: u64,
    /// When it arrives if it is not held back.
    due: u64,
    has_arrived: bool,
    was_duplicated: bool,
}

/// The sums of the packets.
#[derive(Debug, Default)]
struct Totals {
    offered: (u64, u64),
    delivered: (u64, u64),
    wire: (u64, u64),
    lost: [u64; Cause::ALL.len()],
    arrived: u64,
    duplicated: u64,
    held_back: u64,
    corrupted: u64,
}

impl<'a> Checker<'a> {
    pub(crate) fn new(direction: &'a Direction, late: u64) -> Self {
        Self {
            direction,
            late,
            transmitter: Transmitter::new(direction),
            losses: Losses::new(direction),
            undecided: None,
            in_flight: VecDeque::new(),
            last_number: 0,
            last_enter: 0,
            last_row: 0,
            last_arrived: 0,
            last_due: 0,
            totals: Totals::default(),
            sums: BTreeMap::new(),
            findings: Findings::default(),
        }
    }

    /// Packets that came so far.
    pub(crate) fn packets(&self) -> u64 {
        self.totals.offered.0
    }

    /// The next row of this direction.
    ///
    /// # Errors
    /// If no link writes such a row there.
    pub(crate) fn row(&mut self, row: &Row<'_>) -> Result<(), String> {
        if row.at < self.last_row {
            return Err(format!("{} is before the row before it", Seconds(row.at)));
        }
        self.last_row = row.at;
        match (self.undecided.take(), row.event) {
            (Some(packet), Event::Lost(cause)) if packet.number == row.number => {
                self.lost(packet, cause);
                if row.bytes != packet.bytes {
                    self.wrong_length(packet, row.bytes);
                }
                return Ok(());
            }
            (Some(packet), _) => self.sent(packet),
            (None, _) => {}
        }
        self.expect_arrivals_before(row.at.saturating_sub(GRACE));
        match row.event {
            Event::Enter { queue } => self.enter(row, queue),
            Event::Lost(cause) => self.late_loss(row, cause),
            Event::Arrive(crossing) => self.arrive(row, crossing),
            Event::Sum(name) => {
                if self.sums.insert(name.to_owned(), (row.number, row.bytes)).is_some() {
                    return Err(format!("sum_{name} was there before"));
                }
            }
            Event::Missing | Event::Application { .. } => {}
        }
        Ok(())
    }

    /// The run has ended.
    ///
    /// # Errors
    /// If the log has no sums of this direction.
    pub(crate) fn finish(mut self, end: u64) -> Result<Findings, String> {
        if let Some(packet) = self.undecided.take() {
            self.sent(packet);
        }
        self.expect_arrivals_before(end);
        self.losses.check(&mut self.findings);
        self.check_sums()?;
        check_impairments(self.direction, self.totals.delivered.0, &self.sums, &mut self.findings);
        Ok(self.findings)
    }

    fn enter(&mut self, row: &Row<'_>, queue: u64) {
        let packet = Packet { number: row.number, entered: row.at, bytes: row.bytes };
        let expected = self.last_number + 1;
        if row.number != expected {
            self.findings.add(Check::Fate, || {
                format!("{packet}: its number is not {expected}, the next one: packets are missing or are twice there")
            });
        }
        self.last_number = row.number;
        self.last_enter = row.at;
        self.totals.offered.0 += 1;
        self.totals.offered.1 += row.bytes;
        let backlog = in_bytes(self.transmitter.backlog(row.at));
        if queue != backlog {
            self.findings.add(Check::Backlog, || {
                format!("{packet}: expected {backlog} bytes before it, found {queue}")
            });
        }
        self.undecided = Some(packet);
    }

    /// Takes a packet through queue and transmitter; says when its last bit leaves.
    fn transmit(&mut self, packet: Packet) -> u64 {
        let wire_bytes = self.direction.encapsulation.wire_bytes(packet.bytes);
        let backlog = self.transmitter.backlog(packet.entered);
        if !self.transmitter.has_room(backlog, wire_bytes) {
            let (waiting, limit) = (in_bytes(backlog), self.transmitter.limit().unwrap_or_default());
            self.findings.add(Check::Queue, || {
                format!("{packet}: sent, though {waiting} bytes wait, it has {wire_bytes} on the wire, and the queue takes {limit}")
            });
        }
        self.totals.wire.0 += 1;
        self.totals.wire.1 += wire_bytes;
        self.transmitter.send(packet.entered, wire_bytes)
    }

    /// A packet that was not lost at once.
    fn sent(&mut self, packet: Packet) {
        let departure = self.transmit(packet);
        self.check_chance(packet, departure, None);
        self.totals.delivered.0 += 1;
        self.totals.delivered.1 += packet.bytes;
        // Packets stay in order where the delay becomes shorter.
        let due = self.last_due.max(departure.saturating_add(self.direction.delays.at(departure)));
        self.last_due = due;
        let on_its_way = InFlight { packet, departure, due, has_arrived: false, was_duplicated: false };
        self.in_flight.push_back(on_its_way);
    }

    fn lost(&mut self, packet: Packet, cause: Cause) {
        self.totals.lost[cause as usize] += 1;
        if cause == Cause::QueueFull {
            let wire_bytes = self.direction.encapsulation.wire_bytes(packet.bytes);
            let backlog = self.transmitter.backlog(packet.entered);
            if self.transmitter.has_room(backlog, wire_bytes) {
                let waiting = in_bytes(backlog);
                let limit = self.transmitter.limit();
                self.findings.add(Check::Queue, || {
                    let limit = limit.map_or("any number".to_owned(), |limit| limit.to_string());
                    format!("{packet}: dropped as if the queue were full, though only {waiting} bytes wait, it has {wire_bytes} on the wire, and the queue takes {limit}")
                });
            }
            return;
        }
        let departure = self.transmit(packet);
        self.check_chance(packet, departure, Some(cause));
    }

    /// Whether a packet that was sent, and was lost or not, may have met that fate.
    fn check_chance(&mut self, packet: Packet, departure: u64, lost: Option<Cause>) {
        let in_bursts = self.losses.in_bursts(departure);
        let per = self.direction.per.at(departure);
        let certain = self.direction.per_varies && per >= 1.0;
        let left = Seconds(departure);
        match (self.in_outage(departure), lost) {
            (Some(true), Some(Cause::Outage)) => return,
            (Some(true), found) => {
                let found = found.map_or("it was not lost", Cause::name);
                return self.findings.add(Check::Outage, || {
                    format!(
                        "{packet}: left at {left} in an outage; expected that it is lost to it, found {found}"
                    )
                });
            }
            (Some(false), Some(Cause::Outage)) if !certain => {
                return self.findings.add(Check::Outage, || {
                    format!("{packet}: lost to an outage, though none covers {left}, when it left")
                });
            }
            (None, Some(Cause::Outage)) => return,
            _ => {}
        }
        match (in_bursts, lost) {
            (Some(probability), lost) => {
                self.losses.burst(probability, packet.bytes, lost == Some(Cause::BurstError));
            }
            (None, Some(Cause::BurstError)) => self.findings.add(Check::Losses, || {
                format!("{packet}: lost to a burst of errors, though the scenario has none")
            }),
            (None, _) => {}
        }
        if lost == Some(Cause::BurstError) {
            return;
        }
        // The packet has been counted by now.
        let sent = self.totals.wire.0;
        if self.direction.prescribed.contains(&sent) {
            if lost.is_none() {
                self.findings.add(Check::Losses, || {
                    format!(
                        "{packet}: not lost, though the loss of packet {sent} of those sent is prescribed"
                    )
                });
            }
            return;
        }
        let is_hit = lost.is_some();
        if is_hit && per == 0.0 {
            return self.findings.add(Check::Losses, || {
                format!(
                    "{packet}: lost to a packet error, though the scenario has none at {left}, when it left"
                )
            });
        }
        if !is_hit && per >= 1.0 {
            return self.findings.add(Check::Losses, || {
                format!("{packet}: not lost, though all packets are at {left}, when it left")
            });
        }
        self.losses.single(per, packet.bytes, is_hit);
    }

    /// Whether an outage covers a time; `None` where rounding decides.
    fn in_outage(&self, time: u64) -> Option<bool> {
        let outages = &self.direction.outages;
        let rounding = self.direction.outage_rounding;
        let next = outages.partition_point(|(start, _)| *start <= time + rounding);
        let Some((start, end)) = next.checked_sub(1).map(|index| outages[index]) else { return Some(false) };
        let is_edge = |edge: u64| rounding > 0 && edge.abs_diff(time) <= rounding;
        if is_edge(start) || is_edge(end) {
            return None;
        }
        Some((start..end).contains(&time))
    }

    /// A packet that was said to be lost only when it was to arrive.
    fn late_loss(&mut self, row: &Row<'_>, cause: Cause) {
        let (number, at) = (row.number, Seconds(row.at));
        let index = self.in_flight.binary_search_by_key(&number, |sent| sent.packet.number);
        let Some(sent) = index.ok().and_then(|index| self.in_flight.remove(index)) else {
            return self.findings.add(Check::Fate, || {
                format!("packet {number}: lost to {} at {at}, though it has had another fate", cause.name())
            });
        };
        let (packet, left) = (sent.packet, Seconds(sent.departure));
        self.totals.delivered.0 -= 1;
        self.totals.delivered.1 -= packet.bytes;
        self.totals.lost[cause as usize] += 1;
        self.findings.add(Check::Outage, || {
            format!(
                "{packet}: lost to {} at {at}, which the scenario does not say of {left}, when it left",
                cause.name()
            )
        });
    }

    fn arrive(&mut self, row: &Row<'_>, crossing: Crossing) {
        let number = row.number;
        let Ok(index) = self.in_flight.binary_search_by_key(&number, |sent| sent.packet.number) else {
            let (at, last) = (Seconds(row.at), self.last_number);
            return self.findings.add(Check::Copies, || {
                let why = if number > last {
                    "it never came to the link"
                } else {
                    "it was lost, or had arrived before"
                };
                format!("packet {number} arrived at {at}, though {why}")
            });
        };
        let sent = &mut self.in_flight[index];
        let (packet, departure, due) = (sent.packet, sent.departure, sent.due);
        let seen = if crossing.is_duplicate { &mut sent.was_duplicated } else { &mut sent.has_arrived };
        if std::mem::replace(seen, true) {
            self.findings.add(Check::Copies, || format!("{packet}: arrived again at {}", Seconds(row.at)));
        }
        if crossing.is_duplicate {
            self.totals.duplicated += 1;
            if self.direction.duplicate == 0.0 {
                self.findings.add(Check::Copies, || {
                    format!("{packet}: arrived twice, though the scenario duplicates none")
                });
            }
        } else {
            self.totals.arrived += 1;
        }
        self.totals.corrupted += u64::from(crossing.is_corrupted);
        if crossing.is_corrupted && self.direction.corrupt == 0.0 {
            self.findings.add(Check::Copies, || {
                format!("{packet}: arrived corrupted, though the scenario corrupts none")
            });
        }
        if row.bytes != packet.bytes {
            self.wrong_length(packet, row.bytes);
        }
        self.check_times(packet, departure, due, row.at, crossing);
        if number < self.last_arrived && self.direction.reorder == 0.0 {
            let last = self.last_arrived;
            self.findings.add(Check::Order, || format!("{packet}: arrived behind packet {last}"));
        }
        self.last_arrived = self.last_arrived.max(number);
        self.forget_arrived();
    }

    fn check_times(&mut self, packet: Packet, departure: u64, due: u64, at: u64, crossing: Crossing) {
        if crossing.departure != departure {
            let (expected, found) = (Seconds(departure), Seconds(crossing.departure));
            self.findings.add(Check::Departure, || {
                format!("{packet}: expected its last bit to leave at {expected}, found {found}")
            });
        }
        let (expected, found) = (due - departure, crossing.due.saturating_sub(crossing.departure));
        let is_held_back = self.direction.reorder > 0.0 && found == expected + self.direction.reorder_by;
        self.totals.held_back += u64::from(is_held_back);
        if found != expected && !is_held_back {
            let (expected, found) = (Seconds(expected), Seconds(found));
            self.findings.add(Check::Delay, || {
                format!("{packet}: expected that it arrives {expected} after it has left, found {found}")
            });
        }
        if at < crossing.due || at > crossing.due.saturating_add(self.late) {
            let (due, found, late) = (Seconds(crossing.due), Seconds(at), Seconds(self.late));
            self.findings.add(Check::Arrival, || {
                format!("{packet}: due at {due}, arrived at {found}; it may be late by {late}")
            });
        }
        if crossing.delay != at - packet.entered.min(at) {
            let (expected, found) = (Seconds(at - packet.entered.min(at)), Seconds(crossing.delay));
            self.findings
                .add(Check::Arrival, || format!("{packet}: its delay is {expected}, the log says {found}"));
        }
    }

    fn wrong_length(&mut self, packet: Packet, found: u64) {
        self.findings.add(Check::Copies, || format!("{packet}: has {found} bytes at the far end"));
    }

    /// What of a packet must have happened before `now` has.
    fn expect_arrivals_before(&mut self, now: u64) {
        let patience = self.direction.reorder_by.saturating_add(self.late);
        while let Some(sent) = self.in_flight.front()
            && sent.due.saturating_add(patience) < now
        {
            if !sent.has_arrived {
                let (packet, due) = (sent.packet, Seconds(sent.due));
                self.findings.add(Check::Fate, || {
                    format!("{packet}: vanished; expected that it arrives at {due}, and it has neither arrived nor been lost")
                });
            }
            self.in_flight.pop_front();
        }
    }

    /// Packets of which no second copy can come are not kept.
    fn forget_arrived(&mut self) {
        if self.direction.duplicate == 0.0 {
            while self.in_flight.front().is_some_and(|sent| sent.has_arrived) {
                self.in_flight.pop_front();
            }
        }
    }

    fn check_sums(&mut self) -> Result<(), String> {
        let Totals { offered, delivered, wire, lost, duplicated, held_back, corrupted, .. } = self.totals;
        let mut expected =
            vec![("offered", offered, true), ("delivered", delivered, true), ("wire", wire, true)];
        let causes = Cause::ALL.map(|cause| (cause.name(), (lost[cause as usize], 0), false));
        expected.extend(causes);
        for (name, packets, has_bytes) in expected {
            let found = *self.sums.get(name).ok_or_else(|| incomplete(name))?;
            if found != packets {
                self.findings.add(Check::Counters, || {
                    let bytes = |bytes| if has_bytes { format!(" and {bytes} bytes") } else { String::new() };
                    format!(
                        "{name}: the packets of the log are {}{}, the link has counted {}{}",
                        packets.0,
                        bytes(packets.1),
                        found.0,
                        bytes(found.1)
                    )
                });
            }
        }
        // Copies on their way are counted, and not yet seen.
        let on_their_way = 2 * self.in_flight.len() as u64;
        for (name, seen) in [("duplicated", duplicated), ("held_back", held_back), ("corrupted", corrupted)] {
            let (found, _) = *self.sums.get(name).ok_or_else(|| incomplete(name))?;
            if !(seen..=seen + on_their_way).contains(&found) {
                self.findings.add(Check::Counters, || {
                    format!("{name}: {seen} copies in the log, the link has counted {found}")
                });
            }
        }
        Ok(())
    }
}

fn incomplete(sum: &str) -> String {
    format!("the packet log has no sum_{sum}: it is not complete")
}

impl std::fmt::Display for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, entered, bytes, .. } = *self;
        write!(f, "packet {number} of {bytes} bytes, offered at {}", Seconds(entered))
    }
}

/// Nanoseconds as seconds.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09} s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

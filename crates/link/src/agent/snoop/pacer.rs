//! The queue in front of the link.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bentpipe_units::Time;

use super::super::{Flow, Packet};
use super::Pace;
use crate::FULL_SIZE_PACKET;

/// A timer that comes late may be made up for by so much, and no more: what follows a pause is not to go out as a burst.
const LATE: Duration = Duration::from_millis(2);

/// So many places that nobody has keep the memory of a few packets: a flow's wait is often short, and it soon waits again.
const PLACES_KEPT: usize = 1000;
const ROOM_KEPT: usize = 4;

/// What is on its way to the link waits here for its turn.
///
/// Repairs go first. The rest goes by turns of flows, a full packet's bytes in each (deficit round robin: Shreedhar and Varghese,
/// "Efficient fair queueing using deficit round robin", SIGCOMM 1995), so that one which fills the queue keeps no other
/// waiting. What is no TCP is a flow of its own.
#[derive(Debug)]
pub(super) struct Pacer<P: Packet> {
    pace: Pace,
    /// How many of each repair go out, one directly behind the other.
    copies: u32,
    /// When the link is done with all that has gone out.
    free_at: Time,
    repairs: VecDeque<P>,
    /// The places of those that have something to send.
    flows: HashMap<Option<Flow<P::End>>, u32>,
    /// The same, the one whose turn it is first.
    turns: VecDeque<u32>,
    places: Vec<Waiting<P>>,
    /// Places that nobody has.
    free: Vec<u32>,
    queued: u64,
}

/// What waits of one flow.
#[derive(Debug)]
struct Waiting<P: Packet> {
    flow: Option<Flow<P::End>>,
    packets: VecDeque<P>,
    bytes: u64,
    /// Bytes that it may send before others have their turn.
    credit: u64,
    /// So many of the first are of a connection that has ended since they came.
    of_no_use: usize,
}

/// What becomes of a packet that comes from the host's side.
#[derive(Debug)]
pub(super) enum Admission<P> {
    /// The link is free: it goes out at once.
    Go(P),
    /// It waits.
    Queued,
    /// There is no room.
    Dropped,
}

/// What goes out next.
#[derive(Debug)]
pub(super) enum Turn<P> {
    /// Something that is sent again.
    Repair(P),
    /// Something that has waited, and whether its connection is still there.
    First { packet: P, of_use: bool },
}

impl<P: Packet> Pacer<P> {
    pub(super) fn new(pace: Pace, copies: u32) -> Self {
        let (repairs, flows, turns, places, free) = Default::default();
        Self {
            pace,
            copies: copies.max(1),
            free_at: Time::ZERO,
            repairs,
            flows,
            turns,
            places,
            free,
            queued: 0,
        }
    }

    /// A packet comes from the host's side.
    pub(super) fn admit(&mut self, now: Time, packet: P) -> Admission<P> {
        let length = packet.ip_length() as u64;
        if self.is_empty() && self.free_at <= now {
            self.spend(now, length);
            return Admission::Go(packet);
        }
        let flow = packet.tcp().map(|header| Flow::of_data(&header));
        let place = self.flows.get(&flow).copied();
        if !self.has_room(place, length) {
            return Admission::Dropped;
        }
        let place = place.unwrap_or_else(|| self.take_place(flow));
        let waiting = &mut self.places[place as usize];
        waiting.bytes += length;
        waiting.packets.push_back(packet);
        self.queued += length;
        Admission::Queued
    }

    /// Something is to be sent again, before all that waits.
    pub(super) fn repair(&mut self, packet: P) {
        self.queued += packet.ip_length() as u64;
        self.repairs.push_back(packet);
    }

    /// What waits of this flow now is of no use any more to its sender.
    pub(super) fn let_pass(&mut self, flow: Flow<P::End>) {
        if let Some(&place) = self.flows.get(&Some(flow)) {
            let waiting = &mut self.places[place as usize];
            waiting.of_no_use = waiting.packets.len();
        }
    }

    /// The next one whose time has come. A repair that is not wanted any more takes nothing of the link.
    pub(super) fn next(&mut self, now: Time, mut is_wanted: impl FnMut(&P) -> bool) -> Option<Turn<P>> {
        if self.free_at > now {
            return None;
        }
        while let Some(packet) = self.repairs.pop_front() {
            let length = packet.ip_length() as u64;
            self.queued -= length;
            if is_wanted(&packet) {
                self.spend(now, length.saturating_mul(u64::from(self.copies)));
                return Some(Turn::Repair(packet));
            }
        }
        let (packet, of_use) = self.take_turn()?;
        let length = packet.ip_length() as u64;
        self.queued -= length;
        self.spend(now, length);
        Some(Turn::First { packet, of_use })
    }

    /// All that waits, in the order in which it would have left.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = P> {
        self.queued = 0;
        let repairs = std::mem::take(&mut self.repairs).into_iter();
        repairs.chain(std::iter::from_fn(|| self.take_turn().map(|(packet, _)| packet)))
    }

    /// When [`next`](Self::next) has something.
    pub(super) fn wake_at(&self) -> Time {
        if self.is_empty() { Time::MAX } else { self.free_at }
    }

    /// IP bytes that wait.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    fn is_empty(&self) -> bool {
        self.repairs.is_empty() && self.turns.is_empty()
    }

    /// Once half of the queue is taken no flow may have more than its share, which is one packet at the least.
    fn has_room(&self, place: Option<u32>, length: u64) -> bool {
        let (all, queue) = (self.queued + length, self.pace.queue.get());
        let (mine, flows) = match place {
            Some(place) => (self.places[place as usize].bytes + length, self.turns.len()),
            None => (length, self.turns.len() + 1),
        };
        all <= queue && (all <= queue / 2 || mine <= (queue / flows as u64).max(length))
    }

    /// A flow begins to wait. It has its first turn's bytes: with less it would wait for two turns of all the others.
    fn take_place(&mut self, flow: Option<Flow<P::End>>) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Waiting { flow, packets: VecDeque::new(), bytes: 0, credit: 0, of_no_use: 0 });
            (self.places.len() - 1) as u32
        });
        let waiting = &mut self.places[place as usize];
        (waiting.flow, waiting.credit) = (flow, FULL_SIZE_PACKET.get());
        self.flows.insert(flow, place);
        self.turns.push_back(place);
        place
    }

    /// What goes out next of what goes out for the first time, and whether its connection is still there.
    fn take_turn(&mut self) -> Option<(P, bool)> {
        loop {
            let place = *self.turns.front()?;
            let waiting = &mut self.places[place as usize];
            let length = waiting.packets.front()?.ip_length() as u64;
            if waiting.credit < length {
                waiting.credit += FULL_SIZE_PACKET.get();
                self.turns.rotate_left(1);
                continue;
            }
            waiting.credit -= length;
            waiting.bytes -= length;
            let packet = waiting.packets.pop_front()?;
            let of_use = waiting.of_no_use == 0;
            waiting.of_no_use = waiting.of_no_use.saturating_sub(1);
            if waiting.packets.is_empty() {
                waiting.packets.shrink_to(if self.free.len() < PLACES_KEPT { ROOM_KEPT } else { 0 });
                self.flows.remove(&waiting.flow);
                self.turns.pop_front();
                self.free.push(place);
            }
            return Some((packet, of_use));
        }
    }

    /// The link is busy with so many bytes more.
    fn spend(&mut self, now: Time, bytes: u64) {
        let earliest = Time::ZERO + now.since(Time::ZERO).saturating_sub(LATE);
        self.free_at = self.free_at.max(earliest) + self.pace.rate.time_for(bytes);
    }
}

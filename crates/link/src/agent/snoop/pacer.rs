//! The queue in front of the link.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bentpipe_units::Time;

use super::super::{Flow, Packet};
use super::Pace;
use crate::FULL_SIZE_PACKET;

/// A timer that comes late may be made up for by so much, and no more: what follows a pause is not to go out as a burst.
const LATE: Duration = Duration::from_millis(2);

/// What is on its way to the link waits here for its turn.
///
/// Repairs go first. The rest goes by turns of flows, a full packet's bytes in each (deficit round robin: Shreedhar and Varghese,
/// "Efficient fair queueing using deficit round robin", SIGCOMM 1995), so that one which fills the queue keeps no other
/// waiting. What is no TCP is a flow of its own.
#[derive(Debug)]
pub(super) struct Pacer<P: Packet> {
    pace: Pace,
    /// When the link is done with all that has gone out.
    free_at: Time,
    repairs: VecDeque<P>,
    flows: HashMap<Option<Flow<P::End>>, Waiting<P>>,
    /// Those that have something to send, the one whose turn it is first.
    turns: VecDeque<Option<Flow<P::End>>>,
    queued: u64,
}

/// What waits of one flow.
#[derive(Debug)]
struct Waiting<P> {
    packets: VecDeque<P>,
    bytes: u64,
    /// Bytes that it may send before others have their turn.
    credit: u64,
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
    /// Something that has waited.
    First(P),
}

impl<P: Packet> Pacer<P> {
    pub(super) fn new(pace: Pace) -> Self {
        let (repairs, flows, turns) = Default::default();
        Self { pace, free_at: Time::ZERO, repairs, flows, turns, queued: 0 }
    }

    /// A packet comes from the host's side.
    pub(super) fn admit(&mut self, now: Time, packet: P) -> Admission<P> {
        let length = packet.ip_length() as u64;
        if self.is_empty() && self.free_at <= now {
            self.spend(now, length);
            return Admission::Go(packet);
        }
        let flow = packet.tcp().map(|header| Flow::of_data(&header));
        if !self.has_room(flow, length) {
            return Admission::Dropped;
        }
        let waiting = self.flows.entry(flow).or_insert_with(|| {
            self.turns.push_back(flow);
            Waiting { packets: VecDeque::new(), bytes: 0, credit: 0 }
        });
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

    /// The next one whose time has come.
    pub(super) fn next(&mut self, now: Time) -> Option<Turn<P>> {
        if self.free_at > now {
            return None;
        }
        let turn = match self.repairs.pop_front() {
            Some(packet) => Turn::Repair(packet),
            None => Turn::First(self.take_turn()?),
        };
        let (Turn::Repair(packet) | Turn::First(packet)) = &turn;
        let length = packet.ip_length() as u64;
        self.queued -= length;
        self.spend(now, length);
        Some(turn)
    }

    /// All that waits, in the order in which it would have left.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = P> {
        self.queued = 0;
        let repairs = std::mem::take(&mut self.repairs).into_iter();
        repairs.chain(std::iter::from_fn(|| self.take_turn()))
    }

    /// When [`next`](Self::next) has something.
    pub(super) fn wake_at(&self) -> Time {
        if self.is_empty() { Time::MAX } else { self.free_at }
    }

    /// IP bytes that wait.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    fn is_empty(&self) -> bool {
        self.repairs.is_empty() && self.turns.is_empty()
    }

    /// Once half of the queue is taken no flow may have more than its share.
    fn has_room(&self, flow: Option<Flow<P::End>>, length: u64) -> bool {
        let (all, queue) = (self.queued + length, self.pace.queue.get());
        let (mine, flows) = match self.flows.get(&flow) {
            Some(waiting) => (waiting.bytes + length, self.flows.len()),
            None => (length, self.flows.len() + 1),
        };
        all <= queue && (all <= queue / 2 || mine <= queue / flows as u64)
    }

    fn take_turn(&mut self) -> Option<P> {
        loop {
            let flow = *self.turns.front()?;
            let waiting = self.flows.get_mut(&flow)?;
            let length = waiting.packets.front()?.ip_length() as u64;
            if waiting.credit < length {
                waiting.credit += FULL_SIZE_PACKET.get();
                self.turns.rotate_left(1);
                continue;
            }
            waiting.credit -= length;
            waiting.bytes -= length;
            let packet = waiting.packets.pop_front();
            if waiting.packets.is_empty() {
                self.flows.remove(&flow);
                self.turns.pop_front();
            }
            return packet;
        }
    }

    /// The link is busy with so many bytes more.
    fn spend(&mut self, now: Time, bytes: u64) {
        let earliest = Time::ZERO + now.since(Time::ZERO).saturating_sub(LATE);
        self.free_at = self.free_at.max(earliest) + self.pace.rate.time_for(bytes);
    }
}

//! The queue in front of the link.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bentpipe_units::Time;

use super::super::{Flow, Packet};
use super::Pace;
use crate::FULL_SIZE_PACKET;

/// The limit up to which the pacer makes up for a late timer, so that no burst follows a pause.
const LATE: Duration = Duration::from_millis(2);

/// This many free queues keep the memory for a few packets: flows often wait only briefly, and soon wait
/// again.
const FREE_QUEUES: usize = 1000;
const FREE_QUEUE_CAPACITY: usize = 4;

/// Packets for the link wait here for their turn.
///
/// Retransmissions go first. Then flows take turns, each with the bytes of a full-size packet (deficit round
/// robin: Shreedhar and Varghese, "Efficient fair queueing using deficit round robin", SIGCOMM 1995), so that
/// a flow that fills the queue does not delay the others. All packets other than TCP are one flow.
#[derive(Debug)]
pub(super) struct Pacer<P: Packet> {
    pace: Pace,
    /// Copies of each retransmission, sent directly one after the other.
    copies: u32,
    /// When the link will have sent everything that was handed to it.
    free_at: Time,
    repairs: VecDeque<P>,
    /// The queues of the flows that have packets to send.
    flows: HashMap<Option<Flow<P::End>>, u32>,
    /// The same, in the order of their turns.
    turns: VecDeque<u32>,
    queues: Vec<FlowQueue<P>>,
    /// Queues without a flow.
    free: Vec<u32>,
    queued: u64,
}

/// The packets of one flow.
#[derive(Debug)]
struct FlowQueue<P: Packet> {
    flow: Option<Flow<P::End>>,
    packets: VecDeque<P>,
    bytes: u64,
    /// Bytes that it may send before the next turn.
    credit: u64,
    /// This many of the first packets are of a connection that has ended since their arrival.
    ended: usize,
}

/// What happens to a packet from the host's side.
#[derive(Debug)]
pub(super) enum Admission<P> {
    /// The link is free: it is sent at once.
    Go(P),
    /// It waits.
    Queued,
    /// There is no room.
    Dropped,
}

/// The next packet to send.
#[derive(Debug)]
pub(super) enum Turn<P> {
    /// A retransmission.
    Repair(P),
    /// A packet that has waited, and whether its connection is still alive.
    First { packet: P, alive: bool },
}

impl<P: Packet> Pacer<P> {
    pub(super) fn new(pace: Pace, copies: u32) -> Self {
        let (repairs, flows, turns, queues, free) = Default::default();
        Self {
            pace,
            copies: copies.max(1),
            free_at: Time::ZERO,
            repairs,
            flows,
            turns,
            queues,
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
        let index = self.flows.get(&flow).copied();
        if !self.has_room(index, length) {
            return Admission::Dropped;
        }
        let index = index.unwrap_or_else(|| self.add_queue(flow));
        let queue = &mut self.queues[index as usize];
        queue.bytes += length;
        queue.packets.push_back(packet);
        self.queued += length;
        Admission::Queued
    }

    /// Adds a retransmission, which is sent before the other packets.
    pub(super) fn repair(&mut self, packet: P) {
        self.queued += packet.ip_length() as u64;
        self.repairs.push_back(packet);
    }

    /// The connection of this flow has ended: its packets are sent, but not cached.
    pub(super) fn let_pass(&mut self, flow: Flow<P::End>) {
        if let Some(&index) = self.flows.get(&Some(flow)) {
            let queue = &mut self.queues[index as usize];
            queue.ended = queue.packets.len();
        }
    }

    /// The next packet whose time has come. A retransmission that is no longer needed takes no time on the
    /// link.
    pub(super) fn next(&mut self, now: Time, mut is_needed: impl FnMut(&P) -> bool) -> Option<Turn<P>> {
        if self.free_at > now {
            return None;
        }
        while let Some(packet) = self.repairs.pop_front() {
            let length = packet.ip_length() as u64;
            self.queued -= length;
            if is_needed(&packet) {
                self.spend(now, length.saturating_mul(u64::from(self.copies)));
                return Some(Turn::Repair(packet));
            }
        }
        let (packet, alive) = self.take_turn()?;
        let length = packet.ip_length() as u64;
        self.queued -= length;
        self.spend(now, length);
        Some(Turn::First { packet, alive })
    }

    /// All packets, in the order in which they would have been sent.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = P> {
        self.queued = 0;
        let repairs = std::mem::take(&mut self.repairs).into_iter();
        repairs.chain(std::iter::from_fn(|| self.take_turn().map(|(packet, _)| packet)))
    }

    /// When [`next`](Self::next) has a packet.
    pub(super) fn wake_at(&self) -> Time {
        if self.is_empty() { Time::MAX } else { self.free_at }
    }

    /// IP bytes of all packets.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    #[cfg(test)]
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    fn is_empty(&self) -> bool {
        self.repairs.is_empty() && self.turns.is_empty()
    }

    /// Once half of the queue is full, no flow may have more than its share, which is at least one packet.
    fn has_room(&self, index: Option<u32>, length: u64) -> bool {
        let (all, queue) = (self.queued + length, self.pace.queue.get());
        let (mine, flows) = match index {
            Some(index) => (self.queues[index as usize].bytes + length, self.turns.len()),
            None => (length, self.turns.len() + 1),
        };
        all <= queue && (all <= queue / 2 || mine <= (queue / flows as u64).max(length))
    }

    /// Adds a queue for a flow. It begins with the bytes of one turn: with less it would wait for two turns
    /// of all others.
    fn add_queue(&mut self, flow: Option<Flow<P::End>>) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.queues.push(FlowQueue { flow, packets: VecDeque::new(), bytes: 0, credit: 0, ended: 0 });
            (self.queues.len() - 1) as u32
        });
        let queue = &mut self.queues[index as usize];
        (queue.flow, queue.credit) = (flow, FULL_SIZE_PACKET.get());
        self.flows.insert(flow, index);
        self.turns.push_back(index);
        index
    }

    /// The next packet that is no retransmission, and whether its connection is still alive.
    fn take_turn(&mut self) -> Option<(P, bool)> {
        loop {
            let index = *self.turns.front()?;
            let queue = &mut self.queues[index as usize];
            let length = queue.packets.front()?.ip_length() as u64;
            if queue.credit < length {
                queue.credit += FULL_SIZE_PACKET.get();
                self.turns.rotate_left(1);
                continue;
            }
            queue.credit -= length;
            queue.bytes -= length;
            let packet = queue.packets.pop_front()?;
            let alive = queue.ended == 0;
            queue.ended = queue.ended.saturating_sub(1);
            if queue.packets.is_empty() {
                queue.packets.shrink_to(if self.free.len() < FREE_QUEUES { FREE_QUEUE_CAPACITY } else { 0 });
                self.flows.remove(&queue.flow);
                self.turns.pop_front();
                self.free.push(index);
            }
            return Some((packet, alive));
        }
    }

    /// The link is busy with this many bytes more.
    fn spend(&mut self, now: Time, bytes: u64) {
        let earliest = Time::ZERO + now.since(Time::ZERO).saturating_sub(LATE);
        self.free_at = self.free_at.max(earliest) + self.pace.rate.time_for(bytes);
    }
}

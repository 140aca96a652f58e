//! Delayed duplicate acknowledgements (Vaidya, Mehta, Perkins, Montenegro: "Delayed Duplicate
//! Acknowledgements: A TCP-Unaware Approach to Improve Performance of TCP over Wireless", 1997).
//!
//! A retransmission by the link layer takes a round trip, and meanwhile the receiver sends duplicate ACKs.
//! The third one would make the sender take the loss for congestion. So the first two pass, and each further
//! one is held back for d. If the ACK number advances before, the hole is filled, and the held ACKs are
//! dropped; if not, they are released, and the sender learns of the loss.
//!
//! Beyond the paper, for senders that need no third duplicate ACK because the SACK blocks of the first one
//! are enough (RFC 6675, RFC 8985): while the hole is younger than d, the blocks are removed from all ACKs
//! that pass ([`DelayedDupAckConfig::hide_sack`]). Held ACKs keep their blocks, because they pass when the
//! hole is older. An ACK that advances and has blocks shows the next hole, whose age counts from then on.
//!
//! Segments with data, or with a FIN, pass at once, also before duplicate ACKs of the same number. That does
//! no harm: they are no duplicate ACKs (RFC 5681 §2), and their blocks are hidden. A held ACK that follows
//! them has an old sequence number, so that the sender may discard it as an old segment (RFC 9293 §3.10.7.4),
//! like one that the network has delivered late. Only a hint is lost then, and the next duplicate ACK has the
//! new number.
//!
//! A connection is added when its first ACK is seen, also in its middle, and may be removed at any time. The
//! only effect is that its next duplicate ACKs are counted from the first.

mod connection;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bentpipe_units::Time;
use serde::Serialize;

use self::connection::Connection;
use super::{Agent, AgentReport, Flow, Outbox, Packet, TcpHeader};

/// Limit of the held duplicate ACKs of one connection; the oldest one passes when one more arrives. They
/// correspond to a window of 6 MB in full-size segments: 80 Mbit/s over a geostationary link.
const MAX_HELD_OF_CONNECTION: usize = 4096;
/// Limit of the held duplicate ACKs of all connections: less than 20 MB of memory.
const MAX_HELD: usize = 65_536;
/// A connection without ACKs for this long is removed, at the latest when as many acknowledgements have
/// passed as there are connections.
const IDLE: Duration = Duration::from_secs(120);

/// Parameters of [`DelayedDupAck`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DelayedDupAckConfig {
    /// How long the third duplicate ACK and later ones are held back: d.
    pub delay: Duration,
    /// Limit of the connections at a time; packets of further connections pass unchanged.
    pub flows: usize,
    /// SACK blocks are removed from ACKs that pass while a hole is younger than `delay`: a sender that uses
    /// them needs no third duplicate ACK (RFC 6675, RFC 8985).
    pub hide_sack: bool,
}

impl DelayedDupAckConfig {
    /// The usual parameters, and this d.
    pub fn with_delay(delay: Duration) -> Self {
        Self { delay, flows: 100_000, hide_sack: true }
    }
}

/// The counters of a [`DelayedDupAck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DelayedDupAckCounters {
    /// Duplicate ACKs held back.
    pub held: u64,
    /// Of these, those that passed after d.
    pub released: u64,
    /// Of these, those that passed before, because too many were held.
    pub crowded_out: u64,
    /// Of these, those that were dropped because the hole was filled or the connection ended.
    pub dropped: u64,
    /// Segments whose SACK blocks were removed.
    pub sack_hidden: u64,
    /// Connections at present.
    pub flows: u64,
    /// Acknowledgements of connections beyond the limit.
    pub flows_passed: u64,
    /// IP bytes of held duplicate ACKs at present.
    pub held_bytes: u64,
    /// The highest value of `held_bytes`.
    pub most_held_bytes: u64,
}

/// Holds back duplicate ACKs at the terminal, so that the link layer has time to fill the hole. See the
/// [module](self).
///
/// A connection of real packets takes less than 350 bytes without held ACKs, all tables included. The held
/// ACKs of all connections take at most 20 MB.
#[derive(Debug)]
pub struct DelayedDupAck<P: Packet> {
    config: DelayedDupAckConfig,
    by_ends: HashMap<Flow<P::End>, u32>,
    slots: Vec<Option<Slot<P>>>,
    free: Vec<u32>,
    /// The slot whose connection is checked next for whether it is idle.
    hand: usize,
    /// When the first held packet of each slot is due.
    due: BTreeSet<(Time, u32)>,
    held: usize,
    counters: DelayedDupAckCounters,
}

#[derive(Debug)]
struct Slot<P: Packet> {
    flow: Flow<P::End>,
    connection: Connection<P>,
}

impl<P: Packet> DelayedDupAck<P> {
    /// An agent without connections.
    pub fn new(config: &DelayedDupAckConfig) -> Self {
        Self {
            config: *config,
            by_ends: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            hand: 0,
            due: BTreeSet::new(),
            held: 0,
            counters: DelayedDupAckCounters::default(),
        }
    }

    /// An acknowledgement leaves.
    fn on_ack(&mut self, now: Time, header: &TcpHeader<'_, P::End>, packet: &P, out: &mut Outbox<P>) {
        self.remove_idle(now);
        let flow = Flow::of_acknowledgement(header);
        let Some(&index) = self.by_ends.get(&flow) else {
            return match self.add(now, flow, header) {
                Some(index) => self.pass(now, index, packet.clone(), out),
                None => out.to_link.push_back(packet.clone()),
            };
        };
        let delay = self.config.delay;
        let (must_hold, is_filled) = self.connection(index).on_ack(now, header, packet.says_more(), delay);
        if is_filled {
            self.drop_held(index);
        }
        match must_hold {
            true => self.hold(now, index, packet.clone(), out),
            false => self.pass(now, index, packet.clone(), out),
        }
        if self.connection(index).is_finished() {
            self.remove(flow);
        }
    }

    /// Sends a packet of a connection.
    fn pass(&mut self, now: Time, index: u32, packet: P, out: &mut Outbox<P>) {
        let delay = self.config.delay;
        let hides = self.config.hide_sack && self.connection(index).has_young_hole(now, delay);
        let has_sack = packet.tcp().is_some_and(|header| !header.sack.is_empty());
        out.to_link.push_back(if hides && has_sack {
            self.counters.sack_hidden += 1;
            packet.without_sack()
        } else {
            packet
        });
    }

    fn hold(&mut self, now: Time, index: u32, packet: P, out: &mut Outbox<P>) {
        let is_full = self.held >= MAX_HELD || self.connection(index).held() >= MAX_HELD_OF_CONNECTION;
        if is_full {
            // The oldest one of the connection passes, or this one.
            self.counters.crowded_out += 1;
            let Some(oldest) = self.take_held(index) else {
                self.counters.held += 1;
                return self.pass(now, index, packet, out);
            };
            self.pass(now, index, oldest, out);
        }
        self.counters.held += 1;
        self.counters.held_bytes += packet.ip_length() as u64;
        self.counters.most_held_bytes = self.counters.most_held_bytes.max(self.counters.held_bytes);
        self.held += 1;
        let due = now + self.config.delay;
        let connection = self.connection(index);
        let is_first = connection.held() == 0;
        connection.hold(due, packet);
        if is_first {
            self.due.insert((due, index));
        }
    }

    /// Removes the packet that has been held longest.
    fn take_held(&mut self, index: u32) -> Option<P> {
        let connection = self.connection(index);
        let due = connection.due()?;
        let packet = connection.pop_held()?;
        let next = connection.due();
        connection.shrink();
        self.due.remove(&(due, index));
        self.due.extend(next.map(|next| (next, index)));
        self.held -= 1;
        self.counters.held_bytes -= packet.ip_length() as u64;
        Some(packet)
    }

    fn drop_held(&mut self, index: u32) {
        while self.take_held(index).is_some() {
            self.counters.dropped += 1;
        }
    }

    /// # Panics
    /// If the slot is free. An index is in `by_ends` or in `due` only while it is not.
    fn connection(&mut self, index: u32) -> &mut Connection<P> {
        &mut self.slots[index as usize]
            .as_mut()
            .expect("an index leads to a slot with a connection")
            .connection
    }

    /// Adds a connection, if there is room.
    fn add(&mut self, now: Time, flow: Flow<P::End>, header: &TcpHeader<'_, P::End>) -> Option<u32> {
        if self.by_ends.len() >= self.config.flows {
            self.counters.flows_passed += 1;
            return None;
        }
        let slot = Some(Slot { flow, connection: Connection::new(now, header) });
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.by_ends.insert(flow, index);
        Some(index)
    }

    fn remove(&mut self, flow: Flow<P::End>) {
        if let Some(&index) = self.by_ends.get(&flow) {
            self.drop_held(index);
            self.by_ends.remove(&flow);
            self.slots[index as usize] = None;
            self.free.push(index);
        }
    }

    /// Checks one more slot, so that all have been checked when as many acknowledgements have passed.
    fn remove_idle(&mut self, now: Time) {
        self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
        if let Some(Some(slot)) = self.slots.get(self.hand)
            && slot.connection.is_idle(now, IDLE)
        {
            self.remove(slot.flow);
        }
        self.hand += 1;
    }
}

impl<P: Packet> Agent<P> for DelayedDupAck<P> {
    fn outbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>) {
        match packet.tcp() {
            Some(header) if header.flags.is_rst() || header.flags.is_syn() => {
                // The connection has ended, or is another one now.
                self.remove(Flow::of_acknowledgement(&header));
            }
            Some(header) if header.flags.is_ack() => return self.on_ack(now, &header, &packet, out),
            _ => {}
        }
        out.to_link.push_back(packet);
    }

    /// Packets from the link pass; a reset, a SYN or a FIN ends the connection.
    fn inbound(&mut self, _now: Time, packet: P, out: &mut Outbox<P>) {
        if let Some(header) = packet.tcp() {
            let flow = Flow::of_data(&header);
            if header.flags.is_rst() || header.flags.is_syn() {
                self.remove(flow);
            } else if header.flags.is_fin()
                && let Some(&index) = self.by_ends.get(&flow)
            {
                self.connection(index).on_fin(header.end());
            }
        }
        out.to_host.push_back(packet);
    }

    fn wake_at(&self) -> Time {
        self.due.first().map_or(Time::MAX, |&(due, _)| due)
    }

    fn on_timer(&mut self, now: Time, out: &mut Outbox<P>) {
        while let Some(&(due, index)) = self.due.first()
            && due <= now
            && let Some(packet) = self.take_held(index)
        {
            self.counters.released += 1;
            self.pass(now, index, packet, out);
        }
    }

    fn held_bytes(&self) -> u64 {
        self.counters.held_bytes
    }

    fn report(&self) -> AgentReport {
        AgentReport::DelayedDupAck(DelayedDupAckCounters {
            flows: self.by_ends.len() as u64,
            ..self.counters
        })
    }
}

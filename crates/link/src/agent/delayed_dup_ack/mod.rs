//! Delayed duplicate acknowledgements (Vaidya, Mehta, Perkins, Montenegro: "Delayed Duplicate Acknowledgements: A
//! TCP-Unaware Approach to Improve Performance of TCP over Wireless", 1997).
//!
//! The link layer retransmits, but takes a round trip for it, and meanwhile the receiver sends duplicate ACKs. The
//! third one would make the sender take the loss for congestion. So the first two pass, and each further one is held
//! for d. If the ACK number advances before, the hole is filled, and what is held is dropped; if not, the sender
//! learns of it after all.
//!
//! Beyond the paper, for senders that need no third duplicate ACK because the SACK blocks of the first one are enough
//! (RFC 6675, RFC 8985): while the hole is younger than d, the blocks are taken out of all that passes
//! ([`DelayedDupAckConfig::hide_sack`]). What is held keeps its blocks, since it passes when the hole is older. An
//! ACK that advances and has blocks shows the next hole, which is young from then on.
//!
//! Segments with data, or with a FIN, pass at once, also before duplicate ACKs of the same number. That does no harm.
//! What they say of the hole is no duplicate ACK (RFC 5681 §2), and their blocks are hidden. A held ACK that comes
//! after them has a sequence number that the sender has got beyond, so it may throw it away as an old segment (RFC
//! 9293 §3.10.7.4), as it would one that the network has delivered late: a hint is lost, no data, and the next
//! duplicate ACK has the new number.
//!
//! A connection is joined wherever it is met, and may be forgotten at any time: all that is lost is that its next
//! duplicate ACKs are counted from the first.

mod connection;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bentpipe_units::Time;
use serde::Serialize;

use self::connection::{Connection, Verdict};
use super::{Agent, AgentReport, Flow, Outbox, Packet, TcpHeader};

/// Duplicate ACKs of one connection that are held at the most; the oldest one passes when one more comes. They are a
/// window of 6 MB in full-size segments: 80 Mbit/s over a geostationary link.
const MAX_HELD_OF_CONNECTION: usize = 4096;
/// Duplicate ACKs of all connections together: less than 20 MB with all that belongs to them.
const MAX_HELD: usize = 65_536;
/// A connection that has not acknowledged anything for so long is forgotten, at the latest when as many
/// acknowledgements have passed as there are connections.
const IDLE: Duration = Duration::from_secs(120);

/// Parameters of [`DelayedDupAck`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DelayedDupAckConfig {
    /// How long the third duplicate ACK and later ones are held: d.
    pub delay: Duration,
    /// Connections that are looked after at a time; those beyond pass as they are.
    pub flows: usize,
    /// SACK blocks are taken out of what passes while a hole is younger than `delay`: a sender that uses them needs
    /// no third duplicate ACK (RFC 6675, RFC 8985).
    pub hide_sack: bool,
}

impl DelayedDupAckConfig {
    /// The usual parameters, and this d.
    pub fn with_delay(delay: Duration) -> Self {
        Self { delay, flows: 100_000, hide_sack: true }
    }
}

/// What a [`DelayedDupAck`] has done so far, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DelayedDupAckCounters {
    /// Duplicate ACKs held back.
    pub held: u64,
    /// Of these, those that passed after their time.
    pub released: u64,
    /// Of these, those that passed before, because too many were held.
    pub crowded_out: u64,
    /// Of these, those that were dropped because the hole was filled or the connection ended.
    pub dropped: u64,
    /// Segments whose SACK blocks were taken out.
    pub sack_hidden: u64,
    /// Connections that are looked after now.
    pub flows: u64,
    /// Acknowledgements of connections that found no room.
    pub flows_passed: u64,
    /// IP bytes of duplicate ACKs that are held now.
    pub held_bytes: u64,
    /// The most that were held at any time.
    pub most_held_bytes: u64,
}

/// Holds back duplicate ACKs at the terminal, so that the link layer has time to fill the hole. See the [module](self).
///
/// A connection of real packets takes less than 350 bytes while nothing of it is held, all tables included, and what
/// is held of all together 20 MB at the most.
#[derive(Debug)]
pub struct DelayedDupAck<P: Packet> {
    config: DelayedDupAckConfig,
    by_ends: HashMap<Flow<P::End>, u32>,
    places: Vec<Option<Place<P>>>,
    free: Vec<u32>,
    /// The place that is looked at next for whether its connection is idle.
    hand: usize,
    /// When the first held packet of a place is due.
    due: BTreeSet<(Time, u32)>,
    held: usize,
    counters: DelayedDupAckCounters,
}

#[derive(Debug)]
struct Place<P: Packet> {
    flow: Flow<P::End>,
    connection: Connection<P>,
}

impl<P: Packet> DelayedDupAck<P> {
    /// Without any connection yet.
    pub fn new(config: &DelayedDupAckConfig) -> Self {
        Self {
            config: *config,
            by_ends: HashMap::new(),
            places: Vec::new(),
            free: Vec::new(),
            hand: 0,
            due: BTreeSet::new(),
            held: 0,
            counters: DelayedDupAckCounters::default(),
        }
    }

    /// An acknowledgement leaves.
    fn on_ack(&mut self, now: Time, header: &TcpHeader<'_, P::End>, packet: &P, out: &mut Outbox<P>) {
        self.look_for_idle(now);
        let flow = Flow::of_acknowledgement(header);
        let Some(&index) = self.by_ends.get(&flow) else {
            return match self.join(now, flow, header) {
                Some(index) => self.pass(now, index, packet.clone(), out),
                None => out.to_link.push_back(packet.clone()),
            };
        };
        let delay = self.config.delay;
        let (verdict, is_filled) = self.connection(index).on_ack(now, header, packet.says_more(), delay);
        if is_filled {
            self.drop_held(index);
        }
        match verdict {
            Verdict::Pass => self.pass(now, index, packet.clone(), out),
            Verdict::Hold => self.hold(now, index, packet.clone(), out),
        }
        if self.connection(index).is_finished() {
            self.forget(flow);
        }
    }

    /// Lets a packet of a connection go.
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
            // Its oldest goes, or itself.
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

    /// Takes out what is held longest.
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
    /// If the place is free: an index is in `by_ends`, in `due` or at hand only while it is not.
    fn connection(&mut self, index: u32) -> &mut Connection<P> {
        &mut self.places[index as usize].as_mut().expect("an index leads to a place that is taken").connection
    }

    /// Looks after a connection from now on, if there is room.
    fn join(&mut self, now: Time, flow: Flow<P::End>, header: &TcpHeader<'_, P::End>) -> Option<u32> {
        if self.by_ends.len() >= self.config.flows {
            self.counters.flows_passed += 1;
            return None;
        }
        let place = Some(Place { flow, connection: Connection::new(now, header) });
        let index = match self.free.pop() {
            Some(index) => {
                self.places[index as usize] = place;
                index
            }
            None => {
                self.places.push(place);
                (self.places.len() - 1) as u32
            }
        };
        self.by_ends.insert(flow, index);
        Some(index)
    }

    fn forget(&mut self, flow: Flow<P::End>) {
        if let Some(&index) = self.by_ends.get(&flow) {
            self.drop_held(index);
            self.by_ends.remove(&flow);
            self.places[index as usize] = None;
            self.free.push(index);
        }
    }

    /// Looks at one place more, so that all have been looked at when as many acknowledgements have passed.
    fn look_for_idle(&mut self, now: Time) {
        self.hand = if self.hand < self.places.len() { self.hand } else { 0 };
        if let Some(Some(place)) = self.places.get(self.hand)
            && place.connection.is_idle(now, IDLE)
        {
            self.forget(place.flow);
        }
        self.hand += 1;
    }
}

impl<P: Packet> Agent<P> for DelayedDupAck<P> {
    fn outbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>) {
        match packet.tcp() {
            Some(header) if header.flags.is_rst() || header.flags.is_syn() => {
                // No connection any more, or another one.
                self.forget(Flow::of_acknowledgement(&header));
            }
            Some(header) if header.flags.is_ack() => return self.on_ack(now, &header, &packet, out),
            _ => {}
        }
        out.to_link.push_back(packet);
    }

    /// Packets from the link pass; what they say of the end of a connection is noted.
    fn inbound(&mut self, _now: Time, packet: P, out: &mut Outbox<P>) {
        if let Some(header) = packet.tcp() {
            let flow = Flow::of_data(&header);
            if header.flags.is_rst() || header.flags.is_syn() {
                self.forget(flow);
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

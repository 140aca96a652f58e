//! ACK filtering (RFC 3449 §5.2.2) at the receiver's end of a link with a thin way back.
//!
//! A receiver sends an acknowledgement for every second segment, and one for every segment while there is a
//! hole. A way back that cannot carry them delays or drops them, and with them everything else that goes that
//! way. Most of them say nothing that the next one does not say again. So an acknowledgement that finds the
//! link busy waits here, and the next one of its flow takes its place. An idle link delays and drops nothing.
//!
//! ```text
//! receiver ──► is the link busy? ──no──► link
//!                    │ yes                 ▲ when it is free, each flow in turn
//!                    └──► one waiting ACK of each flow, replaced by newer ones
//! ```
//!
//! The RFC's filter removes acknowledgements from the queue before the link. Here that queue is somebody
//! else's, a modem's, so the agent sends at the link's rate and keeps it empty; this also spaces the
//! acknowledgements evenly (§5.3.2 calls for it), so that a sender that is clocked by them makes no bursts.
//!
//! An acknowledgement is replaced only if the newer one says all that it says ([`supersedes`]): the
//! cumulative number, each SACK block (RFC 2018), D-SACK (RFC 2883, said once), and the flags of ECN. A
//! duplicate without SACK blocks is counted by its sender (RFC 5681 §3.2) and is replaced only when the
//! number advances. Anything else (data, SYN, FIN, RST, options that say something once) passes at once,
//! behind what it does not replace. The last acknowledgement of a flow is never dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bentpipe_units::{Rate, Time};
use serde::Serialize;

use super::packet::is_before;
use super::{Agent, AgentReport, Flow, Outbox, Packet, TcpHeader, draining};

/// Acknowledgements of one flow that wait because none says what another one says: with more, the oldest one
/// leaves. Four of them report twelve SACK blocks.
const MAX_WAITING_OF_FLOW: usize = 4;
/// ECE and CWR in byte 13 of the header (RFC 3168 §6.1), which count with the third one where both ends use
/// accurate ECN (RFC 9768).
const ECN_FLAGS: u8 = 0xc0;

/// Parameters of [`AckFilter`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AckFilterConfig {
    /// What the link carries of IP packets: acknowledgements leave no faster.
    pub rate: Rate,
    /// How long an acknowledgement waits at most for data that fill the link. Acknowledgements alone may take
    /// the rate for longer.
    pub delay: Duration,
    /// Limit of the flows with a waiting acknowledgement; those of further flows pass.
    pub flows: usize,
}

impl AckFilterConfig {
    /// The usual parameters, and this rate.
    pub fn with_rate(rate: Rate) -> Self {
        Self { rate, delay: Duration::from_millis(50), flows: 10_000 }
    }

    /// The usual parameters for a link of this rate: 1.5% below it, so that the queue behind empties.
    pub fn for_link(rate: Rate) -> Self {
        Self::with_rate(draining(rate))
    }
}

/// The counters of an [`AckFilter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct AckFilterCounters {
    /// Acknowledgements that passed at once, because the link was free.
    pub passed: u64,
    /// Acknowledgements that had to wait.
    pub held: u64,
    /// Of these, those that left.
    pub released: u64,
    /// Of these, those that were dropped because a newer packet said the same.
    pub superseded: u64,
    /// Acknowledgements that passed because too many flows had one waiting.
    pub flows_passed: u64,
    /// IP bytes of waiting acknowledgements at present.
    pub held_bytes: u64,
    /// The highest value of `held_bytes`.
    pub most_held_bytes: u64,
}

/// Thins the acknowledgements of a thin way back. See the [module](self).
///
/// At most `flows` · 4 acknowledgements wait, of 64 to 84 bytes each: 4 MB with tables for 10,000 flows.
#[derive(Debug)]
pub struct AckFilter<P: Packet> {
    config: AckFilterConfig,
    waiting: HashMap<Flow<P::End>, Waiting<P>>,
    /// The flows of `waiting` by their turns.
    turns: BTreeMap<u64, Flow<P::End>>,
    next_turn: u64,
    /// When the link will have sent the acknowledgements handed to it, and when everything else as well; the
    /// latter is no more than the longest wait from now.
    acks_sent_at: Time,
    free_at: Time,
    counters: AckFilterCounters,
}

/// The waiting acknowledgements of a flow: one, unless others say what it does not.
#[derive(Debug)]
struct Waiting<P> {
    turn: u64,
    since: Time,
    acks: VecDeque<P>,
}

impl<P: Packet> AckFilter<P> {
    /// An agent with nothing waiting.
    pub fn new(config: &AckFilterConfig) -> Self {
        Self {
            config: *config,
            waiting: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            acks_sent_at: Time::ZERO,
            free_at: Time::ZERO,
            counters: AckFilterCounters::default(),
        }
    }

    /// A pure acknowledgement leaves the receiver.
    fn on_ack(&mut self, now: Time, flow: Flow<P::End>, packet: P, out: &mut Outbox<P>) {
        if self.waiting.contains_key(&flow) {
            return self.join(now, flow, packet, out);
        }
        if self.turns.is_empty() && self.acks_sent_at.max(self.free_at) <= now {
            self.counters.passed += 1;
            return self.send_ack(now, packet, out);
        }
        if self.waiting.len() >= self.config.flows {
            self.counters.flows_passed += 1;
            return self.send_ack(now, packet, out);
        }
        self.count_held(&packet);
        let turn = self.take_turn(flow);
        self.waiting.insert(flow, Waiting { turn, since: now, acks: VecDeque::from([packet]) });
    }

    /// One more acknowledgement of a flow with others waiting: each of these that it replaces is dropped.
    fn join(&mut self, now: Time, flow: Flow<P::End>, packet: P, out: &mut Outbox<P>) {
        self.count_held(&packet);
        self.drop_superseded(flow, &packet);
        let Some(waiting) = self.waiting.get_mut(&flow) else { return };
        // One that the network has overtaken is old news.
        if waiting.acks.iter().any(|newer| is_older(&packet, newer) && supersedes(newer, &packet)) {
            self.counters.superseded += 1;
            self.counters.held_bytes -= packet.ip_length() as u64;
            return;
        }
        waiting.acks.push_back(packet);
        if waiting.acks.len() > MAX_WAITING_OF_FLOW
            && let Some(oldest) = waiting.acks.pop_front()
        {
            self.release(now, oldest, out);
        }
    }

    /// Drops the last waiting acknowledgements of a flow that say nothing beyond this packet. Those before
    /// one that stays do so as well: ECN's echoes belong to the bytes acknowledged between them (RFC 8257
    /// §3.2).
    fn drop_superseded(&mut self, flow: Flow<P::End>, packet: &P) {
        let counters = &mut self.counters;
        let Some(waiting) = self.waiting.get_mut(&flow) else { return };
        while waiting.acks.back().is_some_and(|older| supersedes(packet, older))
            && let Some(older) = waiting.acks.pop_back()
        {
            counters.superseded += 1;
            counters.held_bytes -= older.ip_length() as u64;
        }
    }

    /// Another packet of the flow leaves: what waits and is not said by it goes first.
    fn overtake(&mut self, now: Time, flow: Flow<P::End>, packet: P, out: &mut Outbox<P>) {
        self.drop_superseded(flow, &packet);
        if let Some(waiting) = self.waiting.remove(&flow) {
            self.turns.remove(&waiting.turn);
            waiting.acks.into_iter().for_each(|ack| self.release(now, ack, out));
        }
        self.send_other(now, packet, out);
    }

    /// The flow's turn comes after all others'.
    fn take_turn(&mut self, flow: Flow<P::End>) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.turns.insert(turn, flow);
        turn
    }

    /// The next acknowledgement of the flow whose turn it is.
    fn release_next(&mut self, now: Time, out: &mut Outbox<P>) {
        let Some((_, flow)) = self.turns.pop_first() else { return };
        let Some(mut waiting) = self.waiting.remove(&flow) else { return };
        let Some(ack) = waiting.acks.pop_front() else { return };
        if !waiting.acks.is_empty() {
            (waiting.turn, waiting.since) = (self.take_turn(flow), now);
            self.waiting.insert(flow, waiting);
        }
        self.release(now, ack, out);
    }

    fn release(&mut self, now: Time, ack: P, out: &mut Outbox<P>) {
        self.counters.released += 1;
        self.counters.held_bytes -= ack.ip_length() as u64;
        self.send_ack(now, ack, out);
    }

    fn send_ack(&mut self, now: Time, ack: P, out: &mut Outbox<P>) {
        let takes = self.config.rate.time_for(ack.ip_length() as u64);
        self.acks_sent_at = self.acks_sent_at.max(now) + takes;
        self.send_other(now, ack, out);
    }

    fn send_other(&mut self, now: Time, packet: P, out: &mut Outbox<P>) {
        let takes = self.config.rate.time_for(packet.ip_length() as u64);
        // The queue behind may be shorter than what is offered to it.
        self.free_at = (self.free_at.max(now) + takes).min(now + self.config.delay.max(takes));
        out.to_link.push_back(packet);
    }

    fn count_held(&mut self, packet: &P) {
        let counters = &mut self.counters;
        counters.held += 1;
        counters.held_bytes += packet.ip_length() as u64;
        counters.most_held_bytes = counters.most_held_bytes.max(counters.held_bytes);
    }
}

/// Whether a packet acknowledges data and does nothing else.
fn is_pure_ack<E>(header: &TcpHeader<'_, E>) -> bool {
    header.flags.is_ack() && !header.flags.is_rst() && header.sequence_length() == 0
}

fn is_older<P: Packet>(one: &P, other: &P) -> bool {
    one.tcp().zip(other.tcp()).is_some_and(|(one, other)| is_before(one.ack, other.ack))
}

/// Whether a packet of a flow says everything that this pure acknowledgement says, so that nobody misses it.
fn supersedes<P: Packet>(newer: &P, older: &P) -> bool {
    let (Some(newer), Some(older)) = (newer.tcp(), older.tcp()) else { return false };
    if !newer.flags.is_ack() || newer.flags.is_rst() || is_before(newer.ack, older.ack) {
        return false;
    }
    let ecn = |header: &TcpHeader<'_, P::End>| header.flags.0 & ECN_FLAGS;
    // The sender counts duplicates without SACK blocks; another window makes it none (RFC 5681 §2).
    let is_counted = newer.ack == older.ack && older.sack.is_empty() && newer.window == older.window;
    let covers = |block: &(u32, u32)| says_block(&newer, *block);
    ecn(&newer) == ecn(&older) && !is_counted && !has_d_sack(&older) && older.sack.iter().all(covers)
}

/// Whether the header acknowledges these bytes.
fn says_block<E>(header: &TcpHeader<'_, E>, (start, end): (u32, u32)) -> bool {
    let within = |&(from, to): &(u32, u32)| !is_before(start, from) && !is_before(to, end);
    !is_before(header.ack, end) || header.sack.iter().any(within)
}

/// Whether its first block is a D-SACK: below the acknowledgement, or within the second block (RFC 2883 §4).
fn has_d_sack<E>(header: &TcpHeader<'_, E>) -> bool {
    let [(start, end), rest @ ..] = header.sack else { return false };
    let within = |&(from, to): &(u32, u32)| !is_before(*start, from) && !is_before(to, *end);
    is_before(*start, header.ack) || rest.first().is_some_and(within)
}

impl<P: Packet> Agent<P> for AckFilter<P> {
    fn outbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>) {
        let seen = packet.tcp().map(|header| (Flow::of_acknowledgement(&header), is_pure_ack(&header)));
        match seen {
            Some((flow, true)) if !packet.says_more() => self.on_ack(now, flow, packet, out),
            Some((flow, _)) => self.overtake(now, flow, packet, out),
            None => self.send_other(now, packet, out),
        }
    }

    fn inbound(&mut self, _now: Time, packet: P, out: &mut Outbox<P>) {
        out.to_host.push_back(packet);
    }

    fn wake_at(&self) -> Time {
        let Some(first) = self.turns.values().next().and_then(|flow| self.waiting.get(flow)) else {
            return Time::MAX;
        };
        self.acks_sent_at.max(self.free_at.min(first.since + self.config.delay))
    }

    fn on_timer(&mut self, now: Time, out: &mut Outbox<P>) {
        while self.wake_at() <= now {
            self.release_next(now, out);
        }
    }

    fn flush(&mut self, out: &mut Outbox<P>) {
        for flow in std::mem::take(&mut self.turns).into_values() {
            let acks = self.waiting.remove(&flow).map(|waiting| waiting.acks);
            out.to_link.extend(acks.into_iter().flatten());
        }
        self.counters.held_bytes = 0;
    }

    fn held_bytes(&self) -> u64 {
        self.counters.held_bytes
    }

    fn report(&self) -> AgentReport {
        AgentReport::AckFilter(self.counters)
    }
}

//! Snoop: retransmission by an agent at the gateway that knows TCP (Balakrishnan, Seshan, Amir, Katz:
//! "Improving TCP/IP Performance over Wireless Networks", MobiCom 1995).
//!
//! Snoop caches segments on their way to the terminal until they are acknowledged. The first duplicate ACK
//! passes. The second one shows that a segment is lost, and Snoop retransmits it, close to the loss. Further
//! duplicate ACKs are suppressed, so that the sender sees no third one and does not take the loss for
//! congestion. A local timer retransmits segments whose loss no duplicate ACK shows. The sender itself
//! repairs the losses of segments that are not cached, that Snoop has retransmitted in vain, or that the
//! sender has retransmitted; their duplicate ACKs pass.
//!
//! Beyond the paper:
//!
//! - **SACK.** A sender that uses SACK blocks needs no third duplicate ACK. While Snoop repairs, it removes
//!   the blocks from the ACKs that pass ([`SnoopConfig::hide_sack`]). It uses them itself, and repairs all
//!   holes of a window in one round trip.
//! - **Lost retransmissions.** The link delivers in order. So a segment that was sent before one that has
//!   arrived, and has not arrived itself, is lost, whether or not it was a retransmission. The paper waits
//!   for its timer, as Snoop does with [`Detection::Published`].
//! - **The cache is bounded in bytes for all flows together**, and no flow may take more than its share once
//!   half of the cache is full. The sender sees the loss of a segment that found no room, so that a window
//!   which outgrows link and cache shrinks like one that outgrows a queue.
//! - **The queue.** If the link's rate is known, segments wait here for their turn ([`SnoopConfig::pace`]),
//!   one flow after the other, and not in a queue behind Snoop. Then that queue, however short, does not
//!   overflow, and losses behind Snoop are errors of the link. A segment that finds no room here is dropped
//!   before it is cached, so that the sender sees the loss and slows down.
//! - **Congestion behind.** Without pacing, or beside other traffic, a loss may be an overflow of a queue
//!   that Snoop does not see. Repairing it would hide congestion from the sender and fill that queue again.
//!   If more segments are lost at a queueing delay than at all shorter ones, a loss at that delay is left to
//!   the sender ([`SnoopConfig::hide_congestion`]).
//!
//! SYNs are not cached: a gateway that retransmits them would multiply a flood.

mod cached_segment;
mod flow;
mod overflow;
mod pacer;
mod sacked;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use bentpipe_units::{ByteCount, Rate, Time};
use serde::Serialize;

use self::flow::{Ack, AckAction, SnoopedFlow};
use self::pacer::{Admission, Pacer, Turn};
use super::{Agent, AgentReport, Flow, Outbox, Packet, TcpHeader, draining};
use crate::{FULL_SIZE_PACKET, MIN_DEFAULT_QUEUE_PACKETS};

/// Parameters of [`Snoop`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SnoopConfig {
    /// Limit of the IP bytes of cached segments, of all connections together. Segments that find no room
    /// pass, and their losses are left to the sender. Two to four bandwidth-delay products are right: a
    /// segment is cached for a round trip, and for one more if it is lost.
    pub cache: ByteCount,
    /// Limit of the connections at a time; packets of further connections pass unchanged.
    pub flows: usize,
    /// Limit of the retransmissions of a segment; after that, its loss is left to the sender.
    pub retransmissions: u32,
    /// The local retransmission timer is never shorter.
    pub timer_floor: Duration,
    /// SACK blocks are removed from ACKs that pass while Snoop repairs: a sender that uses them needs no
    /// third duplicate ACK (RFC 6675, RFC 8985).
    pub hide_sack: bool,
    /// Losses that are probably an overflow of the queue behind Snoop are repaired too, and hidden from the
    /// sender. Otherwise they are left to the sender, so that it slows down.
    pub hide_congestion: bool,
    /// How losses are found.
    pub detection: Detection,
    /// Copies of a segment per retransmission, at least 1. A second copy costs as much of the link as the
    /// link loses, and saves a round trip if the first one is lost.
    pub copies: u32,
    /// Segments wait here for their turn on the link, instead of in a queue behind; `None` if the link's rate
    /// is unknown.
    pub pace: Option<Pace>,
}

/// How Snoop finds that a segment is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detection {
    /// By the link's order, and by SACK blocks: the second duplicate ACK shows the first loss, and what was
    /// sent before something that has arrived is lost, also a retransmission.
    #[default]
    Order,
    /// As published in 1995, and in ns-2's model by its description: the first duplicate ACK for a cached
    /// segment makes Snoop retransmit it, and is suppressed with all that follow. Whether the retransmission
    /// was lost, duplicate ACKs do not show: one is outstanding at a time, until twice the smoothed round
    /// trip of the link has passed since it left (the round-trip timer), each time anew and without backing
    /// off. A segment for which no duplicate ACK comes is retransmitted when neither side has sent anything
    /// for as long (the persist timer). SACK blocks tell nothing.
    ///
    /// The paper's persist timer is 200 ms, which a satellite's round trip exceeds in every pause of its
    /// window. And the paper smooths with α = 1/4, here it is 1/8.
    Published,
}

impl Detection {
    /// The number of the duplicate ACK that shows a loss.
    fn duplicates(self) -> u32 {
        match self {
            Self::Order => 2,
            Self::Published => 1,
        }
    }
}

/// The rate at which segments go to the link.
///
/// With it the queue in front of the link is Snoop's own. When a hole has been filled, the sender may send a
/// whole window at once; a short queue behind Snoop would overflow then, and losses behind Snoop would not be
/// errors of the link alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The rate, a little less than the link's. Retransmissions count.
    pub rate: Rate,
    /// Limit of the IP bytes that wait; a segment that finds no room is dropped, as by any queue. Two
    /// bandwidth-delay products are right: while a hole is open a window must last for two round trips.
    pub queue: ByteCount,
}

impl SnoopConfig {
    /// The usual parameters, and a cache of this size.
    pub fn with_cache(cache: ByteCount) -> Self {
        Self {
            cache,
            flows: 100_000,
            retransmissions: 5,
            timer_floor: Duration::from_millis(200),
            hide_sack: true,
            hide_congestion: false,
            detection: Detection::Order,
            copies: 2,
            pace: None,
        }
    }
}

impl Pace {
    /// For a link of this rate and round-trip time. One and a half per cent of the rate is left for traffic
    /// that does not pass here and for the link's own overhead.
    pub fn for_link(rate: Rate, round_trip: Duration) -> Self {
        let least = MIN_DEFAULT_QUEUE_PACKETS * FULL_SIZE_PACKET.get();
        let queue = ByteCount::new(rate.bytes_in(round_trip).saturating_mul(2).max(least));
        Self { rate: draining(rate), queue }
    }
}

/// The counters of a [`Snoop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SnoopCounters {
    /// Segments cached since the beginning.
    pub cached: u64,
    /// Segments that found no room.
    pub not_cached: u64,
    /// Segments retransmitted, for any reason.
    pub retransmitted: u64,
    /// How often the local timer expired.
    pub timed_out: u64,
    /// Duplicate ACKs that were not passed on.
    pub suppressed: u64,
    /// ACKs whose SACK blocks were removed.
    pub sack_hidden: u64,
    /// Losses that were taken for an overflow of the queue and left to the sender.
    pub yielded: u64,
    /// Connections at present.
    pub flows: u64,
    /// Segments of connections beyond the limit.
    pub flows_passed: u64,
    /// Segments that found no room in the queue.
    pub queue_dropped: u64,
    /// IP bytes in the queue at present.
    pub queued_bytes: u64,
    /// The highest value of `queued_bytes`.
    pub most_queued_bytes: u64,
    /// IP bytes of cached segments at present.
    pub held_bytes: u64,
    /// The highest value of `held_bytes`.
    pub most_held_bytes: u64,
}

/// Retransmits lost segments from the gateway. See the [module](self).
#[derive(Debug)]
pub struct Snoop<P: Packet> {
    config: SnoopConfig,
    by_ends: HashMap<Flow<P::End>, u32>,
    slots: Vec<Slot<P>>,
    free: Vec<u32>,
    /// Timers: their times and slots. The valid timer of a slot is the one with the time in `scheduled`; it
    /// may expire too early, and is then postponed. It stays when the flow is removed, so that short flows do
    /// not leave one timer each.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// Flows with cached segments.
    busy: u64,
    /// Segments with a record, of all flows; selectively acknowledged ones have a record and no packet.
    records: u64,
    counters: SnoopCounters,
    pacer: Option<Pacer<P>>,
    /// Retransmissions to send; empty between calls.
    repairs: Vec<P>,
}

/// About the bytes of memory that the record of a segment takes beside its packet. The cache bounds these
/// too.
const RECORD: u64 = 160;

/// The memory of one flow, and of another one later.
#[derive(Debug)]
struct Slot<P: Packet> {
    scheduled: Time,
    flow: Option<(Flow<P::End>, SnoopedFlow<P>)>,
}

impl<P: Packet> Snoop<P> {
    /// An agent without connections.
    pub fn new(config: &SnoopConfig) -> Self {
        Self {
            config: *config,
            by_ends: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            busy: 0,
            records: 0,
            counters: SnoopCounters::default(),
            pacer: config.pace.map(|pace| Pacer::new(pace, config.copies)),
            repairs: Vec::new(),
        }
    }

    /// Caches a segment on its way to the terminal.
    fn cache(&mut self, now: Time, header: &TcpHeader<'_, P::End>, packet: &P) {
        let flow = Flow::of_data(header);
        let Some(index) = self.slot_for(now, flow, header.seq) else {
            self.counters.flows_passed += 1;
            return;
        };
        let length = packet.ip_length() as u64;
        let has_room = |state: &SnoopedFlow<P>| {
            let (all, mine) = (self.counters.held_bytes + length, state.held() + length);
            let cache = self.config.cache.get();
            let has_record_room = (self.records + 1) * RECORD <= cache.max(RECORD);
            has_record_room && all <= cache && (all <= cache / 2 || mine <= cache / self.busy.max(1))
        };
        let Some((_, state)) = &self.slots[index as usize].flow else { return };
        let has_room = has_room(state);
        let is_new = self.with_flow(index, |state, _, _| {
            let is_new = state.on_segment(now, (header.seq, header.end()), packet, has_room);
            if header.flags.is_fin() {
                state.on_fin(header.end());
            }
            is_new
        });
        match is_new {
            true => self.counters.cached += 1,
            false => self.counters.not_cached += u64::from(!has_room),
        }
        self.schedule(index);
    }

    /// Decides what happens to an acknowledgement from the terminal.
    fn on_ack(&mut self, now: Time, header: &TcpHeader<'_, P::End>, packet: &P) -> AckAction {
        let Some(&index) = self.by_ends.get(&Flow::of_acknowledgement(header)) else {
            return AckAction::Pass;
        };
        let ack = Ack {
            ack: header.ack,
            window: header.window,
            sack: header.sack,
            is_pure: header.sequence_length() == 0 && !packet.says_more(),
        };
        let (action, finished, yields) = self.with_flow(index, |state, config, repairs| {
            let yielded = state.is_yielding();
            let action = state.on_ack(now, ack, config, &mut |packet| repairs.push(packet));
            (action, state.is_finished(), state.is_yielding() && !yielded)
        });
        self.counters.yielded += u64::from(yields);
        match action {
            AckAction::Pass => {}
            AckAction::HideSack => self.counters.sack_hidden += 1,
            AckAction::Suppress => self.counters.suppressed += 1,
        }
        if finished {
            self.remove(index);
            self.let_pass(Flow::of_acknowledgement(header));
        } else {
            self.schedule(index);
        }
        action
    }

    /// The slot of a flow; a new one for a flow that begins at `seq`, if there is room.
    fn slot_for(&mut self, now: Time, flow: Flow<P::End>, seq: u32) -> Option<u32> {
        if let Some(&index) = self.by_ends.get(&flow) {
            return Some(index);
        }
        if self.by_ends.len() >= self.config.flows {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { scheduled: Time::MAX, flow: None });
            (self.slots.len() - 1) as u32
        });
        self.slots[index as usize].flow = Some((flow, SnoopedFlow::new(now, seq)));
        self.by_ends.insert(flow, index);
        Some(index)
    }

    /// Applies `act` to a flow, and updates the sums.
    fn with_flow<T>(
        &mut self,
        index: u32,
        act: impl FnOnce(&mut SnoopedFlow<P>, &SnoopConfig, &mut Vec<P>) -> T,
    ) -> T {
        let (_, state) =
            self.slots[index as usize].flow.as_mut().expect("an index leads to a slot with a flow");
        let before = state.size();
        let outcome = act(state, &self.config, &mut self.repairs);
        let after = state.size();
        self.account(before, after);
        outcome
    }

    /// Updates the sums after the bytes and segments of a flow have changed.
    fn account(&mut self, (before, segments_before): (u64, u64), (after, segments_after): (u64, u64)) {
        self.busy = self.busy + u64::from(after > 0) - u64::from(before > 0);
        self.records = self.records + segments_after - segments_before;
        let counters = &mut self.counters;
        counters.held_bytes = counters.held_bytes + after - before;
        counters.most_held_bytes = counters.most_held_bytes.max(counters.held_bytes);
    }

    /// A SYN or a reset: the connection of these ends is another one now, or has ended.
    fn forget(&mut self, header: &TcpHeader<'_, P::End>) {
        for flow in [Flow::of_data(header), Flow::of_acknowledgement(header)] {
            if let Some(&index) = self.by_ends.get(&flow) {
                self.remove(index);
            }
        }
    }

    /// Segments of a flow that has ended and that still wait pass at their turn, and are not cached: no ACK
    /// would release them.
    fn let_pass(&mut self, flow: Flow<P::End>) {
        if let Some(pacer) = &mut self.pacer {
            pacer.let_pass(flow);
        }
    }

    fn remove(&mut self, index: u32) {
        if let Some((flow, state)) = self.slots[index as usize].flow.take() {
            self.by_ends.remove(&flow);
            self.free.push(index);
            self.account(state.size(), (0, 0));
        }
    }

    /// Sets the timer of a flow.
    fn schedule(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some((_, state)) = &slot.flow else { return };
        let deadline = state.deadline(&self.config);
        if deadline < slot.scheduled {
            slot.scheduled = deadline;
            self.timers.push(Reverse((deadline, index)));
        }
    }

    /// The timer of a slot has expired; it may be postponed.
    fn on_slot_timer(&mut self, now: Time, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.scheduled = Time::MAX;
        let Some((_, state)) = &slot.flow else { return };
        if state.is_idle(now) {
            return self.remove(index);
        }
        let expired = self.with_flow(index, |state, config, repairs| {
            state.on_timer(now, config, &mut |packet| repairs.push(packet))
        });
        self.counters.timed_out += u64::from(expired);
        self.schedule(index);
    }

    /// A packet leaves for the link: from here on its segment can be lost. It is cached if its connection is
    /// `alive`.
    fn leave(&mut self, now: Time, packet: P, alive: bool, out: &mut Outbox<P>) {
        if let Some(header) = packet.tcp() {
            if header.flags.is_syn() || header.flags.is_rst() {
                self.forget(&header);
            } else if header.sequence_length() > 0 && alive {
                self.cache(now, &header, &packet);
            }
        }
        out.to_link.push_back(packet);
    }

    /// Sends the retransmissions, or queues them.
    fn send_repairs(&mut self, now: Time, out: &mut Outbox<P>) {
        let mut repairs = std::mem::take(&mut self.repairs);
        for packet in repairs.drain(..) {
            if let Some(pacer) = &mut self.pacer {
                pacer.repair(packet);
            } else if self.is_needed(now, &packet) {
                self.retransmit(packet, out);
            }
        }
        self.repairs = repairs;
        self.note_queue();
    }

    /// Sends the configured number of copies.
    fn retransmit(&self, packet: P, out: &mut Outbox<P>) {
        out.to_link.extend(std::iter::repeat_n(packet, self.config.copies.max(1) as usize));
    }

    /// Whether a retransmission whose turn has come is still needed: the segment may have arrived while it
    /// waited, or its flow may have ended. If it is needed, it counts as sent now.
    fn is_needed(&mut self, now: Time, packet: &P) -> bool {
        let Some(header) = packet.tcp() else { return false };
        let Some(&index) = self.by_ends.get(&Flow::of_data(&header)) else { return false };
        let is_needed = self.with_flow(index, |state, _, _| state.repair_leaves(now, header.seq));
        self.counters.retransmitted += u64::from(is_needed);
        self.schedule(index);
        is_needed
    }

    /// Sends the packets whose turn has come.
    fn release(&mut self, now: Time, out: &mut Outbox<P>) {
        let Some(mut pacer) = self.pacer.take() else { return };
        while let Some(turn) = pacer.next(now, |packet| self.is_needed(now, packet)) {
            match turn {
                Turn::Repair(packet) => self.retransmit(packet, out),
                Turn::First { packet, alive } => self.leave(now, packet, alive, out),
            }
        }
        self.pacer = Some(pacer);
        self.note_queue();
    }

    fn note_queue(&mut self) {
        let queued = self.pacer.as_ref().map_or(0, Pacer::queued);
        self.counters.queued_bytes = queued;
        self.counters.most_queued_bytes = self.counters.most_queued_bytes.max(queued);
    }
}

impl<P: Packet> Agent<P> for Snoop<P> {
    fn outbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>) {
        let admission = match &mut self.pacer {
            Some(pacer) => pacer.admit(now, packet),
            None => Admission::Go(packet),
        };
        match admission {
            Admission::Go(packet) => self.leave(now, packet, true, out),
            Admission::Queued => self.note_queue(),
            Admission::Dropped => self.counters.queue_dropped += 1,
        }
    }

    fn inbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>) {
        let action = match packet.tcp() {
            Some(header) if header.flags.is_syn() || header.flags.is_rst() => {
                self.forget(&header);
                self.let_pass(Flow::of_acknowledgement(&header));
                AckAction::Pass
            }
            Some(header) if header.flags.is_ack() => self.on_ack(now, &header, &packet),
            _ => AckAction::Pass,
        };
        match action {
            AckAction::Pass => out.to_host.push_back(packet),
            AckAction::HideSack => out.to_host.push_back(packet.without_sack()),
            AckAction::Suppress => {}
        }
        self.send_repairs(now, out);
        self.release(now, out);
    }

    fn wake_at(&self) -> Time {
        let turn = self.pacer.as_ref().map_or(Time::MAX, Pacer::wake_at);
        self.timers.peek().map_or(Time::MAX, |Reverse((at, _))| *at).min(turn)
    }

    fn on_timer(&mut self, now: Time, out: &mut Outbox<P>) {
        while let Some(&Reverse((at, index))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            if self.slots[index as usize].scheduled == at {
                self.on_slot_timer(now, index);
            }
        }
        self.send_repairs(now, out);
        self.release(now, out);
    }

    fn flush(&mut self, out: &mut Outbox<P>) {
        if let Some(pacer) = &mut self.pacer {
            out.to_link.extend(pacer.drain());
        }
        self.note_queue();
    }

    fn held_bytes(&self) -> u64 {
        self.counters.held_bytes + self.counters.queued_bytes
    }

    fn report(&self) -> AgentReport {
        AgentReport::Snoop(SnoopCounters { flows: self.by_ends.len() as u64, ..self.counters })
    }
}

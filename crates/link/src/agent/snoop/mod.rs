//! Snoop: retransmission by an agent at the gateway that knows TCP (Balakrishnan, Seshan, Amir, Katz: "Improving TCP/IP
//! Performance over Wireless Networks", MobiCom 1995).
//!
//! Segments on their way to the terminal are kept until they are acknowledged. The first duplicate ACK passes; the second
//! says that a segment is lost, and that is sent again from here, where the loss is cheap; those that must follow are
//! suppressed, so that the sender sees no third one and does not take the loss for congestion. A local timer sends again
//! what no duplicate ACK speaks of. What Snoop does not keep, what it has sent again in vain and what the sender sends
//! again itself is the sender's care, and its duplicate ACKs pass.
//!
//! Beyond the paper:
//!
//! - **SACK.** A sender that uses SACK blocks needs no third duplicate ACK. While Snoop repairs, the blocks are taken out of
//!   what passes ([`SnoopConfig::hide_sack`]); it makes use of them itself, and repairs all holes of a window in one round
//!   trip.
//! - **Lost retransmissions.** The link keeps packets in order, so what went out before something that has arrived, and
//!   has not arrived, is lost, a retransmission like any other. The paper waits for its timer.
//! - **The cache is bounded in bytes for all flows together**, and no flow may take more than its share once half of it is
//!   taken. A loss of what found no room is seen by the sender, so that a window which outgrows link and cache ends as one
//!   does that outgrows a queue.
//! - **The queue.** Where the link's rate is known, segments wait here for their turn ([`SnoopConfig::pace`]), a flow after the other, and
//!   not in a queue behind: then that one, however short, does not overflow, and what is lost behind Snoop is the link's error.
//!   What finds no room here is dropped before it is kept, so it is the sender's care and tells it to slow down.
//! - **Congestion behind.** Without that, or beside other traffic, a loss may be an overflow of a queue that Snoop does not
//!   see, and repairing it would hide congestion from the sender and fill that queue again. Where more segments are lost at a queueing
//!   delay than at all shorter ones, a loss at that delay is left to the sender ([`SnoopConfig::hide_congestion`]).
//!
//! SYNs are not kept: a gateway that repeats them would multiply a flood.

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

use self::flow::{Ack, Tracked, Verdict};
use self::pacer::{Admission, Pacer, Turn};
use super::{Agent, AgentReport, Flow, Outbox, Packet, TcpHeader};
use crate::{FULL_SIZE_PACKET, MIN_DEFAULT_QUEUE_PACKETS};

/// Parameters of [`Snoop`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SnoopConfig {
    /// IP bytes of segments that are kept at the most, of all connections together. Segments that find no room pass and are
    /// their sender's care. Two to four bandwidth-delay products are right: a segment is kept for a round trip, and for
    /// one more if it is lost.
    pub cache: ByteCount,
    /// Connections that are looked after at a time; those beyond pass as they are.
    pub flows: usize,
    /// How often a segment is sent again at the most; then its loss is the sender's care.
    pub retransmissions: u32,
    /// The local retransmission timer is never shorter.
    pub timer_floor: Duration,
    /// SACK blocks are taken out of what passes while Snoop repairs: a sender that uses them needs no third duplicate ACK
    /// (RFC 6675, RFC 8985).
    pub hide_sack: bool,
    /// Losses that are likely to be the queue's behind Snoop are repaired too, unseen by the sender. Otherwise they are its
    /// care: it is to slow down.
    pub hide_congestion: bool,
    /// How many copies of a segment go out when it is sent again, at least 1. A second one costs as much of the link as is lost on
    /// it, and saves the round trip that a retransmission costs which is lost too.
    pub copies: u32,
    /// Segments wait here for their turn on the link, instead of in a queue behind; `None` where the link's rate is not known.
    pub pace: Option<Pace>,
}

/// At which rate segments go to the link.
///
/// With it the queue before the link is Snoop's own, however short the one behind it is: a hole that has been filled lets the
/// sender send a window at once, and what is lost behind Snoop is the link's error and not that queue's overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The rate, a little less than the link's. Retransmissions count.
    pub rate: Rate,
    /// IP bytes that wait at the most; what finds no room is dropped, as by any queue. Two bandwidth-delay products are
    /// right: while a hole is open a window must last for two round trips.
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
            copies: 2,
            pace: None,
        }
    }
}

impl Pace {
    /// For a link of this rate and round-trip time. A hundredth and a half of the rate is left for what does not pass here and
    /// for the link's own overhead.
    pub fn for_link(rate: Rate, round_trip: Duration) -> Self {
        let least = MIN_DEFAULT_QUEUE_PACKETS * FULL_SIZE_PACKET.get();
        let queue = ByteCount::new(rate.bytes_in(round_trip).saturating_mul(2).max(least));
        let bits = (u128::from(rate.bps()) * 985 / 1000) as u64;
        Self { rate: Rate::from_bps(bits).unwrap_or(rate), queue }
    }
}

/// What a [`Snoop`] has done so far, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SnoopCounters {
    /// Segments kept since the beginning.
    pub cached: u64,
    /// Segments that found no room.
    pub not_cached: u64,
    /// Segments sent again, for whatever reason.
    pub retransmitted: u64,
    /// How often the local timer expired.
    pub timed_out: u64,
    /// Duplicate ACKs that were not passed on.
    pub suppressed: u64,
    /// ACKs whose SACK blocks were taken out.
    pub sack_hidden: u64,
    /// Times that a loss was taken for an overflow of the queue and left to the sender.
    pub yielded: u64,
    /// Connections that are looked after now.
    pub flows: u64,
    /// Segments of connections that found no room.
    pub flows_passed: u64,
    /// Segments that found no room in the queue of those that wait for their turn.
    pub queue_dropped: u64,
    /// IP bytes that wait for their turn now.
    pub queued_bytes: u64,
    /// The most that waited at any time.
    pub most_queued_bytes: u64,
    /// IP bytes of segments that are kept now.
    pub held_bytes: u64,
    /// The most that were kept at any time.
    pub most_held_bytes: u64,
}

/// Retransmits lost segments from the gateway. See the [module](self).
#[derive(Debug)]
pub struct Snoop<P: Packet> {
    config: SnoopConfig,
    by_ends: HashMap<Flow<P::End>, u32>,
    places: Vec<Place<P>>,
    free: Vec<u32>,
    /// Wake-ups: their times and places. A place's own one is the one with the time that it remembers; it may come too early,
    /// and is then put off. It stays when the flow goes, so that flows that come and go do not leave one behind each.
    alarms: BinaryHeap<Reverse<(Time, u32)>>,
    /// Flows of which something is kept.
    busy: u64,
    /// Segments that are kept or remembered, of all flows.
    remembered: u64,
    counters: SnoopCounters,
    pacer: Option<Pacer<P>>,
    /// What is to be sent again; empty between calls.
    repairs: Vec<P>,
}

/// Bytes of memory that a segment takes beside its packet, about: the cache bounds these too.
const REMEMBERED: u64 = 160;

/// Where a flow is kept, one after the other.
#[derive(Debug)]
struct Place<P: Packet> {
    scheduled: Time,
    occupant: Option<(Flow<P::End>, Tracked<P>)>,
}

impl<P: Packet> Snoop<P> {
    /// Without any connection yet.
    pub fn new(config: &SnoopConfig) -> Self {
        Self {
            config: *config,
            by_ends: HashMap::new(),
            places: Vec::new(),
            free: Vec::new(),
            alarms: BinaryHeap::new(),
            busy: 0,
            remembered: 0,
            counters: SnoopCounters::default(),
            pacer: config.pace.map(|pace| Pacer::new(pace, config.copies)),
            repairs: Vec::new(),
        }
    }

    /// Takes note of a segment on its way to the terminal.
    fn keep(&mut self, now: Time, header: &TcpHeader<'_, P::End>, packet: &P) {
        let flow = Flow::of_data(header);
        let Some(index) = self.place_for(now, flow, header.seq) else {
            self.counters.flows_passed += 1;
            return;
        };
        let length = packet.ip_length() as u64;
        let has_room = |tracked: &Tracked<P>| {
            let (all, mine) = (self.counters.held_bytes + length, tracked.held() + length);
            let cache = self.config.cache.get();
            // What has been selectively acknowledged holds no packet, but is remembered.
            let can_remember = (self.remembered + 1) * REMEMBERED <= cache.max(REMEMBERED);
            can_remember && all <= cache && (all <= cache / 2 || mine <= cache / self.busy.max(1))
        };
        let Some((_, tracked)) = &self.places[index as usize].occupant else { return };
        let has_room = has_room(tracked);
        let is_new = self.with_flow(index, |tracked, _, _| {
            let is_new = tracked.on_segment(now, (header.seq, header.end()), packet, has_room);
            if header.flags.is_fin() {
                tracked.on_fin(header.end());
            }
            is_new
        });
        match is_new {
            true => self.counters.cached += 1,
            false => self.counters.not_cached += u64::from(!has_room),
        }
        self.schedule(index);
    }

    /// What becomes of an acknowledgement from the terminal.
    fn judge(&mut self, now: Time, header: &TcpHeader<'_, P::End>, packet: &P) -> Verdict {
        let Some(&index) = self.by_ends.get(&Flow::of_acknowledgement(header)) else { return Verdict::Pass };
        let ack = Ack {
            ack: header.ack,
            window: header.window,
            sack: header.sack,
            is_pure: header.sequence_length() == 0 && !packet.says_more(),
        };
        let (verdict, finished, yields) = self.with_flow(index, |tracked, config, repairs| {
            let yielded = tracked.is_yielding();
            let verdict = tracked.on_ack(now, ack, config, &mut |packet| repairs.push(packet));
            (verdict, tracked.is_finished(), tracked.is_yielding() && !yielded)
        });
        self.counters.yielded += u64::from(yields);
        match verdict {
            Verdict::Pass => {}
            Verdict::HideSack => self.counters.sack_hidden += 1,
            Verdict::Suppress => self.counters.suppressed += 1,
        }
        if finished {
            self.remove(index);
            self.let_pass(Flow::of_acknowledgement(header));
        } else {
            self.schedule(index);
        }
        verdict
    }

    /// The place of a flow; a new one for a flow that begins at `seq`, if there is room.
    fn place_for(&mut self, now: Time, flow: Flow<P::End>, seq: u32) -> Option<u32> {
        if let Some(&index) = self.by_ends.get(&flow) {
            return Some(index);
        }
        if self.by_ends.len() >= self.config.flows {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { scheduled: Time::MAX, occupant: None });
            (self.places.len() - 1) as u32
        });
        self.places[index as usize].occupant = Some((flow, Tracked::new(now, seq)));
        self.by_ends.insert(flow, index);
        Some(index)
    }

    /// Lets something happen to a flow, and keeps the sums.
    fn with_flow<T>(
        &mut self,
        index: u32,
        act: impl FnOnce(&mut Tracked<P>, &SnoopConfig, &mut Vec<P>) -> T,
    ) -> T {
        let (_, tracked) =
            self.places[index as usize].occupant.as_mut().expect("an index leads to a place that is taken");
        let before = tracked.size();
        let outcome = act(tracked, &self.config, &mut self.repairs);
        let after = tracked.size();
        self.account(before, after);
        outcome
    }

    /// A flow's bytes and segments were so many before, and are so many now.
    fn account(&mut self, (before, segments_before): (u64, u64), (after, segments_after): (u64, u64)) {
        self.busy = self.busy + u64::from(after > 0) - u64::from(before > 0);
        self.remembered = self.remembered + segments_after - segments_before;
        let counters = &mut self.counters;
        counters.held_bytes = counters.held_bytes + after - before;
        counters.most_held_bytes = counters.most_held_bytes.max(counters.held_bytes);
    }

    /// A SYN or a reset: there is another connection of these ends, or none any more.
    fn forget(&mut self, header: &TcpHeader<'_, P::End>) {
        for flow in [Flow::of_data(header), Flow::of_acknowledgement(header)] {
            if let Some(&index) = self.by_ends.get(&flow) {
                self.remove(index);
            }
        }
    }

    /// What waits of a flow that has ended passes at its turn, and is not kept: nobody would acknowledge it.
    fn let_pass(&mut self, flow: Flow<P::End>) {
        if let Some(pacer) = &mut self.pacer {
            pacer.let_pass(flow);
        }
    }

    fn remove(&mut self, index: u32) {
        if let Some((flow, tracked)) = self.places[index as usize].occupant.take() {
            self.by_ends.remove(&flow);
            self.free.push(index);
            self.account(tracked.size(), (0, 0));
        }
    }

    /// Sees to it that the flow is woken in time.
    fn schedule(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        let Some((_, tracked)) = &place.occupant else { return };
        let deadline = tracked.deadline(&self.config);
        if deadline < place.scheduled {
            place.scheduled = deadline;
            self.alarms.push(Reverse((deadline, index)));
        }
    }

    /// A flow's time may have come.
    fn wake(&mut self, now: Time, index: u32) {
        let place = &mut self.places[index as usize];
        place.scheduled = Time::MAX;
        let Some((_, tracked)) = &place.occupant else { return };
        if tracked.is_forgotten(now) {
            return self.remove(index);
        }
        let expired = self.with_flow(index, |tracked, config, repairs| {
            tracked.on_timer(now, config, &mut |packet| repairs.push(packet))
        });
        self.counters.timed_out += u64::from(expired);
        self.schedule(index);
    }

    /// A packet leaves for the link: from here on its segment can be lost. It is kept if it is `of_use`.
    fn leave(&mut self, now: Time, packet: P, of_use: bool, out: &mut Outbox<P>) {
        if let Some(header) = packet.tcp() {
            if header.flags.is_syn() || header.flags.is_rst() {
                self.forget(&header);
            } else if header.sequence_length() > 0 && of_use {
                self.keep(now, &header, &packet);
            }
        }
        out.to_link.push_back(packet);
    }

    /// What is to be sent again goes out, or waits for its turn.
    fn send_repairs(&mut self, now: Time, out: &mut Outbox<P>) {
        let mut repairs = std::mem::take(&mut self.repairs);
        for packet in repairs.drain(..) {
            if let Some(pacer) = &mut self.pacer {
                pacer.repair(packet);
            } else if self.is_wanted(now, &packet) {
                self.leave_again(packet, out);
            }
        }
        self.repairs = repairs;
        self.note_queue();
    }

    /// A repair goes out, as many copies as there shall be of it.
    fn leave_again(&self, packet: P, out: &mut Outbox<P>) {
        out.to_link.extend(std::iter::repeat_n(packet, self.config.copies.max(1) as usize));
    }

    /// Whether a repair whose turn has come is still of use: what it repairs may have arrived while it waited, or its flow have
    /// ended. If it is, it counts as sent now.
    fn is_wanted(&mut self, now: Time, packet: &P) -> bool {
        let Some(header) = packet.tcp() else { return false };
        let Some(&index) = self.by_ends.get(&Flow::of_data(&header)) else { return false };
        let is_wanted = self.with_flow(index, |tracked, _, _| tracked.repair_leaves(now, header.seq));
        self.counters.retransmitted += u64::from(is_wanted);
        self.schedule(index);
        is_wanted
    }

    /// Lets go whose turn has come.
    fn release(&mut self, now: Time, out: &mut Outbox<P>) {
        let Some(mut pacer) = self.pacer.take() else { return };
        while let Some(turn) = pacer.next(now, |packet| self.is_wanted(now, packet)) {
            match turn {
                Turn::Repair(packet) => self.leave_again(packet, out),
                Turn::First { packet, of_use } => self.leave(now, packet, of_use, out),
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
        let verdict = match packet.tcp() {
            Some(header) if header.flags.is_syn() || header.flags.is_rst() => {
                self.forget(&header);
                self.let_pass(Flow::of_acknowledgement(&header));
                Verdict::Pass
            }
            Some(header) if header.flags.is_ack() => self.judge(now, &header, &packet),
            _ => Verdict::Pass,
        };
        match verdict {
            Verdict::Pass => out.to_host.push_back(packet),
            Verdict::HideSack => out.to_host.push_back(packet.without_sack()),
            Verdict::Suppress => {}
        }
        self.send_repairs(now, out);
        self.release(now, out);
    }

    fn wake_at(&self) -> Time {
        let turn = self.pacer.as_ref().map_or(Time::MAX, Pacer::wake_at);
        self.alarms.peek().map_or(Time::MAX, |Reverse((at, _))| *at).min(turn)
    }

    fn on_timer(&mut self, now: Time, out: &mut Outbox<P>) {
        while let Some(&Reverse((at, index))) = self.alarms.peek()
            && at <= now
        {
            self.alarms.pop();
            if self.places[index as usize].scheduled == at {
                self.wake(now, index);
            }
        }
        self.send_repairs(now, out);
        self.release(now, out);
    }

    fn give_up(&mut self, out: &mut Outbox<P>) {
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

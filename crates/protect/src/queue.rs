//! The queue in front of a protected leg: FQ-CoDel (RFC 8290).
//!
//! ```text
//!                flow by hash of            deficit round robin,       CoDel: mark, or drop
//!  push() ──►    the inner addresses ──► ┃ new flows before old ┃ ──►  what has waited too long ──► pop()
//! ```
//!
//! A leg holds no packet back that it has not sent, so what exceeds its rate waits here. Each flow has its
//! fair part, and one that sends little hardly waits; a flow that keeps a queue is told so by ECN where its
//! packets allow that (RFC 3168), else by a drop.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bentpipe_units::{ByteCount, Rate, Time};

use crate::codel::{Codel, Limits, Verdict};
use crate::frame::Class;
use crate::ip::{Flow, can_be_marked, mark};

/// Queues that flows are spread over (RFC 8290 §5.1: the usual number).
const QUEUES: usize = 1024;
/// Bytes that a flow may send before the next one does (RFC 8290 §5.2: a packet of Ethernet).
const QUANTUM: i64 = 1514;
/// A full packet, bytes.
const FULL_PACKET: usize = 1500;
/// Round trips below this are taken for as long (RFC 8289 §4.3).
const SHORTEST_RTT: Duration = Duration::from_millis(100);
/// CoDel's target in round trips. RFC 8289 §4.4 has a twentieth, for links that many flows share. Here a flow
/// may be alone, and grow for seconds after each signal: CUBIC multiplies its window by 0.7 (RFC 9438 §4.6), so
/// that it takes 3/7 of a round trip in the queue to keep the link full, and a little more, as no window is used
/// to the last byte. Each flow has a queue of its own, so that no other one waits for it.
const TARGET: (u32, u32) = (1, 2);
/// So many targets are no burst, but a slow start that has passed the link's rate: it doubles with each round
/// trip in which it hears nothing. It is told at once if it can be by a mark. A drop would be repaired through
/// the queue that it is about, which the sender's timer does not wait for.
const AT_ONCE: u32 = 2;
/// Round trips, besides the wait, until a sender's answer to a signal is complete: it hears of it after one,
/// reduces what it has on its way over another (RFC 6937), and what waited too much meanwhile takes as long again
/// to drain.
const ANSWER: u32 = 3;
/// The target is at least the time of so many full packets at the leg's rate: one is on its way and one
/// waits even if senders do everything right (RFC 8289 §4.4 has it for low rates).
const LEAST_TARGET: f64 = 2.0;
/// Packets of so many bytes or fewer carry no data of QUIC, and are better off in `latency`.
const SMALL: usize = 100;
/// What a new wait counts in the mean.
const MEAN_WEIGHT: u32 = 64;

/// Which class a packet gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Choice {
    /// [`Class::Latency`].
    Latency,
    /// [`Class::Bulk`].
    Bulk,
    /// `Latency` for packets of 100 bytes or fewer, else `Bulk`.
    #[default]
    Auto,
}

impl Choice {
    /// The class of a packet of so many bytes.
    pub fn class(self, bytes: usize) -> Class {
        match self {
            Choice::Latency => Class::Latency,
            Choice::Bulk => Class::Bulk,
            Choice::Auto if bytes <= SMALL => Class::Latency,
            Choice::Auto => Class::Bulk,
        }
    }
}

/// As configurations and scenarios call it.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Choice::Latency => "latency",
            Choice::Bulk => "bulk",
            Choice::Auto => "auto",
        })
    }
}

impl From<Class> for Choice {
    fn from(class: Class) -> Self {
        match class {
            Class::Latency => Choice::Latency,
            Class::Bulk => Choice::Bulk,
        }
    }
}

/// What a queue has done since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Packets that were taken out, drained ones among them.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were marked "congestion experienced".
    pub marked: u64,
    /// Packets that were dropped to tell their sender, as they could not be marked.
    pub dropped_codel: u64,
    /// Packets that were dropped because the queue was full.
    pub dropped_full: u64,
    /// Bytes of all packets that were dropped.
    pub dropped_bytes: u64,
    /// The longest wait since the last [`Queue::reset_sojourn_max`].
    pub sojourn_max: Duration,
    /// The mean wait of about the last 64 packets, exponentially weighted.
    pub sojourn_mean: Duration,
}

/// Packets that wait for the leg.
#[derive(Debug)]
pub struct Queue {
    seed: u64,
    limit: usize,
    flows: Vec<FlowQueue>,
    /// Flows that have packets since so lately that they have not had their first quantum.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    bytes: usize,
    packets: usize,
    pushed: u64,
    rate: Option<f64>,
    rtt: Duration,
    settling: bool,
    stats: QueueStats,
}

#[derive(Debug, Default)]
struct FlowQueue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    deficit: i64,
    /// Whether it is in one of the lists.
    listed: bool,
    codel: Codel,
}

#[derive(Debug)]
struct Waiting {
    packet: Vec<u8>,
    class: Class,
    since: Time,
    /// How many were pushed before it.
    number: u64,
}

/// As many bytes as memory can have at most.
fn bytes_of(limit: ByteCount) -> usize {
    usize::try_from(limit.get()).unwrap_or(usize::MAX)
}

impl Queue {
    /// The limit of a queue if nothing else is known: GEO with 50 Mbit/s has 3.75 MB under way.
    pub const DEFAULT_LIMIT: ByteCount = ByteCount::new(4_000_000);
    /// The leg's flows are idle when nothing has been sent for so long.
    pub const IDLE: Duration = Duration::from_secs(1);
    /// The leg [settles](Self::set_settling) for so many round trips after its rate has risen or its flows were
    /// idle: what waits is not a queue that the senders have made.
    pub const SETTLES_IN: u32 = 3;

    /// The limit of a queue that is not told another one: four bandwidth-delay products, if the leg's rate is
    /// known, of which packets that cannot be marked have two. A slow start that is told that it has passed the
    /// rate goes on for a round trip and for what waits: with two products one of QUIC lost 600 packets.
    pub fn usual_limit(rate: Option<Rate>, rtt: Duration) -> ByteCount {
        const PRODUCTS: u64 = 4;
        let product = |rate: Rate| ByteCount::new(rate.bytes_in(rtt).saturating_mul(PRODUCTS));
        rate.map_or(Self::DEFAULT_LIMIT, product)
    }

    /// An empty queue of so much at most. The seed decides which flows share a queue, so it should be
    /// random; what others do not know they cannot use against a flow.
    pub fn new(seed: u64, limit: ByteCount) -> Self {
        Self {
            seed,
            limit: bytes_of(limit),
            flows: std::iter::repeat_with(FlowQueue::default).take(QUEUES).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            bytes: 0,
            packets: 0,
            pushed: 0,
            rate: None,
            rtt: SHORTEST_RTT,
            settling: false,
            stats: QueueStats::default(),
        }
    }

    /// Sets the limit. What exceeds it is dropped with the next packet.
    pub fn set_limit(&mut self, limit: ByteCount) {
        self.limit = bytes_of(limit);
    }

    /// Sets the leg's rate, bytes per second.
    pub fn set_rate(&mut self, rate: f64) {
        self.rate = (rate.is_finite() && rate > 0.0).then_some(rate);
    }

    /// Sets the round trip of the flows, of which the leg's is usually the greatest part.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// Says whether the leg's rate is still being found. As long as it is, the wait tells of the rate and
    /// not of the senders, and a signal would end their slow start much too early: then only a queue that
    /// stands for a round trip at a wait of more than a round trip is one. The limit holds all the same.
    pub fn set_settling(&mut self, settling: bool) {
        self.settling = settling;
    }

    /// Takes a packet. If it makes the queue too long, packets are dropped from the head of the longest
    /// flow (RFC 8290 §4.1.2), which may be this one. Those that can be marked have the whole limit, others half
    /// of it: for them a drop is the signal, and the sooner it comes the fewer there are.
    pub fn push(&mut self, packet: Vec<u8>, choice: Choice, now: Time) {
        let hash = Flow::of(&packet).map_or(0, |flow| flow.hash(self.seed));
        let index = (hash % QUEUES as u64) as usize;
        let bytes = packet.len();
        let class = choice.class(bytes);
        let flow = &mut self.flows[index];
        flow.waiting.push_back(Waiting { packet, class, since: now, number: self.pushed });
        flow.bytes += bytes;
        if !flow.listed {
            flow.listed = true;
            flow.deficit = QUANTUM;
            self.new.push_back(index);
        }
        self.pushed += 1;
        self.bytes += bytes;
        self.packets += 1;
        // Two packets always have room, as far as the limit does.
        let for_drops = (self.limit / 2).max(self.limit.min(2 * FULL_PACKET));
        while self.bytes > for_drops {
            let longest = (0..QUEUES).max_by_key(|index| self.flows[*index].bytes).unwrap_or(index);
            let first = self.flows[longest].waiting.front();
            if self.bytes <= self.limit && first.is_some_and(|first| can_be_marked(&first.packet)) {
                break;
            }
            let Some(dropped) = self.take(longest) else { break };
            self.stats.dropped_full += 1;
            self.stats.dropped_bytes += dropped.packet.len() as u64;
        }
    }

    /// The next packet to be sent.
    pub fn pop(&mut self, now: Time) -> Option<(Class, Vec<u8>)> {
        let limits = self.limits();
        loop {
            let is_new = !self.new.is_empty();
            let index = *if is_new { self.new.front() } else { self.old.front() }?;
            if self.flows[index].deficit <= 0 {
                self.flows[index].deficit += QUANTUM;
                self.rotate(is_new);
                continue;
            }
            let Some(waiting) = self.take_judged(index, now, limits) else {
                // RFC 8290 §4.2: a new flow that is empty goes behind the old ones, so that it is no way to
                // be served before them again and again.
                if is_new {
                    self.rotate(true);
                } else {
                    self.old.pop_front();
                    self.flows[index].listed = false;
                }
                continue;
            };
            self.flows[index].deficit -= waiting.packet.len() as i64;
            self.note_sojourn(now - waiting.since);
            return Some(self.taken(waiting));
        }
    }

    /// Bytes of the packets that wait.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Flows whose packets wait.
    pub fn flows(&self) -> usize {
        self.new.iter().chain(&self.old).filter(|index| !self.flows[**index].waiting.is_empty()).count()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// How long the oldest packet has waited; zero without any.
    pub fn oldest_sojourn(&self, now: Time) -> Duration {
        let flows = self.new.iter().chain(&self.old).map(|index| &self.flows[*index]);
        let oldest = flows.filter_map(|flow| flow.waiting.front()).map(|waiting| waiting.since).min();
        oldest.map_or(Duration::ZERO, |since| now - since)
    }

    /// What has been done so far.
    pub fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Begins to look for the longest wait anew.
    pub fn reset_sojourn_max(&mut self) {
        self.stats.sojourn_max = Duration::ZERO;
    }

    /// Takes all packets out in the order in which they came, for another queue, into which they are pushed
    /// with `class.into()`.
    pub fn drain(&mut self) -> impl Iterator<Item = (Class, Vec<u8>)> + use<> {
        let mut all: Vec<Waiting> = self.flows.iter_mut().flat_map(|flow| flow.waiting.drain(..)).collect();
        all.sort_unstable_by_key(|waiting| waiting.number);
        self.flows.iter_mut().for_each(|flow| *flow = FlowQueue::default());
        self.new.clear();
        self.old.clear();
        self.stats.packets += all.len() as u64;
        self.stats.bytes += self.bytes as u64;
        (self.bytes, self.packets) = (0, 0);
        all.into_iter().map(|waiting| (waiting.class, waiting.packet))
    }

    /// RFC 8289 §4.3 and §4.4.
    fn limits(&self) -> Limits {
        let rtt = self.rtt.max(SHORTEST_RTT);
        if self.settling {
            return Limits { target: rtt, interval: rtt, answer: rtt, at_once: Duration::MAX };
        }
        let packets = self.rate.map(|rate| LEAST_TARGET * FULL_PACKET as f64 / rate);
        let least = packets.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let target = (rtt * TARGET.0 / TARGET.1).max(least.unwrap_or_default());
        // A sender hears of a signal after a round trip with the queue.
        Limits { target, interval: rtt + target, answer: ANSWER * rtt, at_once: AT_ONCE * target }
    }

    /// The flow at the front of a list goes to the end of the list of old ones.
    fn rotate(&mut self, new: bool) {
        let index = if new { self.new.pop_front() } else { self.old.pop_front() };
        self.old.extend(index);
    }

    /// The next packet of a flow that CoDel lets pass, marked or not.
    fn take_judged(&mut self, index: usize, now: Time, limits: Limits) -> Option<Waiting> {
        loop {
            let Some(mut waiting) = self.take(index) else {
                self.flows[index].codel.on_empty();
                return None;
            };
            let (flow, rate) = (&mut self.flows[index], self.rate);
            let (mut waited, short) = (now - waiting.since, flow.bytes <= FULL_PACKET);
            let mut at_once = Duration::MAX;
            if can_be_marked(&waiting.packet) && !self.settling {
                // The last one will have waited at least as long as it takes to send all: where a flow sends
                // twice the rate, twice as long as the first one.
                let all = rate.map(|rate| Duration::try_from_secs_f64(flow.bytes as f64 / rate));
                waited = waited.max(all.and_then(Result::ok).unwrap_or_default());
                at_once = limits.at_once;
            }
            // What waits already crosses the leg before what answers the signal.
            let behind = if self.settling { Duration::ZERO } else { waited };
            let interval = limits.interval.max(self.rtt + behind);
            let answer = limits.answer + behind;
            let limits = Limits { interval, answer, at_once, ..limits };
            if flow.codel.judge(waited, short, now, limits) == Verdict::Pass {
                return Some(waiting);
            }
            if mark(&mut waiting.packet) {
                self.stats.marked += 1;
                return Some(waiting);
            }
            self.stats.dropped_codel += 1;
            self.stats.dropped_bytes += waiting.packet.len() as u64;
        }
    }

    fn take(&mut self, index: usize) -> Option<Waiting> {
        let flow = &mut self.flows[index];
        let waiting = flow.waiting.pop_front()?;
        flow.bytes -= waiting.packet.len();
        self.bytes -= waiting.packet.len();
        self.packets -= 1;
        Some(waiting)
    }

    fn taken(&mut self, waiting: Waiting) -> (Class, Vec<u8>) {
        self.stats.packets += 1;
        self.stats.bytes += waiting.packet.len() as u64;
        (waiting.class, waiting.packet)
    }

    fn note_sojourn(&mut self, sojourn: Duration) {
        let stats = &mut self.stats;
        stats.sojourn_max = stats.sojourn_max.max(sojourn);
        stats.sojourn_mean = (stats.sojourn_mean * (MEAN_WEIGHT - 1) + sojourn) / MEAN_WEIGHT;
    }
}

#[cfg(test)]
mod tests;

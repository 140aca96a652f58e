//! An end of a protected leg in front of a direction of a link: the leg and the queue of the daemon, driven by
//! virtual time instead of a socket and a TUN device.
//!
//! ```text
//!  node                    an end of the leg                         the link                the other end          node
//!        ┌───────────────────────────────────────────────────────┐               ┌────────────────────────────────┐
//! Packet │ clamp MSS ► bytes::write ► Queue ► Leg::poll ► pacing │ Frame::Coded  │ Leg::on_frame ► bytes::read ►  │ Packet
//!   ───► │        └─ while no session is alive ─────────────────►│ Frame::Plain  │ ─────────────────────────────► │ ───►
//!        └───────────────────────────────────────────────────────┘ ─ ─ ─ ─ ─ ─ ► └────────────────────────────────┘
//! ```
//!
//! and the same the other way round: an end is in front of the direction that leads away from its node, and
//! behind the other one.
//!
//! # Types at the borders
//!
//! | type | what it is |
//! |---|---|
//! | [`Packet`] | what nodes and links exchange: a value |
//! | `Vec<u8>` | a packet as the bytes that the leg carries ([`bytes`]); a frame as the leg makes it |
//! | [`Frame`] | what crosses the link: a frame of the leg, which takes 28 bytes of IPv4 and UDP more, or a packet as it is |
//!
//! # A packet's walk
//!
//! A segment comes to the end at its node. A SYN announces no more than what fits into a frame, as the daemon
//! has it. The segment becomes the bytes of a real IPv4 packet, and waits in the queue, where CoDel may drop
//! it. When the pacer is free, the leg puts it into a frame; the link decides the frame's fate as that of any
//! packet of its length, and one that is lost vanishes. The far end puts together what was lost, and each
//! packet that it delivers is read from its bytes: it is the value that was sent. Nothing is kept beside the
//! bytes, so nothing can be left over, and what is delivered is what crossed the link.
//!
//! # Otherwise than the daemon
//!
//! - The session begins before time zero, with hellos that take no time and are not lost: boxes have found each
//!   other long before a flow begins. The round trip is that of the empty link until the leg has measured it.
//! - The rate is fixed: that of the link or the one that the scenario says. Nobody shares it out.
//! - Frames leave at the instant at which they may. The daemon's thread wakes late, and then makes up for it.
//! - Packets are never too long (the scenario's reader refuses such datagrams), so there is no ICMP.
//!
//! Keys and nonces come from the seed of the link, so that a seed gives the same frames.

mod bytes;

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_link::LinkConfig;
use bentpipe_link::agent;
use bentpipe_protect::leg::SILENCE;
use bentpipe_protect::{Choice, Cipher, Config, Leg, Queue, Secret, Sent};
use bentpipe_units::{Rate, Time};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::packet::{Packet, Payload};
use crate::scenario::{FRAME_HEADERS, PROTECTED_MTU, ProtectSpec};

/// Bytes of the headers of IPv4 and TCP without options.
const TCP_HEADERS: u16 = 40;
/// The longest wait for the pacer alone: the leg's timers may be due before; the daemon has the same.
const TICK: Duration = Duration::from_millis(20);
/// A leg that wants to be polled now and has nothing to send is asked again after so long: virtual time must
/// go on.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// So that the seed of the keys is not that of the link's losses.
const KEYS: u64 = 0x7072_6f74_6563_7421;

/// What crosses the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A packet as it is or, on a link with agents, a frame of these.
    Plain(agent::Frame<Packet>),
    /// A frame of a protected leg.
    Coded(Vec<u8>),
}

impl Frame {
    /// Bytes that it offers to the link.
    pub(crate) fn length(&self) -> usize {
        match self {
            Frame::Plain(frame) => frame.length(),
            Frame::Coded(frame) => frame.len() + FRAME_HEADERS,
        }
    }

    /// Those of them that are an IP packet; 0 for frames of an ARQ alone.
    pub(crate) fn ip_length(&self) -> usize {
        match self {
            Frame::Plain(frame) => frame.packet().map_or(0, Packet::ip_length),
            Frame::Coded(_) => self.length(),
        }
    }

    /// The packet in it, where it can be seen.
    pub(crate) fn packet(&self) -> Option<&Packet> {
        match self {
            Frame::Plain(frame) => frame.packet(),
            Frame::Coded(_) => None,
        }
    }

    /// The number to tell if the link's queue has no room for the frame.
    pub(crate) fn serial(&self) -> Option<u64> {
        match self {
            Frame::Plain(frame) => frame.serial(),
            Frame::Coded(_) => None,
        }
    }

    /// With a wrong bit, by which a frame of a leg is not authentic any more.
    pub(crate) fn corrupted(self) -> Self {
        match self {
            Frame::Plain(frame) => Frame::Plain(frame.map_packet(Packet::corrupted)),
            Frame::Coded(mut frame) => {
                frame.iter_mut().last().into_iter().for_each(|byte| *byte ^= 1);
                Frame::Coded(frame)
            }
        }
    }
}

/// The counters of an end of a protected leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ProtectResult {
    /// Packets that it sent in frames, each once.
    pub packets: u64,
    /// Repair frames that it sent.
    pub repair_frames: u64,
    /// Packets that it sent again.
    pub retransmissions: u64,
    /// Packets of the other end that it delivered.
    pub delivered: u64,
    /// Those of them that the code repaired.
    pub repaired: u64,
    /// Packets of the other end that it did not wait for any longer; some came later.
    pub skipped: u64,
    /// Frames of the other end that it did not take.
    pub refused: u64,
    /// Packets that its queue dropped: to tell their sender, because it was full, or because the other end
    /// fell silent.
    pub dropped: u64,
    /// Packets that passed unprotected because the other end was silent.
    pub unprotected: u64,
    /// Sessions that have begun; the counters of packets are those of the last one.
    pub sessions: u64,
}

/// One end of a protected leg.
#[derive(Debug)]
pub(crate) struct ProtectedEnd {
    leg: Leg,
    queue: Queue,
    choice: Choice,
    rate: Option<Rate>,
    /// The round trip of the empty link.
    rtt: Duration,
    /// When the link has carried what was sent, at the rate.
    free_at: Time,
    /// Until then the peer would be heard of by what it has sent before time zero.
    heard_until: Time,
    /// Since when something is sent, and until when that is no pause yet.
    active: (Time, Time),
    /// Of the IPv4 header of the last packet.
    identification: u16,
    /// Packets for the link while no session is alive.
    unprotected: VecDeque<Packet>,
    to_host: VecDeque<Packet>,
    /// Packets that passed unprotected.
    passed: u64,
    /// Packets that waited when the peer fell silent.
    abandoned: u64,
}

impl ProtectedEnd {
    /// The ends of a link, in front of its forward and of its reverse direction, in a session.
    pub(crate) fn pair(link: &LinkConfig, spec: &ProtectSpec, seed: u64) -> [Self; 2] {
        let mut random = SplitMix64::seed_from_u64(seed ^ KEYS);
        let secret = Secret::new(Cipher::Aes128Gcm, bytes_of(&mut random));
        let [forward, reverse] = [&link.forward, &link.reverse].map(|direction| direction.delay);
        let rtt = forward + reverse;
        let mut end = |index: usize, delay_of_peer: Duration| {
            let config = Config { initial_rtt: rtt, ..Config::default() };
            let mut queue = Queue::new(random.next_u64(), spec.queues[index]);
            if let Some(rate) = spec.rates[index] {
                queue.set_rate(rate.bps() as f64 / 8.0);
            }
            Self {
                leg: Leg::new(config, secret.clone(), bytes_of(&mut random)),
                queue,
                choice: spec.choice,
                rate: spec.rates[index],
                rtt,
                free_at: Time::ZERO,
                heard_until: Time::ZERO + delay_of_peer + SILENCE,
                active: (Time::ZERO, Time::ZERO),
                identification: 0,
                unprotected: VecDeque::new(),
                to_host: VecDeque::new(),
                passed: 0,
                abandoned: 0,
            }
        };
        let mut ends = [end(0, reverse), end(1, forward)];
        begin_session(&mut ends);
        ends
    }

    /// A packet from the node arrives.
    pub(crate) fn outbound(&mut self, now: Time, packet: Packet) {
        let packet = clamp_mss(packet);
        if !self.is_alive(now) {
            self.abandon();
            self.passed += 1;
            return self.unprotected.push_back(packet);
        }
        // A compressed header has no identification where that is 0.
        self.identification = self.identification.checked_add(1).unwrap_or(1);
        self.queue.push(bytes::write(&packet, self.identification), self.choice, now);
        if self.active.1 <= now {
            self.active = (now, now + Queue::IDLE);
        }
    }

    /// A frame arrives over the link.
    pub(crate) fn inbound(&mut self, now: Time, frame: Frame) {
        match frame {
            Frame::Plain(frame) => self.to_host.extend(frame.packet().copied()),
            Frame::Coded(mut frame) => {
                // Its counters have what is refused.
                let _ = self.leg.on_frame(&mut frame, now);
                self.deliver();
            }
        }
    }

    /// When to call [`on_timer`](Self::on_timer) and to poll, or before.
    pub(crate) fn wake_at(&self) -> Time {
        self.leg.wake_at().min(if self.queue.is_empty() { Time::MAX } else { self.free_at })
    }

    /// The same after both, where the leg may want to send before the pacer is free.
    pub(crate) fn wake_after(&self, now: Time) -> Time {
        match self.wake_at() {
            due if due > now => due,
            _ if self.free_at > now => self.free_at.min(now + TICK),
            _ => now + ASK_AGAIN,
        }
    }

    /// The time has come, or something has happened before.
    pub(crate) fn on_timer(&mut self, now: Time) {
        self.leg.on_timer(now);
        self.deliver();
        if !self.is_alive(now) {
            self.abandon();
        }
    }

    /// The next frame for the link, if one may leave now.
    pub(crate) fn poll_to_link(&mut self, now: Time) -> Option<Frame> {
        if let Some(packet) = self.unprotected.pop_front() {
            return Some(Frame::Plain(agent::Frame::Bare(packet)));
        }
        if self.free_at > now {
            return None;
        }
        let rtt = self.leg.rtt().unwrap_or(self.rtt);
        self.queue.set_rtt(rtt);
        self.queue.set_settling(now - self.active.0 < Queue::SETTLES_IN * rtt);
        let (queue, mut frame) = (&mut self.queue, Vec::with_capacity(usize::from(PROTECTED_MTU)));
        let sent = self.leg.poll(now, &mut frame, || queue.pop(now));
        // A packet may have been given up meanwhile, so that others can be delivered.
        self.deliver();
        if matches!(sent?, Sent::Source | Sent::Retransmission | Sent::Repair) {
            self.active.1 = now + Queue::IDLE;
        }
        let frame = Frame::Coded(frame);
        if let Some(rate) = self.rate {
            self.free_at = now + rate.time_for(frame.length() as u64);
        }
        Some(frame)
    }

    /// The next packet for the node. It is to be told how many links it has crossed, which is not known here.
    pub(crate) fn poll_to_host(&mut self) -> Option<Packet> {
        self.to_host.pop_front()
    }

    /// Bytes that wait, that may have to be sent again, and that wait for others before them.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.queue.len_bytes() + self.leg.held_bytes()) as u64
    }

    pub(crate) fn result(&self) -> ProtectResult {
        let (leg, queue) = (self.leg.stats(), self.queue.stats());
        ProtectResult {
            packets: leg.sender.packets,
            repair_frames: leg.sender.repairs,
            retransmissions: leg.sender.retransmissions,
            delivered: leg.receiver.delivered,
            repaired: leg.receiver.repaired,
            skipped: leg.receiver.skipped,
            refused: leg.refused,
            dropped: queue.dropped_codel + queue.dropped_full + self.abandoned,
            unprotected: self.passed,
            sessions: leg.sessions,
        }
    }

    fn is_alive(&self, now: Time) -> bool {
        self.leg.is_alive(now) || self.leg.has_session() && now < self.heard_until
    }

    /// What waits is dropped: when the peer answers again it would be seconds old.
    fn abandon(&mut self) {
        if !self.queue.is_empty() {
            self.abandoned += self.queue.drain().count() as u64;
        }
    }

    fn deliver(&mut self) {
        while let Some((_, bytes)) = self.leg.next_packet() {
            let packet = bytes::read(bytes);
            debug_assert!(packet.is_some(), "a leg delivers what it was given");
            self.to_host.extend(packet);
        }
    }
}

/// The boxes have said hello before time zero.
fn begin_session(ends: &mut [ProtectedEnd; 2]) {
    let mut frame = Vec::new();
    while !ends.iter().all(|end| end.leg.has_session()) {
        for sender in 0..2 {
            if ends[sender].leg.poll(Time::ZERO, &mut frame, || None).is_some() {
                let taken = ends[1 - sender].leg.on_frame(&mut frame, Time::ZERO);
                debug_assert_eq!(taken, Ok(()), "both have the same secret");
            }
        }
    }
}

/// Lowers the maximum segment size that a SYN announces, so that what comes back fits.
fn clamp_mss(mut packet: Packet) -> Packet {
    if let Payload::Tcp(segment) = &mut packet.payload
        && let Some(mss) = segment.syn.as_mut().and_then(|syn| syn.mss.as_mut())
    {
        *mss = (*mss).min(PROTECTED_MTU - TCP_HEADERS);
    }
    packet
}

fn bytes_of(random: &mut SplitMix64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next_u64().to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use bentpipe_link::DirectionConfig;
    use bentpipe_tcp::{Flags, Segment, SynOptions};
    use bentpipe_units::ByteCount;

    use super::*;

    const RATE: Rate = Rate::mbps(10);

    fn pair(delay: Duration, seed: u64) -> [ProtectedEnd; 2] {
        let direction = DirectionConfig { rate: Some(RATE), delay, ..DirectionConfig::default() };
        let (rates, queues) = ([Some(RATE); 2], [ByteCount::new(1_000_000); 2]);
        let spec = ProtectSpec { choice: Choice::Auto, rates, queues };
        ProtectedEnd::pair(&LinkConfig::symmetric(direction), &spec, seed)
    }

    fn packet(seq: u32) -> Packet {
        let segment = Segment { seq, len: 1386, flags: Flags::ACK, ..Segment::default() };
        Packet { payload: Payload::Tcp(segment), from: 6, hop: 0, corrupted: false }
    }

    /// The frames that leave until nothing waits, with their times.
    fn frames(end: &mut ProtectedEnd) -> Vec<(Time, Frame)> {
        let (mut now, mut frames) = (Time::ZERO, Vec::new());
        while !end.queue.is_empty() || end.free_at > now {
            end.on_timer(now);
            while let Some(frame) = end.poll_to_link(now) {
                frames.push((now, frame));
            }
            now = end.wake_after(now);
        }
        frames
    }

    #[test]
    fn frames_leave_at_the_rate_and_bring_the_packets_to_the_other_end() {
        let [mut near, mut far] = pair(Duration::from_millis(300), 1);
        (0..300).for_each(|seq| near.outbound(Time::ZERO, packet(seq)));
        let frames = frames(&mut near);
        assert!(frames.windows(2).all(|pair| {
            let [(before, frame), (after, _)] = pair else { return false };
            *after - *before >= RATE.time_for(frame.length() as u64)
        }));
        let bytes: usize = frames.iter().map(|(_, frame)| frame.length()).sum();
        let took = frames.last().unwrap().0.since(Time::ZERO);
        assert!(
            took >= RATE.time_for(bytes as u64 - 1500) && took < RATE.time_for(bytes as u64),
            "{took:?} {bytes}"
        );
        let mut delivered = Vec::new();
        for (at, frame) in frames {
            far.inbound(at, frame);
            delivered.extend(std::iter::from_fn(|| far.poll_to_host()));
        }
        assert_eq!(delivered, (0..300).map(packet).collect::<Vec<_>>());
    }

    #[test]
    fn the_session_runs_from_time_zero_and_longer_than_the_first_report_takes() {
        for delay in [Duration::from_millis(1), Duration::from_secs(20)] {
            let ends = pair(delay, 3);
            assert!(ends.iter().all(|end| end.is_alive(Time::ZERO) && end.is_alive(Time::ZERO + delay)));
            assert!(ends.iter().all(|end| !end.is_alive(Time::ZERO + delay + SILENCE)), "nothing was heard");
        }
    }

    #[test]
    fn without_a_peer_packets_pass_as_they_are_and_what_waits_is_dropped() {
        let [mut near, _] = pair(Duration::from_millis(300), 1);
        (0..9).for_each(|seq| near.outbound(Time::ZERO, packet(seq)));
        let late = Time::ZERO + Duration::from_secs(5);
        near.outbound(late, packet(9));
        assert_eq!(near.poll_to_link(late), Some(Frame::Plain(agent::Frame::Bare(packet(9)))));
        let result = near.result();
        assert_eq!((result.dropped, result.unprotected, near.queue.len()), (9, 1, 0));
    }

    #[test]
    fn a_seed_gives_the_same_frames_and_another_one_others() {
        let of_seed = |seed| {
            let [mut near, _] = pair(Duration::from_millis(300), seed);
            near.outbound(Time::ZERO, packet(1));
            frames(&mut near)
        };
        assert_eq!(of_seed(1), of_seed(1));
        assert_ne!(of_seed(1), of_seed(2));
    }

    #[test]
    fn a_damaged_frame_or_a_second_copy_is_not_taken() {
        let [mut near, mut far] = pair(Duration::from_millis(300), 1);
        near.outbound(Time::ZERO, packet(1));
        let (frames, before) = (frames(&mut near), far.result().refused);
        for (at, frame) in &frames {
            far.inbound(*at, frame.clone().corrupted());
            assert_eq!(far.poll_to_host(), None);
        }
        for (at, frame) in frames.iter().chain(&frames) {
            far.inbound(*at, frame.clone());
        }
        assert_eq!((far.poll_to_host(), far.poll_to_host()), (Some(packet(1)), None));
        assert!(far.result().refused > before + frames.len() as u64);
    }

    #[test]
    fn a_syn_announces_what_fits() {
        let announced = |mss| {
            let syn = SynOptions { mss, ..SynOptions::default() };
            let segment = Segment { flags: Flags::SYN, syn: Some(syn), ..Segment::default() };
            match clamp_mss(Packet { payload: Payload::Tcp(segment), ..packet(0) }).payload {
                Payload::Tcp(segment) => segment.syn.and_then(|syn| syn.mss),
                Payload::Udp(_) => None,
            }
        };
        let fits = PROTECTED_MTU - TCP_HEADERS;
        assert_eq!([Some(1460), Some(900), None].map(announced), [Some(fits), Some(900), None]);
    }
}

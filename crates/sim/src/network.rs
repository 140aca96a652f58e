//! The directions of links, with the packets in flight.

use bentpipe_link::{
    Arrivals, Cause, Counters, CustomEffect, Direction, Fate, ImpairmentCounters, InFlight, Link,
};
use bentpipe_units::{ByteCount, Time};

use crate::link_end::NearEnd;
use crate::packets::{PacketId, Packets};
use crate::protect::Frame;
use crate::recorder::{RecordedStep, Recorder};
use crate::scenario::{Hop, LinkSpec};

/// One direction of a link, with the packets that it will deliver.
#[derive(Debug)]
pub(crate) struct Pipe {
    direction: Direction,
    in_flight: InFlight<PacketId>,
    /// The link end in front of it, where something is at either end of the link. Then frames are on their
    /// way, and `in_flight` is empty.
    pub(crate) near: Option<Box<NearEnd>>,
    /// Where an observer follows packets.
    recorder: Option<Box<Recorder>>,
}

impl Pipe {
    /// The two pipes of each link, forward before reverse. They record what becomes of each packet if
    /// `recorded`.
    pub(crate) fn of_links(links: &[LinkSpec], seed: impl Fn(usize) -> u64, recorded: bool) -> Vec<Pipe> {
        let pipes = |(index, link): (usize, &LinkSpec)| {
            let seed = seed(index);
            let Link { forward, reverse } = Link::new(&link.config, seed);
            let recorder = || recorded.then(Box::default);
            let pipe = |direction, near| Pipe {
                direction,
                in_flight: InFlight::default(),
                near,
                recorder: recorder(),
            };
            let [first, second] = NearEnd::of_link(link, seed);
            [pipe(forward, first), pipe(reverse, second)]
        };
        links.iter().enumerate().flat_map(pipes).collect()
    }

    /// Adds an effect from outside.
    pub(crate) fn add_effect(&mut self, effect: Box<dyn CustomEffect>) {
        self.direction.add_effect(effect);
    }

    /// The pipe of a hop: its index among all.
    pub(crate) fn index(hop: Hop) -> u32 {
        (2 * hop.link + usize::from(!hop.forward)) as u32
    }

    /// The pipe of the same link that leads back. The link end behind a pipe is the one in front of that.
    pub(crate) fn back(pipe: u32) -> u32 {
        pipe ^ 1
    }

    /// Offers a packet to the transmitter, and removes it if it is lost. Returns its fate, and when the pipe
    /// delivers next if this packet has changed that.
    // The path of every packet, from one place of the event loop.
    #[inline(always)]
    pub(crate) fn offer(&mut self, now: Time, id: PacketId, packets: &mut Packets) -> (Fate, Option<Time>) {
        if self.recorder.is_some() || self.direction.is_impaired() {
            return self.offer_impaired(now, id, packets);
        }
        let fate = self.direction.offer(now, packets[id].ip_length());
        let Fate::Deliver { at } = fate else {
            packets.remove(id);
            return (fate, None);
        };
        (fate, self.in_flight.launch(at, id).then_some(at))
    }

    #[inline(never)]
    fn offer_impaired(&mut self, now: Time, id: PacketId, packets: &mut Packets) -> (Fate, Option<Time>) {
        let bytes = packets[id].ip_length();
        let arrivals = match self.transmit(now, bytes, bytes) {
            Ok(arrivals) => arrivals,
            Err(cause) => {
                packets.remove(id);
                return (Fate::Drop(cause), None);
            }
        };
        let duplicate = arrivals.duplicate.map(|copy| {
            let is_corrupted = copy.flipped_bit.is_some();
            let packet = packets[id];
            packets.insert(if is_corrupted { packet.corrupted() } else { packet })
        });
        packets[id].corrupted |= arrivals.packet.flipped_bit.is_some();
        launch(&mut self.in_flight, &arrivals, id, duplicate)
    }

    /// The next packet, if it has arrived; with it, when the one after it will.
    #[inline]
    pub(crate) fn deliver(&mut self, now: Time, packets: &Packets) -> Option<(PacketId, Option<Time>)> {
        let delivered = deliver(&mut self.in_flight, now);
        if let (Some(recorder), Some((id, _))) = (&mut self.recorder, &delivered) {
            recorder.arrived(now, packets[*id].ip_length());
        }
        delivered
    }

    /// As [`offer`](Self::offer), on a link with something at its ends.
    pub(crate) fn offer_frame(&mut self, now: Time, frame: Frame) -> (Fate, Option<Time>) {
        let arrivals = match self.transmit(now, frame.length(), frame.ip_length()) {
            Ok(arrivals) => arrivals,
            Err(cause) => return (Fate::Drop(cause), None),
        };
        let corrupted = |frame: Frame, is_corrupted| if is_corrupted { frame.corrupted() } else { frame };
        let duplicate = arrivals.duplicate.map(|copy| corrupted(frame.clone(), copy.flipped_bit.is_some()));
        let frame = corrupted(frame, arrivals.packet.flipped_bit.is_some());
        let near = self.near.as_mut().expect("frames are sent by a link end");
        launch(&mut near.in_flight, &arrivals, frame, duplicate)
    }

    /// As [`deliver`](Self::deliver), on a link with something at its ends.
    pub(crate) fn deliver_frame(&mut self, now: Time) -> Option<(Frame, Option<Time>)> {
        let delivered = deliver(&mut self.near.as_mut()?.in_flight, now);
        if let (Some(recorder), Some((frame, _))) = (&mut self.recorder, &delivered) {
            recorder.arrived(now, frame.length());
        }
        delivered
    }

    /// Lets the direction decide, and records it.
    #[inline]
    fn transmit(&mut self, now: Time, bytes: usize, ip_bytes: usize) -> Result<Arrivals, Cause> {
        let Some(recorder) = &mut self.recorder else {
            return self.direction.transmit(now, bytes, ip_bytes);
        };
        let queue = self.direction.backlog(now);
        let arrivals = self.direction.transmit(now, bytes, ip_bytes);
        recorder.offered(now, bytes, queue, &arrivals);
        arrivals
    }

    /// The steps of packets since the last call, with their numbers and lengths.
    pub(crate) fn take_steps(&mut self) -> impl Iterator<Item = RecordedStep> + '_ {
        self.recorder.iter_mut().flat_map(|recorder| recorder.steps.drain(..))
    }

    /// The link end in front of it, if it has agents, an ARQ or a protected leg.
    pub(crate) fn agents(&self) -> Option<&NearEnd> {
        self.near.as_deref().filter(|near| !near.passes_through)
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.direction.counters()
    }

    pub(crate) fn impairment_counters(&self) -> &ImpairmentCounters {
        self.direction.impairment_counters()
    }

    pub(crate) fn backlog(&self, now: Time) -> ByteCount {
        self.direction.backlog(now)
    }
}

/// Adds the copies of a packet that arrive to those in flight. Returns its fate, and the next arrival if that
/// has become an earlier one.
fn launch<T>(
    in_flight: &mut InFlight<T>,
    arrivals: &Arrivals,
    packet: T,
    duplicate: Option<T>,
) -> (Fate, Option<Time>) {
    let at = arrivals.packet.at;
    let copies = arrivals.duplicate.zip(duplicate);
    let is_duplicate_next = copies.is_some_and(|(copy, duplicate)| in_flight.launch(copy.at, duplicate));
    let is_next = in_flight.launch(at, packet) || is_duplicate_next;
    (Fate::Deliver { at }, in_flight.next_at().filter(|_| is_next))
}

#[inline]
fn deliver<T>(in_flight: &mut InFlight<T>, now: Time) -> Option<(T, Option<Time>)> {
    let (_, packet) = in_flight.pop_due(now)?;
    Some((packet, in_flight.next_at()))
}

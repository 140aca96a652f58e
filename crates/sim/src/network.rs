//! Links and what is on them.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_link::agent::{self, CongestionHeader, Frame, TcpFlags, TcpHeader};
use bentpipe_link::{Counters, Direction, Fate, Link};
use bentpipe_tcp::{CongestionOption, SackBlocks, Segment};
use bentpipe_units::{ByteCount, Time};

use crate::scenario::{Hop, LinkSpec};
use crate::station::StationNode;

/// A segment on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) segment: Segment,
    /// The endpoint that sent it.
    pub(crate) from: u32,
    /// How many links it has crossed. On a link with stations, and in them, the link itself does not count yet: so a
    /// packet and its copies have the same number wherever a station sends them from.
    pub(crate) hop: u32,
}

/// As agents see it: an end is an endpoint, and the two ends of a connection differ in the last bit.
impl agent::Packet for Packet {
    type End = u32;

    fn ip_length(&self) -> usize {
        self.segment.ip_length()
    }

    fn tcp(&self) -> Option<TcpHeader<'_, u32>> {
        let Segment { seq, ack, len, window, flags, ref sack, .. } = self.segment;
        Some(TcpHeader {
            source: self.from,
            destination: self.from ^ 1,
            seq,
            ack,
            payload: len,
            window,
            flags: TcpFlags(flags.bits()),
            sack: sack.as_slice(),
        })
    }

    fn without_sack(&self) -> Self {
        Self { segment: Segment { sack: SackBlocks::default(), ..self.segment }, ..*self }
    }

    fn congestion_header(&self) -> Option<CongestionHeader> {
        let CongestionOption::Request { rtt, spacing, feedback } = self.segment.congestion else {
            return None;
        };
        Some(CongestionHeader {
            rtt: Duration::from_micros(rtt.into()),
            spacing: Duration::from_nanos(spacing.into()),
            feedback,
        })
    }

    fn with_feedback(mut self, given: i32) -> Self {
        if let CongestionOption::Request { feedback, .. } = &mut self.segment.congestion {
            *feedback = given;
        }
        self
    }
}

/// One direction of a link, with the packets that it will deliver.
#[derive(Debug)]
pub(crate) struct Pipe {
    direction: Direction,
    arriving: VecDeque<(Time, Packet)>,
    /// The station in front of it, where the link has stations. Then frames are on their way, and `arriving` is empty.
    near: Option<Box<StationNode>>,
}

impl Pipe {
    /// The two pipes of each link, forward before reverse.
    pub(crate) fn of_links(links: &[LinkSpec], seed: impl Fn(usize) -> u64) -> Vec<Pipe> {
        let pipes = |(index, link): (usize, &LinkSpec)| {
            let Link { forward, reverse } = Link::new(&link.config, seed(index));
            let pipe = |direction, near| Pipe { direction, arriving: VecDeque::new(), near };
            let [first, second] = StationNode::of_link(link);
            [pipe(forward, first), pipe(reverse, second)]
        };
        links.iter().enumerate().flat_map(pipes).collect()
    }

    /// The pipe of a hop: its index among all.
    pub(crate) fn index(hop: Hop) -> u32 {
        (2 * hop.link + usize::from(!hop.forward)) as u32
    }

    /// The pipe of the same link that leads back. The station behind a pipe is the one in front of that.
    pub(crate) fn back(pipe: u32) -> u32 {
        pipe ^ 1
    }

    /// A packet arrives at the transmitter; says when it will be delivered and whether it is the only one that will.
    pub(crate) fn offer(&mut self, now: Time, packet: Packet) -> (Fate, bool) {
        let fate = self.direction.offer(now, packet.segment.ip_length());
        (fate, enqueue(&mut self.arriving, fate, packet))
    }

    /// The first packet has arrived; with it, when the next one will.
    pub(crate) fn deliver(&mut self) -> Option<(Packet, Option<Time>)> {
        dequeue(&mut self.arriving)
    }

    /// As [`offer`](Self::offer), on a link with stations.
    pub(crate) fn offer_frame(&mut self, now: Time, frame: Frame<Packet>) -> (Fate, bool) {
        let fate = self.direction.offer(now, frame.length());
        let idle = self.near.as_mut().is_some_and(|near| enqueue(&mut near.arriving, fate, frame));
        (fate, idle)
    }

    /// As [`deliver`](Self::deliver), on a link with stations.
    pub(crate) fn deliver_frame(&mut self) -> Option<(Frame<Packet>, Option<Time>)> {
        dequeue(&mut self.near.as_mut()?.arriving)
    }

    /// Whether its link has stations.
    pub(crate) fn has_station(&self) -> bool {
        self.near.is_some()
    }

    /// The station in front of it.
    pub(crate) fn station(&self) -> Option<&StationNode> {
        self.near.as_deref()
    }

    /// The station in front of it.
    pub(crate) fn station_mut(&mut self) -> Option<&mut StationNode> {
        self.near.as_deref_mut()
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.direction.counters()
    }

    pub(crate) fn backlog(&self, now: Time) -> ByteCount {
        self.direction.backlog(now)
    }
}

/// Puts what will be delivered behind the others; says whether there were none.
fn enqueue<T>(arriving: &mut VecDeque<(Time, T)>, fate: Fate, load: T) -> bool {
    let idle = arriving.is_empty();
    if let Fate::Deliver { at } = fate {
        arriving.push_back((at, load));
    }
    idle
}

fn dequeue<T>(arriving: &mut VecDeque<(Time, T)>) -> Option<(T, Option<Time>)> {
    let (_, load) = arriving.pop_front()?;
    Some((load, arriving.front().map(|next| next.0)))
}

#[cfg(test)]
mod tests {
    use bentpipe_link::agent::Packet as _;
    use bentpipe_tcp::{Flags, Timestamps};

    use super::*;

    fn packet() -> Packet {
        let mut sack = SackBlocks::default();
        sack.push(7, 11);
        sack.push(u32::MAX, 3);
        let flags = Flags::FIN | Flags::ACK;
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        let congestion = CongestionOption::Request { rtt: 600_000, spacing: 1_200, feedback: 99 };
        let segment =
            Segment { seq: 9, ack: 12, len: 100, window: 77, flags, timestamps, sack, congestion, syn: None };
        Packet { segment, from: 6, hop: 1 }
    }

    #[test]
    fn an_agent_sees_in_a_packet_what_the_segment_says_and_its_two_ends() {
        let packet = packet();
        let header = packet.tcp().unwrap();
        assert_eq!((header.source, header.destination), (6, 7));
        assert_eq!((header.seq, header.ack, header.payload, header.window), (9, 12, 100, 77));
        assert!(header.flags.is_fin() && header.flags.is_ack() && !header.flags.is_syn());
        assert!(!header.flags.is_rst());
        assert_eq!(header.sack, [(7, 11), (u32::MAX, 3)]);
        assert_eq!(header.end(), 9 + 101, "as long as the segment says");
        assert_eq!(packet.ip_length(), packet.segment.ip_length());
        let answer = Packet { from: 7, ..packet };
        assert_eq!((answer.tcp().unwrap().source, answer.tcp().unwrap().destination), (7, 6));
    }

    #[test]
    fn without_its_sack_blocks_a_packet_is_shorter_and_else_the_same() {
        let bare = packet().without_sack();
        assert!(bare.segment.sack.is_empty());
        assert_eq!(packet().ip_length() - bare.ip_length(), 20, "two blocks, kind, length, padding");
        let again = Packet { segment: Segment { sack: packet().segment.sack, ..bare.segment }, ..bare };
        assert_eq!(again, packet());
    }

    #[test]
    fn a_router_reads_the_congestion_header_and_writes_its_feedback() {
        let header = packet().congestion_header().unwrap();
        assert_eq!((header.rtt.as_millis(), header.spacing.as_nanos(), header.feedback), (600, 1_200, 99));
        let lowered = packet().with_feedback(-5);
        assert_eq!(lowered.congestion_header().unwrap().feedback, -5);
        let mut bare = packet();
        bare.segment.congestion = CongestionOption::Total(7);
        assert_eq!((bare.congestion_header(), bare.with_feedback(3)), (None, bare));
    }

    #[test]
    fn a_packet_on_a_link_without_stations_takes_104_bytes() {
        assert_eq!(size_of::<(Time, Packet)>(), 104);
        assert_eq!(size_of::<(Time, Frame<Packet>)>(), 144);
    }
}

//! A packet of virtual time, and how the agents of a link see it.

use std::time::Duration;

use bentpipe_link::agent::{self, CongestionHeader, TcpFlags, TcpHeader};
use bentpipe_tcp::{CongestionOption, SackBlocks, Segment};

/// A packet on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) payload: Payload,
    /// The endpoint that sent it; of a datagram, the branch of its stream's tree.
    pub(crate) from: u32,
    /// How many links it has crossed. On a link with agents, and in them, the link itself does not count yet:
    /// so a packet and its copies have the same number wherever a link end sends them from.
    pub(crate) hop: u16,
    /// One of its bits is wrong, as its checksum shows.
    pub(crate) corrupted: bool,
}

/// What an IP packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    Tcp(Segment),
    Udp(Datagram),
}

/// A UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    /// Its number in its stream, from 0 on; there are at most
    /// [`MAX_DATAGRAMS`](crate::scenario::MAX_DATAGRAMS).
    pub(crate) number: u32,
    /// Bytes of its IP packet.
    pub(crate) ip_bytes: u16,
}

impl Packet {
    /// Bytes of the IPv4 packet.
    #[inline]
    pub(crate) fn ip_length(&self) -> usize {
        match &self.payload {
            Payload::Tcp(segment) => segment.ip_length(),
            Payload::Udp(datagram) => datagram.ip_bytes.into(),
        }
    }

    /// Whether it carries more than acknowledgements and control bits.
    #[inline]
    pub(crate) fn carries_data(&self) -> bool {
        match &self.payload {
            Payload::Tcp(segment) => segment.len > 0,
            Payload::Udp(_) => true,
        }
    }

    pub(crate) fn corrupted(self) -> Self {
        Self { corrupted: true, ..self }
    }
}

/// As agents see it: an end is an endpoint, and the two ends of a connection differ in the last bit.
impl agent::Packet for Packet {
    type End = u32;

    fn ip_length(&self) -> usize {
        self.ip_length()
    }

    fn tcp(&self) -> Option<TcpHeader<'_, u32>> {
        let Payload::Tcp(segment) = &self.payload else { return None };
        if self.corrupted {
            return None;
        }
        let Segment { seq, ack, len, window, flags, ref sack, .. } = *segment;
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
        let Payload::Tcp(segment) = self.payload else { return *self };
        Self { payload: Payload::Tcp(Segment { sack: SackBlocks::default(), ..segment }), ..*self }
    }

    fn congestion_header(&self) -> Option<CongestionHeader> {
        let Payload::Tcp(Segment {
            congestion: CongestionOption::Request { rtt, spacing, feedback }, ..
        }) = self.payload
        else {
            return None;
        };
        if self.corrupted {
            return None;
        }
        Some(CongestionHeader {
            rtt: Duration::from_micros(rtt.into()),
            spacing: Duration::from_nanos(spacing.into()),
            feedback,
        })
    }

    fn with_feedback(mut self, given: i32) -> Self {
        if let Payload::Tcp(Segment { congestion: CongestionOption::Request { feedback, .. }, .. }) =
            &mut self.payload
        {
            *feedback = given;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_link::agent::Packet as _;
    use bentpipe_tcp::{Flags, Timestamps};
    use bentpipe_units::Time;

    use super::*;
    use crate::packets::PacketId;

    fn packet() -> Packet {
        let mut sack = SackBlocks::default();
        sack.push(7, 11);
        sack.push(u32::MAX, 3);
        let flags = Flags::FIN | Flags::ACK;
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        let congestion = CongestionOption::Request { rtt: 600_000, spacing: 1_200, feedback: 99 };
        let segment =
            Segment { seq: 9, ack: 12, len: 100, window: 77, flags, timestamps, sack, congestion, syn: None };
        Packet { payload: Payload::Tcp(segment), from: 6, hop: 1, corrupted: false }
    }

    fn segment(packet: Packet) -> Segment {
        match packet.payload {
            Payload::Tcp(segment) => segment,
            Payload::Udp(_) => panic!("a datagram is no segment"),
        }
    }

    #[test]
    fn an_agent_reads_segment_and_endpoints_from_a_packet() {
        let packet = packet();
        let header = packet.tcp().unwrap();
        assert_eq!((header.source, header.destination), (6, 7));
        assert_eq!((header.seq, header.ack, header.payload, header.window), (9, 12, 100, 77));
        assert!(header.flags.is_fin() && header.flags.is_ack() && !header.flags.is_syn());
        assert!(!header.flags.is_rst());
        assert_eq!(header.sack, [(7, 11), (u32::MAX, 3)]);
        assert_eq!(header.end(), 9 + 101, "as long as the segment says");
        assert_eq!(packet.ip_length(), segment(packet).ip_length());
        let answer = Packet { from: 7, ..packet };
        assert_eq!((answer.tcp().unwrap().source, answer.tcp().unwrap().destination), (7, 6));
    }

    #[test]
    fn without_its_sack_blocks_a_packet_is_shorter_and_else_the_same() {
        let bare = packet().without_sack();
        assert!(segment(bare).sack.is_empty());
        assert_eq!(packet().ip_length() - bare.ip_length(), 20, "two blocks, kind, length, padding");
        let sack = segment(packet()).sack;
        let again = Packet { payload: Payload::Tcp(Segment { sack, ..segment(bare) }), ..bare };
        assert_eq!(again, packet());
    }

    #[test]
    fn a_router_reads_the_congestion_header_and_writes_its_feedback() {
        let header = packet().congestion_header().unwrap();
        assert_eq!((header.rtt.as_millis(), header.spacing.as_nanos(), header.feedback), (600, 1_200, 99));
        let lowered = packet().with_feedback(-5);
        assert_eq!(lowered.congestion_header().unwrap().feedback, -5);
        let mut bare = packet();
        bare.payload = Payload::Tcp(Segment { congestion: CongestionOption::Total(7), ..segment(bare) });
        assert_eq!((bare.congestion_header(), bare.with_feedback(3)), (None, bare));
    }

    #[test]
    fn an_agent_cannot_read_a_corrupted_packet() {
        let corrupted = packet().corrupted();
        assert_eq!((corrupted.tcp(), corrupted.congestion_header()), (None, None));
        assert_eq!(corrupted.ip_length(), packet().ip_length());
    }

    #[test]
    fn agents_let_a_datagram_pass_as_it_is() {
        let datagram = Datagram { number: 5, ip_bytes: 1200 };
        let packet = Packet { payload: Payload::Udp(datagram), from: 6, hop: 0, corrupted: false };
        assert_eq!((packet.tcp(), packet.congestion_header()), (None, None));
        assert_eq!((packet.without_sack(), packet.with_feedback(9)), (packet, packet));
        assert_eq!((packet.ip_length(), packet.carries_data()), (1200, true));
    }

    #[test]
    fn a_packet_on_a_link_without_agents_takes_112_bytes() {
        assert_eq!(size_of::<(Time, PacketId)>() + size_of::<Packet>(), 112);
        assert_eq!(size_of::<(Time, crate::protect::Frame)>(), 144);
    }
}

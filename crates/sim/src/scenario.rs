//! A checked scenario: nodes, links and flows. The simulator can run any value of this type.

use std::time::Duration;

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_protect::Choice;
use bentpipe_protect::frame::MAX_OVERHEAD;
use bentpipe_tcp as tcp;
use bentpipe_units::{ByteCount, Rate, Time};

/// The most flows of a scenario, copies included: each costs two endpoints and its share of every link.
pub const MAX_FLOWS: usize = 10_000;

/// The most datagrams of all UDP streams of a scenario, counted once for each of their receivers: a run keeps
/// when each was sent and when it arrived.
pub const MAX_DATAGRAMS: u64 = 10_000_000;

/// Nodes, links and flows.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// One line about it.
    pub title: String,
    /// When the run ends at the latest. It ends sooner when every flow has ended, if there are any.
    pub duration: Duration,
    /// How often the inner variables are sampled, where a trace is asked for.
    pub sample_interval: Duration,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// The links between them.
    pub links: Vec<LinkSpec>,
    /// The flows, copies as flows of their own.
    pub flows: Vec<FlowSpec>,
    /// The load beside them: it ends with them.
    pub udp: Vec<UdpSpec>,
}

/// A stream of UDP datagrams of one size at a constant rate, to one node or by multicast to several. It takes
/// no notice of what is lost.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpSpec {
    /// Its name, one of a kind among the streams.
    pub name: String,
    /// IP bytes in each second, in bits.
    pub rate: Rate,
    /// IP bytes of a packet, headers included: [`UDP_PACKET`].
    pub packet: u16,
    /// When the first datagram is sent.
    pub start: Time,
    /// Before when the last one is sent.
    pub end: Time,
    /// Index of the node that sends.
    pub source: usize,
    /// The nodes that receive, and the links to each; at least one. Of several the paths make a tree: over a
    /// link that two have in common a datagram goes once.
    pub receivers: Vec<UdpReceiver>,
}

/// The IP bytes of a packet of a stream: on the kernel it carries a number beside its headers, and it crosses
/// each link in one piece.
pub const UDP_PACKET: std::ops::RangeInclusive<u16> = 36..=1500;

/// A node that receives a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpReceiver {
    /// Index of the node.
    pub node: usize,
    /// The links from the source; at least one.
    pub path: Vec<Hop>,
}

impl UdpSpec {
    /// When the datagram of this number, from 0 on, is sent.
    pub fn sent_at(&self, number: u64) -> Time {
        let bits = u128::from(number) * u128::from(self.packet) * 8;
        let nanos = bits * 1_000_000_000 / u128::from(self.rate.bps());
        self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many datagrams are sent if the run does not end before.
    pub fn datagrams(&self) -> u64 {
        let bits = self.end.since(self.start).as_nanos() * u128::from(self.rate.bps());
        let of_a_packet = u128::from(self.packet) * 8 * 1_000_000_000;
        u64::try_from(bits.div_ceil(of_a_packet)).unwrap_or(u64::MAX)
    }
}

/// A link between two nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// Its name.
    pub name: String,
    /// The nodes that it joins, as indices: the forward direction leads from the first to the second.
    pub between: [usize; 2],
    /// The effects of its two directions.
    pub config: LinkConfig,
    /// The agents and ARQs at its first node and at its second.
    pub ends: [LinkEndConfig; 2],
    /// The rate allocator of each direction, the forward and the reverse one, for the senders with explicit
    /// rates in front of it.
    pub shared: [Option<RateAllocatorConfig>; 2],
    /// The protected leg between its two nodes. A link that has one has no agents, ARQs or allocators.
    pub protect: Option<ProtectSpec>,
}

/// A protected leg: an end at each node of a link, by which all packets cross the link in coded frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectSpec {
    /// The class of packets.
    pub choice: Choice,
    /// The rate at which frames leave, their headers of IPv4 and UDP included, forward and reverse; `None`:
    /// at once.
    pub rates: [Option<Rate>; 2],
    /// Bytes that wait for their turn at the most, at each end.
    pub queues: [ByteCount; 2],
}

/// Bytes of the headers of IPv4 and UDP in front of each frame.
pub(crate) const FRAME_HEADERS: usize = 28;

/// IP bytes of the longest packet that a protected leg carries over a link of 1500 bytes. Longer segments do
/// not occur, because the ends of the leg lower the maximum segment size that SYNs announce.
pub const PROTECTED_MTU: u16 = 1500 - (FRAME_HEADERS + MAX_OVERHEAD) as u16;

/// One step of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Index of the link.
    pub link: usize,
    /// It is crossed from its first node to its second.
    pub forward: bool,
}

/// Data on its way from one application to another.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowSpec {
    /// Its name, one of a kind.
    pub name: String,
    /// How much the source sends; `None` is without end.
    pub bytes: Option<u64>,
    /// When the connection is opened.
    pub start: Time,
    /// The start is moved by a random time below this one, so that flows and seeds differ.
    pub start_within: Duration,
    /// The side that opens it.
    pub opened_by: Side,
    /// The TCP connections that it takes from the source to the destination, one after the other; more than
    /// one where it is split on the way.
    pub legs: Vec<LegSpec>,
    /// The splitters between the legs: one fewer than legs.
    pub splitters: Vec<SplitterSpec>,
    /// `Some` if it is carried in bundles: its ends and its splitters are bundle nodes, and each node
    /// connects to the next.
    pub bundles: Option<BundleSpec>,
}

/// How a flow is carried in bundles (RFC 9171) from node to node over TCPCLv4 (RFC 9174).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleSpec {
    /// Bytes of data in a bundle, 1 or more; the last one of a flow may have fewer.
    pub size: u64,
    /// The most bytes of a bundle in an XFER_SEGMENT, 1 or more.
    pub segment: u64,
    /// The time between the death of a session and the next connection attempt.
    pub reconnect: Duration,
    /// How long a node waits for an answer, with nothing on its way, before it sends a KEEPALIVE to see
    /// whether the connection still lives.
    pub keepalive: Duration,
}

/// The two ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The application that sends.
    Source,
    /// The application that receives.
    Destination,
}

/// One TCP connection of a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct LegSpec {
    /// The links from the sending to the receiving end; at least one. Acknowledgements take them backwards.
    pub path: Vec<Hop>,
    /// The sending end.
    pub sender: tcp::Config,
    /// The receiving end.
    pub receiver: tcp::Config,
}

impl LegSpec {
    /// The nodes of the sending and of the receiving end.
    pub(crate) fn nodes(&self, links: &[LinkSpec]) -> [usize; 2] {
        let end = |hop: Option<&Hop>, far: bool| {
            hop.map_or(0, |hop| links[hop.link].between[usize::from(hop.forward == far)])
        };
        [end(self.path.first(), false), end(self.path.last(), true)]
    }
}

/// A proxy between two legs: it terminates the one and sends what it receives on the other. In a flow that is
/// carried in bundles, a bundle node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitterSpec {
    /// Index of its node.
    pub node: usize,
    /// The bytes that it takes from the incoming leg before they are acknowledged on the outgoing one. The
    /// rest stays in the incoming leg's receive buffer. A bundle node has a store instead.
    pub buffer: u64,
    /// The size of a bundle node's store in bytes, at least one bundle; `None`: unlimited. A bundle without
    /// room is not read from the incoming leg.
    pub quota: Option<u64>,
}

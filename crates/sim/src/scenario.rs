//! A checked scenario: nodes, links and flows. The simulator can run any value of this type.

use std::time::Duration;

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_tcp as tcp;
use bentpipe_units::Time;

/// The most flows of a scenario, copies included: each costs two endpoints and its share of every link.
pub const MAX_FLOWS: usize = 10_000;

/// Nodes, links and flows.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// One line about it.
    pub title: String,
    /// When the run ends at the latest. It ends sooner when every flow has ended.
    pub duration: Duration,
    /// How often the inner variables are sampled, where a trace is asked for.
    pub sample_interval: Duration,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// The links between them.
    pub links: Vec<LinkSpec>,
    /// The flows, copies as flows of their own.
    pub flows: Vec<FlowSpec>,
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
}

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

//! A scenario: what there is and what it is to do, checked. The simulator runs any value of this type.

use std::time::Duration;

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_tcp as tcp;
use bentpipe_units::Time;

/// The most flows of a scenario, copies included: each costs two endpoints and its share of every link.
pub const MAX_FLOWS: usize = 10_000;

/// What there is and what it is to do.
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
    /// What happens to packets on it.
    pub config: LinkConfig,
    /// What sits at its first node and at its second.
    pub stations: [LinkEndConfig; 2],
    /// Who shares out its directions, the forward and the reverse one, among the senders with explicit rates in front of it.
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
    /// Who opens it.
    pub opened_by: Side,
    /// The TCP connections that it takes from the source to the destination, one after the other; more than one where
    /// it is split on the way.
    pub legs: Vec<LegSpec>,
    /// What joins each leg to the next: one fewer than legs.
    pub splitters: Vec<SplitterSpec>,
    /// It is carried in bundles: its ends are bundle nodes, and so is what would be its splitters. Each node opens the connection
    /// to the next.
    pub bundles: Option<BundleSpec>,
}

/// How a flow is carried in bundles (RFC 9171) from node to node over TCPCLv4 (RFC 9174).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleSpec {
    /// Bytes of data in a bundle, 1 or more; the last one of a flow may have fewer.
    pub size: u64,
    /// The most bytes of a bundle in an XFER_SEGMENT, 1 or more.
    pub segment: u64,
    /// How long a node waits, after a session has died, before it connects anew.
    pub reconnect: Duration,
    /// How long a node waits for an answer, with nothing on its way, before it sends a KEEPALIVE to see whether the
    /// connection still lives.
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

/// A proxy between two legs: it ends the one, and sends what it receives on the other. In a flow that is carried in bundles, a
/// bundle node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitterSpec {
    /// Index of its node.
    pub node: usize,
    /// Bytes that it takes from the incoming leg before they are acknowledged on the outgoing one. What it has not taken
    /// stays in the incoming leg's receive buffer. A bundle node has a store instead.
    pub buffer: u64,
    /// Bytes that the store of a bundle node holds at the most, a bundle or more; `None` is without end. What finds no room
    /// is not read from the incoming leg.
    pub quota: Option<u64>,
}

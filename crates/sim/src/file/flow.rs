//! `[[flow]]`: data on its way from one node to another, split on the way or not.

use std::time::Duration;

use bentpipe_tcp::Config;
use bentpipe_units::{ByteCount, Span, Time};

use super::bundles;
use super::document::unknown;
use super::error::Fault;
use super::route::Network;
use super::section::{Field, Section};
use super::tcp::Named;
use crate::scenario::{FlowSpec, LegSpec, MAX_FLOWS, Side, SplitterSpec};

/// A splitter's buffer where none is given, bytes: no less than TCP's own, so that it does not bound the window.
pub const DEFAULT_SPLITTER_BUFFER: u64 = 16 << 20;
/// The bounds of a splitter's buffer: a full packet and 1 GiB.
const SPLITTER_BUFFER: std::ops::RangeInclusive<u64> = 1500..=1 << 30;

const KEYS: [&str; 13] = [
    "name",
    "from",
    "to",
    "via",
    "bytes",
    "start",
    "start_within",
    "opened_by",
    "count",
    "tcp",
    "receiver_tcp",
    "split",
    "bundles",
];
const SPLIT_KEYS: [&str; 5] = ["at", "buffer", "quota", "tcp", "receiver_tcp"];

/// What flows refer to.
pub(crate) struct Surroundings<'a> {
    pub(crate) network: &'a Network,
    pub(crate) tcp: &'a Named,
    pub(crate) duration: Duration,
}

/// A flow and its copies.
pub(crate) struct FlowGroup<'a> {
    /// The flow, under the name that the copies' names begin with.
    pub(crate) flow: FlowSpec,
    /// How many copies; `None` is the flow itself.
    pub(crate) copies: Option<usize>,
    /// For what is found wrong with it later.
    pub(crate) section: Section<'a>,
}

impl FlowGroup<'_> {
    /// How many flows these are.
    pub(crate) fn len(&self) -> usize {
        self.copies.unwrap_or(1)
    }

    /// The flows: `name` alone, or `name-1` to `name-N`.
    pub(crate) fn flows(&self) -> impl Iterator<Item = FlowSpec> + '_ {
        (1..=self.len()).map(|number| match self.copies {
            None => self.flow.clone(),
            Some(_) => FlowSpec { name: format!("{}-{number}", self.flow.name), ..self.flow.clone() },
        })
    }
}

/// One `[[flow]]`.
pub(crate) fn read<'a>(field: &Field<'a>, surroundings: &Surroundings<'_>) -> Result<FlowGroup<'a>, Fault> {
    let section = field.named_section("flow", &KEYS)?;
    let name = section.required("name", "\"download\"")?.name()?.to_owned();
    let (legs, splitters) = read_legs(&section, surroundings)?;
    let copies = section.read("count", |field| Ok(field.whole(0..=MAX_FLOWS as u64)? as usize))?;
    let mut flow = FlowSpec {
        name,
        bytes: section.read("bytes", read_bytes)?,
        start: read_start(&section, surroundings.duration)?,
        start_within: section.read("start_within", Field::span)?.unwrap_or_default(),
        opened_by: section.read("opened_by", read_side)?.unwrap_or(Side::Source),
        legs,
        splitters,
        bundles: None,
    };
    bundles::read(&section, &mut flow)?;
    Ok(FlowGroup { flow, copies, section })
}

fn read_bytes(field: &Field<'_>) -> Result<u64, Fault> {
    match field.value::<ByteCount>()?.get() {
        0 => {
            Err(field
                .fault("a flow of 0 bytes is none: write 1 or more, or leave it out for a flow without end"))
        }
        bytes => Ok(bytes),
    }
}

fn read_start(section: &Section<'_>, duration: Duration) -> Result<Time, Fault> {
    let Some(field) = section.get("start") else { return Ok(Time::ZERO) };
    let start = field.span()?;
    if start < duration {
        return Ok(Time::ZERO + start);
    }
    let (start, end) = (Span(start), Span(duration));
    Err(field.fault(format!("{start} is not before the end of the run: its duration is {end}")))
}

fn read_side(field: &Field<'_>) -> Result<Side, Fault> {
    match field.text()? {
        "source" => Ok(Side::Source),
        "destination" => Ok(Side::Destination),
        other => Err(field.fault(format!("\"{other}\" is no end of a flow: choose source or destination"))),
    }
}

/// The path, cut into legs where it is split.
fn read_legs(
    section: &Section<'_>,
    around: &Surroundings<'_>,
) -> Result<(Vec<LegSpec>, Vec<SplitterSpec>), Fault> {
    let nodes = read_nodes(section, around.network)?;
    let hops = around.network.hops(&nodes).map_err(|error| match section.get("via") {
        Some(via) => via.fault(error),
        None => section.fault(error),
    })?;
    let origin = section.read("tcp", |field| around.tcp.get(field))?.unwrap_or_default();
    let splits = read_splits(section, &nodes, origin, around)?;
    let mut receiver = section.read("receiver_tcp", |field| around.tcp.get(field))?;
    let mut end = hops.len();
    let mut legs = Vec::with_capacity(splits.len() + 1);
    // From the destination backwards: each splitter says how the leg behind it sends, and the leg before it receives.
    for split in splits.iter().rev() {
        legs.push(leg(&hops[split.position..end], split.sender, receiver));
        (receiver, end) = (split.receiver, split.position);
    }
    legs.push(leg(&hops[..end], origin, receiver));
    legs.reverse();
    Ok((legs, splits.into_iter().map(|split| split.splitter).collect()))
}

/// Both ends alike, unless the receiving one has its own parameters.
fn leg(path: &[crate::scenario::Hop], sender: Config, receiver: Option<Config>) -> LegSpec {
    LegSpec { path: path.to_vec(), sender, receiver: receiver.unwrap_or(sender) }
}

/// The nodes from the source to the destination, both included.
fn read_nodes(section: &Section<'_>, network: &Network) -> Result<Vec<usize>, Fault> {
    let from = section.required("from", "\"server\"")?;
    let to = section.required("to", "\"client\"")?;
    let (source, destination) = (read_node(&from, network)?, read_node(&to, network)?);
    if source == destination {
        return Err(to.fault(format!("{} is where the flow comes from: name another node", to.text()?)));
    }
    let Some(via) = section.get("via") else {
        return network.shortest(source, destination).map_err(|error| section.fault(error));
    };
    let between = via.list()?.iter().map(|field| read_node(field, network)).collect::<Result<Vec<_>, _>>()?;
    Ok([vec![source], between, vec![destination]].concat())
}

fn read_node(field: &Field<'_>, network: &Network) -> Result<usize, Fault> {
    let name = field.text()?;
    network
        .find(name)
        .ok_or_else(|| field.fault(format!("{}; links name the nodes", unknown(name, network.names()))))
}

/// A splitter and where on the path it is.
struct Split {
    /// How many links lead to it.
    position: usize,
    /// How the leg before it is received; as it is sent where this is nothing.
    receiver: Option<Config>,
    /// How the leg behind it is sent.
    sender: Config,
    splitter: SplitterSpec,
}

/// The splitters in the order of the path.
fn read_splits(
    section: &Section<'_>,
    nodes: &[usize],
    origin: Config,
    around: &Surroundings<'_>,
) -> Result<Vec<Split>, Fault> {
    let Some(field) = section.get("split") else { return Ok(Vec::new()) };
    let elements = field.list()?;
    let read = |element| read_split(element, nodes, origin, around);
    let mut splits = elements.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    splits.sort_by_key(|split| split.position);
    if let Some(pair) = splits.windows(2).find(|pair| pair[0].position == pair[1].position) {
        let node = &around.network.names()[pair[0].splitter.node];
        return Err(field.fault(format!("{node} splits the flow twice: name each node once")));
    }
    Ok(splits)
}

fn read_split(
    element: &Field<'_>,
    nodes: &[usize],
    origin: Config,
    around: &Surroundings<'_>,
) -> Result<Split, Fault> {
    let section = element.section(&SPLIT_KEYS)?;
    let at = section.required("at", "\"gateway\"")?;
    let node = read_node(&at, around.network)?;
    let inside = 1..nodes.len() - 1;
    let position = nodes.iter().position(|&other| other == node).filter(|position| inside.contains(position));
    let position = position.ok_or_else(|| {
        let names: Vec<&str> =
            nodes[inside].iter().map(|&node| around.network.names()[node].as_str()).collect();
        let accepted = match names.is_empty() {
            true => "the flow has a single link, and no node to split it at".to_owned(),
            false => format!("choose a node between the flow's ends: {}", names.join(", ")),
        };
        at.fault(format!("the flow cannot be split at {}: {accepted}", around.network.names()[node]))
    })?;
    Ok(Split {
        position,
        receiver: section.read("receiver_tcp", |field| around.tcp.get(field))?,
        sender: section.read("tcp", |field| around.tcp.get(field))?.unwrap_or(origin),
        splitter: SplitterSpec {
            node,
            buffer: section.read("buffer", read_buffer)?.unwrap_or(DEFAULT_SPLITTER_BUFFER),
            quota: section.read("quota", bundles::read_quota)?,
        },
    })
}

fn read_buffer(field: &Field<'_>) -> Result<u64, Fault> {
    let bytes = field.value::<ByteCount>()?;
    if SPLITTER_BUFFER.contains(&bytes.get()) {
        return Ok(bytes.get());
    }
    Err(field.fault(format!("{bytes} is not a splitter's buffer: write 1500B, a full packet, to 1GiB")))
}

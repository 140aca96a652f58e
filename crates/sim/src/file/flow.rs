//! `[[flow]]`: data on its way from one node to another, split on the way or not.

use std::time::Duration;

use bentpipe_config::{Bytes, InTable, Name, Off, Or, Plain, Problem, SpanFrom, Whole, Written, unknown};
use bentpipe_tcp::Config;
use bentpipe_units::{ByteCount, Span, Time};
use serde::Deserialize;

use super::bundles::Bundles;
use super::route::Topology;
use super::tcp::Named;
use crate::scenario::{FlowSpec, Hop, LegSpec, MAX_FLOWS, Side, SplitterSpec};

/// A splitter's buffer where none is given, bytes: no less than TCP's own, so that it does not bound the
/// window.
pub const DEFAULT_SPLITTER_BUFFER: u64 = 16 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Flow {
    name: Name,
    from: String,
    to: String,
    via: Option<Vec<String>>,
    bytes: Option<Written<ByteCount>>,
    start: Option<SpanFrom<0>>,
    start_within: Option<SpanFrom<0>>,
    opened_by: Option<End>,
    count: Option<Whole<usize, 0, { MAX_FLOWS as u64 }>>,
    tcp: Option<String>,
    receiver_tcp: Option<String>,
    #[serde(default)]
    split: Vec<SplitKeys>,
    bundles: Option<Or<Off, Bundles>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum End {
    Source,
    Destination,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitKeys {
    at: String,
    /// A full packet or more.
    buffer: Option<Bytes<1500, { 1 << 30 }>>,
    quota: Option<Written<ByteCount>>,
    tcp: Option<String>,
    receiver_tcp: Option<String>,
}

/// What flows refer to.
pub(super) struct Surroundings<'a> {
    pub(super) topology: &'a Topology,
    pub(super) tcp: &'a Named,
    pub(super) duration: Duration,
}

/// A flow and its copies.
pub(super) struct FlowGroup {
    /// The flow, under the name that the copies' names begin with.
    pub(super) flow: FlowSpec,
    /// How many copies; `None` is the flow itself.
    copies: Option<usize>,
}

impl FlowGroup {
    /// How many flows these are.
    pub(super) fn len(&self) -> usize {
        self.copies.unwrap_or(1)
    }

    /// The flows: `name` alone, or `name-1` to `name-N`.
    pub(super) fn flows(&self) -> impl Iterator<Item = FlowSpec> + '_ {
        (1..=self.len()).map(|number| match self.copies {
            None => self.flow.clone(),
            Some(_) => FlowSpec { name: format!("{}-{number}", self.flow.name), ..self.flow.clone() },
        })
    }
}

impl Flow {
    pub(super) fn read(self, around: &Surroundings<'_>) -> Result<FlowGroup, Problem> {
        let (legs, splitters) = self.legs(around)?;
        let mut flow = FlowSpec {
            bytes: self.bytes()?,
            start: self.start(around.duration)?,
            start_within: self.start_within.map_or(Duration::ZERO, Plain::get),
            opened_by: match self.opened_by {
                None | Some(End::Source) => Side::Source,
                Some(End::Destination) => Side::Destination,
            },
            legs,
            splitters,
            bundles: None,
            name: self.name.into(),
        };
        if let Some(bundles) = self.bundles.and_then(|bundles| bundles.value) {
            bundles.apply(&mut flow)?;
        }
        Ok(FlowGroup { flow, copies: self.count.map(Plain::get) })
    }

    fn bytes(&self) -> Result<Option<u64>, Problem> {
        let zero = "a flow of 0 bytes is none: write 1 or more, or leave it out for a flow without end";
        match self.bytes.map(|bytes| bytes.get().get()) {
            Some(0) => Err(Problem::of("bytes", zero)),
            bytes => Ok(bytes),
        }
    }

    fn start(&self, duration: Duration) -> Result<Time, Problem> {
        let start = self.start.map_or(Duration::ZERO, Plain::get);
        if start < duration {
            return Ok(Time::ZERO + start);
        }
        let (start, end) = (Span(start), Span(duration));
        let message = format!("{start} is not before the end of the run: its duration is {end}");
        Err(Problem::of("start", message))
    }

    /// The path, cut into legs where it is split.
    fn legs(&self, around: &Surroundings<'_>) -> Result<(Vec<LegSpec>, Vec<SplitterSpec>), Problem> {
        let nodes = self.nodes(around.topology)?;
        let hops = around.topology.hops(&nodes).map_err(|error| match self.via {
            Some(_) => Problem::of("via", error),
            None => Problem::new(error),
        })?;
        let origin = around.tcp.get("tcp", &self.tcp)?.unwrap_or_default();
        let splits = self.splits(&nodes, origin, around)?;
        let mut receiver = around.tcp.get("receiver_tcp", &self.receiver_tcp)?;
        let mut end = hops.len();
        let mut legs = Vec::with_capacity(splits.len() + 1);
        // From the destination backwards: each splitter says how the leg after it sends, and the leg before
        // it receives.
        for split in splits.iter().rev() {
            legs.push(leg(&hops[split.position..end], split.sender, receiver));
            (receiver, end) = (split.receiver, split.position);
        }
        legs.push(leg(&hops[..end], origin, receiver));
        legs.reverse();
        Ok((legs, splits.into_iter().map(|split| split.splitter).collect()))
    }

    /// The nodes from the source to the destination, both included.
    fn nodes(&self, topology: &Topology) -> Result<Vec<usize>, Problem> {
        let source = find(topology, &self.from).inside("from")?;
        let destination = find(topology, &self.to).inside("to")?;
        if source == destination {
            let message = format!("{} is where the flow comes from: name another node", self.to);
            return Err(Problem::of("to", message));
        }
        let Some(via) = &self.via else {
            return topology.shortest(source, destination).map_err(Problem::new);
        };
        let find = |(index, name): (usize, &String)| find(topology, name).inside(index);
        let between: Vec<usize> = via.iter().enumerate().map(find).collect::<Result<_, _>>().inside("via")?;
        Ok([vec![source], between, vec![destination]].concat())
    }

    /// The splitters in the order of the path.
    fn splits(
        &self,
        nodes: &[usize],
        origin: Config,
        around: &Surroundings<'_>,
    ) -> Result<Vec<Split>, Problem> {
        let read = |(index, keys): (usize, &SplitKeys)| keys.read(nodes, origin, around).inside(index);
        let mut splits =
            self.split.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>().inside("split")?;
        splits.sort_by_key(|split| split.position);
        if let Some(pair) = splits.windows(2).find(|pair| pair[0].position == pair[1].position) {
            let node = &around.topology.names()[pair[0].splitter.node];
            return Err(Problem::of("split", format!("{node} splits the flow twice: name each node once")));
        }
        Ok(splits)
    }
}

/// Both ends alike, unless the receiving one has its own parameters.
fn leg(path: &[Hop], sender: Config, receiver: Option<Config>) -> LegSpec {
    LegSpec { path: path.to_vec(), sender, receiver: receiver.unwrap_or(sender) }
}

pub(super) fn find(topology: &Topology, name: &str) -> Result<usize, Problem> {
    let missing = || Problem::new(format!("{}; links name the nodes", unknown(name, topology.names())));
    topology.find(name).ok_or_else(missing)
}

/// A splitter and where on the path it is.
struct Split {
    /// How many links lead to it.
    position: usize,
    /// How the leg before it is received; as it is sent where this is nothing.
    receiver: Option<Config>,
    /// How the leg after it is sent.
    sender: Config,
    splitter: SplitterSpec,
}

impl SplitKeys {
    fn read(&self, nodes: &[usize], origin: Config, around: &Surroundings<'_>) -> Result<Split, Problem> {
        let node = find(around.topology, &self.at).inside("at")?;
        let inside = 1..nodes.len() - 1;
        let position = nodes.iter().position(|&other| other == node).filter(|at| inside.contains(at));
        let position = position.ok_or_else(|| {
            let names: Vec<&str> =
                nodes[inside].iter().map(|&node| around.topology.names()[node].as_str()).collect();
            let accepted = match names.is_empty() {
                true => "the flow has a single link, and no node to split it at".to_owned(),
                false => format!("choose a node between the flow's ends: {}", names.join(", ")),
            };
            Problem::of("at", format!("the flow cannot be split at {}: {accepted}", self.at))
        })?;
        Ok(Split {
            position,
            receiver: around.tcp.get("receiver_tcp", &self.receiver_tcp)?,
            sender: around.tcp.get("tcp", &self.tcp)?.unwrap_or(origin),
            splitter: SplitterSpec {
                node,
                buffer: self.buffer.map_or(DEFAULT_SPLITTER_BUFFER, |buffer| buffer.get().get()),
                quota: self.quota.map(|quota| quota.get().get()),
            },
        })
    }
}

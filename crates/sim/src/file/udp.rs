//! `[[udp]]`: a stream of datagrams at a constant rate, to one node or to several.

use std::collections::HashSet;

use bentpipe_config::{Bytes, InTable, List, Name, Plain, Problem, SpanFrom, Written};
use bentpipe_units::{Rate, Span, Time};
use serde::Deserialize;

use super::flow::{Surroundings, find};
use super::protect;
use crate::scenario::{LinkSpec, MAX_DATAGRAMS, UDP_PACKET, UdpReceiver, UdpSpec};

/// IP bytes of a packet where none are given: what QUIC begins with (RFC 9000 §14.1), which every path
/// carries.
const DEFAULT_PACKET: u16 = 1200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Udp {
    name: Name,
    from: String,
    to: List<String>,
    via: Option<Vec<String>>,
    rate: Option<Written<Rate>>,
    packet_size: Option<Bytes<{ *UDP_PACKET.start() as u64 }, { *UDP_PACKET.end() as u64 }>>,
    start: Option<SpanFrom<0>>,
    end: Option<SpanFrom<0>>,
}

/// The streams. They are counted before there is memory for them.
pub(super) fn read(
    streams: Vec<Udp>,
    around: &Surroundings<'_>,
    links: &[LinkSpec],
) -> Result<Vec<UdpSpec>, Vec<Problem>> {
    let (mut specs, mut problems) = (Vec::<UdpSpec>::with_capacity(streams.len()), Vec::new());
    let mut datagrams = 0u64;
    for (index, stream) in streams.into_iter().enumerate() {
        let read = stream.read(around).and_then(|spec| {
            protect::check(&spec, links)?;
            if specs.iter().any(|other| other.name == spec.name) {
                return Err(Problem::new(format!(
                    "two streams are called {}: give each its own name",
                    spec.name
                )));
            }
            let count = spec.datagrams().saturating_mul(spec.receivers.len() as u64);
            datagrams = datagrams.saturating_add(count);
            if datagrams > MAX_DATAGRAMS {
                return Err(Problem::new(format!(
                    "with this stream, {datagrams} datagrams would be received: at most {MAX_DATAGRAMS} are \
                     simulated; lower duration, rate or end, or raise packet_size"
                )));
            }
            Ok(spec)
        });
        match read.inside(index).inside("udp") {
            Ok(spec) => specs.push(spec),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(specs) } else { Err(problems) }
}

impl Udp {
    fn read(self, around: &Surroundings<'_>) -> Result<UdpSpec, Problem> {
        let source = find(around.topology, &self.from).inside("from")?;
        let receivers = self.receivers(source, around)?;
        let rate = self.rate.map(Plain::get).ok_or_else(|| {
            Problem::new(
                "rate is missing: write the bit rate of its IP packets, for example rate = \"1Mbit/s\"",
            )
        })?;
        let start = self.start.map_or_else(Default::default, Plain::get);
        let end = self.end.map_or(around.duration, Plain::get).min(around.duration);
        if start >= end {
            let message = format!("{} is not before the end, {}", Span(start), Span(end));
            return Err(Problem::of("start", message));
        }
        Ok(UdpSpec {
            rate,
            packet: self.packet_size.map_or(DEFAULT_PACKET, |bytes| bytes.get().get() as u16),
            start: Time::ZERO + start,
            end: Time::ZERO + end,
            source,
            receivers,
            name: self.name.into(),
        })
    }

    fn receivers(&self, source: usize, around: &Surroundings<'_>) -> Result<Vec<UdpReceiver>, Problem> {
        if self.via.is_some() && self.to.len() > 1 {
            let message = "a stream to several nodes takes the shortest path to each: leave via out";
            return Err(Problem::of("via", message));
        }
        let mut nodes = HashSet::new();
        let receiver = |to: &String| {
            let node = find(around.topology, to)?;
            if node == source || !nodes.insert(node) {
                let what = if node == source { "is where the stream comes from" } else { "is there twice" };
                return Err(Problem::new(format!("{to} {what}: name other nodes")));
            }
            let path = match &self.via {
                None => around.topology.shortest(source, node).map_err(Problem::new)?,
                Some(via) => {
                    let between = via.iter().map(|name| find(around.topology, name));
                    let between = between.collect::<Result<Vec<_>, _>>()?;
                    [vec![source], between, vec![node]].concat()
                }
            };
            let path = around.topology.hops(&path).map_err(Problem::new)?;
            Ok(UdpReceiver { node, path })
        };
        self.to.iter().map(receiver).collect::<Result<_, _>>().inside("to")
    }
}

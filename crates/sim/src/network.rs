//! Links and what is on them.

use std::collections::VecDeque;

use bentpipe_link::{Counters, Direction, Fate, Link};
use bentpipe_tcp::Segment;
use bentpipe_units::{ByteCount, Time};

use crate::scenario::{Hop, LinkSpec};

/// A segment on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) segment: Segment,
    /// The endpoint that sent it.
    pub(crate) from: u32,
    /// How many links it has crossed.
    pub(crate) hop: u32,
}

/// One direction of a link, with the packets that it will deliver.
#[derive(Debug)]
pub(crate) struct Pipe {
    direction: Direction,
    arriving: VecDeque<(Time, Packet)>,
}

impl Pipe {
    /// The two pipes of each link, forward before reverse.
    pub(crate) fn of_links(links: &[LinkSpec], seed: impl Fn(usize) -> u64) -> Vec<Pipe> {
        let pipes = |(index, link): (usize, &LinkSpec)| {
            let Link { forward, reverse } = Link::new(&link.config, seed(index));
            [forward, reverse].map(|direction| Pipe { direction, arriving: VecDeque::new() })
        };
        links.iter().enumerate().flat_map(pipes).collect()
    }

    /// The pipe of a hop: its index among all.
    pub(crate) fn index(hop: Hop) -> u32 {
        (2 * hop.link + usize::from(!hop.forward)) as u32
    }

    /// A packet arrives at the transmitter; says when it will be delivered and whether it is the only one that will.
    pub(crate) fn offer(&mut self, now: Time, packet: Packet) -> (Fate, bool) {
        let fate = self.direction.offer(now, packet.segment.ip_length());
        let idle = self.arriving.is_empty();
        if let Fate::Deliver { at } = fate {
            self.arriving.push_back((at, packet));
        }
        (fate, idle)
    }

    /// The first packet has arrived; with it, when the next one will.
    pub(crate) fn deliver(&mut self) -> Option<(Packet, Option<Time>)> {
        let (_, packet) = self.arriving.pop_front()?;
        Some((packet, self.arriving.front().map(|next| next.0)))
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.direction.counters()
    }

    pub(crate) fn backlog(&self, now: Time) -> ByteCount {
        self.direction.backlog(now)
    }
}

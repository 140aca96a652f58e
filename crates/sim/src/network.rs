//! Links and what is on them.

use std::collections::VecDeque;

use bentpipe_link::agent::Frame;
use bentpipe_link::{Counters, Direction, Fate, Link};
use bentpipe_units::{ByteCount, Time};

use crate::packet::Packet;
use crate::scenario::{Hop, LinkSpec};
use crate::station::StationNode;

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

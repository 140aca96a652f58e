//! An active flow: the application at each end, and the splitters between. `bundles.rs` has the nodes of a
//! flow in bundles.

use bentpipe_tcp::{End, Endpoint, State};
use bentpipe_units::Time;

use crate::bundles::BundleNodes;
use crate::occupancy::Occupancy;
use crate::scenario::{FlowSpec, Side};

/// The endpoints of a flow lie one after the other in the list of all: the sending and the receiving end of
/// the first leg, then those of the second, and so on.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) first: usize,
    pub(crate) legs: usize,
    pub(crate) bytes: Option<u64>,
    pub(crate) opened_by: Side,
    pub(crate) started_at: Time,
    /// In a flow that is carried in bundles they only measure the bytes that the nodes hold.
    pub(crate) splitters: Vec<Splitter>,
    pub(crate) bundle_nodes: Option<BundleNodes>,
    pub(crate) written: u64,
    pub(crate) received: u64,
    pub(crate) last_byte_at: Option<Time>,
    pub(crate) ended: Option<(Time, End)>,
}

/// A proxy between two legs: it relays from the one to the other.
#[derive(Debug)]
pub(crate) struct Splitter {
    buffer: u64,
    pub(crate) occupancy: Occupancy,
}

impl Flow {
    pub(crate) fn new(spec: &FlowSpec, first: usize, started_at: Time) -> Self {
        let splitter = |buffer| Splitter { buffer, occupancy: Occupancy::since(started_at) };
        Self {
            first,
            legs: spec.legs.len(),
            bytes: spec.bytes,
            // A bundle node connects when it has a bundle.
            opened_by: if spec.bundles.is_some() { Side::Source } else { spec.opened_by },
            started_at,
            splitters: spec.splitters.iter().map(|spec| splitter(spec.buffer)).collect(),
            bundle_nodes: BundleNodes::of_flow(spec),
            written: 0,
            received: 0,
            last_byte_at: None,
            ended: None,
        }
    }

    /// Its endpoints among all.
    pub(crate) fn endpoints(&self) -> std::ops::Range<usize> {
        self.first..self.first + 2 * self.legs
    }

    /// The endpoint that opens the leg number `leg`, counted from the side that opens the flow.
    pub(crate) fn opener(&self, leg: usize) -> usize {
        match self.opened_by {
            Side::Source => self.first + 2 * leg,
            Side::Destination => self.first + 2 * (self.legs - 1 - leg) + 1,
        }
    }

    /// When `endpoint`, the accepting end of a leg, has its connection, the splitter behind it opens the next
    /// leg: with this endpoint.
    pub(crate) fn opens_after(&self, endpoint: usize) -> Option<usize> {
        if self.bundle_nodes.is_some() {
            return None;
        }
        let leg = (endpoint - self.first) / 2;
        let next = match self.opened_by {
            Side::Source if self.is_receiving(endpoint) => endpoint + 1,
            Side::Destination if !self.is_receiving(endpoint) && leg > 0 => endpoint - 1,
            _ => return None,
        };
        self.endpoints().contains(&next).then_some(next)
    }

    fn is_receiving(&self, endpoint: usize) -> bool {
        (endpoint - self.first) % 2 == 1
    }

    /// Lets applications and splitters act after an event at `endpoint`. Returns the endpoint at the other
    /// side of the splitter, which may now have something to send.
    pub(crate) fn service(
        &mut self,
        now: Time,
        endpoint: usize,
        endpoints: &mut [Endpoint],
    ) -> Option<usize> {
        let local = endpoint - self.first;
        let mine = &mut endpoints[self.first..self.first + 2 * self.legs];
        if let Some(end) = mine[local].end().filter(|end| *end != End::Finished) {
            self.ended.get_or_insert((now, end));
        }
        if local == 0 {
            self.source(now, &mut mine[0]);
            None
        } else if local == mine.len() - 1 {
            self.destination(now, &mut mine[local]);
            None
        } else {
            let splitter = (local - 1) / 2;
            let (incoming, outgoing) = mine.split_at_mut(2 * splitter + 2);
            self.splitters[splitter].relay(now, &mut incoming[2 * splitter + 1], &mut outgoing[0]);
            let other = if local % 2 == 1 { local + 1 } else { local - 1 };
            Some(self.first + other)
        }
    }

    /// As [`service`](Self::service), for a flow that is carried in bundles.
    pub(crate) fn service_bundles(&mut self, now: Time, endpoints: &mut [Endpoint]) {
        let mine = self.endpoints();
        let Some(bundle_nodes) = &mut self.bundle_nodes else { return };
        let bytes = bundle_nodes.service(now, &mut endpoints[mine]);
        if bytes > 0 {
            self.received += bytes;
            self.last_byte_at = Some(now);
        }
        for (node, held) in self.splitters.iter_mut().zip(bundle_nodes.held()) {
            node.occupancy.observe(now, held);
        }
        if bundle_nodes.is_done() {
            self.ended.get_or_insert((now, End::Finished));
        }
    }

    fn source(&mut self, now: Time, endpoint: &mut Endpoint) {
        let left = self.bytes.map_or(u64::MAX, |bytes| bytes - self.written);
        if left > 0 {
            self.written += endpoint.write(left);
        }
        if self.bytes == Some(self.written) {
            endpoint.finish();
        }
        if endpoint.end() == Some(End::Finished) {
            self.ended.get_or_insert((now, End::Finished));
        }
    }

    fn destination(&mut self, now: Time, endpoint: &mut Endpoint) {
        let bytes = endpoint.read(now, u64::MAX);
        if bytes > 0 {
            self.received += bytes;
            self.last_byte_at = Some(now);
        }
        if endpoint.is_at_end() {
            endpoint.finish();
        }
    }
}

impl Splitter {
    fn relay(&mut self, now: Time, incoming: &mut Endpoint, outgoing: &mut Endpoint) {
        let room = self.buffer.saturating_sub(outgoing.send_buffered());
        let bytes = incoming.readable().min(room).min(outgoing.writable());
        if bytes > 0 && outgoing.state() != State::Closed {
            incoming.read(now, bytes);
            outgoing.write(bytes);
        }
        if incoming.is_at_end() {
            outgoing.finish();
        }
        if outgoing.is_at_end() {
            incoming.finish();
        }
        pass_on_failure(now, incoming, outgoing);
        pass_on_failure(now, outgoing, incoming);
        self.occupancy.observe(now, incoming.receive_buffered() + outgoing.send_buffered());
    }
}

/// A connection that failed aborts the other one, because a truncated stream must not look complete.
fn pass_on_failure(now: Time, failed: &Endpoint, other: &mut Endpoint) {
    if failed.end().is_some_and(|end| end != End::Finished) && other.end().is_none() {
        other.abort(now);
    }
}

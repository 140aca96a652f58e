//! Limits of a run: memory for the packets in flight, and work for all that are sent.
//!
//! Both are estimated from above before the run, so that a slip of the keyboard is an error and not a machine
//! that swaps for a night.

use std::time::Duration;

use bentpipe_link::DirectionConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_units::Rate;

use crate::scenario::{FlowSpec, Hop, LegSpec, LinkSpec};

/// The most segments that all flows together may have in flight: about 2 GB of memory.
pub const MAX_SEGMENTS_IN_FLIGHT: u64 = 20_000_000;
/// The most segments and timers that a run may go through: some hours.
pub const MAX_EVENTS: f64 = 1e10;

/// Without window scaling no window is larger (RFC 7323 §2).
const UNSCALED_WINDOW: u64 = 65_535;

/// How often a protected leg sends a packet again: a retransmission and its repair frame, and half of one as
/// redundancy.
const PROTECTED_AGAIN: f64 = 2.5;
/// What both ends of a protected leg report to each other in a second, and as many timers.
const REPORTS: f64 = 200.0;

/// The sums over the flows so far.
pub(super) struct Budget<'a> {
    links: &'a [LinkSpec],
    duration: Duration,
    in_flight: u64,
    events: f64,
}

impl<'a> Budget<'a> {
    pub(super) fn new(links: &'a [LinkSpec], duration: Duration) -> Self {
        let protected = links.iter().filter(|link| link.protect.is_some()).count();
        let reports = protected as f64 * REPORTS * duration.as_secs_f64();
        Self { links, duration, in_flight: 0, events: reports }
    }

    /// Adds `count` flows like this one.
    ///
    /// # Errors
    /// What is too much then, how much it is, and what to do.
    pub(super) fn add(&mut self, flow: &FlowSpec, count: usize) -> Result<(), String> {
        let in_flight: u64 = (0..flow.legs.len()).map(|leg| window_segments(flow, leg)).sum();
        self.in_flight = self.in_flight.saturating_add(in_flight.saturating_mul(count as u64));
        if self.in_flight > MAX_SEGMENTS_IN_FLIGHT {
            return Err(format!(
                "with this flow, {} segments could be in flight: at most {MAX_SEGMENTS_IN_FLIGHT} are \
                 simulated; \
                 lower count, send_buffer or receive_buffer",
                self.in_flight
            ));
        }
        let events: f64 = (0..flow.legs.len()).map(|leg| self.events_of(flow, leg)).sum();
        self.events += events * count as f64;
        if self.events > MAX_EVENTS {
            return Err(format!(
                "with this flow, the run could send {:.0e} segments: at most {MAX_EVENTS:.0e} are simulated; \
                 lower \
                 duration, bytes, the rates, count or retransmissions",
                self.events
            ));
        }
        Ok(())
    }

    /// Segments that a leg can send in the whole run, and expiries of its timers.
    fn events_of(&self, flow: &FlowSpec, index: usize) -> f64 {
        let (leg, seconds) = (&flow.legs[index], self.duration.as_secs_f64());
        let segment = smallest_segment(flow) as f64;
        let by_window = window_segments(flow, index) as f64 * seconds / self.round_trip(leg);
        let by_rate = self.rates(leg).map(|rate| rate.bps() as f64 / 8.0 * seconds / segment);
        // Retransmissions after a session has died are bounded by window and rate only.
        let by_bytes = flow.bytes.filter(|_| flow.bundles.is_none()).map(|bytes| bytes as f64 / segment);
        let segments = by_rate.chain(by_bytes).fold(by_window, f64::min);
        let timers = [leg.sender.rto.max, leg.sender.syn.max, leg.receiver.syn_ack.max];
        let of_nodes = flow.bundles.map(|bundles| bundles.reconnect.min(bundles.keepalive));
        let shortest_timer = timers.into_iter().chain(of_nodes).fold(Duration::MAX, Duration::min);
        segments * self.sendings(leg) + seconds / shortest_timer.as_secs_f64()
    }

    /// How often a segment may be sent, retransmissions of link ends, repair frames and duplicates of links
    /// included.
    fn sendings(&self, leg: &LegSpec) -> f64 {
        let near = |hop: &Hop| &self.links[hop.link].ends[usize::from(!hop.forward)];
        let copies = |hop: &Hop| 1.0 + self.direction(hop).impairments.duplicate.get();
        let protected = leg.path.iter().filter(|hop| self.links[hop.link].protect.is_some()).count();
        let again = leg.path.iter().map(near).map(retransmissions).sum::<f64>();
        let sent = 1.0 + again + PROTECTED_AGAIN * protected as f64;
        sent * leg.path.iter().map(copies).product::<f64>()
    }

    /// The round trip of the empty path, seconds; never quite zero.
    fn round_trip(&self, leg: &LegSpec) -> f64 {
        let delay = |hop: &Hop| {
            let link = &self.links[hop.link].config;
            link.forward.delay.as_secs_f64() + link.reverse.delay.as_secs_f64()
        };
        leg.path.iter().map(delay).sum::<f64>().max(1e-9)
    }

    /// The rates of the path from the sender to the receiver.
    fn rates<'b>(&'b self, leg: &'b LegSpec) -> impl Iterator<Item = Rate> + 'b {
        leg.path.iter().filter_map(|hop| self.direction(hop).highest_rate())
    }

    fn direction(&self, hop: &Hop) -> &DirectionConfig {
        let link = &self.links[hop.link].config;
        if hop.forward { &link.forward } else { &link.reverse }
    }
}

fn retransmissions(end: &LinkEndConfig) -> f64 {
    let snoops = end.agents.iter().filter_map(|agent| match agent {
        AgentConfig::Snoop(snoop) => Some(snoop.retransmissions.saturating_mul(snoop.copies)),
        AgentConfig::DelayedDupAck(_) | AgentConfig::AckFilter(_) | AgentConfig::Xcp(_) => None,
    });
    snoops.chain(end.arq.map(|arq| arq.retransmissions)).map(f64::from).sum()
}

/// Segments that a leg can have outstanding: both buffers, the splitter's, and the length of the flow bound
/// them; a bundle node's store does not, nor do headers count for the flow's length.
fn window_segments(flow: &FlowSpec, index: usize) -> u64 {
    let (leg, plain) = (&flow.legs[index], flow.bundles.is_none());
    let scaled = leg.sender.window_scaling && leg.receiver.window_scaling;
    let window = [
        leg.sender.send_buffer,
        leg.receiver.receive_buffer,
        if scaled { u64::MAX } else { UNSCALED_WINDOW },
        index.checked_sub(1).filter(|_| plain).map_or(u64::MAX, |before| flow.splitters[before].buffer),
        flow.bytes.filter(|_| plain).unwrap_or(u64::MAX),
    ];
    window.into_iter().min().unwrap_or(0).div_ceil(smallest_segment(flow))
}

/// A splitter may pass on what comes in pieces as small as they come, and a bundle node bundle by bundle.
fn smallest_segment(flow: &FlowSpec) -> u64 {
    let mss: u64 = flow.legs.iter().map(|leg| leg.sender.mss.min(leg.receiver.mss)).min().unwrap_or(1).into();
    mss.min(flow.bundles.map_or(u64::MAX, |bundles| bundles.size))
}

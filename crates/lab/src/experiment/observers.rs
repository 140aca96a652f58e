//! Observers that several experiments share.

use bentpipe_link::{Cause, Counters};
use bentpipe_sim::{Observer, RunResult};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

use crate::figure::{Point, Series, Style};
use crate::statistics::Estimate;

/// A time in seconds, and the bytes that a flow had received by then.
type Received = (f64, u64);

/// The goodput of flows, and one link's queue, after the start-up phase.
#[derive(Debug)]
pub(super) struct SteadyState {
    /// The end of the start-up phase.
    from: Time,
    link: usize,
    /// The first and the last sample of each flow in the steady state.
    flows: Vec<[Received; 2]>,
    /// Bytes in the queue, by sample.
    backlogs: Vec<u64>,
    dropped_before: u64,
    offered_before: u64,
    /// The first flow in each second of the whole run.
    first_flow: Vec<Received>,
}

impl SteadyState {
    /// Observes from `seconds` on; the queue is that of the link with this index, in its forward direction.
    pub(super) fn since(seconds: u64, link: usize) -> Self {
        let from = Time::from_nanos(seconds * 1_000_000_000);
        let (flows, backlogs, first_flow) = (Vec::new(), Vec::new(), Vec::new());
        Self { from, link, flows, backlogs, dropped_before: 0, offered_before: 0, first_flow }
    }

    /// The goodput of each flow, bits per second.
    pub(super) fn goodputs_bps(&self) -> Vec<f64> {
        self.flows.iter().map(|[first, last]| rate_bps(*first, *last)).collect()
    }

    /// The median delay of the queue at this rate in bits per second, seconds.
    pub(super) fn median_queue_s(&self, rate: f64) -> f64 {
        let mut backlogs = self.backlogs.clone();
        backlogs.sort_unstable();
        backlogs.get(backlogs.len() / 2).map_or(0.0, |&bytes| 8.0 * bytes as f64 / rate)
    }

    /// The share of the packets offered to the link that its full queue dropped.
    pub(super) fn dropped(&self, result: &RunResult) -> f64 {
        let counters = &result.links[self.link].forward;
        let dropped = counters.dropped(Cause::QueueFull) - self.dropped_before;
        dropped as f64 / (counters.offered - self.offered_before).max(1) as f64
    }

    /// The goodput of the first flow over time in Mbit/s, for each second.
    pub(super) fn first_flow(&self, name: &str) -> Series {
        let point =
            |pair: &[Received]| Point::new(pair[1].0, Estimate::from(rate_bps(pair[0], pair[1]) / 1e6));
        Series::new(name, Style::Curve, self.first_flow.windows(2).map(point))
    }
}

fn rate_bps(from: Received, to: Received) -> f64 {
    8.0 * (to.1 - from.1) as f64 / (to.0 - from.0)
}

impl Observer for SteadyState {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let sample = (now.as_secs_f64(), bytes);
        if flow == 0 && now.as_nanos().is_multiple_of(1_000_000_000) {
            self.first_flow.push(sample);
        }
        if now >= self.from {
            match self.flows.get_mut(flow) {
                Some([_, last]) => *last = sample,
                None => self.flows.push([sample; 2]),
            }
        }
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        if link != self.link || !forward {
            return;
        }
        if now >= self.from {
            self.backlogs.push(backlog.get());
        } else {
            (self.dropped_before, self.offered_before) =
                (counters.dropped(Cause::QueueFull), counters.offered);
        }
    }
}

/// The congestion window of one leg's sender over the life of its connection.
#[derive(Debug)]
pub(super) struct WindowTrace {
    /// The leg, by its index in the flow.
    pub(super) leg: usize,
    /// Payload of a packet, bytes.
    pub(super) packet: f64,
    /// The receiver's window in packets, which bounds the sender's.
    pub(super) most: f64,
    /// Seconds, and the window in packets.
    pub(super) samples: Vec<(f64, f64)>,
}

impl WindowTrace {
    pub(super) fn mean(&self) -> f64 {
        self.samples.iter().map(|(_, window)| window).sum::<f64>() / self.samples.len().max(1) as f64
    }

    /// The window over time.
    pub(super) fn series(&self, name: &str) -> Series {
        let points = self.samples.iter().map(|&(at, window)| Point::new(at, Estimate::from(window)));
        Series::new(name, Style::Curve, points)
    }
}

impl Observer for WindowTrace {
    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, _: usize, leg: usize, variables: &Variables, done: &Statistics) {
        if leg == self.leg && done.established_at.is_some() && done.ended_at.is_none() {
            let window = variables.cwnd as f64 / self.packet;
            self.samples.push((now.as_secs_f64(), window.min(self.most)));
        }
    }
}

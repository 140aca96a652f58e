//! The router of XCP and of P-XCP: it tells each sender by how much to change its rate.
//!
//! Sources: Katabi, Handley and Rohrs, "Congestion Control for High Bandwidth-Delay Product Networks"
//! (SIGCOMM 2002); draft-falk-xcp-spec-03 for rates instead of windows; Zhou, Yeung and Li, "P-XCP: a
//! Transport Layer Protocol for Satellite IP Networks" (GLOBECOM 2004), as described by Lopez Pacheco and
//! Lochin (IWSSC 2009).
//!
//! The agent is in front of the link's queue, and all of the link's traffic passes it. It keeps no state of
//! flows: the header of each packet carries what the router needs to know of its sender. It estimates the
//! queue with a model of its own, which drains at the capacity, so that it works in front of a queue that it
//! cannot see.

pub mod control;
mod queue;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bentpipe_units::{Rate, Time};
use serde::Serialize;

use super::{Agent, AgentReport, CongestionHeader, Outbox, Packet};
use control::{Controller, Gains, Shares, Sums};
use queue::QueueEstimate;

/// The control interval, and the round-trip time, before the first packet with a round-trip time.
pub const FIRST_INTERVAL: Duration = Duration::from_millis(200);
/// The shortest control interval: a header that claims a round trip of a microsecond must not cost a million
/// decisions per second.
pub const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
/// The default limit of round-trip times in headers, far above that of any satellite around the Earth.
pub const DEFAULT_MAX_RTT: Duration = Duration::from_secs(10);

/// The protocol of the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// Every sender gets positive feedback.
    #[default]
    Xcp,
    /// Only senders that ask for more get positive feedback. A sender that does not is limited elsewhere, by
    /// its application or its receiver, and would leave it unused.
    PXcp,
}

/// Parameters of the router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct XcpConfig {
    /// The rate to allocate: IP bits per second that the link carries, less than its rate if the link
    /// encapsulates.
    pub capacity: Rate,
    /// XCP or P-XCP.
    pub variant: Variant,
    /// α, β and γ.
    pub gains: Gains,
    /// The limit of round-trip times in headers. It bounds the control interval, and the influence of one
    /// sender on the mean. If actual round trips are longer, the control is too fast for them and oscillates.
    pub max_rtt: Duration,
    /// The part of its spare capacity that an idle link offers to the first sender, 0 to 1
    /// ([`Controller`]). 0 is the published router.
    pub idle_offer: f64,
}

impl XcpConfig {
    /// An XCP router of this capacity with the gains of the paper. The capacity has no default: without it no
    /// feedback is right.
    pub fn with_capacity(capacity: Rate) -> Self {
        Self {
            capacity,
            variant: Variant::Xcp,
            gains: Gains::default(),
            max_rtt: DEFAULT_MAX_RTT,
            idle_offer: 0.0,
        }
    }
}

/// The counters and estimates of the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct XcpCounters {
    /// Packets with a congestion header.
    pub headers: u64,
    /// Headers whose feedback it has lowered.
    pub lowered: u64,
    /// Control intervals that have ended.
    pub intervals: u64,
    /// Senders that asked for more in the last interval, N = Σ X / Te, thousandths.
    pub asking_milli: u64,
    /// Senders that did not, because they are limited elsewhere, thousandths. An XCP router treats them like
    /// the others.
    pub limited_milli: u64,
    /// The mean round-trip time of the last interval, microseconds.
    pub mean_rtt_us: u64,
}

/// The router.
#[derive(Debug)]
pub struct Xcp {
    config: XcpConfig,
    counters: XcpCounters,
    queue: QueueEstimate,
    sums: Sums,
    /// Σ X of the senders that did not ask for more, seconds.
    limited_spacing: f64,
    controller: Controller,
    shares: Shares,
    /// When the present interval began; `None` without traffic.
    began_at: Option<Time>,
    /// No packet with a header has come since what is spare was offered.
    offering: bool,
}

impl Xcp {
    /// A router without traffic so far.
    pub fn new(config: &XcpConfig) -> Self {
        let config = XcpConfig { max_rtt: config.max_rtt.max(SHORTEST_INTERVAL), ..*config };
        let XcpConfig { capacity, gains, max_rtt, idle_offer, .. } = config;
        let mut controller =
            Controller::new(gains, capacity, FIRST_INTERVAL, [SHORTEST_INTERVAL, max_rtt], idle_offer);
        Self {
            config,
            counters: XcpCounters::default(),
            queue: QueueEstimate::new(config.capacity),
            sums: Sums::default(),
            limited_spacing: 0.0,
            shares: controller.decide(FIRST_INTERVAL, &Sums::default(), 0.0),
            offering: controller.offers(),
            controller,
            began_at: None,
        }
    }

    /// When the present interval ends.
    fn ends_at(&self) -> Time {
        self.began_at.map_or(Time::MAX, |began| began + self.controller.mean_rtt())
    }

    /// Ends the interval if its time has come. After an interval without traffic none follows: the next
    /// packet begins anew, and gets no feedback from before the silence but what an idle link offers.
    fn end_interval(&mut self, now: Time) {
        let Some(began) = self.began_at.filter(|_| self.ends_at() <= now) else { return };
        self.queue.advance(now, self.controller.mean_rtt());
        self.sums.queue = self.queue.standing();
        let elapsed = now - began;
        let silent = self.sums.bytes == 0.0;
        self.offering = self.controller.offers() && self.sums.spacing == 0.0;
        let shares = self.controller.decide(elapsed, &self.sums, self.shares.positive);
        self.shares = if silent && !self.offering { Shares::default() } else { shares };
        self.note(elapsed);
        (self.sums, self.limited_spacing) = (Sums::default(), 0.0);
        self.began_at = (!silent).then_some(now);
    }

    /// The first packet with a header after an offer begins an interval of its own round trip, so that what
    /// is taken of the offer is known when it ends.
    fn take_offer(&mut self, now: Time, header: &CongestionHeader) {
        if !std::mem::take(&mut self.offering) {
            return;
        }
        let (spacing, rtt) = (header.spacing.as_secs_f64(), header.rtt.as_secs_f64());
        self.controller.learn_rtt(&Sums { spacing, rtt_spacing: rtt * spacing, ..Sums::default() });
        (self.sums, self.limited_spacing) = (Sums::default(), 0.0);
        self.began_at = Some(now);
    }

    /// IWSSC 2009, equation 1: N = Σ 1 / (Te · cwnd / RTT), and RTT / cwnd is X.
    fn note(&mut self, elapsed: Duration) {
        let seconds = elapsed.max(SHORTEST_INTERVAL).as_secs_f64();
        let milli = |spacing: f64| (spacing / seconds * 1000.0) as u64;
        self.counters.intervals += 1;
        self.counters.asking_milli = milli(self.sums.spacing - self.limited_spacing);
        self.counters.limited_milli = milli(self.limited_spacing);
        self.counters.mean_rtt_us = self.controller.mean_rtt().as_micros() as u64;
    }

    /// Adds the packet to the sums, and returns the feedback for it.
    fn feedback(&mut self, bytes: f64, header: CongestionHeader) -> i32 {
        let rtt = header.rtt.min(self.config.max_rtt).as_secs_f64();
        // A sender sends at least one packet in each round trip.
        let spacing = header.spacing.min(header.rtt).min(self.config.max_rtt);
        let asks = header.feedback > 0;
        let may_grow = asks || self.config.variant == Variant::Xcp;
        self.sums.spacing += spacing.as_secs_f64();
        self.sums.rtt_spacing += rtt * spacing.as_secs_f64();
        self.sums.asking_spacing += if may_grow { spacing.as_secs_f64() } else { 0.0 };
        self.limited_spacing += if asks { 0.0 } else { spacing.as_secs_f64() };
        let given = self.shares.give(spacing, bytes, f64::from(header.feedback), may_grow);
        // Rounded towards zero, so that no more is given or taken than was decided; never above the demand.
        (given as i32).min(header.feedback)
    }
}

impl<P: Packet> Agent<P> for Xcp {
    fn outbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>) {
        self.end_interval(now);
        let (length, header) = (packet.ip_length() as f64, packet.congestion_header());
        header.iter().for_each(|header| self.take_offer(now, header));
        self.began_at.get_or_insert(now);
        self.queue.arrive(now, self.controller.mean_rtt(), length);
        self.sums.bytes += length;
        let Some(header) = header else {
            return out.to_link.push_back(packet);
        };
        let feedback = self.feedback(length, header);
        self.counters.headers += 1;
        self.counters.lowered += u64::from(feedback < header.feedback);
        out.to_link.push_back(if feedback < header.feedback {
            packet.with_feedback(feedback)
        } else {
            packet
        });
    }

    fn inbound(&mut self, _now: Time, packet: P, out: &mut Outbox<P>) {
        out.to_host.push_back(packet);
    }

    fn wake_at(&self) -> Time {
        self.ends_at()
    }

    fn on_timer(&mut self, now: Time, _out: &mut Outbox<P>) {
        self.end_interval(now);
    }

    fn held_bytes(&self) -> u64 {
        0
    }

    fn report(&self) -> AgentReport {
        AgentReport::Xcp(self.counters)
    }
}

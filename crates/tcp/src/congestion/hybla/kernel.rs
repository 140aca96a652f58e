//! bentpipe's Hybla in virtual time: the code that the kernel runs, behind a socket like the kernel's.
//!
//! The kernel counts segments, this crate bytes; a socket there has counters that the sender here does not
//! keep. This file translates. A loss, the end of a repair and a timeout change the socket as they do in
//! Linux.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::rate::DeliverySamples;
use super::{BURST_SEGMENTS, Components, RTT0};
use crate::congestion::c_core::*;
use crate::congestion::slow_start::MAX_WINDOW;
use crate::congestion::{Acked, CongestionControl, Flight, NO_SSTHRESH, Parameters, micros, micros_of};

/// Segments: `HYBLA_WINDOW_MAX`.
const MAX_SEGMENTS: u64 = 1 << 30;

/// Hybla as bentpipe's eBPF program `bp_hybla` runs it, complete or in parts.
#[derive(Debug)]
pub struct Hybla {
    mss: u64,
    components: Components,
    parameters: HyblaParameters,
    state: HyblaState,
    socket: HyblaSocket,
    /// Bytes that have arrived.
    delivered: u64,
    samples: DeliverySamples,
    /// The flight after the acknowledgement that is being processed.
    flight: Option<Flight>,
    /// Something has been acknowledged or lost.
    started: bool,
}

impl Hybla {
    /// A controller for a new connection, with those of the `components` that are on.
    pub fn new(parameters: Parameters, components: Components) -> Self {
        let mss = parameters.mss.max(1);
        let standard_window = (parameters.initial_window / mss).clamp(1, MAX_SEGMENTS) as u32;
        let mut hybla = Self {
            mss,
            components,
            parameters: HyblaParameters {
                rtt0_us: micros(RTT0),
                standard_window,
                burst: 0,
                parts: parts(components),
            },
            state: HyblaState::default(),
            socket: HyblaSocket {
                max_pacing_rate: u64::MAX,
                cwnd: standard_window,
                cwnd_clamp: u32::MAX,
                ssthresh: INFINITE_SSTHRESH,
                mss: mss.min(u32::MAX.into()) as u32,
                ..HyblaSocket::default()
            },
            delivered: 0,
            samples: DeliverySamples::default(),
            flight: None,
            started: false,
        };
        hybla.begin();
        hybla
    }

    /// The normalised round-trip time ρ = max(RTT / [`RTT0`], 1), from the minimum RTT; 1 where it is
    /// switched off.
    pub fn rho(&self) -> f64 {
        f64::from(self.state.rho) / 65536.0
    }

    fn begin(&mut self) {
        self.step(CORE_INIT, 0);
        // The first segments leave back to back, as many as the window allows.
        self.parameters.burst = BURST_SEGMENTS.min(self.socket.cwnd.into()) as u32;
    }

    fn step(&mut self, event: u32, argument: u32) {
        (self.socket.event, self.socket.argument) = (event, argument);
        self.state.step(&mut self.socket, &self.parameters);
    }

    fn is_reducing(&self) -> bool {
        matches!(u32::from(self.state.state), TCP_CA_CWR | TCP_CA_RECOVERY)
    }

    fn bytes(&self, segments: u32) -> u64 {
        (u64::from(segments) * self.mss).clamp(self.mss, MAX_WINDOW as u64)
    }

    /// An acknowledgement has been processed: it reports that `delivered` bytes have arrived in all, and
    /// leaves `in_flight`.
    fn process_ack(&mut self, now: Time, delivered: u64, in_flight: u64) {
        self.delivered = self.delivered.max(delivered);
        let socket = &mut self.socket;
        socket.now_us = micros_of(now);
        socket.delivered = (self.delivered / self.mss) as u32;
        socket.in_flight = in_flight.div_ceil(self.mss).min(MAX_SEGMENTS) as u32;
        socket.data_segs_out = socket.data_segs_out.max(socket.delivered.saturating_add(socket.in_flight));
        (socket.rate_delivered, socket.rate_interval_us) = self.samples.last();
        self.step(CORE_ACK, 0);
    }
}

impl CongestionControl for Hybla {
    /// In recovery, the window at the end of it: what may be in flight meanwhile,
    /// [`flight_limit`](Self::flight_limit) says.
    fn cwnd(&self) -> u64 {
        self.bytes(if self.is_reducing() { self.state.target } else { self.socket.cwnd })
    }

    fn flight_limit(&self) -> u64 {
        self.bytes(self.socket.cwnd)
    }

    fn ssthresh(&self) -> u64 {
        match self.socket.ssthresh {
            INFINITE_SSTHRESH => NO_SSTHRESH,
            segments => u64::from(segments) * self.mss,
        }
    }

    fn pacing_rate(&self, _srtt: Duration) -> Option<Rate> {
        let known = self.components.pacing && self.socket.pacing_rate > 0;
        known.then(|| Rate::from_bps(self.socket.pacing_rate.saturating_mul(8)))?
    }

    fn on_established(&mut self, _now: Time, rtt: Option<Duration>) {
        let Some(rtt) = rtt.filter(|_| !self.started) else { return };
        (self.socket.min_rtt_us, self.socket.srtt_us) = (micros(rtt), micros(rtt));
        self.socket.cwnd = self.parameters.standard_window;
        self.begin();
    }

    fn on_sent(&mut self, now: Time, after_pause: bool) {
        self.socket.data_segs_out = self.socket.data_segs_out.saturating_add(1);
        self.socket.prr_out = self.socket.prr_out.saturating_add(1);
        if after_pause {
            self.samples.restart(now, self.socket.delivered);
        }
    }

    fn on_flight(&mut self, flight: &Flight) {
        self.flight = Some(*flight);
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.started = true;
        let flight = self.flight.take().unwrap_or(Flight {
            in_flight: ack.in_flight.saturating_sub(ack.bytes),
            delivered: self.delivered.saturating_add(ack.bytes),
            lost: 0,
        });
        let window = u64::from(self.socket.cwnd) * self.mss;
        let socket = &mut self.socket;
        socket.lost = (flight.lost / self.mss) as u32;
        (socket.srtt_us, socket.min_rtt_us) = (micros(ack.srtt), micros(ack.min_rtt));
        socket.app_limited = (!ack.cwnd_limited).into();
        socket.cwnd_limited = (ack.in_flight.saturating_add(self.mss) > window).into();
        self.samples.on_ack(ack, (self.delivered.max(flight.delivered) / self.mss) as u32);
        if let Some(rtt) = ack.rtt {
            self.step(CORE_RTT, micros(rtt));
        }
        self.process_ack(ack.now, flight.delivered, flight.in_flight);
    }

    fn on_duplicate(&mut self, now: Time) {
        if let Some(Flight { in_flight, delivered, lost }) = self.flight.take() {
            self.socket.lost = (lost / self.mss) as u32;
            self.process_ack(now, delivered, in_flight);
        }
    }

    fn on_loss(&mut self, _now: Time, _in_flight: u64) {
        self.started = true;
        if self.is_reducing() {
            return;
        }
        self.socket.prior_cwnd = self.socket.cwnd;
        self.socket.prr_out = 0;
        self.step(CORE_SSTHRESH, 0);
        self.step(CORE_SET_STATE, TCP_CA_RECOVERY);
    }

    fn on_recovery_end(&mut self, _now: Time) {
        self.step(CORE_SET_STATE, TCP_CA_OPEN);
    }

    /// One segment, as the kernel leaves of a window. A repair under way has reduced the threshold already.
    fn on_timeout(&mut self, _now: Time, _in_flight: u64, first: bool) {
        self.started = true;
        if first && !self.is_reducing() {
            self.socket.prior_cwnd = self.socket.cwnd;
            self.step(CORE_SSTHRESH, 0);
        }
        self.step(CORE_SET_STATE, TCP_CA_LOSS);
        self.socket.cwnd = 1;
    }

    fn on_spurious(&mut self) {
        self.step(CORE_UNDO, 0);
        self.step(CORE_SET_STATE, TCP_CA_OPEN);
    }

    fn set_window(&mut self, cwnd: u64, ssthresh: u64) {
        let segments = |bytes: u64| (bytes / self.mss).clamp(1, MAX_SEGMENTS) as u32;
        (self.socket.cwnd, self.socket.ssthresh) = match ssthresh {
            NO_SSTHRESH => (segments(cwnd), INFINITE_SSTHRESH),
            bytes => (segments(cwnd), segments(bytes)),
        };
    }

    /// The kernel leaves the window to a congestion control that sets the pace
    /// (`tcp_slow_start_after_idle_check`), and Hybla paces after a pause.
    fn on_idle(&mut self, _now: Time) {}
}

/// The parts of the algorithm that are switched on.
fn parts(components: Components) -> u32 {
    let Components { rho, pacing, hoe, recovery_growth, queue } = components;
    let parts = [
        (rho, HYBLA_RHO),
        (pacing, HYBLA_PACING),
        (hoe, HYBLA_HOE),
        (recovery_growth, HYBLA_RECOVERY_GROWTH),
        (queue, HYBLA_QUEUE),
    ];
    parts.into_iter().filter(|(is_on, _)| *is_on).map(|(_, part)| part).sum()
}

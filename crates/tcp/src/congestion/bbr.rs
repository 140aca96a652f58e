//! BBR, version 1 as Linux has it (draft-cardwell-iccrg-bbr-congestion-control-00; Cardwell and others, "BBR:
//! congestion-based congestion control", ACM Queue 14, 2016).
//!
//! Left out is the search for policers ("long-term bandwidth"), which begins at 20% of losses. The phase in
//! which the gain cycle begins follows from what was delivered instead of a random number.

mod filters;

use std::time::Duration;

use bentpipe_units::{Rate, Time};

pub(super) use self::filters::Aggregation;
use self::filters::MaxFilter;
use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, Delivery, NO_SSTHRESH, Parameters, Phase};

/// 2/ln 2: with this gain the rate doubles in each round trip.
const HIGH_GAIN: f64 = 2.885;
/// What empties the queue of STARTUP.
const DRAIN_GAIN: f64 = 1.0 / HIGH_GAIN;
/// The window in round trips, so that delayed and aggregated acknowledgements do not stop the sender.
const CWND_GAIN: f64 = 2.0;
/// PROBE_BW's cycle: it probes, drains what the probe has queued, and cruises.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// The smallest window, segments.
const MIN_WINDOW: u64 = 4;
/// How long a shortest round trip is believed, and how long PROBE_RTT keeps the smallest window.
const MIN_RTT_AGE: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// The pipe is full when the bandwidth has not grown by a quarter in three rounds.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// The pace stays below the bandwidth, lest a queue stand.
const MARGIN: f64 = 0.99;
/// The window has room for three segments of the host's segmentation offload, of two packets each at these
/// rates.
const QUANTA: u64 = 6;
/// The round trip that is assumed for the first rate.
const INITIAL_RTT: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

/// BBR at work on one connection.
#[derive(Debug)]
pub struct Bbr {
    mss: u64,
    initial_window: u64,
    mode: Mode,
    cwnd: u64,
    pacing_rate: f64,
    has_seen_rtt: bool,
    /// Bytes per second over ten rounds.
    bandwidth: MaxFilter,
    min_rtt: Option<Duration>,
    min_rtt_at: Time,
    rounds: u64,
    /// The round ends when what is sent from here on is delivered.
    next_round_delivered: u64,
    round_start: bool,
    full_bandwidth: f64,
    full_rounds: u32,
    is_full: bool,
    cycle: usize,
    cycle_at: Time,
    /// When PROBE_RTT may end, and whether a round of it has passed.
    probe_rtt_done_at: Option<Time>,
    probe_rtt_round_done: bool,
    /// The window before a repair or PROBE_RTT.
    prior_cwnd: u64,
    phase: Phase,
    conserves_packets: bool,
    /// The sender had paused, for lack of data.
    idle_restart: bool,
    aggregation: Aggregation,
}

impl Bbr {
    /// A controller for a new connection.
    pub fn new(parameters: Parameters) -> Self {
        let initial_window = parameters.initial_window.max(parameters.mss).min(MAX_WINDOW as u64);
        let mut bbr = Self {
            mss: parameters.mss,
            initial_window,
            mode: Mode::Startup,
            cwnd: initial_window,
            pacing_rate: 0.0,
            has_seen_rtt: false,
            bandwidth: MaxFilter::default(),
            min_rtt: None,
            min_rtt_at: Time::ZERO,
            rounds: 0,
            next_round_delivered: 0,
            round_start: false,
            full_bandwidth: 0.0,
            full_rounds: 0,
            is_full: false,
            cycle: 0,
            cycle_at: Time::ZERO,
            probe_rtt_done_at: None,
            probe_rtt_round_done: false,
            prior_cwnd: 0,
            phase: Phase::Open,
            conserves_packets: false,
            idle_restart: false,
            aggregation: Aggregation::default(),
        };
        bbr.begin_pacing(INITIAL_RTT);
        bbr
    }

    fn begin_pacing(&mut self, rtt: Duration) {
        self.pacing_rate =
            HIGH_GAIN * MARGIN * self.initial_window as f64 / rtt.max(INITIAL_RTT).as_secs_f64();
    }

    /// The pace, bytes of payload per second.
    fn pace(&self, gain: f64) -> f64 {
        gain * MARGIN * self.bandwidth.max()
    }

    fn gains(&self) -> (f64, f64) {
        match self.mode {
            Mode::Startup => (HIGH_GAIN, HIGH_GAIN),
            Mode::Drain => (DRAIN_GAIN, HIGH_GAIN),
            Mode::ProbeBandwidth => (CYCLE[self.cycle], CWND_GAIN),
            Mode::ProbeRtt => (1.0, 1.0),
        }
    }

    /// So many bandwidth–delay products, bytes; the initial window before there is one.
    fn bdp(&self, gain: f64) -> u64 {
        let Some(min_rtt) = self.min_rtt else { return self.initial_window };
        let bytes = (gain * self.bandwidth.max() * min_rtt.as_secs_f64()).min(MAX_WINDOW);
        (bytes / self.mss as f64).ceil() as u64 * self.mss
    }

    /// With what the host and the probing need beside it.
    fn with_quanta(&self, window: u64) -> u64 {
        let segments = (window.min(MAX_WINDOW as u64) / self.mss + QUANTA).next_multiple_of(2);
        let probing = if self.mode == Mode::ProbeBandwidth && self.cycle == 0 { 2 } else { 0 };
        (segments + probing) * self.mss
    }

    fn inflight(&self, gain: f64) -> u64 {
        self.with_quanta(self.bdp(gain))
    }

    fn update_bandwidth(&mut self, delivery: &Delivery) {
        self.round_start = false;
        let Some(sample) = delivery.sample.filter(|sample| !sample.interval.is_zero()) else { return };
        if sample.prior_delivered >= self.next_round_delivered {
            self.next_round_delivered = delivery.delivered;
            self.rounds += 1;
            self.round_start = true;
            self.conserves_packets = false;
        }
        let bandwidth = sample.bytes as f64 / sample.interval.as_secs_f64();
        if !sample.is_app_limited || bandwidth >= self.bandwidth.max() {
            self.bandwidth.update(self.rounds, bandwidth);
        }
    }

    fn update_cycle(&mut self, delivery: &Delivery) {
        if self.mode == Mode::ProbeBandwidth && self.is_phase_over(delivery) {
            self.cycle = (self.cycle + 1) % CYCLE.len();
            self.cycle_at = delivery.now;
        }
    }

    fn is_phase_over(&self, delivery: &Delivery) -> bool {
        let is_full_length = delivery.now - self.cycle_at > self.min_rtt.unwrap_or_default();
        match CYCLE[self.cycle] {
            gain if gain > 1.0 => {
                is_full_length && (delivery.lost > 0 || delivery.prior_in_flight >= self.inflight(gain))
            }
            gain if gain < 1.0 => is_full_length || delivery.prior_in_flight <= self.inflight(1.0),
            _ => is_full_length,
        }
    }

    fn check_full(&mut self, delivery: &Delivery) {
        let is_app_limited = delivery.sample.is_none_or(|sample| sample.is_app_limited);
        if self.is_full || !self.round_start || is_app_limited {
            return;
        }
        if self.bandwidth.max() >= FULL_GROWTH * self.full_bandwidth {
            (self.full_bandwidth, self.full_rounds) = (self.bandwidth.max(), 0);
            return;
        }
        self.full_rounds += 1;
        self.is_full = self.full_rounds >= FULL_ROUNDS;
    }

    fn check_drain(&mut self, delivery: &Delivery) {
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && delivery.in_flight <= self.inflight(1.0) {
            self.probe_bandwidth(delivery.now, delivery.delivered);
        }
    }

    /// Any phase but that which drains.
    fn probe_bandwidth(&mut self, now: Time, delivered: u64) {
        self.mode = Mode::ProbeBandwidth;
        let phase = (delivered / self.mss.max(1)) as usize % (CYCLE.len() - 1);
        self.cycle = if phase == 0 { 0 } else { phase + 1 };
        self.cycle_at = now;
    }

    fn update_min_rtt(&mut self, delivery: &Delivery) {
        let is_expired = delivery.now > self.min_rtt_at + MIN_RTT_AGE;
        if let Some(rtt) = delivery.rtt
            && (is_expired || self.min_rtt.is_none_or(|min_rtt| rtt < min_rtt))
        {
            (self.min_rtt, self.min_rtt_at) = (Some(rtt), delivery.now);
        }
        if is_expired && !self.idle_restart && self.mode != Mode::ProbeRtt && self.min_rtt.is_some() {
            self.save_window();
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_done_at = None;
        }
        if self.mode == Mode::ProbeRtt {
            self.probe_rtt(delivery);
        }
        if delivery.bytes > 0 {
            self.idle_restart = false;
        }
    }

    fn probe_rtt(&mut self, delivery: &Delivery) {
        let Some(done_at) = self.probe_rtt_done_at else {
            if delivery.in_flight <= MIN_WINDOW * self.mss {
                self.probe_rtt_done_at = Some(delivery.now + PROBE_RTT_TIME);
                self.probe_rtt_round_done = false;
                self.next_round_delivered = delivery.delivered;
            }
            return;
        };
        self.probe_rtt_round_done |= self.round_start;
        if self.probe_rtt_round_done && delivery.now > done_at {
            self.min_rtt_at = delivery.now;
            self.cwnd = self.cwnd.max(self.prior_cwnd);
            if self.is_full {
                self.probe_bandwidth(delivery.now, delivery.delivered);
            } else {
                self.mode = Mode::Startup;
            }
        }
    }

    fn update_pacing(&mut self, srtt: Duration) {
        if !self.has_seen_rtt && !srtt.is_zero() {
            self.has_seen_rtt = true;
            self.begin_pacing(srtt);
        }
        let rate = self.pace(self.gains().0);
        if self.is_full || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn update_window(&mut self, delivery: &Delivery) {
        if delivery.bytes > 0 && !self.follow_repair(delivery) {
            let extra = if self.is_full { self.aggregation.extra(self.bandwidth.max()) } else { 0 };
            let target = self.with_quanta(self.bdp(self.gains().1).saturating_add(extra));
            if self.is_full {
                self.cwnd = self.cwnd.saturating_add(delivery.bytes).min(target);
            } else if self.cwnd < target || delivery.delivered < self.initial_window {
                self.cwnd = self.cwnd.saturating_add(delivery.bytes);
            }
            self.cwnd = self.cwnd.max(MIN_WINDOW * self.mss);
        }
        if self.mode == Mode::ProbeRtt {
            self.cwnd = self.cwnd.min(MIN_WINDOW * self.mss);
        }
        self.cwnd = self.cwnd.min(MAX_WINDOW as u64);
    }

    /// In a repair: what arrives is replaced in its first round, and afterwards the window comes back. True
    /// where that is all.
    fn follow_repair(&mut self, delivery: &Delivery) -> bool {
        let conserved = delivery.in_flight.saturating_add(delivery.bytes).max(self.mss);
        if delivery.lost > 0 {
            self.cwnd = self.cwnd.saturating_sub(delivery.lost).max(self.mss);
        }
        let before = std::mem::replace(&mut self.phase, delivery.phase);
        if delivery.phase == Phase::Recovery && before != Phase::Recovery {
            self.conserves_packets = true;
            self.next_round_delivered = delivery.delivered;
            self.cwnd = conserved;
        } else if before != Phase::Open && delivery.phase == Phase::Open {
            self.cwnd = self.cwnd.max(self.prior_cwnd);
            self.conserves_packets = false;
        }
        if self.conserves_packets {
            self.cwnd = self.cwnd.max(conserved);
        }
        self.conserves_packets
    }

    fn save_window(&mut self) {
        self.prior_cwnd = match self.phase == Phase::Open && self.mode != Mode::ProbeRtt {
            true => self.cwnd,
            false => self.prior_cwnd.max(self.cwnd),
        };
    }
}

impl CongestionControl for Bbr {
    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh(&self) -> u64 {
        NO_SSTHRESH
    }

    fn pacing_rate(&self, _srtt: Duration) -> Option<Rate> {
        Rate::from_bps((8.0 * self.pacing_rate).max(8.0) as u64)
    }

    fn on_established(&mut self, now: Time, rtt: Option<Duration>) {
        self.min_rtt_at = now;
        self.min_rtt = rtt;
        if let Some(rtt) = rtt {
            self.has_seen_rtt = true;
            self.begin_pacing(rtt);
        }
    }

    fn on_delivery(&mut self, delivery: &Delivery) {
        self.update_bandwidth(delivery);
        self.aggregation.update(delivery, self.round_start, self.bandwidth.max(), self.cwnd);
        self.update_cycle(delivery);
        self.check_full(delivery);
        self.check_drain(delivery);
        self.update_min_rtt(delivery);
        self.update_pacing(delivery.srtt);
        self.update_window(delivery);
    }

    fn holds_back(&self) -> bool {
        self.mode == Mode::ProbeRtt
    }

    fn on_ack(&mut self, _ack: &Acked) {}

    fn on_loss(&mut self, _now: Time, _in_flight: u64) {
        self.save_window();
    }

    fn on_timeout(&mut self, _now: Time, _in_flight: u64, _first: bool) {
        self.save_window();
        self.phase = Phase::Timeout;
        (self.full_bandwidth, self.round_start) = (0.0, true);
        self.cwnd = self.mss;
    }

    fn set_window(&mut self, cwnd: u64, _ssthresh: u64) {
        self.cwnd = cwnd.clamp(self.mss, MAX_WINDOW as u64);
    }

    /// The pace goes on at the bandwidth, without a probe.
    fn on_restart(&mut self, now: Time) {
        self.idle_restart = true;
        self.aggregation.restart(now);
        if self.mode == Mode::ProbeBandwidth {
            self.pacing_rate = self.pace(1.0);
        }
    }

    fn on_idle(&mut self, _now: Time) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::test_path::{LINK, MSS, Path, RTT};

    #[test]
    fn startup_finds_the_bandwidth_and_drain_empties_the_queue() {
        let mut path = Path::new(Bbr::new);
        path.run_to(3000);
        assert_eq!(path.control.mode, Mode::ProbeBandwidth);
        assert!((path.control.bandwidth.max() / LINK - 1.0).abs() < 0.02, "{}", path.control.bandwidth.max());
        path.longest_rtt = Duration::ZERO;
        path.run_to(6000);
        assert!(path.longest_rtt < RTT * 15 / 10, "{:?}", path.longest_rtt);
        let products = path.control.cwnd() as f64 / (LINK * RTT.as_secs_f64());
        assert!((2.0..2.5).contains(&products), "{products} bandwidth-delay products");
    }

    #[test]
    fn each_ten_seconds_the_flight_shrinks_for_the_round_trip() {
        let mut path = Path::new(Bbr::new);
        let mut smallest = u64::MAX;
        path.run_to(9000);
        let before = path.delivered;
        while path.now < Time::ZERO + Duration::from_secs(13) {
            path.step();
            smallest = smallest.min(path.control.cwnd());
        }
        assert_eq!(smallest, MIN_WINDOW * MSS);
        assert_eq!(path.control.mode, Mode::ProbeBandwidth);
        assert_eq!(path.control.min_rtt, Some(RTT));
        let delivered = (path.delivered - before) as f64 / (4.0 * LINK);
        assert!((0.85..0.99).contains(&delivered), "{delivered}");
    }

    #[test]
    fn a_repair_keeps_the_flight_for_a_round_and_gives_the_window_back() {
        let mut path = Path::new(Bbr::new);
        path.run_to(3000);
        let before = path.control.cwnd();
        let mut delivery = Delivery {
            now: path.now,
            bytes: MSS,
            delivered: path.delivered,
            lost: 3 * MSS,
            in_flight: 20 * MSS,
            prior_in_flight: 24 * MSS,
            rtt: Some(RTT),
            srtt: RTT,
            phase: Phase::Recovery,
            sample: None,
        };
        path.control.on_loss(path.now, 24 * MSS);
        path.control.on_delivery(&delivery);
        assert_eq!(path.control.cwnd(), 21 * MSS);
        (delivery.phase, delivery.lost) = (Phase::Open, 0);
        path.control.on_delivery(&delivery);
        assert!(path.control.cwnd() >= before.min(path.control.inflight(CWND_GAIN)));
    }
}

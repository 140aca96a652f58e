//! BBR, version 3 (draft-ietf-ccwg-bbr-06, July 2026; the sections named here are its).
//!
//! It knows the path by two bandwidths and two volumes: what the last probes found (long term), and what
//! losses since then allow (short term). Differences from the draft: losses are judged with the
//! acknowledgement that reveals them and not segment by segment, their prefix (§5.5.10.2) is taken of what
//! one acknowledgement reveals, and the random waits follow from what was delivered.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::bbr::Aggregation;
use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, Delivery, NO_SSTHRESH, Parameters, Phase};
use crate::RateSample;

/// 4 ln 2: with this gain the rate doubles in each round trip (§5.3.1).
const STARTUP_GAIN: f64 = 2.77;
/// What empties the queue of Startup within a round trip (§5.3.2).
const DRAIN_GAIN: f64 = 0.5;
const DOWN_GAIN: f64 = 0.9;
const UP_GAIN: f64 = 1.25;
/// The window in bandwidth-delay products, while it probes upwards, and in ProbeRTT.
const CWND_GAIN: f64 = 2.0;
const UP_CWND_GAIN: f64 = 2.25;
const PROBE_RTT_GAIN: f64 = 0.5;
/// The pace stays below the bandwidth, lest a queue stand (BBR.PacingMarginPercent).
const MARGIN: f64 = 0.99;
/// The part of a flight that may be lost: beyond it the flight was too large (BBR.LossThresh).
const LOSS_THRESHOLD: f64 = 0.02;
/// What remains of a bound after a round trip with losses (BBR.Beta).
const BETA: f64 = 0.7;
/// The part of the long-term volume that is left to others (BBR.Headroom).
const HEADROOM: f64 = 0.15;
/// The smallest window, segments (BBR.MinPipeCwnd).
const MIN_WINDOW: u64 = 4;
/// The pipe is full when the bandwidth has not grown by a quarter in three rounds (§5.3.1.2).
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// Losses in a round trip of Startup that end it, where they are too many bytes as well (§5.3.1.3).
const STARTUP_LOSSES: u32 = 6;
/// Drain ends after so many rounds.
const DRAIN_ROUNDS: u64 = 3;
/// How long a shortest round trip is believed, how long one is waited for before ProbeRTT, and how long that
/// lasts at least.
const MIN_RTT_AGE: Duration = Duration::from_secs(10);
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// The wait between two probes for bandwidth is this and up to a second more; or as many rounds as a Reno
/// flow needs to regain half its window, up to 63 (§5.3.3.3).
const PROBE_WAIT: Duration = Duration::from_secs(2);
const MOST_RENO_ROUNDS: u64 = 63;
/// The largest shift of the slope of a probe.
const MOST_UP_ROUNDS: u32 = 30;
/// The round trip that is assumed for the first rate.
const INITIAL_RTT: Duration = Duration::from_millis(1);
/// The most that leaves at once, bytes, and how long the pace takes for it.
const LARGEST_QUANTUM: f64 = 65_536.0;
const QUANTUM_TIME: f64 = 1e-3;
/// No bound is known.
const UNBOUNDED: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    /// ProbeBW in its four phases.
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// What acknowledgements tell of a probe for bandwidth (BBR.ack_phase).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// BBR version 3 at work on one connection.
#[derive(Debug)]
pub struct Bbr3 {
    mss: u64,
    initial_window: u64,
    state: State,
    cwnd: u64,
    /// Bytes of payload per second.
    pacing_rate: f64,
    has_seen_rtt: bool,
    delivered: u64,

    rounds: u64,
    /// The round ends when what is sent from here on is delivered.
    next_round_delivered: u64,
    round_start: bool,

    /// Bytes per second: the largest of this cycle of probing and of the one before (BBR.max_bw_filter).
    max_bandwidth: [f64; 2],
    short_term: Bounds,
    /// BBR.inflight_longterm.
    inflight_long: u64,
    /// The model's bandwidth: the smaller of both terms.
    bandwidth: f64,
    min_rtt: Option<Duration>,
    min_rtt_at: Time,
    /// The shortest round trip since the last ProbeRTT.
    probe_rtt_min: Option<Duration>,
    probe_rtt_min_at: Time,
    aggregation: Aggregation,

    full: FullPipe,
    drain_round: u64,

    /// This round trip's losses, and the best deliveries.
    loss: LossRound,
    ack_phase: AckPhase,
    /// Samples are of what was sent while it probed.
    is_probe_sample: bool,
    cycle_at: Time,
    wait: Duration,
    rounds_since_probe: u64,
    up: Slope,
    /// The last probe has met too many losses; the last one ended before it could.
    was_too_high: bool,
    was_precautionary: bool,

    /// When ProbeRTT may end, and whether a round of it has passed.
    probe_rtt_done_at: Option<Time>,
    probe_rtt_round_done: bool,
    /// The window before a repair or ProbeRTT.
    prior_cwnd: u64,
    phase: Phase,
    /// The sender had paused, for lack of data.
    idle_restart: bool,
    undo: Undo,
}

/// The bounds that losses since the last probe have set (BBR.bw_shortterm, BBR.inflight_shortterm).
#[derive(Debug, Clone, Copy)]
struct Bounds {
    bandwidth: f64,
    inflight: u64,
}

impl Bounds {
    const NONE: Bounds = Bounds { bandwidth: f64::INFINITY, inflight: UNBOUNDED };
}

/// Whether the pipe is full (§5.3.1.2).
#[derive(Debug, Clone, Copy, Default)]
struct FullPipe {
    bandwidth: f64,
    rounds: u32,
    /// Since the last reset, and ever.
    now: bool,
    reached: bool,
}

impl FullPipe {
    fn reset(&mut self, bandwidth: f64) {
        *self = Self { bandwidth, reached: self.reached, ..Self::default() };
    }
}

/// A round trip as losses see it (BBR.loss_round_delivered and others).
#[derive(Debug, Clone, Copy, Default)]
struct LossRound {
    /// It ends when this is delivered; with this acknowledgement it did.
    delivered: u64,
    start: bool,
    /// Something was lost, in so many acknowledgements.
    is_lossy: bool,
    events: u32,
    /// It began in a repair.
    in_recovery: bool,
    bandwidth: f64,
    inflight: u64,
}

/// How fast a probe raises the long-term volume (§5.3.3.6): by a segment for each so many bytes that arrive.
#[derive(Debug, Clone, Copy)]
struct Slope {
    rounds: u32,
    acked: u64,
    acked_per_segment: u64,
}

impl Slope {
    const FLAT: Slope = Slope { rounds: 0, acked: 0, acked_per_segment: u64::MAX };
}

/// What a loss has changed, should it turn out to be none (§5.5.11).
#[derive(Debug, Clone, Copy)]
struct Undo {
    state: Option<State>,
    short_term: Bounds,
    inflight_long: u64,
}

impl Bbr3 {
    /// A controller for a new connection.
    pub fn new(parameters: Parameters) -> Self {
        let initial_window = parameters.initial_window.max(parameters.mss).min(MAX_WINDOW as u64);
        let mut bbr = Self {
            mss: parameters.mss,
            initial_window,
            state: State::Startup,
            cwnd: initial_window,
            pacing_rate: 0.0,
            has_seen_rtt: false,
            delivered: 0,
            rounds: 0,
            next_round_delivered: 0,
            round_start: false,
            max_bandwidth: [0.0; 2],
            short_term: Bounds::NONE,
            inflight_long: UNBOUNDED,
            bandwidth: 0.0,
            min_rtt: None,
            min_rtt_at: Time::ZERO,
            probe_rtt_min: None,
            probe_rtt_min_at: Time::ZERO,
            aggregation: Aggregation::default(),
            full: FullPipe::default(),
            drain_round: 0,
            loss: LossRound::default(),
            ack_phase: AckPhase::Init,
            is_probe_sample: false,
            cycle_at: Time::ZERO,
            wait: Duration::ZERO,
            rounds_since_probe: 0,
            up: Slope::FLAT,
            was_too_high: false,
            was_precautionary: false,
            probe_rtt_done_at: None,
            probe_rtt_round_done: false,
            prior_cwnd: 0,
            phase: Phase::Open,
            idle_restart: false,
            undo: Undo { state: None, short_term: Bounds::NONE, inflight_long: UNBOUNDED },
        };
        bbr.begin_pacing(INITIAL_RTT);
        bbr
    }

    fn begin_pacing(&mut self, rtt: Duration) {
        self.pacing_rate = STARTUP_GAIN * self.initial_window as f64 / rtt.max(INITIAL_RTT).as_secs_f64();
    }

    /// The gains of pace and window (§5.6.1).
    fn gains(&self) -> (f64, f64) {
        match self.state {
            State::Startup => (STARTUP_GAIN, CWND_GAIN),
            State::Drain => (DRAIN_GAIN, CWND_GAIN),
            State::Down => (DOWN_GAIN, CWND_GAIN),
            State::Cruise | State::Refill => (1.0, CWND_GAIN),
            State::Up => (UP_GAIN, UP_CWND_GAIN),
            State::ProbeRtt => (1.0, PROBE_RTT_GAIN),
        }
    }

    fn probes_bandwidth(&self) -> bool {
        matches!(self.state, State::Down | State::Cruise | State::Refill | State::Up)
    }

    /// BBR.max_bw, bytes per second.
    fn max_bandwidth(&self) -> f64 {
        self.max_bandwidth[0].max(self.max_bandwidth[1])
    }

    fn min_window(&self) -> u64 {
        MIN_WINDOW * self.mss
    }

    // Volumes (§5.6.4), bytes.

    /// So many bandwidth-delay products; the initial window before there is one.
    fn bdp(&self, bandwidth: f64, gain: f64) -> u64 {
        let Some(min_rtt) = self.min_rtt else { return self.initial_window };
        (gain * bandwidth * min_rtt.as_secs_f64()).min(MAX_WINDOW) as u64
    }

    /// With room for what the host sends at once, and for probing.
    fn quantized(&self, volume: u64) -> u64 {
        let quantum = (self.pacing_rate * QUANTUM_TIME).min(LARGEST_QUANTUM) as u64;
        let probing = if self.state == State::Up { 2 * self.mss } else { 0 };
        volume.max(3 * quantum.max(2 * self.mss)).max(self.min_window()).min(MAX_WINDOW as u64) + probing
    }

    fn inflight(&self, bandwidth: f64, gain: f64) -> u64 {
        self.quantized(self.bdp(bandwidth, gain))
    }

    fn target_inflight(&self) -> u64 {
        self.bdp(self.bandwidth, 1.0).min(self.cwnd)
    }

    fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_long == UNBOUNDED {
            return UNBOUNDED;
        }
        let headroom = self.mss.max((HEADROOM * self.inflight_long as f64) as u64);
        self.inflight_long.saturating_sub(headroom).max(self.min_window())
    }

    fn probe_rtt_window(&self) -> u64 {
        self.bdp(self.bandwidth, PROBE_RTT_GAIN).max(self.min_window())
    }

    // Losses (§5.5.10).

    /// An acknowledgement has shown `lost` bytes to be lost.
    fn note_loss(&mut self, delivery: &Delivery) {
        if !self.loss.is_lossy {
            self.loss.delivered = delivery.delivered;
            self.save_for_undo();
        }
        self.loss.is_lossy = true;
        self.loss.events = self.loss.events.saturating_add(1);
        if let Some(sample) = delivery.sample.filter(|sample| self.is_probe_sample && is_too_high(sample)) {
            let volume = inflight_at_loss(&sample, delivery.lost);
            self.inflight_was_too_high(delivery.now, volume, sample.is_app_limited);
        }
    }

    fn inflight_was_too_high(&mut self, now: Time, volume: u64, is_app_limited: bool) {
        self.was_too_high = true;
        self.is_probe_sample = false;
        if !is_app_limited {
            self.inflight_long = volume.max((BETA * self.target_inflight() as f64) as u64);
        }
        if self.state == State::Up {
            self.undo.state = Some(State::Up);
            self.go_down(now);
        }
    }

    fn save_for_undo(&mut self) {
        self.save_window();
        self.undo = Undo { state: None, short_term: self.short_term, inflight_long: self.inflight_long };
    }

    fn update_latest(&mut self, delivery: &Delivery) {
        self.loss.start = false;
        let Some(sample) = delivery.sample else { return };
        self.loss.bandwidth = self.loss.bandwidth.max(rate_of(&sample));
        self.loss.inflight = self.loss.inflight.max(sample.bytes);
        if sample.prior_delivered >= self.loss.delivered {
            self.loss.delivered = delivery.delivered;
            self.loss.start = true;
        }
    }

    /// Near the end of an acknowledgement: a new round trip begins.
    fn advance_latest(&mut self, delivery: &Delivery) {
        if self.loss.start
            && let Some(sample) = delivery.sample
        {
            (self.loss.bandwidth, self.loss.inflight) = (rate_of(&sample), sample.bytes);
            self.loss.in_recovery = delivery.phase == Phase::Recovery;
        }
    }

    fn update_congestion(&mut self, delivery: &Delivery) {
        self.update_bandwidth(delivery);
        if !self.loss.start {
            return;
        }
        let is_probing = matches!(self.state, State::Startup | State::Refill | State::Up);
        if self.loss.is_lossy && !is_probing {
            self.lower_short_term();
        }
        self.check_startup_losses(delivery);
        (self.loss.is_lossy, self.loss.events) = (false, 0);
    }

    fn lower_short_term(&mut self) {
        let Bounds { bandwidth, inflight } = self.short_term;
        let bandwidth = if bandwidth.is_infinite() { self.max_bandwidth() } else { bandwidth };
        let inflight = if inflight == UNBOUNDED { self.cwnd } else { inflight };
        self.short_term = Bounds {
            bandwidth: self.loss.bandwidth.max(BETA * bandwidth),
            inflight: self.loss.inflight.max((BETA * inflight as f64) as u64),
        };
    }

    /// A round trip of Startup within a repair has lost too much (§5.3.1.3).
    fn check_startup_losses(&mut self, delivery: &Delivery) {
        if !self.full.reached
            && self.loss.in_recovery
            && self.loss.events >= STARTUP_LOSSES
            && delivery.sample.is_some_and(|sample| is_too_high(&sample))
        {
            self.undo.state = Some(State::Startup);
            self.full.reached = true;
            self.inflight_long = self.bdp(self.bandwidth, 1.0).max(self.loss.inflight);
        }
    }

    // The path's bandwidth (§5.5.5) and round trip (§5.3.4.3).

    fn update_bandwidth(&mut self, delivery: &Delivery) {
        self.round_start = false;
        let Some(sample) = delivery.sample else { return };
        if sample.prior_delivered >= self.next_round_delivered {
            self.start_round();
            self.rounds += 1;
            self.rounds_since_probe += 1;
            self.round_start = true;
        }
        let bandwidth = rate_of(&sample);
        if bandwidth >= self.max_bandwidth() || !sample.is_app_limited {
            self.max_bandwidth[0] = self.max_bandwidth[0].max(bandwidth);
        }
    }

    fn start_round(&mut self) {
        self.next_round_delivered = self.delivered;
    }

    /// A cycle of probing is over: what the one before has found is forgotten.
    fn advance_bandwidth(&mut self) {
        if self.max_bandwidth[0] > 0.0 {
            self.max_bandwidth = [0.0, self.max_bandwidth[0]];
        }
    }

    fn check_full(&mut self, delivery: &Delivery) {
        let Some(sample) = delivery.sample.filter(|sample| !sample.is_app_limited) else { return };
        if self.full.now || !self.round_start {
            return;
        }
        if rate_of(&sample) >= FULL_GROWTH * self.full.bandwidth {
            self.full.reset(rate_of(&sample));
            return;
        }
        self.full.rounds += 1;
        self.full.now = self.full.rounds >= FULL_ROUNDS;
        self.full.reached |= self.full.now;
    }

    fn check_startup_and_drain(&mut self, delivery: &Delivery) {
        if self.state == State::Startup && self.full.reached {
            (self.state, self.drain_round) = (State::Drain, self.rounds);
        }
        if self.state == State::Drain
            && (delivery.in_flight <= self.inflight(self.bandwidth, 1.0)
                || self.rounds > self.drain_round + DRAIN_ROUNDS)
        {
            self.go_down(delivery.now);
        }
    }

    // ProbeBW (§5.3.3).

    fn go_down(&mut self, now: Time) {
        self.loss = LossRound { delivered: self.loss.delivered, ..LossRound::default() };
        self.up = Slope::FLAT;
        self.pick_wait();
        self.cycle_at = now;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.state = State::Down;
    }

    fn go_refill(&mut self) {
        self.short_term = Bounds::NONE;
        self.up = Slope::FLAT;
        self.was_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = State::Refill;
    }

    fn go_up(&mut self, delivery: &Delivery) {
        self.is_probe_sample = true;
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.full.reset(delivery.sample.map_or(0.0, |sample| rate_of(&sample)));
        self.state = State::Up;
        self.raise_slope();
    }

    /// Not the same for flows that began together.
    fn pick_wait(&mut self) {
        let mixed = self.delivered.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.rounds_since_probe = mixed >> 63;
        self.wait = PROBE_WAIT + Duration::from_nanos((mixed >> 32) % 1_000_000_000);
    }

    fn update_cycle(&mut self, delivery: &Delivery) {
        if !self.full.reached || self.adapt_long_term(delivery) || !self.probes_bandwidth() {
            return;
        }
        let state = self.state;
        match state {
            State::Down | State::Cruise if self.is_time_to_probe(delivery.now) => self.go_refill(),
            State::Down if self.is_time_to_cruise(delivery.in_flight) => self.state = State::Cruise,
            State::Refill if self.round_start => self.go_up(delivery),
            State::Up if self.is_time_to_go_down(delivery) => {
                self.was_too_high = false;
                self.go_down(delivery.now);
            }
            _ => {}
        }
    }

    fn is_time_to_probe(&self, now: Time) -> bool {
        let reno_rounds = (self.target_inflight() / self.mss).min(MOST_RENO_ROUNDS);
        now > self.cycle_at + self.wait || self.rounds_since_probe >= reno_rounds
    }

    fn is_time_to_cruise(&self, in_flight: u64) -> bool {
        in_flight <= self.inflight_with_headroom() && in_flight <= self.inflight(self.max_bandwidth(), 1.0)
    }

    fn is_time_to_go_down(&mut self, delivery: &Delivery) -> bool {
        // Of whole segments no more fit below the bound.
        if self.was_too_high && delivery.prior_in_flight.saturating_add(self.mss) > self.inflight_long {
            self.was_precautionary = true;
            return true;
        }
        if self.is_window_limited(delivery) && self.cwnd >= self.inflight_long {
            self.full.reset(delivery.sample.map_or(0.0, |sample| rate_of(&sample)));
            return false;
        }
        self.full.now
    }

    /// The window, not the pace, was what held the sender back.
    fn is_window_limited(&self, delivery: &Delivery) -> bool {
        delivery.prior_in_flight.saturating_add(self.mss) > self.cwnd
    }

    /// What a probe tells of the volume; true where that has decided what comes next.
    fn adapt_long_term(&mut self, delivery: &Delivery) -> bool {
        if self.ack_phase == AckPhase::ProbeStarting && self.round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.ack_phase == AckPhase::ProbeStopping && self.round_start {
            self.is_probe_sample = false;
            self.ack_phase = AckPhase::Init;
            let is_app_limited = delivery.sample.is_none_or(|sample| sample.is_app_limited);
            if self.probes_bandwidth() && !is_app_limited {
                self.advance_bandwidth();
            }
            if self.probes_bandwidth() && self.was_precautionary && !self.was_too_high {
                self.go_refill();
                return true;
            }
        }
        let Some(sample) = delivery.sample.filter(|sample| !is_too_high(sample)) else { return false };
        if self.inflight_long != UNBOUNDED {
            self.inflight_long = self.inflight_long.max(sample.in_flight);
            if self.state == State::Up {
                self.raise_long_term(delivery);
            }
        }
        false
    }

    fn raise_long_term(&mut self, delivery: &Delivery) {
        if !self.is_window_limited(delivery) || self.cwnd < self.inflight_long {
            return;
        }
        self.up.acked = self.up.acked.saturating_add(delivery.bytes);
        let segments = self.up.acked / self.up.acked_per_segment;
        self.up.acked %= self.up.acked_per_segment;
        self.inflight_long = self.inflight_long.saturating_add(segments.saturating_mul(self.mss));
        if self.round_start {
            self.raise_slope();
        }
    }

    /// Segments by which a round trip raises the volume: twice as many in each.
    fn raise_slope(&mut self) {
        let growth = 1u64 << self.up.rounds;
        self.up.rounds = (self.up.rounds + 1).min(MOST_UP_ROUNDS);
        self.up.acked_per_segment = (self.cwnd / growth).max(self.mss);
    }

    // ProbeRTT (§5.3.4).

    fn update_min_rtt(&mut self, delivery: &Delivery) {
        let is_expired = delivery.now > self.probe_rtt_min_at + PROBE_RTT_INTERVAL;
        if let Some(rtt) = delivery.rtt
            && (is_expired || self.probe_rtt_min.is_none_or(|least| rtt < least))
        {
            (self.probe_rtt_min, self.probe_rtt_min_at) = (Some(rtt), delivery.now);
        }
        let is_old = delivery.now > self.min_rtt_at + MIN_RTT_AGE;
        if let Some(least) = self.probe_rtt_min
            && (is_old || self.min_rtt.is_none_or(|min_rtt| least < min_rtt))
        {
            (self.min_rtt, self.min_rtt_at) = (Some(least), self.probe_rtt_min_at);
        }
        if is_expired && !self.idle_restart && self.state != State::ProbeRtt && self.min_rtt.is_some() {
            self.save_window();
            self.state = State::ProbeRtt;
            self.probe_rtt_done_at = None;
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            self.probe_rtt(delivery);
        }
        if delivery.bytes > 0 {
            self.idle_restart = false;
        }
    }

    fn probe_rtt(&mut self, delivery: &Delivery) {
        if self.probe_rtt_done_at.is_none() {
            if delivery.in_flight <= self.probe_rtt_window() {
                self.probe_rtt_done_at = Some(delivery.now + PROBE_RTT_TIME);
                self.probe_rtt_round_done = false;
                self.start_round();
            }
            return;
        }
        self.probe_rtt_round_done |= self.round_start;
        if self.probe_rtt_round_done {
            self.end_probe_rtt(delivery.now);
        }
    }

    fn end_probe_rtt(&mut self, now: Time) {
        if self.probe_rtt_done_at.is_none_or(|done_at| now <= done_at) {
            return;
        }
        self.probe_rtt_min_at = now;
        self.cwnd = self.cwnd.max(self.prior_cwnd);
        self.short_term = Bounds::NONE;
        if self.full.reached {
            self.go_down(now);
            self.state = State::Cruise;
        } else {
            self.state = State::Startup;
        }
    }

    // Pace and window (§5.6).

    fn pace(&self, gain: f64) -> f64 {
        gain * MARGIN * self.bandwidth
    }

    fn update_pacing(&mut self, srtt: Duration) {
        if !self.has_seen_rtt && !srtt.is_zero() {
            self.has_seen_rtt = true;
            self.begin_pacing(srtt);
        }
        let rate = self.pace(self.gains().0);
        if self.full.reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn update_window(&mut self, delivery: &Delivery) {
        let before = std::mem::replace(&mut self.phase, delivery.phase);
        if before != Phase::Open && delivery.phase == Phase::Open {
            self.cwnd = self.cwnd.max(self.prior_cwnd);
        }
        let extra = if self.full.reached { self.aggregation.extra(self.bandwidth) } else { 0 };
        let most = self.quantized(self.bdp(self.bandwidth, self.gains().1).saturating_add(extra));
        if self.full.reached {
            self.cwnd = self.cwnd.saturating_add(delivery.bytes).min(most);
        } else if self.cwnd < most || delivery.delivered < self.initial_window {
            self.cwnd = self.cwnd.saturating_add(delivery.bytes);
        }
        self.cwnd = self.cwnd.max(self.min_window());
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_window());
        }
        self.cwnd = self.cwnd.min(self.window_bound()).min(MAX_WINDOW as u64);
    }

    fn window_bound(&self) -> u64 {
        let long = match self.state {
            State::Down | State::Refill | State::Up => self.inflight_long,
            State::Cruise | State::ProbeRtt => self.inflight_with_headroom(),
            State::Startup | State::Drain => UNBOUNDED,
        };
        long.min(self.short_term.inflight).max(self.min_window())
    }

    fn save_window(&mut self) {
        self.prior_cwnd = match self.phase == Phase::Open && self.state != State::ProbeRtt {
            true => self.cwnd,
            false => self.prior_cwnd.max(self.cwnd),
        };
    }
}

/// RS.delivery_rate, bytes per second.
fn rate_of(sample: &RateSample) -> f64 {
    if sample.interval.is_zero() { 0.0 } else { sample.bytes as f64 / sample.interval.as_secs_f64() }
}

/// More was lost since the segment left than its flight may lose.
fn is_too_high(sample: &RateSample) -> bool {
    sample.lost as f64 > LOSS_THRESHOLD * sample.in_flight as f64
}

/// The volume at which the losses have crossed the threshold, of which `lost` bytes are the last.
fn inflight_at_loss(sample: &RateSample, lost: u64) -> u64 {
    let lost = lost.min(sample.lost);
    let before = sample.in_flight.saturating_sub(lost) as f64;
    let lost_before = (sample.lost - lost) as f64;
    let prefix = (LOSS_THRESHOLD * before - lost_before) / (1.0 - LOSS_THRESHOLD);
    (before + prefix).clamp(0.0, MAX_WINDOW) as u64
}

impl CongestionControl for Bbr3 {
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
        (self.min_rtt, self.min_rtt_at) = (rtt, now);
        (self.probe_rtt_min, self.probe_rtt_min_at) = (rtt, now);
        if let Some(rtt) = rtt {
            self.has_seen_rtt = true;
            self.begin_pacing(rtt);
        }
    }

    fn on_delivery(&mut self, delivery: &Delivery) {
        self.delivered = delivery.delivered;
        if delivery.lost > 0 {
            self.note_loss(delivery);
        }
        self.update_latest(delivery);
        self.update_congestion(delivery);
        self.aggregation.update(delivery, self.round_start, self.bandwidth, self.cwnd);
        self.check_full(delivery);
        self.check_startup_and_drain(delivery);
        self.update_cycle(delivery);
        self.update_min_rtt(delivery);
        self.advance_latest(delivery);
        self.bandwidth = self.max_bandwidth().min(self.short_term.bandwidth);
        self.update_pacing(delivery.srtt);
        if delivery.bytes > 0 {
            self.update_window(delivery);
        }
    }

    fn holds_back(&self) -> bool {
        self.state == State::ProbeRtt
    }

    fn on_ack(&mut self, _ack: &Acked) {}

    fn on_loss(&mut self, _now: Time, _in_flight: u64) {
        self.save_for_undo();
    }

    fn on_timeout(&mut self, _now: Time, _in_flight: u64, _first: bool) {
        self.save_for_undo();
        self.phase = Phase::Timeout;
        self.cwnd = self.mss;
    }

    fn on_spurious(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd).min(MAX_WINDOW as u64);
        self.loss.is_lossy = false;
        self.full.reset(0.0);
        let Undo { state, short_term, inflight_long } = self.undo;
        self.short_term = Bounds {
            bandwidth: self.short_term.bandwidth.max(short_term.bandwidth),
            inflight: self.short_term.inflight.max(short_term.inflight),
        };
        self.inflight_long = self.inflight_long.max(inflight_long);
        match state {
            Some(State::Startup) if self.state != State::Startup => {
                self.full.reached = false;
                if self.state != State::ProbeRtt {
                    self.state = State::Startup;
                }
            }
            Some(State::Up) if !matches!(self.state, State::Up | State::ProbeRtt) => self.go_refill(),
            _ => {}
        }
        self.undo.state = None;
    }

    fn set_window(&mut self, cwnd: u64, _ssthresh: u64) {
        self.cwnd = cwnd.clamp(self.mss, MAX_WINDOW as u64);
    }

    /// The pace goes on at the bandwidth, without a probe (§5.4.1).
    fn on_restart(&mut self, now: Time) {
        self.idle_restart = true;
        self.aggregation.restart(now);
        if self.probes_bandwidth() {
            self.pacing_rate = self.pace(1.0);
        } else if self.state == State::ProbeRtt {
            self.end_probe_rtt(now);
        }
    }

    fn on_idle(&mut self, _now: Time) {}
}

#[cfg(test)]
mod tests;

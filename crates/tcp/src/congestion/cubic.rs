//! CUBIC (RFC 9438).
//!
//! The RFC counts windows in segments; here they are in bytes, so C and α carry a factor of one segment.

use std::time::Duration;

use bentpipe_units::Time;

use super::hystart::HyStart;
use super::new_reno::{after_timeout, as_window, flight_size, initial_window};
use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, MIN_SSTHRESH_SEGMENTS, NO_SSTHRESH, Parameters, SlowStart};

/// C: how fast the window grows, segments per second cubed (§5.1).
const C: f64 = 0.4;
/// β: the part of the flight that remains after a loss (§4.6).
const BETA: f64 = 0.7;
/// The part of the window by which Linux' grows in a round trip at the least while no loss has shown a
/// plateau.
const MIN_GROWTH: f64 = 0.05;
/// After a repair the round trips hold its queue: HyStart looks away for so long.
const AFTER_REPAIR: f64 = 1.0;
/// α: segments by which W_est grows in each round trip, so that its average is Reno's (§4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Linux' 1 / α, windows: whole eighths of its β, 717/1024.
const LINUX_SPACING: f64 = 15.0 / 8.0;

/// RFC 9438 with fast convergence: the window is a cubic function of the time since the last loss, and never
/// less than what a standard TCP would have.
#[derive(Debug)]
pub struct Cubic {
    mss: f64,
    initial_window: f64,
    cwnd: f64,
    ssthresh: u64,
    slow_start: SlowStart,
    hystart: Option<HyStart>,
    /// It grows as Linux' does.
    is_linux: bool,
    /// The window before the last reduction, or less by fast convergence (§4.7), bytes; 0 before the first.
    w_max: f64,
    /// The window when ssthresh was last set, bytes (§4.1.2).
    cwnd_prior: f64,
    /// A loss, and no timeout since, has shown W_max.
    has_plateau: bool,
    /// The last reduction was a timeout's: the next epoch begins at its plateau (§4.8).
    after_timeout: bool,
    /// The present stage of congestion avoidance.
    epoch: Option<Epoch>,
}

/// A stage of congestion avoidance: it begins when recovery or slow start ends (§4.2's t_epoch).
#[derive(Debug)]
struct Epoch {
    /// t: its age without the periods in which the application was the limit (§4.2, §5.8), seconds.
    age: f64,
    /// The moment up to which `age` counts.
    counted_to: Time,
    /// The age at which the window is back at `plateau`, seconds.
    k: f64,
    /// The window at which the function is flat: W_max, bytes.
    plateau: f64,
    /// The window that a standard TCP would have, bytes.
    w_est: f64,
}

impl Cubic {
    /// A controller for a new connection.
    pub fn new(parameters: Parameters) -> Self {
        let initial_window = initial_window(&parameters);
        Self {
            mss: parameters.mss as f64,
            initial_window,
            cwnd: initial_window,
            ssthresh: NO_SSTHRESH,
            slow_start: SlowStart::new(&parameters),
            hystart: parameters.hystart.then(HyStart::default),
            is_linux: parameters.linux_cubic,
            w_max: 0.0,
            cwnd_prior: 0.0,
            has_plateau: false,
            after_timeout: false,
            epoch: None,
        }
    }

    /// HyStart may end slow start with the window that there is.
    fn look_ahead(&mut self, ack: &Acked) {
        let is_after_repair = self.epoch.as_ref().is_some_and(|epoch| epoch.age < AFTER_REPAIR);
        let cwnd = self.cwnd();
        if let Some(hystart) = &mut self.hystart
            && !is_after_repair
            && cwnd < self.ssthresh
            && hystart.on_ack(ack, cwnd, self.mss as u64)
        {
            self.ssthresh = cwnd;
        }
    }

    /// Congestion avoidance for `bytes` more acknowledged bytes (§4.2 to §4.5).
    fn avoid(&mut self, ack: &Acked, bytes: u64) {
        if self.epoch.is_none() {
            self.begin_epoch(ack.now);
        }
        let Some(epoch) = &mut self.epoch else { return };
        epoch.count(ack);
        let rtt = if self.is_linux { ack.min_rtt } else { ack.srtt }.as_secs_f64();
        let is_searching = self.is_linux && !self.has_plateau;
        let least = if is_searching { 1.0 + MIN_GROWTH } else { 1.0 };
        let target = epoch.w_cubic(epoch.age + rtt, self.mss).clamp(least * self.cwnd, 1.5 * self.cwnd);
        let acked_windows = (bytes as f64 / self.cwnd).min(1.0);
        epoch.w_est += if self.is_linux {
            linux_growth(bytes, self.cwnd / self.mss)
        } else {
            let alpha = if epoch.w_est >= self.cwnd_prior { 1.0 } else { ALPHA };
            alpha * self.mss * acked_windows
        };
        let grown = self.cwnd + (target - self.cwnd) * acked_windows;
        self.cwnd = match epoch.w_cubic(epoch.age, self.mss) < epoch.w_est {
            true if is_searching => grown.max(epoch.w_est),
            true => self.cwnd.max(epoch.w_est),
            false => grown,
        };
        self.cwnd = self.cwnd.min(MAX_WINDOW);
    }

    /// The window is now `cwnd_epoch`. It is on its way back to W_max; after a timeout, or where it is there
    /// already, it begins at the plateau (§4.8, §4.10).
    fn begin_epoch(&mut self, now: Time) {
        if self.after_timeout || self.w_max < self.cwnd {
            self.w_max = self.cwnd;
        }
        self.after_timeout = false;
        self.epoch = Some(Epoch {
            age: 0.0,
            counted_to: now,
            k: libm::cbrt((self.w_max - self.cwnd) / (C * self.mss)),
            plateau: self.w_max,
            w_est: self.cwnd,
        });
    }

    /// What a loss leaves as the threshold (§4.6, figure 5), bytes.
    fn reduced(&self, in_flight: u64) -> u64 {
        let least = MIN_SSTHRESH_SEGMENTS as f64 * self.mss;
        if self.is_linux {
            // Windows are whole segments there; of small ones that takes a good part.
            let segments = (BETA * (in_flight as f64 / self.mss).floor()).floor();
            return (segments * self.mss).max(least) as u64;
        }
        (in_flight as f64 * BETA).max(least) as u64
    }
}

/// What W_est grows by in Linux for `bytes` more acknowledged bytes, with a window of so many segments: a
/// segment for each [`LINUX_SPACING`] windows, in whole segments. Of small windows the fraction that is cut off
/// is a good part: three segments grow by 0.6 in a round trip, two by 0.67.
fn linux_growth(bytes: u64, window: f64) -> f64 {
    let spacing = (LINUX_SPACING * window.floor()).floor();
    bytes as f64 / spacing.max(1.0)
}

impl Epoch {
    /// W_cubic (§4.2, figure 1) at the age of `t` seconds, bytes.
    fn w_cubic(&self, t: f64, mss: f64) -> f64 {
        let from_plateau = t - self.k;
        C * mss * from_plateau * from_plateau * from_plateau + self.plateau
    }

    /// The epoch grows older by the time since the last acknowledgement: by a round trip at the most, for in
    /// a longer gap there was nothing on its way.
    fn count(&mut self, ack: &Acked) {
        let longest = ack.srtt.max(ack.rtt.unwrap_or(Duration::ZERO));
        self.age += ack.now.since(self.counted_to).min(longest).as_secs_f64();
        self.counted_to = ack.now;
    }
}

impl CongestionControl for Cubic {
    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.look_ahead(ack);
        if ack.in_recovery {
            return;
        }
        if !ack.cwnd_limited {
            if let Some(epoch) = &mut self.epoch {
                epoch.counted_to = ack.now;
            }
            return;
        }
        let grown = self.slow_start.grow(self.cwnd, self.ssthresh, ack.bytes);
        self.cwnd = grown.cwnd;
        if grown.left_over > 0 {
            self.avoid(ack, grown.left_over);
        }
    }

    fn on_loss(&mut self, _now: Time, in_flight: u64) {
        self.ssthresh = self.reduced(flight_size(in_flight, self.cwnd));
        self.cwnd_prior = self.cwnd;
        // Fast convergence: a window that did not get back to the last plateau gives room to new flows
        // (§4.7).
        let converging = self.cwnd < self.w_max;
        self.w_max = if converging { self.cwnd * (1.0 + BETA) / 2.0 } else { self.cwnd };
        self.cwnd = as_window(self.ssthresh);
        (self.after_timeout, self.has_plateau) = (false, true);
        self.epoch = None;
    }

    /// The clock starts with the acknowledgement that ends the repair. The next one may come a round trip
    /// later, and over a satellite the window would lag behind its function by as much.
    fn on_recovery_end(&mut self, now: Time) {
        self.begin_epoch(now);
    }

    fn on_timeout(&mut self, _now: Time, in_flight: u64, first: bool) {
        if first {
            let (of_flight, of_window) = (self.reduced(in_flight), self.reduced(self.cwnd()));
            self.ssthresh = after_timeout(of_flight, of_window, self.ssthresh);
            self.cwnd_prior = self.cwnd;
        }
        self.cwnd = self.mss;
        self.slow_start.on_timeout();
        (self.after_timeout, self.has_plateau) = (true, false);
        self.epoch = None;
        if let Some(hystart) = &mut self.hystart {
            hystart.reset();
        }
    }

    /// The next epoch begins at this window, or below the last plateau.
    fn set_window(&mut self, cwnd: u64, ssthresh: u64) {
        (self.cwnd, self.ssthresh) = (as_window(cwnd), ssthresh);
        self.epoch = None;
    }

    fn on_idle(&mut self, now: Time) {
        self.cwnd = self.cwnd.min(self.initial_window);
        if self.cwnd < self.ssthresh as f64 {
            self.epoch = None;
        } else if let Some(epoch) = &mut self.epoch {
            epoch.counted_to = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    fn cubic() -> Cubic {
        Cubic::new(Parameters {
            mss: MSS,
            initial_window: 10 * MSS,
            byte_counting_limit: None,
            hystart: false,
            linux_cubic: false,
        })
    }

    fn acked(millis: u64, bytes: u64) -> Acked {
        Acked {
            now: Time::from_nanos(millis * 1_000_000),
            bytes,
            rtt: Some(RTT),
            srtt: RTT,
            min_rtt: RTT,
            in_flight: bytes,
            cwnd_limited: true,
            in_recovery: false,
        }
    }

    /// A connection that has just lost a segment of a window of `segments`.
    fn after_loss_at(segments: u64) -> Cubic {
        let mut cubic = cubic();
        cubic.on_ack(&acked(0, (segments - 10) * MSS));
        assert_eq!(cubic.cwnd(), segments * MSS);
        cubic.on_loss(Time::ZERO, segments * MSS);
        cubic
    }

    #[test]
    fn a_loss_leaves_seven_tenths_of_the_flight_and_not_below_two_segments() {
        let cubic = after_loss_at(100);
        assert_eq!((cubic.cwnd(), cubic.ssthresh(), cubic.w_max), (70 * MSS, 70 * MSS, 100_000.0));
        let mut cubic = self::cubic();
        cubic.on_loss(Time::ZERO, MSS);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (2 * MSS, 2 * MSS));
    }

    #[test]
    fn a_window_that_is_reduced_below_its_last_plateau_gives_up_more() {
        let mut cubic = after_loss_at(100);
        cubic.on_loss(Time::ZERO, 70 * MSS);
        assert_eq!(cubic.w_max, 70_000.0 * 0.85);
    }

    #[test]
    fn k_is_the_cube_root_of_the_missing_window() {
        let mut cubic = after_loss_at(100);
        cubic.on_ack(&acked(0, MSS));
        // K = ∛(30 / 0.4)
        assert!((cubic.epoch.unwrap().k - 4.217_163).abs() < 1e-6);
    }

    #[test]
    fn after_a_timeout_the_epoch_begins_at_its_plateau() {
        let mut cubic = after_loss_at(100);
        cubic.on_timeout(Time::ZERO, 70 * MSS, true);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (MSS, 49 * MSS));
        cubic.on_ack(&acked(10, 48 * MSS));
        assert!(cubic.epoch.is_none(), "slow start has no epoch");
        cubic.on_ack(&acked(20, MSS));
        let epoch = cubic.epoch.unwrap();
        assert_eq!((epoch.k, epoch.plateau), (0.0, 49_000.0));
    }

    #[test]
    fn the_window_rises_by_half_in_a_round_trip_at_the_most() {
        let mut cubic = after_loss_at(100);
        cubic.on_ack(&acked(0, MSS));
        let before = cubic.cwnd;
        cubic.epoch.as_mut().unwrap().age = 1000.0;
        cubic.on_ack(&acked(0, 10 * before as u64));
        assert_eq!(cubic.cwnd, 1.5 * before);
    }

    #[test]
    fn the_epoch_does_not_age_while_the_application_is_the_limit() {
        let mut cubic = after_loss_at(100);
        cubic.on_ack(&acked(0, MSS));
        cubic.on_ack(&acked(50, MSS));
        for millis in (100..60_000).step_by(100) {
            cubic.on_ack(&Acked { cwnd_limited: false, ..acked(millis, MSS) });
        }
        cubic.on_ack(&acked(60_000, MSS));
        assert!((cubic.epoch.as_ref().unwrap().age - 0.15).abs() < 1e-9);
        assert!(cubic.cwnd() < 72 * MSS, "{}", cubic.cwnd());
    }

    #[test]
    fn the_epoch_begins_when_recovery_ends_and_not_with_the_next_acknowledgement() {
        let mut cubic = after_loss_at(100);
        cubic.on_recovery_end(Time::from_nanos(100_000_000));
        cubic.on_ack(&acked(180, MSS));
        assert!((cubic.epoch.unwrap().age - 0.08).abs() < 1e-9);
    }

    #[test]
    fn a_pause_counts_as_one_round_trip() {
        let mut cubic = after_loss_at(100);
        cubic.on_ack(&acked(0, MSS));
        cubic.on_ack(&acked(5_000, MSS));
        assert!((cubic.epoch.unwrap().age - 0.1).abs() < 1e-9);
    }

    #[test]
    fn idleness_takes_the_window_back_to_slow_start_and_the_next_epoch_to_the_old_plateau() {
        let mut cubic = after_loss_at(100);
        cubic.on_ack(&acked(0, MSS));
        cubic.on_idle(Time::from_nanos(5_000_000_000));
        assert_eq!(cubic.cwnd(), 10 * MSS);
        assert!(cubic.epoch.is_none());
        cubic.on_ack(&acked(5_000, 61 * MSS));
        assert_eq!(cubic.epoch.unwrap().plateau, 100_000.0);
    }

    #[test]
    fn hystart_ends_slow_start_at_the_window_of_the_moment_and_growth_goes_on() {
        let mut cubic = Cubic::new(Parameters {
            mss: MSS,
            initial_window: 20 * MSS,
            byte_counting_limit: None,
            hystart: true,
            linux_cubic: true,
        });
        let queued = |n: u64| Acked {
            rtt: Some(RTT + Duration::from_millis(if n == 0 { 0 } else { 20 })),
            in_flight: if n == 0 { MSS } else { 100 * MSS },
            ..acked(3 * n, MSS)
        };
        (0..9).for_each(|n| cubic.on_ack(&queued(n)));
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (29 * MSS, NO_SSTHRESH));
        (9..30).for_each(|n| cubic.on_ack(&queued(n)));
        let ended_at = cubic.ssthresh();
        assert!((29 * MSS..32 * MSS).contains(&ended_at), "{ended_at}");
        // A window of acknowledgements later it is a twentieth larger at the least.
        let before = cubic.cwnd();
        (30..30 + before / MSS).for_each(|n| cubic.on_ack(&queued(n)));
        assert!(cubic.cwnd() as f64 >= 1.045 * before as f64, "{before} {}", cubic.cwnd());
    }

    /// RFC 9438 §4.3: α becomes 1 at the window before the loss. Linux' stays at 9/17.
    #[test]
    fn where_it_behaves_as_reno_linux_gains_half_a_segment_in_a_round_trip_for_ever() {
        let grown = |linux_cubic: bool| {
            let mut cubic = Cubic { is_linux: linux_cubic, ..after_loss_at(10) };
            cubic.on_recovery_end(Time::ZERO);
            for round in 1..=100 {
                let rtt = Duration::from_millis(25);
                let bytes = cubic.cwnd();
                let ack = acked(25 * round, bytes);
                cubic.on_ack(&Acked { rtt: Some(rtt), srtt: rtt, min_rtt: rtt, ..ack });
            }
            cubic.cwnd() / MSS
        };
        assert_eq!((grown(true), grown(false)), (61, 104));
    }

    #[test]
    fn linux_cuts_off_what_is_not_a_whole_segment_of_the_growth_of_small_windows() {
        let in_a_round_trip =
            [2.0, 3.0, 4.0, 100.0].map(|window| linux_growth((window * 15.0) as u64, window));
        assert_eq!(in_a_round_trip, [10.0, 9.0, 60.0 / 7.0, 1500.0 / 187.0]);
        assert_eq!(linux_growth(MSS, 1.0), MSS as f64);
    }
}

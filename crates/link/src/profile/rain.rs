//! DVB-S2 with adaptive coding and modulation under rain fronts.

use std::collections::VecDeque;
use std::f64::consts::PI;
use std::time::Duration;

use bentpipe_units::Rate;

use super::LONGEST;
use super::modcod::Acm;
use super::variation::Variation;
use crate::effect::TraceBuilder;
use crate::random::{Bernoulli, derive_seeds};
use crate::{DirectionConfig, LinkConfig};

/// How often attenuation and MODCOD change, milliseconds.
const STEP_MS: i64 = 200;
/// The temperature of the rain that the terminal receives as noise, kelvins (ITU-R P.618, §3).
const RAIN_K: f64 = 275.0;

/// A geostationary carrier of DVB-S2 whose terminal has rain fronts above it, one after the other.
///
/// The attenuation rises over minutes, stays high for some, and falls. The modulator follows the Es/N0 that
/// the terminal reports, by its margin, its hysteresis and its delay: so the rate goes in steps. Where the
/// rain is faster than that delay, packets are lost before a step down. Below the most robust MODCOD nothing
/// arrives.
///
/// The return link keeps its rate: its terminal has power in reserve.
#[derive(Debug, Clone, PartialEq)]
pub struct RainFront {
    /// Symbols per second of the carrier: 5·10⁶, with which the clear sky has 16.5 Mbit/s.
    pub symbol_rate: f64,
    /// Es/N0 with a clear sky, dB: 12.5, just enough for 16APSK 5/6.
    pub clear_sky_db: f64,
    /// The noise temperature of the terminal with a clear sky, kelvins: 200. The rain's own noise comes to
    /// it.
    pub noise_k: f64,
    /// The attenuation in the middle of a front, dB: 4 to 10, ours; heavy rain in Ka band.
    pub peak_db: [f64; 2],
    /// How long the sky is clear before a front, and how long the attenuation rises, stays and falls: 2 to 5,
    /// 2 to 5, 3 to 10 and 3 to 8 min, ours. Fade slopes are then 0.01 to 0.1 dB/s.
    pub times: [[Duration; 2]; 4],
    /// Standard deviation of the logarithm of the attenuation around that: 0.15, ours; lognormal and of the
    /// first order as in ITU-R P.1853.
    pub variation: f64,
    /// The time after which that is correlated by 1/e: 60 s, ours; P.1853 has 5000 s for whole events.
    pub correlation: Duration,
    /// Standard deviation of the scintillation, dB, correlated over a second: 0.05, ours.
    pub scintillation_db: f64,
    /// All times of the weather are divided by this: 1. More makes a storm of a front, with steeper ramps, so
    /// that a short run sees a whole one.
    pub time_compression: f64,
    /// How far above its threshold the modulator uses a MODCOD: 0.3 dB, ours.
    pub margin_db: f64,
    /// How much more Es/N0 it wants before it takes a higher one: 0.5 dB, ours.
    pub hysteresis_db: f64,
    /// The time from the terminal's measurement to the first frame of the new MODCOD that arrives: 1.2 s, two
    /// round trips below a geostationary satellite, one of them for the measurement; ours.
    pub reaction: Duration,
    /// How far below the threshold all packets are lost: 0.4 dB. The codes of DVB-S2 are that steep.
    pub waterfall_db: f64,
    /// The rate of the return link: 4 Mbit/s.
    pub reverse: Rate,
    /// One-way delay: 300 ms.
    pub delay: Duration,
}

impl Default for RainFront {
    fn default() -> Self {
        let minutes = |range: [u64; 2]| range.map(|minutes| Duration::from_secs(60 * minutes));
        Self {
            symbol_rate: 5e6,
            clear_sky_db: 12.5,
            noise_k: 200.0,
            peak_db: [4.0, 10.0],
            times: [[2, 5], [2, 5], [3, 10], [3, 8]].map(minutes),
            variation: 0.15,
            correlation: Duration::from_secs(60),
            scintillation_db: 0.05,
            time_compression: 1.0,
            margin_db: 0.3,
            hysteresis_db: 0.5,
            reaction: Duration::from_millis(1200),
            waterfall_db: 0.4,
            reverse: Rate::mbps(4),
            delay: Duration::from_millis(300),
        }
    }
}

impl RainFront {
    /// The link of a seed, for at least `lasts`, but a day at the most; after that it begins anew. A longer
    /// one begins as a shorter one does.
    pub fn link(&self, seed: u64, lasts: Duration) -> LinkConfig {
        let lasts = lasts.clamp(Duration::from_secs(1), LONGEST);
        let direction =
            |rate| DirectionConfig { rate: Some(rate), delay: self.delay, ..DirectionConfig::default() };
        let clear_sky = Acm::new(self.margin_db, self.hysteresis_db, self.clear_sky_db).current();
        let nominal = self.rate(clear_sky.efficiency).round() as u64;
        LinkConfig {
            forward: DirectionConfig {
                trace: self.changes(seed, lasts).repeating(lasts),
                ..direction(Rate::from_bps(nominal).unwrap_or(self.reverse))
            },
            reverse: direction(self.reverse),
        }
    }

    fn changes(&self, seed: u64, lasts: Duration) -> TraceBuilder {
        let mut weather = Weather::new(self, seed);
        let mut acm = Acm::new(self.margin_db, self.hysteresis_db, self.clear_sky_db);
        let delayed = self.reaction.as_millis() as usize / STEP_MS as usize;
        let mut reports = VecDeque::from(vec![self.clear_sky_db; delayed]);
        let mut trace = TraceBuilder::default();
        for at in (0..lasts.as_millis() as i64).step_by(STEP_MS as usize) {
            let es_n0_db = self.es_n0_db(weather.attenuation_db()) + weather.scintillation_db();
            reports.push_back(es_n0_db);
            acm.follow(reports.pop_front().unwrap_or(es_n0_db));
            trace.rate(at, self.rate(acm.current().efficiency));
            trace.per(at, acm.current().per(es_n0_db, self.waterfall_db));
        }
        trace
    }

    /// Bits per second.
    fn rate(&self, efficiency: f64) -> f64 {
        self.symbol_rate * efficiency
    }

    /// Es/N0 behind so much rain, which takes from the signal and adds its own noise (ITU-R P.618, §3).
    fn es_n0_db(&self, attenuation_db: f64) -> f64 {
        let rain_k = RAIN_K * (1.0 - libm::pow(10.0, -attenuation_db / 10.0));
        self.clear_sky_db - attenuation_db - 10.0 * libm::log10(1.0 + rain_k / self.noise_k)
    }
}

/// The fronts, step by step.
struct Weather<'a> {
    front: &'a RainFront,
    random: Bernoulli,
    variation: Variation,
    scintillation: Variation,
    peak_db: f64,
    /// When the clear sky, the rise, the middle and the fall of this front end, seconds from its beginning.
    ends: [f64; 4],
    /// The time since its beginning, seconds.
    elapsed: f64,
}

impl<'a> Weather<'a> {
    fn new(front: &'a RainFront, seed: u64) -> Self {
        let [seed] = derive_seeds(seed);
        let step = Duration::from_millis(STEP_MS as u64);
        let correlation = front.correlation.div_f64(front.time_compression.max(1e-3));
        let mut weather = Self {
            front,
            random: Bernoulli::new(seed),
            variation: Variation::new(correlation, step),
            scintillation: Variation::new(Duration::from_secs(1), step),
            peak_db: 0.0,
            ends: [0.0; 4],
            elapsed: 0.0,
        };
        weather.next_front();
        weather
    }

    fn next_front(&mut self) {
        self.elapsed = 0.0;
        self.peak_db = self.random.between(self.front.peak_db);
        let mut end = 0.0;
        self.ends = self.front.times.map(|range| {
            let lasts = self.random.between(range.map(|time| time.as_secs_f64()));
            end += lasts / self.front.time_compression.max(1e-3);
            end
        });
    }

    /// The attenuation of the next step, dB.
    fn attenuation_db(&mut self) -> f64 {
        if self.elapsed >= self.ends[3] {
            self.next_front();
        }
        let [clear, risen, falls, gone] = self.ends;
        let part = |from: f64, to: f64| ((self.elapsed - from) / (to - from).max(1e-9)).clamp(0.0, 1.0);
        let level = part(clear, risen).min(1.0 - part(falls, gone));
        let shape = 0.5 - 0.5 * libm::cos(PI * level);
        self.elapsed += STEP_MS as f64 / 1e3;
        let sigma = self.front.variation;
        let variation = libm::exp(sigma * self.variation.next(&mut self.random) - 0.5 * sigma * sigma);
        self.peak_db * shape * variation
    }

    fn scintillation_db(&mut self) -> f64 {
        self.front.scintillation_db * self.scintillation.next(&mut self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::{Probability, Time};

    const HOUR: Duration = Duration::from_secs(3600);

    /// Rate and packet error rate of the forward direction in each step.
    fn steps(front: &RainFront, seed: u64, lasts: Duration) -> Vec<(u64, f64)> {
        let trace = front.link(seed, lasts).forward.trace;
        let mut rates = trace.rates(None).unwrap();
        let mut error_rates = trace.error_rates(Probability::ZERO).unwrap();
        let steps = (0..lasts.as_nanos() as u64).step_by(STEP_MS as usize * 1_000_000);
        steps.map(|at| (rates.at(at), error_rates.at(at).get())).collect()
    }

    #[test]
    fn a_seed_is_a_link_and_a_longer_one_begins_as_the_shorter_one() {
        let front = RainFront::default();
        let short = steps(&front, 3, HOUR);
        assert_eq!(short, steps(&front, 3, 2 * HOUR)[..short.len()]);
        assert_ne!(short, steps(&front, 4, HOUR));
        let link = front.link(3, HOUR);
        assert_eq!(link.forward.rate, Rate::from_bps(16_500_920));
        assert_eq!(link.forward.trace.capacity(None, Time::ZERO).unwrap(), 0);
    }

    #[test]
    fn the_rate_goes_down_and_up_in_steps_of_the_standard() {
        for seed in 0..10 {
            let front = RainFront::default();
            let steps = steps(&front, seed, HOUR);
            let clear_sky = 16_501_000;
            assert!(steps[..600].iter().all(|(rate, _)| *rate == clear_sky), "clear sky for two minutes");
            let allowed = |rate: u64| {
                super::super::modcod::MODCODS
                    .iter()
                    .any(|modcod| (front.symbol_rate * modcod.efficiency - rate as f64).abs() < 501.0)
            };
            assert!(steps.iter().all(|(rate, _)| allowed(*rate)), "{seed}");
            let lowest = steps.iter().map(|(rate, _)| *rate).min().unwrap();
            assert!(lowest < 12_000_000, "{seed}: 4 dB and its noise take four steps: {lowest}");
            assert!(steps.iter().rev().take(9000).any(|(rate, _)| *rate == clear_sky), "{seed}: it passes");
            let changes = steps.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
            assert!((6..300).contains(&changes), "{seed}: {changes}");
        }
    }

    #[test]
    fn packets_are_lost_before_a_step_down_if_the_rain_is_faster_than_the_modulator() {
        let storm = RainFront { time_compression: 10.0, ..RainFront::default() };
        let mut lost = 0;
        for seed in 0..20 {
            let steps = steps(&storm, seed, Duration::from_secs(120));
            let reaction = storm.reaction.as_millis() as usize / STEP_MS as usize;
            let lossy = steps.iter().enumerate().take(steps.len() - reaction - 1);
            for (index, (rate, per)) in lossy.filter(|(_, (_, per))| *per > 1e-3) {
                let soon = steps.iter().skip(index).take(reaction + 1);
                let robust = 0.490_243 * storm.symbol_rate;
                let steps_down = soon.map(|(later, _)| later).any(|later| later < rate);
                assert!(steps_down || (*rate as f64) < robust + 501.0, "{seed}, step {index}: {per}");
                lost += 1;
            }
        }
        assert!(lost > 100, "{lost}");
        let slow = RainFront { scintillation_db: 0.0, variation: 0.0, ..RainFront::default() };
        let slow = steps(&slow, 1, HOUR);
        assert!(slow.iter().all(|(_, per)| *per < 1e-3), "the margin is enough for a slow front");
    }
}

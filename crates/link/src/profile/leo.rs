//! Low Earth orbit with handovers from satellite to satellite.

use std::f64::consts::TAU;
use std::time::Duration;

use bentpipe_units::Rate;

use super::LONGEST;
use super::variation::Variation;
use crate::effect::TraceBuilder;
use crate::random::{Bernoulli, derive_seeds};
use crate::{DirectionConfig, LinkConfig};

/// Radius of the Earth, kilometres.
const EARTH_KM: f64 = 6371.0;
/// The Earth's gravitational parameter, km³/s².
const GRAVITY_KM3_S2: f64 = 398_600.0;
const LIGHT_KM_S: f64 = 299_792.458;
/// How often delay and rate change within a slot, milliseconds.
const STEP_MS: i64 = 250;

/// A low-orbit link whose terminal is handed over to another satellite at the end of each slot of time.
///
/// In a slot the satellite passes on its orbit, so that the delay changes smoothly, and the rate varies
/// around the slot's own mean. At the handover everything is another satellite's: delay and rate jump.
/// Nothing is sent for a moment, and packets around it are lost in a burst. Both directions have the same
/// satellite, so the same delays, interruptions and bursts, and rates of their own.
///
/// The defaults are those of Starlink as published; the draws between the ends of a range are uniform, which
/// is ours. The jitter of its medium access within milliseconds is not modelled.
#[derive(Debug, Clone, PartialEq)]
pub struct LeoHandovers {
    /// Time from handover to handover: 15 s, at the same seconds for all terminals (Tanveer et al., "Making
    /// Sense of Constellations", 2023; Mohan et al., "A Multifaceted Look at Starlink Performance", WWW
    /// 2024). The first handover of a trace is at a random moment of the first slot. Whole milliseconds, at
    /// least one second.
    pub slot: Duration,
    /// Height of the orbit, kilometres: the first shell of Starlink, 550 km.
    pub altitude_km: f64,
    /// The lowest elevation at which a satellite is used, degrees: 25, by the operator's filings. A satellite
    /// is anywhere above it.
    pub min_elevation_deg: f64,
    /// The part of the one-way delay that is not the way to the satellite and down to the gateway: medium
    /// access and the way to the point of presence. Another one in each slot.
    ///
    /// With 8 to 35 ms round trips are 23 to 85 ms. Michel et al., "A First Look at Starlink Performance"
    /// (IMC 2022), measured 20 ms at the least, with the middle half from 40 to 60 ms; Huston, "A transport
    /// protocol's view of Starlink" (2024), saw minima change every 15 s, once from 30 to 80 ms.
    pub access: [Duration; 2],
    /// The mean rates of slots to the terminal: 20 to 140 Mbit/s, ours.
    ///
    /// Lai et al., "LeoCC" (SIGCOMM 2025), report changes between 10 and 70 Mbit/s within tens of seconds;
    /// Ookla's speed tests in Maine in late 2024 have 23, 117 and 251 Mbit/s as 10th percentile, median and
    /// 90th percentile.
    pub forward: [Rate; 2],
    /// The mean rates of slots from the terminal: 4 to 20 Mbit/s, ours; the same speed tests have 7, 18 and
    /// 27 Mbit/s.
    pub reverse: [Rate; 2],
    /// Standard deviation of the rate within a slot, as a part of the slot's mean: 0.08, ours.
    pub variation: f64,
    /// The time after which that is correlated by 1/e: 3 s, ours.
    pub correlation: Duration,
    /// How long nothing is sent at a handover: 20 to 100 ms, ours. Huston saw round trips longer by 30 ms
    /// then.
    pub interruption: [Duration; 2],
    /// How long a burst of losses begins before the handover, and how long after it it ends: 150 and 350 ms,
    /// ours.
    pub burst: [Duration; 2],
    /// The packet error rate in a burst: 1 to 12%, so that the second around it loses the 0.5 to 6% of a
    /// second that Lai et al. measured.
    pub burst_per: [f64; 2],
    /// The packet error rate else, to the terminal and from it: 0.01% and 0.2%, the values with which
    /// LeoReplayer (Lai et al.) reproduces what was measured.
    pub per: [f64; 2],
}

impl Default for LeoHandovers {
    fn default() -> Self {
        let millis = |range: [u64; 2]| range.map(Duration::from_millis);
        Self {
            slot: Duration::from_secs(15),
            altitude_km: 550.0,
            min_elevation_deg: 25.0,
            access: millis([8, 35]),
            forward: [20, 140].map(Rate::mbps),
            reverse: [4, 20].map(Rate::mbps),
            variation: 0.08,
            correlation: Duration::from_secs(3),
            interruption: millis([20, 100]),
            burst: millis([150, 350]),
            burst_per: [0.01, 0.12],
            per: [1e-4, 2e-3],
        }
    }
}

impl LeoHandovers {
    /// The link of a seed, for at least `lasts`, but a day at the most; it begins anew after as many whole
    /// slots as that takes. A longer one begins as a shorter one does.
    pub fn link(&self, seed: u64, lasts: Duration) -> LinkConfig {
        let [pass_seed, forward_seed, reverse_seed] = derive_seeds(seed);
        let slot_ms = self.slot.as_millis().max(1000) as i64;
        let slots = (lasts.min(LONGEST).as_millis() as u64).div_ceil(slot_ms as u64).max(1) as i64;
        let mut random = Bernoulli::new(pass_seed);
        // The slot in which the trace begins has begun before it.
        let first = -(random.between([0.0, slot_ms as f64]) as i64);
        let passes: Vec<Pass> =
            (0..=slots).map(|slot| self.pass(first + slot * slot_ms, &mut random)).collect();
        let direction = |rates: [Rate; 2], per: f64, seed: u64| {
            let trace = self.changes(&passes, rates, per, seed);
            DirectionConfig {
                rate: Some(rates[1]),
                delay: self.middle_delay(),
                trace: trace.repeating(Duration::from_millis((slots * slot_ms) as u64)),
                ..DirectionConfig::default()
            }
        };
        LinkConfig {
            forward: direction(self.forward, self.per[0], forward_seed),
            reverse: direction(self.reverse, self.per[1], reverse_seed),
        }
    }

    /// The one-way delay of a satellite straight above, with the middle of the other delays.
    fn middle_delay(&self) -> Duration {
        let [low, high] = self.access;
        (low + high) / 2 + Duration::from_secs_f64(2.0 * self.altitude_km / LIGHT_KM_S)
    }

    /// Draws the pass of a slot that begins then.
    fn pass(&self, begins_ms: i64, random: &mut Bernoulli) -> Pass {
        let cos_widest = libm::cos(self.widest());
        let moves = self.angular_speed() * self.slot.as_secs_f64();
        // A track so far aside that the satellite is in view for the whole slot.
        let aside = random.between([-0.9, 0.9]) * self.widest();
        let half_track = libm::acos((cos_widest / libm::cos(aside)).min(1.0));
        let millis = |[low, high]: [Duration; 2]| [low, high].map(|end| end.as_secs_f64() * 1e3);
        Pass {
            begins_ms,
            aside,
            along: random.between([-half_track, (half_track - moves).max(-half_track)]),
            access_s: random.between(millis(self.access)) / 1e3,
            interruption_ms: random.between(millis(self.interruption)) as i64,
            burst_per: random.between(self.burst_per),
        }
    }

    /// What changes in one direction.
    fn changes(&self, passes: &[Pass], rates: [Rate; 2], per: f64, seed: u64) -> TraceBuilder {
        let mut random = Bernoulli::new(seed);
        let mut variation = Variation::new(self.correlation, Duration::from_millis(STEP_MS as u64));
        let [before, after] = self.burst.map(|part| part.as_millis() as i64);
        let slot_ms = self.slot.as_millis().max(1000) as i64;
        let mut trace = TraceBuilder::default();
        trace.per(0, per);
        for pass in passes {
            let mean = random.between(rates.map(|rate| rate.bps() as f64));
            for step in (0..slot_ms).step_by(STEP_MS as usize) {
                let at = pass.begins_ms + step;
                let rate = mean * (1.0 + self.variation * variation.next(&mut random)).max(0.1);
                if step == 0 {
                    trace.rate(at, 0.0);
                }
                trace.rate(at.max(pass.begins_ms + pass.interruption_ms), rate);
                trace.delay(at, self.delay_s(pass, step));
            }
            if pass.begins_ms > 0 {
                trace.per((pass.begins_ms - before).max(0), pass.burst_per.max(per));
                trace.per(pass.begins_ms + after, per);
            }
        }
        trace
    }

    /// The one-way delay so many milliseconds after the beginning of a pass, seconds. The gateway is taken to
    /// be as far from the satellite as the terminal.
    fn delay_s(&self, pass: &Pass, step_ms: i64) -> f64 {
        let along = pass.along + self.angular_speed() * step_ms as f64 / 1e3;
        let orbit = EARTH_KM + self.altitude_km;
        let cos = libm::cos(along) * libm::cos(pass.aside);
        let slant = libm::sqrt(EARTH_KM * EARTH_KM + orbit * orbit - 2.0 * EARTH_KM * orbit * cos);
        pass.access_s + 2.0 * slant / LIGHT_KM_S
    }

    /// The angle at the Earth's centre between the terminal and the lowest satellite that it uses.
    fn widest(&self) -> f64 {
        let elevation = self.min_elevation_deg.to_radians();
        libm::acos(EARTH_KM / (EARTH_KM + self.altitude_km) * libm::cos(elevation)) - elevation
    }

    /// Radians per second on a circular orbit, by Kepler's third law; the Earth's own rotation left aside.
    fn angular_speed(&self) -> f64 {
        let orbit = EARTH_KM + self.altitude_km;
        let period_s = TAU * libm::sqrt(orbit * orbit * orbit / GRAVITY_KM3_S2);
        TAU / period_s
    }
}

/// A satellite's slot.
#[derive(Debug, Clone, Copy)]
struct Pass {
    begins_ms: i64,
    /// Angles at the Earth's centre between the terminal and the satellite at the beginning, radians: to the
    /// side of its track, and along it.
    aside: f64,
    along: f64,
    access_s: f64,
    interruption_ms: i64,
    burst_per: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::Time;

    use crate::LinkTrace;

    const MINUTE: Duration = Duration::from_secs(60);

    fn delays(trace: &LinkTrace, seconds: u64) -> Vec<f64> {
        let mut delays = trace.delays(Duration::ZERO).unwrap();
        (0..20 * seconds).map(|step| delays.at(step * 50_000_000).as_secs_f64()).collect()
    }

    #[test]
    fn a_seed_is_a_link_and_a_longer_one_begins_as_the_shorter_one() {
        let leo = LeoHandovers::default();
        assert_eq!(leo.link(3, MINUTE), leo.link(3, MINUTE));
        assert_ne!(leo.link(3, MINUTE), leo.link(4, MINUTE));
        let [short, long] = [MINUTE, 3 * MINUTE].map(|lasts| leo.link(3, lasts));
        for (short, long) in [(short.forward, long.forward), (short.reverse, long.reverse)] {
            assert_eq!(delays(&short.trace, 60), delays(&long.trace, 60)[..1200]);
            let end = Time::ZERO + MINUTE;
            assert_eq!(short.trace.capacity(None, end), long.trace.capacity(None, end));
        }
    }

    #[test]
    fn the_delay_jumps_at_handovers_only_and_follows_the_pass_between_them() {
        for seed in 0..20 {
            let link = LeoHandovers::default().link(seed, MINUTE);
            let forward = delays(&link.forward.trace, 60);
            assert_eq!(forward, delays(&link.reverse.trace, 60), "both directions have one satellite");
            // 8 ms and straight up and down at the least; 35 ms and 1123 km twice at the most.
            assert!(forward.iter().all(|delay| (0.0116..0.0426).contains(delay)), "{seed}");
            let steps: Vec<(usize, f64)> =
                forward.windows(2).map(|pair| (pair[1] - pair[0]).abs()).enumerate().collect();
            // At 7.6 km/s the two ways grow by 13 µs in a step at the most.
            let jumps: Vec<usize> =
                steps.iter().filter(|(_, step)| *step > 0.3e-3).map(|(index, _)| *index).collect();
            assert!((2..=4).contains(&jumps.len()), "{seed}: {jumps:?}");
            assert!(jumps.windows(2).all(|pair| (pair[1] - pair[0]) % 300 <= 1), "{seed}: {jumps:?}");
        }
    }

    #[test]
    fn nothing_is_sent_for_20_to_100_ms_at_a_handover_and_packets_are_lost_around_it() {
        let link = LeoHandovers::default().link(1, MINUTE);
        let mut rates = link.forward.trace.rates(None).unwrap();
        let mut error_rates = link.forward.trace.error_rates(Default::default()).unwrap();
        let millis: Vec<(u64, f64)> =
            (0..60_000).map(|ms| (rates.at(ms * 1_000_000), error_rates.at(ms * 1_000_000).get())).collect();
        let pauses: Vec<_> =
            millis.split(|(rate, _)| *rate > 0).map(<[_]>::len).filter(|ms| *ms > 0).collect();
        assert_eq!(pauses.len(), 4);
        assert!(pauses.iter().all(|ms| (20..=100).contains(ms)), "{pauses:?}");
        let bursts: Vec<_> =
            millis.split(|(_, per)| *per <= 1e-4).map(<[_]>::len).filter(|ms| *ms > 0).collect();
        assert_eq!(bursts, [500; 4]);
        assert!(millis.iter().filter(|(rate, _)| *rate == 0).all(|(_, per)| *per >= 0.01));
    }

    #[test]
    fn the_mean_rate_is_the_middle_of_its_range() {
        let leo = LeoHandovers::default();
        let lasts = Duration::from_secs(300);
        let capacity = |seed| leo.link(seed, lasts).forward.trace.capacity(None, Time::ZERO + lasts).unwrap();
        let total: f64 = (0..50).map(|seed| capacity(seed) as f64 * 8.0 / 300.0).sum();
        // 1000 slots; the standard error is 1.1 Mbit/s; 0.4% are interruptions.
        assert!((total / 50.0 / 1e6 - 79.7).abs() < 3.5, "{total}");
    }
}

//! A ship whose mast comes before the satellite.

use std::f64::consts::{PI, TAU};
use std::time::Duration;

use bentpipe_units::Rate;

use super::LONGEST;
use super::manoeuvres::Manoeuvres;
use crate::effect::TraceBuilder;
use crate::random::{Bernoulli, derive_seeds};
use crate::{DirectionConfig, LinkConfig};

/// How often course and roll change, milliseconds.
const STEP_MS: i64 = 100;
const STEP_S: f64 = STEP_MS as f64 / 1e3;

/// A ship below a geostationary satellite, with its antenna behind the mast.
///
/// While the mast stands between antenna and satellite, everything is lost, in both directions. The ship
/// turns from course to course, and rolls: near the mast's edges the signal comes and goes with the roll. The
/// geometry is exact; no measurement of such outages is published that we know, so the values are ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Ship {
    /// How long a course is kept: 2 to 10 min.
    pub straight: [Duration; 2],
    /// By how much a turn changes it, degrees: 20 to 150.
    pub turn_deg: [f64; 2],
    /// How fast it turns, degrees per second: 1.
    pub turn_deg_s: f64,
    /// Half of the angle that the mast takes of the horizon, seen from the antenna, degrees: 7. It stands
    /// ahead.
    pub mast_half_deg: f64,
    /// The elevation of its top, degrees: 50.
    pub mast_top_deg: f64,
    /// The amplitude of the roll, degrees: 3 to 8, one for a voyage.
    pub roll_deg: [f64; 2],
    /// The period of the roll: 8 to 14 s, one for a voyage.
    pub roll_period: [Duration; 2],
    /// The elevation of the satellite, degrees: 20 to 40, one for a voyage.
    pub elevation_deg: [f64; 2],
    /// Packet error rate with a free view: 0.1%.
    pub per: f64,
    /// The rate of each direction: 10 Mbit/s.
    pub rate: Rate,
    /// One-way delay: 300 ms.
    pub delay: Duration,
}

impl Default for Ship {
    fn default() -> Self {
        Self {
            straight: [120, 600].map(Duration::from_secs),
            turn_deg: [20.0, 150.0],
            turn_deg_s: 1.0,
            mast_half_deg: 7.0,
            mast_top_deg: 50.0,
            roll_deg: [3.0, 8.0],
            roll_period: [8, 14].map(Duration::from_secs),
            elevation_deg: [20.0, 40.0],
            per: 0.001,
            rate: Rate::mbps(10),
            delay: Duration::from_millis(300),
        }
    }
}

impl Ship {
    /// The link of a seed, for at least `lasts`, but a day at the most; after that it begins anew. A longer
    /// one begins as a shorter one does.
    pub fn link(&self, seed: u64, lasts: Duration) -> LinkConfig {
        let lasts = lasts.clamp(Duration::from_secs(1), LONGEST);
        LinkConfig::symmetric(DirectionConfig {
            rate: Some(self.rate),
            delay: self.delay,
            trace: self.changes(seed, lasts).repeating(lasts),
            ..DirectionConfig::default()
        })
    }

    fn changes(&self, seed: u64, lasts: Duration) -> TraceBuilder {
        let [seed] = derive_seeds(seed);
        let mut random = Bernoulli::new(seed);
        let elevation = random.between(self.elevation_deg).to_radians();
        let amplitude = random.between(self.roll_deg).to_radians();
        let roll_period = random.between(self.roll_period.map(|time| time.as_secs_f64()));
        // Of the satellite, to starboard of the bow.
        let mut azimuth = random.between([0.0, TAU]);
        let straight = self.straight.map(|time| time.as_secs_f64());
        let mut manoeuvres = Manoeuvres::new(straight, self.turn_deg.map(f64::to_radians), &mut random);
        let mut trace = TraceBuilder::default();
        let mut turned = 0.0;
        for at in (0..lasts.as_millis() as i64).step_by(STEP_MS as usize) {
            turned = self.turn_deg_s.to_radians() * STEP_S * manoeuvres.helm(turned, STEP_S, &mut random);
            azimuth -= turned;
            let roll = amplitude * libm::sin(TAU * at as f64 / 1e3 / roll_period);
            let blocked = self.is_blocked(aboard(elevation, azimuth, roll));
            trace.per(at, if blocked { 1.0 } else { self.per });
        }
        trace
    }

    /// Whether the mast stands before this direction.
    fn is_blocked(&self, [elevation, azimuth]: [f64; 2]) -> bool {
        azimuth.abs() < self.mast_half_deg.to_radians() && elevation < self.mast_top_deg.to_radians()
    }
}

/// Elevation and azimuth, between -π and π, in the frame of a ship that rolls to starboard by `roll`.
fn aboard(elevation: f64, azimuth: f64, roll: f64) -> [f64; 2] {
    let ahead = libm::cos(elevation) * libm::cos(azimuth);
    let (starboard, up) = (libm::cos(elevation) * libm::sin(azimuth), libm::sin(elevation));
    let [sin, cos] = [libm::sin(roll), libm::cos(roll)];
    let height = (up * cos + starboard * sin).clamp(-1.0, 1.0);
    let azimuth = libm::atan2(starboard * cos - up * sin, ahead);
    debug_assert!((-PI..=PI).contains(&azimuth));
    [libm::asin(height), azimuth]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::Probability;

    const HOUR: Duration = Duration::from_secs(3600);

    fn error_rates(ship: &Ship, seed: u64, lasts: Duration) -> Vec<f64> {
        let mut steps = ship.link(seed, lasts).forward.trace.error_rates(Probability::ZERO).unwrap();
        (0..lasts.as_millis() as u64 / 100).map(|step| steps.at(step * 100_000_000).get()).collect()
    }

    /// The lengths of the times in which nothing arrives, in steps.
    fn outages(error_rates: &[f64]) -> Vec<usize> {
        error_rates.split(|per| *per < 1.0).map(<[_]>::len).filter(|length| *length > 0).collect()
    }

    #[test]
    fn a_roll_to_starboard_raises_what_is_there_and_moves_what_is_ahead_to_port() {
        let [elevation, roll] = [30f64, 10.0].map(f64::to_radians);
        let [beam, _] = aboard(elevation, 90f64.to_radians(), roll);
        assert!((beam.to_degrees() - 40.0).abs() < 1e-9);
        let [_, ahead] = aboard(elevation, 0.0, roll);
        // tan = tan 30° · sin 10°.
        assert!((ahead.to_degrees() + 5.725).abs() < 1e-3, "{}", ahead.to_degrees());
    }

    #[test]
    fn the_mast_blocks_for_some_percent_of_the_time_and_with_the_roll() {
        let ship = Ship::default();
        let runs: Vec<_> = (0..40).map(|seed| error_rates(&ship, seed, HOUR)).collect();
        let dark = |run: &Vec<f64>| run.iter().filter(|per| **per == 1.0).count() as f64 / run.len() as f64;
        let mean = runs.iter().map(dark).sum::<f64>() / 40.0;
        // 14° of 360° are 3.9%; the seeds differ by whole courses towards the satellite.
        assert!((0.015..0.08).contains(&mean), "{mean}");
        let short = runs.iter().flat_map(|run| outages(run)).filter(|steps| *steps < 70).count();
        assert!(short > 50, "half a roll is 4 to 7 s: {short}");
        let calm = Ship { roll_deg: [0.0; 2], ..ship };
        let calm: Vec<_> = (0..40).flat_map(|seed| outages(&error_rates(&calm, seed, HOUR))).collect();
        // Without a roll the mast takes 14 s at a degree per second, less where a turn ends there.
        assert!(calm.len() < short && calm.iter().filter(|steps| **steps >= 139).count() * 2 > calm.len());
    }

    #[test]
    fn a_longer_one_begins_as_the_shorter_one() {
        let short = error_rates(&Ship::default(), 3, HOUR);
        assert_eq!(short, error_rates(&Ship::default(), 3, 2 * HOUR)[..short.len()]);
    }
}

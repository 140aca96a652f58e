//! An aircraft that banks in its turns.

use std::f64::consts::TAU;
use std::time::Duration;

use bentpipe_units::Rate;

use super::LONGEST;
use super::manoeuvres::Manoeuvres;
use crate::effect::TraceBuilder;
use crate::random::{Bernoulli, derive_seeds};
use crate::{DirectionConfig, LinkConfig};

/// How often the attitude changes, milliseconds.
const STEP_MS: i64 = 100;
const STEP_S: f64 = STEP_MS as f64 / 1e3;
const GRAVITY_M_S2: f64 = 9.81;

/// An aircraft below a geostationary satellite, whose wing and tail shadow the antenna on its back in turns.
///
/// A turn at a bank angle φ and a speed v changes the heading by g·tan φ/v in a second. While it lasts, the
/// satellite stands at another elevation above the plane of the wings, by where it is to the turn. Below the
/// antenna's lowest elevation everything is lost, in a band above it more and more. Both directions are
/// affected alike. The geometry is exact; no measurement of such outages is published that we know, so the
/// values are ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Aircraft {
    /// Speed, metres per second: 230.
    pub speed_m_s: f64,
    /// Bank angle in a turn, degrees: 25, the limit of most autopilots.
    pub bank_deg: f64,
    /// How fast it banks, degrees per second: 3.
    pub roll_deg_s: f64,
    /// How long it flies straight between turns: 3 to 12 min.
    pub straight: [Duration; 2],
    /// By how much a turn changes the heading, degrees: 20 to 110.
    pub turn_deg: [f64; 2],
    /// The elevation of the satellite, degrees: 30 to 50, one for a flight.
    pub elevation_deg: [f64; 2],
    /// The lowest elevation above the plane of the wings at which the antenna has a signal, degrees: 15.
    pub lowest_deg: f64,
    /// The band above it in which errors grow, degrees: 5.
    pub fade_deg: f64,
    /// Packet error rate in straight flight: 0.1%.
    pub per: f64,
    /// The rate of each direction: 10 Mbit/s.
    pub rate: Rate,
    /// One-way delay: 300 ms.
    pub delay: Duration,
}

impl Default for Aircraft {
    fn default() -> Self {
        Self {
            speed_m_s: 230.0,
            bank_deg: 25.0,
            roll_deg_s: 3.0,
            straight: [180, 720].map(Duration::from_secs),
            turn_deg: [20.0, 110.0],
            elevation_deg: [30.0, 50.0],
            lowest_deg: 15.0,
            fade_deg: 5.0,
            per: 0.001,
            rate: Rate::mbps(10),
            delay: Duration::from_millis(300),
        }
    }
}

impl Aircraft {
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
        // Of the satellite, to the right of the nose.
        let mut azimuth = random.between([0.0, TAU]);
        let straight = self.straight.map(|time| time.as_secs_f64());
        let mut manoeuvres = Manoeuvres::new(straight, self.turn_deg.map(f64::to_radians), &mut random);
        let mut trace = TraceBuilder::default();
        // Right wing down.
        let (mut bank, mut turned) = (0.0, 0.0);
        for at in (0..lasts.as_millis() as i64).step_by(STEP_MS as usize) {
            let wanted = self.bank_deg.to_radians() * manoeuvres.helm(turned, STEP_S, &mut random);
            let roll = self.roll_deg_s.to_radians() * STEP_S;
            bank += (wanted - bank).clamp(-roll, roll);
            turned = GRAVITY_M_S2 * libm::tan(bank) / self.speed_m_s * STEP_S;
            azimuth -= turned;
            trace.per(at, self.per_at(above_wings(elevation, azimuth, bank)));
        }
        trace
    }

    /// The packet error rate with the satellite so far above the plane of the wings, radians.
    fn per_at(&self, elevation: f64) -> f64 {
        let above = (elevation.to_degrees() - self.lowest_deg) / self.fade_deg.max(1e-3);
        libm::pow(self.per.max(1e-7), above.clamp(0.0, 1.0))
    }
}

/// The elevation above the plane of the wings: the part of the satellite's direction along the aircraft's own
/// upward axis, which leans to the right by the bank angle.
fn above_wings(elevation: f64, azimuth: f64, bank: f64) -> f64 {
    let to_the_right = libm::cos(elevation) * libm::sin(azimuth);
    libm::asin(libm::cos(bank) * libm::sin(elevation) + libm::sin(bank) * to_the_right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::Probability;

    const HOUR: Duration = Duration::from_secs(3600);

    fn error_rates(aircraft: &Aircraft, seed: u64, lasts: Duration) -> Vec<f64> {
        let mut steps = aircraft.link(seed, lasts).forward.trace.error_rates(Probability::ZERO).unwrap();
        (0..lasts.as_millis() as u64 / 100).map(|step| steps.at(step * 100_000_000).get()).collect()
    }

    #[test]
    fn a_satellite_to_the_side_of_the_lower_wing_is_higher_above_the_wings() {
        let [elevation, bank] = [30f64, 25.0].map(f64::to_radians);
        for (azimuth, expected) in [(90f64, 55.0), (-90.0, 5.0)] {
            let found = above_wings(elevation, azimuth.to_radians(), bank).to_degrees();
            assert!((found - expected).abs() < 1e-9, "{found}");
        }
        assert!((above_wings(elevation, 1.0, 0.0) - elevation).abs() < 1e-12);
    }

    #[test]
    fn straight_flight_is_clear_and_some_turns_are_dark() {
        let aircraft = Aircraft::default();
        let dark = |seed| {
            let error_rates = error_rates(&aircraft, seed, HOUR);
            assert!(error_rates[..1800].iter().all(|per| *per == 0.001), "straight for three minutes");
            error_rates.iter().filter(|per| **per == 1.0).count() as f64 / error_rates.len() as f64
        };
        let dark: Vec<f64> = (0..20).map(dark).collect();
        let mean = dark.iter().sum::<f64>() / 20.0;
        assert!((0.005..0.06).contains(&mean), "{dark:?}");
        let level = Aircraft { bank_deg: 5.0, ..aircraft };
        assert!(error_rates(&level, 1, HOUR).iter().all(|per| *per == 0.001), "a flat turn shadows nothing");
    }

    #[test]
    fn a_longer_one_begins_as_the_shorter_one() {
        let short = error_rates(&Aircraft::default(), 3, HOUR);
        assert_eq!(short, error_rates(&Aircraft::default(), 3, 2 * HOUR)[..short.len()]);
    }
}

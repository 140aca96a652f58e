//! Links with a name.

mod aircraft;
mod leo;
mod manoeuvres;
mod modcod;
mod rain;
mod ship;
mod variation;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bentpipe_units::{Probability, Rate};

pub use aircraft::Aircraft;
pub use leo::LeoHandovers;
pub use rain::RainFront;
pub use ship::Ship;

use crate::{DirectionConfig, LinkConfig, OutageTrace};

/// A link that stands for its kind. Each is a starting point: its [`config`](Self::config) may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Geostationary: 10 Mbit/s, 300 ms one way, no errors.
    ///
    /// Up to 35,786 km and down again light needs 239 ms below the satellite and 278 ms at the edge of its
    /// view; coding and access bring the round trip to the 600 ms of the PEPsal papers (PEPSAL; PSATS09
    /// §5.2). PSATS09 does not name the rate of its link; 10 Mbit/s is the choice made here.
    Geo,
    /// Medium Earth orbit: 50 Mbit/s, 65 ms one way, no errors.
    ///
    /// At the 8,062 km of O3b light needs 54 ms up and down at the least; its operator promised round trips
    /// of 130 to 150 ms. The rate is that of a mid-sized terminal, far below the beam's.
    Meo,
    /// Low Earth orbit: 100 Mbit/s to the terminal, 20 Mbit/s from it, 20 ms one way, no errors.
    ///
    /// The speed of light would allow 4 ms at 550 km; access and the way to the next exchange make the rest.
    /// Michel et al., "A first look at Starlink performance" (IMC 2022), measured round trips from 20 ms,
    /// with the middle half between 40 and 60 ms. Its satellite is always the same:
    /// [`LeoHandovers`](Self::LeoHandovers) changes it.
    Leo,
    /// Low Earth orbit with another satellite every 15 s: [`LeoHandovers`], of a seed.
    LeoHandovers,
    /// DVB-S2 with adaptive coding and modulation, and rain fronts above the terminal: [`RainFront`], of a
    /// seed.
    RainFront,
    /// An aircraft that banks in turns: [`Aircraft`](crate::Aircraft), of a seed.
    Aircraft,
    /// A ship whose mast comes before the satellite: [`Ship`](crate::Ship), of a seed.
    Ship,
    /// A train under a geostationary satellite: [`Geo`](Self::Geo) with PER 1% and the tunnels of a railway.
    ///
    /// The case of PSATS09 §5: the line from Bologna to Florence at 120 km/h, 33 tunnels in a journey of 48
    /// minutes, dark for 39% of it and 9 minutes in the longest. The clock starts in Bologna; after Florence
    /// the sky stays clear. Errors and tunnels affect both directions, as both have the same sky.
    Train,
}

/// The tunnels of the train profile: the "Direttissima" from Bologna to Florence, by kilometre.
const DIRETTISSIMA: &str = include_str!("../../../../data/direttissima.csv");
/// A generated trace is not longer than this.
const LONGEST: Duration = Duration::from_secs(86_400);
const TRAIN_SPEED_KMH: f64 = 120.0;

impl Profile {
    /// Every profile, from the simplest to the hardest.
    pub const ALL: [Profile; 8] = [
        Profile::Geo,
        Profile::Meo,
        Profile::Leo,
        Profile::LeoHandovers,
        Profile::RainFront,
        Profile::Aircraft,
        Profile::Ship,
        Profile::Train,
    ];

    /// The link that the profile stands for; of those that are made of a seed, one for an hour.
    pub fn config(self) -> LinkConfig {
        self.generate(1, Duration::from_secs(3600))
    }

    /// Whether its links are made of a seed.
    pub fn is_generated(self) -> bool {
        match self {
            Profile::Geo | Profile::Meo | Profile::Leo | Profile::Train => false,
            Profile::LeoHandovers | Profile::RainFront | Profile::Aircraft | Profile::Ship => true,
        }
    }

    /// The link of a seed, for at least `lasts`, but a day at the most; after that it begins anew. A longer
    /// one begins as a shorter one does. A profile that [is not generated](Self::is_generated) has one link.
    pub fn generate(self, seed: u64, lasts: Duration) -> LinkConfig {
        match self {
            Profile::LeoHandovers => LeoHandovers::default().link(seed, lasts),
            Profile::RainFront => RainFront::default().link(seed, lasts),
            Profile::Aircraft => Aircraft::default().link(seed, lasts),
            Profile::Ship => Ship::default().link(seed, lasts),
            Profile::Geo => LinkConfig::symmetric(direction(10, 300)),
            Profile::Meo => LinkConfig::symmetric(direction(50, 65)),
            Profile::Leo => LinkConfig { forward: direction(100, 20), reverse: direction(20, 20) },
            Profile::Train => LinkConfig::symmetric(train()),
        }
    }

    /// One line about it, for a list of profiles.
    pub fn summary(self) -> &'static str {
        match self {
            Profile::Geo => "geostationary: 10 Mbit/s, RTT 600 ms",
            Profile::Meo => "medium Earth orbit: 50 Mbit/s, RTT 130 ms",
            Profile::Leo => "low Earth orbit: 100 Mbit/s down, 20 Mbit/s up, RTT 40 ms",
            Profile::LeoHandovers => {
                "low Earth orbit, another satellite every 15 s: other delay and rate, a pause, losses"
            }
            Profile::RainFront => {
                "geostationary, DVB-S2 with adaptive coding: rain lets the rate fall and rise in steps"
            }
            Profile::Aircraft => {
                "an aircraft below a geostationary satellite: its wing shadows the antenna in turns"
            }
            Profile::Ship => {
                "a ship below a geostationary satellite: on some courses its mast blocks the view"
            }
            Profile::Train => {
                "a train at 120 km/h below a geostationary satellite: geo, PER 1%, 33 tunnels in 48 minutes"
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Profile::Geo => "geo",
            Profile::Meo => "meo",
            Profile::Leo => "leo",
            Profile::LeoHandovers => "leo-handovers",
            Profile::RainFront => "rain-front",
            Profile::Aircraft => "aircraft",
            Profile::Ship => "ship",
            Profile::Train => "train",
        }
    }
}

fn direction(mbit: u64, delay_ms: u64) -> DirectionConfig {
    DirectionConfig {
        rate: Some(Rate::mbps(mbit)),
        delay: Duration::from_millis(delay_ms),
        ..DirectionConfig::default()
    }
}

fn train() -> DirectionConfig {
    let outages = OutageTrace::from_railway_csv(DIRETTISSIMA, TRAIN_SPEED_KMH);
    DirectionConfig {
        per: Probability::new(0.01).expect("1% is a probability"),
        outages: outages.expect("the embedded trace is valid, as a test checks"),
        ..direction(10, 300)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no profile has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a link profile: choose geo, meo, leo, leo-handovers, rain-front, aircraft, ship or \
         train"
)]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        let found = Profile::ALL.into_iter().find(|profile| profile.name() == text);
        found.ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::ByteCount;

    #[test]
    fn a_name_reads_back() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_all_the_known_ones() {
        let error = "geos".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("\"geos\""), "{error}");
        assert!(Profile::ALL.iter().all(|profile| error.contains(profile.name())), "{error}");
    }

    #[test]
    fn geo_has_the_bandwidth_delay_product_of_500_packets() {
        let geo = Profile::Geo.config();
        assert_eq!(geo.forward, geo.reverse);
        assert_eq!(geo.forward.bdp(), Some(ByteCount::new(750_000)));
        assert_eq!(geo.forward.queue_limit(), Some(ByteCount::new(750_000)));
    }

    #[test]
    fn the_train_is_dark_for_37_of_96_kilometres_in_both_directions() {
        let train = Profile::Train.config();
        let journey_s = 96.0 / TRAIN_SPEED_KMH * 3600.0;
        let dark = train.forward.outages.total().as_secs_f64() / journey_s;
        assert!((0.385..0.395).contains(&dark), "{dark}");
        assert_eq!(train.forward, train.reverse);
        assert_eq!(train.forward.per.get(), 0.01);
    }
}

//! The configured legs, ready to give sockets their settings.

use std::collections::BTreeMap;

use bentpipe_kernel::leg::{Leg, LegSettings};
use bentpipe_link::explicit::RateAllocatorConfig;

use crate::rate_controller::{RateController, RateControllerError, Share};
use crate::settings::{SatelliteLeg, TerrestrialLeg};

/// What the terrestrial leg is called in the log.
const TERRESTRIAL: &str = "terrestrial";

/// One side of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LegId {
    /// The satellite leg at this position among the configured ones, which are in the order of their names.
    Satellite(usize),
    /// Every interface that is not a satellite leg's.
    Terrestrial,
}

/// The configured legs, ready to give sockets their settings.
#[derive(Debug)]
pub struct Legs {
    /// In the order of their names.
    satellites: Vec<Satellite>,
    terrestrial: Leg,
}

#[derive(Debug)]
struct Satellite {
    leg: Leg,
    sharer: RateAllocatorConfig,
}

impl Legs {
    /// Loads what these legs need and derives their timers, as [`Leg::prepare`]: what this kernel lacks is replaced by the next
    /// best and logged. Needs `CAP_BPF` and `CAP_PERFMON` where a congestion control is one of ours.
    pub fn prepare(satellites: &BTreeMap<String, SatelliteLeg>, terrestrial: &TerrestrialLeg) -> Self {
        Self::prepare_with(satellites, terrestrial, |settings| settings)
    }

    /// The same with settings that `adjust` may change, such as buffers that a limit makes smaller.
    pub fn prepare_with(
        satellites: &BTreeMap<String, SatelliteLeg>,
        terrestrial: &TerrestrialLeg,
        adjust: impl Fn(LegSettings) -> LegSettings,
    ) -> Self {
        let prepare = |name: &str, settings| Leg::prepare(name, &adjust(settings));
        let satellite = |(name, leg): (&String, &SatelliteLeg)| Satellite {
            leg: prepare(name, leg.settings()),
            sharer: leg.sharer(),
        };
        Self {
            satellites: satellites.iter().map(satellite).collect(),
            terrestrial: prepare(TERRESTRIAL, terrestrial.settings()),
        }
    }

    /// The satellite leg of this name.
    pub fn leg(&self, name: &str) -> Option<&Leg> {
        self.satellites().find(|leg| leg.name() == name)
    }

    /// The leg of every other interface.
    pub fn terrestrial(&self) -> &Leg {
        &self.terrestrial
    }

    /// The satellite legs, in the order of their names.
    pub fn satellites(&self) -> impl ExactSizeIterator<Item = &Leg> {
        self.satellites.iter().map(|satellite| &satellite.leg)
    }

    /// The leg of this position.
    ///
    /// # Panics
    /// There are not so many satellite legs.
    pub fn get(&self, id: LegId) -> &Leg {
        match id {
            LegId::Satellite(index) => &self.satellites[index].leg,
            LegId::Terrestrial => &self.terrestrial,
        }
    }

    /// Starts to share out those legs whose connections wait to be given their rates; `None` if there are none. Whoever opens
    /// sockets with such a leg keeps it: without it they keep to ten segments in a round trip.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn share(&self) -> Result<Option<RateController>, RateControllerError> {
        let is_shared = self.satellites().any(|leg| leg.shared().is_some());
        is_shared.then(|| RateController::start(self)).transpose()
    }

    /// The legs whose connections wait to be given their rates.
    pub(crate) fn shares(&self) -> Vec<Share> {
        let share = |satellite: &Satellite| {
            Some(Share { leg: satellite.leg.shared()?.clone(), config: satellite.sharer })
        };
        self.satellites.iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::ByteCount;

    fn satellites(text: &str) -> BTreeMap<String, SatelliteLeg> {
        toml::from_str(text).unwrap()
    }

    const TWO: &str = "[sea]\ninterface = \"sat1\"\ncongestion = \"reno\"\nsurvive_outage = \"25m\"\n\
                       [land]\ninterface = \"sat0\"\ncongestion = \"cubic\"\n";

    #[test]
    fn a_leg_is_found_by_its_name_and_by_its_place_among_the_names() {
        let legs = Legs::prepare(&satellites(TWO), &TerrestrialLeg::default());
        let names: Vec<&str> = legs.satellites().map(Leg::name).collect();
        assert_eq!(names, ["land", "sea"]);
        assert_eq!(legs.leg("sea").unwrap().congestion(), Some("reno"));
        assert!(legs.leg("sea").unwrap().timers().user_timeout.is_some());
        assert_eq!(legs.get(LegId::Satellite(0)).name(), "land");
        assert_eq!(legs.get(LegId::Terrestrial).congestion(), None);
        // An operator may call a satellite leg so; the other is not to be had by a name.
        assert!(legs.leg(TERRESTRIAL).is_none());
    }

    #[test]
    fn each_leg_is_adjusted_before_it_is_prepared() {
        let adjusted = std::cell::Cell::new(0);
        let adjust = |settings: LegSettings| {
            adjusted.set(adjusted.get() + 1);
            LegSettings { congestion: Some("reno".into()), send_buffer: Some(ByteCount::new(1)), ..settings }
        };
        let legs = Legs::prepare_with(&satellites(TWO), &TerrestrialLeg::default(), adjust);
        assert_eq!(adjusted.get(), 3);
        assert!(legs.satellites().chain([legs.terrestrial()]).all(|leg| leg.congestion() == Some("reno")));
    }

    #[test]
    fn without_explicit_rates_nobody_shares_them_out() {
        let legs = Legs::prepare(&satellites(TWO), &TerrestrialLeg::default());
        assert!(legs.share().unwrap().is_none());
    }
}

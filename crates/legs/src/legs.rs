//! The configured legs, prepared to set up sockets.

use std::collections::BTreeMap;

use bentpipe_kernel::leg::{Leg, LegSettings};
use bentpipe_kernel::rated_leg::RatedLeg;
use bentpipe_link::explicit::RateAllocatorConfig;

use crate::settings::{SatelliteLeg, TerrestrialLeg};

/// The name of the terrestrial leg in the log.
const TERRESTRIAL: &str = "terrestrial";

/// One side of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LegId {
    /// The satellite leg at this position among the configured ones, which are in the order of their names.
    Satellite(usize),
    /// Every interface that is not a satellite leg's.
    Terrestrial,
}

/// The configured legs, prepared to set up sockets.
#[derive(Debug)]
pub struct Legs {
    /// In the order of their names.
    satellites: Vec<Satellite>,
    terrestrial: Leg,
}

/// A leg whose connections are given explicit rates.
#[derive(Debug, Clone)]
pub(crate) struct ControlledLeg {
    pub(crate) leg: RatedLeg,
    pub(crate) interface: String,
    pub(crate) config: RateAllocatorConfig,
}

#[derive(Debug)]
struct Satellite {
    leg: Leg,
    interface: String,
    allocator: RateAllocatorConfig,
}

impl Legs {
    /// Loads the congestion controls of these legs and derives their timers with [`Leg::prepare`]. A feature
    /// that this kernel lacks is replaced by the next best one, with a log line. Needs `CAP_BPF` and
    /// `CAP_PERFMON` for our congestion controls.
    pub fn prepare(satellites: &BTreeMap<String, SatelliteLeg>, terrestrial: &TerrestrialLeg) -> Self {
        Self::prepare_with(satellites, terrestrial, |settings| settings)
    }

    /// [`Legs::prepare`] with settings that `adjust` may change; for example, it bounds the buffers.
    pub fn prepare_with(
        satellites: &BTreeMap<String, SatelliteLeg>,
        terrestrial: &TerrestrialLeg,
        adjust: impl Fn(LegSettings) -> LegSettings,
    ) -> Self {
        let prepare = |name: &str, settings| Leg::prepare(name, &adjust(settings));
        let satellite = |(name, leg): (&String, &SatelliteLeg)| Satellite {
            leg: prepare(name, leg.settings()),
            interface: leg.interface.as_str().to_owned(),
            allocator: leg.allocator_config(),
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

    /// The leg of all other interfaces.
    pub fn terrestrial(&self) -> &Leg {
        &self.terrestrial
    }

    /// The satellite legs, in the order of their names.
    pub fn satellites(&self) -> impl ExactSizeIterator<Item = &Leg> {
        self.satellites.iter().map(|satellite| &satellite.leg)
    }

    /// The leg with this id.
    ///
    /// # Panics
    /// If there is no satellite leg at this position.
    pub fn get(&self, id: LegId) -> &Leg {
        match id {
            LegId::Satellite(index) => &self.satellites[index].leg,
            LegId::Terrestrial => &self.terrestrial,
        }
    }

    /// The legs whose connections are given explicit rates.
    pub(crate) fn controlled(&self) -> Vec<ControlledLeg> {
        let controlled = |satellite: &Satellite| {
            let (leg, interface) = (satellite.leg.rated()?.clone(), satellite.interface.clone());
            Some(ControlledLeg { leg, interface, config: satellite.allocator })
        };
        self.satellites.iter().filter_map(controlled).collect()
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
    fn a_leg_is_found_by_name_and_by_position() {
        let legs = Legs::prepare(&satellites(TWO), &TerrestrialLeg::default());
        let names: Vec<&str> = legs.satellites().map(Leg::name).collect();
        assert_eq!(names, ["land", "sea"]);
        assert_eq!(legs.leg("sea").unwrap().congestion(), Some("reno"));
        assert!(legs.leg("sea").unwrap().timers().user_timeout.is_some());
        assert_eq!(legs.get(LegId::Satellite(0)).name(), "land");
        assert_eq!(legs.get(LegId::Terrestrial).congestion(), None);
        // An operator may give this name to a satellite leg; the terrestrial leg is not found by name.
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
}

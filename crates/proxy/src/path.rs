//! Legs and the paths between them: which settings face the client, which face the server.

use bentpipe_kernel::leg::{Leg, LegSettings};

use crate::config::{Config, Interface};

/// One side of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LegId {
    /// The satellite leg at this position among the configured ones, which are in the order of their names.
    Satellite(usize),
    /// Every interface that is not a satellite leg's.
    Terrestrial,
}

/// From the leg that a connection comes from to the leg that its server is reached by; it has its own listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    /// The leg that the client is on.
    pub client: LegId,
    /// The leg that the server is on.
    pub server: LegId,
    /// The loopback port that the path's connections are handed to.
    pub port: u16,
}

/// The number of paths between `satellites` satellite legs and the terrestrial one: all pairs but ground to ground.
pub const fn path_count(satellites: usize) -> usize {
    (satellites + 1) * (satellites + 1) - 1
}

/// The paths of a configuration, on ports from `first_port` upwards. A satellite leg has a path to itself as well:
/// terminals of a star network reach each other through the gateway.
pub fn paths(satellites: usize, first_port: u16) -> Vec<Path> {
    let legs = || (0..satellites).map(LegId::Satellite).chain([LegId::Terrestrial]);
    legs()
        .flat_map(|client| legs().map(move |server| (client, server)))
        .filter(|pair| *pair != (LegId::Terrestrial, LegId::Terrestrial))
        .zip(first_port..=u16::MAX)
        .map(|((client, server), port)| Path { client, server, port })
        .collect()
}

/// The configured legs, ready to give sockets their settings.
#[derive(Debug)]
pub(crate) struct Legs {
    satellites: Vec<Leg>,
    terrestrial: Leg,
}

impl Legs {
    pub(crate) fn prepare(config: &Config) -> Self {
        let prepare = |name: &str, settings: LegSettings| Leg::prepare(name, &config.limits.bound(settings));
        Self {
            satellites: config.legs.iter().map(|(name, leg)| prepare(name, leg.settings())).collect(),
            terrestrial: prepare("terrestrial", config.terrestrial.settings()),
        }
    }

    pub(crate) fn get(&self, id: LegId) -> &Leg {
        match id {
            LegId::Satellite(index) => &self.satellites[index],
            LegId::Terrestrial => &self.terrestrial,
        }
    }
}

/// The interfaces of the satellite legs, in the order of [`LegId::Satellite`].
pub(crate) fn interfaces(config: &Config) -> Vec<Interface> {
    config.legs.values().map(|leg| leg.interface.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_satellite_makes_three_paths_on_successive_ports() {
        let (satellite, ground) = (LegId::Satellite(0), LegId::Terrestrial);
        assert_eq!(
            paths(1, 7600),
            [
                Path { client: satellite, server: satellite, port: 7600 },
                Path { client: satellite, server: ground, port: 7601 },
                Path { client: ground, server: satellite, port: 7602 },
            ]
        );
    }

    #[test]
    fn ground_to_ground_is_never_a_path() {
        for satellites in 1..5 {
            let paths = paths(satellites, 1000);
            assert_eq!(paths.len(), path_count(satellites));
            assert!(paths.iter().all(|path| path.client != path.server || path.client != LegId::Terrestrial));
        }
    }

    #[test]
    fn the_last_port_of_all_can_be_used() {
        assert_eq!(paths(1, u16::MAX - 2).last().unwrap().port, u16::MAX);
    }
}

//! The paths between legs: which settings face the client, which face the server.

use bentpipe_kernel::Weight;
pub use bentpipe_legs::LegId;

/// The most ranges of ports that listeners have at a time: those of a configuration that a reload has
/// replaced retire late.
pub(crate) const PORT_RANGES: usize = 4;

/// From the leg that a connection comes from to the leg that its server is reached by, with a weight on both;
/// it has its own listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LegPair {
    /// The leg that the client is on.
    pub client: LegId,
    /// The leg that the server is on.
    pub server: LegId,
    /// What its connections weigh among those that share a leg.
    pub weight: Weight,
    /// The loopback port that the path's connections are handed to.
    pub port: u16,
}

/// The number of paths of one weight between `satellites` satellite legs and the terrestrial one: all pairs
/// but ground to ground.
pub const fn leg_pair_count(satellites: usize) -> usize {
    (satellites + 1) * (satellites + 1) - 1
}

/// The paths of a configuration on successive ports from `first_port` upwards: those of the default weight,
/// then those of each of `weights`, which are others. A satellite leg has a path to itself as well: terminals
/// of a star network reach each other through the gateway.
pub fn leg_pairs(satellites: usize, weights: &[Weight], first_port: u16) -> Vec<LegPair> {
    let legs = || (0..satellites).map(LegId::Satellite).chain([LegId::Terrestrial]);
    let pairs = || {
        legs()
            .flat_map(|client| legs().map(move |server| (client, server)))
            .filter(|pair| *pair != (LegId::Terrestrial, LegId::Terrestrial))
    };
    [Weight::default()]
        .into_iter()
        .chain(weights.iter().copied())
        .flat_map(|weight| pairs().map(move |(client, server)| (client, server, weight)))
        .zip(first_port..=u16::MAX)
        .map(|((client, server, weight), port)| LegPair { client, server, weight, port })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_satellite_makes_three_paths_on_successive_ports() {
        let (satellite, ground, weight) = (LegId::Satellite(0), LegId::Terrestrial, Weight::default());
        assert_eq!(
            leg_pairs(1, &[], 7600),
            [
                LegPair { client: satellite, server: satellite, weight, port: 7600 },
                LegPair { client: satellite, server: ground, weight, port: 7601 },
                LegPair { client: ground, server: satellite, weight, port: 7602 },
            ]
        );
    }

    #[test]
    fn each_weight_has_paths_of_its_own_and_leaves_the_others_where_they_are() {
        let (plain, weights) =
            (leg_pairs(2, &[], 7600), [4, 9].map(|number| Weight::try_from(number).unwrap()));
        let all = leg_pairs(2, &weights, 7600);
        assert!(all.starts_with(&plain) && all.len() == 3 * leg_pair_count(2));
        for (pair, port) in all.iter().zip(7600..) {
            assert_eq!(pair.port, port);
        }
        for (pairs, weight) in all.chunks(leg_pair_count(2)).skip(1).zip(weights) {
            let ends =
                |pairs: &[LegPair]| pairs.iter().map(|pair| (pair.client, pair.server)).collect::<Vec<_>>();
            assert!(ends(pairs) == ends(&plain) && pairs.iter().all(|pair| pair.weight == weight));
        }
    }

    #[test]
    fn ground_to_ground_is_never_a_path() {
        for satellites in 1..5 {
            let pairs = leg_pairs(satellites, &[], 1000);
            assert_eq!(pairs.len(), leg_pair_count(satellites));
            assert!(pairs.iter().all(|pair| pair.client != pair.server || pair.client != LegId::Terrestrial));
        }
    }

    #[test]
    fn the_last_port_of_all_can_be_used() {
        assert_eq!(leg_pairs(1, &[], u16::MAX - 2).last().unwrap().port, u16::MAX);
    }
}

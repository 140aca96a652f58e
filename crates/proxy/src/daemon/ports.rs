//! The ports of listeners: a range for the paths of each configuration, because listeners that a reload
//! replaces live on for a while.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Port;
use crate::error::Error;
use crate::snapshot;
use crate::types::leg_pair::{LegPair, PORT_RANGES};
use crate::worker::RETIREMENT;

/// When a range's listeners are gone after others have taken their place; with time to spare for a worker
/// that is late.
const AFTER_REPLACEMENT: Duration = Duration::from_secs(RETIREMENT.as_secs() + 8);

/// Which ports are in use.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PortRanges {
    /// The ranges that have been taken and may still have listeners, the newest last.
    taken: Vec<Taken>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Taken {
    /// Its ports; as numbers that can lie behind the last port of all.
    ports: Range<u32>,
    /// When others have taken its place.
    #[serde(with = "snapshot::optional_instant")]
    replaced: Option<Instant>,
}

impl PortRanges {
    /// The first of `count` successive ports, the lowest from `first` upwards whose listeners, if they had
    /// any, have retired, and none of which is `others`.
    pub(crate) fn free(&self, first: Port, count: usize, others: Option<u16>) -> Result<u16, Error> {
        let now = Instant::now();
        let living: Vec<&Taken> = self.taken.iter().filter(|taken| !taken.is_retired(now)).collect();
        let lowest = u32::from(first.get());
        // The lowest gap of this size begins at the beginning or where a range ends.
        let fits = |start: &u16| {
            let ports = range(*start, count);
            u32::from(*start) >= lowest
                && ports.end <= u32::from(u16::MAX) + 1
                && !others.is_some_and(|port| ports.contains(&port.into()))
                && living.iter().all(|taken| !overlap(&taken.ports, &ports))
        };
        let ends = living.iter().filter_map(|taken| u16::try_from(taken.ports.end).ok());
        let behind_others = others.and_then(|port| port.checked_add(1));
        let gap = ends.chain(behind_others).chain([first.get()]).filter(fits).min();
        gap.filter(|_| living.len() < PORT_RANGES).ok_or_else(|| {
            let soonest = living.iter().filter_map(|taken| taken.retired_at()).min().unwrap_or(now);
            let seconds = soonest.saturating_duration_since(now).as_secs() + 1;
            Error::Refused(format!(
                "the legs, the weights or proxy.port have been changed {} times within about a minute, and the listeners of \
                 those configurations still wait for the ends of handshakes; try again in {seconds} s",
                PORT_RANGES - 1
            ))
        })
    }

    /// Whether a listener of ours may still be there.
    pub(crate) fn has(&self, port: u16) -> bool {
        let now = Instant::now();
        self.taken.iter().any(|taken| !taken.is_retired(now) && taken.ports.contains(&port.into()))
    }

    /// The ports on which listeners of ours may still be there, besides those of these paths.
    pub(crate) fn all_but(&self, pairs: &[LegPair]) -> Vec<u16> {
        let now = Instant::now();
        let living = self.taken.iter().filter(|taken| !taken.is_retired(now));
        let ports = living.flat_map(|taken| taken.ports.clone()).filter_map(|port| u16::try_from(port).ok());
        ports.filter(|port| pairs.iter().all(|pair| pair.port != *port)).collect()
    }

    /// Takes note that these paths' listeners are those that serve from now on.
    pub(crate) fn take(&mut self, pairs: &[LegPair]) {
        let now = Instant::now();
        self.taken.retain(|taken| !taken.is_retired(now));
        if let Some(before) = self.taken.last_mut() {
            before.replaced = Some(now);
        }
        if let Some(first) = pairs.first() {
            self.taken.push(Taken { ports: range(first.port, pairs.len()), replaced: None });
        }
    }

    /// The first port of the listeners that serve now.
    pub(crate) fn serving(&self) -> Option<u16> {
        let last = self.taken.last().filter(|taken| taken.replaced.is_none())?;
        u16::try_from(last.ports.start).ok()
    }
}

impl Taken {
    fn retired_at(&self) -> Option<Instant> {
        self.replaced.map(|replaced| replaced + AFTER_REPLACEMENT)
    }

    fn is_retired(&self, now: Instant) -> bool {
        self.retired_at().is_some_and(|at| at <= now)
    }
}

fn range(first: u16, count: usize) -> Range<u32> {
    let first = u32::from(first);
    first..first.saturating_add(count.try_into().unwrap_or(u32::MAX))
}

fn overlap(one: &Range<u32>, other: &Range<u32>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Section;
    use crate::types::leg_pair::{leg_pair_count, leg_pairs};
    use proptest::prelude::*;

    impl PortRanges {
        /// As if so much time had passed.
        fn wait(&mut self, length: Duration) {
            for taken in &mut self.taken {
                taken.replaced = taken.replaced.map(|at| at - length);
            }
        }
    }

    fn port(number: u16) -> Port {
        Port::try_from(i64::from(number)).unwrap()
    }

    #[test]
    fn reloads_take_other_ports_until_there_are_none_and_then_ask_for_patience() {
        let (mut ranges, count) = (PortRanges::default(), leg_pair_count(2));
        for index in 0..PORT_RANGES {
            let port = ranges.free(Port::default(), count, None).unwrap();
            assert_eq!(usize::from(port), 7600 + index * count);
            ranges.take(&leg_pairs(2, &[], port));
        }
        let error = ranges.free(Port::default(), count, None).unwrap_err().to_string();
        assert!(error.contains("try again in 7"), "{error}");
    }

    #[test]
    fn a_range_whose_listeners_have_retired_is_taken_again() {
        let mut ranges = PortRanges::default();
        ranges.take(&leg_pairs(2, &[], 7600));
        ranges.take(&leg_pairs(2, &[], 7608));
        assert_eq!(ranges.free(Port::default(), 8, None).unwrap(), 7616);
        ranges.wait(AFTER_REPLACEMENT);
        assert_eq!(ranges.free(Port::default(), 8, None).unwrap(), 7600);
        assert_eq!(
            ranges.free(Port::default(), 9, None).unwrap(),
            7616,
            "there is no room for nine before 7608"
        );
    }

    #[test]
    fn the_last_port_of_all_is_the_end() {
        let (mut ranges, last) = (PortRanges::default(), port(u16::MAX));
        assert_eq!(ranges.free(port(u16::MAX - 2), 3, None).unwrap(), u16::MAX - 2);
        assert!(ranges.free(last, 2, None).is_err());
        assert_eq!(ranges.free(last, 1, None).unwrap(), u16::MAX);
        ranges.take(&leg_pairs(1, &[], u16::MAX - 2));
        assert!(ranges.free(port(u16::MAX - 2), 3, None).is_err());
    }

    #[test]
    fn a_port_of_another_program_is_left_out() {
        let mut ranges = PortRanges::default();
        for other in 7600..7603 {
            assert_eq!(ranges.free(Port::default(), 3, Some(other)).unwrap(), other + 1);
        }
        assert_eq!(ranges.free(Port::default(), 3, Some(7603)).unwrap(), 7600);
        ranges.take(&leg_pairs(1, &[], 7600));
        assert_eq!(ranges.free(Port::default(), 3, Some(7603)).unwrap(), 7604);
        assert!(ranges.free(port(u16::MAX - 2), 3, Some(u16::MAX)).is_err());
    }

    #[test]
    fn another_process_knows_which_ports_are_in_use_and_for_how_long() {
        let mut ranges = PortRanges::default();
        ranges.take(&leg_pairs(1, &[], 7600));
        ranges.take(&leg_pairs(1, &[], 7603));
        ranges.wait(AFTER_REPLACEMENT - Duration::from_secs(5));
        let mut over: PortRanges = Section::of(&ranges).unwrap().read().unwrap();
        assert!(over.has(7602) && over.has(7603) && over.serving() == Some(7603));
        over.wait(Duration::from_secs(5));
        assert!(!over.has(7602) && over.has(7603));
    }

    #[test]
    fn ports_are_ours_until_their_listeners_have_retired() {
        let mut ranges = PortRanges::default();
        ranges.take(&leg_pairs(1, &[], 7600));
        ranges.take(&leg_pairs(1, &[], 7603));
        assert!(ranges.has(7600) && ranges.has(7605) && !ranges.has(7606) && !ranges.has(7599));
        assert_eq!(ranges.all_but(&leg_pairs(1, &[], 7603)), [7600, 7601, 7602]);
        ranges.wait(AFTER_REPLACEMENT);
        assert!(!ranges.has(7602) && ranges.has(7603));
        assert!(ranges.all_but(&leg_pairs(1, &[], 7603)).is_empty());
    }

    proptest! {
        #[test]
        fn living_ranges_never_overlap_and_four_always_find_room(
            reloads in prop::collection::vec((1usize..=8, 0u16..4, 0u64..80), 1..40), other in 7590u16..8000
        ) {
            let mut ranges = PortRanges::default();
            for (satellites, offset, seconds) in reloads {
                let first = port(7600 + offset);
                if let Ok(start) = ranges.free(first, leg_pair_count(satellites), Some(other)) {
                    prop_assert!(start >= first.get());
                    prop_assert!(!range(start, leg_pair_count(satellites)).contains(&other.into()));
                    ranges.take(&leg_pairs(satellites, &[], start));
                } else {
                    prop_assert_eq!(ranges.taken.iter().filter(|taken| !taken.is_retired(Instant::now())).count(), PORT_RANGES);
                }
                for (index, one) in ranges.taken.iter().enumerate() {
                    prop_assert!(ranges.taken[..index].iter().all(|other| !overlap(&one.ports, &other.ports)));
                }
                ranges.wait(Duration::from_secs(seconds));
            }
        }
    }
}

//! The ports of listeners: four ranges in turn, because those that a reload replaces live on for a while.

use std::time::{Duration, Instant};

use crate::config::{MAX_LEGS, MAX_WEIGHTS, Port};
use crate::error::Error;
use crate::path::{Path, path_count};
use crate::worker::RETIREMENT;

/// Ports that the paths of the most legs need, of one weight.
const RANGE: u16 = path_count(MAX_LEGS) as u16;
const RANGES: u16 = 4;

/// When a range's listeners are gone after others have taken their place; with time to spare for a worker that is late.
const AFTER_REPLACEMENT: Duration = Duration::from_secs(RETIREMENT.as_secs() + 8);

/// From a path's port to that of the same path with the next weight: those of all ranges lie between, so that ranges are where
/// they are without weights.
pub(crate) const WEIGHT_STRIDE: u16 = RANGE * RANGES;

/// The number of ports from `proxy.port` upwards that the daemon may use.
pub(crate) const PORTS: u16 = WEIGHT_STRIDE * (1 + MAX_WEIGHTS as u16);

/// Which ranges are in use.
#[derive(Debug, Default)]
pub(crate) struct PortRanges {
    /// The first ports of ranges that have been taken and may still be in use, the newest last, with when they were taken.
    taken: Vec<(u16, Instant)>,
}

impl PortRanges {
    /// The first port of a range whose listeners, if it had any, have retired.
    pub(crate) fn free(&self, first: Port) -> Result<u16, Error> {
        let now = Instant::now();
        let mut soonest = None;
        for range in ranges(first.get()) {
            match self.successor_of(range) {
                Successor::NotTaken => return Ok(range),
                Successor::None => {}
                Successor::Since(replaced) if replaced + AFTER_REPLACEMENT <= now => return Ok(range),
                Successor::Since(replaced) => {
                    soonest = soonest.into_iter().chain([replaced + AFTER_REPLACEMENT]).min()
                }
            }
        }
        let wait = soonest.unwrap_or(now).saturating_duration_since(now);
        Err(Error::TooManyReloads { seconds: wait.as_secs() + 1 })
    }

    /// Takes note that these paths' listeners are those that serve from now on.
    pub(crate) fn take(&mut self, paths: &[Path]) {
        let now = Instant::now();
        if let Some(first) = paths.first() {
            self.taken.retain(|&(range, _)| range != first.port);
            self.taken.push((first.port, now));
        }
    }

    fn successor_of(&self, range: u16) -> Successor {
        match self.taken.iter().position(|&(taken, _)| taken == range) {
            None => Successor::NotTaken,
            Some(index) => self.taken.get(index + 1).map_or(Successor::None, |&(_, at)| Successor::Since(at)),
        }
    }
}

/// The first ports of all ranges.
pub(crate) fn ranges(first: u16) -> impl Iterator<Item = u16> {
    (0..RANGES).map(move |index| first.saturating_add(index * RANGE))
}

/// What has come after a range.
enum Successor {
    /// The range has no listeners.
    NotTaken,
    /// Its listeners serve.
    None,
    /// Its listeners wait for their end since then.
    Since(Instant),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::paths;

    #[test]
    fn reloads_take_other_ports_until_there_are_none_and_then_ask_for_patience() {
        let (mut ranges, first) = (PortRanges::default(), Port::default());
        for index in 0..RANGES {
            let port = ranges.free(first).unwrap();
            assert_eq!(port, 7600 + index * RANGE);
            ranges.take(&paths(2, &[], port));
        }
        let error = ranges.free(first).unwrap_err().to_string();
        assert!(error.contains("try again in 7"), "{error}");
    }

    #[test]
    fn a_range_whose_listeners_have_retired_is_taken_again() {
        let mut ranges = PortRanges::default();
        let long_ago = Instant::now() - 2 * RETIREMENT;
        ranges.taken = vec![(7600, long_ago), (7680, long_ago)];
        assert_eq!(ranges.free(Port::default()).unwrap(), 7600);
    }
}

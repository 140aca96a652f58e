use std::time::{Duration, Instant};

use bentpipe_units::Time;
use rustix::event::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// Real time as the link model counts it: nanoseconds since the link started, on CLOCK_MONOTONIC, which runs
/// alike in every process and every namespace of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    epoch: u64,
}

impl Clock {
    /// A clock that stands at zero now.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), epoch: monotonic_nanos() }
    }

    /// A clock that stands at zero until `start`, and runs from then on.
    pub(crate) fn starting_at(start: Instant) -> Self {
        let now = Self::start();
        let ahead = start.saturating_duration_since(now.started).as_nanos();
        let ago = now.started.saturating_duration_since(start).as_nanos();
        let epoch = (u128::from(now.epoch) + ahead).saturating_sub(ago);
        Self { started: start, epoch: u64::try_from(epoch).unwrap_or(u64::MAX) }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(monotonic_nanos().saturating_sub(self.epoch))
    }
}

/// A length of time as ppoll(2) takes it.
pub(crate) fn timespec(span: Duration) -> Timespec {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: i64::from(span.subsec_nanos()) }
}

fn monotonic_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_stands_at_zero_until_its_start() {
        let later = Clock::starting_at(Instant::now() + Duration::from_secs(1000));
        assert_eq!(later.now(), Time::ZERO);
        let earlier = Clock::starting_at(Instant::now() - Duration::from_millis(500));
        assert!((0.5..100.0).contains(&earlier.now().as_secs_f64()), "{earlier:?}");
    }
}

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

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(monotonic_nanos() - self.epoch)
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

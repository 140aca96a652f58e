//! The clock of timers. It stands still while the peer cannot be heard, because no answer can come then
//! (RFC 5326 §6.5, "suspend timers"), and so there is nothing to do to a timer when that changes.

use std::time::Duration;

use bentpipe_units::Time;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    /// How long it has stood still.
    stood: Duration,
    /// Since when it stands still.
    stopped: Option<Time>,
}

impl Clock {
    /// What it shows.
    pub(crate) fn read(&self, now: Time) -> Duration {
        let until = self.stopped.unwrap_or(now);
        until.since(Time::ZERO).saturating_sub(self.stood)
    }

    /// When it will show this; `None` while it stands still.
    pub(crate) fn when(&self, shows: Duration) -> Option<Time> {
        self.stopped.is_none().then(|| Time::ZERO + self.stood + shows)
    }

    pub(crate) fn run(&mut self, now: Time, runs: bool) {
        match (self.stopped, runs) {
            (Some(since), true) => {
                self.stood += now.since(since);
                self.stopped = None;
            }
            (None, false) => self.stopped = Some(now),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_and_goes_on() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let mut clock = Clock::default();
        clock.run(at(10), false);
        clock.run(at(12), false);
        assert_eq!(clock.read(at(15)), Duration::from_secs(10));
        assert_eq!(clock.when(Duration::from_secs(11)), None);
        clock.run(at(20), true);
        assert_eq!(clock.read(at(21)), Duration::from_secs(11));
        assert_eq!(clock.when(Duration::from_secs(12)), Some(at(22)));
    }
}

//! How much a counter has grown within a window of time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Samples of a growing value within the past `length`, about one for each `step`.
#[derive(Debug)]
pub(super) struct Window<T> {
    length: Duration,
    step: Duration,
    samples: VecDeque<(Instant, T)>,
}

impl<T: Copy> Window<T> {
    pub(super) fn new(length: Duration, step: Duration) -> Self {
        Self { length, step, samples: VecDeque::new() }
    }

    /// Call before each change: at `now` the value is still `value`.
    pub(super) fn before_change(&mut self, now: Instant, value: T) {
        if self.samples.back().is_none_or(|&(at, _)| now.saturating_duration_since(at) >= self.step) {
            self.samples.push_back((now, value));
            while self.samples.front().is_some_and(|&(at, _)| self.is_over(now, at)) {
                self.samples.pop_front();
            }
        }
    }

    /// The value at the start of the window, to a step; `None` if it has not changed since.
    pub(super) fn at_start(&self, now: Instant) -> Option<T> {
        self.start(now).map(|(_, value)| value)
    }

    /// The same with the time of its first change since.
    pub(super) fn start(&self, now: Instant) -> Option<(Instant, T)> {
        self.samples.iter().find(|&&(at, _)| !self.is_over(now, at)).copied()
    }

    fn is_over(&self, now: Instant, at: Instant) -> bool {
        now.saturating_duration_since(at) > self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_recent_entries_and_forgets_older_ones() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut window = Window::new(10 * second, second);
        assert_eq!(window.at_start(start), None);
        // One is added at each half second, up to 20 s.
        for half in 0..40u32 {
            window.before_change(start + half * second / 2, half);
        }
        let now = start + 20 * second;
        assert_eq!(window.at_start(now), Some(20));
        assert!(window.samples.len() <= 12, "{window:?}");
        // Nothing is added any more.
        assert_eq!(window.at_start(now + 9 * second), Some(38));
        assert_eq!(window.at_start(now + 11 * second), None);
        // Changes after an idle time are not mixed with those before it.
        window.before_change(now + 60 * second, 40);
        assert_eq!(window.at_start(now + 60 * second), Some(40));
    }
}

//! Values that change at given times.

use std::sync::Arc;
use std::time::Duration;

use bentpipe_units::Time;

/// A piecewise constant function of time, and a place on it that only moves forward.
#[derive(Debug, Clone)]
pub(crate) struct Steps<T> {
    /// Starts, nanoseconds, and values. The first starts at zero.
    steps: Arc<[(u64, T)]>,
    period: Option<u64>,
    /// When the current round of the period began.
    round: u64,
    index: usize,
    /// The integral up to the start of the current step; of rates only.
    before: u128,
}

impl<T: Copy> Steps<T> {
    /// `first` holds until the first of the steps.
    pub(crate) fn new(first: T, steps: &[(Time, T)], period: Option<Duration>) -> Self {
        let begins_late = steps.first().is_none_or(|(at, _)| *at > Time::ZERO);
        let first = begins_late.then_some((0, first));
        let steps = first.into_iter().chain(steps.iter().map(|&(at, value)| (at.as_nanos(), value)));
        let period = period.map(|period| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1));
        Self { steps: steps.collect(), period, round: 0, index: 0, before: 0 }
    }

    fn value(&self) -> T {
        self.steps[self.index].1
    }

    fn start(&self) -> u64 {
        self.round.saturating_add(self.steps[self.index].0)
    }

    /// When the current step ends, nanoseconds; `None` if it is the last one.
    pub(crate) fn end(&self) -> Option<u64> {
        let next = self.steps.get(self.index + 1).map(|step| step.0);
        Some(self.round.saturating_add(next.or(self.period)?))
    }

    fn advance(&mut self) {
        self.index += 1;
        if self.index == self.steps.len() {
            self.round = self.round.saturating_add(self.period.unwrap_or(u64::MAX));
            self.index = 0;
        }
    }

    /// The value at a time that is not before that of an earlier call.
    pub(crate) fn at(&mut self, nanos: u64) -> T {
        while self.end().is_some_and(|end| end <= nanos && end < u64::MAX) {
            self.advance();
        }
        self.value()
    }
}

impl Steps<u64> {
    /// What the current step adds to the integral.
    fn area(&self, end: u64) -> u128 {
        u128::from(end - self.start()) * u128::from(self.value())
    }

    fn advance_past(&mut self, end: u64) {
        self.before += self.area(end);
        self.advance();
    }

    /// The integral from zero to a time that is not before that of an earlier call.
    pub(crate) fn integral(&mut self, nanos: u64) -> u128 {
        while let Some(end) = self.end().filter(|&end| end <= nanos && end < u64::MAX) {
            self.advance_past(end);
        }
        self.before + self.area(nanos.max(self.start()))
    }

    /// The first whole nanosecond at which the integral is at least that, `u64::MAX` if it never is. It is not
    /// less than in an earlier call.
    pub(crate) fn time_of(&mut self, integral: u128) -> u64 {
        while let Some(end) = self.end().filter(|&end| end < u64::MAX) {
            if self.before + self.area(end) >= integral {
                break;
            }
            self.advance_past(end);
        }
        let (missing, rate) = (integral.saturating_sub(self.before), u128::from(self.value()));
        if missing == 0 {
            return self.start();
        }
        let nanos =
            if rate == 0 { u64::MAX } else { u64::try_from(missing.div_ceil(rate)).unwrap_or(u64::MAX) };
        self.start().saturating_add(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn a_value_holds_until_the_next_one_and_the_last_one_for_ever() {
        let mut steps = Steps::new('a', &[(at(10), 'b'), (at(20), 'c')], None);
        let values = [0, 9, 10, 19, 20, u64::MAX].map(|nanos| steps.at(nanos));
        assert_eq!(values, ['a', 'a', 'b', 'b', 'c', 'c']);
    }

    #[test]
    fn with_a_period_everything_begins_anew() {
        let mut steps = Steps::new('a', &[(at(10), 'b')], Some(Duration::from_nanos(15)));
        let values: String = (0..45).step_by(5).map(|nanos| steps.at(nanos)).collect();
        assert_eq!(values, "aabaabaab");
    }

    #[test]
    fn a_pause_for_ever_never_ends() {
        let mut steps = Steps::new(8, &[(at(10), 0)], None);
        assert_eq!((steps.time_of(80), steps.time_of(81)), (10, u64::MAX));
    }

    proptest! {
        #[test]
        fn the_integral_is_the_sum_of_all_nanoseconds(
            rows in prop::collection::btree_map(0u64..200, 0u64..5, 1..8),
            first in 0u64..5,
            period in prop::option::of(200u64..300),
        ) {
            let rows: Vec<_> = rows.into_iter().map(|(start, rate)| (at(start), rate)).collect();
            let new = || Steps::new(first, &rows, period.map(Duration::from_nanos));
            let [mut values, mut integral, mut times] = [new(), new(), new()];
            let (mut sum, mut reached) = (0u128, 0u128);
            for nanos in 0..1000 {
                prop_assert_eq!(integral.integral(nanos), sum);
                if sum > reached {
                    // This is the first time at which it is so much.
                    prop_assert_eq!(times.time_of(sum), nanos);
                    reached = sum;
                }
                sum += u128::from(values.at(nanos));
            }
        }
    }
}

//! Values that change with time, and what a rate that changes carries.

/// A piecewise constant function of time; with a period it begins anew after it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Steps<T> {
    /// When each value begins, nanoseconds; the first at zero.
    steps: Vec<(u64, T)>,
    period: Option<u64>,
}

impl<T: Copy> Steps<T> {
    /// `first` holds until the first of `changes`.
    pub(crate) fn new(first: T, changes: &[(u64, T)], period: Option<u64>) -> Self {
        let mut steps = changes.to_vec();
        if steps.first().is_none_or(|(at, _)| *at > 0) {
            steps.insert(0, (0, first));
        }
        Self { steps, period }
    }

    pub(crate) fn at(&self, nanos: u64) -> T {
        let within = self.period.map_or(nanos, |period| nanos % period);
        self.steps[self.index(within)].1
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.steps.iter().map(|(_, value)| *value)
    }

    /// The step that covers a time within the period.
    fn index(&self, within: u64) -> usize {
        if self.steps.len() == 1 { 0 } else { self.steps.partition_point(|(at, _)| *at <= within) - 1 }
    }
}

/// The work that a transmitter can have done since the beginning, in units of 1 bit/s times 1 ns: the
/// integral of its rate.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    rates: Steps<u64>,
    /// The integral up to the beginning of each step.
    before: Vec<u128>,
    /// The integral over a period.
    of_period: u128,
}

/// The units of work that a byte is.
pub(crate) const BYTE: u128 = 8_000_000_000;

impl Service {
    pub(crate) fn new(rates: Steps<u64>) -> Self {
        let mut before = vec![0];
        for pair in rates.steps.windows(2) {
            let [(start, rate), (end, _)] = pair else { continue };
            before.push(before[before.len() - 1] + u128::from(end - start) * u128::from(*rate));
        }
        let mut service = Self { rates, before, of_period: 0 };
        if let Some(period) = service.rates.period {
            service.of_period = service.within(period);
        }
        service
    }

    /// The integral up to a time within the first period, its end included.
    fn within(&self, nanos: u64) -> u128 {
        let index = self.rates.index(nanos);
        let (start, rate) = self.rates.steps[index];
        self.before[index] + u128::from(nanos - start) * u128::from(rate)
    }

    /// What can have been done up to a time.
    pub(crate) fn until(&self, nanos: u64) -> u128 {
        match self.rates.period {
            None => self.within(nanos),
            Some(period) => u128::from(nanos / period) * self.of_period + self.within(nanos % period),
        }
    }

    /// The first nanosecond at which so much can have been done, which is above zero.
    pub(crate) fn time_of(&self, work: u128) -> u64 {
        let (rounds, work) = match self.rates.period {
            Some(_) if self.of_period == 0 => return u64::MAX,
            Some(_) => ((work - 1) / self.of_period, (work - 1) % self.of_period + 1),
            None => (0, work),
        };
        // The last step before whose beginning less had been done.
        let index = self.before.partition_point(|before| *before < work) - 1;
        let (start, rate) = self.rates.steps[index];
        let nanos = match u128::from(rate) {
            0 => return u64::MAX,
            rate => (work - self.before[index]).div_ceil(rate) + u128::from(start),
        };
        let period = u128::from(self.rates.period.unwrap_or(0));
        u64::try_from(rounds * period + nanos).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_constant_rate_takes_its_time() {
        let service = Service::new(Steps::new(10_000_000, &[], None));
        assert_eq!(service.time_of(1500 * BYTE), 1_200_000);
        assert_eq!(service.until(1_200_000), 1500 * BYTE);
    }

    proptest! {
        #[test]
        fn the_work_is_the_sum_of_all_nanoseconds(
            rows in prop::collection::btree_map(0u64..200, 0u64..5, 1..8),
            first in 0u64..5,
            period in prop::option::of(200u64..300),
        ) {
            let rows: Vec<_> = rows.into_iter().collect();
            let steps = Steps::new(first, &rows, period);
            let service = Service::new(steps.clone());
            let (mut sum, mut reached) = (0u128, 0u128);
            for nanos in 0..1000 {
                prop_assert_eq!(service.until(nanos), sum);
                if sum > reached {
                    prop_assert_eq!(service.time_of(sum), nanos);
                    reached = sum;
                }
                sum += u128::from(steps.at(nanos));
            }
        }
    }
}

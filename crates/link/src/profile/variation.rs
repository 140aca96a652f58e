//! Random variation around a mean.

use std::time::Duration;

use crate::random::Bernoulli;

/// A Gauss–Markov process of mean zero and variance one in steps of time: what ITU-R P.1853 calls a
/// first-order low-pass filter of white noise.
#[derive(Debug, Clone)]
pub(super) struct Variation {
    /// The correlation from step to step.
    correlation: f64,
    value: Option<f64>,
}

impl Variation {
    /// Correlated by 1/e after `correlation`, in steps of `step`.
    pub(super) fn new(correlation: Duration, step: Duration) -> Self {
        let steps = step.as_secs_f64() / correlation.as_secs_f64().max(1e-9);
        Self { correlation: libm::exp(-steps), value: None }
    }

    /// The value at the next step; the first one is of the stationary distribution. Takes two draws.
    pub(super) fn next(&mut self, random: &mut Bernoulli) -> f64 {
        let noise = random.normal();
        let value = match self.value {
            Some(value) => {
                self.correlation * value + libm::sqrt(1.0 - self.correlation * self.correlation) * noise
            }
            None => noise,
        };
        self.value = Some(value);
        value
    }
}

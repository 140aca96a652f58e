//! Statistics over several runs: mean, spread, confidence intervals, and the fairness of shares.
//!
//! Nothing here is ever NaN: a value that cannot be computed is [`None`].

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};
use std::fmt;

use serde::{Deserialize, Serialize};

/// The values of one quantity, one for each seed and in the order of the seeds. There is at least one, and
/// all are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample(Vec<f64>);

/// The values of one quantity over several runs, in a few figures. All are in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// How many values there were, at least one.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation as a sample, that is with n − 1. None of one value.
    pub standard_deviation: Option<f64>,
    /// Half the width of the 95% confidence interval of the mean. None of one value.
    pub half_width: Option<f64>,
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
}

/// A value, with half the width of its 95% confidence interval where several runs gave it one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The value, for several runs their mean.
    #[serde(with = "crate::number")]
    pub value: f64,
    /// Half the interval's width, in the value's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_width: Option<f64>,
}

impl Sample {
    /// `None` if there are no values, if one is not finite, or if their spread exceeds an `f64`.
    pub fn of(values: impl Into<Vec<f64>>) -> Option<Self> {
        let values = values.into();
        Summary::of(&values).map(|_| Self(values))
    }

    /// The values by seed.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The values in a few figures.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.0).expect("checked when it was made")
    }

    /// Their mean.
    pub fn mean(&self) -> f64 {
        self.summary().mean
    }

    /// The mean and its 95% interval.
    pub fn estimate(&self) -> Estimate {
        self.summary().estimate()
    }

    /// This quantity and another one of the same seeds, combined seed by seed. `None` if a result is not
    /// finite.
    ///
    /// # Panics
    /// If the samples have different numbers of seeds.
    pub fn paired(&self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Option<Self> {
        assert_eq!(self.0.len(), other.0.len(), "pairs have the same seeds");
        Self::of(
            self.0.iter().zip(&other.0).map(|(&ours, &theirs)| combine(ours, theirs)).collect::<Vec<_>>(),
        )
    }

    /// How many times another quantity of the same seeds it is: the geometric mean of the ratios seed by
    /// seed, and half the width of its 95% interval. Pairs have a smaller variance than the two means, as
    /// both met the same losses. Where a value is not above zero there are no logarithms, and it is the ratio
    /// of the means without an interval.
    pub fn ratio_to(&self, other: &Self) -> Estimate {
        let logarithms = self.paired(other, |ours, theirs| (ours / theirs).ln());
        let Some(logarithms) = logarithms.map(|logarithms| logarithms.summary()) else {
            return Estimate::from(self.mean() / other.mean());
        };
        let value = logarithms.mean.exp();
        Estimate { value, half_width: logarithms.half_width.map(|half| value * half.sinh()) }
    }
}

impl Summary {
    /// Summarises `values`. `None` if there are none, if one is not finite, or if their spread exceeds an
    /// `f64`.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let count = values.len();
        let (mean, squares) = mean_and_squares(values);
        let freedom = count - 1;
        let standard_deviation = (freedom > 0).then(|| (squares / freedom as f64).sqrt());
        let half_width = standard_deviation
            .and_then(|deviation| Some(student_t(0.975, freedom)? * deviation / (count as f64).sqrt()));
        let finite = mean.is_finite() && half_width.is_none_or(f64::is_finite);
        finite.then(|| Self { count, mean, standard_deviation, half_width, median: median(values) })
    }

    /// The mean and its interval.
    pub fn estimate(&self) -> Estimate {
        Estimate { value: self.mean, half_width: self.half_width }
    }

    /// Whether the two 95% confidence intervals have a point in common. None if one of them is of a single
    /// value, which says nothing about its spread.
    pub fn overlaps(&self, other: &Self) -> Option<bool> {
        let reach = self.half_width? + other.half_width?;
        Some((self.mean - other.mean).abs() <= reach)
    }
}

impl Estimate {
    /// The same in another unit: `in_unit(1e6)` makes megabits of bits.
    ///
    /// # Panics
    /// If `size` is not above zero.
    pub fn in_unit(self, size: f64) -> Self {
        assert!(size > 0.0, "a unit of size {size}");
        Self { value: self.value / size, half_width: self.half_width.map(|half| half / size) }
    }

    /// The ends of the interval. None where there is no interval.
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.half_width.map(|half| (self.value - half, self.value + half))
    }
}

/// The value with its interval, such as `3.42 ± 0.12`, with the formatter's precision.
impl fmt::Display for Estimate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.value, formatter)?;
        match self.half_width {
            Some(half) => write!(formatter, " ± ").and_then(|()| fmt::Display::fmt(&half, formatter)),
            None => Ok(()),
        }
    }
}

/// A value that is known without a spread, such as that of a single run or a formula.
impl From<f64> for Estimate {
    fn from(value: f64) -> Self {
        Self { value, half_width: None }
    }
}

impl From<Summary> for Estimate {
    fn from(summary: Summary) -> Self {
        summary.estimate()
    }
}

impl From<&Sample> for Estimate {
    fn from(sample: &Sample) -> Self {
        sample.estimate()
    }
}

impl From<Sample> for Estimate {
    fn from(sample: Sample) -> Self {
        sample.estimate()
    }
}

/// The 95th percentile of values in ascending order, by rank: of twenty values the nineteenth.
///
/// # Panics
/// If there are none.
pub fn at_95(sorted: &[f64]) -> f64 {
    sorted[(sorted.len() * 95).div_ceil(100) - 1]
}

/// Jain's fairness index of the shares of n users: (Σx)² / (n·Σx²), from 1/n (one user has everything) to 1
/// (all have the same).
///
/// Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation
/// in Shared Computer Systems", DEC-TR-301, 1984. None where it has no meaning: without users, if nobody got
/// anything, or if a share is negative or not finite.
pub fn jain_index(shares: &[f64]) -> Option<f64> {
    let largest = shares.iter().copied().fold(0.0, f64::max);
    let meaningful = shares.iter().all(|share| share.is_finite() && *share >= 0.0);
    if largest == 0.0 || !meaningful {
        return None;
    }
    // The index does not depend on the unit: with the largest share as the unit no square overflows.
    let relative = || shares.iter().map(|share| share / largest);
    let sum: f64 = relative().sum();
    let squares: f64 = relative().map(|share| share * share).sum();
    Some(sum * sum / (shares.len() as f64 * squares))
}

/// A quantile of Student's t distribution, from the median up: with `probability` p, the value that a t of so
/// many degrees of freedom does not exceed with probability p. None without a degree of freedom.
///
/// The distribution function of a whole number of degrees is a finite sum of powers of a cosine (Abramowitz
/// and Stegun 1964, 26.7.3 and 26.7.4), and the quantile is where bisection finds it. Beyond a thousand
/// degrees it is that of a thousand, by 0.003 at most too large at 97.5%.
///
/// # Panics
/// If the probability is below one half or not below one.
pub fn student_t(probability: f64, freedom: usize) -> Option<f64> {
    assert!((0.5..1.0).contains(&probability), "the quantile at {probability}");
    let freedom = freedom.min(1000);
    if freedom == 0 {
        return None;
    }
    // The angle whose tangent is t/√ν is bounded, unlike t.
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        let below = f64::midpoint(1.0, within_angle(middle, freedom)) < probability;
        if below { low = middle } else { high = middle }
    }
    Some((freedom as f64).sqrt() * f64::midpoint(low, high).tan())
}

/// The probability that |t| ≤ √ν · tan θ, with θ = `angle` and ν = `freedom`.
fn within_angle(angle: f64, freedom: usize) -> f64 {
    let (sine, cosine) = angle.sin_cos();
    let odd = freedom % 2 == 1;
    let terms = freedom / 2;
    let mut term = if odd { cosine } else { 1.0 };
    let mut sum = 0.0;
    for index in 1..=terms {
        sum += term;
        let index = 2.0 * index as f64;
        let factor = if odd { index / (index + 1.0) } else { (index - 1.0) / index };
        term *= factor * cosine * cosine;
    }
    if odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum }
}

/// The mean and the sum of squared differences from it, in one pass that loses no digits where the values are
/// close together (Welford 1962): equal values have a deviation of exactly zero.
fn mean_and_squares(values: &[f64]) -> (f64, f64) {
    let (mut mean, mut squares) = (0.0, 0.0);
    for (index, value) in values.iter().enumerate() {
        let difference = value - mean;
        mean += difference / (index + 1) as f64;
        squares += difference * (value - mean);
    }
    (mean, squares)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::of(values).unwrap()
    }

    #[test]
    fn what_both_of_a_pair_have_in_common_does_not_widen_the_interval_of_their_ratio() {
        let seeds = [1.0, 5.0, 25.0, 3.0];
        let twice = sample(&seeds.map(|value| 2.0 * value)).ratio_to(&sample(&seeds));
        assert!(close(twice.value, 2.0, 1e-12) && twice.half_width.unwrap() < 1e-12, "{twice:?}");
        let logarithms = [0.1f64, 0.3];
        let ratio = sample(&logarithms.map(f64::exp)).ratio_to(&sample(&[1.0, 1.0]));
        assert!(close(ratio.value, 0.2f64.exp(), 1e-12));
        assert!(close(ratio.half_width.unwrap(), 0.2f64.exp() * (12.7062 * 0.1f64).sinh(), 1e-4));
    }

    #[test]
    fn a_ratio_to_a_zero_has_no_interval() {
        assert_eq!(sample(&[0.0, 2.0]).ratio_to(&sample(&[1.0, 1.0])), Estimate::from(1.0));
    }

    fn close(left: f64, right: f64, within: f64) -> bool {
        (left - right).abs() <= within
    }

    #[test]
    fn the_t_quantiles_are_the_published_ones() {
        let published =
            [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (19, 2.093), (29, 2.045), (30, 2.042)];
        let beyond =
            [(31, 2.040), (35, 2.030), (40, 2.021), (50, 2.009), (60, 2.000), (80, 1.990), (100, 1.984)];
        for (freedom, quantile) in published.into_iter().chain(beyond).chain([(1000, 1.962)]) {
            let ours = student_t(0.975, freedom).unwrap();
            assert!(close(ours, quantile, 5.1e-4), "{ours} instead of {quantile} for {freedom}");
        }
        assert_eq!(student_t(0.975, 0), None);
        // The same table's columns of 95% and 99.5%.
        for (probability, freedom, quantile) in [(0.95, 1, 6.314), (0.95, 10, 1.812), (0.995, 5, 4.032)] {
            assert!(close(student_t(probability, freedom).unwrap(), quantile, 5.1e-4));
        }
        assert!(close(student_t(0.5, 7).unwrap(), 0.0, 1e-12));
    }

    #[test]
    fn the_quantile_falls_towards_the_normal_one() {
        let quantiles: Vec<f64> = (1..200).filter_map(|freedom| student_t(0.975, freedom)).collect();
        assert!(quantiles.windows(2).all(|pair| pair[0] > pair[1]));
        assert!(close(student_t(0.975, usize::MAX).unwrap(), 1.959_964, 3e-3));
    }

    /// The squared differences from the mean of 5 add up to 32.
    #[test]
    fn a_summary_has_mean_deviation_interval_and_median() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((summary.count, summary.mean, summary.median), (8, 5.0, 4.5));
        let deviation = (32.0_f64 / 7.0).sqrt();
        assert!(close(summary.standard_deviation.unwrap(), deviation, 1e-12));
        assert!(close(summary.half_width.unwrap(), 2.364_624 * deviation / 8.0_f64.sqrt(), 1e-6));
    }

    #[test]
    fn one_value_has_no_interval() {
        let summary = Summary::of(&[3.0]).unwrap();
        assert_eq!((summary.mean, summary.median, summary.standard_deviation), (3.0, 3.0, None));
        assert_eq!((summary.half_width, summary.estimate().interval()), (None, None));
        assert_eq!(summary.overlaps(&Summary::of(&[1.0, 2.0]).unwrap()), None);
    }

    #[test]
    fn results_without_a_summary_are_none() {
        for values in [&[][..], &[1.0, f64::NAN], &[f64::INFINITY], &[f64::MAX, -f64::MAX]] {
            assert_eq!(Summary::of(values), None, "{values:?}");
        }
    }

    #[test]
    fn equal_values_have_no_spread() {
        let summary = Summary::of(&[0.1; 7]).unwrap();
        assert_eq!((summary.mean, summary.half_width, summary.median), (0.1, Some(0.0), 0.1));
    }

    #[test]
    fn intervals_overlap_up_to_the_point_where_they_touch() {
        let summary = |mean: f64, half: f64| Summary {
            count: 5,
            mean,
            standard_deviation: Some(1.0),
            half_width: Some(half),
            median: mean,
        };
        assert_eq!(summary(1.0, 1.0).overlaps(&summary(3.0, 1.0)), Some(true));
        assert_eq!(summary(3.5, 1.0).overlaps(&summary(1.0, 1.0)), Some(false));
        assert_eq!(summary(1.0, 5.0).overlaps(&summary(2.0, 0.1)), Some(true));
    }

    #[test]
    fn an_estimate_changes_its_unit_with_its_interval() {
        let estimate = Estimate { value: 5e6, half_width: Some(1e6) }.in_unit(1e6);
        assert_eq!(estimate.interval(), Some((4.0, 6.0)));
    }

    #[test]
    fn equal_shares_are_fair_and_a_single_winner_is_not() {
        assert_eq!(jain_index(&[2.0, 2.0, 2.0]), Some(1.0));
        assert_eq!(jain_index(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert!(close(jain_index(&[1.0, 2.0, 3.0]).unwrap(), 36.0 / 42.0, 1e-12));
    }

    #[test]
    fn the_index_does_not_depend_on_the_unit() {
        for unit in [1e-200, 1.0, 1e200] {
            assert!(close(jain_index(&[unit, 3.0 * unit]).unwrap(), 0.8, 1e-12), "{unit}");
        }
    }

    #[test]
    fn fairness_without_flows_or_goodput_is_none() {
        for shares in [&[][..], &[0.0, 0.0], &[1.0, -1.0], &[1.0, f64::NAN], &[f64::INFINITY, 1.0]] {
            assert_eq!(jain_index(shares), None, "{shares:?}");
        }
    }
}

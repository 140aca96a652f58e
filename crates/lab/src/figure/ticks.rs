//! Where an axis begins and ends, and which of its values are labelled.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::{Axis, Scale};
use crate::statistics::Estimate;

/// About how many labels an axis gets.
const LABELS: f64 = 7.0;
/// Values beyond this cannot be drawn: the length of an axis between two of them would overflow.
const LIMIT: f64 = 1e300;
/// A logarithmic axis of this many decades has no room for labels between them.
const FEW_DECADES: i32 = 2;
/// A logarithmic axis of this many decades has no room for lines between them.
const SOME_DECADES: i32 = 8;

/// An axis with its labelled values; also the library's idea of a coordinate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ticks {
    scale: Scale,
    low: f64,
    high: f64,
    labels: Vec<(f64, String)>,
    minor: Vec<f64>,
}

impl Ticks {
    /// An axis that has room for all `values` that can be drawn on it.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let values =
            values.chain(axis.including.iter().copied()).filter(|value| drawable(axis.scale, *value));
        let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
            let (low, high) = ends.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        match axis.scale {
            Scale::Linear => Self::linear(ends.unwrap_or((0.0, 1.0))),
            Scale::Log => Self::log(ends.unwrap_or((1.0, 10.0))),
        }
    }

    /// An axis of `names`, the first at 0.5, the next at 1.5 and so on.
    pub(super) fn categories(names: &[String]) -> Self {
        let labels = names.iter().enumerate().map(|(index, name)| (index as f64 + 0.5, name.clone()));
        let high = names.len().max(1) as f64;
        Self { scale: Scale::Linear, low: 0.0, high, labels: labels.collect(), minor: Vec::new() }
    }

    /// The lower end, from which bars rise: zero, unless the scale is logarithmic.
    pub(super) fn base(&self) -> f64 {
        match self.scale {
            Scale::Linear => 0.0,
            Scale::Log => self.low,
        }
    }

    /// The nearest value on the axis.
    pub(super) fn clamp(&self, value: f64) -> f64 {
        value.clamp(self.low, self.high)
    }

    /// The length of the longest label, in letters.
    pub(super) fn longest_label(&self) -> usize {
        self.labels.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0)
    }

    fn linear((low, high): (f64, f64)) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let high = if high - low > 1e-300 { high } else { low + 1.0 };
        let (step, decimals) = nice_step((high - low) / LABELS);
        let (low, high) = (end_beyond(low, step), end_beyond(high, step));
        let first = (low / step - 1e-9).ceil();
        let count = ((high - low) / step + 1.0) as usize;
        let labels = (0..=count)
            .map(|index| (first + index as f64) * step)
            .filter(|value| *value <= high)
            .map(|value| (value, linear_label(value, step, decimals)))
            .collect();
        Self { scale: Scale::Linear, low, high, labels, minor: Vec::new() }
    }

    fn log((low, high): (f64, f64)) -> Self {
        let mut first = rung_at_or_below(low);
        let mut last = rung_at_or_below(high);
        while rung(last) < high {
            last += 1;
        }
        if first == last {
            (first, last) = (first - 1, last + 1);
        }
        let (low, high) = (rung(first), rung(last));
        let decades = (last - first) / 3;
        let labels = (first..=last)
            .filter(|index| decades <= FEW_DECADES || index % (3 * decade_step(decades)) == 0)
            .map(|index| (rung(index), log_label(index)))
            .collect();
        let minor = if decades <= SOME_DECADES { within_decades(first, last) } else { Vec::new() };
        Self { scale: Scale::Log, low, high, labels, minor }
    }

    /// How far along the axis a value lies: 0 at its low end, 1 at its high end.
    fn position(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
        }
    }
}

impl Ranged for Ticks {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        start + (f64::from(end - start) * self.position(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            self.minor.clone()
        } else {
            self.labels.iter().map(|(value, _)| *value).collect()
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Ticks {
    fn format_ext(&self, value: &f64) -> String {
        let label = self.labels.iter().find(|(labelled, _)| labelled == value);
        label.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Whether a value has a place on an axis of this scale.
pub(super) fn drawable(scale: Scale, value: f64) -> bool {
    value.abs() < LIMIT && (scale == Scale::Linear || value > 1.0 / LIMIT)
}

/// The values that an axis must show of an estimate. Down to a tenth on a logarithmic one: an interval that
/// ends just above zero would take all its room.
pub(super) fn reach(scale: Scale, estimate: Estimate) -> [f64; 3] {
    let value = estimate.value;
    let (low, high) = estimate.interval().unwrap_or((value, value));
    match scale {
        Scale::Linear => [low, value, high],
        Scale::Log => [low.max(value / 10.0), value, high],
    }
}

/// The end of an axis: at the next multiple of the step, unless a twentieth beyond the last value is nearer.
fn end_beyond(value: f64, step: f64) -> f64 {
    let multiple = (value.abs() / step - 1e-9).ceil() * step;
    multiple.min(value.abs() * 1.05).copysign(value)
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`, and how many decimals it has.
fn nice_step(least: f64) -> (f64, usize) {
    let mut index = rung_at_or_below(least);
    while rung(index) < least {
        index += 1;
    }
    let decimals = usize::try_from(-index.div_euclid(3)).unwrap_or(0);
    (rung(index), decimals)
}

fn linear_label(value: f64, step: f64, decimals: usize) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if step >= 1e5 || decimals > 5 {
        // As many digits as the step has, which is one.
        let digits = (value.abs().log10().floor() - step.log10().floor()).max(0.0) as usize;
        format!("{value:.digits$e}")
    } else {
        format!("{value:.decimals$}")
    }
}

/// The ladder … 0.5, 1, 2, 5, 10, 20 …: rung 0 is 1, rung 3 is 10.
fn rung(index: i32) -> f64 {
    power_of_ten([1, 2, 5][index.rem_euclid(3) as usize], index.div_euclid(3))
}

fn rung_at_or_below(value: f64) -> i32 {
    let mut index = 3 * (value.log10().floor() as i32 + 1);
    while rung(index) > value {
        index -= 1;
    }
    index
}

/// `digit` · 10^`exponent`, the `f64` nearest to it: reading the decimal is exact, multiplying would not be.
fn power_of_ten(digit: i32, exponent: i32) -> f64 {
    format!("{digit}e{exponent}").parse().expect("it is a number")
}

fn log_label(index: i32) -> String {
    let value = rung(index);
    if (1e-4..1e6).contains(&value) { value.to_string() } else { format!("{value:e}") }
}

/// How many decades lie between two labels.
fn decade_step(decades: i32) -> i32 {
    1 + decades / 12
}

/// All of 1, 2 … 9 times a power of ten between two rungs.
fn within_decades(first: i32, last: i32) -> Vec<f64> {
    let (low, high) = (rung(first), rung(last));
    (first.div_euclid(3)..=last.div_euclid(3))
        .flat_map(|exponent| (1..10).map(move |digit| power_of_ten(digit, exponent)))
        .filter(|value| (low..=high).contains(value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64]) -> Vec<String> {
        Ticks::new(axis, values.iter().copied()).labels.into_iter().map(|(_, label)| label).collect()
    }

    fn linear() -> Axis {
        Axis::new("time", "s")
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_labels() {
        assert_eq!(labels(&linear(), &[37.0, 158.3]), ["0", "50", "100", "150"]);
        assert_eq!(labels(&linear(), &[0.6]), ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]);
        assert_eq!(labels(&linear(), &[-1.0, 1.0]), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
        assert_eq!(labels(&linear(), &[3e6]), ["0", "5e5", "1.0e6", "1.5e6", "2.0e6", "2.5e6", "3.0e6"]);
    }

    #[test]
    fn a_linear_axis_ends_soon_after_the_data() {
        let high = |value: f64| Ticks::new(&linear(), [value].into_iter()).high;
        assert_eq!((high(600.0), high(590.0), high(200.0)), (600.0, 600.0, 200.0));
        assert!((166.0..166.5).contains(&high(158.3)));
    }

    #[test]
    fn a_logarithmic_axis_does_not_begin_at_zero() {
        let ticks = Ticks::new(&linear().log(), [1e-5, 0.05].into_iter());
        assert_eq!((ticks.low, ticks.high), (1e-5, 0.05));
        assert_eq!(labels(&linear().log(), &[1e-5, 0.05]), ["1e-5", "0.0001", "0.001", "0.01"]);
    }

    #[test]
    fn a_short_logarithmic_axis_is_labelled_between_its_decades() {
        assert_eq!(labels(&linear().log(), &[25.0, 600.0]), ["20", "50", "100", "200", "500", "1000"]);
        assert_eq!(labels(&linear().log(), &[10.0]), ["5", "10", "20"]);
    }

    #[test]
    fn an_axis_reaches_what_it_must_include() {
        let ticks = Ticks::new(&linear().including(1.0), [0.2].into_iter());
        assert_eq!((ticks.low, ticks.high), (0.0, 1.0));
    }

    #[test]
    fn all_that_can_be_drawn_lies_within_the_axis() {
        let mut value = 1e-299;
        while value < 1e299 {
            for axis in [linear(), linear().log()] {
                let ticks = Ticks::new(&axis, [value, value * 3.7].into_iter());
                assert!(ticks.low <= value && value * 3.7 <= ticks.high * (1.0 + 1e-8), "{value} {ticks:?}");
                assert!((2..25).contains(&ticks.labels.len()), "{value} {ticks:?}");
            }
            value *= 3.3;
        }
    }

    #[test]
    fn no_values_or_none_that_can_be_drawn_make_an_axis_nevertheless() {
        for values in [&[][..], &[0.0], &[f64::NAN, f64::INFINITY], &[-0.0, f64::MAX]] {
            for axis in [linear(), linear().log()] {
                let ticks = Ticks::new(&axis, values.iter().copied());
                assert!(ticks.low < ticks.high && ticks.labels.len() > 1, "{values:?} {ticks:?}");
            }
        }
    }
}

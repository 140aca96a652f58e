//! One quantity, the range that a claim says it lies in, and the test of that.

use std::ops::Bound;

use super::{Level, Outcome};
use crate::statistics::{Sample, student_t};

/// Where a quantity lies, in SI units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    low: Bound<f64>,
    high: Bound<f64>,
}

/// A quantity with its data, and its range.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    place: String,
    quantity: Quantity,
    range: Range,
    shown: Option<Shown>,
}

/// What is tested, with its value for each seed.
#[derive(Debug, Clone, PartialEq)]
enum Quantity {
    /// The mean over the seeds.
    Mean(Vec<f64>),
    /// The geometric mean of ratios.
    Ratio(Vec<f64>),
    /// The median over the seeds, ascending.
    Median(Vec<f64>),
    /// The value of each run.
    Each(Vec<f64>),
    /// A value without randomness.
    Exact(f64),
}

/// How people see a quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shown {
    pub(super) unit: &'static str,
    pub(super) size: f64,
    pub(super) decimals: usize,
}

/// The outcome of a test.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    pub(super) outcome: Outcome,
    pub(super) value: f64,
    /// The interval that must lie in the range.
    pub(super) interval: Option<[f64; 2]>,
    pub(super) power: Option<f64>,
}

/// How a test may end with more seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outlook {
    pub(super) may_agree: bool,
    pub(super) may_contradict: bool,
}

/// A claim about every run agrees if, at the level, at least this share of runs does.
const EVERY: f64 = 0.9;
/// The probability with which the power's difference is detected.
const DETECTED: f64 = 0.8;

impl Range {
    /// `least` or more.
    pub fn at_least(least: f64) -> Self {
        Self { low: Bound::Included(least), high: Bound::Unbounded }
    }

    /// `most` or less.
    pub fn at_most(most: f64) -> Self {
        Self { low: Bound::Unbounded, high: Bound::Included(most) }
    }

    /// More than `limit`.
    pub fn above(limit: f64) -> Self {
        Self { low: Bound::Excluded(limit), high: Bound::Unbounded }
    }

    /// Less than `limit`.
    pub fn below(limit: f64) -> Self {
        Self { low: Bound::Unbounded, high: Bound::Excluded(limit) }
    }

    /// From `least` to `most`.
    pub const fn between(least: f64, most: f64) -> Self {
        Self { low: Bound::Included(least), high: Bound::Included(most) }
    }

    /// Says it of the mean of a quantity over the seeds.
    pub fn of_mean(self, sample: &Sample) -> Test {
        self.of(Quantity::Mean(sample.values().to_vec()))
    }

    /// Says it of what one quantity is of another, seed by seed.
    ///
    /// # Panics
    /// If the samples have different numbers of seeds.
    pub fn of_ratio(self, ours: &Sample, theirs: &Sample) -> Test {
        let (ours, theirs) = (ours.values(), theirs.values());
        assert_eq!(ours.len(), theirs.len(), "pairs have the same seeds");
        self.of_ratios(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
    }

    /// Says it of a ratio with these values by seed.
    pub fn of_ratios(self, ratios: Vec<f64>) -> Test {
        self.of(Quantity::Ratio(ratios))
    }

    /// Says it of the median of a quantity over the seeds.
    pub fn of_median(self, sample: &Sample) -> Test {
        let mut sorted = sample.values().to_vec();
        sorted.sort_by(f64::total_cmp);
        self.of(Quantity::Median(sorted))
    }

    /// Says it of each run, the values of which are these.
    ///
    /// # Panics
    /// If there are none.
    pub fn of_each(self, values: Vec<f64>) -> Test {
        assert!(!values.is_empty(), "a claim about every run needs one");
        self.of(Quantity::Each(values))
    }

    /// Says it of a value without randomness, which every seed repeats.
    pub fn of_exact(self, value: f64) -> Test {
        self.of(Quantity::Exact(value))
    }

    fn of(self, quantity: Quantity) -> Test {
        Test { place: String::new(), quantity, range: self, shown: None }
    }

    /// Its ends; `None`: it has no such end.
    pub(super) fn ends(self) -> [Option<f64>; 2] {
        [self.low, self.high].map(|bound| match bound {
            Bound::Included(end) | Bound::Excluded(end) => Some(end),
            Bound::Unbounded => None,
        })
    }

    fn has_two_ends(self) -> bool {
        self.ends().iter().all(Option::is_some)
    }

    fn above_low(self, value: f64) -> bool {
        match self.low {
            Bound::Included(least) => value >= least,
            Bound::Excluded(limit) => value > limit,
            Bound::Unbounded => true,
        }
    }

    fn below_high(self, value: f64) -> bool {
        match self.high {
            Bound::Included(most) => value <= most,
            Bound::Excluded(limit) => value < limit,
            Bound::Unbounded => true,
        }
    }

    fn holds(self, [low, high]: [f64; 2]) -> bool {
        self.above_low(low) && self.below_high(high)
    }

    fn excludes(self, [low, high]: [f64; 2]) -> bool {
        !self.above_low(high) || !self.below_high(low)
    }
}

impl Test {
    /// The same with the point at which the quantity was measured, such as "at 60 km/h".
    pub fn at(self, place: impl Into<String>) -> Self {
        Self { place: place.into(), ..self }
    }

    /// The same, seen in another unit than the claim's others.
    pub fn shown_in(self, unit: &'static str, size: f64, decimals: usize) -> Self {
        Self { shown: Some(Shown { unit, size, decimals }), ..self }
    }

    pub(super) fn range(&self) -> Range {
        self.range
    }

    /// Decides, as one of so many tests of a claim.
    pub(super) fn judge(&self, level: Level, of: usize) -> Judged {
        match &self.quantity {
            Quantity::Mean(values) => self.judge_mean(values, |value| value, |value| value, level, of),
            Quantity::Ratio(ratios) => self.judge_mean(ratios, f64::ln, f64::exp, level, of),
            Quantity::Median(sorted) => self.judge_median(sorted, level, of),
            Quantity::Each(values) => self.judge_each(values, level),
            Quantity::Exact(value) => {
                let holds = self.range.holds([*value; 2]);
                let outcome = if holds { Outcome::Agrees } else { Outcome::Contradicts };
                Judged { outcome, value: *value, interval: None, power: Some(0.0) }
            }
        }
    }

    /// How an undecided test may end with `factor` times as many seeds, without more luck than one experiment
    /// in five has.
    pub(super) fn outlook(&self, level: Level, of: usize, factor: f64) -> Outlook {
        match &self.quantity {
            Quantity::Mean(values) => {
                self.outlook_of_mean(values, |value| value, |value| value, level, of, factor)
            }
            Quantity::Ratio(ratios) => self.outlook_of_mean(ratios, f64::ln, f64::exp, level, of, factor),
            Quantity::Each(values) => {
                let exponent = 1.0 / (values.len() as f64 * factor);
                Outlook { may_agree: level.alpha().powf(exponent) >= EVERY, may_contradict: false }
            }
            Quantity::Median(_) | Quantity::Exact(_) => Outlook::OPEN,
        }
    }

    /// Given the mean m of n seeds and its standard error s, that of N seeds is about normal around m with a
    /// deviation of s·√(1 − n/N), and has the standard error s·√(n/N).
    fn outlook_of_mean(
        &self,
        values: &[f64],
        to_scale: fn(f64) -> f64,
        from_scale: fn(f64) -> f64,
        level: Level,
        of: usize,
        factor: f64,
    ) -> Outlook {
        let scaled: Vec<f64> = values.iter().map(|&value| to_scale(value)).collect();
        let Some(summary) = Sample::of(scaled).map(|sample| sample.summary()) else { return Outlook::OPEN };
        let Some(deviation) = summary.standard_deviation else { return Outlook::OPEN };
        let error = deviation / (summary.count as f64).sqrt();
        let quantile = |probability, freedom| student_t(probability, freedom).expect("there are two seeds");
        let luck = quantile(DETECTED, summary.count - 1) * error * (1.0 - 1.0 / factor).sqrt();
        let freedom = (summary.count as f64 * factor) as usize - 1;
        let interval = |mean: f64, probability| {
            let half = quantile(probability, freedom) * error / factor.sqrt();
            [from_scale(mean - half), from_scale(mean + half)]
        };
        let [least, most] = [summary.mean - luck, summary.mean + luck];
        let best = match self.range.ends().map(|end| end.map(to_scale)) {
            [Some(low), Some(high)] => f64::midpoint(low, high).clamp(least, most),
            [Some(_), None] => most,
            _ => least,
        };
        let excluded = |mean| self.range.excludes(interval(mean, self.outside(level, of)));
        Outlook {
            may_agree: self.range.holds(interval(best, 1.0 - level.alpha())),
            may_contradict: excluded(least) || excluded(most),
        }
    }

    /// Student's t in a scale in which differences are compared.
    fn judge_mean(
        &self,
        values: &[f64],
        to_scale: fn(f64) -> f64,
        from_scale: fn(f64) -> f64,
        level: Level,
        of: usize,
    ) -> Judged {
        let scaled: Vec<f64> = values.iter().map(|&value| to_scale(value)).collect();
        let Some(summary) = Sample::of(scaled).map(|sample| sample.summary()) else {
            let value = values.iter().sum::<f64>() / values.len() as f64;
            return Judged::undecided(value);
        };
        let value = from_scale(summary.mean);
        let freedom = summary.count - 1;
        let Some(error) = summary.standard_deviation.map(|sd| sd / (summary.count as f64).sqrt()) else {
            return Judged::undecided(value);
        };
        let quantile = |probability| student_t(probability, freedom).expect("there are two seeds");
        let interval = |probability| {
            let half = quantile(probability) * error;
            [from_scale(summary.mean - half), from_scale(summary.mean + half)]
        };
        let (inside, outside) = (interval(1.0 - level.alpha()), interval(self.outside(level, of)));
        let missed = if self.range.has_two_ends() { (1.0 - DETECTED) / 2.0 } else { 1.0 - DETECTED };
        let detected = (quantile(1.0 - level.alpha()) + quantile(1.0 - missed)) * error;
        // A difference of logarithms is a relative one.
        let power = from_scale(detected) - from_scale(0.0);
        Judged { outcome: self.outcome(inside, outside), value, interval: Some(inside), power: Some(power) }
    }

    /// Ranks: without a distribution to assume.
    fn judge_median(&self, sorted: &[f64], level: Level, of: usize) -> Judged {
        let middle = sorted.len() / 2;
        let value = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        let inside = median_interval(sorted, 1.0 - level.alpha());
        let outside = median_interval(sorted, self.outside(level, of));
        if inside.iter().any(|end| end.is_infinite()) {
            return Judged::undecided(value);
        }
        // As a normal distribution's with such an interval.
        let quantile = |probability| student_t(probability, sorted.len() - 1).expect("there are two seeds");
        let error = (inside[1] - inside[0]) / 2.0 / quantile(1.0 - level.alpha());
        let power = (quantile(1.0 - level.alpha()) + quantile(DETECTED)) * error;
        Judged { outcome: self.outcome(inside, outside), value, interval: Some(inside), power: Some(power) }
    }

    /// One run that does not is enough to refute that every run does. That it is rare to miss one needs many.
    fn judge_each(&self, values: &[f64], level: Level) -> Judged {
        let (count, exponent) = (values.len(), 1.0 / values.len() as f64);
        let fails = |value: &&f64| !self.range.holds([**value; 2]);
        // Without a failure, of n runs: the share p for which pⁿ is as improbable as the level.
        let outcome = match values.iter().any(|value| fails(&value)) {
            true => Outcome::Contradicts,
            false if level.alpha().powf(exponent) >= EVERY => Outcome::Agrees,
            false => Outcome::Undecided,
        };
        let failed = values.iter().filter(fails).count();
        let value = (count - failed) as f64;
        let extremes = values.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], &value| {
            [low.min(value), high.max(value)]
        });
        let power = Some(1.0 - (1.0 - DETECTED).powf(exponent));
        Judged { outcome, value, interval: Some(extremes), power }
    }

    /// The one-sided confidence of the interval that must lie outside.
    fn outside(&self, level: Level, of: usize) -> f64 {
        let ends = if self.range.has_two_ends() { 2.0 } else { 1.0 };
        1.0 - level.alpha() / ends / of as f64
    }

    fn outcome(&self, inside: [f64; 2], outside: [f64; 2]) -> Outcome {
        if self.range.holds(inside) {
            Outcome::Agrees
        } else if self.range.excludes(outside) {
            Outcome::Contradicts
        } else {
            Outcome::Undecided
        }
    }

    /// `14.0 times [13.5, 14.6] at 60 km/h`.
    pub(super) fn describe(&self, judged: &Judged, of_claim: Shown) -> String {
        let shown = self.shown.unwrap_or(of_claim);
        let place = if self.place.is_empty() { String::new() } else { format!(" {}", self.place) };
        let ends = judged.interval.map(|ends| ends.map(|end| shown.number(end)));
        match (&self.quantity, ends) {
            (Quantity::Each(values), Some([low, high])) => {
                let unit = shown.unit_after();
                let range = if low == high { low } else { format!("{low} to {high}") };
                format!("{} of {} runs, {range}{unit}{place}", judged.value, values.len())
            }
            (_, Some([low, high])) => format!("{} [{low}, {high}]{place}", shown.with_unit(judged.value)),
            (_, None) => format!("{}{place}", shown.with_unit(judged.value)),
        }
    }

    /// `3 times or more`: its range.
    pub(super) fn describe_range(&self, of_claim: Shown) -> String {
        use Bound::{Excluded, Included, Unbounded};
        let shown = self.shown.unwrap_or(of_claim);
        let end = |end: f64| shown.exactly(end);
        match (self.range.low, self.range.high) {
            (Included(low), Included(high)) if low == high => end(low),
            (Included(low) | Excluded(low), Included(high) | Excluded(high)) => {
                let (from, unit) = (end(low), shown.unit_after());
                format!("{} to {}", from.strip_suffix(&unit).unwrap_or(&from), end(high))
            }
            (Included(least), Unbounded) => format!("{} or more", end(least)),
            (Excluded(limit), Unbounded) => format!("more than {}", end(limit)),
            (Unbounded, Included(most)) => format!("{} or less", end(most)),
            (Unbounded, Excluded(limit)) => format!("less than {}", end(limit)),
            (Unbounded, Unbounded) => "anything".to_owned(),
        }
    }

    /// How sure that is, and what it would have missed.
    pub(super) fn certainty(&self, judged: &Judged, level: Level, of_claim: Shown) -> Option<String> {
        let shown = self.shown.unwrap_or(of_claim);
        let confidence = percent(level.confidence());
        match (&self.quantity, judged.power) {
            (Quantity::Exact(_), _) => Some("without randomness".into()),
            (Quantity::Mean(values) | Quantity::Ratio(values) | Quantity::Median(values), None) => {
                Some(match values.len() {
                    1 => "one seed has no interval".into(),
                    count => format!("{count} seeds have no interval of {confidence}"),
                })
            }
            (Quantity::Each(_), _) if judged.outcome == Outcome::Contradicts => None,
            (Quantity::Each(_), power) => power.map(|power| format!("detects {} of runs", percent(power))),
            (Quantity::Ratio(ratios), Some(power)) => {
                Some(format!("{confidence} intervals, {} seeds; detects {}", ratios.len(), percent(power)))
            }
            (Quantity::Mean(values) | Quantity::Median(values), Some(power)) => {
                let power = Shown { decimals: shown.decimals, ..shown }.with_unit(power);
                Some(format!("{confidence} intervals, {} seeds; detects {power}", values.len()))
            }
        }
    }
}

impl Outlook {
    /// Nothing is known.
    const OPEN: Self = Self { may_agree: true, may_contradict: true };
}

impl Judged {
    fn undecided(value: f64) -> Self {
        Self { outcome: Outcome::Undecided, value, interval: None, power: None }
    }
}

impl Shown {
    fn number(self, value: f64) -> String {
        if value.is_infinite() {
            return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
        }
        let text = format!("{:.*}", self.decimals, value / self.size);
        // A number that rounds to zero has no sign.
        let zero = text.chars().all(|digit| matches!(digit, '-' | '0' | '.'));
        if zero { text.trim_start_matches('-').to_owned() } else { text }
    }

    /// A threshold with its unit and all the digits that it was given.
    fn exactly(self, threshold: f64) -> String {
        // Nine significant digits: what a division leaves behind them is noise.
        let rounded = format!("{:.8e}", threshold / self.size);
        let number: f64 = rounded.parse().expect("it was a number");
        format!("{number}{}", self.unit_after())
    }

    fn unit_after(self) -> String {
        match self.unit {
            "" | "%" => self.unit.to_owned(),
            unit => format!(" {unit}"),
        }
    }

    fn with_unit(self, value: f64) -> String {
        format!("{}{}", self.number(value), self.unit_after())
    }
}

/// `90%`, and below a tenth of a percent as much as it has.
fn percent(part: f64) -> String {
    let text = format!("{:.1}", 100.0 * part);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The ranks around the median that leave out each side with this probability, by the binomial distribution
/// of the number of values below the median; infinite where there are too few values.
fn median_interval(sorted: &[f64], probability: f64) -> [f64; 2] {
    let count = sorted.len();
    // Logarithms, as 2⁻ⁿ has no room in an `f64` for many seeds.
    let mut density = count as f64 * 0.5f64.ln();
    let (mut below, mut rank) = (0.0, 0);
    // The largest rank r with P(fewer than r values below the median) ≤ 1 − p.
    while below + density.exp() <= 1.0 - probability && rank < count / 2 {
        below += density.exp();
        rank += 1;
        density += ((count - rank + 1) as f64 / rank as f64).ln();
    }
    match rank {
        0 => [f64::NEG_INFINITY, f64::INFINITY],
        rank => [sorted[rank - 1], sorted[count - rank]],
    }
}

//! Claims, and the rule by which data decide on them.
//!
//! A [`Claim`] says in which [`Range`] one or several quantities lie. The range stands before the data. With
//! the values of each seed it becomes a [`Verdict`] of three outcomes:
//!
//! - it **agrees** if the confidence interval of each quantity lies within its range. For a range with two
//!   ends that is an equivalence test by two one-sided tests at 5% (Schuirmann 1987), whose interval is the
//!   one of 90%; for a range with one end, a one-sided test at 5%. A claim about several quantities needs all
//!   of them, so that each may be tested at the full level (intersection–union test, Berger 1982);
//! - it is **contradicted** if the interval of one quantity lies wholly outside: that of 95% for a range with
//!   two ends, the one-sided 95% bound for a range with one. Of k quantities each has a k-th of the 5%
//!   (Bonferroni), as one is enough to contradict;
//! - else it is **undecided**, as it always is with one seed.
//!
//! An experiment that may look at its data several times, with more seeds each time, has for each look the 5%
//! divided by the number of looks ([`Level`], Bonferroni), so that looking again is no way to agree. It may stop
//! early where more seeds would hardly decide anything ([`Claim::may_yet_be_decided`]).

mod test;

use serde::{Deserialize, Serialize};

use test::{Judged, Shown};
pub use test::{Range, Test};

/// A sentence, and the tests that it must pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    sentence: String,
    label: Label,
    reference: Option<String>,
    shown: Shown,
    tests: Vec<Test>,
    note: Option<String>,
}

/// Whose claim it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    /// The publication's, in its text or a figure. The number that stands for a word like "slightly" is ours.
    Stated,
    /// What the publication implies without saying so, in our words.
    Expected,
    /// Not the publication's.
    Ours,
}

/// What the data say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// They show it.
    Agrees,
    /// They do not tell.
    Undecided,
    /// They refute it.
    Contradicts,
}

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    looks: u32,
}

/// Whether a claim holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim, a sentence.
    pub claim: String,
    /// Whose it is.
    pub label: Label,
    /// Where the publication has it.
    pub reference: Option<String>,
    /// What the data say.
    pub outcome: Outcome,
    /// The ends of the range that the decisive quantity must lie in, in SI units; `None`: it has no such end.
    pub margin: [Option<f64>; 2],
    /// The same in the unit that people see: `0.95 to 1.05 times`.
    pub range: String,
    /// The smallest difference that so many seeds detect with a probability of 80%: from the end of a range
    /// to a value for which the claim would have agreed, or, with two ends, the narrowest range around the
    /// truth. In the unit of the margin, and for ratios relative; for a claim about every run, the share of
    /// runs that fail. 0 without randomness; `None` with one seed.
    pub power: Option<f64>,
    /// The observation, with the intervals that decided.
    pub observed: String,
    /// How sure that is: the intervals' confidence, the number of seeds, and the power in the unit that
    /// people see. `None` where one run refutes the claim.
    pub certainty: Option<String>,
}

impl Claim {
    /// A claim of the publication, with the section or figure that has it.
    pub fn stated(sentence: impl Into<String>, reference: impl Into<String>) -> Self {
        Self::new(sentence, Label::Stated, Some(reference.into()))
    }

    /// A claim that the publication implies at this section or figure.
    pub fn expected(sentence: impl Into<String>, reference: impl Into<String>) -> Self {
        Self::new(sentence, Label::Expected, Some(reference.into()))
    }

    /// A claim of this laboratory.
    pub fn ours(sentence: impl Into<String>) -> Self {
        Self::new(sentence, Label::Ours, None)
    }

    fn new(sentence: impl Into<String>, label: Label, reference: Option<String>) -> Self {
        let shown = Shown { unit: "times", size: 1.0, decimals: 2 };
        Self { sentence: sentence.into(), label, reference, shown, tests: Vec::new(), note: None }
    }

    /// The same; people see its quantities in a unit of `size` SI units with so many decimals. The default is
    /// "times" with two.
    pub fn shown_in(self, unit: &'static str, size: f64, decimals: usize) -> Self {
        Self { shown: Shown { unit, size, decimals }, ..self }
    }

    /// The same, which must pass this test, too.
    pub fn with(mut self, test: Test) -> Self {
        self.tests.push(test);
        self
    }

    /// The same, which must pass these tests, too.
    pub fn with_all(self, tests: impl IntoIterator<Item = Test>) -> Self {
        tests.into_iter().fold(self, Self::with)
    }

    /// The same with something else to observe, which decides nothing.
    pub fn noting(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Decides.
    ///
    /// # Panics
    /// If the claim has no tests.
    pub fn judge(&self, level: Level) -> Verdict {
        let judged: Vec<Judged> = self.tests.iter().map(|test| test.judge(level, self.tests.len())).collect();
        let outcome = judged.iter().map(|judged| judged.outcome).max().expect("a claim has a test");
        // The verdict is as weak as the weakest of the tests that made it.
        let weakness = |index: &usize| judged[*index].power.unwrap_or(f64::INFINITY);
        let decisive = (0..judged.len())
            .filter(|&index| judged[index].outcome == outcome)
            .max_by(|one, other| weakness(one).total_cmp(&weakness(other)))
            .expect("one of them has the outcome");
        Verdict {
            claim: self.sentence.clone(),
            label: self.label,
            reference: self.reference.clone(),
            outcome,
            margin: self.tests[decisive].range().ends(),
            range: self.tests[decisive].describe_range(self.shown),
            power: judged[decisive].power,
            observed: self.observed(&judged, decisive),
            certainty: self.tests[decisive].certainty(&judged[decisive], level, self.shown),
        }
    }

    /// Whether it is undecided, and may be decided with `factor` times as many seeds: not if that would need
    /// more luck than one experiment in five has. To stop there makes no verdict less sure.
    ///
    /// # Panics
    /// If the claim has no tests, or `factor` is not above 1.
    pub fn may_yet_be_decided(&self, level: Level, factor: f64) -> bool {
        assert!(factor > 1.0, "{factor} times as many seeds are not more");
        if self.judge(level).outcome != Outcome::Undecided {
            return false;
        }
        let of = self.tests.len();
        let undecided = || self.tests.iter().filter(|test| test.judge(level, of).outcome != Outcome::Agrees);
        undecided().all(|test| test.outlook(level, of, factor).may_agree)
            || undecided().any(|test| test.outlook(level, of, factor).may_contradict)
    }

    fn observed(&self, judged: &[Judged], decisive: usize) -> String {
        const MOST: usize = 8;
        let line = |index: usize| self.tests[index].describe(&judged[index], self.shown);
        let mut text = if judged.len() <= MOST {
            (0..judged.len()).map(line).collect::<Vec<_>>().join("; ")
        } else {
            let count = |outcome| judged.iter().filter(|judged| judged.outcome == outcome).count();
            let (of, undecided, contradict) =
                (judged.len(), count(Outcome::Undecided), count(Outcome::Contradicts));
            let decided = match (contradict, undecided) {
                (0, 0) => format!("all {of} agree, the least certain"),
                (0, _) => format!("{undecided} of {of} undecided, for one"),
                _ => format!("{contradict} of {of} contradict, for one"),
            };
            format!("{decided}: {}", line(decisive))
        };
        if let Some(note) = &self.note {
            text += &format!("; {note}");
        }
        text
    }
}

impl Level {
    /// The level of each of so many looks at growing data: 5% by that number.
    ///
    /// # Panics
    /// If there is none.
    pub fn of_looks(looks: u32) -> Self {
        assert!(looks > 0, "a verdict needs a look");
        Self { looks }
    }

    /// The probability of a false verdict that each look may have.
    pub fn alpha(self) -> f64 {
        0.05 / f64::from(self.looks)
    }

    /// The confidence of the two-sided interval that must lie in the range: 90% with one look.
    pub fn confidence(self) -> f64 {
        1.0 - 2.0 * self.alpha()
    }
}

impl Outcome {
    /// A word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Undecided => "undecided",
            Self::Contradicts => "contradicted",
        }
    }
}

impl Label {
    /// A word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stated => "stated",
            Self::Expected => "expected",
            Self::Ours => "ours",
        }
    }
}

impl Verdict {
    /// Whether the data show the claim.
    pub fn agrees(&self) -> bool {
        self.outcome == Outcome::Agrees
    }

    /// The observation and how sure it is, in one line.
    pub fn observation(&self) -> String {
        match &self.certainty {
            Some(certainty) => format!("{} ({certainty})", self.observed),
            None => self.observed.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Sample;

    fn sample(values: &[f64]) -> Sample {
        Sample::of(values).unwrap()
    }

    fn judge(test: Test) -> Verdict {
        Claim::ours("it does").with(test).judge(Level::of_looks(1))
    }

    fn outcome(test: Test) -> Outcome {
        judge(test).outcome
    }

    use Outcome::{Agrees, Contradicts, Undecided};

    #[test]
    fn noise_never_agrees() {
        let noise = sample(&[0.2, 1.9, 0.7, 1.4]);
        for range in [Range::at_least(0.97), Range::at_most(1.03), Range::between(0.95, 1.05)] {
            assert_eq!(outcome(range.of_mean(&noise)), Undecided, "{range:?}");
            assert_eq!(outcome(range.of_ratio(&noise, &sample(&[1.0; 4]))), Undecided, "{range:?}");
        }
    }

    #[test]
    fn one_seed_decides_nothing_unless_nothing_is_random() {
        let range = Range::at_least(1.0);
        let verdict = judge(range.of_mean(&sample(&[100.0])));
        assert_eq!((verdict.outcome, verdict.power), (Undecided, None));
        assert_eq!(outcome(range.of_mean(&sample(&[0.0]))), Undecided);
        assert_eq!(judge(range.of_exact(1.0)).power, Some(0.0));
        assert_eq!((outcome(range.of_exact(1.0)), outcome(range.of_exact(0.99))), (Agrees, Contradicts));
    }

    /// Mean 10 and deviation 1 over 16 seeds: the standard error is ¼, the 90% interval ±1.7531/4, that of
    /// 95% ±2.1314/4.
    fn sixteen() -> Sample {
        let deviation = (15.0f64 / 16.0).sqrt();
        let values: Vec<f64> =
            (0..16).map(|index| 10.0 + if index % 2 == 0 { deviation } else { -deviation }).collect();
        sample(&values)
    }

    #[test]
    fn a_bound_is_tested_one_sided_at_five_per_cent() {
        let data = sixteen();
        let reach = 1.75305 / 4.0;
        assert_eq!(outcome(Range::at_least(10.0 - reach - 1e-4).of_mean(&data)), Agrees);
        assert_eq!(outcome(Range::at_least(10.0 - reach + 1e-4).of_mean(&data)), Undecided);
        assert_eq!(outcome(Range::at_least(10.0 + reach - 1e-4).of_mean(&data)), Undecided);
        assert_eq!(outcome(Range::at_least(10.0 + reach + 1e-4).of_mean(&data)), Contradicts);
        assert_eq!(outcome(Range::at_most(10.0 + reach + 1e-4).of_mean(&data)), Agrees);
        assert_eq!(outcome(Range::at_most(10.0 - reach - 1e-4).of_mean(&data)), Contradicts);
    }

    #[test]
    fn equality_needs_the_ninety_per_cent_interval_inside_and_that_of_95_outside() {
        let data = sixteen();
        let (inside, outside) = (1.75305 / 4.0, 2.13145 / 4.0);
        assert_eq!(
            outcome(Range::between(10.0 - inside - 1e-4, 10.0 + inside + 1e-4).of_mean(&data)),
            Agrees
        );
        assert_eq!(outcome(Range::between(10.0 - inside + 1e-4, 20.0).of_mean(&data)), Undecided);
        assert_eq!(outcome(Range::between(10.0 + outside - 1e-4, 20.0).of_mean(&data)), Undecided);
        assert_eq!(outcome(Range::between(10.0 + outside + 1e-4, 20.0).of_mean(&data)), Contradicts);
    }

    #[test]
    fn the_more_looks_the_wider_the_interval() {
        let test = Range::at_least(10.0 - 2.0 / 4.0).of_mean(&sixteen());
        let claim = Claim::ours("it does").with(test);
        assert_eq!(claim.judge(Level::of_looks(1)).outcome, Agrees);
        // t(15) at 1 − 5%/3 is 2.34.
        assert_eq!(claim.judge(Level::of_looks(3)).outcome, Undecided);
        assert!((Level::of_looks(3).confidence() - 0.9667).abs() < 1e-4);
    }

    #[test]
    fn more_seeds_are_worth_it_where_they_may_decide() {
        let data = sixteen();
        let open = |test: Test, factor: f64| {
            Claim::ours("it does").with(test).may_yet_be_decided(Level::of_looks(1), factor)
        };
        // With twice as many the mean is within 0.866/4·√½ = 0.153 of 10 on that side in four of five cases,
        // and its bound 1.696/4·√½ = 0.300 from it: what is at most 10 + 0.153 − 0.300 may agree.
        assert!(open(Range::at_least(9.85).of_mean(&data), 2.0));
        assert!(!open(Range::at_least(9.86).of_mean(&data), 2.0));
        assert!(open(Range::at_least(9.86).of_mean(&data), 4.0));
        // And what is at least 10 − 0.153 + 0.300 may be contradicted.
        assert!(open(Range::at_least(10.15).of_mean(&data), 2.0));
        assert!(!open(Range::at_least(10.14).of_mean(&data), 2.0));
        // The interval of twice as many is wider than this range, wherever it is.
        assert!(!open(Range::between(9.9, 10.1).of_mean(&data), 2.0));
        assert!(open(Range::between(9.7, 10.4).of_mean(&data), 2.0));
        // What is decided needs no more.
        assert!(!open(Range::at_least(9.0).of_mean(&data), 2.0));
        assert!(!open(Range::at_least(11.0).of_mean(&data), 2.0));
        // One seed tells nothing of what two would.
        assert!(open(Range::at_least(1.0).of_mean(&sample(&[10.0])), 2.0));
        assert!(open(Range::at_most(1.0).of_each(vec![1.0; 15]), 2.0));
        assert!(!open(Range::at_most(1.0).of_each(vec![1.0; 14]), 2.0));
    }

    #[test]
    fn one_hopeless_quantity_is_enough_for_a_claim_not_to_agree() {
        let data = sixteen();
        let claim = |thresholds: [f64; 2]| {
            let tests = thresholds.map(|threshold| Range::at_least(threshold).of_mean(&data));
            Claim::ours("they do").with_all(tests).may_yet_be_decided(Level::of_looks(1), 2.0)
        };
        assert!(claim([9.0, 9.7]));
        assert!(!claim([9.0, 10.0]));
        assert!(!claim([9.7, 10.0]));
    }

    #[test]
    fn all_quantities_must_agree_and_one_contradicts_at_its_part_of_the_level() {
        let data = sixteen();
        let claim = |thresholds: &[f64]| {
            let tests = thresholds.iter().map(|&threshold| Range::at_least(threshold).of_mean(&data));
            Claim::ours("they do").with_all(tests).judge(Level::of_looks(1)).outcome
        };
        assert_eq!(claim(&[9.0, 9.1]), Agrees);
        assert_eq!(claim(&[9.0, 10.0]), Undecided);
        // One-sided, 95%: 0.44; of two quantities 97.5%: 0.533.
        assert_eq!(
            (claim(&[10.5]), claim(&[9.0, 10.5]), claim(&[9.0, 10.54])),
            (Contradicts, Undecided, Contradicts)
        );
    }

    #[test]
    fn a_ratio_is_tested_by_logarithms_of_pairs() {
        let base = [1.0, 7.0, 3.0, 20.0];
        let (ours, theirs) = (sample(&base.map(|value| 1.5 * value)), sample(&base));
        assert_eq!(outcome(Range::between(1.49, 1.51).of_ratio(&ours, &theirs)), Agrees);
        assert_eq!(outcome(Range::at_least(1.51).of_ratio(&ours, &theirs)), Contradicts);
        assert_eq!(
            outcome(Range::at_least(0.1).of_ratio(&sample(&[0.0, 1.0]), &sample(&[1.0, 1.0]))),
            Undecided
        );
    }

    #[test]
    fn the_power_is_what_a_bound_or_a_margin_would_have_needed() {
        // (t(95%) + t(80%)) / 4 with 15 degrees of freedom, and (t(95%) + t(90%)) / 4.
        let power = |range: Range| judge(range.of_mean(&sixteen())).power.unwrap();
        assert!((power(Range::at_least(9.0)) - (1.75305 + 0.86624) / 4.0).abs() < 1e-4);
        assert!((power(Range::between(9.0, 11.0)) - (1.75305 + 1.34061) / 4.0).abs() < 1e-4);
    }

    #[test]
    fn every_run_is_refuted_by_one_and_shown_by_enough() {
        let each = |count: usize, last: f64| {
            let mut values = vec![1.0; count];
            values[count - 1] = last;
            judge(Range::at_most(1.0).of_each(values))
        };
        assert_eq!(each(28, 1.0).outcome, Undecided);
        assert_eq!(each(29, 1.0).outcome, Agrees);
        assert_eq!((each(29, 1.1).outcome, each(1, 1.1).outcome), (Contradicts, Contradicts));
        assert!((each(29, 1.0).power.unwrap() - 0.054).abs() < 1e-3);
    }

    #[test]
    fn a_median_is_tested_by_ranks() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        let data = sample(&values);
        // Of twenty values the sixth is a 95% lower bound of the median, the fifteenth an upper one.
        assert_eq!(outcome(Range::at_least(6.0).of_median(&data)), Agrees);
        assert_eq!(outcome(Range::at_least(6.1).of_median(&data)), Undecided);
        assert_eq!(outcome(Range::at_least(15.1).of_median(&data)), Contradicts);
        assert_eq!(outcome(Range::at_most(100.0).of_median(&sample(&[1.0, 2.0, 3.0, 4.0]))), Undecided);
    }

    #[test]
    fn the_observation_has_value_interval_place_and_power() {
        let test = Range::at_least(9.0).of_mean(&sixteen()).at("at 60 km/h");
        let claim = Claim::stated("it does", "figure 4").shown_in("Mbit/s", 1.0, 1).with(test);
        let verdict = claim.noting("at most 11.0").judge(Level::of_looks(1));
        let expected =
            "10.0 Mbit/s [9.6, 10.4] at 60 km/h; at most 11.0 (90% intervals, 16 seeds; detects 0.7 Mbit/s)";
        assert_eq!(verdict.observation(), expected);
        assert_eq!(verdict.range, "9 Mbit/s or more");
        assert_eq!((verdict.margin, verdict.reference.as_deref()), ([Some(9.0), None], Some("figure 4")));
    }

    #[test]
    fn a_range_is_told_in_the_unit_of_the_claim_with_all_its_digits() {
        let told = |range: Range, unit, size| {
            let claim = Claim::ours("it is").shown_in(unit, size, 0).with(range.of_mean(&sixteen()));
            claim.judge(Level::of_looks(1)).range
        };
        assert_eq!(told(Range::between(0.95, 1.05), "times", 1.0), "0.95 to 1.05 times");
        assert_eq!(told(Range::between(33.0, 33.0), "tunnels", 1.0), "33 tunnels");
        assert_eq!(told(Range::at_most(0.07), "%", 0.01), "7% or less");
        assert_eq!(told(Range::above(1.5e6), "Mbit/s", 1e6), "more than 1.5 Mbit/s");
        assert_eq!(told(Range::below(0.1), "ms", 1e-3), "less than 100 ms");
    }
}

//! One measure of several schemes at several points of a parameter: what most experiments compare and show.

use std::fmt::Display;

use super::Runs;
use crate::claim::{Range, Test};
use crate::figure::{BarChart, BarGroup, Plot, Point, Series, Style};
use crate::statistics::{Estimate, Sample};
use crate::table::{Cell, Column, Table};

/// One of the alternatives that an experiment compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scheme {
    /// Its name in tables and figures.
    pub(super) name: &'static str,
    /// The start of its keys in CSV.
    pub(super) key: &'static str,
    /// The parameters that it sets in the experiment's scenario, each as `key=value`.
    pub(super) settings: &'static [&'static str],
}

impl Scheme {
    /// Its settings, followed by those of a point.
    pub(super) fn with(&self, point: impl IntoIterator<Item = String>) -> Vec<String> {
        self.settings.iter().map(|&setting| setting.to_owned()).chain(point).collect()
    }
}

/// The name of a curve in tables and figures, and the start of its key in CSV.
#[derive(Debug, Clone)]
pub(super) struct Label {
    name: String,
    key: String,
}

impl From<Scheme> for Label {
    fn from(scheme: Scheme) -> Self {
        Self { name: scheme.name.into(), key: scheme.key.into() }
    }
}

impl<N: Into<String>, K: Into<String>> From<(N, K)> for Label {
    fn from((name, key): (N, K)) -> Self {
        Self { name: name.into(), key: key.into() }
    }
}

/// A measured quantity, and how tables and figures show it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measure {
    /// The end of its keys in CSV.
    pub(super) key: &'static str,
    /// The unit that people see, and its size in the SI unit of the values.
    pub(super) unit: (&'static str, f64),
    /// The decimals that people see.
    pub(super) decimals: usize,
}

impl Measure {
    /// A bit rate in Mbit/s.
    pub(super) const fn mbps(key: &'static str) -> Self {
        Self { key, unit: ("Mbit/s", 1e6), decimals: 2 }
    }
}

/// One measure by scheme and by point, each value over the seeds.
#[derive(Debug, Clone)]
pub(super) struct Curves {
    labels: Vec<Label>,
    measure: Measure,
    values: Vec<Vec<Sample>>,
}

impl Curves {
    /// `values` has a row for each label.
    pub(super) fn new(
        labels: impl IntoIterator<Item = impl Into<Label>>,
        measure: Measure,
        values: Vec<Vec<Sample>>,
    ) -> Self {
        Self { labels: labels.into_iter().map(Into::into).collect(), measure, values }
    }

    /// The measure that `merit` takes of the runs of each scheme at each point.
    pub(super) fn of_runs(
        labels: impl IntoIterator<Item = impl Into<Label>>,
        measure: Measure,
        runs: &[Vec<Runs>],
        merit: impl Fn(&Runs) -> Sample,
    ) -> Self {
        Self::new(labels, measure, runs.iter().map(|row| row.iter().map(&merit).collect()).collect())
    }

    /// The values of the scheme at this index, by point.
    pub(super) fn curve(&self, scheme: usize) -> &[Sample] {
        &self.values[scheme]
    }

    /// All curves, in the order of the schemes.
    pub(super) fn all(&self) -> &[Vec<Sample>] {
        &self.values
    }

    pub(super) fn named(&self) -> impl Iterator<Item = (&str, &[Sample])> {
        self.labels.iter().zip(&self.values).map(|(label, values)| (label.name.as_str(), &values[..]))
    }

    /// Tests, at each point, whether the values of one scheme are such a multiple of those of another.
    /// `places` has the names of the points.
    pub(super) fn ratios<'a>(
        &'a self,
        above: usize,
        below: usize,
        range: Range,
        places: impl IntoIterator<Item = String> + 'a,
    ) -> impl Iterator<Item = Test> + 'a {
        let pairs = self.curve(above).iter().zip(self.curve(below));
        pairs.zip(places).map(move |((above, below), place)| range.of_ratio(above, below).at(place))
    }

    /// A column for each scheme and a row for each point, which begins with the point's own cells.
    pub(super) fn table(
        &self,
        title: &str,
        point_columns: impl IntoIterator<Item = Column>,
        points: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Table {
        let Measure { key, unit: (symbol, size), decimals } = self.measure;
        let column =
            |label: &Label| Column::new(&label.name, format!("{}_{key}", label.key)).shown_in(symbol, size);
        let columns = point_columns.into_iter().chain(self.labels.iter().map(column));
        let mut table = Table::new(title, columns.collect());
        for (at, point) in points.into_iter().enumerate() {
            let cells = self.values.iter().map(|curve| Cell::interval(Some(&curve[at]), decimals));
            table.push(point.into_iter().chain(cells).collect());
        }
        table
    }

    /// Adds a marked line for each scheme over the points at `xs`.
    pub(super) fn plot(&self, plot: Plot, xs: impl IntoIterator<Item = f64> + Clone) -> Plot {
        self.named().fold(plot, |plot, (name, values)| {
            let points = xs.clone().into_iter().zip(values);
            let points = points.map(|(x, value)| Point::new(x, self.in_unit(value)));
            plot.with(Series::new(name, Style::Line, points))
        })
    }

    /// Adds a group of bars for each scheme, one bar for each point.
    pub(super) fn chart(&self, chart: BarChart) -> BarChart {
        self.named().fold(chart, |chart, (name, values)| {
            chart.with(BarGroup::new(name, values.iter().map(|value| Some(self.in_unit(value)))))
        })
    }

    fn in_unit(&self, value: &Sample) -> Estimate {
        value.estimate().in_unit(self.measure.unit.1)
    }
}

/// Values with so many decimals, such as `1.20 / 3.45`; an [`Estimate`] with its interval.
pub(super) fn listed<T: Display>(
    values: impl IntoIterator<Item = T>,
    decimals: usize,
    separator: &str,
) -> String {
    let values: Vec<String> = values.into_iter().map(|value| format!("{value:.decimals$}")).collect();
    values.join(separator)
}

/// Consecutive values as rows of `length`; the last row may be shorter.
pub(super) fn rows<T>(values: Vec<T>, length: usize) -> Vec<Vec<T>> {
    let (mut values, mut rows) = (values.into_iter().peekable(), Vec::new());
    while values.peek().is_some() {
        rows.push(values.by_ref().take(length).collect());
    }
    rows
}

//! Series of points over two axes, with error bars.

use serde::{Deserialize, Serialize};

use super::appearance::Appearance;
use super::canvas::{Canvas, DrawResult, Entry, Frame, Sample};
use super::ticks::{Ticks, drawable, reach};
use super::{Axis, Legend};
use crate::statistics::Estimate;

/// A line of more points than this is marked here and there only.
const ALL_MARKED: usize = 25;
/// How often such a line is marked.
const SOME_MARKED: usize = 12;

/// How one quantity depends on another, for one or several ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// The figure's title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series; later ones are drawn on top.
    pub series: Vec<Series>,
    /// Where the legend goes.
    pub legend: Legend,
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Their name in the legend.
    pub name: String,
    /// How they are drawn.
    pub style: Style,
    /// The points, in the order in which they are joined.
    pub points: Vec<Point>,
    /// The colour and marker, as those of the series at this place. None: those of its own place.
    pub appearance: Option<usize>,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Style {
    /// Joined and marked: for measurements. Of many points only some are marked.
    Line,
    /// Joined only: for formulas, beside marked measurements.
    Curve,
    /// Marked only.
    Dots,
}

/// A point, in the units of the axes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where it lies on the horizontal axis.
    #[serde(with = "crate::number")]
    pub x: f64,
    /// Where it lies on the vertical axis; with an error bar if it has an interval.
    pub y: Estimate,
}

impl Plot {
    /// A figure without series, the legend beside it.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new(), legend: Legend::default() }
    }

    /// The same with one more series on top.
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// The figure as the text of an SVG document. Points without a place on its axes (values that are not
    /// finite, or not above zero on a logarithmic axis) are left out, and a note has their number.
    ///
    /// # Errors
    /// Those of the drawing library.
    pub fn to_svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| error.to_string())?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> DrawResult {
        let canvas = Canvas::framed(svg, self.frame())?;
        for (place, series) in self.series.iter().enumerate() {
            self.draw_series(&canvas, series, series.appearance_at(place))?;
        }
        canvas.finish()
    }

    fn frame(&self) -> Frame<'_> {
        let shown = || self.points().filter(|point| self.has_place(point));
        let heights = shown().flat_map(|point| reach(self.y.scale, point.y));
        Frame {
            title: &self.title,
            x_label: &self.x.label,
            y_label: &self.y.label,
            x: Ticks::new(&self.x, shown().map(|point| point.x)),
            y: Ticks::new(&self.y, heights),
            x_grid: true,
            legend: self.legend,
            entries: self.series.iter().enumerate().map(|(place, series)| series.entry(place)).collect(),
            note: self.note(),
        }
    }

    fn note(&self) -> Option<String> {
        let all = self.points().count();
        let absent = self.points().filter(|point| !self.has_place(point)).count();
        (absent > 0).then(|| {
            format!(
                "Not shown: {absent} of {all} points, whose values are not finite or not above 0 on a \
                logarithmic axis."
            )
        })
    }

    fn draw_series(&self, canvas: &Canvas<'_>, series: &Series, appearance: Appearance) -> DrawResult {
        if series.style != Style::Dots {
            for run in series.points.split(|point| !self.has_place(point)).filter(|run| run.len() > 1) {
                let points: Vec<(f64, f64)> = run.iter().map(|point| (point.x, point.y.value)).collect();
                canvas.line(&points, appearance)?;
            }
        }
        let spacing = series.marker_spacing();
        for (place, point) in series.points.iter().enumerate().filter(|(_, point)| self.has_place(point)) {
            if let Some(interval) = point.y.interval() {
                canvas.error_bar(point.x, interval, appearance.colour())?;
            }
            if spacing.is_some_and(|spacing| place % spacing == spacing / 2) {
                canvas.marker((point.x, point.y.value), appearance)?;
            }
        }
        Ok(())
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn has_place(&self, point: &Point) -> bool {
        drawable(self.x.scale, point.x) && drawable(self.y.scale, point.y.value)
    }
}

impl Series {
    /// Points under a name. Pairs of numbers are points without error bars.
    pub fn new<P: Into<Point>>(
        name: impl Into<String>,
        style: Style,
        points: impl IntoIterator<Item = P>,
    ) -> Self {
        Self { name: name.into(), style, points: points.into_iter().map(P::into).collect(), appearance: None }
    }

    /// The same with the colour and marker of the series at `place`, for a formula and its measurement.
    pub fn with_appearance(self, place: usize) -> Self {
        Self { appearance: Some(place), ..self }
    }

    pub(super) fn appearance_at(&self, place: usize) -> Appearance {
        Appearance(self.appearance.unwrap_or(place))
    }

    fn entry(&self, place: usize) -> Entry {
        let sample = match self.style {
            Style::Line => Sample::MarkedLine,
            Style::Curve => Sample::Line,
            Style::Dots => Sample::Marker,
        };
        Entry { name: self.name.clone(), appearance: self.appearance_at(place), sample }
    }

    /// Every how many points there is a marker.
    fn marker_spacing(&self) -> Option<usize> {
        match self.style {
            Style::Curve => None,
            Style::Line if self.points.len() > ALL_MARKED => Some(self.points.len() / SOME_MARKED),
            Style::Line | Style::Dots => Some(1),
        }
    }
}

impl Point {
    /// A point at `x` whose height is a number, a mean with its interval, or a summary.
    pub fn new(x: f64, y: impl Into<Estimate>) -> Self {
        Self { x, y: y.into() }
    }
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        Self::new(x, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goodput() -> Plot {
        let measured = |value: f64| Estimate { value, half_width: Some(value / 10.0) };
        let points = [25.0, 100.0, 300.0, 600.0].map(|rtt| Point::new(rtt, measured(1000.0 / rtt)));
        Plot::new(
            "Goodput",
            Axis::new("round-trip time", "ms").log(),
            Axis::new("goodput", "Mbit/s").including(50.0),
        )
        .with(Series::new("end to end", Style::Line, points))
        .with(Series::new("PEPsal", Style::Line, [(25.0, 9.0), (600.0, 8.5)]))
    }

    #[test]
    fn axes_are_labelled_with_their_units_and_series_with_their_names() {
        let svg = goodput().to_svg().unwrap();
        for text in
            ["round-trip time (ms)", "goodput (Mbit/s)", "end to end", "PEPsal", "\nGoodput\n", "1000"]
        {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn the_same_data_give_the_same_bytes() {
        assert_eq!(goodput().to_svg(), goodput().to_svg());
    }

    #[test]
    fn error_bars_are_drawn_where_there_are_intervals() {
        let bare = |mut plot: Plot| {
            plot.series
                .iter_mut()
                .flat_map(|series| &mut series.points)
                .for_each(|point| point.y.half_width = None);
            plot
        };
        let lines = |plot: &Plot| plot.to_svg().unwrap().matches("<polyline").count();
        // A bar and two caps for each of four points.
        assert_eq!(lines(&goodput()), lines(&bare(goodput())) + 4 * 3);
    }

    #[test]
    fn a_point_without_a_place_is_counted_and_breaks_the_line() {
        let mut plot = goodput();
        plot.series[0].points[1].y = f64::NAN.into();
        plot.series[1].points[0].x = 0.0;
        let svg = plot.to_svg().unwrap();
        assert!(svg.contains("Not shown: 2 of 6 points"), "{svg}");
        assert!(!goodput().to_svg().unwrap().contains("Not shown"));
    }

    #[test]
    fn an_interval_that_reaches_below_a_logarithmic_axis_is_cut_there() {
        let mut plot = goodput();
        plot.y = Axis::new("goodput", "Mbit/s").log();
        plot.series[0].points[2].y = Estimate { value: 1.0, half_width: Some(2.0) };
        let svg = plot.to_svg().unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("Not shown"), "{svg}");
    }

    #[test]
    fn a_long_line_is_marked_here_and_there() {
        let points = (0..1000).map(|second| (f64::from(second), 1.0));
        let line = Series::new("l", Style::Line, points);
        let plot = Plot::new("t", Axis::new("time", "s"), Axis::new("rate", "bit/s")).with(line);
        let markers = plot.to_svg().unwrap().matches("<circle").count();
        assert!((SOME_MARKED..=SOME_MARKED + 2).contains(&markers), "{markers} with that of the legend");
    }
}

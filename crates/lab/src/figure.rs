//! Figures as SVG: lines and bars over labelled axes.
//!
//! A [`Plot`] shows how one quantity depends on another, with error bars where there were several runs; a
//! [`BarChart`] compares schemes in a few situations. An [`Axis`] is made of a quantity and its unit, so no
//! figure lacks them. Colours stay apart for the colour-blind and each series has a marker of its own, so
//! that a print in black and white can be read. On a screen whose reader prefers dark pages a figure is dark.
//! The same data give the same bytes.

mod appearance;
mod bars;
mod canvas;
mod plot;
mod theme;
mod ticks;

use std::path::Path;

use bentpipe_table::EscapedHtml;
use serde::{Deserialize, Serialize};

pub use bars::{BarChart, BarGroup};
pub use plot::{Plot, Point, Series, Style};

use crate::Error;
use crate::file::write_whole;

/// The namespace of SVG.
const SVG: &str = "http://www.w3.org/2000/svg";

/// A figure of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    /// Series of points.
    Plot(Plot),
    /// Groups of bars.
    Bars(BarChart),
}

/// A quantity with its unit, and how it is laid out along an edge of the figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    label: String,
    scale: Scale,
    including: Vec<f64>,
}

/// How values are spread along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Scale {
    /// Equal differences are equally far apart. The axis includes zero.
    #[default]
    Linear,
    /// Equal ratios are equally far apart. The axis ends where the data end; zero and below have no place on
    /// it.
    Log,
}

/// Where a chart has room for its legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Legend {
    /// Outside, to the right of the frame, where it hides nothing.
    #[default]
    Right,
    /// Inside, at the top.
    UpperRight,
    /// Inside, at the top left.
    UpperLeft,
    /// Inside, at the bottom.
    LowerRight,
}

impl Axis {
    /// A linear axis of a quantity in a unit: `Axis::new("round-trip time", "ms")`.
    pub fn new(quantity: &str, unit: &str) -> Self {
        Self::labelled(format!("{quantity} ({unit})"))
    }

    /// A linear axis of a quantity that has no unit, such as an index or a ratio.
    pub fn dimensionless(quantity: &str) -> Self {
        Self::labelled(quantity.to_owned())
    }

    /// The same with a logarithmic scale.
    pub fn log(self) -> Self {
        Self { scale: Scale::Log, ..self }
    }

    /// The same, extended to `value`.
    pub fn including(mut self, value: f64) -> Self {
        self.including.push(value);
        self
    }

    fn labelled(label: String) -> Self {
        Self { label, scale: Scale::Linear, including: Vec::new() }
    }
}

impl Figure {
    /// The figure's title.
    pub fn title(&self) -> &str {
        match self {
            Figure::Plot(plot) => &plot.title,
            Figure::Bars(bars) => &bars.title,
        }
    }

    /// The figure as the text of an SVG document.
    ///
    /// # Errors
    /// If the data is invalid, such as a bar without a category.
    pub fn to_svg(&self) -> Result<String, String> {
        let (head, body) = self.drawn()?;
        Ok(format!("{head}>\n<style>\n{}</style>{body}", theme::rules()))
    }

    /// The figure as an element of a page of HTML that has the [`dark_rules`].
    ///
    /// # Errors
    /// Those of [`to_svg`](Self::to_svg).
    pub fn to_html(&self) -> Result<String, String> {
        let (head, body) = self.drawn()?;
        // HTML knows the element without its namespace.
        let head = head.replace(&format!(" xmlns=\"{SVG}\""), "");
        Ok(format!("{head} role=\"img\" aria-label=\"{}\">{body}", EscapedHtml(self.title())))
    }

    /// The opening tag without its end, and what is behind it.
    fn drawn(&self) -> Result<(String, String), String> {
        let svg = match self {
            Figure::Plot(plot) => plot.to_svg(),
            Figure::Bars(bars) => bars.to_svg(),
        }?;
        let (head, body) = svg.split_once('>').expect("a document begins with a tag");
        Ok((head.to_owned(), body.to_owned()))
    }

    /// Draws the figure into an SVG file, creating the folder if need be.
    ///
    /// # Errors
    /// [`Error::Write`] if it cannot be drawn or written; a file that was there is then as it was.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let svg =
            self.to_svg().map_err(|message| Error::Write { path: path.display().to_string(), message })?;
        write_whole(path, &svg)
    }
}

/// The style rules of a page with figures: their colours on dark pages.
pub fn dark_rules() -> String {
    theme::rules()
}

impl From<Plot> for Figure {
    fn from(plot: Plot) -> Self {
        Figure::Plot(plot)
    }
}

impl From<BarChart> for Figure {
    fn from(bars: BarChart) -> Self {
        Figure::Bars(bars)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Plot {
        let axes = (Axis::new("time", "s"), Axis::new("received", "MB"));
        Plot { legend: Legend::LowerRight, ..Plot::new("a & b", axes.0, axes.1) }
            .with(Series::new("reno", Style::Curve, points.clone()))
            .with(Series::new("measured", Style::Dots, points).with_appearance(0))
    }

    #[test]
    fn axes_and_lines_are_labelled_and_text_is_escaped() {
        let svg = chart(vec![(0.0, 0.0), (1.0, 2.0)]).to_svg().unwrap();
        for text in ["time (s)", "received (MB)", "reno", "a &amp; b", "polyline", "measured", "circle"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn a_figure_has_both_themes_and_every_colour_that_it_uses_has_a_dark_form() {
        let figure = Figure::from(chart(vec![(0.0, 0.0), (1.0, 2.0)]));
        let (svg, rules) = (figure.to_svg().unwrap(), dark_rules());
        assert!(svg.starts_with("<svg ") && svg.contains(&rules) && svg.contains("prefers-color-scheme"));
        let (_, drawn) = figure.drawn().unwrap();
        for kind in ["fill", "stroke"] {
            let start = format!(" {kind}=\"#");
            let uses: Vec<&str> = drawn.split(&start).skip(1).map(|rest| &rest[..6]).collect();
            assert!(uses.len() > 3, "{kind}");
            for colour in uses {
                assert!(rules.contains(&format!("[{kind}=\"#{colour}\"]")), "{kind} {colour}");
            }
        }
    }

    #[test]
    fn a_figure_in_a_page_is_named_and_refers_to_nothing() {
        let html = Figure::from(chart(vec![(0.0, 0.0)])).to_html().unwrap();
        assert!(html.contains("role=\"img\" aria-label=\"a &amp; b\">"), "{html}");
        assert!(!html.contains("http") && !html.contains("<style"), "{html}");
    }

    #[test]
    fn a_line_without_points_is_no_error() {
        assert!(chart(Vec::new()).to_svg().is_ok());
    }

    #[test]
    fn dots_have_the_colour_of_their_line() {
        let plot = chart(vec![(0.0, 0.0)]);
        assert_eq!(plot.series[0].appearance_at(0), plot.series[1].appearance_at(1));
    }

    #[test]
    fn an_axis_says_its_quantity_and_its_unit() {
        assert_eq!(Axis::new("round-trip time", "ms").log().label, "round-trip time (ms)");
    }
}

//! Figures as SVG: lines over labelled axes.

use std::path::Path;

use plotters::prelude::*;

use crate::Error;

/// Colours that stay apart for the colour-blind (Okabe and Ito 2008), the strongest first.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
const SIZE: (u32, u32) = (900, 480);

/// Where a chart has room for its legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legend {
    /// At the top.
    UpperRight,
    /// At the bottom.
    LowerRight,
}

/// Lines over two labelled axes.
#[derive(Debug, Clone)]
pub struct LineChart {
    /// What the figure shows.
    pub title: String,
    /// The horizontal axis with its unit.
    pub x_label: String,
    /// The vertical axis with its unit.
    pub y_label: String,
    /// A name and its points, joined by lines.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// A name and its points, each a dot. The first set has the colour of the first line, and so on.
    pub dots: Vec<(String, Vec<(f64, f64)>)>,
    /// Where the legend goes.
    pub legend: Legend,
}

impl LineChart {
    /// Draws the chart into an SVG file, creating the folder if need be.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let fail = |message: String| Error::Write { path: path.display().to_string(), message };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| fail(error.to_string()))?;
        }
        let svg = self.to_svg().map_err(fail)?;
        std::fs::write(path, svg).map_err(|error| fail(error.to_string()))
    }

    /// The chart as the text of an SVG document.
    pub fn to_svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| error.to_string())?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..self.limit(|point| point.0), 0.0..self.limit(|point| point.1))?;
        chart
            .configure_mesh()
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .axis_desc_style(("sans-serif", 15))
            .label_style(("sans-serif", 13))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.1))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            chart
                .draw_series(LineSeries::new(line.1.iter().copied(), colour.stroke_width(2)))?
                .label(&line.0)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        }
        for (set, colour) in self.dots.iter().zip(COLOURS.iter().cycle()) {
            let dot = |&point: &(f64, f64)| Circle::new(point, 3, colour.filled());
            chart
                .draw_series(set.1.iter().map(dot))?
                .label(&set.0)
                .legend(move |(x, y)| Circle::new((x + 9, y), 3, colour.filled()));
        }
        chart
            .configure_series_labels()
            .position(match self.legend {
                Legend::UpperRight => SeriesLabelPosition::UpperRight,
                Legend::LowerRight => SeriesLabelPosition::LowerRight,
            })
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .label_font(("sans-serif", 14))
            .draw()?;
        area.present()?;
        Ok(())
    }

    /// The end of an axis: a little beyond the largest value.
    fn limit(&self, value: impl Fn(&(f64, f64)) -> f64) -> f64 {
        let sets = self.lines.iter().chain(&self.dots);
        let most = sets.flat_map(|set| set.1.iter().map(&value)).fold(0.0, f64::max);
        if most > 0.0 { most * 1.05 } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> LineChart {
        LineChart {
            title: "a & b".into(),
            x_label: "time (s)".into(),
            y_label: "received (MB)".into(),
            lines: vec![("reno".into(), points.clone())],
            dots: vec![("measured".into(), points)],
            legend: Legend::LowerRight,
        }
    }

    #[test]
    fn axes_and_lines_are_labelled_and_text_is_escaped() {
        let svg = chart(vec![(0.0, 0.0), (1.0, 2.0)]).to_svg().unwrap();
        for text in ["time (s)", "received (MB)", "reno", "a &amp; b", "polyline", "measured", "circle"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn a_line_without_points_is_no_error() {
        assert!(chart(Vec::new()).to_svg().is_ok());
    }
}

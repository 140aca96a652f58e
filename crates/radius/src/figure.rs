//! The radii drawn over the distance.

use std::time::Duration;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{Catalogue, Protocol, kilometres};

/// From below the Moon to beyond the farthest place, km.
const RANGE: std::ops::Range<f64> = 3e4..2e9;
const WIDTH: u32 = 1000;
const ROW: u32 = 22;
/// Room for the names of the places above the bars, and for the axis below them, pixels.
const ABOVE: u32 = 145;
const BELOW: u32 = 60;
const NAMES: u32 = 210;
/// Blue and a light blue that stay apart in print and for the colour-blind (Okabe and Ito 2008).
const FULL: RGBColor = RGBColor(0, 114, 178);
const REDUCED: RGBColor = RGBColor(148, 200, 232);

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::combinators::LogCoord<f64>, plotters::coord::types::RangedCoordf64>,
>;

/// The text of an SVG document: a bar for each protocol over a logarithmic axis of distance, dark up to the
/// inner radius and light up to the limit, and a line for each place.
///
/// # Errors
/// The drawing library's, as text.
pub fn svg(catalogue: &Catalogue) -> Result<String, String> {
    let mut svg = String::new();
    draw(catalogue, &mut svg).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw(catalogue: &Catalogue, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let rows = catalogue.protocols().len();
    let height = ABOVE + BELOW + ROW * rows as u32;
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin_right(16)
        .margin_left(NAMES as i32)
        .margin_top(ABOVE as i32)
        .x_label_area_size(BELOW)
        .build_cartesian_2d(RANGE.log_scale(), 0.0..rows as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_desc("distance, one way (km)")
        .x_label_formatter(&|km| format!("{km:.0e}"))
        .axis_desc_style(("sans-serif", 15))
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.08))
        .draw()?;
    for (row, protocol) in catalogue.protocols().iter().enumerate() {
        bar(&mut chart, catalogue, protocol, (rows - row) as f64)?;
    }
    places(&mut chart, catalogue, rows as f64)?;
    titles(&area)?;
    area.present()?;
    Ok(())
}

/// The name and the two parts of the bar between `top` and one row below.
fn bar(
    chart: &mut Chart,
    catalogue: &Catalogue,
    protocol: &Protocol,
    top: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let reach = catalogue.reach(protocol);
    let on_axis = |delay: Option<Duration>| delay.map_or(RANGE.end, |delay| kilometres(delay).min(RANGE.end));
    let limit = on_axis(reach.limit);
    let inner = on_axis(reach.inner).min(limit);
    for (from, to, colour) in [(RANGE.start, inner, FULL), (inner, limit, REDUCED)] {
        if from < to {
            let corners = [(from, top - 0.2), (to, top - 0.8)];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
        }
    }
    let style = TextStyle::from(("sans-serif", 13)).pos(Pos::new(HPos::Right, VPos::Center));
    chart.draw_series([
        EmptyElement::at((RANGE.start, top - 0.5)) + Text::new(protocol.name.clone(), (-8, 0), style)
    ])?;
    Ok(())
}

fn places(chart: &mut Chart, catalogue: &Catalogue, rows: f64) -> Result<(), Box<dyn std::error::Error>> {
    let line = RGBColor(213, 94, 0).mix(0.8).stroke_width(1);
    let style = TextStyle::from(("sans-serif", 13).into_font().transform(FontTransform::Rotate270))
        .pos(Pos::new(HPos::Left, VPos::Center));
    for place in catalogue.places() {
        let km = kilometres(place.delay);
        chart.draw_series([PathElement::new([(km, 0.0), (km, rows)], line)])?;
        let label = Text::new(place.name.clone(), (0, -6), style.clone());
        chart.draw_series([EmptyElement::at((km, rows)) + label])?;
    }
    Ok(())
}

fn titles(area: &DrawingArea<SVGBackend, plotters::coord::Shift>) -> Result<(), Box<dyn std::error::Error>> {
    let at =
        |x: i32, y: i32, words: &str, size: i32| Text::new(words.to_owned(), (x, y), ("sans-serif", size));
    area.draw(&at(12, 12, "How far their timers let them reach", 18))?;
    for (y, colour, words) in [(44, FULL, "sent once"), (64, REDUCED, "sent again before the answer")] {
        area.draw(&Rectangle::new([(12, y), (30, y + 12)], colour.filled()))?;
        area.draw(&at(36, y, words, 13))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_and_place_has_its_name_in_the_figure() {
        let catalogue = Catalogue::embedded();
        let svg = svg(&catalogue).unwrap();
        let protocols = catalogue.protocols().iter().map(|protocol| &protocol.name);
        for name in protocols.chain(catalogue.places().iter().map(|place| &place.name)) {
            assert!(svg.contains(name.as_str()), "{name} is not in the figure");
        }
        assert!(svg.contains("distance, one way (km)"));
    }
}

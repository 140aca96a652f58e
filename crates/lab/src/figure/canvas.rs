//! The drawing area of all figures: a frame with labelled axes, lines, markers, error bars and a legend.

use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Legend;
use super::appearance::{Appearance, MARKER, draw_marker};
use super::ticks::Ticks;
use crate::statistics::Estimate;

pub(super) type DrawResult<T = ()> = Result<T, Box<dyn std::error::Error>>;
/// The paper.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A place on it, from the upper left corner.
pub(super) type Pixel = (i32, i32);

/// The figure without a legend beside it.
const SIZE: (i32, i32) = (900, 480);
const MARGIN: i32 = 12;
const TITLE_HEIGHT: i32 = 34;
const NOTE_HEIGHT: i32 = 20;
const ENTRY_HEIGHT: i32 = 22;
/// The width of the sample in front of a name in the legend.
const SAMPLE_WIDTH: i32 = 34;
/// The width of a letter of 14 pixels, estimated generously because the reader's fonts are unknown.
const LETTER_WIDTH: i32 = 7;

/// The sample in front of a name in the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    Line,
    MarkedLine,
    Marker,
    Bar,
}

/// A line of the legend.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) appearance: Appearance,
    pub(super) sample: Sample,
}

/// The frame around the data.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) x_label: &'a str,
    pub(super) y_label: &'a str,
    pub(super) x: Ticks,
    pub(super) y: Ticks,
    /// Whether lines rise from the labels of the horizontal axis.
    pub(super) x_grid: bool,
    pub(super) legend: Legend,
    pub(super) entries: Vec<Entry>,
    /// A note on the data, below the figure.
    pub(super) note: Option<String>,
}

/// A figure being drawn.
pub(super) struct Canvas<'a> {
    area: Area<'a>,
    chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<Ticks, Ticks>>,
    legend: Legend,
    entries: Vec<Entry>,
}

impl<'a> Canvas<'a> {
    /// Draws the frame into `svg`.
    pub(super) fn framed(svg: &'a mut String, frame: Frame<'_>) -> DrawResult<Self> {
        let (width, height) = frame.size();
        let area = SVGBackend::with_string(svg, (width as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let chart = frame.draw_axes(&area)?;
        let (across, _) = chart.plotting_area().get_pixel_range();
        let middle = i32::midpoint(across.start, across.end);
        area.draw(&text(frame.title, (middle, MARGIN), 20, (HPos::Center, VPos::Top)))?;
        if let Some(note) = &frame.note {
            area.draw(&text(note, (MARGIN, height - 8), 12, (HPos::Left, VPos::Bottom)))?;
        }
        Ok(Self { area, chart, legend: frame.legend, entries: frame.entries })
    }

    pub(super) fn line(&self, points: &[(f64, f64)], appearance: Appearance) -> DrawResult {
        let pixels: Vec<Pixel> = points.iter().map(|point| self.pixel(*point)).collect();
        Ok(self.area.draw(&PathElement::new(pixels, appearance.colour().stroke_width(2)))?)
    }

    pub(super) fn marker(&self, point: (f64, f64), appearance: Appearance) -> DrawResult {
        draw_marker(&self.area, self.pixel(point), appearance.shape(), MARKER, appearance.colour())
    }

    /// A vertical line from `low` to `high` with caps. An end that lies beyond the axis has no cap.
    pub(super) fn error_bar(&self, x: f64, (low, high): (f64, f64), colour: RGBColor) -> DrawResult {
        if !(low.is_finite() && high.is_finite()) {
            return Ok(());
        }
        let axis = self.y_axis();
        let end = |value: f64| self.pixel((x, axis.clamp(value)));
        let style = colour.stroke_width(1);
        self.area.draw(&PathElement::new([end(low), end(high)], style))?;
        for value in [low, high].into_iter().filter(|value| axis.clamp(*value) == *value) {
            let (x, y) = end(value);
            self.area.draw(&PathElement::new([(x - MARKER, y), (x + MARKER, y)], style))?;
        }
        Ok(())
    }

    /// A bar from the base of the axis to a value, with a black error bar, and its marker at its foot. A bar
    /// that is too short for the marker has it beyond its end.
    pub(super) fn bar(&self, (left, right): (f64, f64), bar: Estimate, appearance: Appearance) -> DrawResult {
        let base = self.y_axis().base();
        let corners = [self.pixel((left, base)), self.pixel((right, bar.value))];
        self.area.draw(&Rectangle::new(corners, appearance.colour().filled()))?;
        let middle = f64::midpoint(left, right);
        let (low, high) = bar.interval().unwrap_or((bar.value, bar.value));
        if bar.half_width.is_some() {
            self.error_bar(middle, (low, high), BLACK)?;
        }
        let ((x, foot), (_, near), (_, far)) =
            (self.pixel((middle, base)), self.pixel((middle, low)), self.pixel((middle, high)));
        let (near, far, up) = if bar.value < base { (far, near, -1) } else { (near, far, 1) };
        let fits = (foot - near) * up > 5 * MARKER;
        badge(&self.area, (x, if fits { foot } else { far } - 3 * MARKER * up), appearance)
    }

    /// Marks a missing value.
    pub(super) fn absent(&self, x: f64) -> DrawResult {
        let (x, y) = self.pixel((x, self.y_axis().base()));
        Ok(self.area.draw(&text("no data", (x, y - 3), 11, (HPos::Center, VPos::Bottom)))?)
    }

    /// Draws the legend and completes the document.
    pub(super) fn finish(self) -> DrawResult {
        let (across, down) = self.chart.plotting_area().get_pixel_range();
        let (width, height) = legend_size(&self.entries);
        let (x, y) = match self.legend {
            Legend::Right => (across.end + MARGIN, down.start),
            Legend::UpperLeft => (across.start + MARGIN, down.start + MARGIN),
            Legend::UpperRight => (across.end - width - MARGIN, down.start + MARGIN),
            Legend::LowerRight => (across.end - width - MARGIN, down.end - height - MARGIN),
        };
        let corners = [(x, y), (x + width, y + height)];
        self.area.draw(&Rectangle::new(corners, WHITE.mix(0.85).filled()))?;
        self.area.draw(&Rectangle::new(corners, BLACK.mix(0.2)))?;
        for (entry, row) in self.entries.iter().zip(0..) {
            entry.draw(&self.area, (x + 8, y + 4 + ENTRY_HEIGHT * row + ENTRY_HEIGHT / 2))?;
        }
        Ok(self.area.present()?)
    }

    fn y_axis(&self) -> &Ticks {
        self.chart.as_coord_spec().y_spec()
    }

    fn pixel(&self, point: (f64, f64)) -> Pixel {
        self.chart.backend_coord(&point)
    }
}

impl Frame<'_> {
    /// A legend beside the frame widens the figure, so that the frame keeps its size; a long legend makes it
    /// taller.
    fn size(&self) -> Pixel {
        let (width, height) = legend_size(&self.entries);
        let note = if self.note.is_some() { NOTE_HEIGHT } else { 0 };
        let height = SIZE.1.max(height + TITLE_HEIGHT + 3 * MARGIN);
        (SIZE.0 + if self.legend == Legend::Right { width } else { 0 }, height + note)
    }

    fn draw_axes<'a>(
        &self,
        area: &Area<'a>,
    ) -> DrawResult<ChartContext<'a, SVGBackend<'a>, Cartesian2d<Ticks, Ticks>>> {
        let beside = if self.legend == Legend::Right { legend_size(&self.entries).0 + MARGIN } else { 0 };
        let labels = LETTER_WIDTH * self.y.longest_label() as i32;
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN)
            .margin_top(MARGIN + TITLE_HEIGHT)
            .margin_right(MARGIN + beside)
            .margin_bottom(MARGIN + if self.note.is_some() { NOTE_HEIGHT } else { 0 })
            .x_label_area_size(44)
            .y_label_area_size(36 + labels)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let mut mesh = chart.configure_mesh();
        if !self.x_grid {
            mesh.disable_x_mesh();
        }
        mesh.x_desc(self.x_label)
            .y_desc(self.y_label)
            .axis_desc_style(("sans-serif", 15))
            .label_style(("sans-serif", 13))
            .light_line_style(BLACK.mix(0.05))
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        drop(mesh);
        Ok(chart)
    }
}

impl Entry {
    fn draw(&self, area: &Area<'_>, (x, y): Pixel) -> DrawResult {
        let colour = self.appearance.colour();
        let middle = (x + (SAMPLE_WIDTH - 8) / 2, y);
        if matches!(self.sample, Sample::Line | Sample::MarkedLine) {
            let ends = [(x, y), (x + SAMPLE_WIDTH - 8, y)];
            area.draw(&PathElement::new(ends, colour.stroke_width(2)))?;
        }
        match self.sample {
            Sample::Line => (),
            Sample::MarkedLine | Sample::Marker => {
                draw_marker(area, middle, self.appearance.shape(), MARKER, colour)?;
            }
            Sample::Bar => {
                let corners = [(x + 2, y - 8), (x + SAMPLE_WIDTH - 10, y + 8)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                badge(area, middle, self.appearance)?;
            }
        }
        Ok(area.draw(&text(&self.name, (x + SAMPLE_WIDTH, y), 14, (HPos::Left, VPos::Center)))?)
    }
}

/// A marker that is seen on its own colour and on white.
fn badge(area: &Area<'_>, at: Pixel, appearance: Appearance) -> DrawResult {
    draw_marker(area, at, appearance.shape(), MARKER + 2, appearance.colour())?;
    draw_marker(area, at, appearance.shape(), MARKER, WHITE)
}

fn legend_size(entries: &[Entry]) -> Pixel {
    let longest = entries.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0) as i32;
    (SAMPLE_WIDTH + LETTER_WIDTH * longest + 16, ENTRY_HEIGHT * entries.len() as i32 + 8)
}

fn text<'a>(words: &'a str, at: Pixel, size: i32, (across, down): (HPos, VPos)) -> Text<'a, Pixel, &'a str> {
    let style = TextStyle::from(("sans-serif", size).into_font()).pos(Pos::new(across, down));
    Text::new(words, at, style)
}

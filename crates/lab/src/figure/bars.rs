//! Bars in groups: a few schemes compared in a few situations.

use serde::{Deserialize, Serialize};

use super::appearance::Appearance;
use super::canvas::{Canvas, DrawResult, Entry, Frame, Sample};
use super::ticks::{Ticks, drawable, reach};
use super::{Axis, Legend};
use crate::statistics::Estimate;

/// How much of a category's width its bars take together.
const FILLED: f64 = 0.8;
/// The share of its own width that a bar leaves free before the next.
const GAP: f64 = 0.04;

/// For each category one bar of each group, side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BarChart {
    /// The figure's title.
    pub title: String,
    /// The axis of the categories; its scale is not used.
    pub x: Axis,
    /// The axis of the bars' heights.
    pub y: Axis,
    /// The names of the categories, from the left.
    pub categories: Vec<String>,
    /// The groups, from the left within each category.
    pub groups: Vec<BarGroup>,
}

/// The bars of one colour, one in each category.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BarGroup {
    /// Its name in the legend.
    pub name: String,
    /// The heights in the order of the categories, with an error bar where there is an interval, None where
    /// nothing is known.
    pub bars: Vec<Option<Estimate>>,
}

impl BarChart {
    /// A figure without bars.
    pub fn new<C: Into<String>>(
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        categories: impl IntoIterator<Item = C>,
    ) -> Self {
        let categories = categories.into_iter().map(C::into).collect();
        Self { title: title.into(), x, y, categories, groups: Vec::new() }
    }

    /// The same with one more group, to the right of the others.
    pub fn with(mut self, group: BarGroup) -> Self {
        self.groups.push(group);
        self
    }

    /// The figure as the text of an SVG document. Where nothing is known, or nothing that has a place on the
    /// axis, it says "no data".
    ///
    /// # Errors
    /// If a group does not have one bar for each category.
    pub fn to_svg(&self) -> Result<String, String> {
        if let Some(group) = self.groups.iter().find(|group| group.bars.len() != self.categories.len()) {
            let (name, bars, categories) = (&group.name, group.bars.len(), self.categories.len());
            return Err(format!("the group \"{name}\" has {bars} bars for {categories} categories"));
        }
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| error.to_string())?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> DrawResult {
        let canvas = Canvas::framed(svg, self.frame())?;
        let width = FILLED / self.groups.len() as f64;
        for (place, group) in self.groups.iter().enumerate() {
            for (category, bar) in group.bars.iter().enumerate() {
                let left = category as f64 + (1.0 - FILLED) / 2.0 + place as f64 * width;
                self.draw_bar(&canvas, (left, left + width * (1.0 - GAP)), *bar, Appearance(place))?;
            }
        }
        canvas.finish()
    }

    fn draw_bar(
        &self,
        canvas: &Canvas<'_>,
        sides: (f64, f64),
        bar: Option<Estimate>,
        appearance: Appearance,
    ) -> DrawResult {
        match bar.filter(|bar| drawable(self.y.scale, bar.value)) {
            Some(bar) => canvas.bar(sides, bar, appearance),
            None => canvas.absent(f64::midpoint(sides.0, sides.1)),
        }
    }

    fn frame(&self) -> Frame<'_> {
        let bars = self.groups.iter().flat_map(|group| group.bars.iter().flatten());
        let heights = bars.flat_map(|bar| reach(self.y.scale, *bar));
        let entry = |(place, group): (usize, &BarGroup)| Entry {
            name: group.name.clone(),
            appearance: Appearance(place),
            sample: Sample::Bar,
        };
        Frame {
            title: &self.title,
            x_label: &self.x.label,
            y_label: &self.y.label,
            x: Ticks::categories(&self.categories),
            y: Ticks::new(&self.y, heights),
            x_grid: false,
            legend: Legend::Right,
            entries: self.groups.iter().enumerate().map(entry).collect(),
            note: None,
        }
    }
}

impl BarGroup {
    /// Bars under a name: `BarGroup::new("Reno", [Some(0.3), None])`, or of summaries.
    pub fn new<E: Into<Estimate>>(
        name: impl Into<String>,
        bars: impl IntoIterator<Item = Option<E>>,
    ) -> Self {
        let bars = bars.into_iter().map(|bar| bar.map(E::into)).collect();
        Self { name: name.into(), bars }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn railway() -> BarChart {
        let bar = |value: f64| Some(Estimate { value, half_width: Some(0.2) });
        BarChart::new(
            "Goodput over the railway",
            Axis::new("train speed", "km/h"),
            Axis::new("goodput", "Mbit/s"),
            ["60", "120", "180"],
        )
        .with(BarGroup::new("Reno", [Some(0.3), Some(0.2), None]))
        .with(BarGroup::new("PEPsal", [bar(4.2), bar(4.0), bar(3.5)]))
    }

    #[test]
    fn categories_groups_and_units_are_named() {
        let svg = railway().to_svg().unwrap();
        for text in ["train speed (km/h)", "goodput (Mbit/s)", "Reno", "PEPsal", "60", "120", "180"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn a_missing_bar_is_said_to_be_missing() {
        assert_eq!(railway().to_svg().unwrap().matches("no data").count(), 1);
    }

    #[test]
    fn the_same_data_give_the_same_bytes() {
        assert_eq!(railway().to_svg(), railway().to_svg());
    }

    #[test]
    fn a_bar_without_a_category_is_refused() {
        let refused = railway().with(BarGroup::new("Hybla", [Some(1.0)])).to_svg();
        assert_eq!(refused, Err("the group \"Hybla\" has 1 bars for 3 categories".into()));
    }

    #[test]
    fn a_chart_without_anything_is_no_error() {
        let none: [&str; 0] = [];
        let chart = BarChart::new("t", Axis::new("a", "s"), Axis::new("b", "s"), none);
        assert!(chart.to_svg().is_ok());
    }
}

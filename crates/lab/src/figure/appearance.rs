//! The colours and markers that distinguish the series of a figure.

use plotters::prelude::*;

use super::canvas::{Area, DrawResult, Pixel};

/// Colours that stay apart for the colour-blind (Okabe and Ito 2008), the strongest first; each with a
/// lighter form for dark pages.
pub(super) const COLOURS: [(RGBColor, RGBColor); 6] = [
    (RGBColor(0, 114, 178), RGBColor(61, 155, 224)),
    (RGBColor(213, 94, 0), RGBColor(242, 118, 46)),
    (RGBColor(0, 158, 115), RGBColor(47, 191, 148)),
    (RGBColor(204, 121, 167), RGBColor(224, 154, 194)),
    (RGBColor(86, 180, 233), RGBColor(166, 220, 250)),
    (RGBColor(230, 159, 0), RGBColor(242, 190, 60)),
];
/// One more than there are colours, so that the seventh series has the first colour again but a shape of its
/// own.
const SHAPES: [Shape; 7] = [
    Shape::Circle,
    Shape::Square,
    Shape::Triangle,
    Shape::Diamond,
    Shape::Cross,
    Shape::TriangleDown,
    Shape::Plus,
];
/// Half the height of a marker, in pixels.
pub(super) const MARKER: i32 = 4;

/// The appearance of the series at a place in a list: no two of the first 42 are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Appearance(pub(super) usize);

/// The shape of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    TriangleDown,
    Plus,
}

impl Appearance {
    pub(super) fn colour(self) -> RGBColor {
        COLOURS[self.0 % COLOURS.len()].0
    }

    pub(super) fn shape(self) -> Shape {
        SHAPES[self.0 % SHAPES.len()]
    }
}

/// Draws a marker that reaches `size` pixels to each side.
pub(super) fn draw_marker(
    area: &Area<'_>,
    (x, y): Pixel,
    shape: Shape,
    size: i32,
    colour: RGBColor,
) -> DrawResult {
    let place = |(across, down): &Pixel| (x + across, y + down);
    let strokes = |ends: [[Pixel; 2]; 2]| -> DrawResult {
        for ends in ends {
            let style = colour.stroke_width(size as u32 / 2);
            area.draw(&PathElement::new(ends.iter().map(place).collect::<Vec<_>>(), style))?;
        }
        Ok(())
    };
    let polygon = |corners: &[Pixel]| -> DrawResult {
        Ok(area.draw(&Polygon::new(corners.iter().map(place).collect::<Vec<_>>(), colour.filled()))?)
    };
    let (s, wide) = (size, size + 1);
    match shape {
        Shape::Circle => Ok(area.draw(&Circle::new((x, y), s, colour.filled()))?),
        Shape::Square => polygon(&[(-s, -s), (s, -s), (s, s), (-s, s)]),
        Shape::Triangle => polygon(&[(0, -wide), (wide, s), (-wide, s)]),
        Shape::TriangleDown => polygon(&[(0, wide), (wide, -s), (-wide, -s)]),
        Shape::Diamond => polygon(&[(0, -wide), (wide, 0), (0, wide), (-wide, 0)]),
        Shape::Cross => strokes([[(-s, -s), (s, s)], [(-s, s), (s, -s)]]),
        Shape::Plus => strokes([[(-wide, 0), (wide, 0)], [(0, -wide), (0, wide)]]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_series_of_a_crowded_figure_look_alike() {
        let looks: Vec<_> =
            (0..42).map(|index| (Appearance(index).colour(), Appearance(index).shape())).collect();
        for (index, appearance) in looks.iter().enumerate() {
            assert!(!looks[..index].contains(appearance), "{index} looks like an earlier one");
        }
    }
}

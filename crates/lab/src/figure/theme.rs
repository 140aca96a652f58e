//! The colours of a figure where its reader prefers dark pages. The figure itself is drawn for paper, which
//! is also how it is printed.

use plotters::style::{BLACK, RGBColor, WHITE};

use super::appearance::COLOURS;

/// The counterparts of white and black.
const BACKGROUND: RGBColor = RGBColor(21, 24, 28);
const INK: RGBColor = RGBColor(230, 232, 234);

/// Style rules that replace the colours in which figures are drawn, on a screen whose reader prefers dark.
/// They serve for any number of figures in a page.
pub(super) fn rules() -> String {
    let pairs = [(WHITE, BACKGROUND), (BLACK, INK)].into_iter().chain(COLOURS);
    let rules = pairs.map(|(light, dark)| {
        let (light, dark) = (hex(light), hex(dark));
        format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}\n")
    });
    format!("@media screen and (prefers-color-scheme: dark) {{\n{}}}\n", rules.collect::<String>())
}

/// A colour as the drawing library writes it.
fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance and contrast by WCAG 2.1.
    fn contrast(one: RGBColor, other: RGBColor) -> f64 {
        let linear = |part: u8| match f64::from(part) / 255.0 {
            part if part <= 0.04045 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        };
        let luminance = |RGBColor(red, green, blue): RGBColor| {
            0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
        };
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        (one / other).max(other / one)
    }

    #[test]
    fn text_and_series_stand_out_from_the_dark_background() {
        assert!(contrast(INK, BACKGROUND) > 7.0);
        for (_, dark) in COLOURS {
            assert!(contrast(dark, BACKGROUND) > 4.5, "{dark:?}");
        }
    }
}

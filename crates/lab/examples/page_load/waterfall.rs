//! The times of a page's objects as a picture: a bar for each, from its request to its last byte.

use std::fmt::Write;

use crate::browser::Loaded;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 10.0;
const TOP: f64 = 40.0;
const ROW: f64 = 6.0;
/// Waiting for the first byte, and receiving.
const COLOURS: [&str; 2] = ["#c9ced6", "#2a6fb0"];

/// As SVG, with an axis of so many seconds.
pub(crate) fn svg(title: &str, loaded: &Loaded, seconds: f64) -> String {
    let scale = (WIDTH - 2.0 * LEFT) / seconds;
    let x = |at: f64| LEFT + at * scale;
    let height = TOP + ROW * loaded.objects.len() as f64 + 30.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}: loaded after {:.2} s</text>\n",
        loaded.complete
    );
    let mut draw = |line: std::fmt::Arguments<'_>| text.write_fmt(line).expect("a string takes everything");
    for second in 0..=seconds as u32 {
        let at = x(second.into());
        draw(format_args!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{0:.1}\" stroke=\"#e4e7ec\"/>\
             <text x=\"{at:.1}\" y=\"{1:.1}\" font-size=\"10\" text-anchor=\"middle\">{second}</text>\n",
            height - 25.0,
            height - 12.0
        ));
    }
    for (row, [asked, first, last]) in loaded.objects.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        for (colour, [from, until]) in COLOURS.into_iter().zip([[asked, first], [first, last]]) {
            let (at, width) = (x(*from), ((until - from) * scale).max(0.5));
            draw(format_args!(
                "<rect x=\"{at:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                 fill=\"{colour}\"/>\n",
                ROW - 1.5
            ));
        }
    }
    let at = x(loaded.complete);
    draw(format_args!(
        "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#b3261e\"/>\n</svg>\n",
        height - 25.0
    ));
    text
}

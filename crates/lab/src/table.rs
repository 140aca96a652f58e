//! Tables of results: one set of rows, for people as aligned text, Markdown or HTML, and for programs as CSV.
//!
//! People read rounded numbers in handy units (`3.42 ± 0.12` under "goodput (Mbit/s)"); programs read all
//! digits in SI units under a key (`goodput_bps_mean`, `goodput_bps_ci95`). Cells hold SI values; the column
//! has the handy unit.

mod csv;

use bentpipe_table::{self as table, Align};
use serde::{Deserialize, Serialize};

use crate::statistics::Estimate;

/// Shown where there is no value.
const NOTHING: &str = "–";

/// Rows under named columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Its title.
    pub title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A column: its name for people, its key for programs, its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The heading, without the unit.
    pub name: String,
    /// The heading in CSV, with the SI unit of the cells as its ending: `rtt_s`, `goodput_bps`.
    pub key: String,
    /// The unit in which people see the cells.
    pub unit: Option<Unit>,
}

/// A unit of measurement that people see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Its symbol.
    pub symbol: String,
    /// How many of the SI unit of the cells it is: 1e6 for Mbit/s where the cells are in bit/s.
    pub size: f64,
}

/// One place in a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cell {
    /// Text.
    Text(String),
    /// A number in the SI unit of its column, and how many decimals people see of it.
    Number(#[serde(with = "crate::number")] f64, usize),
    /// A mean with half the width of its 95% confidence interval, and how many decimals people see of both.
    Interval(Estimate, usize),
    /// No value.
    Missing,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row at the end.
    ///
    /// # Panics
    /// If the row does not have a cell for each column.
    pub fn push(&mut self, row: Vec<Cell>) {
        let (cells, columns) = (row.len(), self.columns.len());
        assert_eq!(cells, columns, "a row of the table \"{}\" must have a cell for each column", self.title);
        self.rows.push(row);
    }

    /// The columns, from the left.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The rows, from the top.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Aligned text for a terminal: the title, the headings and the rows.
    pub fn to_text(&self) -> String {
        let plain = |text: &str| table::printable(text, ' ');
        let (headings, rows) = self.rendered(plain);
        let lines = table::aligned(&self.aligned(&headings), &rows);
        format!("{}\n{}\n", plain(&self.title), lines.join("\n"))
    }

    /// A table of GitHub-flavoured Markdown, without the title.
    pub fn to_markdown(&self) -> String {
        let (headings, rows) = self.rendered(table::escape_markdown);
        table::markdown(&self.aligned(&headings), &rows)
    }

    /// A table of HTML, without the title.
    pub fn to_html(&self) -> String {
        let (headings, rows) = self.rendered(str::to_owned);
        table::html(&self.aligned(&headings), &rows)
    }

    /// Comma-separated values (RFC 4180), but with the line ends of Unix. Numbers are in the SI units of the
    /// keys, with as many digits as identify them, so equal data give equal bytes.
    ///
    /// A column with intervals becomes two, `KEY_mean` and `KEY_ci95` (half the interval's width). A missing
    /// value is empty, an infinite one is `inf`.
    pub fn to_csv(&self) -> String {
        csv::document(self)
    }

    /// The headings and all rows as people see them, each text escaped.
    fn rendered(&self, escape: impl Fn(&str) -> String) -> (Vec<String>, Vec<Vec<String>>) {
        let headings = self.columns.iter().map(|column| escape(&column.heading())).collect();
        let row = |row: &Vec<Cell>| {
            row.iter().zip(&self.columns).map(|(cell, column)| escape(&cell.to_text(column.size()))).collect()
        };
        (headings, self.rows.iter().map(row).collect())
    }

    /// The headings with the alignments of their columns.
    fn aligned<'a>(&self, headings: &'a [String]) -> Vec<table::Heading<'a>> {
        let align = |index| if self.is_numeric(index) { Align::Right } else { Align::Left };
        headings.iter().enumerate().map(|(index, heading)| (heading.as_str(), align(index))).collect()
    }

    /// Whether a column holds numbers, which are aligned to the right.
    fn is_numeric(&self, index: usize) -> bool {
        let mut numeric = false;
        for row in &self.rows {
            match row[index] {
                Cell::Text(_) => return false,
                Cell::Number(..) | Cell::Interval(..) => numeric = true,
                Cell::Missing => (),
            }
        }
        numeric
    }
}

impl Column {
    /// A column of words or of numbers without a unit.
    pub fn new(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { name: name.into(), key: key.into(), unit: None }
    }

    /// The same with a unit for people, which is `size` times the SI unit of the cells.
    ///
    /// # Panics
    /// If `size` is not above zero.
    pub fn shown_in(self, symbol: impl Into<String>, size: f64) -> Self {
        assert!(size > 0.0, "the unit of \"{}\" has the size {size}", self.name);
        Self { unit: Some(Unit { symbol: symbol.into(), size }), ..self }
    }

    fn heading(&self) -> String {
        match &self.unit {
            Some(unit) => format!("{} ({})", self.name, unit.symbol),
            None => self.name.clone(),
        }
    }

    fn size(&self) -> f64 {
        self.unit.as_ref().map_or(1.0, |unit| unit.size)
    }
}

impl Cell {
    /// A cell of words.
    pub fn text(words: impl Into<String>) -> Self {
        Cell::Text(words.into())
    }

    /// A cell with a mean and its interval, or [`Cell::Missing`].
    pub fn interval(estimate: Option<impl Into<Estimate>>, decimals: usize) -> Self {
        estimate.map_or(Cell::Missing, |estimate| Cell::Interval(estimate.into(), decimals))
    }

    /// What people see, in a unit of this size.
    fn to_text(&self, size: f64) -> String {
        match self {
            Cell::Text(words) => words.clone(),
            Cell::Number(value, decimals) => rounded(value / size, *decimals),
            Cell::Interval(estimate, decimals) => {
                let value = rounded(estimate.value / size, *decimals);
                match estimate.half_width {
                    Some(half) => format!("{value} ± {}", rounded(half / size, *decimals)),
                    None => value,
                }
            }
            Cell::Missing => NOTHING.to_owned(),
        }
    }
}

fn rounded(value: f64, decimals: usize) -> String {
    if value.is_nan() {
        return NOTHING.to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
    }
    let text = format!("{value:.decimals$}");
    // A number that rounds to zero has no sign.
    let zero = text.chars().all(|digit| matches!(digit, '-' | '0' | '.'));
    if zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goodputs() -> Table {
        let columns = vec![
            Column::new("way", "way"),
            Column::new("train speed", "train_speed_mps").shown_in("km/h", 1.0 / 3.6),
            Column::new("goodput", "goodput_bps").shown_in("Mbit/s", 1e6),
        ];
        let mut table = Table::new("Goodput over the railway", columns);
        let goodput = |value, half_width| Cell::Interval(Estimate { value, half_width }, 2);
        table.push(vec![Cell::text("PEPsal"), Cell::Number(50.0, 0), goodput(4_212_345.5, Some(123_456.0))]);
        table.push(vec![Cell::text("Reno"), Cell::Number(100.0 / 6.0, 0), goodput(250_000.0, None)]);
        table.push(vec![Cell::text("a|b"), Cell::Missing, Cell::Missing]);
        table
    }

    #[test]
    fn people_see_aligned_rounded_numbers_with_units() {
        let expected = "\
Goodput over the railway
way     train speed (km/h)  goodput (Mbit/s)
PEPsal                 180       4.21 ± 0.12
Reno                    60              0.25
a|b                      –                 –
";
        assert_eq!(goodputs().to_text(), expected);
    }

    #[test]
    fn markdown_aligns_numbers_and_keeps_a_bar_within_its_cell() {
        let expected = "\
| way | train speed (km/h) | goodput (Mbit/s) |
|---|---:|---:|
| PEPsal | 180 | 4.21 ± 0.12 |
| Reno | 60 | 0.25 |
| a\\|b | – | – |
";
        assert_eq!(goodputs().to_markdown(), expected);
    }

    #[test]
    fn programs_see_all_digits_in_si_units_and_an_interval_as_two_columns() {
        let expected = "\
way,train_speed_mps,goodput_bps_mean,goodput_bps_ci95
PEPsal,50,4212345.5,123456
Reno,16.666666666666668,250000,
a|b,,,
";
        assert_eq!(goodputs().to_csv(), expected);
    }

    #[test]
    fn special_values_are_shown_sensibly() {
        assert_eq!(rounded(f64::NAN, 2), "–");
        assert_eq!(rounded(f64::INFINITY, 2), "∞");
        assert_eq!(rounded(-0.001, 2), "0.00");
        assert_eq!(rounded(-0.5, 1), "-0.5");
    }

    #[test]
    fn text_cannot_steer_a_terminal_or_break_a_line() {
        let mut table = Table::new("t\u{1b}[31m", vec![Column::new("a", "a")]);
        table.push(vec![Cell::text("x\ny\u{7}")]);
        for shown in [table.to_text(), table.to_markdown(), table.to_html()] {
            assert!(!shown.contains('\u{1b}') && shown.contains("x y"), "{shown:?}");
        }
    }

    #[test]
    fn a_table_without_rows_still_has_its_headings() {
        let table = Table::new("empty", vec![Column::new("a", "a"), Column::new("b", "b")]);
        assert_eq!((table.to_text().as_str(), table.to_csv().as_str()), ("empty\na  b\n", "a,b\n"));
    }

    #[test]
    #[should_panic(expected = "must have a cell for each column")]
    fn a_row_of_the_wrong_length_is_refused() {
        Table::new("t", vec![Column::new("a", "a")]).push(vec![Cell::Missing, Cell::Missing]);
    }
}

//! Tables as aligned text for terminals, as Markdown, and as CSV.
#![forbid(unsafe_code)]

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers, and for words above or among them.
    Right,
}

/// A column's heading and its alignment.
pub type Heading<'a> = (&'a str, Align);

/// The lines of a table for a terminal: the headings, then the rows. Each column is as wide as its widest
/// cell, two spaces separate columns, and no line ends with a space.
///
/// # Panics
/// If a row has fewer cells than there are headings.
pub fn aligned<R: AsRef<[String]>>(headings: &[Heading<'_>], rows: &[R]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row.as_ref()[column].chars().count());
        cells.max().unwrap_or(0).max(headings[column].0.chars().count())
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: &[&str]| {
        let padded =
            cells.iter().zip(&widths).zip(headings).map(|((cell, &width), (_, align))| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let first = line(&headings.iter().map(|(heading, _)| *heading).collect::<Vec<_>>());
    let rows = rows.iter().map(|row| line(&row.as_ref().iter().map(String::as_str).collect::<Vec<_>>()));
    std::iter::once(first).chain(rows).collect()
}

/// A table of GitHub-flavoured Markdown. The cells are taken as they are: see [`escape_markdown`].
pub fn markdown<R: AsRef<[String]>>(headings: &[Heading<'_>], rows: &[R]) -> String {
    let row = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let rule = |(_, align): &Heading<'_>| if *align == Align::Right { "---:" } else { "---" };
    let mut text = row(headings.iter().map(|(heading, _)| *heading).collect());
    text += &format!("|{}|\n", headings.iter().map(rule).collect::<Vec<_>>().join("|"));
    rows.iter().for_each(|cells| text += &row(cells.as_ref().iter().map(String::as_str).collect()));
    text
}

/// Records as comma-separated values (RFC 4180), but with the line ends of Unix.
pub fn csv<R: AsRef<[String]>>(records: impl IntoIterator<Item = R>) -> String {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for record in records {
        writer.write_record(record.as_ref()).expect("memory takes any record");
    }
    let bytes = writer.into_inner().expect("memory takes any record");
    String::from_utf8(bytes).expect("CSV of text is text")
}

/// Text for a cell of Markdown: characters that would end the cell or start a format are escaped.
pub fn escape_markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in printable(text, ' ').chars() {
        if matches!(letter, '\\' | '|' | '*' | '`' | '<' | '[' | ']' | '~') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// Text for a terminal: control characters, which could move the cursor or change colours, are replaced.
pub fn printable(text: &str, replacement: char) -> String {
    text.chars().map(|letter| if letter.is_control() { replacement } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".into(), "1".into()], ["bcd".into(), "1000".into()]];
        let lines = aligned(&[("x", Align::Left), ("n", Align::Right)], &rows);
        assert_eq!(lines, ["x       n", "a       1", "bcd  1000"]);
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(printable("sat\u{1b}[2J\r\nä", '\u{fffd}'), "sat\u{fffd}[2J\u{fffd}\u{fffd}ä");
    }

    #[test]
    fn markdown_aligns_numbers_to_the_right() {
        let text = markdown(&[("a", Align::Left), ("b", Align::Right)], &[["x".into(), "1".into()]]);
        assert_eq!(text, "| a | b |\n|---|---:|\n| x | 1 |\n");
        assert_eq!(escape_markdown("a|b*"), "a\\|b\\*");
    }

    #[test]
    fn a_record_of_one_empty_field_is_not_an_empty_line() {
        assert_eq!(csv([["a".to_owned()], [String::new()], ["x,y".to_owned()]]), "a\n\"\"\n\"x,y\"\n");
    }
}

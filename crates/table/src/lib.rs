//! Tables as aligned text for terminals, as Markdown, as HTML, and as CSV.
#![forbid(unsafe_code)]

use std::fmt;

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

/// A table of HTML. Headings and cells are text, which is escaped; numbers have the class `number`.
pub fn html<R: AsRef<[String]>>(headings: &[Heading<'_>], rows: &[R]) -> String {
    let class = |align: Align| if align == Align::Right { " class=\"number\"" } else { "" };
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = (&str, Align)>| -> String {
        let cell = |(text, align)| format!("<{tag}{}>{}</{tag}>", class(align), EscapedHtml(text));
        format!("<tr>{}</tr>\n", cells.map(cell).collect::<String>())
    };
    let head = cells("th", &mut headings.iter().copied());
    let row = |row: &R| {
        let texts = row.as_ref().iter().map(String::as_str);
        cells("td", &mut texts.zip(headings.iter().map(|(_, align)| *align)))
    };
    format!(
        "<table>\n<thead>\n{head}</thead>\n<tbody>\n{}</tbody>\n</table>\n",
        rows.iter().map(row).collect::<String>()
    )
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

/// Text for HTML, within an element or an attribute in quotation marks. Control characters, which HTML does
/// not allow, become spaces.
#[derive(Debug, Clone, Copy)]
pub struct EscapedHtml<'a>(pub &'a str);

impl fmt::Display for EscapedHtml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            letter if letter.is_control() => f.write_str(" "),
            letter => fmt::Write::write_char(f, letter),
        })
    }
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
    fn html_aligns_numbers_and_no_text_is_markup() {
        let rows = [["<b>&\u{1b}".into(), "1".into()]];
        let text = html(&[("a'\"", Align::Left), ("n", Align::Right)], &rows);
        assert_eq!(
            text,
            "<table>\n<thead>\n<tr><th>a&#39;&quot;</th><th class=\"number\">n</th></tr>\n</thead>\n<tbody>\n\
             <tr><td>&lt;b&gt;&amp; </td><td class=\"number\">1</td></tr>\n</tbody>\n</table>\n"
        );
    }

    #[test]
    fn a_record_of_one_empty_field_is_not_an_empty_line() {
        assert_eq!(csv([["a".to_owned()], [String::new()], ["x,y".to_owned()]]), "a\n\"\"\n\"x,y\"\n");
    }
}

//! One row of the table in `docs/neighbours.md`.

use std::path::Path;

/// The folder for rows, one file each.
const ROWS_VARIABLE: &str = "BENTPIPE_NEIGHBOUR_ROWS";
/// A line of the log is told up to here, characters.
const LINE_LENGTH: usize = 160;

/// How a connection that crosses the leg was carried.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Handling {
    Split,
    /// With what the log says about it.
    Passed(String),
    /// Its destination had been translated.
    Translated,
}

/// What the trials of one neighbour found, of either family.
#[derive(Debug, Default)]
pub(crate) struct Row {
    handled: [Vec<Handling>; 2],
    elsewhere: bool,
    forbidden: bool,
}

impl Row {
    pub(crate) fn add(&mut self, is_v6: bool, handling: Handling) {
        self.handled[usize::from(is_v6)].push(handling);
    }

    pub(crate) fn add_elsewhere(&mut self) {
        self.elsewhere = true;
    }

    pub(crate) fn add_forbidden(&mut self) {
        self.forbidden = true;
    }

    /// Puts the row where `make neighbours` looks for it, if it does.
    pub(crate) fn write(self, name: &str, version: &str, notes: &str) {
        let Ok(folder) = std::env::var(ROWS_VARIABLE) else { return };
        let row = self.markdown(name, version, notes);
        println!("{row}");
        let slug: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        std::fs::write(Path::new(&folder).join(slug.to_lowercase()), row + "\n").unwrap();
    }

    fn markdown(&self, name: &str, version: &str, notes: &str) -> String {
        let [v4, v6] = self.handled.each_ref().map(|handled| summary(handled));
        let cells = [name, version, &self.what_happens(), v4, v6, notes].map(|cell| cell.replace('|', "\\|"));
        format!("| {} |", cells.join(" | "))
    }

    fn what_happens(&self) -> String {
        let mut parts = Vec::new();
        let all = || self.handled.iter().flatten();
        if all().any(|handling| *handling == Handling::Split) {
            parts.push("split".to_owned());
        }
        let mut lines: Vec<&str> = all().filter_map(Handling::line).collect();
        lines.sort_unstable();
        lines.dedup();
        if all().any(|handling| *handling == Handling::Translated) {
            parts.push("what is translated passes".to_owned());
        }
        parts.extend(lines.into_iter().map(|line| format!("passed: “{}”", shortened(line))));
        if self.elsewhere {
            parts.push("what does not cross the leg passes".to_owned());
        }
        if self.forbidden {
            parts.push("what is forbidden stays so".to_owned());
        }
        parts.join("; ")
    }
}

impl Handling {
    fn line(&self) -> Option<&str> {
        match self {
            Self::Split | Self::Translated => None,
            Self::Passed(line) => Some(line),
        }
    }
}

fn summary(handled: &[Handling]) -> &'static str {
    let split = handled.contains(&Handling::Split);
    let passed = handled.iter().any(|handling| *handling != Handling::Split);
    match (split, passed) {
        (true, false) => "split",
        (false, true) => "passed",
        (true, true) => "split, some passed",
        (false, false) => "not concerned",
    }
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LINE_LENGTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[test]
fn a_row_tells_what_was_seen() {
    let mut row = Row::default();
    row.add(false, Handling::Split);
    row.add(true, Handling::Passed("a | b".into()));
    row.add(true, Handling::Passed("a | b".into()));
    row.add_forbidden();
    assert_eq!(
        row.markdown("ufw", "ufw 0.36", ""),
        "| ufw | ufw 0.36 | split; passed: “a \\| b”; what is forbidden stays so | split | passed |  |"
    );
}

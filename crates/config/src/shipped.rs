//! Tests of a shipped example file: it is documentation, and must not say what is not so.
//!
//! Such a file shows every key. One that is behind a hash and a space has its default, or is an example.

use crate::Error;

/// The file as an operator has it who has removed the hash from every key.
pub fn with_every_key(text: &str) -> String {
    text.lines()
        .map(|line| key_in_comment(line).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// `key = value` or `[table]` of a line that has only that behind its hash.
fn key_in_comment(line: &str) -> Option<&str> {
    let text = line.strip_prefix("# ")?;
    let (key, _) = text.split_once(" = ").unwrap_or(("", ""));
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (is_key || text.starts_with('[')).then_some(text)
}

/// The keys of the tables with this `header` (`[node]` or `[[peers]]`) that stand in none of them in the
/// file, hash or not.
///
/// Which keys there are is what `parse` says of one that it does not know, in the first of these tables.
///
/// # Panics
/// If there is no such table, or if `parse` accepts every key.
pub fn missing_keys<T>(text: &str, header: &str, parse: impl Fn(&str) -> Result<T, Error>) -> Vec<String> {
    const UNKNOWN: &str = "there is no such key; there is ";
    let full = with_every_key(text);
    let with_unknown = full.replacen(&format!("\n{header}\n"), &format!("\n{header}\nzzzzzz = 1\n"), 1);
    let error =
        parse(&with_unknown).err().unwrap_or_else(|| panic!("{header} takes any key, or is not there"));
    let error = error.to_string();
    let (_, keys) = error.split_once(UNKNOWN).unwrap_or_else(|| panic!("{header}: {error}"));
    let keys = keys.lines().next().unwrap_or_default();
    let tables: Vec<&str> = full.split(&format!("\n{header}\n")).skip(1).collect();
    let own = |table: &&str, key: &str| {
        let mut lines = table.lines().take_while(|line| !line.starts_with('['));
        lines.any(|line| line.starts_with(&format!("{key} = ")))
    };
    // A key may be a table of its own.
    let name = header.trim_matches(['[', ']']);
    let is_table = |key: &str| full.contains(&format!("\n[{name}.{key}]\n"));
    let lacks = |key: &&str| !is_table(key) && !tables.iter().any(|table| own(table, key));
    keys.split(", ").filter(lacks).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::Document;

    #[derive(Debug, Deserialize)]
    struct File {
        #[serde(rename = "node")]
        _node: Node,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Node {
        #[serde(rename = "id")]
        _id: String,
        #[serde(rename = "store")]
        _store: Option<String>,
        #[serde(rename = "quota")]
        _quota: Option<u32>,
    }

    #[test]
    fn a_key_that_the_file_does_not_show_is_found() {
        let parse = |text: &str| Document::parse("f", text)?.read::<File>();
        let text = "# A node.\n[node]\n# Its name = what it is called.\nid = \"a\"\n# store = \"/var\"\n# [other]\n# quota = 3\n";
        assert_eq!(missing_keys(text, "[node]", parse), ["quota"]);
        assert!(with_every_key(text).contains("\nstore = \"/var\"\n[other]\nquota = 3\n"));
    }
}

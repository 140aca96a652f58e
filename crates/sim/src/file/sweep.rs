//! `[sweep]`: parameters and the values that they take, also as a text from a command line.

use std::fmt;
use std::str::FromStr;

use bentpipe_config::{InTable, Node, Place, Problem, Setting, Value};

/// The longest value, bytes: it stands in each result that it led to.
const MAX_VALUE: usize = 200;

/// A parameter and the values that it takes: `link.satellite.per=0,1e-3,1%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// The path to the parameter, as in a [`Setting`].
    pub key: String,
    /// The values, in the order in which they are run; at least one.
    pub values: Vec<String>,
}

/// Why a text is not a sweep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a sweep: write KEY=VALUE,VALUE,… with values of up to {MAX_VALUE} bytes, for example \
         link.satellite.per=0,1e-3,1%"
)]
pub struct NotASweep(String);

impl FromStr for Sweep {
    type Err = NotASweep;

    fn from_str(text: &str) -> Result<Self, NotASweep> {
        let fail = || NotASweep(text.to_owned());
        let Setting { key, value } = text.parse().map_err(|_| fail())?;
        let values = split_list(&value);
        let usable = |value: &String| !value.is_empty() && value.len() <= MAX_VALUE;
        if values.iter().all(usable) { Ok(Self { key, values }) } else { Err(fail()) }
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.values.join(","))
    }
}

/// The section `[sweep]`: lists of values, their keys in quotation marks or nested as TOML has it.
pub(super) fn read(section: &Node) -> Result<Vec<Sweep>, Problem> {
    let mut found = Vec::new();
    collect(section, "", &mut found)?;
    // The order of the lines is that of the sweeps. It is stable, so within a line the names decide.
    found.sort_by_key(|(line, _)| *line);
    Ok(found.into_iter().map(|(_, sweep)| sweep).collect())
}

fn collect(node: &Node, key: &str, found: &mut Vec<(usize, Sweep)>) -> Result<(), Problem> {
    match &node.value {
        Value::Table(table) => {
            for (part, inner) in table {
                let key = if key.is_empty() { part.clone() } else { format!("{key}.{part}") };
                collect(inner, &key, found).inside(part.as_str())?;
            }
            Ok(())
        }
        Value::List(elements) if !key.is_empty() && !elements.is_empty() => {
            let values = elements.iter().map(value_of).collect::<Result<_, _>>()?;
            let line = if let Place::Line(line) = node.place { line } else { 0 };
            found.push((line, Sweep { key: key.to_owned(), values }));
            Ok(())
        }
        other => Err(Problem::new(format!("{other} is not a list of values, as [\"0\", \"1e-3\", \"1%\"]"))),
    }
}

fn value_of(node: &Node) -> Result<String, Problem> {
    let text = match &node.value {
        Value::Text(text) | Value::Word(text) | Value::Number(text) => text.clone(),
        Value::Boolean(boolean) => boolean.to_string(),
        Value::Date(_) | Value::List(_) | Value::Table(_) | Value::Rejected => String::new(),
    };
    if !text.is_empty() && text.len() <= MAX_VALUE {
        return Ok(text);
    }
    let accepted = format!("a text of up to {MAX_VALUE} bytes, a number, true or false");
    Err(Problem::new(format!("{} is not {accepted}", node.value)))
}

/// The parts between commas, but for those within brackets, braces or quotation marks.
fn split_list(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut quote) = (vec![String::new()], 0usize, None);
    for c in text.chars() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is always a part").push(c);
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Source;

    #[test]
    fn a_comma_within_brackets_is_no_end_of_a_value() {
        let sweep: Sweep = "tcp.sat.rto={ min = '1s', max = '2s' },[1,2],\"a,b\" , c".parse().unwrap();
        assert_eq!(sweep.values, ["{ min = '1s', max = '2s' }", "[1,2]", "\"a,b\"", "c"]);
        for wrong in ["", "a", "a=", "a=1,,2", "=1", &format!("a={}", "x".repeat(201))] {
            assert!(wrong.parse::<Sweep>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_section_of_sweeps_holds_lists_and_nothing_else() {
        for (sweep, what) in [
            ("per = 3", "3 is not a list"),
            ("per = []", "a list is not a list of values"),
            ("per = [[1]]", "a list is not a text"),
        ] {
            let text = Source::parse("s", &format!("[sweep]\n{sweep}\n")).unwrap_err().to_string();
            assert!(text.starts_with("s:2: sweep.per: ") && text.contains(what), "{text}");
        }
        assert!(Source::parse("s", "sweep = [1]").is_err());
    }
}

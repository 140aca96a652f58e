//! The section `[sweep]` of a file: lists of values, their keys in quotation marks or nested as TOML has it;
//! lists of lists where keys are joined by `+`; and `[[sweep.case]]`.

use bentpipe_config::{InTable, Node, Place, Problem, Setting, Value};

use super::{CASE, MAX_VALUE, Sweep};

const NAME: &str = "name";
const SET: &str = "set";

/// The sweeps, in the order of the lines.
pub(in crate::file) fn read(section: &Node) -> Result<Vec<Sweep>, Problem> {
    let mut found = Vec::new();
    collect(section, "", &mut found)?;
    // It is stable, so within a line the names decide.
    found.sort_by_key(|(line, _)| *line);
    Ok(found.into_iter().map(|(_, sweep)| sweep).collect())
}

fn collect(node: &Node, key: &str, found: &mut Vec<(usize, Sweep)>) -> Result<(), Problem> {
    let sweep = match &node.value {
        Value::Table(table) => {
            for (part, inner) in table {
                collect(inner, &joined(key, part), found).inside(part.as_str())?;
            }
            return Ok(());
        }
        Value::List(cases) if key == CASE => cases_of(cases)?,
        Value::List(rows) if !rows.is_empty() && key.contains('+') => {
            let keys = key.split('+').map(|key| key.trim().to_owned()).collect();
            let rows = rows.iter().map(row_of).collect::<Result<Vec<_>, _>>()?;
            Sweep::together(keys, rows).map_err(Problem::new)?
        }
        Value::List(elements) if !key.is_empty() && !elements.is_empty() => {
            let values = elements.iter().map(value_of).collect::<Result<Vec<_>, _>>()?;
            Sweep::of(key, values).map_err(Problem::new)?
        }
        other => {
            let example = "as [\"0\", \"1e-3\", \"1%\"]";
            return Err(Problem::new(format!("{other} is not a list of values, {example}")));
        }
    };
    let line = if let Place::Line(line) = node.place { line } else { 0 };
    found.push((line, sweep));
    Ok(())
}

fn joined(key: &str, part: &str) -> String {
    if key.is_empty() { part.to_owned() } else { format!("{key}.{part}") }
}

fn row_of(node: &Node) -> Result<Vec<String>, Problem> {
    match &node.value {
        Value::List(values) => values.iter().map(value_of).collect(),
        other => {
            let example = "as [[\"10ms\", \"20ms\"], [\"30ms\", \"40ms\"]]";
            let what = "is not a list: a list for each step has a value for each key";
            Err(Problem::new(format!("{other} {what}, {example}")))
        }
    }
}

/// `[[sweep.case]]` with `name` and `set`.
fn cases_of(cases: &[Node]) -> Result<Sweep, Problem> {
    let case = |(index, node): (usize, &Node)| case_of(node).inside(index);
    let cases = cases.iter().enumerate().map(case).collect::<Result<Vec<_>, _>>()?;
    Sweep::cases(cases).map_err(Problem::new)
}

fn case_of(node: &Node) -> Result<(String, Vec<Setting>), Problem> {
    let Value::Table(table) = &node.value else {
        let example = "[[sweep.case]], then name = \"lossy\" and set = { \"link.satellite.per\" = \"1%\" }";
        return Err(Problem::new(format!("{} is not a case; write {example}", node.value)));
    };
    if let Some(other) = table.keys().find(|key| ![NAME, SET].contains(&key.as_str())) {
        return Err(Problem::of(other, "there is no such key; there is name, set"));
    }
    let name = match table.get(NAME).map(|node| &node.value) {
        Some(Value::Text(name)) => name.clone(),
        _ => return Err(Problem::new("name is missing; write for example name = \"lossy\"")),
    };
    let mut settings = Vec::new();
    match table.get(SET) {
        Some(set @ Node { value: Value::Table(_), .. }) => flatten(set, "", &mut settings).inside(SET)?,
        Some(other) => {
            let what = format!("{} is not a table of settings", other.value);
            return Err(Problem::of(SET, format!("{what}; write {{ \"link.satellite.per\" = \"1%\" }}")));
        }
        None => {}
    }
    Ok((name, settings))
}

fn flatten(node: &Node, key: &str, settings: &mut Vec<Setting>) -> Result<(), Problem> {
    if let Value::Table(table) = &node.value {
        for (part, inner) in table {
            flatten(inner, &joined(key, part), settings).inside(part.as_str())?;
        }
        return Ok(());
    }
    settings.push(Setting { key: key.to_owned(), value: value_of(node)? });
    Ok(())
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

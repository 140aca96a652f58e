//! The TOML document as a tree in which each value knows where it stands, and which settings from outside can change.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use toml::de::{DeTable, DeValue};

use super::error::{Fault, Place};

/// The longest value of a setting, bytes.
const MAX_SETTING: usize = 2000;
/// The keys under which a table that stands in an array has its name.
const NAME_KEYS: [&str; 2] = ["name", "at"];

/// A parameter that is set from outside: `link.satellite.per=1%`.
///
/// The key is the path to the value: `duration`, `link.NAME.per`, `flow.NAME.bytes`, `flow.NAME.split.NODE.buffer`,
/// `tcp.NAME.rto.max`. The value is written as in the file, without quotation marks where it is a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Setting {
    /// The path to the value, its parts separated by dots.
    pub key: String,
    /// The value.
    pub value: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// A text that is not `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a setting: write KEY=VALUE, for example link.satellite.per=1%")]
pub struct NotASetting(pub(crate) String);

impl FromStr for Setting {
    type Err = NotASetting;

    fn from_str(text: &str) -> Result<Self, NotASetting> {
        let (key, value) = text.split_once('=').ok_or_else(|| NotASetting(text.to_owned()))?;
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        if key.is_empty() { Err(NotASetting(text.to_owned())) } else { Ok(Self { key, value }) }
    }
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

pub(crate) type Table = BTreeMap<String, Node>;

/// A value as TOML has them; numbers are kept as text, to be read as what they are to be.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(String),
    Number(String),
    Boolean(bool),
    /// From a setting, where quotation marks are not needed: a text, a number or a boolean.
    Word(String),
    Array(Vec<Node>),
    Table(Table),
}

impl Node {
    /// Reads a document.
    pub(crate) fn parse(text: &str) -> Result<Node, Fault> {
        let lines = Lines::of(text);
        let syntax = |error: toml::de::Error| {
            let line = lines.at(error.span().map_or(0, |span| span.start));
            let found = text.lines().nth(line - 1).unwrap_or_default().trim();
            Fault::new(&Place::Line(line), "", format!("{} in \"{found}\"", error.message()))
        };
        let document = DeTable::parse(text).map_err(syntax)?;
        let place_of = |offset| Place::Line(lines.at(offset));
        Ok(Node { value: table(document.get_ref(), &place_of)?, place: Place::Line(1) })
    }

    /// Changes the value that the setting's key leads to, or adds it to its table.
    pub(crate) fn set(&mut self, setting: &Setting) -> Result<(), Fault> {
        let place = Place::Setting(setting.to_string());
        let value = setting_value(setting, &place)?;
        let parts: Vec<&str> = setting.key.split('.').collect();
        let (last, way) = parts.split_last().expect("split yields at least one part");
        let mut node = self;
        for (index, part) in way.iter().enumerate() {
            node = node.step(part, &parts[..=index], &place)?;
        }
        match &mut node.value {
            Value::Table(table) => {
                table.insert((*last).to_owned(), Node { value, place });
                Ok(())
            }
            other => Err(Fault::new(&place, &way.join("."), format!("{other} has no {last}"))),
        }
    }

    /// One part of a setting's key further in. What a table does not have yet is begun, but for things with names.
    fn step(&mut self, part: &str, so_far: &[&str], place: &Place) -> Result<&mut Node, Fault> {
        let parent = so_far[..so_far.len() - 1].join(".");
        match &mut self.value {
            Value::Table(table) => {
                if !table.contains_key(part) && matches!(parent.as_str(), "" | "tcp") {
                    let known: Vec<&str> = table.keys().map(String::as_str).collect();
                    return Err(Fault::new(place, &so_far.join("."), unknown(part, &known)));
                }
                let begun = || Node { value: Value::Table(Table::new()), place: place.clone() };
                Ok(table.entry(part.to_owned()).or_insert_with(begun))
            }
            Value::Array(elements) => {
                let names: Vec<String> = elements.iter().filter_map(Node::name).map(str::to_owned).collect();
                let found = elements.iter_mut().find(|element| element.name() == Some(part));
                let missing = || Fault::new(place, &so_far.join("."), unknown(part, &names));
                found.ok_or_else(missing)
            }
            other => Err(Fault::new(place, &parent, format!("{other} has no {part}"))),
        }
    }

    /// The name of a table in an array.
    fn name(&self) -> Option<&str> {
        let Value::Table(table) = &self.value else { return None };
        match &NAME_KEYS.iter().find_map(|&key| table.get(key))?.value {
            Value::Text(name) | Value::Word(name) => Some(name),
            _ => None,
        }
    }
}

/// What is found, as an error says it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) | Value::Word(text) => write!(f, "\"{text}\""),
            Value::Number(number) => f.write_str(number),
            Value::Boolean(boolean) => write!(f, "{boolean}"),
            Value::Array(_) => f.write_str("a list"),
            Value::Table(_) => f.write_str("a table"),
        }
    }
}

/// "there is no x; there is a, b": what to say of a name that leads nowhere.
pub(crate) fn unknown<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    const SHOWN: usize = 20;
    let names: Vec<&str> = known.iter().map(AsRef::as_ref).take(SHOWN).collect();
    let more = if known.len() > SHOWN { ", …" } else { "" };
    match names.is_empty() {
        true => format!("there is no {name}, nor anything else of its kind"),
        false => format!("there is no {name}; there is {}{more}", names.join(", ")),
    }
}

/// Lists, tables and quoted texts are TOML; anything else is taken as it stands.
fn setting_value(setting: &Setting, place: &Place) -> Result<Value, Fault> {
    let text = setting.value.as_str();
    if text.len() > MAX_SETTING {
        let message = format!("{} bytes are too long for a setting: {MAX_SETTING} are accepted", text.len());
        return Err(Fault::new(&Place::Setting(format!("{}=…", setting.key)), "", message));
    }
    if !text.starts_with(['[', '{', '"', '\'']) {
        return Ok(Value::Word(text.to_owned()));
    }
    let parsed = DeValue::parse(text).map_err(|error| Fault::new(place, &setting.key, error.message()))?;
    value(parsed.get_ref(), place.clone(), &|_| place.clone())
}

fn table(table: &DeTable<'_>, place_of: &dyn Fn(usize) -> Place) -> Result<Value, Fault> {
    let entries = table.iter().map(|(key, entry)| {
        // The key's line: a table's own span does not begin there, nor does that of a list in several lines.
        let place = place_of(key.span().start);
        let value = value(entry.get_ref(), place.clone(), place_of)?;
        Ok((key.get_ref().clone().into_owned(), Node { value, place }))
    });
    Ok(Value::Table(entries.collect::<Result<_, Fault>>()?))
}

fn value(found: &DeValue<'_>, place: Place, place_of: &dyn Fn(usize) -> Place) -> Result<Value, Fault> {
    Ok(match found {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(integer) => Value::Number(match integer.radix() {
            10 => integer.as_str().to_owned(),
            radix => i128::from_str_radix(integer.as_str(), radix)
                .map_or_else(|_| integer.to_string(), |number| number.to_string()),
        }),
        DeValue::Float(float) => Value::Number(float.as_str().to_owned()),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Datetime(date) => {
            let message =
                format!("{date} is a date: virtual time has none, write a span, for example \"10s\"");
            return Err(Fault::new(&place, "", message));
        }
        DeValue::Array(array) => {
            let element = |element: &toml::Spanned<DeValue<'_>>| {
                let place = place_of(element.span().start);
                Ok(Node { value: value(element.get_ref(), place.clone(), place_of)?, place })
            };
            Value::Array(array.iter().map(element).collect::<Result<_, Fault>>()?)
        }
        DeValue::Table(entries) => table(entries, place_of)?,
    })
}

/// Where the lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        let behind_breaks = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(behind_breaks).collect())
    }

    /// The line, from one, of a byte.
    fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|&start| start <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "title = 'x'\n[[link]]\nname = 'sat'\nper = 0.01\n[tcp.geo]\nsyn = 'linux'\n";

    fn set(setting: &str) -> Result<Node, String> {
        let mut document = Node::parse(TEXT).unwrap();
        let outcome = document.set(&setting.parse().unwrap());
        outcome.map(|()| document).map_err(|fault| fault.in_file("f").to_string())
    }

    #[test]
    fn every_value_knows_its_line() {
        let document = Node::parse("a = 1\n\nb = [\n  { c = 2 },\n\n  { c = 3 },\n]\n").unwrap();
        let Value::Table(table) = document.value else { panic!() };
        assert_eq!((&table["a"].place, &table["b"].place), (&Place::Line(1), &Place::Line(3)));
        let Value::Array(elements) = &table["b"].value else { panic!() };
        assert_eq!((&elements[0].place, &elements[1].place), (&Place::Line(4), &Place::Line(6)));
    }

    #[test]
    fn a_setting_reaches_tables_in_arrays_by_name_and_begins_tables() {
        for setting in [
            "title=y",
            "link.sat.per=1%",
            "link.sat.reverse.per=0",
            "tcp.geo.rto.max=10s",
            "tcp.geo.syn={ first = '3s' }",
        ] {
            assert!(set(setting).is_ok(), "{setting}");
        }
    }

    #[test]
    fn a_setting_that_leads_nowhere_says_what_there_is() {
        assert_eq!(
            set("link.moon.per=1").unwrap_err(),
            "f with link.moon.per=1: link.moon: there is no moon; there is sat"
        );
        assert!(set("tcp.leo.sack=true").unwrap_err().contains("there is no leo; there is geo"));
        assert!(set("flow.a.bytes=1").unwrap_err().contains("there is no flow; there is link, tcp, title"));
        assert!(set("tcp.geo.syn.first=1s").unwrap_err().contains("tcp.geo.syn: \"linux\" has no first"));
        assert!(set("link.sat.per=[1").unwrap_err().starts_with("f with link.sat.per=[1: link.sat.per: "));
        assert!("duration".parse::<Setting>().unwrap_err().to_string().contains("KEY=VALUE"));
    }

    #[test]
    fn a_date_is_refused_with_what_would_do() {
        let text = Node::parse("\nstart = 2007-01-01\n").unwrap_err().in_file("f").to_string();
        assert!(text.starts_with("f:2: 2007-01-01 is a date"), "{text}");
    }
}

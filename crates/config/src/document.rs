//! A file as a tree, which settings can change and any type can be read from.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use crate::de::NodeDeserializer;
use crate::error::{Error, Place, Problem, Step, unknown};
use crate::node::{self, Node, Table, Value};
use crate::setting::Setting;

/// The longest file that is read, bytes.
pub const MAX_FILE: u64 = 1 << 20;
/// The longest value of a setting, bytes.
const MAX_SETTING: usize = 2000;
/// The keys by whose values a setting finds a table in a list.
const NAME_KEYS: [&str; 2] = ["name", "at"];

/// A file, parsed but not yet checked.
#[derive(Debug, Clone)]
pub struct Document {
    file: String,
    root: Node,
    examples: &'static [(&'static str, &'static str)],
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is longer than [`MAX_FILE`] or is not TOML.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let file = path.as_ref().display().to_string();
        let mut text = String::new();
        let read = std::fs::File::open(&path).and_then(|opened| {
            // One byte more than is accepted tells a file that is too long, and a device that never ends.
            opened.take(MAX_FILE + 1).read_to_string(&mut text)
        });
        match read {
            Ok(_) => Self::parse(&file, &text),
            Err(source) => Err(Error::Read { file, source }),
        }
    }

    /// Parses a text. `file` is the name that errors give it.
    ///
    /// # Errors
    /// If it is longer than [`MAX_FILE`] or is not TOML.
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        if text.len() as u64 > MAX_FILE {
            return Err(Error::TooLong { file: file.to_owned(), limit: MAX_FILE });
        }
        let lines = LineStarts::of(text);
        let syntax = |error: toml::de::Error| {
            let line = lines.line(error.span().map_or(0, |span| span.start));
            let found = text.lines().nth(line - 1).unwrap_or_default().trim();
            Error::value(file, &Place::Line(line), "", &format!("{} in \"{found}\"", error.message()))
        };
        let table = DeTable::parse(text).map_err(syntax)?;
        let value = node::table(table.get_ref(), &|offset| Place::Line(lines.line(offset)));
        Ok(Self { file: file.to_owned(), root: Node { value, place: Place::Line(1) }, examples: &[] })
    }

    /// The same with examples of values for keys that may be missing: `("duration", "\"60s\"")`.
    pub fn with_examples(self, examples: &'static [(&'static str, &'static str)]) -> Self {
        Self { examples, ..self }
    }

    /// The name that errors give it: the file's path.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The value of a key at the top.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.table().get(key)
    }

    /// Removes a key at the top.
    pub fn remove(&mut self, key: &str) {
        if let Value::Table(table) = &mut self.root.value {
            table.remove(key);
        }
    }

    /// Reads the whole document into `T`.
    ///
    /// # Errors
    /// The first value that `T` does not accept, key that it does not know or key that it lacks.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        T::deserialize(NodeDeserializer(&self.root)).map_err(|problem| self.error(problem))
    }

    /// Reads the whole document into `T`, and checks what is more than a single value.
    ///
    /// # Errors
    /// As [`read`](Self::read), and what `check` finds.
    pub fn read_checked<'a, T: Deserialize<'a>>(
        &'a self,
        check: impl FnOnce(&T) -> Result<(), Problem>,
    ) -> Result<T, Error> {
        let value = self.read()?;
        check(&value).map_err(|problem| self.error(problem))?;
        Ok(value)
    }

    /// The problem with the line of its key, or of the innermost table around it that is there.
    pub fn error(&self, problem: Problem) -> Error {
        let (mut key, mut innermost, mut node) = (String::new(), &self.root, Some(&self.root));
        for step in problem.path() {
            node = node.and_then(|node| child(node, step));
            innermost = node.unwrap_or(innermost);
            match (step, node.and_then(Node::name)) {
                (Step::Index(_), Some(name)) => push_key(&mut key, name),
                (Step::Index(index), None) => key.push_str(&format!("[{}]", index + 1)),
                (Step::Key(name), _) => push_key(&mut key, name),
            }
        }
        Error::value(&self.file, &innermost.place, &key, &problem.text(self.examples))
    }

    /// Writes a setting over the document: changes the value that its key leads to, or adds it.
    ///
    /// Tables on the way that are not there yet are begun, but not in the tables whose paths `closed` names:
    /// `""` is the document.
    ///
    /// # Errors
    /// If the key leads nowhere, or the value is not TOML.
    pub fn set(&mut self, setting: &Setting, closed: &[&str]) -> Result<(), Error> {
        let fail = |key: &str, what: String| {
            Error::value(&self.file, &Place::Setting(setting.to_string()), key, &what)
        };
        if setting.value.len() > MAX_SETTING {
            let length = setting.value.len();
            let what = format!("{length} bytes are too long for a setting: {MAX_SETTING} are accepted");
            return Err(Error::value(&self.file, &Place::Setting(format!("{}=…", setting.key)), "", &what));
        }
        let place = Place::Setting(setting.to_string());
        let value = setting_value(&setting.value, &place).map_err(|what| fail(&setting.key, what))?;
        let parts: Vec<&str> = setting.key.split('.').collect();
        let (last, tables) = parts.split_last().expect("split yields at least one part");
        let mut node = &mut self.root;
        for (index, part) in tables.iter().enumerate() {
            let parent = parts[..index].join(".");
            node = enter(node, part, !closed.contains(&parent.as_str()), &place).map_err(
                |found| match found {
                    NoEntry::Unknown(known) => fail(&parts[..=index].join("."), unknown(part, &known)),
                    NoEntry::NoTable(found) => fail(&parent, format!("{found} has no {part}")),
                },
            )?;
        }
        match &mut node.value {
            Value::Table(table) => {
                table.insert((*last).to_owned(), Node { value, place });
                Ok(())
            }
            other => Err(fail(&tables.join("."), format!("{other} has no {last}"))),
        }
    }

    fn table(&self) -> &Table {
        match &self.root.value {
            Value::Table(table) => table,
            _ => unreachable!("a document is a table"),
        }
    }
}

fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

fn child<'a>(node: &'a Node, step: &Step) -> Option<&'a Node> {
    match (&node.value, step) {
        (Value::Table(table), Step::Key(key)) => table.get(key),
        (Value::List(elements), Step::Index(index)) => elements.get(*index),
        _ => None,
    }
}

/// Why a setting's key leads no further.
enum NoEntry {
    /// It is none of these.
    Unknown(Vec<String>),
    /// This is where it ends.
    NoTable(String),
}

/// The table `part` of a table, or of a list by its name. A table begins one that it lacks if it `may_begin`
/// one.
fn enter<'a>(
    node: &'a mut Node,
    part: &str,
    may_begin: bool,
    place: &Place,
) -> Result<&'a mut Node, NoEntry> {
    match &mut node.value {
        Value::Table(table) => {
            if !may_begin && !table.contains_key(part) {
                return Err(NoEntry::Unknown(table.keys().cloned().collect()));
            }
            let begun = || Node { value: Value::Table(Table::new()), place: place.clone() };
            Ok(table.entry(part.to_owned()).or_insert_with(begun))
        }
        Value::List(elements) => {
            let name =
                |element: &Node| NAME_KEYS.iter().find_map(|key| element.text_of(key)).map(str::to_owned);
            let names: Vec<Option<String>> = elements.iter().map(name).collect();
            match names.iter().position(|name| name.as_deref() == Some(part)) {
                Some(index) => Ok(&mut elements[index]),
                None => Err(NoEntry::Unknown(names.into_iter().flatten().collect())),
            }
        }
        other => Err(NoEntry::NoTable(other.to_string())),
    }
}

/// Lists, tables and quoted texts are TOML; anything else is a word.
fn setting_value(text: &str, place: &Place) -> Result<Value, String> {
    if !text.starts_with(['[', '{', '"', '\'']) {
        return Ok(Value::Word(text.to_owned()));
    }
    let parsed = DeValue::parse(text).map_err(|error| error.message().to_owned())?;
    Ok(node::value(parsed.get_ref(), &|_| place.clone()))
}

/// Where the lines of a text start.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn of(text: &str) -> Self {
        let after_breaks = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(after_breaks).collect())
    }

    /// The line, from one, of a byte.
    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|&start| start <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "title = 'x'\n[[link]]\nname = 'sat'\nper = 0.01\n[tcp.geo]\nsyn = 'linux'\n";

    fn set(setting: &str) -> Result<Document, String> {
        let mut document = Document::parse("f", TEXT).unwrap();
        let outcome = document.set(&setting.parse().unwrap(), &["", "tcp"]);
        outcome.map(|()| document).map_err(|error| error.to_string())
    }

    #[test]
    fn every_value_knows_its_line() {
        let document = Document::parse("f", "a = 1\n\nb = [\n  { c = 2 },\n\n  { c = 3 },\n]\n").unwrap();
        let [a, b] = ["a", "b"].map(|key| document.get(key).unwrap());
        assert_eq!((&a.place, &b.place), (&Place::Line(1), &Place::Line(3)));
        let Value::List(elements) = &b.value else { panic!() };
        assert_eq!((&elements[0].place, &elements[1].place), (&Place::Line(4), &Place::Line(6)));
    }

    #[test]
    fn a_setting_reaches_tables_in_lists_by_name_and_begins_tables() {
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
    fn an_unknown_setting_path_lists_the_known_ones() {
        assert_eq!(
            set("link.moon.per=1").unwrap_err(),
            "f with link.moon.per=1: link.moon: there is no moon; there is sat"
        );
        assert!(set("tcp.leo.sack=true").unwrap_err().contains("there is no leo"));
        assert!(set("flow.a.bytes=1").unwrap_err().contains("there is no flow; there is link, tcp, title"));
        assert!(set("title.a=1").unwrap_err().ends_with("title: \"x\" has no a"));
        assert!(set("link.sat.per.a=1").unwrap_err().ends_with("link.sat.per: 0.01 has no a"));
        assert!(set("tcp.geo.syn.first=1s").unwrap_err().contains("tcp.geo.syn: \"linux\" has no first"));
        assert!(set("link.sat.per=[1").unwrap_err().starts_with("f with link.sat.per=[1: link.sat.per: "));
        assert!(set(&format!("title={}", "x".repeat(3000))).unwrap_err().contains("3000 bytes are too long"));
        assert!("link.sat.per".parse::<Setting>().is_err() && "=1".parse::<Setting>().is_err());
    }

    #[test]
    fn a_problem_is_at_the_line_of_its_key_or_of_the_table_around_it() {
        let document = Document::parse("f", TEXT).unwrap().with_examples(&[("delay", "\"1ms\"")]);
        let error = |problem: Problem| document.error(problem.inside(0).inside("link")).to_string();
        assert_eq!(error(Problem::of("per", "is high")), "f:4: link.sat.per: is high");
        assert_eq!(error(Problem::of("rate", "is missing")), "f:2: link.sat.rate: is missing");
        assert_eq!(error(Problem::new("is odd")), "f:2: link.sat: is odd");
        let missing = <Problem as serde::de::Error>::missing_field("delay");
        assert_eq!(error(missing), "f:2: link.sat: delay is missing; write for example delay = \"1ms\"");
        assert_eq!(document.error(Problem::new("is odd").inside(3)).to_string(), "f:1: [4]: is odd");
    }

    #[test]
    fn a_file_that_is_too_long_or_missing_is_refused() {
        let text = Document::load("/dev/zero").unwrap_err().to_string();
        assert!(text.starts_with("/dev/zero is longer than 1048576 bytes"), "{text}");
        let text = Document::load("/no/such.toml").unwrap_err().to_string();
        assert!(text.starts_with("cannot read /no/such.toml: No such file"), "{text}");
    }
}

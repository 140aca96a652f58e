//! A file as a tree, which settings can change and any type can be read from.

use std::io::Read;
use std::path::Path;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use crate::error::{Error, Fault, Kind, Problem, unknown};
use crate::node::{self, Node, Table, Value};
use crate::place::{Place, Step};
use crate::reading::{self, Checks, MAX_PROBLEMS, Reading};
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
    text: Arc<str>,
    root: Node,
    /// Lines that are not TOML; the tree is what the others say.
    syntax: Vec<Fault>,
    examples: &'static [(&'static str, &'static str)],
}

/// A value that was read, and what is accepted in its file, but hardly meant.
#[derive(Debug)]
pub struct Checked<T> {
    /// The value.
    pub value: T,
    /// In the order of the lines.
    pub warnings: Vec<Fault>,
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is longer than [`MAX_FILE`].
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

    /// Parses a text. `file` is the name that errors give it. Lines that are not TOML are errors of
    /// [`read`](Self::read), beside the others.
    ///
    /// # Errors
    /// If it is longer than [`MAX_FILE`].
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        if text.len() as u64 > MAX_FILE {
            return Err(Error::TooLong { file: file.to_owned(), limit: MAX_FILE });
        }
        let lines = LineStarts::of(text);
        let (table, errors) = DeTable::parse_recoverable(text);
        let value = node::table(table.get_ref(), &|offset| Place::Line(lines.line(offset)));
        Ok(Self {
            file: file.to_owned(),
            text: text.into(),
            root: Node { value, place: Place::Line(1) },
            syntax: syntax_faults(file, text, &lines, &errors),
            examples: &[],
        })
    }

    /// The same with examples of values for keys that may be missing: `("duration", "\"60s\"")`.
    pub fn with_examples(self, examples: &'static [(&'static str, &'static str)]) -> Self {
        Self { examples, ..self }
    }

    /// The name that errors give it: the file's path.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The text of the file.
    pub fn text(&self) -> &str {
        &self.text
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
    /// All values that `T` does not accept, keys that it does not know and keys that it lacks.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.read_checked(|_, _| {}).map(|read| read.value)
    }

    /// Reads the whole document into `T`, and checks what is more than a single value.
    ///
    /// # Errors
    /// As [`read`](Self::read), and what `check` finds.
    pub fn read_checked<T: DeserializeOwned>(
        &self,
        check: impl FnOnce(&T, &mut Checks<'_>),
    ) -> Result<Checked<T>, Error> {
        let Reading { value, problems, broken } = reading::read(&self.root, self.examples);
        let mut checks = Checks::new(&broken);
        if let Some(value) = value.as_ref().filter(|_| self.syntax.is_empty()) {
            check(value, &mut checks);
        }
        let found = problems.into_iter().chain(checks.problems);
        let faults = self.in_order(self.beside_syntax(found));
        match value {
            Some(value) if faults.is_empty() => {
                Ok(Checked { value, warnings: self.in_order(checks.warnings) })
            }
            _ => Err(Error::Faults(self.within_limit(faults))),
        }
    }

    /// The problem with the line of its key, or of the innermost table around it that is there.
    pub fn error(&self, problem: Problem) -> Error {
        self.errors([problem])
    }

    /// The same of several.
    pub fn errors(&self, problems: impl IntoIterator<Item = Problem>) -> Error {
        Error::Faults(self.within_limit(self.in_order(problems)))
    }

    /// The problems that are there whatever the lines were to say that are not TOML.
    fn beside_syntax(&self, problems: impl Iterator<Item = Problem>) -> Vec<Problem> {
        let is_of_such_a_line = |problem: &Problem| match self.fault(problem.clone()).place {
            Place::Line(line) => self.is_doubtful(line),
            Place::Setting(_) => false,
        };
        let stands_alone = |problem: &Problem| {
            self.syntax.is_empty()
                || !matches!(problem.kind(), Kind::Missing(_)) && !is_of_such_a_line(problem)
        };
        problems.filter(stands_alone).collect()
    }

    /// Whether a line is not TOML, or stands below a header that is not: it may belong to any table.
    fn is_doubtful(&self, line: usize) -> bool {
        let is_header = |line: &str| line.trim_start().starts_with('[');
        self.syntax.iter().any(|fault| match fault.line() {
            Some(wrong) if wrong < line => {
                let mut lines = self.text.lines().take(line).skip(wrong - 1);
                lines.next().is_some_and(is_header) && !lines.any(is_header)
            }
            wrong => wrong == Some(line),
        })
    }

    fn in_order(&self, problems: impl IntoIterator<Item = Problem>) -> Vec<Fault> {
        let found = problems.into_iter().map(|problem| self.fault(problem));
        let mut faults: Vec<Fault> = self.syntax.iter().cloned().chain(found).collect();
        faults.sort_by_key(|fault| match fault.place {
            Place::Line(line) => line,
            Place::Setting(_) => usize::MAX,
        });
        faults
    }

    fn within_limit(&self, mut faults: Vec<Fault>) -> Vec<Fault> {
        if faults.len() >= MAX_PROBLEMS {
            faults.truncate(MAX_PROBLEMS);
            let place = faults.last().map_or(Place::Line(1), |fault| fault.place.clone());
            let what = "there is more that is wrong; correct this first, and check again";
            faults.push(Fault::new(&self.file, &place, "", what));
        }
        faults
    }

    fn fault(&self, problem: Problem) -> Fault {
        let (mut key, mut table) = (String::new(), String::new());
        let (mut innermost, mut node) = (&self.root, Some(&self.root));
        for step in problem.path() {
            node = node.and_then(|node| node.child(step));
            innermost = node.unwrap_or(innermost);
            table.clone_from(&key);
            match (step, node.and_then(Node::name)) {
                (Step::Index(_), Some(name)) => push_key(&mut key, name),
                (Step::Index(index), None) => key.push_str(&format!("[{}]", index + 1)),
                (Step::Key(name), _) => push_key(&mut key, name),
            }
        }
        let what = problem.text(node.map(|node| &node.value), &table, self.examples);
        Fault::new(&self.file, &innermost.place, &key, &what).in_text(&self.text)
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
            let place = Place::Setting(setting.to_string());
            Error::Faults(vec![Fault::new(&self.file, &place, key, &what)])
        };
        if setting.value.len() > MAX_SETTING {
            let length = setting.value.len();
            let what = format!("{length} bytes are too long for a setting: {MAX_SETTING} are accepted");
            let place = Place::Setting(format!("{}=…", setting.key));
            return Err(Error::Faults(vec![Fault::new(&self.file, &place, "", &what)]));
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

/// The lines that are not TOML, each once: what follows an error in its line is not to be trusted.
fn syntax_faults(file: &str, text: &str, lines: &LineStarts, errors: &[toml::de::Error]) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for error in errors.iter().take(MAX_PROBLEMS) {
        let line = lines.line(error.span().map_or(0, |span| span.start));
        let place = Place::Line(line);
        if faults.iter().all(|fault| fault.place != place) {
            let found = text.lines().nth(line - 1).unwrap_or_default().trim();
            let remedy = match quoted(found) {
                _ if error.message().contains("duplicate key") => "leave one of the two out".to_owned(),
                Some(line) => format!("write {line}"),
                None => "write KEY = VALUE with texts in quotation marks, [TABLE], or [[TABLE]]".to_owned(),
            };
            let what = format!("{} in \"{found}\"; {remedy}", error.message());
            faults.push(Fault::new(file, &place, "", &what).in_text(text));
        }
    }
    faults
}

/// A line `key = text` with the text in quotation marks, if it is a word that could be meant so.
fn quoted(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split(" #").next()?.trim());
    let is_key = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_word = |c: char| c.is_alphanumeric() || "-_./:% ".contains(c);
    let fits = !key.is_empty() && key.chars().all(is_key) && !value.is_empty() && value.chars().all(is_word);
    fits.then(|| format!("{key} = \"{value}\""))
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
